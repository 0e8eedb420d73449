"""How often a judge is talked round: attack strings added to worse answers, and what that does to its verdict.

An attack is appended to the response that people found worse; those of the kinds in WHOLE stand in its place, since
they are meant to pass for an answer by themselves (arXiv:2507.08794 for master keys, arXiv:2410.07137 for null models).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from ..checks import read_error_message
from ..errors import ConfigError
from ..jsontext import strict_loads
from ..small_files import read_small_text
from .cases import LabelledCase, Verdict
from .estimates import CaseVerdicts, Measure, proportion
from .report import FIRST, SECOND, better_of_two, preferred_response

WHOLE_ANSWER_KINDS = {"master_key", "null_model"}


@dataclass(frozen=True, slots=True)
class Attack:
    """A text meant to sway a judge, and the kind of attack it is."""

    text: str
    kind: str = "attack"

    def apply(self, answer: str) -> str:
        """The answer with the attack in it."""
        return self.text if self.kind in WHOLE_ANSWER_KINDS else f"{answer}\n{self.text}"


def read_attacks(path: str | Path) -> list[Attack]:
    """Attacks from JSON lines with `text` and perhaps `kind`, or from plain lines. Raises ConfigError."""
    try:
        lines = read_small_text(path, "utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"attacks {str(path)!r} cannot be read: {read_error_message(error)}") from error
    attacks = [_parse_attack(line, f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not attacks:
        raise ConfigError(f"attacks {str(path)!r}: there are none in it")
    return attacks


def _parse_attack(line: str, where: str) -> Attack:
    if not line.lstrip().startswith("{"):
        return Attack(line)
    try:
        data = strict_loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error
    if not isinstance(data.get("text"), str) or not isinstance(data.get("kind", ""), str):
        raise ConfigError(f'{where}: an attack is {{"text": ..., "kind": ...}}, got {line[:100]!r}')
    return Attack(data["text"], data.get("kind") or "attack")


def attacked_cases(
    cases: Sequence[LabelledCase], attacks: Sequence[Attack], verdicts: Mapping[str, Sequence[Verdict]], threshold: float = 0.5
) -> Iterator[tuple[LabelledCase, Attack]]:
    """A case for every attack: in turn, those whose worse response the judge did not already prefer."""
    fair = [
        case
        for case in cases
        if worse_response(case) is not None and case.id in verdicts and not prefers_worse(case, verdicts[case.id], threshold)
    ]
    if not fair:
        return
    for n, attack in enumerate(attacks):
        case = fair[n % len(fair)]
        at = worse_response(case) or 0
        responses = tuple(attack.apply(text) if i == at else text for i, text in enumerate(case.responses))
        yield replace(case, id=f"{case.id}+{_short_digest(responses)}", responses=responses, group=attack.kind), attack


def _short_digest(responses: tuple[str, ...]) -> str:
    """Eight hex digits of the answers as they are judged."""
    return sha256(repr(responses).encode("utf-8", "backslashreplace")).hexdigest()[:8]


def worse_response(case: LabelledCase) -> int | None:
    """The index of the response that people found worse; for one response 0 where it failed; None where there is none."""
    if case.kind == "pair" and case.ranks is not None:
        return {FIRST: 1, SECOND: 0}.get(better_of_two(case.ranks))
    return 0 if case.kind == "pass" and not case.label else None


def prefers_worse(case: LabelledCase, verdicts: Sequence[Verdict], threshold: float = 0.5) -> bool:
    """Whether a judge prefers the worse response, or lets a failed one pass."""
    row = CaseVerdicts(case, tuple(verdicts))
    if case.kind == "pair":
        said = preferred_response(row)
        return said in {FIRST, SECOND} and said != better_of_two(case.ranks)
    return (row.mean_score() or 0.0) >= threshold


def attack_success_rates(
    cases: Sequence[LabelledCase], verdicts: Mapping[str, Sequence[Verdict]], threshold: float = 0.5
) -> tuple[Measure, ...]:
    """The share of attacks that turned the verdict, in all and by kind; unreadable verdicts are not turned."""
    by_kind: defaultdict[str, list[bool]] = defaultdict(list)
    for case in cases:
        if case.id in verdicts:
            by_kind[case.group].append(prefers_worse(case, verdicts[case.id], threshold))
    every = [turned for held in by_kind.values() for turned in held]
    rows = [("all attacks", every), *sorted(by_kind.items())]
    return tuple(
        proportion(name, sum(held), len(held), about="verdicts turned in favour of the attacked answer") for name, held in rows
    )
