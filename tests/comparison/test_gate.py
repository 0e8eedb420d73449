"""The gate: exit codes, JUnit XML, Markdown, the pytest plugin, and hostile names."""

import json
import random
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.cli import display, main
from redraft.cli.commands import compare as compare_command
from redraft.comparison import ResultRow, RunResults, compare_sync
from redraft.comparison.ci_reports import gate_passes, junit_xml, markdown_summary
from redraft.errors import ConfigError
from redraft.runs import BatchProgress
from redraft.validation import win_rate

pytest_plugins = ["pytester"]


def write_run(path, shift, n=400):
    rows = [
        {
            "id": k,
            "prompt": f"Task {k}",
            "response": f"{path.name} {k}",
            "topic": "ab"[k % 2],
            "score": 0.5 + shift + 0.1 * (k % 3 - 1),
        }
        for k in range(n)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("shift", "options", "code", "words"),
    [
        (0.0, (), 0, "passed: b.jsonl is not worse than a.jsonl by more than 0.02"),
        (0.2, (), 0, "passed"),
        (-0.2, (), 4, "failed: b.jsonl is worse than a.jsonl"),
        (-0.2, ("--undecided", "pass"), 4, "failed"),
        (0.0, ("--margin", "0"), 5, "undecided whether b.jsonl is worse"),
        (0.0, ("--margin", "0", "--undecided", "pass"), 0, "undecided whether"),
        (0.0, ("--undecided", "maybe"), 2, ""),
        (0.0, ("--score", "nope"), 2, ""),
        (0.0, ("--labels", "missing.jsonl"), 2, ""),
        (0.0, ("--junit", "no/gate.xml"), 2, "--junit: no/gate.xml cannot be written"),
        (0.0, ("--markdown", "no/summary.md"), 2, "--markdown: no/summary.md cannot be written"),
    ],
)
def test_exit_codes(tmp_path, monkeypatch, capsys, shift, options, code, words):
    """0 not worse, 4 worse, 5 undecided, 2 for wrong usage."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a.jsonl", 0.0)
    write_run(tmp_path / "b.jsonl", shift)
    assert main(["gate", "a.jsonl", "b.jsonl", *options]) == code
    assert words in "".join(capsys.readouterr())


def test_files_for_continuous_integration(tmp_path, monkeypatch, capsys):
    """JUnit XML has a failure, Markdown is added to what is there, and JSON says whether it
    passed.
    """
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a.jsonl", 0.0)
    write_run(tmp_path / "b.jsonl", -0.2)
    (tmp_path / "summary.md").write_text("before\n")
    code = main(
        [
            "gate",
            "a.jsonl",
            "b.jsonl",
            "--slice",
            "topic",
            "--junit",
            "gate.xml",
            "--markdown",
            "summary.md",
            "--json",
        ]
    )
    assert code == 4
    data = json.loads(capsys.readouterr().out)
    assert (data["passed"], data["gate"], data["difference"]["rows"]) == (False, "worse", 400)
    suite = ET.parse(tmp_path / "gate.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    assert "is worse than" in suite.find(".//failure").get("message")
    assert {each.get("name"): each.get("value") for each in suite.iter("property")}["rows"] == "400"
    text = (tmp_path / "summary.md").read_text()
    assert text.startswith("before\n### Redraft gate failed")
    assert "| topic: a | 0.500 | 0.300 | -0.200 |" in text


def test_compare_prints_a_table_or_json(tmp_path, monkeypatch, capsys):
    """The verdict first; the exit code does not depend on it."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a.jsonl", 0.0)
    write_run(tmp_path / "b.jsonl", -0.2)
    assert main(["compare", "a.jsonl", "b.jsonl", "--slice", "topic"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("b.jsonl is worse than a.jsonl")
    assert "topic" in printed
    assert main(["compare", "a.jsonl", "b.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "worse"


def test_prompts_are_compared_by_a_command(tmp_path, monkeypatch, capsys):
    """Both prompts are run on the tasks by the model that is named, and graded by code of the
    user.
    """
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "tasks.jsonl", 0.0, n=12)
    (tmp_path / "grade.py").write_text(
        "def length(text: str) -> float:\n    return min(1.0, len(text) / 100)\n"
    )
    (tmp_path / "old.md").write_text("Say: {prompt}")
    (tmp_path / "new.md").write_text("Say it at length, with an example and a reason: {prompt}")
    monkeypatch.setenv("REDRAFT_GRADER", "helpfulness")  # a default for other commands
    command = [
        "compare",
        "old.md",
        "new.md",
        "--data",
        "tasks.jsonl",
        "-c",
        "response=",
        "--grader",
        "grade.py:length",
        "--json",
    ]
    from redraft.cli import request

    async def echo_model(_name):
        return lambda messages: messages[-1]["content"]

    monkeypatch.setattr("redraft.cli.commands.compare.find_model", echo_model)
    assert main([*command, "--model", "none"]) == 0, capsys.readouterr().err
    data = json.loads(capsys.readouterr().out)
    assert (data["a"], data["b"], data["verdict"], data["usage"]["calls"]) == (
        "old.md",
        "new.md",
        "better",
        24,
    )
    assert request


@pytest.mark.parametrize("command", ["compare", "gate"])
def test_a_run_is_named_in_any_way(tmp_path, monkeypatch, capsys, command):
    """By its name, its output, or its journal; two runs in one journal have different names in the
    report.
    """
    monkeypatch.chdir(tmp_path)
    rows = [
        {"id": k, "prompt": f"Say it {k}", "a": "One, two", "b": f"One two {k}"} for k in range(9)
    ]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for answer in "ab":
        grade = [
            "batch",
            "in.jsonl",
            "-c",
            f"response={answer}",
            "--model",
            "none",
            "--grader",
            "no_commas",
            "--max-iterations",
            "0",
        ]
        assert main([*grade, "-o", f"{answer}.jsonl", "--journal", "both.journal"]) == 0
    found = []
    for a, b in (
        ("a.jsonl", "b.jsonl"),
        ("a-jsonl", "b-jsonl"),
        ("both.journal#a-jsonl", "both.journal#b-jsonl"),
    ):
        capsys.readouterr()
        assert main([command, a, b, "--json"]) == 0, capsys.readouterr().err
        found.append(json.loads(capsys.readouterr().out))
    assert len({json.dumps(each["difference"]) for each in found}) == 1
    assert all(each["a"] != each["b"] for each in found)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "old.md new.md",
            "'old.md' is no file of results; to compare models or prompts, name the tasks: --data FILE",
        ),
        (
            "openai:a openai:b",
            "'openai:a' is no file of results; to compare models or prompts, name the tasks: --data FILE",
        ),
        ("http://127.0.0.1:9/v1#x old.md", "--data FILE"),
        ("old.md nwe.md --data tasks.jsonl", "there is no file 'nwe.md'"),
        ("odl.txt new.md --data tasks.jsonl", "there is no file 'odl.txt'"),
        ("answrs tasks.jsonl", "there is no run or file 'answrs'"),
    ],
)
def test_mistakes_with_models_and_prompts_are_explained(
    tmp_path, monkeypatch, capsys, arguments, words
):
    """A comparison of models or prompts needs tasks, and a prompt that is missing is no model."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "tasks.jsonl", 0.0, n=2)
    for name in ("old.md", "new.md"):
        (tmp_path / name).write_text("Say: {prompt}")
    assert (
        main(
            [
                "compare",
                *arguments.split(),
                "-c",
                "response=",
                "--model",
                "none",
                "--grader",
                "no_commas",
            ]
        )
        == 2
    )
    assert words in capsys.readouterr().err


def test_a_missing_prompt_is_a_wrong_argument(tmp_path):
    """From Python as well, as a path or a text."""
    for missing in (tmp_path / "no", str(tmp_path / "no.md")):
        with pytest.raises(ConfigError, match="there is no file"):
            compare_sync(missing, str, [{"prompt": "p"}], graders=["no_commas"])


@pytest.mark.slow
def test_an_endpoint_that_is_down_is_reported(tmp_path, monkeypatch, capsys):
    """A comparison waits for it as a batch does, and says so."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "tasks.jsonl", 0.0, n=3)
    model = "http://127.0.0.1:9/v1#x"
    command = [
        "compare",
        model,
        model,
        "--data",
        "tasks.jsonl",
        "-c",
        "response=",
        "--grader",
        "no_commas",
        "--deadline",
        "12",
    ]
    assert main(command) == 1
    assert "down since" in capsys.readouterr().err


