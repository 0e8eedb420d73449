"""Who grades an answer: what is named and nothing else, decided alike by every face; with nothing
named, the default judge.
"""

import asyncio
import json
import logging
from dataclasses import dataclass, field
from itertools import product

import pytest

import redraft
from redraft.errors import ConfigError
from redraft.gateway.config import Profile
from redraft.gateway.exchange import GatewayError
from redraft.gateway.profile_models import ConnectedModels
from redraft.gateway.protocols.chat_requests import read_request
from redraft.gateway.refining import ProfileRefiner, answer_request
from redraft.grading import grade_many
from redraft.loop.task import Task
from redraft.mcp_server.arguments import CompareInput, GradeInput, RefineInput
from redraft.mcp_server.progress import CallProgress
from redraft.mcp_server.tools import compare_answers, grade_answer, refine_answer
from redraft.mcp_server.workbench import Workbench
from redraft.storage import read_trace
from redraft.storage.journal import Journal

from .chat_server import is_judging, verdict

CODE = "def f():\n    return 1"  # meets every requirement here, and passes the tests
FORM = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
WORDS, LENGTH, TESTS = "words:1-5", "no_commas", "assert f() == 1"


@dataclass
class Named:
    """What a run names: `graders` that call no model or do, the `judge` ("none" for no judge), and
    the fields of its task.
    """

    requirements: list = field(default_factory=list)
    graders: list = field(default_factory=list)
    judge: str = ""
    form: bool = False
    tests: bool = False

    @property
    def text(self):
        return '{"a": 1}' if self.form else CODE

    @property
    def answer(self):
        return FORM if self.form else None

    def task(self, response=None):
        return Task(
            "Write f.",
            response,
            requirements=self.requirements,
            tests=TESTS if self.tests else None,
        )

    @property
    def row(self):
        return {
            "prompt": "Write f.",
            **({"requirements": self.requirements} if self.requirements else {}),
            **({"tests": TESTS} if self.tests else {}),
        }


class Endpoint:
    """One server with the models `tiny`, which writes, and `judge`; it counts the calls to each
    that judge.
    """

    def __init__(self, serve):
        self.text = CODE
        self.server = serve(
            lambda messages, n: self.verdict_on(messages) if is_judging(messages) else self.text
        )

    @staticmethod
    def verdict_on(messages):
        return verdict(5, ("need", "usable")) if "usable" in str(messages) else verdict(5)

    @property
    def model(self):
        return self.server.model

    def judge(self, named):
        """The judge as Python's argument."""
        return {"": None, "none": False}.get(named.judge, self.model.replace("#tiny", "#judge"))

    def judge_name(self, named):
        """The judge as a name on the command line; None if there is none."""
        return named.judge and (self.judge(named) or "none")

    def options(self, named, folder):
        """The options of a command that name it all, but for the requirements and the tests."""
        (folder / "form.json").write_text(json.dumps(FORM))
        judge = ["--judge", self.judge_name(named)] if named.judge else []
        graders = [part for grader in named.graders for part in ("--grader", grader)]
        return [
            "--model",
            self.model,
            *judge,
            *graders,
            *(["--schema", folder / "form.json"] if named.form else []),
        ]

    @property
    def judged(self):
        """How many calls to each model judged."""
        bodies = [body for body in self.server.bodies if is_judging(body["messages"])]
        return {
            name: n
            for name in ("tiny", "judge")
            if (n := sum(body["model"] == name for body in bodies))
        }


def panel_of(trace):
    return [grader.name for grader in trace.panel]


def arguments(named, endpoint):
    return named.graders or None, endpoint.judge(named)


# ---- the faces: each returns the names of who grades, or None where the face does not tell


def with_refine(named, endpoint, folder, redraft_):
    result = redraft.refine_sync(
        named.task(),
        endpoint.model,
        *arguments(named, endpoint),
        answer=named.answer,
        max_iterations=0,
    )
    return panel_of(result.trace)


def with_stream(named, endpoint, folder, redraft_):
    async def last():
        traces = redraft.stream(
            named.task(),
            endpoint.model,
            *arguments(named, endpoint),
            answer=named.answer,
            max_iterations=0,
        )
        return [trace async for trace in traces][-1]

    return panel_of(asyncio.run(last()))


