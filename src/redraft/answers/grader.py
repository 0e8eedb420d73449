"""The hard constraint of a run with a form of answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..base.own_code import fingerprint_name
from ..base.threads import run_in_thread
from ..loop.records import Candidate, Feedback
from ..loop.task import Task
from ..protocols import JudgeClient
from .base import AnswerForm, InvalidAnswer

NAME = "answer"


@fingerprint_name("answer")
@dataclass(frozen=True)
class AnswerGrader:
    """A grader that scores 1 for an answer of the form, and 0 for any other, whose errors are the
    actions.

    An answer that was cut off at the token limit is not valid, however complete it looks.
    """

    form: AnswerForm[Any] = field(compare=False)  # its fingerprint says everything about it
    fingerprint: str = field(init=False)

    name = NAME
    model_free = True
    reads_metadata = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprint", self.form.fingerprint)

    @property
    def editable(self) -> bool:
        """Whether an editor can repair an answer of this form."""
        return self.form.editable

    @property
    def demand(self) -> str:
        """The demand in words, with the schema."""
        return self.form.instruction

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return 1 or 0, with the errors as actions. A validator of the user that raises on a value
        has not accepted it.

        Raises what such a validator raises for another reason than the value, such as an OSError.
        """
        if candidate.truncated:
            reason = "the answer was cut off at the token limit"
            return Feedback(
                0.0,
                reason,
                (f"{reason}: write a shorter one, and all of it",),
                done=False,
                nearness=0.0,
            )
        try:
            # validators of the user may take any time
            await run_in_thread(self.form.read, candidate.text)
        except InvalidAnswer as invalid:
            reason = f"not valid as {self.form.name}: {invalid}"
            return Feedback(0.0, reason, invalid.errors, done=False, nearness=invalid.nearness)
        return Feedback(1.0, f"valid as {self.form.name}")