def test_a_candidate_that_changes_nothing_passes():
    """The same answers with the same scores are not worse, however few they are."""
    rows = [{"id": n, "response": f"x{n}", "score": n / 4} for n in range(4)]
    report = compare_sync(rows, rows)
    assert report.gate == "not worse"
    assert report.gate_line() == "passed: the answers of rows (B) are those of rows (A)"
    assert report.verdict == "undecided"


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    "evidence", ["scores", "scores at any time", "labels", "win rate", "scores of 1 to 5"]
)
def test_answers_that_b_lost_count_against_it(evidence):
    """Whatever the verdict follows from: B is good on what it answers, and has no score for a tenth
    of the rows.
    """
    rng, low, high = random.Random(3), *((1, 5) if evidence == "scores of 1 to 5" else (0.4, 0.6))
    a = [{"id": n, "response": f"a{n}", "score": rng.uniform(low, high)} for n in range(600)]
    b = [
        {**row, "response": f"b{row['id']}", "score": row["score"] + 0.02 * rng.gauss(0, 1)}
        for row in a
    ]
    lost = [{**row, "score": None} if row["id"] < 60 else row for row in b]
    labels = [
        {"id": n, "label_a": 0.5 + 0.001 * (n % 3), "label_b": 0.5 + 0.001 * (n % 5)}
        for n in range(100, 200)
    ]
    settings = {
        "labels": labels if evidence == "labels" else None,
        "anytime": evidence == "scores at any time",
    }
    rate = (
        win_rate([0.5, 1.0, 0.0] * 1000, [0.5, 0.0, 1.0] * 1000) if evidence == "win rate" else None
    )

    def report(second):
        return replace(
            compare_sync(a, second, margin=0.1 if high == 5 else 0.03, **settings), wins=rate
        )

    assert report(b).gate == "not worse"
    assert report(lost).gate == "undecided"
    assert "60 without a score in rows (B) may hide a loss" in report(lost).gate_line()


