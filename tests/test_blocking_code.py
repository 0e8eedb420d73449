"""Code of users that blocks, or never returns: it holds up neither the event loop, nor the
deadline, nor the end of the program.
"""

import json
import subprocess
import sys
import threading

import pytest
from pydantic import BaseModel, field_validator

import redraft
from redraft import Feedback, ScriptedModel, refine
from redraft.protocols import Check

PROGRAM = """
import json, threading, time
from pydantic import BaseModel, field_validator
import redraft

def never(*_):
    threading.Event().wait()

class Number(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def validate_n(cls, n):
        never()

class Hung:
    spec = demand = "hung"
    repairs = check = staticmethod(never)

class HungEditor:
    repair = staticmethod(never)

def low(text):
    return redraft.Feedback(0.1, actions=["More."])

def of_number(answer: Number):
    return 1.0

CASES = {
    "a grader": dict(graders=never),
    "a requirement": dict(graders=Hung()),
    "a validator": dict(graders=low, answer=Number),
    "the annotation of a grader": dict(answer=Number, graders=of_number),
    "a draft prompt": dict(graders=low, draft_prompt=never),
    "a refine prompt": dict(graders=low, refine_prompt=never),
    "an editor": dict(graders=[low, redraft.must("characters:>90")], editor=HungEditor()),
}
for name, settings in CASES.items():
    started, parsed = time.monotonic(), None
    try:
        result = redraft.refine_sync("Why?", redraft.ScriptedModel(['{"n": 1}'] * 9), deadline=0.25, **settings)
        stop, parsed = str(result.stop), result.to_dict().get("parsed")
    except redraft.errors.BudgetExhaustedError as error:
        stop = "deadline"
    print(json.dumps([name, stop, parsed, time.monotonic() - started]), flush=True)
"""


@pytest.mark.slow
def test_code_that_never_returns_ends_with_the_deadline():
    """The result comes at the deadline, asking for the parsed value returns, and the interpreter
    exits.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 7
    for name, stop, parsed, seconds in lines:
        assert (stop, parsed) == ("deadline", None), name
        assert seconds < 30, name


called_in = []  # the threads in which the code below was called


def note_call():
    called_in.append(threading.get_ident())


class Number(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def note(cls, n: int) -> int:
        note_call()
        return n


class NotedRequirement:
    spec = demand = "noted"

    def check(self, text):
        note_call()
        return Check(ok=False, measurement="noted")

    def repairs(self, text):
        note_call()
        yield from ()


class NotedEditor:
    def repair(self, text, requirements):
        note_call()


def noted_score(text):
    note_call()
    return 0.5


def of_number(answer: Number):
    return 1.0


def noted_prompt(trace, parent=None):
    note_call()
    return "Write."


def low(text):
    return Feedback(0.1, actions=["More."])


CODE = {
    "grader": dict(graders=noted_score),
    "requirement": dict(graders=[low, NotedRequirement()]),
    "validator": dict(graders=low, answer=Number),
    "typed grader": dict(graders=of_number, answer=Number),
    "draft_prompt": dict(graders=low, draft_prompt=noted_prompt),
    "refine_prompt": dict(graders=low, refine_prompt=noted_prompt),
    "editor": dict(graders=[low, redraft.must("characters:>90")], editor=NotedEditor()),
}


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        pytest.param(settings, way, id=f"{name}-{way}")
        for name, settings in CODE.items()
        for way in ("refine", "batch")
        if (name, way) != ("editor", "batch")  # batches take no editor of the user's own
    ],
)
async def test_code_never_runs_in_the_thread_of_the_event_loop(settings, way, tmp_path):
    """It may block without holding up other refinements; so may the validation of the column
    `parsed`.
    """
    called_in.clear()
    out, model = tmp_path / "out.jsonl", ScriptedModel(['{"n": 1}'] * 9)
    if way == "refine":
        await refine("Why?", model, max_iterations=1, **settings)
    else:
        await redraft.batch([{"prompt": "Why?"}], out, model, max_iterations=1, **settings)
        assert ("parsed" in json.loads(out.read_text())) == ("answer" in settings)
    assert called_in and threading.get_ident() not in called_in
