"""Graders as a scorer of Inspect, and refinement as a solver."""

from __future__ import annotations

import json
from typing import Any, Unpack

from inspect_ai.model import (  # pyright: ignore[reportMissingImports]
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import (  # pyright: ignore[reportMissingImports]
    Score,
    Scorer,
    Target,
    mean,
    scorer,
    stderr,
)
from inspect_ai.solver import (  # pyright: ignore[reportMissingImports]
    Generate,
    Solver,
    TaskState,
    solver,
)

import redraft

from ..errors import ConfigError
from ..settings import Settings
from .grades import GradeArguments, GradeSettings

__all__ = ["redraft_scorer", "redraft_solver"]

TYPES = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}


@scorer(metrics=[mean(), stderr()])
def redraft_scorer(
    graders: Any = None, judge: Any = None, **settings: Unpack[GradeSettings]
) -> Scorer:
    """Return a scorer: `Task(dataset, scorer=redraft_scorer("clarity"))`.

    A score that is unknown is `Score.unscored(reason="grader_failed")`, which Inspect leaves out of
    the metrics. The arguments are those of `redraft.grade`. Graders read the messages, tool calls
    included, and the sample's target as the reference.
    """
    arguments = GradeArguments(graders, judge, settings)

    async def score(state: TaskState, target: Target) -> Score:
        answer = state.output.completion
        messages = list(map(_as_message, state.messages))
        grade = await arguments.grade(
            messages[:-1] if messages[-1]["role"] == "assistant" else messages,
            answer,
            reference=target.text.strip() or None,
        )
        if grade.score is None:
            return Score.unscored(reason="grader_failed", answer=answer, explanation=grade.problem)
        more = {"interval": grade.interval} if grade.interval else None
        return Score(value=grade.score, answer=answer, explanation=grade.feedback, metadata=more)

    return score


@solver
def redraft_solver(graders: Any = None, judge: Any = None, **settings: Unpack[Settings]) -> Solver:
    """Return a solver: `Task(dataset, solver=redraft_solver("words:80-200"))`.

    The evaluated model writes and refines, with its own settings; the best answer is the output.
    The arguments are those of `redraft.refine`; without `judge`, the evaluated model judges where a
    grader asks one. The state's metadata get `redraft_score` and `redraft_stop`. It calls no tools:
    a state whose messages have some is a ConfigError.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        model = get_model()

        async def write(messages: list[dict[str, Any]]) -> str:
            shown = [TYPES[each["role"]](content=each["content"]) for each in messages]
            return str((await model.generate(shown)).completion)

        if wrong := [each.role for each in state.messages if each.role not in TYPES]:
            raise ConfigError(
                f"redraft_solver calls no tools, got a message with role {wrong[0]!r}"
            )
        asked = list(map(_as_message, state.messages))
        result = await redraft.refine(redraft.Task(asked), write, graders, judge, **settings)
        state.output = ModelOutput.from_content(str(model), result.value)
        state.messages.append(state.output.message)
        state.metadata |= {"redraft_score": result.score, "redraft_stop": str(result.stop)}
        return state

    return solve


def _as_message(message: ChatMessage) -> dict[str, Any]:
    """Return a message in OpenAI's form, with its text and its tool calls."""
    form = {"role": message.role, "content": message.text}
    if calls := getattr(message, "tool_calls", None):
        form["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function, "arguments": json.dumps(call.arguments)},
            }
            for call in calls
        ]
    if message.role == "tool":
        form["tool_call_id"] = message.tool_call_id or ""
    return form
