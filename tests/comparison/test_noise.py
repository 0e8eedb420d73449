"""The noise floor of a set-up: what flips, which loss can be seen, and whether a judge has drifted."""

import json
import random
import re
from dataclasses import replace

import pytest

from redraft.cli import main
from redraft.comparison import anchor_drift_sync, noise, noise_floor_sync
from redraft.comparison.noise import smallest_loss, stale_graders
from redraft.errors import ConfigError, GradingError
from redraft.graders import Judge, Rubric
from redraft.models import ScriptedModel
from redraft.validation import paired_difference, validate


def verdicts(seed, flips, n=200):
    """Return a run of verdicts: those of all seeds are alike but for a share of flips."""
    rng, tasks = random.Random(seed), random.Random(0)
    passes = [tasks.random() < 0.7 for _ in range(n)]
    return [
        {
            "id": k,
            "prompt": f"T{k}",
            "response": f"{k}",
            "score": float(p != (rng.random() < flips)),
        }
        for k, p in enumerate(passes)
    ]


@pytest.fixture
def few_samples(monkeypatch):
    """Simulate less, where the smallest loss need not be accurate."""
    monkeypatch.setattr(noise, "SAMPLES", 50)


@pytest.mark.slow
@pytest.mark.usefixtures("few_samples")
def test_two_runs_of_the_same_thing():
    """The share of verdicts that flip, with an interval that contains the true one; fewer rows show
    only larger losses.
    """
    floor = noise_floor_sync(verdicts(1, 0.05), verdicts(2, 0.05))
    low, high = floor.flips_interval
    assert low < 2 * 0.05 * 0.95 < high and floor.flips == floor.changed
    assert floor.is_same
    assert floor.smallest[20] > floor.smallest[50] > floor.smallest[200]
    text = "\n".join(floor.summary())
    assert "do not differ by more than chance" in text and "% of verdicts flip" in text
    assert json.loads(json.dumps(floor.as_data()))["power"] == 0.8


@pytest.mark.usefixtures("few_samples")
def test_two_runs_that_are_not_the_same():
    """It is no noise if one of them is better."""
    worse = [{**row, "score": 0.0} for row in verdicts(1, 0.0)]
    floor = noise_floor_sync(verdicts(1, 0.0), worse)
    assert not floor.is_same
    assert floor.summary()[0].endswith("are not the same: the second one is worse")


@pytest.mark.usefixtures("few_samples")
def test_scores_on_another_scale_have_no_verdicts():
    """Then nothing flips, and losses are in the unit of the scores."""
    rng = random.Random(5)
    a, b = ([{"id": n, "score": 50 + n + rng.gauss(0, 2)} for n in range(60)] for _ in "ab")
    floor = noise_floor_sync(a, b)
    assert floor.flips is floor.flips_interval is None and floor.changed == 1
    assert floor.noise_sd == pytest.approx(2, rel=0.3)
    assert 1 < floor.smallest[20] < 3
    assert "flip" not in "".join(floor.summary())


@pytest.mark.slow
@pytest.mark.usefixtures("few_samples")
def test_an_odd_score_does_not_halve_the_smallest_loss():
    """Among verdicts, one score that is nearly 1 is no step by which rows fall."""
    runs = [verdicts(1, 0.05), verdicts(2, 0.05)]
    odd = [[*run[:-1], {**run[-1], "score": 0.9999}] for run in runs]
    plain, with_odd = noise_floor_sync(*runs), noise_floor_sync(*odd)
    assert with_odd.smallest == pytest.approx(plain.smallest, rel=0.1)


@pytest.mark.slow(but_each=5)
@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([{"id": n, "score": 5} for n in range(30)], {}, "loss .*: unknown, since all scores are"),
        ([{"id": n, "score": 1} for n in range(30)], {}, "loss .* with 20 rows"),
        (
            [{"id": n, "prompt": "T", "score": 0.5 + n / 100} for n in range(30)],
            {},
            "^unknown whether .* differ by more than chance: all rows are one cluster",
        ),
        (
            [{"id": n, "prompt": f"T{n // 4}", "score": n % 2} for n in range(80)],
            {},
            "with 20 clusters",
        ),
        (
            [{"id": n, "prompt": f"T{n // 4}", "score": n % 2} for n in range(80)],
            {"cluster": "id"},
            "with 20 rows",
        ),
    ],
)
def test_what_the_rows_do_not_tell_is_said(rows, options, words):
    """A scale of which only one score occurs, a difference within one cluster, and the unit of the
    number of rows.
    """
    floor = noise_floor_sync(rows, [{**row, "score": row["score"]} for row in rows], **options)
    assert re.search(words, "\n".join(floor.summary()))
    assert floor.is_same is (None if floor.difference.clusters == 1 else True)


