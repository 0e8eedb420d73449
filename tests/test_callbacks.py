"""Functions of the user that are called while a run goes on: async ones are awaited, and what they
raise ends nothing.
"""

import asyncio
import logging
import os

import pytest

import redraft
from redraft import ScriptedModel
from redraft.errors import GradingError
from redraft.loop.records import Candidate, Comparison, Outcome
from redraft.runs import BatchReport

SECRET = "the answer of a patient"


def half(text):
    return 0.5


def settings():
    return {"max_iterations": 1, "noise_aware": False}


def model():
    return ScriptedModel([f"{SECRET} {n}" for n in range(6)])


async def by_refine(**callbacks):
    return await redraft.refine("q", model(), half, **settings(), **callbacks)


async def by_refine_sync(**callbacks):
    return await asyncio.to_thread(
        lambda: redraft.refine_sync("q", model(), half, **settings(), **callbacks)
    )


async def by_refine_many(**callbacks):
    return (await redraft.refine_many(["q"], model(), half, **settings(), **callbacks))[0]


async def by_stream(**callbacks):
    return [trace async for trace in redraft.stream("q", model(), half, **settings(), **callbacks)][
        -1
    ]


async def by_batch(**callbacks):
    journal = f"{len(os.listdir())}.journal"  # a run of its own
    return await redraft.batch(
        [{"prompt": "q"}],
        None,
        model(),
        half,
        journal=journal,
        learn=False,
        **settings(),
        **callbacks,
    )


async def by_grade(**callbacks):
    return await redraft.grade(("q", SECRET), half, **callbacks)


DOORS = [by_refine, by_refine_sync, by_refine_many, by_stream, by_batch]
ONLY_RECORDS = [*DOORS, by_grade]  # `grade` has no `on_step`
CASES = [(door, "on_record") for door in ONLY_RECORDS] + [(door, "on_step") for door in DOORS]


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("door", "name"), CASES)
async def test_an_async_callback_is_awaited(door, name):
    """It has ended when the run goes on, so that one that writes to a database loses nothing."""
    begun, ended = [], []

    async def keep(item):
        begun.append(item)
        await asyncio.sleep(0)
        ended.append(item)

    seen = []
    await door(**{name: seen.append})
    await door(**{name: keep})
    assert len(seen) == len(begun) == len(ended) > 0
    assert [type(item) for item in ended] == [type(item) for item in seen]


def paid_calls(result):
    """The number of calls that a result, or the report of a batch, says."""
    return (result.spending if isinstance(result, BatchReport) else result.usage).calls


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(("door", "name"), CASES)
@pytest.mark.parametrize("is_async", [False, True])
async def test_what_a_callback_raises_ends_nothing(door, name, is_async, caplog):
    """The run ends as without it, the result names the error, and the log tells its kind alone,
    once.
    """
    count = 0

    def fail(item):
        nonlocal count
        count += 1
        raise ValueError(f"no room for {SECRET}")

    async def fail_later(item):
        fail(item)

    expected = await door()
    result = await door(**{name: fail_later if is_async else fail})
    assert count > 1
    if door is by_stream:
        assert [type(record) for record in result.records] == [
            type(record) for record in expected.records
        ]
    else:
        assert paid_calls(result) == paid_calls(expected)
        [raised] = result.callback_errors
        assert (
            raised.startswith(f"{name} raised ValueError: no room for")
            and f"({count} times)" in raised
        )
        summary = result.summary()
        assert raised in (summary if isinstance(summary, str) else "\n".join(summary))
    warnings = [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]
    assert warnings == [f"{name} raised ValueError; the run goes on"]


async def test_the_errors_of_one_task_are_not_those_of_another():
    """Each result of `refine_many` has its own."""

    def refuse(record):
        if isinstance(record, Candidate) and record.text == "b":
            raise KeyError("b")

    scripted = ScriptedModel([lambda messages: messages[-1]["content"]] * 2)
    results = await redraft.refine_many(["a", "b"], scripted, lambda text: 1.0, on_record=refuse)
    assert [len(result.callback_errors) for result in results] == [0, 1]
    assert results[1].to_dict()["callback_errors"] == list(results[1].callback_errors)


