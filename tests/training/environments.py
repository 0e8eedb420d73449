"""A judge of verifiers and a rubric of OpenEnv, by Redraft. Run by test_libraries.py with a Python
that has both. Writes JSON.
"""

import asyncio
import json

import verifiers.v1 as vf
from openenv.core.rubrics import Gate, WeightedSum
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, TraceTask
from verifiers.v1.types import AssistantMessage

from redraft import rewards
from redraft.errors import GradingError


def fails(text):
    raise ValueError("broken")


def same(text, task):
    return float(text == task.reference)


class Data(vf.TaskData):
    answer: str


class Question(vf.Task[Data]):
    judge = None

    def plugged_judges(self):
        return [self.judge]


def trace_of(task, text):
    node = MessageNode.model_construct(message=AssistantMessage(content=text), sampled=True)
    return vf.Trace.model_construct(
        task=TraceTask(type="Question", data=task.data),
        agent=AgentInfo.model_construct(),
        nodes=[node],
        root_reply=text,
        rewards={},
        metrics={},
    )


async def verified(graders, text):
    """Score a reply as verifiers does; return the rewards, or the error of the rollout."""
    task = Question(Data(prompt="What is 2 + 2?", answer="4"))
    task.judge = rewards.verifiers_judge(graders, name="quality", weight=2.0)
    trace = trace_of(task, text)
    try:
        await task.score(trace)
    except vf.TaskError as error:
        return type(error).__name__, trace.rewards
    return {name: reward.value for name, reward in trace.rewards.items()}


def rubric(graders, **settings):
    return rewards.openenv(
        graders,
        prompt=lambda action, observation: observation["task"],
        response=lambda action, observation: action,
        **settings,
    )


async def main():
    action, observation = "one two", {"task": "Say two words."}
    both = WeightedSum([rubric("words:2-2"), Gate(rubric("words:1-1"))], weights=[0.5, 0.5])
    found = {
        "verifiers": await verified(same, "4"),
        "blank": await verified(same, ""),
        "failed": await verified(fails, "4"),
        "openenv": await both(action, observation),
        "named": await rubric(fails, unknown=0.25)(action, observation),
    }
    try:
        await rubric(fails)(action, observation)
    except GradingError as error:
        found["error"] = type(error).__name__
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
