"""The prompts that judges were sent about an answer, made again from the trace and from what the
journal says of the judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..base.sync import run_sync
from ..errors import ConfigError
from ..graders.judging.stored_judge import judge_from_data, judge_prompts
from ..loop.records import Candidate
from ..loop.trace import PanelGrader, Trace
from .row_view import ShownText, shown_messages

UNKNOWN = (
    "its prompts cannot be made again: journals describe judges with a rubric or a template, not "
    "other graders that ask a model"
)


MAX_CALLS = 20  # of one grader that are shown


@dataclass(frozen=True, slots=True)
class JudgingView:
    """The prompts of one grader, as roles and texts; `problem` says why they cannot be shown, or
    that some are left out.
    """

    grader: str
    prompts: tuple[tuple[tuple[str, ShownText], ...], ...] = ()
    problem: str = ""


def judging_views(
    trace: Trace, candidate: Candidate, judges: Mapping[str, Any]
) -> Iterator[JudgingView]:
    """Yield what each grader that asks a model was sent about an answer, if it graded it. `judges`:
    as `RunIndex.judges`.
    """
    graded = {feedback.grader for feedback in trace.feedback[candidate.id]}
    for grader in trace.panel:
        if grader.name in graded and not grader.model_free:
            yield _judging_view(trace, candidate, grader, judges.get(grader.name))


def _judging_view(
    trace: Trace, candidate: Candidate, grader: PanelGrader, data: Any
) -> JudgingView:
    if data is None:
        return JudgingView(grader.name, problem=UNKNOWN)
    try:
        prompts = run_sync(judge_prompts(judge_from_data(data), trace.task, candidate))
    except ConfigError as error:
        return JudgingView(grader.name, problem=f"its prompts cannot be made again: {error}"[:1000])
    problem = "" if prompts else "it judged this answer without asking a model"
    if len(prompts) > MAX_CALLS:
        problem = f"the first {MAX_CALLS} of {len(prompts):,} calls"
    return JudgingView(
        grader.name,
        tuple(tuple(shown_messages(messages)) for messages in prompts[:MAX_CALLS]),
        problem,
    )