def with_refine_many(named, endpoint, folder, redraft_):
    many = redraft.refine_many(
        [named.task()],
        endpoint.model,
        *arguments(named, endpoint),
        answer=named.answer,
        max_iterations=0,
    )
    return panel_of(asyncio.run(many)[0].trace)


def with_grade(named, endpoint, folder, redraft_):
    """The judge is looked for, as nothing names the model that writes."""
    report = redraft.grade_sync(
        named.task(named.text), *arguments(named, endpoint), answer=named.answer
    )
    return [feedback.grader for feedback in report.feedback]


def with_grade_many(named, endpoint, folder, redraft_):
    many = grade_many([named.task(named.text)], *arguments(named, endpoint), answer=named.answer)
    (report,) = asyncio.run(many)
    if report.error:
        raise report.error
    return [feedback.grader for feedback in report.feedback]


def panel_of_run(journal):
    with Journal(journal) as saved:
        (run,) = saved.runs()
        (trace,) = [saved.trace(run.name, id) for id in saved.row_ids(run.name)]
    return panel_of(trace)


def batch_in(mode):
    def with_batch(named, endpoint, folder, redraft_):
        row = named.row | ({"response": named.text} if mode == "grade" else {})
        settings = {"mode": mode, "journal": folder / "journal", "calibrate": False}
        settings |= (
            {"n": 1} if mode == "best" else {"max_iterations": 0} if mode == "refine" else {}
        )
        report = redraft.batch_sync(
            [row],
            None,
            endpoint.model,
            *arguments(named, endpoint),
            answer=named.answer,
            **settings,
        )
        assert report.rows.done == 1
        return panel_of_run(folder / "journal")

    return with_batch


def files_of(named, folder):
    """The options for the fields of a task."""
    (folder / "tests.py").write_text(TESTS)
    required = [part for spec in named.requirements for part in ("--require", spec)]
    return [*required, *(["--tests", folder / "tests.py"] if named.tests else [])]


def check(done):
    """Raise ConfigError for a usage error."""
    if done.returncode == 2:
        raise ConfigError(done.err)
    assert done.returncode == 0, done.err


def with_cli_run(named, endpoint, folder, redraft_):
    options = endpoint.options(named, folder)
    check(
        redraft_(
            "run",
            "Write f.",
            *files_of(named, folder),
            *options,
            "--max-iterations",
            0,
            "--trace",
            folder / "t.jsonl",
        )
    )
    return panel_of(read_trace(folder / "t.jsonl"))


def with_cli_best(named, endpoint, folder, redraft_):
    check(
        redraft_(
            "best", "Write f.", "-n", 1, *files_of(named, folder), *endpoint.options(named, folder)
        )
    )


def with_cli_batch(named, endpoint, folder, redraft_):
    (folder / "rows.jsonl").write_text(json.dumps(named.row))
    options = [
        *endpoint.options(named, folder),
        "--no-calibrate",
        "--max-iterations",
        0,
        "-o",
        "out.jsonl",
    ]
    check(redraft_("batch", "rows.jsonl", *options))
    return panel_of_run(folder / "out.jsonl.journal")


def with_cli_batch_options(named, endpoint, folder, redraft_):
    """The requirements are an option and no column."""
    (folder / "rows.jsonl").write_text(json.dumps(Named(tests=named.tests).row))
    required = [part for spec in named.requirements for part in ("--require", spec)]
    options = [
        *required,
        *endpoint.options(named, folder),
        "--no-calibrate",
        "--max-iterations",
        0,
        "-o",
        "out.jsonl",
    ]
    check(redraft_("batch", "rows.jsonl", *options))


def with_cli_grade(named, endpoint, folder, redraft_):
    (folder / "answer.txt").write_text(named.text)
    options = [*files_of(named, folder), *endpoint.options(named, folder), "--json"]
    done = redraft_("grade", "Write f.", "--response", "answer.txt", *options)
    check(done)
    return [feedback["grader"] for feedback in json.loads(done.out)["feedback"]]


def with_cli_grade_rows(named, endpoint, folder, redraft_):
    (folder / "rows.jsonl").write_text(json.dumps({**named.row, "response": named.text}))
    done = redraft_("grade", "rows.jsonl", *endpoint.options(named, folder), "--json")
    check(done)
    return [feedback["grader"] for feedback in json.loads(done.out)["feedback"]]