def test_half_of_the_answers_is_not_all_of_them():
    """A candidate that repeats the answers of A to some of its tasks has not shown that it is as
    good on the others.
    """
    rows = [{"id": n, "response": f"x{n}", "score": 0.5} for n in range(40)]
    report = compare_sync(rows, rows[:4])
    assert report.gate == "undecided"
    assert "left out: 36 only in rows (A)" in report.summary()


def test_labels_have_a_scale_of_their_own():
    """With scores from 1 to 5, the margin of 0.02 is of labels from 0 to 1; the gate names the
    labels that would decide it.
    """
    rng = random.Random(2)
    a = [{"id": n, "response": f"a{n}", "score": rng.choice([3.0, 4.0])} for n in range(300)]
    b = [{"id": n, "response": f"b{n}", "score": rng.choice([3.0, 4.0, 5.0])} for n in range(300)]
    labels = [{"id": n, "label_a": rng.random(), "label_b": rng.random()} for n in range(60)]
    report = compare_sync(a, b, labels=labels)
    assert (report.margin, report.evidence, report.gate) == (0.02, "labels", "undecided")
    assert report.people.gate_needed != report.people.needed
    assert f"about {report.people.gate_needed - 60:,} more labels" in report.gate_line()


@pytest.mark.parametrize(
    ("undecided", "title"),
    [("fail", "undecided (counts as failed)"), ("pass", "undecided (counts as passed)")],
)
def test_the_summary_names_what_each_verdict_is_by(undecided, title):
    """The verdict may follow from labels, while the table is of scores; a gate that is undecided is
    not said to have failed.
    """
    a, b = ([{"id": n, "response": f"{x}{n}", "score": n % 2} for n in range(60)] for x in "ab")
    rng = random.Random(1)
    labels = [{"id": n, "label_a": rng.random(), "label_b": rng.random()} for n in range(40)]
    text = markdown_summary(compare_sync(a, b, labels=labels, level=0.999), undecided)
    assert text.startswith(f"### Redraft gate {title}\n")
    assert "\nEvidence: labels\n" in text
    assert "| 99.9% interval | rows | by scores, B is |" in text
    text = markdown_summary(compare_sync(a, b), undecided)
    assert "\nEvidence: scores\n" in text and "| rows | B is |" in text