CALLS = []


def noisy_grade(text):
    """Grade by chance, another way each time."""
    CALLS.append(text)
    return 0.2 + 0.6 * random.Random(len(CALLS)).random()


@pytest.mark.slow
@pytest.mark.usefixtures("few_samples")
def test_one_run_is_graded_twice(tmp_path):
    """The second time without the cache, so that the grader's noise is seen; a second start takes
    no call.
    """
    calls = CALLS
    settings = {"graders": noisy_grade, "journal": tmp_path / "j.journal"}
    floor = noise_floor_sync(verdicts(1, 0.0, 30), **settings)
    assert len(calls) == 60 and floor.changed == 1 and floor.b == "rows (again)"
    again = noise_floor_sync(verdicts(1, 0.0, 30), **settings)
    assert again.smallest == floor.smallest and len(calls) == 60


@pytest.mark.parametrize("graders", [None, "pairwise"])
def test_one_run_needs_graders_that_score(graders):
    """A grader that compares answers has nothing to compare."""
    with pytest.raises(ConfigError, match="give a second run of the same thing"):
        noise_floor_sync(verdicts(1, 0.0, 5), graders=graders, judge=graders and str)


NOISES = {
    "normal": (lambda rng: rng.gauss(0, 0.1), 1e-9),
    "mostly equal": (lambda rng: rng.gauss(0, 0.3) if rng.random() < 0.2 else 0.0, 1e-9),
    "no flips": (lambda rng: 0.0, 1),
    "flips": (lambda rng: rng.choices([-1.0, 0.0, 1.0], [1, 8, 1])[0], 1),
    "steps": (lambda rng: 0.25 * round(rng.gauss(0, 0.7)), 0.25),
}


@pytest.mark.slow
@pytest.mark.parametrize("rows", [20, 50, 200])
@pytest.mark.parametrize("name", NOISES)
def test_the_smallest_loss_is_seen_as_often_as_stated(name, rows):
    """Fresh samples with that loss are reported as worse in 80 % of cases, and half the loss in far
    fewer.
    """
    draw, step = NOISES[name]
    rng = random.Random(1)
    loss = smallest_loss([draw(rng) for _ in range(1000)], rows, step)

    def power(size):
        seen = 0
        for _ in range(400):
            worse = [draw(rng) - step * ((size / step) // 1) for _ in range(rows)]
            worse = [x - step * (rng.random() < (size / step) % 1) for x in worse]
            seen += paired_difference([0.0] * rows, worse).verdict == "worse"
        return seen / 400

    assert 0.7 < power(loss) < 0.9
    assert power(loss / 2) < 0.5


def test_no_loss_can_be_seen_in_large_noise():
    """None says so, rather than a loss that is larger than possible."""
    noise = [-1.0, 1.0] * 50
    assert smallest_loss(noise, 5, 1) is None


def anchors(n=40):
    """Return answers whose recorded score is what `grade` gave."""
    return [
        {"id": k, "prompt": f"T{k}", "response": f"answer {k}", "score": 0.3 + k / 100}
        for k in range(n)
    ]


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.0, "stable"), (0.1, "drifted"), (-0.1, "drifted")]
)
def test_anchors_show_whether_the_judge_has_drifted(shift, verdict):
    """The same answers are graded once more, and the scores compared with the recorded ones."""

    def grade(text):
        number = int(text.split()[1])
        return 0.3 + number / 100 + shift + 0.005 * (number % 3 - 1)

    drift = anchor_drift_sync(anchors(), grade)
    assert drift.verdict == verdict
    assert drift.shift.value == pytest.approx(shift, abs=0.001)


