"""What a text of YAML promises, looked at before its values are made: aliases may stand for any size."""

from __future__ import annotations

from typing import Any

from .jsontext import MAX_DEPTH, TOO_DEEP_MESSAGE

MAX_ALIASES = 16  # in YAML


def check_yaml(yaml: Any, text: str) -> None:
    """Raises ValueError where reading the values would take more than the text promises."""
    aliases = depth = 0
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            aliases += isinstance(event, yaml.AliasEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError(TOO_DEEP_MESSAGE)
            if aliases > MAX_ALIASES:
                raise ValueError(f"it has more than {MAX_ALIASES} aliases (*name), which may stand for any size")
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
