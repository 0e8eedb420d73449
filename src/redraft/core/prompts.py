"""What a refiner is told: the task unchanged, then its parent, what to change, and what did not help before.

Pure: the delimiters are derived from the text they enclose, so that the same trace always asks in the same words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

from .records import Candidate, Feedback, Message
from .trace import Trace

MOST_TRIES = 3  # earlier attempts told of: more of them only lengthens the prompt


def advise(trace: Trace, parent: Candidate) -> tuple[Message, ...]:
    """The messages that ask for a better version of `parent`.

    The original messages come first and unchanged, so that a provider's prefix cache hits; then one user message.
    Scores, other candidates' texts and errors of graders are not in it.
    """
    fence, wishes = fence_for(parent.text), list(open_actions(trace, parent))
    parts = [
        "This is an earlier answer to the request above:",
        f"<answer-{fence}>\n{parent.text}\n</answer-{fence}>",
        "Improve it. Change what is listed here and keep what is good:",
        "\n".join(wishes) or "- Make it a better answer to the request.",
    ]
    if tried := [line for c in fruitless(trace, parent) for line in setbacks(trace, c, wishes)]:
        parts += ["This was already tried and did not help; do not repeat it:", "\n".join(dict.fromkeys(tried))]
    parts.append("Answer with the improved answer only: no preface, no comment on the changes.")
    return (*trace.task.messages, {"role": "user", "content": "\n\n".join(parts)})


def fence_for(text: str) -> str:
    """A tag that does not occur in `text`."""
    fence = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    while fence in text:
        fence = sha256(fence.encode()).hexdigest()[:8]
    return fence


def open_actions(trace: Trace, candidate: Candidate) -> Iterator[str]:
    """What is still to be changed, grouped by criterion; nothing about what is already met."""
    for feedback in trace.feedback[candidate.id]:
        yield from _open(feedback)
    for comparison in trace.comparisons[-1:]:
        if candidate.id in comparison.ranking:
            yield from _lines(comparison.grader, [comparison.reason, *comparison.actions])


def _open(feedback: Feedback) -> Iterator[str]:
    if feedback.score is None or feedback.score >= 1:
        return
    unmet = [c for c in feedback.criteria if c.score < 1]
    for c in unmet:
        about = f' (about: "{c.evidence}")' if c.evidence else ""
        yield f"- {c.name}: {c.action or 'not fully met yet'}{about}"
    loose = [a for a in feedback.actions if a not in {c.action for c in feedback.criteria}]
    if not unmet or loose:
        yield from _lines(feedback.grader, loose or [feedback.reason])


def _lines(grader: str, wishes: Sequence[str]) -> Iterator[str]:
    said = [wish for wish in wishes if wish] or ["not fully met yet"]
    if len(said) == 1:
        yield f"- {grader}: {said[0]}"
    else:
        yield f"- {grader}:"
        yield from (f"  - {wish}" for wish in said)


def fruitless(trace: Trace, parent: Candidate) -> list[Candidate]:
    """The refinements of `parent` that did not become better than it, latest few."""
    bar = trace.scores[parent.id]
    children = [
        c
        for c in trace.candidates
        if c.parent == parent.id and c.role == "refine" and (bar is None or (trace.scores[c.id] or 0.0) <= bar)
    ]
    return children[-MOST_TRIES:]


def setbacks(trace: Trace, child: Candidate, known: Sequence[str]) -> Iterator[str]:
    """What was wrong with a refinement beside what was known of its parent."""
    if trace.unchanged(child):
        yield "- returning the earlier answer as it was"
        return
    said = [line for line in open_actions(trace, child) if line not in known]
    yield from said or ["- a revision that changed too little of what is listed above"]