def test_the_drift_says_what_it_took_to_grade():
    """Also if no anchor could be graded."""
    judge, rows = (
        Judge(Rubric.from_data({"criteria": {"truth": "It is true."}}, "r", "r")),
        anchors(6),
    )
    assert anchor_drift_sync(rows, judge, ScriptedModel([VERDICT] * 6)).usage.calls == 6
    with pytest.raises(GradingError) as raised:
        anchor_drift_sync(rows, judge, ScriptedModel(["no verdict"] * 12))
    assert raised.value.usage.calls == 12


def test_anchors_without_scores_are_refused():
    """The message says what a row must have."""
    rows = [{**row, "score": None} for row in anchors()]
    with pytest.raises(ConfigError, match="no row has a task, an answer and a score"):
        anchor_drift_sync(rows, len)


VERDICT = json.dumps(
    {
        "reason": "It is so.",
        "criteria": {"truth": {"evidence": "e", "change": "", "score": 5}},
        "done": True,
    }
)


async def test_graders_that_have_changed_since_they_were_validated(tmp_path):
    """What has changed is named; a grader without a card is not among them."""
    judge = Judge(Rubric.from_data({"criteria": {"truth": "It is true."}}, "r", "r"), "truthful")
    rows = [
        {"id": n, "prompt": f"T{n}", "response": "x" * (n + 1), "label": n % 5} for n in range(12)
    ]
    model = ScriptedModel([lambda _: VERDICT] * 12)
    (await validate(rows, judge, model, kind="score", cards_dir=tmp_path)).save_card()
    assert await stale_graders(judge, model, cards_dir=tmp_path) == []
    other = ScriptedModel([], name="another")
    (status,) = await stale_graders([judge, "words:1-5"], other, cards_dir=tmp_path)
    assert status.grader == "truthful" and "its model has changed since" in status.explanation
    assert await stale_graders(replace(judge, name="unknown"), other, cards_dir=tmp_path) == []


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize(
    ("second", "code", "words"),
    [
        (verdicts(2, 0.1), 0, "do not differ by more than chance"),
        ([{**row, "score": 0.0} for row in verdicts(1, 0.0)], 4, "are not the same"),
    ],
)
def test_the_gate_measures_the_noise(tmp_path, monkeypatch, capsys, second, code, words):
    """The exit code is 0 if two runs of the same thing do not differ by more than chance, else 4;
    the same as JSON.
    """
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.jsonl", verdicts(1, 0.1))
    write(tmp_path / "b.jsonl", second)
    assert main(["gate", "--aa", "a.jsonl", "b.jsonl"]) == code
    printed = capsys.readouterr().out
    assert words in printed and "with 20 rows" in printed
    assert main(["gate", "--aa", "a.jsonl", "b.jsonl", "--json"]) == code
    assert set(json.loads(capsys.readouterr().out)["smallest"]) == {"20", "50", "200"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.jsonl"], "Missing argument 'B'"),
        (["--aa", "a.jsonl"], "give a second run of the same thing"),
        (["--aa", "a.jsonl", "--data", "a.jsonl"], "leave out --data"),
        (["a.jsonl", "a.jsonl", "--anchors", "a.jsonl"], "name the --grader"),
        *(
            (["--aa", "a.jsonl", "a.jsonl", *option], f"{option[0]} has no effect with --aa")
            for option in (
                ("--junit", "g.xml"),
                ("--markdown", "g.md"),
                ("--undecided", "pass"),
                ("--anchors", "a.jsonl"),
                ("--labels", "a.jsonl"),
                ("--slice", "id"),
                ("--margin", "1"),
                ("--anytime",),
            )
        ),
    ],
)
def test_wrong_uses_of_the_gate(tmp_path, monkeypatch, capsys, arguments, message):
    """Each has the exit code 2, and says what to do."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.jsonl", verdicts(1, 0.1, 10))
    assert main(["gate", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("shift", "words"),
    [(0, "do not show whether the judge has drifted"), (0.2, "the judge has drifted")],
)
def test_the_gate_warns_of_a_judge_that_has_drifted(tmp_path, monkeypatch, capsys, shift, words):
    """The verdict stays, and the shift is in the JSON."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        f"def grade(text: str) -> float:\n    return 0.3 + int(text.split()[1]) / 100 + {shift}\n"
    )
    write(tmp_path / "old.jsonl", anchors())
    command = ["gate", "old.jsonl", "old.jsonl", "--anchors", "old.jsonl", "--json"]
    assert main([*command, "--grader", "own.py:grade", "--trust-in-process"]) == 0
    printed = capsys.readouterr()
    assert f"{words}: scores of old.jsonl moved by" in printed.err
    assert json.loads(printed.out)["anchors"]["shift"]["value"] == pytest.approx(shift, abs=1e-9)


