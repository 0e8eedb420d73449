"""The prompts of one row, for a preview: what each model would be sent, without sending it.

The models are replaced by recorders: a grader builds its prompt about a stand-in for the answer,
and the call fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..base.error_text import error_text
from ..errors import ConfigError, ModelError
from ..loop.records import Candidate, Feedback
from ..loop.steps import Grade
from ..loop.task import Message, Task
from ..loop.trace import Trace
from ..models.pricing import FREE
from ..plans import Plan, plan_traits
from ..plans.prompts import Prompts
from ..protocols import Reply, Request
from ..session.models import Models
from ..session.perform import make_performer
from ..session.session import Session

ANSWER = "(the answer of the model)"
ADVICE = "(what the graders ask to change)"


@dataclass(frozen=True, slots=True)
class PromptSample:
    """A prompt: its role is "generate", "grade" or "refine", `grader` is the name of the grader, ""
    for the model that writes.
    """

    role: str
    grader: str
    messages: tuple[Mapping[str, Any], ...]


@dataclass
class RecordingModel:
    """A model that keeps the requests, and answers none."""

    name: str = "preview"
    identity: str = "preview"
    requests: list[Request] = field(default_factory=list)
    price = FREE
    takes_probes = False

    async def complete(self, request: Request) -> Reply:
        """Keep the request. Raises ModelError."""
        self.requests.append(request)
        raise ModelError("a preview calls no model", retryable=False)


async def sample_prompts(session: Session, plan: Plan, task: Task) -> tuple[PromptSample, ...]:
    """Return the prompts of a task: for the draft, for each grader that calls a model, and for a
    refinement.

    Raises ConfigError if a function of the user that makes prompts fails.
    """
    task = replace(task, response=None, responses=())
    panel, roles = session.resolve_panel(task.requirements, has_tests=bool(task.tests))
    traits = plan_traits(plan)
    trace, prompts = Trace(task, panel), traits.prompts or Prompts()
    graded = [
        PromptSample("grade", name, messages)
        for name, messages in (await _grading_prompts(session, task)).items()
    ]
    if roles.writer is None:
        return tuple(graded)
    try:
        samples = [PromptSample("generate", "", prompts.draft_messages(trace)), *graded]
        if traits.max_attempts and panel:
            samples.append(PromptSample("refine", "", _refinement_prompt(trace, prompts)))
    except Exception as error:
        raise ConfigError(f"draft_prompt or refine_prompt: {error_text(error)}") from error
    return tuple(samples)


async def _grading_prompts(session: Session, task: Task) -> dict[str, tuple[Message, ...]]:
    """Return the first request of each grader that scores an answer by a model."""
    recorder = RecordingModel()
    options = replace(
        session.options,
        cache=None,
        budget=None,
        require_validated="off",
        retries=0,
        on_record=None,
        on_step=None,
    )
    models = Models(options, None, recorder, connect=lambda _: recorder)
    shadow = Session(options, models, session.graders)
    found: dict[str, tuple[Message, ...]] = {}
    async with shadow:
        panel, roles = shadow.resolve_panel(task.requirements, has_tests=bool(task.tests))
        perform = make_performer(roles, None)
        for grader in panel:
            traits = roles.traits[grader.name]
            # code of the user may do anything, and is not run in a preview
            if grader.compares or not traits.makes_calls or traits.is_user_defined:
                continue
            recorder.requests.clear()
            await perform(Grade(grader.name, task, Candidate(0, ANSWER)))
            if recorder.requests:
                found[grader.name] = tuple(recorder.requests[0].messages)
    return found


def _refinement_prompt(trace: Trace, prompts: Prompts) -> tuple[Message, ...]:
    """Return the prompt for a refinement of a stand-in for the answer, with a stand-in for the
    advice.
    """
    candidate = Candidate(0, ANSWER)
    grader = trace.panel[0].name
    advised = Trace(
        trace.task,
        trace.panel,
        (candidate, Feedback(0.5, actions=(ADVICE,), candidate=0, grader=grader)),
    )
    return prompts.refinement_messages(advised, candidate)
