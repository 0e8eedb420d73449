"""Runs as people bring them: incomplete ones, scores where lower is better, scores in words,
folders of files, known columns.
"""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redraft
from each_row import each_row
from redraft.cli import main
from redraft.comparison import compare_sync, read_results
from redraft.errors import ConfigError


def write(path, rows):
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def scored(scores, name="score", **more):
    """Rows with these scores; runs with other scores have other answers."""
    run = repr(scores)[:80]
    return [
        {"id": n, "prompt": f"q{n}", "response": f"answer {n} of {run}", name: score, **more}
        for n, score in enumerate(scores)
    ]


# ---- rows that one run lacks

WHOLE = [round(0.3 + 0.01 * n, 2) for n in range(60)]
RISEN = [round(score + 0.02 + 0.001 * (n % 7), 3) for n, score in enumerate(WHOLE)]
INCOMPLETE = {
    "half of the rows": (WHOLE, RISEN[:30], "undecided", "30 only in"),
    "all but one row": (WHOLE, RISEN[:59], "not worse", ""),
    "a null score for each other row": (
        WHOLE,
        [*RISEN[:30], *[None] * 30],
        "undecided",
        "30 without a score in",
    ),
    "rows that are missing, and scores": (
        WHOLE,
        [*RISEN[:40], None],
        "undecided",
        "1 without a score in b.jsonl and 19 only in a.jsonl",
    ),
    "missing rows that A has no score for": (
        [*WHOLE[:30], *[None] * 30],
        RISEN[:30],
        "not worse",
        "",
    ),
    "more rows in B": (WHOLE[:30], RISEN, "not worse", ""),
    "missing rows whose scores in A are 0": (
        [*WHOLE[:30], *[0.0] * 30],
        RISEN[:30],
        "not worse",
        "",
    ),
    "the same rows": (WHOLE, RISEN, "not worse", ""),
    "a loss on the rows of both": (WHOLE, [score - 0.2 for score in WHOLE[:30]], "worse", ""),
    "another scale": (
        [10 * s for s in WHOLE],
        [10 * s for s in RISEN[:30]],
        "undecided",
        "30 only in",
    ),
}


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("case", INCOMPLETE)
def test_rows_that_b_lacks_count_like_rows_without_a_score(tmp_path, monkeypatch, capsys, case):
    """An incomplete run does not pass; rows that only B has, and those that A has no score for,
    change nothing.
    """
    a, b, gate, words = INCOMPLETE[case]
    monkeypatch.chdir(tmp_path)
    write("a.jsonl", scored(a)), write("b.jsonl", scored(b))
    code = main(["gate", "a.jsonl", "b.jsonl", "--margin", "0.05", "--json"])
    assert code == {"not worse": 0, "worse": 4, "undecided": 5}[gate]
    assert json.loads(capsys.readouterr().out)["gate"] == gate
    main(["gate", "a.jsonl", "b.jsonl", "--margin", "0.05"])
    assert words in capsys.readouterr().out.splitlines()[0]


def test_missing_rows_are_those_with_null_scores():
    """The worst case and both verdicts are the same, whether the rows are missing or have no
    score.
    """
    absent, null = (
        compare_sync(scored(WHOLE), scored(b)) for b in (RISEN[:30], [*RISEN[:30], *[None] * 30])
    )
    assert absent.worst_case == null.worst_case and (absent.gate, absent.verdict) == (
        null.gate,
        null.verdict,
    )
    assert (absent.only_a, absent.unscored_b, null.only_a, null.unscored_b) == (30, 0, 0, 30)
    assert any(
        "loses those without a score, and those that it lacks: " in line
        for line in absent.summary()
    )


def test_missing_rows_count_for_answers_that_a_grader_compares(tmp_path):
    """Answers of A without an opponent win, whether or not the runs have scores."""
    judge = redraft.ScriptedModel(
        [json.dumps({"reason": "because", "change": [], "winner": "first", "done": False})] * 100
    )
    a = [{"id": n, "prompt": f"q{n}", "response": f"answer {n}", "score": None} for n in range(40)]
    b = [{**row, "response": f"another answer {row['id']}"} for row in a[:20]]
    report = compare_sync(a, b, graders="pairwise", judge=judge, journal=tmp_path / "j.journal")
    assert (report.only_a, report.worst_case.rows, report.gate) == (20, 40, "undecided")
    assert report.worst_case.mean_a == pytest.approx(0.75)