def with_gateway(named, endpoint, folder, redraft_):
    """The profile names the graders and the judge, a request the requirements and the schema."""
    judge = False if named.judge == "none" else endpoint.judge_name(named) or None
    # or it could grade no other request
    own = [*named.graders, *(named.requirements if judge is False else [])]
    profile = Profile("fast", endpoint.model, judge, own or None)
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": FORM}}
    body = {
        "messages": [{"role": "user", "content": "Write f."}],
        "response_format": form if named.form else {"type": "text"},
    }
    options = {"max_iterations": 0, "requirements": named.requirements}
    request = read_request({"model": "refine/fast", **body, "redraft": options})

    async def answer():
        prepared = ProfileRefiner(profile, ConnectedModels({}, {})).prepare(request, "t1")
        async for _ in answer_request(prepared):
            pass
        return panel_of(prepared.refinement.trace)

    try:
        return asyncio.run(answer())
    except GatewayError as error:
        raise ConfigError(error.message) from error


def bench_of(named, endpoint, **more):
    return Workbench(
        [endpoint.model],
        False if named.judge == "none" else endpoint.judge_name(named) or None,
        **more,
    )


def with_mcp_refine(named, endpoint, folder, redraft_):
    names = {
        "requirements": named.requirements,
        "graders": named.graders,
        "answer_schema": named.answer,
    }
    call = RefineInput(prompt="Write f.", max_iterations=0, **names)
    bench = bench_of(named, endpoint, traces=folder / "traces")
    asyncio.run(refine_answer(call, bench, CallProgress()))
    (saved,) = (folder / "traces").iterdir()
    return panel_of(read_trace(saved))


def with_mcp_grade(named, endpoint, folder, redraft_):
    call = GradeInput(
        prompt="Write f.",
        response=named.text,
        requirements=named.requirements,
        graders=named.graders,
    )
    result = asyncio.run(grade_answer(call, bench_of(named, endpoint), CallProgress()))
    return [each.grader for each in result.feedback]


FACES = {
    "refine": with_refine,
    "stream": with_stream,
    "refine_many": with_refine_many,
    "grade": with_grade,
    "grade_many": with_grade_many,
    "batch": batch_in("refine"),
    "batch best": batch_in("best"),
    "batch grade": batch_in("grade"),
    "redraft run": with_cli_run,
    "redraft best": with_cli_best,
    "redraft batch": with_cli_batch,
    "redraft batch --require": with_cli_batch_options,
    "redraft grade": with_cli_grade,
    "redraft grade ROWS": with_cli_grade_rows,
    "gateway": with_gateway,
    "mcp refine": with_mcp_refine,
    "mcp grade": with_mcp_grade,
}
# such a profile could grade no request without a form
SERVES_NOTHING_ELSE = ("gateway", Named(form=True, judge="none"))
WITHOUT_FORM, WITHOUT_TESTS = {"mcp grade"}, {"gateway", "mcp refine", "mcp grade"}

