"""How similar Python code is to the reference solution."""

from __future__ import annotations

from dataclasses import dataclass

from ...base import checks
from ...base.own_code import fingerprint_name
from ...base.threads import run_in_thread
from ...errors import ComputeLimitError, ConfigError
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from ...protocols import JudgeClient
from ...sandbox.code.program import is_python
from ...sandbox.code.similarity import code_similarity
from ...workers.pool import run
from .base import reference_of, score_feedback, with_composed_texts
from .code_checks import code_of

MAX_CHARS = 100_000  # longer code is not compared
ACTION = "Solve the task in the usual way, without steps that it does not need."


@fingerprint_name("code_similarity")
@with_composed_texts
@dataclass(frozen=True)
class CodeSimilarity:
    """The similarity of Python code with the reference solution, from 0 to 1.

    It is twice the length of the longest common subsequence of tokens, divided by the number of
    tokens of both. Layout, comments, docstrings and annotations do not count, and the names that a
    program gives its own variables and functions count as equal, unless `names` is true. Code that
    does not compile scores 0. A different solution may be as good: this measures nearness, not
    quality. Reads `reference`, which is Python code, has it in a fence or, as a completion, follows
    `task.metadata["code_prefix"]`.
    """

    names: bool = False
    name: str = "code_similarity"

    model_free = True
    needs = ("reference",)
    reads_metadata = True

    def __post_init__(self) -> None:
        checks.flag("names", self.names)

    def check_task(self, task: Task) -> None:
        """Raise ConfigError for a reference that is no Python code."""
        self._reference(task)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return a score from 0 to 1; None if comparing takes too long. Raises ConfigError for a
        reference that is no code.
        """
        reference = await run_in_thread(self._reference, task)
        code = await run_in_thread(code_of, candidate.text, task)
        size = len(code) + len(reference)
        if size > MAX_CHARS:
            return Feedback(None, f"code of more than {MAX_CHARS:,} characters is not compared")
        try:
            failure = "the similarity could not be computed"
            score = await run(
                code_similarity, code, reference, self.names, failure_text=failure, text_length=size
            )
        except ComputeLimitError as error:
            return Feedback(None, str(error))
        if score is None:
            return Feedback(
                0.0, "the code does not compile", ("Write code that compiles.",), done=False
            )
        return score_feedback(score, f"{score:.0%} like the reference", ACTION)

    def _reference(self, task: Task) -> str:
        code = code_of(reference_of(task, self.name), task)
        if not is_python(code):
            raise ConfigError(
                f"grader {self.name!r}: the reference is not Python code: give a solution in Python"
            )
        return code
