"""The LLM judge: a model that reads task, answer and rubric in a fresh context, and says what to change.

It answers one JSON object: per criterion a short quoted evidence, what to change, and a whole number 0-5; and whether
it would stop here. The score is the weighted mean divided by 5. Naming evidence before the number follows the usual
reason-then-score order (G-Eval, arXiv:2303.16634). Untrusted text stands in an envelope (see `envelope`): a
mitigation, not a guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..contracts import Ask, Reply, Request
from ..core.errors import ConfigError
from ..core.records import Candidate, Criterion, Feedback, Task, text_of
from . import reading
from .asking import ask_strictly
from .envelope import cut_middle, enclose, fresh_nonce, notice
from .rubric import DEFAULT, Rubric
from .template import Template

TOP = 5
LEVELS = "Scores: 0 absent or wrong, 1 poor, 2 weak, 3 acceptable, 4 good, 5 nothing to improve."
LONGEST_QUOTE, LONGEST_CHANGE = 100, 240  # characters


@dataclass(frozen=True)
class Judge:
    """An LLM grader.

    `rubric`: a Rubric, a file that holds one, or a mapping of criterion to description. `template`: your own words
    instead, with the fields {query}, {response}, {context}, {reference}; the judge then gives one overall score.
    `model`: what it asks (None: the `judge` of the call, or its `model`). Over `max_eval_chars` the middle of a text
    is left out, visibly, and the feedback says so. Raises ConfigError for a bad rubric or template.
    """

    rubric: Rubric | Mapping[str, str] | str = DEFAULT
    name: str = "judge"
    template: str | None = None
    model: Any = None
    temperature: float | None = 0.0
    max_tokens: int | None = 2048
    max_eval_chars: int = 32_768

    def __post_init__(self) -> None:
        object.__setattr__(self, "rubric", _rubric(self.rubric, self.template))
        if self.template is not None:
            Template(self.template)  # a bad one is said at once

    @property
    def criteria(self) -> tuple[Any, ...]:
        assert isinstance(self.rubric, Rubric)
        return self.rubric.criteria

    async def grade(self, task: Task, candidate: Candidate, ask: Ask) -> Feedback:
        """Feedback on one candidate. Raises BadResponseError when the answer stays unreadable after one re-ask."""
        materials = self.materials(task, candidate)
        shown = {name: cut_middle(text, self.max_eval_chars) for name, text in materials.items()}
        nonce = fresh_nonce(materials.values())
        prompt = self.prompt({name: text for name, (text, _) in shown.items()}, nonce)
        request = Request(
            ({"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}),
            self.temperature,
            self.max_tokens,
            schema=self.schema(),
            nonce=nonce,
        )
        feedback = await ask_strictly(ask, request, self.read)
        cut = [f"{left_out} characters of the {name} were left out" for name, (_, left_out) in shown.items() if left_out]
        return replace(feedback, reason="; ".join([feedback.reason, *cut])) if cut else feedback

    def materials(self, task: Task, candidate: Candidate) -> dict[str, str]:
        """The untrusted texts that the judge sees, by name."""
        given = {"context": task.context, "reference": task.reference, "tests": task.tests}
        asked = "\n\n".join(f"[{m['role']}]\n{text_of(m)}" for m in task.messages) if len(task.messages) > 1 else task.prompt
        return {"task": asked, **{k: v for k, v in given.items() if v}, "answer": candidate.text}

    def prompt(self, texts: Mapping[str, str], nonce: str) -> str:
        """The user message: what to judge by, what is data, the data, how to answer."""
        enclosed = {name: enclose(name, text, nonce) for name, text in texts.items()}
        closing = f"Answer with one JSON object only:\n{self.form()}\n{LEVELS}"
        if self.template is not None:
            return "\n\n".join([notice(nonce), Template(self.template).fill(enclosed), closing])
        criteria = "\n".join(f"- {c.name}: {c.description}" for c in self.criteria)
        return "\n\n".join([f"Criteria:\n{criteria}", notice(nonce), *enclosed.values(), closing])

    def form(self) -> str:
        """The shape of the answer, as the model is shown it: the first criterion in full, the others like it."""
        first, *others = [c.name for c in self.criteria]
        row = f'"{first}": {{"evidence": "short quote", "change": "what to change, or empty", "score": 0-5}}'
        rows = ", ".join([row, *(f'"{name}": {{...}}' for name in others)])
        return f'{{"criteria": {{{rows}}}, "done": true only if nothing should change}}'

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the answer. Texts are bounded: a model that rambles in one never reaches the number."""
        score = {"type": "integer", "enum": list(range(TOP + 1))}
        line = _object(evidence=_words(LONGEST_QUOTE), change=_words(LONGEST_CHANGE), score=score)
        return _object(criteria=_object(**{c.name: line for c in self.criteria}), done={"type": "boolean"})

    def read(self, reply: Reply) -> Feedback:
        """The feedback in a reply. Raises Unreadable."""
        data = reading.read_object(reply.text)
        held = reading.object_at(data, "criteria")
        views = tuple(_view(held, c.name, c.weight) for c in self.criteria)
        if strangers := sorted(held.keys() - {c.name for c in self.criteria}):
            raise reading.Unreadable(f"there is no criterion {strangers[0]!r}")
        score = sum(v.score * v.weight for v in views) / sum(v.weight for v in views)
        unmet = [v for v in views if v.score < 1]
        reason = "; ".join(f"{v.name} {round(v.score * TOP)}/{TOP}" for v in views)
        actions = tuple(v.action for v in unmet if v.action)
        return Feedback(min(score, 1.0), reason, actions, reading.flag(data, "done"), views)


SYSTEM = "You judge answers, strictly and fairly, by what you are told to judge by."


def _rubric(given: Any, template: str | None) -> Rubric:
    if template is not None:
        return Rubric("template", (replace(DEFAULT.criteria[0], name="overall", description="As described above."),))
    if isinstance(given, Rubric):
        return given
    if isinstance(given, Mapping):
        return Rubric.of({"criteria": dict(given)}, "rubric", "rubric")
    if isinstance(given, str):
        return Rubric.load(given)
    raise ConfigError(f"a rubric is a Rubric, a file name, or a mapping of criterion to description, got {given!r}")


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _words(most: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": most}


def _view(held: Mapping[str, Any], name: str, weight: float) -> Criterion:
    row = reading.object_at(held, name)
    score = reading.whole_number(row, "score", 0, TOP)
    return Criterion(name, score / TOP, reading.text(row, "evidence")[:300], reading.text(row, "change"), weight)
