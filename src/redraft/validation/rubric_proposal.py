"""Proposes a rubric from the description of a task, without data: a draft that a person edits and
then validates.

The reply is read strictly: criteria with different names and weights 1 to 3, and texts for the
levels 0, 3 and 5. The description is shown to the model as data. Nobody has measured whether a
judge with such a rubric agrees with people; `rubric_induction` does that from labelled data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Unpack

from ..base import checks
from ..base.text import strip_control_sequences
from ..errors import ConfigError
from ..graders import Criterion, Rubric
from ..graders.judging.prompt import data_notice, enclose, fresh_nonce
from ..graders.judging.structured import (
    JSON_ONLY,
    UnreadableOutput,
    ask_for_json,
    object_at,
    object_schema,
    read_object,
    string_at,
    text_schema,
)
from ..middleware.timeout import enforce_deadline
from ..protocols import Reply, Request
from ..session.models import Models
from ..session.options import Options
from ..session.perform import StepClient
from ..session.refinement import resolve_model
from ..session.session import Session
from ..settings import Settings

MAX_DESCRIPTION_CHARS = 8_000
MAX_CRITERIA = 6
MAX_NAME_CHARS, MAX_ABOUT_CHARS, MAX_TEXT_CHARS = 40, 160, 300
LEVELS = (0, 3, 5)
WEIGHTS = (1, 2, 3)
WEIGHT_SCHEMA = {"type": "integer", "enum": list(WEIGHTS)}
NAME = re.compile(r"[^\W\d]\w*")
PROMPT = (
    "Somebody will judge answers to tasks of the kind described below, one answer at a time. "
    f"Write the criteria: between 2 and {MAX_CRITERIA}, each about one quality that can be seen "
    "in an answer, none twice. Describe each in one sentence that is true of a perfect answer. "
    "For the scores 0, 3 and 5, say what an answer with that score looks like. The weight says "
    "how much the criterion matters. Do not do the task itself."
)
FORMAT = (
    '{"about": "whether the answer ...", "criteria": [{"name": "short_name", "description": '
    '"one sentence", "weight": 1, 2 or 3, "levels": {"0": "what earns 0", "3": "what earns 3", '
    '"5": "what earns 5"}}]}'
)


def criteria_schema(**criterion: Any) -> dict[str, Any]:
    """Return the JSON schema of a list of 1 to 6 criteria with these properties."""
    items = object_schema(**criterion)
    return {"type": "array", "minItems": 1, "maxItems": MAX_CRITERIA, "items": items}


SCHEMA = object_schema(
    about=text_schema(MAX_ABOUT_CHARS),
    criteria=criteria_schema(
        name=text_schema(MAX_NAME_CHARS),
        description=text_schema(MAX_TEXT_CHARS),
        weight=WEIGHT_SCHEMA,
        levels=object_schema(**{str(level): text_schema(MAX_TEXT_CHARS) for level in LEVELS}),
    ),
)


async def propose_rubric(
    description: str, model: Any = None, *, name: str = "rubric", **settings: Unpack[Settings]
) -> Rubric:
    """Propose a rubric for tasks of a kind, from their description alone.

    Args:
        description: What the answers are and what matters about them, in at most 8,000 characters.
        model: The model to ask, in any form that `refine` takes. None means one that is found.
        name: The name of the rubric.
        settings: `budget`, `timeout`, `retries` and the other settings of `refine` that concern
            calls.

    Returns:
        A rubric with 1 to 6 criteria, each with a weight and the meaning of the levels 0, 3 and 5.
        Nobody has checked it: read and edit it (`proposal_to_toml` writes it as a file), and
        measure it against labels with `redraft validate`.

    Raises:
        ConfigError: The description is empty or too long, or there is no model.
        BadResponseError: The model's reply could not be read twice.
    """
    checks.text("description", description)
    if len(description) > MAX_DESCRIPTION_CHARS:
        raise ConfigError(
            f"description: at most {MAX_DESCRIPTION_CHARS} characters, got {len(description)}"
        )
    checks.text("name", name)
    options = Options.from_settings(settings)
    async with Session(options, Models(options, await resolve_model(model))) as session:
        client = session.models.writing_client
        if client is None:
            raise ConfigError("a model must propose the criteria, and there is none: give `model`")
        ask, parse = StepClient(client), partial(parse_proposal, name=name)
        propose = partial(
            ask_for_json, ask, parse=parse, subject="the proposed rubric", params="model_params"
        )
        return await enforce_deadline(propose, options.deadline_at)(proposal_request(description))


def proposal_request(description: str) -> Request:
    """Return the request to the proposing model: the instructions, the description as data, the
    format.
    """
    nonce = fresh_nonce([description])
    prompt = "\n\n".join(
        [
            PROMPT,
            data_notice(nonce),
            enclose("description", description, nonce),
            f"{JSON_ONLY}\n{FORMAT}",
        ]
    )
    return Request(({"role": "user", "content": prompt},), 0.0, schema=SCHEMA, nonce=nonce)


def parse_proposal(reply: Reply, name: str) -> Rubric:
    """Return the rubric in a reply. Raises UnreadableOutput."""
    data = read_object(reply.text)
    criteria = parse_criteria(data, _parse_criterion)
    return Rubric(name, criteria, _bounded_text(data, "about", MAX_ABOUT_CHARS, "the object"))


def parse_criteria(
    data: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], Criterion]
) -> tuple[Criterion, ...]:
    """Return the criteria of a reply: 1 to 6 with different names, each read from its object by
    `parse`. Raises UnreadableOutput.
    """
    rows = data.get("criteria")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_CRITERIA:
        raise UnreadableOutput(f"'criteria' must be a list of 1 to {MAX_CRITERIA}")
    if not all(isinstance(row, dict) for row in rows):
        raise UnreadableOutput("each criterion must be an object")
    criteria = tuple(map(parse, rows))
    if len({criterion.name for criterion in criteria}) < len(criteria):
        raise UnreadableOutput("two criteria have the same name")
    return criteria


def _parse_criterion(row: Mapping[str, Any]) -> Criterion:
    name, weight = _bounded_text(row, "name", MAX_NAME_CHARS, "a criterion"), row.get("weight")
    if not NAME.fullmatch(name):
        raise UnreadableOutput(
            f"the name of a criterion is one word such as short_name, got {name!r}"
        )
    if type(weight) is not int or weight not in WEIGHTS:
        raise UnreadableOutput(
            f"the weight of {name!r} must be 1, 2 or 3, got {str(weight)[:40]!r}"
        )
    levels = _parse_levels(object_at(row, "levels"), name)
    return Criterion(
        name, _bounded_text(row, "description", MAX_TEXT_CHARS, name), float(weight), levels
    )


def _parse_levels(row: Mapping[str, Any], name: str) -> tuple[tuple[int, str], ...]:
    if row.keys() != {str(level) for level in LEVELS}:
        raise UnreadableOutput(f"the levels of {name!r} must be 0, 3 and 5")
    levels = tuple(
        (level, _bounded_text(row, str(level), MAX_TEXT_CHARS, f"the levels of {name!r}"))
        for level in LEVELS
    )
    if len({text for _, text in levels}) < len(levels):
        raise UnreadableOutput(f"two levels of {name!r} have the same text")
    return levels


def _bounded_text(row: Mapping[str, Any], key: str, max_chars: int, where: str) -> str:
    """Return a text on one line. Raises UnreadableOutput if it is empty or longer than twice the
    limit in the schema.
    """
    text = _on_one_line(string_at(row, key))
    if not text or len(text) > 2 * max_chars:
        raise UnreadableOutput(f"{key!r} in {where} must be a text of 1 to {max_chars} characters")
    return text


def _on_one_line(text: str) -> str:
    return " ".join(strip_control_sequences(text).split())


def proposal_to_toml(rubric: Rubric, description: str, model: str) -> str:
    """Return the rubric as a file to edit, with comments that explain it. Raises ConfigError (see
    `Rubric.to_toml`).
    """
    lines = "".join(f"# {line}".rstrip() + "\n" for line in _header_lines(description, model))
    return f"{lines}\n{rubric.to_toml()}\n{EXAMPLE_COMMENT}"


def _header_lines(description: str, model: str) -> Iterator[str]:
    text = json.dumps(_on_one_line(description), ensure_ascii=False)
    yield (
        f"Proposed by {_on_one_line(model)} for "
        f"{text if len(text) <= 400 else f'{text[:400]} ...'},"
    )
    yield (
        "without data: nobody has checked it. Edit it; to measure a judge that uses it: redraft "
        "validate DATA --rubric FILE"
    )
    yield ""
    yield "weight: how much the criterion counts. levels: what some of the scores 0 to 5 mean."
    yield (
        "uses: fields of the task that the judge reads. needs = [...] names fields that every "
        "task must have."
    )


EXAMPLE_COMMENT = """\
# Scored examples show what the levels mean. `scores` has a number from 0 to 5 for each criterion:
#
# [[examples]]
# task = "..."
# answer = "..."
# scores = { NAME = 2 }
# reason = "..."
"""
