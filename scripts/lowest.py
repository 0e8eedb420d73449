"""Print the lowest declared version of every dependency as constraints of pip: python
scripts/lowest.py > constraints.txt

What is declared as "name>=1.2" becomes "name==1.2"; a declaration without a lower bound stops the
script.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
DECLARED = re.compile(r"(?P<name>[\w.-]+)(?:\[[^\]]*\])?>=(?P<floor>[\w.]+)(?:\s*;.*)?")


def lowest(project: dict[str, object]) -> dict[str, str]:
    """The floor of each direct dependency, extras included, by its name."""
    extras: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment]
    core: list[str] = project["dependencies"]  # type: ignore[assignment]
    floors: dict[str, str] = {}
    for line in [*core, *(each for extra in extras.values() for each in extra)]:
        found = DECLARED.fullmatch(line)
        if found:
            floors[found["name"]] = found["floor"]
        elif not line.startswith(("redraft[", "types-")):
            sys.exit(
                f"pyproject.toml: {line!r} declares no lowest version; write it as name>=version"
            )
    return floors


if __name__ == "__main__":
    for name, floor in lowest(tomllib.loads(PYPROJECT.read_text())["project"]).items():
        print(f"{name}=={floor}")