@pytest.mark.slow
def test_the_gate_warns_of_a_grader_that_has_changed_since_it_was_validated(
    tmp_path, monkeypatch, capsys
):
    """It says what has changed; a grader that is as it was needs no warning."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path / "home"))
    code = "def grade(text: str) -> float:\n    return 0.3 + int(text.split()[1]) / 100\n"
    (tmp_path / "own.py").write_text(code)
    write(tmp_path / "old.jsonl", anchors())
    write(tmp_path / "labels.jsonl", anchors())
    own = ["--grader", "own.py:grade", "--trust-in-process"]
    assert main(["validate", "labels.jsonl", *own, "--kind", "score"]) == 0
    capsys.readouterr()
    assert main(["gate", "old.jsonl", "old.jsonl", *own]) == 0
    assert "changed" not in capsys.readouterr().err
    (tmp_path / "own.py").write_text(code.replace("/ 100", "/ 99"))
    assert main(["gate", "old.jsonl", "old.jsonl", *own]) == 0
    said = capsys.readouterr().err
    assert "grader 'grade': it was validated on" in said
    assert "its code, prompt or a setting has changed since" in said


GRADE = """
from pathlib import Path


def grade(text: str) -> float:
    with Path("calls.txt").open("a") as file:
        file.write(f"{text}\\n")
    if text in Path("broken.txt").read_text().splitlines():
        raise ValueError("it cannot be graded")
    return 0.3 + int(text.split()[1]) / 100
"""


@pytest.fixture
def gate(tmp_path, monkeypatch, capsys):
    """Return a function that runs the gate with a grader of one's own, and returns the exit code
    and what was printed.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(GRADE)
    (tmp_path / "broken.txt").write_text("")
    write(tmp_path / "old.jsonl", anchors())

    def run(*arguments):
        grader = ("--grader", "own.py:grade", "--trust-in-process")
        return main(["gate", *arguments, *grader, "--json"]), capsys.readouterr()

    return run


def test_a_missing_run_is_named_before_anchors_are_graded(gate, tmp_path):
    """No grade is paid for."""
    code, printed = gate("absent.jsonl", "old.jsonl", "--anchors", "old.jsonl")
    assert code == 2 and "absent.jsonl" in printed.err
    assert not (tmp_path / "calls.txt").exists()


def test_anchors_that_cannot_be_graded_leave_the_verdict(gate, tmp_path):
    """A warning says why."""
    texts = [f"{row['response']} once" for row in anchors()]
    rows = [{**row, "response": text} for row, text in zip(anchors(), texts, strict=True)]
    write(tmp_path / "others.jsonl", rows)
    (tmp_path / "broken.txt").write_text("\n".join(texts))
    code, printed = gate("old.jsonl", "old.jsonl", "--anchors", "others.jsonl")
    assert code == 0 and json.loads(printed.out)["anchors"] is None
    assert "unknown whether the judge has drifted: " in printed.err
    assert "no anchor could be graded" in printed.err


def test_anchors_are_read_as_the_runs_are(gate, tmp_path):
    """--score and -c hold for them, too, and unreadable ones are listed."""
    rows = [{**row, "text": row["response"], "mine": row["score"]} for row in anchors()]
    rows = [{**row, "response": "x", "score": 0.9} for row in rows]
    write(tmp_path / "own.jsonl", rows)
    with (tmp_path / "own.jsonl").open("a") as file:
        file.write("no JSON\n")
    columns = ("--score", "mine", "-c", "response=text")
    code, printed = gate("own.jsonl", "own.jsonl", "--anchors", "own.jsonl", *columns)
    assert code == 0, printed.err
    shift = json.loads(printed.out)["anchors"]["shift"]
    assert (shift["rows"], shift["value"]) == (40, pytest.approx(0, abs=1e-9))
    assert printed.err.count("unreadable: own.jsonl") == 3
