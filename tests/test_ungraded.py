"""A refinement that ends with an answer and without a grade returns the answer, on every face
alike: a table of causes and faces.

The writer and the judge are two real servers. Where a deadline ends the work, it is extended until
the judge was asked before it, so that the speed of the machine decides nothing.
"""

import asyncio
import json
from contextlib import aclosing
from itertools import count

import pytest
from chat_server import ChatServer, verdict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import StatusCode

import redraft
from each_row import each_row
from gateway.running import PROMPT, config_for, http_client, running
from in_process import run_in_process
from redraft import Budget, Feedback, Judge, Task, must
from redraft.errors import (
    BudgetExhaustedError,
    GradingError,
    ModelTimeoutError,
    ModelUnavailableError,
    RedraftError,
)
from redraft.gateway.config import Profile, ServedModel
from redraft.graders import Cascade
from redraft.loop.records import Candidate, Failure, StopReason
from redraft.loop.trace import PanelGrader, Trace
from redraft.mcp_server.workbench import CallLimits, Workbench
from redraft.models import ScriptedModel
from telemetry.conftest import memory as memory  # noqa: PLC0414  (a fixture)

DRAFT = "a draft"
EXTENSIONS = (0.5, 2, 8, 32)  # deadlines, each longer than the one before


# ---- the table: causes

CAUSES = {  # what the judge answers, the settings, how the work stops, and words of the note
    "slow": (None, {}, "deadline", "the judge had not answered"),
    "budget": ("I like it.", {"budget": Budget(calls=2)}, "budget", "the judge had not answered"),
    "down": (
        (500, "out of order", {"retry-after-ms": "1"}),
        {"retries": 0},
        "failed",
        "status 500: out of order",
    ),
    "unreadable": ("I like it.", {}, "failed", "judge: the judge's answer cannot be read"),
    "refused 401": (401, {}, "failed", "status 401"),
    "refused 403": (403, {}, "failed", "status 403"),
    "refused 404": (404, {}, "failed", "status 404"),
}