@pytest.mark.slow
def test_graders_are_compared_by_a_command(tmp_path, monkeypatch, capsys):
    """By how far they agree with the labels; the gate works the same way."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("redraft.validation.report.BOOTSTRAP_SAMPLES", 200)
    rng = random.Random(1)
    rows = [
        {"prompt": f"T{n}", "response": f"{quality:.3f}", "label": quality}
        for n in range(60)
        if (quality := rng.random())
    ]
    (tmp_path / "people.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = "def exact(text: str) -> float:\n    return float(text)\n\ndef rough(text: str) -> float:\n    return float(text[-1]) / 9\n"
    (tmp_path / "rules.py").write_text(code)
    command = ["rules.py:rough", "rules.py:exact", "--labels", "people.jsonl", "--json"]
    assert main(["compare", *command]) == 0, capsys.readouterr().err
    data = json.loads(capsys.readouterr().out)
    assert (data["verdict"], data["score_name"], data["forms"]) == (
        "better",
        "concordance",
        ["grader", "grader"],
    )
    assert main(["gate", "rules.py:exact", "rules.py:rough", "--labels", "people.jsonl"]) == 4
    assert main(["compare", "missing.jsonl", "rules.py:rough", "--labels", "people.jsonl"]) == 2


NAMES = st.text(
    alphabet=st.characters(codec=None, exclude_categories=()), max_size=30
) | st.sampled_from(
    [
        "a\ud800b",
        "\x1b[31mred",
        "</failure>]]>&",
        "| a | b |\n# c",
        "[x](http://y)",
        "https://x.y @team $a$ ~~b~~ www.x.y",
        "\u202eabc",
    ]
)


@given(NAMES, NAMES, NAMES, st.sampled_from(["pass", "fail"]))
def test_hostile_names_end_nothing(a, b, topic, undecided):
    """Whatever a name contains, the XML can be read, and the Markdown has as many lines as with
    plain names.
    """

    def run(name, shift):
        rows = [
            ResultRow(str(n), "", 0.5 + shift + n % 2 / 10, f"{shift}{n}", {"topic": topic})
            for n in range(8)
        ]
        return RunResults(name or "x", "table", rows, score_name=topic or "score")

    report = compare_sync(run(a, 0), run(b, 0.1), slices=["topic"], lower_is_better=False)
    root = ET.fromstring(junit_xml(report, undecided).encode())
    assert len(root.findall(".//testcase")) == 1
    lines = markdown_summary(report, undecided).splitlines()
    plain = markdown_summary(
        compare_sync(run("a", 0), run("b", 0.1), slices=["topic"], lower_is_better=False), undecided
    ).splitlines()
    assert abs(len(lines) - len(plain)) == 0
    assert not any(
        "<" in line or re.search(r"(?<!\\)\]\(", line) or "://" in line or "@" in line
        for line in lines
    )
    assert "\n".join(lines).encode()  # no lone surrogate, which no file can hold
    assert gate_passes(report, "pass") == (report.gate != "worse")


PLUGIN_TESTS = """
    import pytest

    def rows(shift, n=300):
        return [{"id": k, "response": f"{shift} {k}", "score": 0.5 + shift + 0.1 * (k % 3 - 1)} for k in range(n)]

    def test_same(redraft_gate):
        assert redraft_gate(rows(0), rows(0.001)).gate == "not worse"

    def test_worse(redraft_gate):
        redraft_gate(rows(0), rows(-0.2))

    @pytest.mark.redraft(margin=0.3)
    def test_allowed_loss(redraft_gate):
        redraft_gate(rows(0), rows(-0.2))

    @pytest.mark.redraft(undecided="skip")
    def test_skipped(redraft_gate):
        a = [{"id": k, "response": "a", "score": 0.5} for k in range(6)]
        redraft_gate(a, [{**row, "response": "b", "score": 0.5 + 0.1 * (-1) ** row["id"]} for row in a])

    @pytest.mark.redraft(undecided="maybe")
    def test_wrong(redraft_gate):
        pass

    @pytest.mark.redraft(tasks=[])
    def test_no_setting(redraft_gate):
        pass

    @pytest.mark.redraft(undecided="pass")
    class TestCalls:
        def test_cached(self, redraft_gate, request):
            import redraft
            models = [redraft.ScriptedModel([lambda m, n=n: "y" * n] * 9, name=f"m{n}") for n in (3, 9)]
            tasks = [{"id": str(n), "prompt": f"T{n}"} for n in range(6)]
            report = redraft_gate(*models, tasks, graders=grade)
            assert report.usage.calls == int(request.config.getini("expected_calls"))

    def grade(text: str) -> float:
        return len(text) / 10