# ---- scores where lower is better

LOWER = [
    "wer",
    "WER",
    "cer",
    "ter",
    "word_perplexity",
    "perplexity,none",
    "metrics.wer",
    "val_loss",
    "latency_ms",
    "cost_usd",
    "toxicity",
    "p95 latency",
    "avgLatency",
    "brier_score",
    "mse",
    "word_error_rate",
    "hallucination",
    "fpr",
    "FNR",
    "fdr",
    "eer",
    "violations",
    "violation_rate",
    "response_time",
    "false_positive_rate",
    "falseNegatives",
    "runtime_ms",
    "elapsed",
    "failures",
    "regret",
    "rmsle",
    "mape",
]
HIGHER = [
    "true_positive_rate",
    "tpr",
    "refusal_rate",
    "no_time",
    "false",
    "score",
    "accuracy",
    "acc",
    "answer",
    "utter",
    "lossless",
    "reward",
    "water",
    "teric",
    "costume",
    "closer",
    "f1",
]


@pytest.mark.slow(but_each=8)
@pytest.mark.parametrize("name", LOWER)
def test_names_where_lower_is_usually_better_are_asked_back(tmp_path, monkeypatch, capsys, name):
    """Neither command takes a direction for granted; either option answers."""
    monkeypatch.chdir(tmp_path)
    outer, _, inner = name.rpartition(".")
    column = inner if outer else name
    rows = [
        scored([0.4 + 0.001 * (n % 5) - shift for n in range(60)], column) for shift in (0, 0.2)
    ]
    if outer:
        rows = [[{**row, outer: {inner: row.pop(inner)}} for row in side] for side in rows]
    write("a.jsonl", rows[0]), write("b.jsonl", rows[1])
    assert main(["gate", "a.jsonl", "b.jsonl", "--score", name]) == 2
    error = capsys.readouterr().err
    assert "--lower-is-better" in error and "--higher-is-better" in error and repr(name) in error
    assert main(["gate", "a.jsonl", "b.jsonl", "--score", name, "--lower-is-better"]) == 0
    assert main(["gate", "a.jsonl", "b.jsonl", "--score", name, "--higher-is-better"]) == 4


@each_row("name", HIGHER)
def test_other_names_are_compared_as_they_are(name):
    rows = [scored([0.4 + 0.001 * (n % 5) + shift for n in range(60)], name) for shift in (0, 0.2)]
    report = compare_sync(*rows, score=name)
    assert (report.verdict, report.lower_is_better) == ("better", False)


