"""Hosts of Redraft: programs whose threads gevent or eventlet has replaced, that shut down, or that
another library than asyncio runs.
"""

import asyncio
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import redraft
from redraft import comparison, grading, validation
from redraft.errors import RedraftError

HERE = Path(__file__).parent


def run_script(folder, script, *arguments, check=True):
    """Run a Python script in a process of its own; return what it printed: a line of JSON at the
    end.
    """
    command = [
        sys.executable,
        "-W",
        "error:coroutine:RuntimeWarning",
        "-c",
        dedent(script),
        str(folder),
        *arguments,
    ]
    environment = {**os.environ, "PYTHONPATH": str(HERE), "REDRAFT_HOME": str(folder / "home")}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (0, "") or not check, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# ---- greenlets

PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all(); from gevent import spawn, sleep; wait = lambda g: g.get()",
    "eventlet": "import eventlet; eventlet.monkey_patch(); from eventlet import spawn, sleep; wait = lambda g: g.wait()",
}
LIBRARIES = [
    pytest.param(name, marks=() if name == "gevent" else pytest.mark.slow) for name in PATCHES
]


def patched(library):
    pytest.importorskip(library, reason=f"no {library}")
    return f"import warnings; warnings.simplefilter('ignore'); {PATCHES[library]}\n"


SYNC_ENTRIES = """
import json, public_entries as entries
from redraft.errors import RedraftError
names = ["refine_sync", "grade_sync", "judged", "typed", "batch_sync", "compare_sync", "validate_sync", "over_http"]
ticks, done = [], []

def tick():
    while not done:
        ticks.append(len(ticks))
        sleep(0)

clock = spawn(tick)
alone = {name: getattr(entries, name)() for name in names}
started = [(name, spawn(getattr(entries, name))) for name in names for _ in range(5)]
wrong = [name for name, greenlet in started if wait(greenlet) != alone[name]]
done.append(True)
print(json.dumps([wrong, len(started), len(ticks) > 50]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_greenlets_call_every_synchronous_function_at_once(tmp_path, library):
    """Five of each: the results are those of a call alone, and other greenlets work meanwhile."""
    assert run_script(tmp_path, patched(library) + SYNC_ENTRIES, "1") == [[], 40, True]


CASES_OF_GREENLETS = """
import asyncio, json, time
import redraft
from redraft.errors import RedraftError
seen, begun, ended = {}, [], []

async def writer(messages):
    await asyncio.sleep(0.05)
    return "one two"

async def endless(messages):
    begun.append(True)
    try:
        await asyncio.sleep(600)
    finally:
        ended.append(True)

async def calls_again(messages):
    return redraft.refine_sync("q", writer, ["words:1-5"]).value

async def own_loop():
    await asyncio.sleep(0.02)
    own = asyncio.get_running_loop()
    value = (await redraft.refine("q", writer, ["words:1-5"])).value
    return value, own is asyncio.get_running_loop()

def error(function, *arguments):
    try:
        return function(*arguments)
    except RedraftError as raised:
        return f"{type(raised).__name__}: {raised}"

def grades_in_a_thread(text):
    return redraft.grade_sync(("q", text), ["words:1-5"]).score

waiting = [spawn(redraft.refine_sync, "q", writer, ["words:1-5"]) for _ in range(5)]
seen["five"] = [wait(each).value for each in waiting]
seen["again"] = redraft.refine_sync("q", writer, [grades_in_a_thread]).score
killed = spawn(redraft.refine_sync, "q", endless, ["words:1-5"])
while not begun:
    sleep(0.01)
killed.kill()
while not ended:
    sleep(0.01)
