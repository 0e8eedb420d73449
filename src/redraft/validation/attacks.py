"""Attacks on a judge: texts added to worse answers, and how often they change its verdict.

An attack is appended to the response that people found worse. Attacks of the kinds in
WHOLE_ANSWER_KINDS replace it, since they are complete answers (arXiv:2507.08794 for master keys,
arXiv:2410.07137 for null models).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from ..base.checks import read_error_message
from ..base.documents import read_small_text
from ..base.jsontext import strict_loads
from ..errors import ConfigError
from ..graders.cards import Measure
from . import statistics as m
from .cases import (
    FIRST,
    SECOND,
    CaseVerdicts,
    LabelledCase,
    Verdict,
    better_of_two,
    preferred_response,
)
from .report import proportion

WHOLE_ANSWER_KINDS = {"master_key", "null_model"}


@dataclass(frozen=True, slots=True)
class Attack:
    """A text that is intended to change a verdict, and its kind."""

    text: str
    kind: str = "attack"

    def apply(self, answer: str) -> str:
        """Return the answer with the attack in it."""
        return self.text if self.kind in WHOLE_ANSWER_KINDS else f"{answer}\n{self.text}"


def read_attacks(path: str | Path) -> list[Attack]:
    """Read attacks from JSON lines with `text` and optionally `kind`, or from plain lines. Raises
    ConfigError.
    """
    try:
        lines = read_small_text(path, "utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"attacks {str(path)!r} cannot be read: {read_error_message(error)}"
        ) from error
    attacks = [
        _parse_attack(line, f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()
    ]
    if not attacks:
        raise ConfigError(f"attacks {str(path)!r}: the file holds none")
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
    cases: Sequence[LabelledCase],
    attacks: Sequence[Attack],
    verdicts: Mapping[str, Sequence[Verdict]],
    threshold: float = 0.5,
) -> Iterator[tuple[LabelledCase, Attack]]:
    """Yield a case for every attack, in turn one of the cases whose worse response the judge does
    not already prefer.
    """
    attackable = [
        case
        for case in cases
        if worse_response(case) is not None
        and case.id in verdicts
        and not prefers_worse(case, verdicts[case.id], threshold)
    ]
    if not attackable:
        return
    for n, attack in enumerate(attacks):
        case = attackable[n % len(attackable)]
        worse = worse_response(case) or 0
        responses = tuple(
            attack.apply(text) if i == worse else text for i, text in enumerate(case.responses)
        )
        yield (
            replace(
                case,
                id=f"{case.id}+{_short_digest(responses)}",
                responses=responses,
                group=attack.kind,
            ),
            attack,
        )


def _short_digest(responses: tuple[str, ...]) -> str:
    """Return eight hex digits of a hash of the answers."""
    return sha256(repr(responses).encode("utf-8", "backslashreplace")).hexdigest()[:8]


def worse_response(case: LabelledCase) -> int | None:
    """Return the index of the response that people found worse: 0 for a single response that
    failed; None if there is none.
    """
    if case.kind == "pair" and case.ranks is not None:
        return {FIRST: 1, SECOND: 0}.get(better_of_two(case.ranks))
    return 0 if case.kind == "pass" and not case.label else None


def prefers_worse(case: LabelledCase, verdicts: Sequence[Verdict], threshold: float = 0.5) -> bool:
    """Return whether a judge prefers the worse response or passes a failed one."""
    row = CaseVerdicts(case, tuple(verdicts))
    if case.kind == "pair":
        preferred = preferred_response(row)
        return preferred in {FIRST, SECOND} and preferred != better_of_two(case.ranks)
    return (row.mean_score() or 0.0) >= threshold


def attack_success_rates(
    cases: Sequence[LabelledCase], verdicts: Mapping[str, Sequence[Verdict]], threshold: float = 0.5
) -> tuple[Measure, ...]:
    """Return the share of attacks that changed the verdict, overall and by kind; an unreadable
    verdict counts as unchanged.
    """
    judged = [case for case in cases if case.id in verdicts]
    by_kind = m.group_values((case.group, case) for case in judged)

    def share(name: str, attacked: Sequence[LabelledCase]) -> Measure:
        changed = [prefers_worse(case, verdicts[case.id], threshold) for case in attacked]
        clusters = [case.cluster or case.id.rpartition("+")[0] for case in attacked]
        return proportion(
            name, changed, clusters, about="verdicts changed in favour of the attacked answer"
        )

    return share("all attacks", judged), *(share(name, by_kind[name]) for name in sorted(by_kind))