def test_lower_is_better(tmp_path, monkeypatch, capsys):
    """A lower word error rate is better; the means are those of the files, the difference says by
    how much B is better.
    """
    monkeypatch.chdir(tmp_path)
    write("a.jsonl", scored([0.40 + n % 5 / 100 for n in range(60)], "wer", topic="t"))
    write("b.jsonl", scored([0.20 + n % 5 / 100 for n in range(60)], "wer", topic="t"))
    assert (
        main(
            [
                "compare",
                "a.jsonl",
                "b.jsonl",
                "--score",
                "wer",
                "--lower-is-better",
                "--slice",
                "topic",
            ]
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "b.jsonl is better than a.jsonl"
    assert (
        lines[1].startswith("wer (lower is better): 0.420 to 0.220, better by +0.200 (+0.1")
        and "60 better, 0 equal, 0 worse" in lines[1]
    )
    assert any(line.split()[:4] == ["t", "0.420", "0.220", "+0.200"] for line in lines)
    assert (
        main(["gate", "a.jsonl", "b.jsonl", "--score", "wer", "--lower-is-better", "--json"]) == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert (
        data["lower_is_better"]
        and data["difference"]["mean_a"] == pytest.approx(0.42)
        and data["value"] == pytest.approx(0.2)
    )
    assert main(["gate", "b.jsonl", "a.jsonl", "--score", "wer", "--lower-is-better"]) == 4
    assert "0.220 to 0.420, better by -0.200" in capsys.readouterr().out


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=20))
@settings(max_examples=30, deadline=None)
def test_lower_is_better_mirrors_the_scores(pairs):
    """The report is that of 1 - score, but for the means; also with rows without a score."""
    a, b = ([side / 20 for side in column] for column in zip(*pairs, strict=True))
    lower = compare_sync(scored([*a, 0.5]), scored([*b, None]), lower_is_better=True)
    mirrored = compare_sync(scored([*(1 - x for x in a), 0.5]), scored([*(1 - x for x in b), None]))
    assert (lower.verdict, lower.gate) == (mirrored.verdict, mirrored.gate)
    assert lower.interval == pytest.approx(mirrored.interval)
    assert lower.worst_case.interval == pytest.approx(mirrored.worst_case.interval)
    assert lower.difference.mean_a == pytest.approx(1 - mirrored.difference.mean_a)


def test_missing_rows_of_another_scale_count_as_the_highest_where_lower_is_better():
    report = compare_sync(
        scored([5.0, 7.0] * 20), scored([4.0, 6.0] * 10), lower_is_better=True, margin=0.1
    )
    assert report.worst_case.value == pytest.approx((20 * 1 + 20 * (6 - 7)) / 40)
    assert report.worst_case.mean_b == pytest.approx((20 * 5 + 20 * 7) / 40)


GRADERS = ["--grader", "own.py:toxicity", "--grader", "own.py:latency"]


def test_the_direction_of_own_grades_is_known(tmp_path, monkeypatch, capsys):
    """Scores of graders are never turned round, nor asked back by their names; other columns of the
    same file are.
    """
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "def toxicity(text):\n    return min(1.0, len(text) / 50)\n\n\ndef latency(text):\n    return 0.5\n"
    )
    for run, rows in (("a", WHOLE), ("b", RISEN)):
        write(f"{run}.jsonl", scored(rows, "wer"))
        assert (
            main(["batch", f"{run}.jsonl", "-o", f"{run}2.jsonl", "--mode", "grade", *GRADERS]) == 0
        )
    for score in ("", "toxicity_score", "latency_score"):
        assert (
            main(["compare", "a2.jsonl", "b2.jsonl", *(["--score", score] if score else [])]) == 0
        )
    capsys.readouterr()
    for score in ("wer", "cost"):
        assert main(["compare", "a2.jsonl", "b2.jsonl", "--score", score]) == 2
        assert f"lower may be better for {score!r}" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="lower_is_better"):
        compare_sync(scored(WHOLE), scored(RISEN), graders="fuzzy", lower_is_better=True)


# ---- scores in words

READ = {
    "True and False": (["True", "False", "true"], [1, 0, 1]),
    "booleans": ([True, False], [1, 0]),
    "CORRECT and INCORRECT": (["CORRECT", "INCORRECT"], [1, 0]),
    "pass and fail": (["pass", "FAIL", "Passed", "failed"], [1, 0, 1, 0]),
    "yes and no": (["Yes", "no"], [1, 0]),
    "Inspect's letters": (["C", "I", "P", "N"], [1, 0, 0.5, 0]),
    "P and F": (["P", "F"], [1, 0]),
    "Y and N": (["Y", "N"], [1, 0]),
    "T and F": (["T", "F"], [1, 0]),
    "percent": (["60%", "7.5 %", "100%"], [0.6, 0.075, 1]),
    "percent with commas": (["62,5 %", "7,25%", "100%"], [0.625, 0.0725, 1]),
    "fractions": (
        ["6/10", "7 / 10", "3 out of 4", "1 of 2", "7,5/10"],
        [0.6, 0.7, 0.75, 0.5, 0.75],
    ),
    "words, and shares beside them": (
        ["correct", 0.5, "0.25", None, ""],
        [1, 0.5, 0.25, None, None],
    ),
    "percent, and shares": (["60%", 0.5], [0.6, 0.5]),
    "numbers": (["7", 8, "9.5"], [7, 8, 9.5]),
    "decimal commas": (["0,5", "0,75", "1,0"], [0.5, 0.75, 1]),
    "decimal commas on a larger scale": (["3,4", "4,05"], [3.4, 4.05]),
    "decimal commas with two digits": (["8,5", "7,25"], [8.5, 7.25]),
    "a minus": (["-0.5", -1], [-0.5, -1]),
}
REFUSED = {
    "letters of options": ["A", "C"],
    "C alone is an option among others": ["C", "D", "I"],
    "P alone": ["P", "P"],
    "a sentence": ["it is good", "bad enough"],
    "thousands": ["1,234", "2,345"],
    "two labels in one cell": ["3,4", "4,5"],
    "more than the whole": ["11/10"],
    "of nothing": ["6/0"],
    "more than all": ["160%"],
    "stars": ["****"],
    "a list": [[1, 2]],
    "not a number": ["nan", "inf"],
}