class Servers:
    """A server that writes drafts, and one that judges as `said` says."""

    def __init__(self, said, draft=DRAFT):
        self.writer, self.judge = (
            ChatServer(lambda messages, n: draft),
            ChatServer(lambda messages, n: said),
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.writer.close()
        self.judge.close()


def ended(said, settings, stop, work, draft=DRAFT):
    """Return what `work(servers, settings)` returns; at a deadline, with the first one before which
    the judge was asked.
    """
    for deadline in EXTENSIONS if stop == "deadline" else [None]:
        with Servers(said, draft) as servers:
            try:
                result = work(servers, {**settings, **({"deadline": deadline} if deadline else {})})
                return asyncio.run(result) if asyncio.iscoroutine(result) else result
            except (AssertionError, AttributeError, RedraftError):
                if servers.judge.calls or not deadline:
                    raise
    raise AssertionError("the judge was never asked")


# ---- the table: faces; each returns the answer, its score, the stop, whether it converged, and its
# texts for people


def described(result):
    return (
        result.value,
        result.score,
        str(result.stop),
        result.converged,
        result.stop_note + result.summary(),
    )


async def refine(servers, settings, folder):
    return described(
        await redraft.refine("Say it.", servers.writer.model, judge=servers.judge.model, **settings)
    )


async def stream(servers, settings, folder):
    async with aclosing(
        redraft.stream("Say it.", servers.writer.model, judge=servers.judge.model, **settings)
    ) as traces:
        trace = [trace async for trace in traces][-1]
    return (
        trace.best.text,
        trace.score,
        str(trace.outcome.reason),
        trace.converged,
        trace.outcome.note,
    )


async def refine_many(servers, settings, folder):
    (result,) = await redraft.refine_many(
        ["Say it."], servers.writer.model, judge=servers.judge.model, **settings
    )
    assert result.error is None
    return described(result)


async def batch(servers, settings, folder):
    out = folder / "out.jsonl"
    report = await redraft.batch(
        [{"prompt": "Say it."}], out, servers.writer.model, judge=servers.judge.model, **settings
    )
    (row,) = map(json.loads, out.read_text().splitlines())
    assert (report.rows.in_output, report.rows.not_started, report.rows.done) == (1, 0, 0)
    assert row["calls"] >= 2  # the judge was asked, too
    assert row["initial_score"] is row["judge_score"] is row["score_low"] is row["broken"] is None
    assert row["cost"] is None and (row["tokens"] is None or report.spending.tokens is not None)
    assert report.stop == {
        "deadline": "deadline",
        "budget": "budget",
        "cancelled": "fatal",
    }.get(row["stop"], "")
    # the row is cut short, so that it can be resumed
    stop = "failed" if report.stop == "fatal" else row["stop"]
    return row["best"], row["best_score"], stop, False, row["error"]


def options_of(settings):
    """Return settings as options of the command line."""
    calls = settings["budget"].calls if "budget" in settings else None
    options = {"--deadline": settings.get("deadline"), "--budget-calls": calls}
    return [
        str(part) for name, value in options.items() if value is not None for part in (name, value)
    ]


def command(name, more, servers, settings, folder):
    """Run a command twice: for people, and for programs."""
    asked = [
        name,
        "Say it.",
        "--model",
        servers.writer.model,
        "--judge",
        servers.judge.model,
        *more,
        *options_of(settings),
    ]
    done = run_in_process(asked, cwd=folder)
    assert (done.returncode, done.out) == (3, f"{DRAFT}\n"), done.err
    assert "the answer is not verified" in done.err and "Traceback" not in done.err
    as_data = json.loads(run_in_process([*asked, "--json"], cwd=folder).out.splitlines()[-1])
    assert as_data["event"] == "result"
    said = as_data["stop_note"] if name == "best" else done.err
    return as_data["answer"], as_data["score"], as_data["stop"], as_data["converged"], said


def run(servers, settings, folder):
    return command("run", [], servers, settings, folder)


def best(servers, settings, folder):
    return command("best", ["-n", "1"], servers, settings, folder)


async def gateway(servers, settings, folder):
    """The client gets the answer with status 200; what ended the work is beside it."""
    config = config_for(folder, servers.writer.model)
    settings = {name: value for name, value in settings.items() if name != "budget"} | (
        {"budget": {"calls": settings["budget"].calls}} if "budget" in settings else {}
    )
    config.models["judge"] = ServedModel("judge", servers.judge.model.partition("#")[0], "tiny")
    config.profiles["fast"] = Profile(
        "fast", "tiny", judge="judge", graders=["judge"], settings=settings
    )
    async with running(config) as (url, _), http_client(url) as client:
        reply = await client.post(
            "/chat/completions", json={"model": "refine/fast", "messages": PROMPT}
        )
    assert reply.status_code == 200, reply.text
    body = reply.json()
    facts = body["usage"]["redraft"]
    return (
        body["choices"][0]["message"]["content"],
        facts["score"],
        facts["stop"],
        False,
        facts["reason"],
    )


def mcp_client(bench):
    """A client of a server in this process."""
    from mcp import Client  # it takes long, and each process that runs tests reads this file

    from redraft.mcp_server.server import make_server

    return Client(make_server(bench))


async def mcp(servers, settings, folder):
    limits = CallLimits({"deadline": 60, "budget": Budget(calls=100), **settings})
    bench = Workbench([servers.writer.model], servers.judge.model, limits)
    async with mcp_client(bench) as client:
        reply = await client.call_tool("refine", {"prompt": "Say it."})
    assert not reply.is_error, reply
    data = reply.structured_content
    assert data["broken"] == []
    return data["answer"], data["score"], data["stop"], False, reply.content[-1].text


FACES = {
    face.__name__: face for face in (refine, stream, refine_many, batch, run, best, gateway, mcp)
}


@pytest.mark.slow(but_each=12)
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("face", FACES)
def test_the_answer_is_returned(face, cause, tmp_path):
    """With no score, how the work stopped, not converged, and words that say what is missing."""
    said, settings, stop, words = CAUSES[cause]
    folders = count()

    def work(servers, settings):
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        return FACES[face](servers, settings, folder)

    text, score, stopped, converged, note = ended(said, settings, stop, work)
    assert (text, score, stopped, converged) == (DRAFT, None, stop, False)
    # a row names the grader
    missing = "judge" if face == "batch" and stop in {"deadline", "budget"} else words
    assert missing in note


def test_telemetry_says_how_it_ended(memory):
    """The span of a refinement has the stop and the answer, no score, no unknown figure, and an
    error where graders failed.
    """
    for name, (said, settings, stop, _) in CAUSES.items():
        memory.exporter.clear()
        ended(said, settings, stop, lambda servers, settings: refine(servers, settings, None))
        span = memory.named("invoke_workflow")[-1]
        facts, error = span.attributes, TELEMETRY_ERRORS.get(name)
        assert (facts["redraft.stop"], "redraft.best" in facts, "redraft.score" in facts) == (
            stop,
            True,
            False,
        ), name
        assert ("redraft.usage.output_tokens" in facts) is (name != "slow")
        assert (facts.get("error.type"), span.status.status_code is StatusCode.ERROR) == (
            error,
            error is not None,
        ), name


TELEMETRY_ERRORS = {
    "down": "ModelUnavailableError",
    "unreadable": "BadResponseError",
    "refused 401": "AuthenticationError",
    "refused 403": "AuthenticationError",
    "refused 404": "ModelUnavailableError",
}


# ---- exceptions


@pytest.mark.parametrize("cause", CAUSES)
def test_grade_raises(cause):
    """It has nothing else to give."""
    said, settings, stop, _ = CAUSES[cause]
    settings = {**settings, **({"budget": Budget(calls=1)} if stop == "budget" else {})}

    def work(servers, settings):
        with pytest.raises(
            BudgetExhaustedError if stop in {"deadline", "budget"} else GradingError
        ) as caught:
            redraft.grade_sync(("Say it.", DRAFT), judge=servers.judge.model, **settings)
        return caught.value

    error = ended(said, settings, stop, work)
    assert (error.result.value, error.result.score) == (DRAFT, None)


@pytest.mark.parametrize("cause", ["down", "unreadable", "refused 401"])
def test_none_of_several_given_answers_is_chosen_without_a_grade(cause, tmp_path):
    """A choice is all that was asked for: the command fails, and so does the tool."""
    said, settings, stop, words = CAUSES[cause]
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)

    def work(servers, settings):
        given = [
            "--response",
            "a",
            "--response",
            "b",
            "--model",
            servers.writer.model,
            "--judge",
            servers.judge.model,
        ]
        done = run_in_process(["best", "Say it.", *given, "--grader", "judge"], cwd=tmp_path)
        assert (done.returncode, done.out) == (1, "") and words in done.err

        async def compare():
            bench = Workbench([servers.writer.model], servers.judge.model)
            async with mcp_client(bench) as client:
                return await client.call_tool(
                    "compare", {"prompt": "Say it.", "answers": ["a", "b"], "graders": ["judge"]}
                )

        assert asyncio.run(compare()).is_error

    ended(said, settings, stop, work)