# What is named, who grades then, and how often each model judges.
TABLE = {
    "nothing": (Named(), ["judge"], {"tiny": 1}),
    "a requirement": (Named([WORDS]), [WORDS], {}),
    "a grader": (Named(graders=[LENGTH]), [LENGTH], {}),
    "a grader that asks the judge": (Named(graders=["helpfulness"]), ["helpfulness"], {"tiny": 1}),
    "a judge": (Named(judge="judge"), ["judge"], {"judge": 1}),
    "a form": (Named(form=True), ["answer"], {}),
    "tests": (Named(tests=True), ["tests"], {}),
    "a requirement and a grader": (Named([WORDS], [LENGTH]), [WORDS, LENGTH], {}),
    "a requirement and a judge": (Named([WORDS], judge="judge"), [WORDS, "judge"], {"judge": 1}),
    "a form and a judge": (Named(form=True, judge="judge"), ["answer", "judge"], {"judge": 1}),
    "a grader and a judge": (
        Named(graders=[LENGTH], judge="judge"),
        [LENGTH, "judge"],
        {"judge": 1},
    ),
    "a grader that asks, and a judge": (
        Named(graders=["helpfulness"], judge="judge"),
        ["helpfulness"],
        {"judge": 1},
    ),
    "a requirement and a grader that asks": (
        Named([WORDS], ["helpfulness"]),
        [WORDS, "helpfulness"],
        {"tiny": 1},
    ),
    "tests and a grader": (Named(graders=[LENGTH], tests=True), [LENGTH, "tests"], {}),
    "tests and the grader that runs them": (Named(graders=["tests"], tests=True), ["tests"], {}),
    "tests and a requirement": (Named([WORDS], tests=True), [WORDS, "tests"], {}),
    "no judge, and a requirement": (Named([WORDS], judge="none"), [WORDS], {}),
    "no judge, and a form": (Named(form=True, judge="none"), ["answer"], {}),
    "no judge": (Named(judge="none"), ConfigError, {}),
    "no judge, and a grader that asks one": (
        Named(graders=["helpfulness"], judge="none"),
        ConfigError,
        {},
    ),
    "no judge, a requirement, and a grader that asks one": (
        Named([WORDS], ["helpfulness"], "none"),
        ConfigError,
        {},
    ),
}


@pytest.fixture
def endpoint(serve, monkeypatch):
    endpoint = Endpoint(serve)
    monkeypatch.setenv("REDRAFT_MODEL", endpoint.model)  # where no model is named, it is found
    return endpoint


def canonical(names):
    return sorted(name.partition(":")[0] for name in names)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.slow(but_each=8)
@pytest.mark.parametrize(
    ("named", "who", "judged", "face"),
    [
        pytest.param(*row, face, id=f"{name}-{face}")
        for (name, row), face in product(TABLE.items(), FACES)
        if not (
            (row[0].form and face in WITHOUT_FORM)
            or (row[0].tests and face in WITHOUT_TESTS)
            or (face, row[0]) == SERVES_NOTHING_ELSE
        )
    ],
)
def test_what_is_named_grades_and_only_that(named, who, judged, face, endpoint, tmp_path, redraft):
    """Every face has the same graders, and makes the same calls that judge."""
    endpoint.text = named.text
    if who is ConfigError:
        with pytest.raises(ConfigError, match="judge"):
            FACES[face](named, endpoint, tmp_path, redraft)
        assert not endpoint.server.calls
        return
    graders = FACES[face](named, endpoint, tmp_path, redraft)
    assert endpoint.judged == judged
    assert graders is None or canonical(graders) == canonical(who)


# ---- the default judge is named, once


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("face", [face for face in FACES if face.startswith("redraft ")])
@pytest.mark.parametrize(
    "named",
    [Named(), Named([WORDS]), Named(judge="judge"), Named(graders=["helpfulness"])],
    ids=str,
)
def test_a_command_says_once_that_the_default_judge_grades(
    named, face, endpoint, tmp_path, redraft
):
    """One line on stderr, with its model; with anything named there is no such line."""
    said = []

    def run(*args):
        said.append(redraft(*args))
        return said[-1]

    FACES[face](named, endpoint, tmp_path, run)
    (done,) = said
    lines = [line for line in done.err.splitlines() if "the default judge grades" in line]
    assert len(lines) == (named == Named())
    assert all("with model tiny" in line for line in lines)


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    "face", ["refine", "stream", "refine_many", "grade", "grade_many", "batch", "batch grade"]
)
@pytest.mark.parametrize("named", [Named(), Named([WORDS])], ids=str)
def test_python_logs_that_the_default_judge_grades(named, face, endpoint, tmp_path, caplog):
    """At INFO, by the logger `redraft`, with its model."""
    with caplog.at_level(logging.INFO, "redraft"):
        FACES[face](named, endpoint, tmp_path, None)
    logged = [
        record.getMessage()
        for record in caplog.records
        if "the default judge grades, with model tiny" in record.getMessage()
    ]
    assert len(logged) == (named == Named())


def test_a_gateway_says_it_for_each_profile(endpoint):
    """A profile that names graders or a judge, or refines nothing, has no such note."""
    named = [{}, {"judge": endpoint.model}, {"graders": [WORDS]}, {"refine": "none"}]
    refiners = [
        ProfileRefiner(Profile("fast", endpoint.model, **fields), ConnectedModels({}, {}))
        for fields in named
    ]
    assert ["with model tiny" in refiner.default_judge_note for refiner in refiners] == [
        True,
        False,
        False,
        False,
    ]


