"""A listwise judge: a model that ranks all answers so far and says what the best still lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..contracts import Ask, Reply, Request
from ..core.records import Candidate, Comparison, Task
from . import reading
from .asking import ask_strictly
from .envelope import cut_middle, enclose, fresh_nonce, notice
from .judge import LONGEST_CHANGE, SYSTEM

ASKED = "Rank these answers to the task from best to worst by how well each serves whoever asked."
FORM = (
    'Answer with one JSON object only: {"reason": "why this order", "change": ["what would make the best answer better"], '
    '"ranking": [numbers of all answers, best first], "done": true only if nothing should change}'
)


@dataclass(frozen=True)
class Ranker:
    """Ranks candidates, best first; its reason and changes feed the next draft.

    `instruction` says by what to rank. `model` is what it asks (None: the `judge` of the call, or its `model`).
    """

    name: str = "ranker"
    instruction: str = ASKED
    model: Any = None
    temperature: float | None = 0.0
    max_tokens: int | None = 2048
    max_eval_chars: int = 32_768

    async def compare(self, task: Task, candidates: Sequence[Candidate], ask: Ask) -> Comparison:
        """The ranking of all candidates. Raises BadResponseError when the answer stays unreadable after one re-ask."""
        texts = [task.prompt, *(c.text for c in candidates)]
        nonce = fresh_nonce(texts)
        most = self.max_eval_chars // len(candidates)
        shown = [enclose(f"answer-{n}", cut_middle(c.text, most)[0], nonce) for n, c in enumerate(candidates, 1)]
        prompt = "\n\n".join([self.instruction, notice(nonce), enclose("task", task.prompt, nonce), *shown, FORM])
        messages = ({"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt})
        request = Request(messages, self.temperature, self.max_tokens, schema=schema(len(candidates)), nonce=nonce)
        return await ask_strictly(ask, request, lambda reply: read(reply, candidates))


def schema(n: int) -> dict[str, Any]:
    """The JSON schema of a ranking of `n` answers."""
    number = {"type": "integer", "enum": list(range(1, n + 1))}
    properties = {
        "reason": {"type": "string", "maxLength": LONGEST_CHANGE},
        "change": {"type": "array", "items": {"type": "string", "maxLength": LONGEST_CHANGE}, "maxItems": 5},
        "ranking": {"type": "array", "items": number, "minItems": n, "maxItems": n},
        "done": {"type": "boolean"},
    }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def read(reply: Reply, candidates: Sequence[Candidate]) -> Comparison:
    """The comparison in a reply. Raises Unreadable unless each answer is ranked exactly once."""
    data = reading.read_object(reply.text)
    ranking, change = data.get("ranking"), data.get("change", [])
    wanted = list(range(1, len(candidates) + 1))
    whole = isinstance(ranking, list) and all(type(n) is int for n in ranking)
    if not whole or sorted(ranking or []) != wanted:
        raise reading.Unreadable(f"'ranking' must hold each of {wanted} once")
    if not isinstance(change, list) or not all(isinstance(c, str) for c in change):
        raise reading.Unreadable("'change' must be a list of texts")
    ids = tuple(candidates[n - 1].id for n in ranking or [])
    return Comparison(ids, reading.text(data, "reason"), tuple(c.strip() for c in change if c.strip()), reading.flag(data, "done"))