@each_row("case", READ)
def test_scores_in_words_are_read(case):
    values, numbers = READ[case]
    results = read_results(scored(values))
    assert [row.score for row in results.rows] == pytest.approx(numbers) and not results.skipped


@pytest.mark.parametrize("case", REFUSED)
def test_other_words_are_refused_with_the_value(case):
    """The error names a value that cannot be read, and never says that there is no row."""
    with pytest.raises(ConfigError) as caught:
        read_results(scored(REFUSED[case]))
    message = str(caught.value)
    assert "has no row" not in message
    value = REFUSED[case][0]
    assert (value if isinstance(value, str) else "[1, 2]") in message and "'score'" in message


@pytest.mark.parametrize(
    ("values", "numbers", "words"),
    [
        ([0.5, "unknown", 0.7], [0.5, 0.7], "'unknown' is not a number"),
        (
            ["70", "60%", 80],
            [70, 80],
            "'60%' is a share from 0 to 1, and there are numbers on another scale, such as '70'",
        ),
        ([7, "6/10"], [7], "'6/10' is a share"),
        ([7, "pass"], [7], "'pass' is a share"),
        ([7, True], [7], "True is a share"),
        ([3, "3,4"], [3], "'3,4' may be a number or two labels"),
    ],
)
def test_a_value_on_another_scale_leaves_its_row_out(values, numbers, words):
    """The reason names the value; nothing is put on a scale that it is not on."""
    results = read_results(scored(values))
    assert [row.score for row in results.rows] == numbers
    assert words in results.skipped[0]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (["6/10", "7/10"], [6, 8]),
        (["60%"] * 2, ["60", "70"]),
        ([7, 8], [True, False]),
        (["pass", 0.5], [0.5, 2]),
    ],
)
def test_runs_on_two_scales_are_not_compared(a, b):
    """A share and a number of another scale make no difference, in either order."""
    for runs in ((a, b), (b, a)):
        with pytest.raises(
            ConfigError,
            match="shares from 0 to 1, such as .*, and 'rows' scores on another scale, such as",
        ):
            compare_sync(*map(scored, runs))
    assert compare_sync(scored(["60%", "pass"]), scored([0.5, 0.75])).difference.rows == 2


# ---- IDs that begin again

IDS = {
    "two files with IDs from 0": (lambda n, run: {"id": n % 20, "prompt": f"q{n}"}, 40, 0),
    "epochs": (lambda n, run: {"id": n % 20, "prompt": f"q{n % 20}"}, 20, 40),
    "epochs with options in another order in each run": (
        lambda n, run: {"id": n % 20, "prompt": f"q{n % 20} {run} {n}"},
        20,
        40,
    ),
    "epochs without a task": (lambda n, run: {"id": n % 20}, 20, 40),
    "different IDs": (lambda n, run: {"id": n, "prompt": f"q{n}"}, 40, 0),
}


@pytest.mark.parametrize("case", IDS)
def test_an_id_of_different_tasks_is_none(case):
    """Rows of a table are paired by their task where an ID stands for several, and the other run
    has the same tasks.
    """
    make, rows, repeats = IDS[case]
    runs = [
        [{**make(n, run), "response": f"{run}{n}", "score": n % k / k} for n in range(40)]
        for run, k in (("a", 3), ("b", 4))
    ]
    report = compare_sync(*runs)
    assert (report.difference.rows, report.repeats) == (rows, repeats)