def test_a_preview_counts_no_calls_of_a_judge_that_nobody_named(endpoint, tmp_path, redraft):
    """The forecast of a batch follows: a draft a row, and its refinements."""
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps(Named([WORDS]).row) + "\n" for _ in range(10))
    )
    options = [
        "--model",
        endpoint.model,
        "--max-iterations",
        0,
        "--dry-run",
        "--json",
        "--on-duplicate",
        "rename",
    ]
    done = redraft("batch", "rows.jsonl", *options)
    check(done)
    assert json.loads(done.out)["calls"] == [10, 10]
    done = redraft("batch", "rows.jsonl", *options, "--judge", endpoint.model)
    assert json.loads(done.out)["calls"][0] == 20
    assert not endpoint.server.calls


# ---- what nothing grades, and hints


@pytest.mark.parametrize("mode", ["refine", "best", "grade"])
def test_a_row_that_nothing_grades_is_a_failure_with_that_name(mode, endpoint, tmp_path):
    """The column of requirements is what the run names; a row without any takes no call, and the
    others are graded.
    """
    rows = [Named([WORDS]).row, {"prompt": "Write g.", "requirements": []}]
    rows = [row | ({"response": CODE} if mode == "grade" else {}) for row in rows]
    output = tmp_path / "out.jsonl"
    report = redraft.batch_sync(
        rows,
        output,
        endpoint.model,
        mode=mode,
        ordered=True,
        **({"n": 1} if mode == "best" else {}),
    )
    graded, other = map(json.loads, output.read_text().splitlines())
    assert (report.rows.done, report.rows.failed, graded["best_score"], other["best_score"]) == (
        1,
        1,
        1.0,
        None,
    )
    assert "nothing grades this task" in other["error"]
    assert endpoint.server.calls == (0 if mode == "grade" else 1)


def test_a_preview_of_rows_that_nothing_grades(endpoint, tmp_path, redraft):
    """The sample of prompts is of a row that something grades."""
    rows = [{"prompt": "Write g.", "requirements": []}, Named([WORDS]).row]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = redraft("batch", "rows.jsonl", "--model", endpoint.model, "--dry-run")
    assert done.returncode == 0, done.err
    assert "Write f." in done.out


def test_a_task_that_nothing_grades_is_a_failure_or_an_error(endpoint):
    """Who grades is decided once for all tasks: requirements of one of them leave no default judge
    for the others.
    """
    tasks = [Task("Write f.", CODE, requirements=[WORDS]), Task("Write g.", CODE)]
    graded, other = asyncio.run(grade_many(tasks))
    assert (graded.score, other.score, type(other.error)) == (1.0, None, ConfigError)
    assert "nothing grades this task" in str(other.error)
    with pytest.raises(ConfigError, match=r"tasks\[1\]: nothing grades this task"):
        asyncio.run(redraft.refine_many(tasks, endpoint.model))
    assert not endpoint.server.calls


def test_tasks_are_graded_by_the_tests_and_requirements_that_they_have(endpoint):
    """The tests of one task are no demand on another."""
    tasks = [Task("f", CODE, tests=TESTS), Task("g", CODE, requirements=[WORDS])]
    reports = asyncio.run(grade_many(tasks))
    assert [[f.grader for f in report.feedback] for report in reports] == [["tests"], [WORDS]]


@pytest.mark.parametrize("answers", [2, 5])
@pytest.mark.parametrize(
    ("named", "judged"),
    [
        (Named(), True),
        (Named([WORDS]), False),
        (Named([WORDS], judge="judge"), True),
        (Named(judge="judge"), True),
    ],
    ids=str,
)
def test_a_comparison_of_answers_by_a_tool(named, judged, answers, endpoint):
    """By default a comparer grades; with requirements alone nobody is asked, unless the server
    names a judge.
    """
    endpoint.verdict_on = lambda messages: json.dumps(
        {"reason": "So.", "ranking": [*range(1, answers + 1)], "better": "A"}
    )
    call = CompareInput(prompt="Write f.", answers=["x"] * answers, requirements=named.requirements)
    try:
        asyncio.run(compare_answers(call, bench_of(named, endpoint), CallProgress()))
    except redraft.errors.GradingError:
        assert judged  # the verdicts here are of no form that it reads
    assert bool(endpoint.judged) == judged
    assert not judged or set(endpoint.judged) == {named.judge or "tiny"}