@pytest.mark.parametrize("cause", ["slow", "budget"])
def test_a_strict_budget_raises(cause):
    """The error has the answer."""
    said, settings, stop, _ = CAUSES[cause]

    def work(servers, settings):
        with pytest.raises(BudgetExhaustedError) as caught:
            redraft.refine_sync(
                "Say it.",
                servers.writer.model,
                judge=servers.judge.model,
                strict_budget=True,
                **settings,
            )
        return caught.value

    error = ended(said, settings, stop, work)
    assert (error.result.value, error.result.score, str(error.result.stop)) == (DRAFT, None, stop)


def raising(text):
    raise ValueError("a bug")


def silent(text):
    return None


async def unreadable(text, model):
    return float(await model(f"Rate it: {text}"))


class Broken:
    """A grader with a bug."""

    name = "broken"
    model_free = True

    async def grade(self, task, candidate, ask):
        return candidate.text.score


class BrokenRanker:
    """A grader that ranks, with a bug."""

    name = "ranker"
    model_free = True

    async def compare(self, task, candidates, ask):
        return candidates[0].score


OWN_GRADERS = {
    "raises": raising,
    "returns None": silent,
    "returns no score": lambda text: "good",
    "a class": Broken(),
    "a class that ranks": BrokenRanker(),
    "cannot read its model": unreadable,
    "beside others": [must("contains:draft"), lambda text: 0.5, raising],
    "in a composite": Cascade("contains:draft", raising),
}


