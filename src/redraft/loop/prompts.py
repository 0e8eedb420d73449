"""Build the messages for drafts and refinements.

A draft prompt holds the task and its hard constraints. A refinement prompt adds the answer to be
improved, what to change, and what did not help before. Delimiters are derived from the text they
enclose, so the same trace gives the same prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256
from itertools import chain

from .fields import has_json_form, unrequested_changes
from .records import Candidate, Feedback
from .task import Message
from .trace import PanelGrader, Trace

MAX_FAILED_ATTEMPTS = 3  # failed attempts that a prompt mentions
DIGITS = 9  # of scores that are compared: smaller differences do not count, as in `Trace.best`
# in a demand, before a schema, which a refinement prompt does not repeat
SCHEMA_HEADING = "\nThe JSON schema:\n"
PRE_ANSWER_ROLES = {"user", "tool", "function"}  # roles that an assistant's turn may follow


def draft_messages(trace: Trace) -> tuple[Message, ...]:
    """Return the messages that ask for a draft: the task's, with the hard constraints at the end of
    the last user message.

    Without a user message, the constraints become one.
    """
    messages = trace.task.messages
    constraints = constraint_paragraph(trace)
    if not constraints:
        return messages
    user_turns = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if not user_turns:
        return (*messages, {"role": "user", "content": constraints})
    last = user_turns[-1]
    return (*messages[:last], with_paragraph(messages[last], constraints), *messages[last + 1 :])


def constraint_paragraph(trace: Trace, parent: Candidate | None = None) -> str:
    """Return the paragraph that states the hard constraints; "" if there are none. `parent` as in
    `demand_lines`.
    """
    demands = demand_lines(trace, parent)
    return (
        "\n".join(
            [f"The answer must meet {'this' if len(demands) == 1 else 'all of this'}:", *demands]
        )
        if demands
        else ""
    )


def demand_lines(trace: Trace, parent: Candidate | None = None) -> list[str]:
    """Return the hard constraints, a line each, without the schemas that `parent`, the answer to be
    improved, follows.
    """
    return [f"- {_unmet_part(trace, parent, grader)}" for grader in trace.panel if grader.demand]


def _unmet_part(trace: Trace, parent: Candidate | None, grader: PanelGrader) -> str:
    """Return a demand in words; with its schema unless `parent` follows that."""
    is_met = parent is not None and trace.grader_score(parent.id, grader) == 1
    return grader.demand.partition(SCHEMA_HEADING)[0] if is_met else grader.demand


def with_paragraph(message: Message, text: str) -> Message:
    """Return the message with a paragraph appended: to its text, or as another part of its
    content.
    """
    content = message["content"]
    if isinstance(content, list | tuple):
        return {**message, "content": [*content, {"type": "text", "text": text}]}
    return {**message, "content": f"{content}\n\n{text}" if content else text}


def refinement_messages(
    trace: Trace, parent: Candidate, request: tuple[Message, ...] | None = None
) -> tuple[Message, ...]:
    """Return the messages that ask for a better version of `parent`.

    The messages that ask for a draft (`request`, by default `draft_messages`) come first and
    unchanged, so that a provider's prefix cache hits; then the parent as the assistant's turn; then
    one user message with the advice. Scores, other candidates' texts and errors of graders are left
    out. The user message holds the parent where an assistant's turn cannot follow, and where the
    parent calls tools, because an assistant's turn with calls must be followed by their results. No
    two added neighbours have the same role.
    """
    messages, advice = (
        request or draft_messages(trace),
        "\n\n".join(_refinement_paragraphs(trace, parent)),
    )
    last_role = messages[-1]["role"]
    if last_role in PRE_ANSWER_ROLES and parent.text.strip() and not parent.tool_calls:
        return (
            *messages,
            {"role": "assistant", "content": parent.text},
            {"role": "user", "content": advice},
        )
    content = f"{_delimited_answer(parent.display_text)}\n\n{advice}"
    if last_role == "user":
        return (*messages[:-1], with_paragraph(messages[-1], content))
    return (*messages, {"role": "user", "content": content})


def _delimited_answer(text: str) -> str:
    """Return the paragraph that quotes an earlier answer inside a user message."""
    if not text.strip():
        return "The earlier answer to this request was empty."
    fence = delimiter_for(text)
    return (
        "This is an earlier answer to the request "
        f"above:\n\n<answer-{fence}>\n{text}\n</answer-{fence}>"
    )


def _refinement_paragraphs(trace: Trace, parent: Candidate) -> list[str]:
    """Return what to change, what must stay as it is, and what did not help, a paragraph each."""
    paragraphs = ["Improve the answer. Change what is listed here and keep what is good:"]
    problems = "\n".join(open_actions(trace, parent))
    paragraphs.append(problems or "- Make it a better answer to the request.")
    if has_json_form(trace):
        paragraphs += _field_paragraphs(trace, parent)
    if demands := [
        grader.demand
        for grader in trace.panel
        if grader.demand and trace.grader_score(parent.id, grader) == 1
    ]:
        paragraphs.append("The improved answer must go on meeting this:")
        paragraphs.append(
            "\n".join(
                [f"- still holds: {demand.partition(SCHEMA_HEADING)[0]}" for demand in demands]
            )
        )
    if tried := tried_lines(trace, parent):
        paragraphs += [
            "This was already tried and did not help; do not repeat it:",
            "\n".join(tried),
        ]
    if parent.tool_calls:
        end = (
            "Call the tools as they should be called, or answer in words where that is better: no "
            "comment on the changes."
        )
    else:
        end = "Answer with the improved answer only: no preface, no comment on the changes."
    return [*paragraphs, end]


def tried_lines(trace: Trace, parent: Candidate) -> list[str]:
    """Return what the latest refinements of `parent` tried in vain, a line each; the counts make
    the next prompt differ.
    """
    attempts = failed_attempts(trace, parent)
    if not attempts:
        return []
    known = frozenset(open_actions(trace, parent))
    failed = [new_problems(trace, child, known) for child in attempts]
    times: dict[str, int] = {}
    for line in chain.from_iterable(failed):
        times[line] = times.get(line, 0) + 1
    latest = dict.fromkeys(chain.from_iterable(failed[-MAX_FAILED_ATTEMPTS:]))
    return [f"{line} ({times[line]} times)" if times[line] > 1 else line for line in latest]


def _field_paragraphs(trace: Trace, parent: Candidate) -> Iterator[str]:
    """Yield what to keep of a JSON answer, and which fields the last refinement changed without
    being asked.
    """
    yield "Return the whole JSON again. Keep every field that needs no change exactly as it is."
    if changes := unrequested_changes(trace, parent):
        yield (
            "The last change also altered fields that were right. Put them back, unless something "
            "above asks for the change:"
        )
        yield "\n".join(f"- {change}" for change in changes)


def delimiter_for(text: str) -> str:
    """Return a delimiter that does not occur in `text`."""
    fence = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    while fence in text:
        fence = sha256(fence.encode()).hexdigest()[:8]
    return fence


def open_actions(trace: Trace, candidate: Candidate) -> list[str]:
    """Return the changes that the feedback asks for, by criterion; criteria that are met are left
    out.

    A score of 1 with changes of its own is a judge's rounding, unless it says that the answer is
    done.
    """
    lines: list[str] = []
    for feedback in trace.feedback[candidate.id]:
        lines += _feedback_lines(feedback)
    if trace.comparisons and candidate.id in (comparison := trace.comparisons[-1]).ranking:
        lines += _action_lines(comparison.grader, [comparison.reason, *comparison.actions])
    return lines


def _feedback_lines(feedback: Feedback) -> list[str]:
    is_met = (
        feedback.done or not feedback.is_critique if feedback.score is None else feedback.score >= 1
    )
    if is_met and (feedback.score is None or feedback.done or not any(feedback.actions)):
        return []
    lines: list[str] = []
    for c in feedback.criteria:
        if c.score < 1:
            about = f' (about: "{c.evidence}")' if c.evidence else ""
            lines.append(f"- {c.name}: {c.action or 'not fully met yet'}{about}")
    general: Sequence[str] = feedback.actions
    if feedback.criteria:
        of_criteria = {c.action for c in feedback.criteria}
        general = [action for action in feedback.actions if action not in of_criteria]
    if general or not (lines or is_met):
        lines += _action_lines(feedback.grader, general or [feedback.reason])
    return lines


def _action_lines(grader: str, actions: Sequence[str]) -> list[str]:
    lines = [action for action in actions if action] or ["not fully met yet"]
    # a grader's name may hold JSON, such as a whole schema, which is left out
    name = grader.partition(":{")[0]
    return (
        [f"- {name}: {lines[0]}"]
        if len(lines) == 1
        else [f"- {name}:", *(f"  - {line}" for line in lines)]
    )


def failed_attempts(trace: Trace, parent: Candidate) -> list[Candidate]:
    """Return the refinements of `parent` that are not better than it."""
    children = [c for c in trace.candidates if c.parent == parent.id and c.role == "refine"]
    if not children or trace.scores[parent.id] is None:
        return children
    scores = trace.scores
    if not trace.graders.has_musts:
        score = scores[parent.id] or 0.0
        best = round(score, DIGITS)
        return [
            c
            for c in children
            if (own := scores[c.id] or 0.0) <= score or round(own, DIGITS) <= best
        ]

    def merit(id: int) -> tuple[float, float, float]:
        return trace.must_pass_rate(id), trace.nearness(id), round(scores[id] or 0.0, DIGITS)

    threshold = merit(parent.id)
    return [c for c in children if merit(c.id) <= threshold]


def new_problems(trace: Trace, child: Candidate, known_problems: Collection[str]) -> list[str]:
    """Return the problems of a refinement that its parent did not have."""
    if trace.is_unchanged(child):
        return ["- returning the earlier answer as it was"]
    new = [line for line in open_actions(trace, child) if line not in known_problems]
    new += [
        f"- changing a field that was right: {change}"
        for change in unrequested_changes(trace, child)
    ]
    return new or ["- a revision that changed too little of what is listed above"]