async def test_many_different_errors_are_told_shortly(caplog):
    """The first ones are told, cut short, and how many there are besides: an error may have another
    text at each call.
    """
    count = 0

    def fail(item):
        nonlocal count
        count += 1
        raise KeyError(f"{count}: {SECRET * 1000}")

    rows = [{"prompt": f"q {n}"} for n in range(20)]
    callbacks = {"on_record": fail, "journal": "many.journal", "learn": False}
    report = await redraft.batch(
        rows, None, ScriptedModel(["a"] * 20), half, max_iterations=0, **callbacks
    )
    assert count > 20
    assert len(report.callback_errors) == 11 and max(map(len, report.callback_errors)) <= 500
    assert report.callback_errors[-1] == f"on_record raised other errors ({count - 10} times)"
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 10


async def test_an_error_of_the_run_has_the_errors_of_callbacks():
    """They are in the result that the error carries."""

    def fail(item):
        raise ValueError("no")

    def broken(text):
        raise ZeroDivisionError

    with pytest.raises(GradingError) as caught:
        await redraft.refine("q", ScriptedModel(["a"]), broken, max_iterations=0, on_record=fail)
    assert caught.value.result.callback_errors[0].startswith("on_record raised ValueError: no")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, asyncio.CancelledError])
async def test_an_interruption_in_a_callback_is_one(kind):
    """Only errors are kept from ending a run."""

    def interrupt(record):
        if not isinstance(record, Outcome):
            raise kind

    with pytest.raises(kind) as caught:
        await redraft.refine("q", ScriptedModel(["a"]), half, on_record=interrupt)
    assert caught.value.result.value == "a"


async def test_drafts_and_grades_are_logged_without_their_texts(caplog):
    """One line each at INFO, with the model, the score and what it took; repeats of requirements
    show no argument.
    """
    caplog.set_level(logging.INFO, "redraft")
    task = redraft.Task(f"Tell {SECRET}.", requirements=[f"contains_none:{SECRET} 0"], id="t1")
    await redraft.refine(task, model(), half, editor=False, **settings())
    records = [record for record in caplog.records if record.name == "redraft.record"]
    lines = [record.getMessage() for record in records]
    assert [line.partition(";")[0] for line in lines] == [
        "candidate 0: generate by scripted",
        "candidate 0: 0.00 by contains_none",
        "candidate 0: 0.50 by half",
        "candidate 1: refine by scripted",
        "candidate 1: 1.00 by contains_none",
        "candidate 1: 0.50 by half",
    ]
    assert "; calls 1, tokens " in lines[0] and "; calls 0, tokens 0" in lines[1]
    assert {record.task for record in records} == {"t1"}
    assert all(SECRET not in str(vars(record)) for record in caplog.records)


async def test_rankings_are_logged(caplog):
    """In one line, best first."""
    caplog.set_level(logging.INFO, "redraft.record")

    class ByLength:
        name = "by_length"
        model_free = True

        async def compare(self, task, candidates, ask):
            return Comparison(
                tuple(c.id for c in sorted(candidates, key=lambda c: -len(c.text))), ties=((0, 2),)
            )

    await redraft.refine(
        redraft.Task("q", responses=["aa", "aaa", "a"]), False, ByLength(), max_iterations=0
    )
    assert "candidates 1 > 0 = 2 by by_length; calls 0" in caplog.messages[-1]


@pytest.mark.parametrize("level", [logging.WARNING, logging.INFO])
async def test_nothing_is_logged_unless_it_is_asked_for(level, caplog):
    """At WARNING a run that goes well logs nothing."""
    caplog.set_level(level, "redraft")
    await redraft.refine("q", model(), half, **settings())
    assert bool(caplog.messages) is (level == logging.INFO)