@each_row("settings", [{}, {"noise_aware": False}, {"drafts": 2}, {"budget": Budget(calls=3)}])
@each_row("name", OWN_GRADERS)
async def test_a_grader_of_ones_own_that_never_grades_is_an_error(name, settings):
    """It is a bug to be seen, whatever ended the work; the error has the answer."""
    graders, model = OWN_GRADERS[name], lambda messages: DRAFT
    with pytest.raises(GradingError) as caught:
        await redraft.refine("Say it.", model, graders, **settings)
    assert (caught.value.result.value, caught.value.result.score) == (DRAFT, None)
    (result,) = await redraft.refine_many(["Say it."], model, graders, **settings)
    assert (type(result.error), result.value) == (GradingError, DRAFT)


def test_a_grader_of_ones_own_on_the_command_line(tmp_path):
    """The answer is printed, the error beside it, and the exit code is that of an answer that is
    not verified.
    """
    (tmp_path / "own.py").write_text("def bug(text):\n    raise ValueError('a bug')\n")
    with Servers(None) as servers:
        for command in (["run"], ["best", "-n", "2"]):
            asked = [*command, "Say it.", "--model", servers.writer.model, "--grader", "own.py:bug"]
            done = run_in_process(asked, cwd=tmp_path)
            assert (done.returncode, done.out) == (3, f"{DRAFT}\n"), done.err
            assert "ValueError: a bug" in done.err


@pytest.mark.parametrize(
    "error", [ModelUnavailableError("down", status=503), ModelTimeoutError("no answer")]
)
async def test_a_model_that_a_grader_of_ones_own_asks_may_be_down(error):
    """That is no bug of the grader."""
    judge = ScriptedModel([error] * 9)
    result = await redraft.refine("Say it.", lambda messages: DRAFT, unreadable, judge, retries=0)
    assert (result.value, result.score, str(result.stop)) == (DRAFT, None, "failed")


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("draft", ['{"n": 1}', '{"n": "one"}', "one"])
@pytest.mark.parametrize("cause", ["slow", "down", "unreadable"])
def test_an_answer_that_breaks_a_schema_is_not_returned_by_the_gateway(cause, draft, tmp_path):
    """One that follows it is, though it has no grade."""
    said, settings, stop, _ = CAUSES[cause]

    async def work(servers, settings):
        config = config_for(tmp_path, servers.writer.model)
        config.models["judge"] = ServedModel("judge", servers.judge.model.partition("#")[0], "tiny")
        plain = {"max_iterations": 0, **settings}
        config.profiles["fast"] = Profile(
            "fast", "tiny", judge="judge", graders=["judge"], settings=plain
        )
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
        async with running(config) as (url, _), http_client(url) as client:
            body = {"model": "refine/fast", "messages": PROMPT, "response_format": form}
            reply = await client.post("/chat/completions", json=body)
            assert servers.judge.calls  # a judge that was not asked says nothing about this test
            return reply

    reply = ended(said, settings, stop, work, draft)
    if draft == '{"n": 1}':
        assert (reply.status_code, reply.json()["choices"][0]["message"]["content"]) == (200, draft)
    else:
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "schema_not_met")


# ---- no text, and figures