# ---- columns of other programs

COLUMNS = {
    "HumanEval": (
        {"task_id": "HumanEval/{}", "completion": "c", "result": "passed", "passed": True},
        "passed",
        "id",
    ),
    "ragas": (
        {
            "user_input": "q{}",
            "response": "r",
            "reference": "x",
            "retrieved_contexts": ["c"],
            "score": 0.5,
        },
        "score",
        "task",
    ),
    "DeepEval": (
        {"input": "q{}", "actual_output": "r", "expected_output": "x", "score": 1},
        "score",
        "task",
    ),
    "is_correct": (
        {"question": "q{}", "prediction": "r", "is_correct": "True"},
        "is_correct",
        "task",
    ),
    "LiveCodeBench": ({"question_content": "q{}", "prediction": "r", "score": 1}, "score", "task"),
    "SWE-bench": ({"instance_id": "i{}", "resolved": False}, "resolved", "id"),
}


@pytest.mark.parametrize("program", COLUMNS)
def test_columns_of_other_programs_are_known(program):
    row, score, paired_by = COLUMNS[program]
    rows = [{k: v.format(n) if isinstance(v, str) else v for k, v in row.items()} for n in range(4)]
    report = compare_sync(rows, rows)
    assert (report.score_name, report.paired_by, report.difference.rows) == (score, paired_by, 4)


def test_a_named_answer_is_no_reason_to_lose_the_tasks():
    """Two columns that may be the answer do not matter if it is named, also within an object."""
    rows = [
        {"inputs": {"q": f"q{n}"}, "outputs": {"a": "r"}, "answer": "x", "output": "y", "n": n / 4}
        for n in range(4)
    ]
    columns = {"prompt": "inputs.q", "response": "outputs.a", "score": "n"}
    report = compare_sync(rows, rows[::-1], result_columns=columns)
    assert (report.paired_by, report.difference.rows) == ("task", 4)


def test_a_column_of_correct_answers_is_no_score():
    """Neither as texts nor as the numbers of options."""
    for answers in (["B", "Paris"], ["A", "C"], [0, 3], ["1", "2"]):
        with pytest.raises(ConfigError, match="no column is known to be the score"):
            read_results([{"id": n, "correct": answer} for n, answer in enumerate(answers)])


# ---- intervals

SCORES = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 1) | st.none(), st.integers(0, 3)),
    min_size=2,
    max_size=12,
)


@given(SCORES, st.booleans(), st.integers(0, 2**32))
def test_no_interval_leaves_the_scale(rows, lower, seed):
    """Differences of scores from 0 to 1 lie from -1 to 1, also with labels, slices, any look, and
    rows that are missing.
    """
    rng = random.Random(seed)
    a = [
        {"id": n, "prompt": f"q{n}", "response": f"a{n}", "score": x, "s": str(c)}
        for n, (x, _, c) in enumerate(rows)
    ]
    b = [
        {"id": n, "prompt": f"q{n}", "response": f"b{n}", "score": y, "s": str(c)}
        for n, (_, y, c) in enumerate(rows)
    ]
    labels = [{"id": n, "label_a": rng.random(), "label_b": rng.random()} for n in range(len(rows))]
    try:
        reports = [
            compare_sync(a, b, slices="s", anytime=True, cluster="s", lower_is_better=lower),
            compare_sync(a, b, labels=labels),
        ]
    except ConfigError:
        return  # nothing has a score in both runs, or there are too few labels
    for report in reports:
        found = [report.difference, report.worst_case, *report.slices.get("s", {}).values()]
        intervals = [each.interval for each in found if each] + [report.interval, report.anytime]
        if report.people:
            intervals += [report.people.estimate.interval, report.people.labels_only.interval]
        assert all(-1 <= low <= high <= 1 for low, high in filter(None, intervals))
        assert all(
            low <= each.value <= high
            for each in found
            if each and each.interval
            for low, high in [each.interval]
        )