seen["killed"] = ended
seen["model fails"] = error(redraft.refine_sync, "q", lambda messages: 1 / 0, ["words:1-5"])
seen["wrong argument"] = error(redraft.refine_sync, "q", writer, ["wrods:1-5"])
seen["nested"] = error(redraft.refine_sync, "q", calls_again, ["words:1-5"])
seen["code"] = error(redraft.grade_sync, {"prompt": "q", "response": "def f(): return 1", "tests": "assert f() == 1"}, ["tests"])
beside = spawn(asyncio.run, own_loop())
seen["beside a loop"] = [redraft.refine_sync("q", writer, ["words:1-5"]).value, *wait(beside)]
seen["no loop is seen"] = asyncio._get_running_loop() is None
print(json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_greenlets_do_works_or_is_refused_in_words(tmp_path, library):
    """A call that is killed is cancelled; a loop of the program's own and one of ours do not
    meet.
    """
    seen = run_script(tmp_path, patched(library) + CASES_OF_GREENLETS)
    assert seen["five"] == ["one two"] * 5
    assert (seen["again"], seen["killed"]) == (1.0, [True])
    assert (
        seen["model fails"].startswith("ModelError: ") and "division by zero" in seen["model fails"]
    )
    assert seen["wrong argument"].startswith("ConfigError: ") and "words" in seen["wrong argument"]
    assert "use `await redraft.refine(...)`" in seen["nested"]
    assert seen["code"].startswith(
        "SandboxUnavailableError: code cannot be run where gevent or eventlet has replaced threads"
    )
    assert seen["beside a loop"] == ["one two", "one two", True]
    assert seen["no loop is seen"]


LATE = """
import json
from redraft import grade_sync, refine_sync
{patch}
def error(function, *arguments):
    try:
        return str(function(*arguments))
    except Exception as raised:
        return f"{{type(raised).__name__}}: {{raised}}"
print(json.dumps([error(refine_sync, "q", lambda m: "a", ["words:1-5"]), error(grade_sync, ("q", "a"), ["words:1-5"])]))
"""


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("order", ["after", pytest.param("without select", marks=pytest.mark.slow)])
def test_threads_that_are_replaced_too_late_are_refused(tmp_path, library, order):
    """And those of a program whose `select` would stop all greenlets."""
    patch = patched(library)
    without = "patch_all(select=False)" if library == "gevent" else "monkey_patch(select=False)"
    script = LATE.format(patch=patch)
    if order == "without select":
        script = patch.replace("patch_all()", without).replace(
            "monkey_patch()", without
        ) + LATE.format(patch="")
    errors = run_script(tmp_path, script)
    assert all(
        error.startswith("RedraftError: gevent or eventlet has replaced threads")
        for error in errors
    ), errors


# ---- the end of Python

END = """
import asyncio, atexit, json, sys, threading
import redraft
from redraft import batch_sync, calibrate_sync, grade_sync, refine_sync
from redraft.comparison import compare_sync
from redraft.validation import compare_graders_sync, validate_sync
folder, when = sys.argv[1:]
model, graders, judge = redraft.ScriptedModel(["a b"] * 99), ["words:1-5"], redraft.Judge()
rows = [{"id": n, "prompt": "q", "response": "a", "label": n % 2} for n in range(4)]

async def in_a_loop(function, *arguments):
    return await function(*arguments)

CALLS = {
    "refine_sync": lambda: refine_sync("q", model, graders),
    "grade_sync": lambda: grade_sync(("q", "a"), graders),
    "batch_sync": lambda: batch_sync(rows, f"{folder}/out.jsonl", model, graders),
    "calibrate_sync": lambda: calibrate_sync(["q"], model, judge, model),
    "validate_sync": lambda: validate_sync(rows, lambda text: 1.0),
    "compare_graders_sync": lambda: compare_graders_sync(rows, lambda text: 1.0, lambda text: 0.5),
    "compare_sync": lambda: compare_sync(model, model, rows, graders=graders),
}
if when != "del":  # when asyncio runs nothing any more
    CALLS["refine"] = lambda: asyncio.run(in_a_loop(redraft.refine, "q", model, graders))
    CALLS["grade"] = lambda: asyncio.run(in_a_loop(redraft.grade, ("q", "a"), graders))
redraft.calibrate_sync, redraft.refine, redraft.grade

def errors():
    found = {}
    for name, call in CALLS.items():
        try:
            found[name] = str(call())
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found), flush=True)

if when == "now":
    errors()
elif when == "atexit":
    atexit.register(errors)
elif when == "del":
    class Last:
        def __del__(self, errors=errors):
            errors()
    sys.modules["last"] = Last()
else:
    ended = threading.Event()
    def later():
        threading.main_thread().join()
        errors()
        ended.set()
    threading.Thread(target=later, daemon=True).start()
    atexit.register(ended.wait)
"""


@pytest.mark.parametrize(
    "when",
    ["atexit", "del", *(pytest.param(when, marks=pytest.mark.slow) for when in ("daemon", "now"))],
)
def test_a_call_while_python_shuts_down_is_refused_at_once(tmp_path, when):
    """At `atexit`, in `__del__`, and in daemon threads. No thread can be started then, and a call
    of a model would fail after its retries. Nothing is left to be awaited.
    """
    found = run_script(tmp_path, END, when)
    refused = {
        name: text.startswith("RedraftError: Python is shutting down")
        for name, text in found.items()
    }
    assert found and refused == dict.fromkeys(found, when != "now"), found
    assert not (tmp_path / "out.jsonl").exists() or when == "now"


AFTER_MAIN = """
import asyncio, json, sys, threading, time
from concurrent.futures import ThreadPoolExecutor, thread
import public_entries as entries
names = ["refine_sync", "refine", "refine_many", "stream", "grade_sync", "judged", "typed", "batch_sync", "validate_sync", "over_http"]

def over_http_in_a_loop():
    import redraft
    return asyncio.run(redraft.refine("q", entries.shared_model(), graders=["words:2-9"])).value

def batch_in_a_loop():
    import redraft
    return asyncio.run(redraft.batch([{"prompt": "q"}], entries.own_path("out.jsonl"), entries.model(), graders=["words:2-9"])).rows.done

def checked():  # in a thread of its own
    import redraft
    return redraft.grade_sync({"prompt": "q", "response": "It is 4.", "reference": "4"}, ["math"]).score

def code():
    import redraft
    sample = {"prompt": "q", "response": "def f(): return 1", "tests": "assert f() == 1"}
    return redraft.grade_sync(sample, ["tests"]).score

def long():  # in another process
    import redraft
    return redraft.grade_sync({"prompt": "q", "response": "a b " * 9000, "reference": "a b"}, ["rouge"]).score

calls = [getattr(entries, name) for name in names] + [over_http_in_a_loop, batch_in_a_loop, checked, code, long]
alone = [call() for call in calls]

def later():
    while not thread._shutdown:  # until the main thread has ended
        time.sleep(0.001)
    wrong = []
    for call, usual in zip(calls, alone):
        try:
            found = call()
        except Exception as error:
            found = repr(error)
        if found != usual:
            wrong.append([call.__name__, str(found)])
    print(json.dumps(wrong), flush=True)

if sys.argv[3] == "pool":
    pool = ThreadPoolExecutor(1)
    pool.submit(later)
else:
    threading.Thread(target=later).start()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "pool"])
def test_a_thread_that_python_waits_for_works_on(tmp_path, kind):
    """A program may start threads, or submit work, and let its main thread end: the results are as
    before.
    """
    assert run_script(tmp_path, AFTER_MAIN, "1", kind) == []


SAME_THREAD = """
import json, threading, time
from concurrent.futures import thread
from redraft.sandbox.code import runner
from redraft.workers import pool
from redraft.sandbox import process
pools = [runner._executor(), pool._thread_pool(), process._spawner()]

def threads():
    return [each.submit(threading.get_ident).result() for each in pools]

def later(before):
    while not thread._shutdown:
        time.sleep(0.001)
    living = {each.ident for each in threading.enumerate()}
    print(json.dumps([each in living for each in before]), flush=True)

threading.Thread(target=later, args=(threads(),)).start()
"""


def test_what_a_thread_waits_for_is_not_killed_when_the_main_thread_ends(tmp_path):
    """The kernel kills programs in sandboxes with the thread that started them: a right one would
    score 0.
    """
    assert run_script(tmp_path, SAME_THREAD) == [True] * 3


# ---- other libraries than asyncio


def asynchronous_calls(folder):
    """Return a call of each public coroutine function."""
    model, graders = redraft.ScriptedModel(["a b"] * 99), ["words:1-5"]
    rows = [{"id": n, "prompt": "q", "response": "a", "label": n % 2} for n in range(4)]

    scored = [{**row, "score": 1.0} for row in rows]

    async def last_trace():
        return [trace async for trace in redraft.stream("q", model, graders)][-1].outcome.reason

    return {
        "refine": lambda: redraft.refine("q", model, graders),
        "refine_many": lambda: redraft.refine_many(["q", "r"], model, graders),
        "stream": last_trace,
        "grade": lambda: redraft.grade(("q", "a"), graders),
        "grade_many": lambda: grading.grade_many([("q", "a")], graders),
        "batch": lambda: redraft.batch(rows, folder / "out.jsonl", model, graders),
        "calibrate": lambda: redraft.calibrate(["q"], model, redraft.Judge(), model, calls=8),
        "compare": lambda: comparison.compare(
            {"drafts": 2}, {"drafts": 1}, ["q", "r"], model=model, graders=graders
        ),
        "leaderboard": lambda: comparison.leaderboard(
            [{"drafts": n} for n in (1, 2, 3)], ["q", "r"], model=model, graders=graders
        ),
        "noise_floor": lambda: comparison.noise_floor(scored, graders=graders),
        "anchor_drift": lambda: comparison.anchor_drift(scored, graders),
        "write_tasks": lambda: comparison.write_tasks("q", folder / "tasks.jsonl", 2, model),
        "validate": lambda: validation.validate(rows, lambda text: 1.0),
        "compare_graders": lambda: validation.compare_graders(
            rows, lambda text: 1.0, lambda text: 0.5
        ),
        "propose_rubric": lambda: validation.propose_rubric("answers", model),
    }


CALLS = asynchronous_calls(Path())


def run_on_trio(function):
    return pytest.importorskip("trio", reason="no trio").run(function)


def run_on_anyio(function):
    pytest.importorskip("trio", reason="no trio")
    return pytest.importorskip("anyio", reason="no anyio").run(function, backend="trio")


def step_by_hand(function):
    try:
        function().send(None)
    except StopIteration as ended:
        return ended.value


RUNNERS = {"trio": run_on_trio, "anyio": run_on_anyio, "by hand": step_by_hand}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", CALLS)
def test_what_asyncio_does_not_run_is_refused_at_once(tmp_path, name, runner):
    """No task is left behind, and no file."""

    async def call():
        return await asynchronous_calls(tmp_path)[name]()

    with pytest.raises(
        RedraftError, match=r"runs on asyncio, .* under trio .*trio\.to_thread\.run_sync"
    ):
        RUNNERS[runner](call)
    assert not list(tmp_path.iterdir())


def test_every_public_coroutine_function_is_in_the_table():
    """A new one gets its row."""
    modules = {
        redraft: redraft.__all__,
        grading: ["grade_many"],
        comparison: comparison.__all__,
        validation: validation.__all__,
    }
    found = {
        name
        for module, names in modules.items()
        for name in names
        if inspect.iscoroutinefunction(getattr(module, name))
    }
    assert found | {"stream"} == set(CALLS)


async def _refine_in_a_thread():
    import trio

    return await trio.to_thread.run_sync(
        redraft.refine_sync, "q", redraft.ScriptedModel(["a b"]), ["words:1-5"]
    )


async def _refine_here():
    return redraft.refine_sync("q", redraft.ScriptedModel(["a b"]), ["words:1-5", lambda text: 1.0])


@pytest.mark.parametrize("function", [_refine_in_a_thread, _refine_here])
def test_the_synchronous_function_works_under_trio(function):
    """In a thread, as the error says; without one it blocks trio, as it blocks asyncio."""
    assert run_on_trio(function).value == "a b"


def test_an_event_loop_of_another_kind_works():
    """Such as uvloop."""
    uvloop = pytest.importorskip("uvloop", reason="no uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert (
            runner.run(redraft.refine("q", redraft.ScriptedModel(["a b"]), ["words:1-5"])).value
            == "a b"
        )