@pytest.mark.parametrize("mode", ["refine", "best"])
def test_without_a_text_there_is_an_error(mode, tmp_path):
    """Python raises, the command line exits with 1, and a row says what was sent, not that it was
    not tried.
    """
    for deadline in EXTENSIONS:
        writer = ChatServer(lambda messages, n: None)
        try:
            with pytest.raises(BudgetExhaustedError) as caught:
                redraft.refine_sync("Say it.", writer.model, deadline=deadline)
            done = run_in_process(
                ["run", "Say it.", "--model", writer.model, "--deadline", str(deadline)],
                cwd=tmp_path,
            )
            before, out = writer.calls, tmp_path / f"{deadline}.jsonl"
            report = redraft.batch_sync(
                [{"prompt": "Say it."}], out, writer.model, mode=mode, n=1, deadline=deadline
            )
            if before and writer.calls > before:
                break
        finally:
            writer.close()
    assert caught.value.result is None and (done.returncode, done.out) == (1, "")
    (row,) = map(json.loads, out.read_text().splitlines())
    assert (row["best"], row["stop"], row["calls"], row["tokens"], row["cost"]) == (
        None,
        "deadline",
        1,
        None,
        None,
    )
    assert (
        report.rows.not_started,
        report.rows.unfinished,
        report.spending.calls,
        report.spending.tokens,
    ) == (
        0,
        1,
        1,
        None,
    )


def test_a_batch_stops_once_for_a_judge_that_is_refused(tmp_path):
    """Its rows keep their drafts, and the same command continues with them once the judge
    answers.
    """
    rows, out, state = (
        [{"prompt": f"Say {n}."} for n in range(12)],
        tmp_path / "out.jsonl",
        {"said": 401},
    )
    writer, judge = (
        ChatServer(lambda messages, n: DRAFT),
        ChatServer(lambda messages, n: state["said"]),
    )
    try:
        report = redraft.batch_sync(rows, out, writer.model, judge=judge.model, max_in_flight=2)
        written = [json.loads(line) for line in out.read_text().splitlines()]
        assert (report.stop, report.resumable) == ("fatal", True) and judge.calls <= 4
        cut = [row for row in written if row["best"] == DRAFT]
        assert cut and all(
            "status 401" in row["error"] and row["best_score"] is None for row in cut
        )
        drafts, state["said"] = writer.calls, verdict(5)
        report = redraft.batch_sync(rows, out, writer.model, judge=judge.model, max_in_flight=2)
        assert (report.rows.done, writer.calls) == (12, 12) and drafts >= len(cut)
        assert all(json.loads(line)["best_score"] for line in out.read_text().splitlines())
    finally:
        writer.close()
        judge.close()


def test_a_row_that_was_not_begun_again_keeps_its_draft(tmp_path):
    """A later start that ends before the row begins writes the draft that is there."""
    rows, out = [{"prompt": f"Say {n}."} for n in range(3)], tmp_path / "out.jsonl"
    settings = {"max_in_flight": 1, "graders": [Judge()]}
    with Servers("I like it.") as servers:
        first = redraft.batch_sync(
            rows,
            out,
            servers.writer.model,
            judge=servers.judge.model,
            budget=Budget(calls=2),
            **settings,
        )
        before = [json.loads(line)["best"] for line in out.read_text().splitlines()]
        again = redraft.batch_sync(
            rows, out, servers.writer.model, judge=servers.judge.model, deadline=1e-9, **settings
        )
        assert [json.loads(line)["best"] for line in out.read_text().splitlines()] == before
    assert (DRAFT in before, first.spending.calls, again.spending.calls) == (True, 2, 0)


# ---- which answer


PANEL = (
    PanelGrader("words", must=True, model_free=True),
    PanelGrader("tone", must=True, model_free=True),
    PanelGrader("length", model_free=True),
    PanelGrader("judge"),
)
NEVER = Failure(("feedback", 0, "judge", 0), "grade", "ModelTimeoutError", "no answer")
CHECKS = st.fixed_dictionaries(
    {name: st.sampled_from([None, 0.0, 1.0]) for name in ("words", "tone", "length")}
)


@given(answers=st.lists(st.tuples(CHECKS, st.booleans()), min_size=1, max_size=5))
def test_ungraded_answers_compare_by_what_was_checked(answers):
    """The requirements that were found to be met, then other checks, then a given response, then
    the latest.
    """
    trace, merits = Trace(Task("q"), PANEL), []
    for id, (checks, is_given) in enumerate(answers):
        trace += Candidate(
            id,
            f"text {id}",
            role="given" if is_given else "generate",
            by="given" if is_given else "m",
        )
        for name, score in checks.items():
            if score is not None:
                trace += Feedback(score, candidate=id, grader=name)
        musts = (checks["words"] == 1) + (checks["tone"] == 1)
        merits.append((musts, musts + (checks["length"] == 1), is_given, id))
    trace += NEVER
    assert trace.best.id == max(merits)[-1]