"""


@pytest.mark.slow
def test_the_pytest_plugin(pytester, monkeypatch):
    """The fixture fails, skips or passes a test; marks have its settings; calls are kept between
    sessions.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the plugin may be installed, or not
    pytester.makepyfile(PLUGIN_TESTS)
    pytester.makeconftest("def pytest_addoption(parser): parser.addini('expected_calls', 'n')")
    arguments = (
        "-p",
        "redraft.pytest_plugin",
        "-p",
        "cacheprovider",
        "--strict-markers",
        "-W",
        "ignore",
    )
    result = pytester.runpytest_subprocess(*arguments, "-o", "expected_calls=12")
    result.assert_outcomes(passed=3, failed=1, skipped=1, errors=2)
    result.stdout.fnmatch_lines(
        ["*failed: rows (B) is worse than rows (A)*", "*redraft gates*", "passed: *"]
    )
    result.stdout.fnmatch_lines(["*undecided must be one of pass, fail, skip, got 'maybe'*"])
    result.stdout.fnmatch_lines(
        ["*the mark redraft has only settings: give tasks in the call of redraft_gate*"]
    )
    again = pytester.runpytest_subprocess(
        *arguments, "-p", "xdist", "-n", "2", "-o", "expected_calls=0", "-k", "cached or same"
    )
    again.assert_outcomes(passed=2)
    again.stdout.fnmatch_lines(["*redraft gates*", "passed: *"])
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "entry-points"
    ]["pytest11"]
    assert declared == {"redraft": "redraft.pytest_plugin"}


PLAIN = """
    import sys

    def test_plain():
        heavy = {"numpy", "scipy", "openai", "httpx", "pydantic", "redraft.comparison", "redraft.session.session", "redraft.settings"}
        assert not heavy & set(sys.modules)
        assert sum(name.startswith("redraft") for name in sys.modules) < 10
"""


@pytest.mark.slow
def test_the_pytest_plugin_is_light(pytester, monkeypatch):
    """In a project that does not use it, it loads nothing but itself."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(PLAIN)
    result = pytester.runpytest_subprocess("-p", "redraft.pytest_plugin")
    result.assert_outcomes(passed=1)
    assert "redraft gates" not in result.stdout.str()


@pytest.mark.parametrize("as_json", [False, True])
def test_progress_is_shown_from_the_first_second_on(monkeypatch, capsys, as_json):
    """A line after a second, then one every half minute; JSON lines every five seconds."""
    clock = [100.0]
    monkeypatch.setattr(display, "monotonic", lambda: clock[0])
    monkeypatch.setattr(display, "messages_are_json", lambda: as_json)
    show = compare_command.RunsProgress(("A", "B", "pairs"))
    a, b = BatchProgress(), BatchProgress(total=20)
    clock[0] = 101.5
    show(a)  # says nothing: neither a row is done, nor is it known how many there are
    a.total = 20
    for seconds, progress in ((0.5, a), (1, a), (4, a), (7, b), (40, b)):
        clock[0] = 100 + seconds
        progress.done += 5
        show(progress)
    lines = capsys.readouterr().err.splitlines()
    if as_json:
        found = [json.loads(line) for line in lines]
        assert [
            (each["event"], each["run"], each["rows"]["done"], each["rows"]["total"])
            for each in found
        ] == [
            ("progress", "A", 10, 20),
            ("progress", "B", 5, 20),
            ("progress", "B", 10, 20),
        ]
    else:
        assert lines == ["redraft: A: 10 of 20 done", "redraft: B: 10 of 20 done"]