@pytest.mark.parametrize(
    ("options", "advises"),
    [(["--require", WORDS, "--judge", "MODEL"], False), (["--grader", "judge"], True)],
    ids=["requirement", "judge"],
)
def test_no_hint_advises_what_was_done(options, advises, endpoint, tmp_path, redraft):
    """Where requirements grade already, an unreadable judge is no reason to advise them."""
    (tmp_path / "answer.txt").write_text(CODE)
    endpoint.verdict_on = lambda messages: "I cannot say."
    options = [endpoint.model if part == "MODEL" else part for part in options]
    done = redraft("run", "Write f.", "--model", endpoint.model, *options, "--max-iterations", 0)
    assert ("grade by requirements" in done.err) == advises


@pytest.mark.parametrize("face", ["run", "best", "grade", "batch"])
def test_a_rubric_is_something_that_is_named(face, endpoint, tmp_path, redraft):
    """Its judge grades beside requirements, on the judge that is named; without a judge it is a
    usage error.
    """
    (tmp_path / "rubric.toml").write_text('name = "mine"\n[criteria]\nclarity = "It is clear."\n')
    (tmp_path / "rows.jsonl").write_text(json.dumps(Named().row))
    (tmp_path / "answer.txt").write_text(CODE)
    endpoint.verdict_on = lambda messages: verdict(5, ("clarity",))
    command = {
        "run": ["run", "Write f.", "--max-iterations", 0],
        "best": ["best", "Write f.", "-n", 1],
        "grade": ["grade", "Write f.", "--response", "answer.txt"],
        "batch": [
            "batch",
            "rows.jsonl",
            "-o",
            "out.jsonl",
            "--max-iterations",
            0,
            "--no-calibrate",
        ],
    }[face]
    command += ["--model", endpoint.model, "--rubric", "rubric.toml", "--require", WORDS]
    with pytest.raises(ConfigError, match="grader 'mine' asks one"):
        check(redraft(*command, "--judge", "none"))
    assert not endpoint.server.calls
    check(redraft(*command, "--judge", endpoint.judge(Named(judge="judge"))))
    assert endpoint.judged == {"judge": 1}


def test_given_answers_are_ranked_by_requirements_without_a_model(endpoint, tmp_path, redraft):
    """No model is looked for, unless a judge is named."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"It is {name}")
    command = ["best", "--response", "a.txt", "--response", "b.txt", "--require", WORDS]
    check(redraft(*command))
    assert not endpoint.server.calls
    check(redraft(*command, "--judge", endpoint.judge(Named(judge="judge"))))
    assert endpoint.judged == {"judge": 2}


def test_models_are_compared_by_the_requirements_of_the_tasks(endpoint, tmp_path, redraft):
    """No judge is asked for: nothing else is named to grade by."""
    rows = [{**Named([WORDS]).row, "prompt": f"Write f, number {n}."} for n in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = endpoint.model, endpoint.judge(Named(judge="judge"))
    done = redraft("compare", *models, "--data", "rows.jsonl", "--journal", "c.journal")
    assert done.returncode == 0, done.err
    assert (endpoint.server.calls, endpoint.judged) == (6, {})
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "Write f."}))
    with pytest.raises(ConfigError, match="name one model that judges both"):
        check(redraft("compare", *models, "--data", "rows.jsonl", "--journal", "d.journal"))


def test_a_search_for_a_rubric_needs_a_judge(endpoint, tmp_path, redraft):
    """Without one it is a usage error before any call."""
    rows = [{"prompt": "q", "response": str(n), "label": n % 2} for n in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match="no judge is wanted"):
        check(
            redraft(
                "rubric",
                "--from",
                "rows.jsonl",
                "--model",
                endpoint.model,
                "--judge",
                "none",
                "-o",
                "r.toml",
            )
        )
    assert not endpoint.server.calls
