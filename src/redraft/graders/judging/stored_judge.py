"""What decides the prompts of a judge, as plain data for a journal, and the prompts made again from
it.

Prompts are not recorded: they follow from the judge, the task and the answer. A digest covers the
judge and the wording of Redraft, so that a prompt is never shown that was not sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ...errors import ConfigError, ModelError
from ...loop.records import Candidate
from ...loop.task import Message, Task
from ...protocols import JudgeClient, Reply, Request
from ..fingerprint import grader_fingerprint
from ..rubric import Rubric
from .pointwise import Judge
from .prompt import total_chars

MAX_CHARS = 65_536  # of a judge as JSON; a longer one is not stored
MAX_PROMPT_CHARS = 20_000_000  # of all prompts about an answer; more are not made
SETTINGS = ("max_eval_chars", "images", "criteria_mode", "scoring")


def judge_data(grader: Any) -> dict[str, Any] | None:
    """Return what decides the prompts of a judge; None for another grader, or for a judge that is
    too long to store.
    """
    if type(grader) is not Judge:
        return None
    rubric = cast("Rubric", grader.rubric)
    data = {
        "rubric": rubric.to_data(),
        "settings": {name: getattr(grader, name) for name in SETTINGS},
        "digest": prompt_digest(grader),
    }
    return data if len(json.dumps(data)) <= MAX_CHARS else None


def judge_from_data(data: Mapping[str, Any]) -> Judge:
    """Return a judge with the prompts of the one that `judge_data` described.

    Raises ConfigError if the data are damaged, or if this release would write other prompts.
    """
    if len(json.dumps(data, default=str)) > 2 * MAX_CHARS:
        raise ConfigError("the journal describes a judge that is longer than any that is stored")
    try:
        rubric = Rubric.from_data(data["rubric"], "judge", "the stored judge")
        judge = Judge(rubric, **{name: data["settings"][name] for name in SETTINGS})
        digest = data["digest"]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"the journal does not describe the judge completely: {type(error).__name__}"
        ) from error
    if prompt_digest(judge) != digest:
        raise ConfigError("this release writes other prompts than the one that made the run")
    return judge


def prompt_digest(judge: Judge) -> str:
    """Return a hash of everything that decides the prompts of a judge, whatever model answers
    them.
    """
    read = cast("Rubric", judge.rubric).read  # a model that validates replies decides no prompt
    plain = replace(
        judge, name="judge", model=None, temperature=None, max_tokens=None, params=None, read=read
    )
    return grader_fingerprint(plain, lambda _: "", no_limit=None)


async def judge_prompts(
    judge: Judge, task: Task, candidate: Candidate
) -> list[tuple[Message, ...]]:
    """Return the prompts that a judge sends about an answer, one for each call; [] if it judges
    without a call.

    They belong to the first attempt: an unreadable reply is followed by a second one. The digits
    in the delimiters are drawn anew each time. Raises ConfigError for a task that lacks what the
    judge shows, and for prompts that are too long.
    """
    fields = (cast("Rubric", judge.rubric).template or "").count("{")
    shown = min(judge.max_eval_chars, total_chars(task, candidate.display_text))
    if judge.grade_calls * (1 + fields) * shown > MAX_PROMPT_CHARS:
        raise ConfigError("they are too long")
    recorder = _Recorder()
    try:
        await judge.grade(task, candidate, cast("JudgeClient", recorder))
    except ModelError:
        return [tuple(request.messages) for request in recorder.requests]
    return []


@dataclass
class _Recorder:
    """Keeps the requests of a judge, and answers none."""

    requests: list[Request] = field(default_factory=list)

    async def complete(self, request: Request) -> Reply:
        self.requests.append(request)
        raise ModelError("no model is called", retryable=False)