async def test_a_checked_draft_is_returned_before_a_later_one():
    """The judge fails; of two drafts the one that keeps the requirement comes back, and only what
    was checked counts as broken.
    """
    model = ScriptedModel(["a blue sky", "a grey sky"])
    judge = ScriptedModel([ModelUnavailableError("down", status=503)] * 9)
    graders = [must("contains:blue"), Judge()]
    result = await redraft.refine(
        "q", model, graders, judge, drafts=2, max_iterations=0, editor=False, retries=0
    )
    assert (result.value, result.score, result.broken_musts) == ("a blue sky", None, [])
    assert result.ranking[0].text == "a blue sky" and result.ranking[0].rank is None


# ---- failed grades at the first draft


def failing_first(n, error=ValueError("the metric service hiccups")):
    """A grader that fails on its first n calls."""
    calls = count()

    def grade(text):
        if next(calls) < n:
            raise error
        return 0.5

    return grade


FIRST = {
    "one draft": ({}, 2),
    "plain rules": ({"noise_aware": False}, 2),
    "several drafts": ({"drafts": 2}, 4),
    "a given response": ({"response": "given"}, 2),
    "a requirement beside it": ({"more": [must("contains:draft")]}, 2),
}


@pytest.mark.parametrize("name", FIRST)
async def test_failed_grades_of_the_first_drafts_do_not_end_the_work(name):
    """Another text is written, and graded, while attempts and budget are left."""
    settings, failed = FIRST[name]
    settings = {**settings}
    graders, response = (
        [*settings.pop("more", []), failing_first(failed)],
        settings.pop("response", None),
    )
    model = ScriptedModel([f"draft {n}" for n in range(9)])
    result = await redraft.refine(Task("q", response), model, graders, max_iterations=4, **settings)
    assert (result.judge_score, str(result.stop) != "failed", result.value) == (
        0.5,
        True,
        result.ranking[0].text,
    )
    for ended in ({"max_iterations": 0}, {"budget": Budget(calls=settings.get("drafts", 1))}):
        if response is None:
            model = ScriptedModel([f"draft {n}" for n in range(9)])
            with pytest.raises(GradingError):
                await redraft.refine(
                    "q",
                    model,
                    [*graders[:-1], failing_first(failed)],
                    **{"max_iterations": 4, **settings, **ended},
                )
            assert model.calls == settings.get("drafts", 1)


@pytest.mark.parametrize("settings", [{}, {"noise_aware": False}])
async def test_a_judge_that_is_down_gets_no_further_texts(settings):
    """They would be paid for, and not graded either."""
    judge = ScriptedModel([ModelUnavailableError("down", status=503)] * 9)
    result = await redraft.refine(
        "q", ScriptedModel(["a", "b", "c"]), Judge(), judge, retries=0, **settings
    )
    assert (result.value, result.usage.calls) == ("a", 2)


# ---- exit codes


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("stop", StopReason)
@pytest.mark.parametrize("score", [None, 0.2])
@pytest.mark.parametrize("meets", [None, 0.0, 1.0])
def test_exit_codes(stop, score, meets):
    """0 for an answer that is graded and breaks no requirement, 3 for another one, 130 after an
    interruption.
    """
    from redraft.cli.errors import exit_code
    from redraft.loop.records import Outcome

    trace = Trace(
        Task("q"), (PanelGrader("words", must=True, model_free=True), PanelGrader("judge"))
    ) + Candidate(0, "a")
    for name, value in (("words", meets), ("judge", score)):
        trace = trace if value is None else trace + Feedback(value, candidate=0, grader=name)
    trace += Outcome(0, stop)
    verified = stop == "tool_calls" or (score is not None and meets is not None)
    assert exit_code(redraft.Result(trace)) == (
        130 if stop == "cancelled" else 0 if verified and meets != 0 else 3
    )
