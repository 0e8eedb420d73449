"""Labels as people bring them: repeated rows, a score for each answer, scales that run the other
way, words and columns of others.
"""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft import Task
from redraft.cli import main
from redraft.errors import ConfigError
from redraft.graders.cards import Card
from redraft.validation import (
    LabelledCase,
    compare_graders_sync,
    read_cases,
    report,
    validate_sync,
)
from redraft.validation.attacks import attack_success_rates
from redraft.validation.card_page import card_markdown
from redraft.validation.cases import Verdict, with_clusters
from redraft.validation.grader_comparison import compare_verdicts
from redraft.validation.report import ReportConfig, build_report, verdicts_by_case

LENGTHS = (3, 5, 8, 22, 27, 12, 18)
SEVEN = [
    {
        "id": i,
        "prompt": f"Write {i}",
        "response": "word " * n,
        "label": "good" if n in {12, 22, 27} else "bad",
    }
    for i, n in enumerate(LENGTHS)
]


@pytest.fixture(autouse=True)
def few_bootstrap_samples(monkeypatch, request):
    """Intervals from few samples are enough where none is counted."""
    marker = request.node.get_closest_marker("slow")
    if marker is None or "but_each" in marker.kwargs:
        monkeypatch.setattr(report, "BOOTSTRAP_SAMPLES", 100)


def length(text):
    return min(1.0, len(text.split()) / 30)


def validated(rows, tmp_path, **options):
    return validate_sync(rows, length, cards_dir=tmp_path / "cards", **options)


# ---- repeated rows


def test_identical_rows_count_once(tmp_path):
    """The same seven rows eight times prove what they prove once, with and without IDs."""
    once, often = validated(SEVEN, tmp_path), validated(SEVEN * 8, tmp_path)
    assert (often.headline, often.measures, often.trusted) == (once.headline, once.measures, False)
    assert (often.card.rows, often.card.repeated_rows, once.card.repeated_rows) == (7, 49, 0)
    bare = [{k: v for k, v in row.items() if k != "id"} for row in SEVEN]
    assert validated(bare * 8, tmp_path).headline == once.headline


REPEATS = {
    "identical rows": (lambda rows: rows * 4, 4, None),
    "another day in each export": (
        lambda rows: [{**row, "day": k} for k in range(4) for row in rows],
        1,
        12,
    ),
    "other IDs in each export": (
        lambda rows: [{**row, "id": f"{k}-{row['id']}"} for k in range(4) for row in rows],
        1,
        12,
    ),
    "the same ID, and another wording of the task": (
        lambda rows: [{**row, "prompt": f"{row['prompt']} {k}"} for k in range(4) for row in rows],
        1,
        12,
    ),
    "several answers to each task": (
        lambda rows: [
            {**row, "id": f"{k}-{row['id']}", "response": row["response"] + "x " * k}
            for k in range(4)
            for row in rows
        ],
        1,
        12,
    ),
    "no ID": (
        lambda rows: [{**row, "id": None, "day": k} for k in range(4) for row in rows],
        1,
        12,
    ),
    "answers to the only task": (
        lambda rows: [
            {**row, "id": None, "prompt": "Write", "day": k} for k in range(4) for row in rows
        ],
        1,
        12,
    ),
    "answers without a task": (
        lambda rows: [
            {"response": row["response"], "label": row["label"], "day": k}
            for k in range(4)
            for row in rows
        ],
        1,
        12,
    ),
}
TWELVE = [
    {"id": str(n), "prompt": f"Write {n}", "response": "word " * words, "label": n / 11}
    for n, words in enumerate((3, 1, 7, 8, 5, 13, 10, 17, 16, 19, 23, 22))
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["score", "pass"])
@pytest.mark.parametrize("case", REPEATS)
def test_repeats_are_one_cluster(tmp_path, case, kind):
    """However rows are repeated, no interval is much narrower than that of the rows once, and a
    line says so everywhere.
    """
    repeat, dropped, clusters = REPEATS[case]
    rows = [
        {**row, "label": row["label"] if kind == "score" else int(row["label"] > 0.4)}
        for row in TWELVE
    ]
    once, often = validated(rows, tmp_path, kind=kind), validated(repeat(rows), tmp_path, kind=kind)
    for name, measure in often.measures.items():
        before = once.measures[name]
        if (
            case != "several answers to each task"
            and None not in {measure.low, before.low}
            and before.high > before.low
        ):
            assert measure.high - measure.low > 0.75 * (before.high - before.low), name
    card = Card.from_json(often.card.to_json(), "here")
    line = card.repeats_line()
    assert (card.headline.clusters, card.repeated_rows) == (clusters, 36 if dropped == 4 else 0)
    assert ("identical rows count once" in line) == (dropped == 4) and (
        "in one cluster" in line or "one cluster" in line
    ) == (clusters == 12)
    assert (
        line in "\n".join(card_markdown(often.card, ()))
        and json.loads(card.to_json())["headline"].get("clusters") == clusters
    )


INDEPENDENT = {
    "different tasks": [{**row} for row in TWELVE],
    "one task": [{**row, "prompt": "Write"} for row in TWELVE],
    "one ID, such as the name of the data": [{**row, "id": "essays"} for row in TWELVE],
    "no task": [{k: v for k, v in row.items() if k != "prompt"} for row in TWELVE],
    "the same answer to other tasks": [{**row, "response": "word word"} for row in TWELVE],
    "one question about other documents": [
        {**row, "prompt": "Sum up", "context": row["id"]} for row in TWELVE
    ],
    "a named cluster": [
        {**row, "prompt": f"Write {n % 3}", "own": n} for n, row in enumerate(TWELVE)
    ],
}


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("case", INDEPENDENT)
def test_rows_that_are_no_repeats_count_each(tmp_path, case):
    columns = {"cluster": "own"} if case == "a named cluster" else {}
    result = validated(INDEPENDENT[case], tmp_path, columns=columns)
    assert (result.headline.n, result.headline.clusters, result.card.repeats_line()) == (
        12,
        None,
        "",
    )


def test_a_named_column_of_clusters_counts(tmp_path):
    rows = [{**row, "file": n % 4} for n, row in enumerate(TWELVE)]
    assert validated(rows, tmp_path, columns={"cluster": "file"}).headline.clusters == 4
    assert not validated(rows, tmp_path, columns={"cluster": "file"}).trusted


@pytest.mark.parametrize(("tasks", "too_few"), [(9, True), (10, False)])
def test_the_line_says_what_too_few_clusters_prove(tmp_path, tasks, too_few):
    """Nine clusters prove nothing, however many rows they have, and how to count each row is
    said.
    """
    rows = [
        {"prompt": f"Write {n % tasks}", "response": "word " * n, "label": n} for n in range(1, 61)
    ]
    result = validated(rows, tmp_path)
    line = result.card.repeats_line()
    assert f"60 rows of {tasks} clusters" in line and result.trusted is not too_few
    assert ("fewer than 10 prove nothing" in line, "-c cluster=COLUMN" in line) == (
        too_few,
        too_few,
    )


@pytest.mark.slow
def test_a_line_says_so_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("grader.py").write_text("def length(text):\n    return min(1.0, len(text.split()) / 30)\n")
    Path("often.jsonl").write_text("".join(json.dumps(row) + "\n" for row in SEVEN * 8))
    assert (
        main(["validate", "often.jsonl", "--grader", "grader.py:length", "--cards-dir", "cards"])
        == 3
    )
    out = capsys.readouterr().out
    assert out.startswith("not shown to be better than chance")
    assert "49 rows equal to another one: identical rows count once" in out
    main(
        [
            "validate",
            "often.jsonl",
            "--grader",
            "grader.py:length",
            "--cards-dir",
            "cards",
            "--json",
        ]
    )
    assert json.loads(capsys.readouterr().out)["repeated_rows"] == 49


def test_recorded_outputs_of_identical_rows_are_no_repeats(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [
        {**row, "output": f"Score: {n % 5 + 1}/5", "label": n % 3} for n, row in enumerate(TWELVE)
    ]
    Path("often.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 3))
    main(
        [
            "validate",
            "often.jsonl",
            "--recorded",
            "score_of",
            "-c",
            "output=output",
            "--cards-dir",
            "cards",
            "--json",
        ]
    )
    card = json.loads(capsys.readouterr().out)
    assert (card["rows"], card["repeated_rows"]) == (12, 24)
    assert "noise sigma" not in {measure["name"] for measure in card["measures"]}


def test_equal_cases_from_python_count_once(tmp_path):
    """Cases with one ID and other contents are an error: a verdict would be of either."""
    cases = [
        LabelledCase(str(n), "score", Task(f"q{n}"), ("word " * n + "x",), label=n)
        for n in range(12)
    ]
    result = validated(cases * 3, tmp_path)
    assert (result.card.rows, result.card.repeated_rows) == (12, 24)
    with pytest.raises(ConfigError, match="the ID '0' is that of two different cases"):
        validated([*cases, replace(cases[1], id="0")], tmp_path)


def test_two_graders_are_compared_by_clusters():
    """The same difference of repeated rows has no narrower interval."""

    def other(text):
        return (len(text) * 37 % 11) / 11

    found = []
    for rows in (TWELVE, TWELVE * 5, [{**row, "day": k} for k in range(5) for row in TWELVE]):
        cases = read_cases(rows, kind="score").cases
        sides = [
            [Verdict(case.id, (grade(case.responses[0]),)) for case in cases]
            for grade in (length, other)
        ]
        found.append(compare_verdicts(cases, *sides).difference)
    assert found[0] == found[1] and (found[2].clusters, found[2].rows) == (12, 60)


def chance_is_rejected(kind, seed, repeats=5):
    """Return whether a grader that guesses is found to be better than chance on 24 rows that are
    repeated, not quite equal.
    """
    rng = random.Random(f"{kind} {seed}")
    cases, verdicts = [], []
    for n in range(24):
        label, score = rng.random(), rng.random()
        for k in range(repeats):
            id = f"{n}-{k}"
            if kind == "pair":
                cases.append(
                    LabelledCase(
                        id, kind, Task(f"q{n}"), ("a", "b"), ranks=(0, 1) if label < 0.5 else (1, 0)
                    )
                )
                verdicts.append(Verdict(id, (score, 0.5)))
            elif kind == "ranking":
                order = tuple(rng.sample(range(3), 3)) if not k else order  # noqa: F821
                guess = tuple(rng.random() for _ in range(3)) if not k else guess  # noqa: F821
                cases.append(LabelledCase(id, kind, Task(f"q{n}"), ("a", "b", "c"), ranks=order))
                verdicts.append(Verdict(id, guess))
            else:
                cases.append(
                    LabelledCase(
                        id,
                        kind,
                        Task(f"q{n}"),
                        ("a",),
                        label=label if kind == "score" else float(label < 0.5),
                    )
                )
                verdicts.append(Verdict(id, (score,)))
    rows = verdicts_by_case(with_clusters(cases), verdicts)
    return HEADLINES[kind](rows).beats_chance


HEADLINES = {
    "score": lambda rows: report._spearman(rows, 0),
    "pass": lambda rows: report._balanced_accuracy(rows, 0.5),
    "pair": report._preference_measure,
    "ranking": lambda rows: report.ranking_report(rows, ReportConfig()).headline,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pass", "pair"])
def test_a_judge_that_guesses_is_not_better_than_chance_for_repeats(kind, monkeypatch):
    """Of 200 guessing judges at most 5 (2.5 %) are found better than chance; where each repeat
    counts as a row, 20 are.
    """
    assert sum(chance_is_rejected(kind, seed) for seed in range(200)) <= 5
    monkeypatch.setattr(f"{__name__}.with_clusters", lambda cases: cases)
    assert sum(chance_is_rejected(kind, seed) for seed in range(200)) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["score", "ranking"])
def test_correlations_of_guesses_are_not_better_than_chance_for_repeats(kind):
    """Of 100 guessing judges at most 5 are found: a bootstrap over 24 clusters is a little too
    narrow, also without repeats.
    """
    assert sum(chance_is_rejected(kind, seed) for seed in range(100)) <= 5


def test_attacks_on_one_answer_are_one_cluster():
    case = LabelledCase("1", "pass", Task("q"), ("a",), label=0)
    cases = [replace(case, id=f"1+{n}", group="x") for n in range(20)]
    (every, of_kind) = attack_success_rates(
        cases, {each.id: [Verdict(each.id, (1.0,))] for each in cases}
    )
    assert (every.n, every.clusters, every.low) == (20, 1, None) and of_kind.clusters == 1


# ---- a score for each answer

EACH = {
    "UltraFeedback": (
        {
            "instruction": "q",
            "completions": [
                {"response": t, "overall_score": s} for t, s in (("x", 5), ("y", 8.5), ("z", 5))
            ],
        },
        "ranking",
        (1, 0, 1),
    ),
    "distilabel": (
        {"instruction": "q", "generations": ["x", "y"], "ratings": [5.0, 3.0]},
        "pair",
        (0, 1),
    ),
    "a tie": ({"prompt": "q", "responses": ["x", "y"], "ratings": [4, 4]}, "pair", (0, 0)),
    "three": (
        {"prompt": "q", "responses": ["x", "y", "z"], "ratings": [1, 2, 3]},
        "ranking",
        (2, 1, 0),
    ),
    "an answer without a score": (
        {"prompt": "q", "responses": ["x", "y", "z"], "ratings": [1, None, 3]},
        "pair",
        (1, 0),
    ),
    "scores": ({"prompt": "q", "responses": ["x", "y"], "scores": [0.25, 0.5]}, "pair", (1, 0)),
    "rewards": ({"prompt": "q", "responses": ["x", "y"], "rewards": [-1.5, 2]}, "pair", (1, 0)),
    "texts of numbers": (
        {"prompt": "q", "responses": ["x", "y"], "ratings": ["4", "5"]},
        "pair",
        (1, 0),
    ),
    "as text": ({"prompt": "q", "responses": '["x", "y"]', "ratings": "[4, 5]"}, "pair", (1, 0)),
    "1 and 0": ({"prompt": "q", "responses": ["x", "y"], "ratings": [1, 0]}, "pair", (0, 1)),
}
VOTES = {
    "three votes on two answers": (
        {"prompt": "q", "responses": ["x", "y"], "ratings": [2, 2, 1]},
        "pair",
        (1, 0),
        (2, 2, 1),
    ),
    "words": (
        {"prompt": "q", "responses": ["x", "y"], "ratings": ["A", "A"]},
        "pair",
        (0, 1),
        (1, 1),
    ),
    "two answers in columns": (
        {"prompt": "q", "response_a": "x", "response_b": "y", "ratings": [1, 1]},
        "pair",
        (0, 1),
        (1, 1),
    ),
    "raters of one answer": (
        {"prompt": "q", "response": "x", "ratings": [4, 5]},
        "score",
        None,
        (4, 5),
    ),
    "a label beside them": (
        {"prompt": "q", "responses": ["x", "y"], "label": "B", "ratings": [2, 2]},
        "pair",
        (1, 0),
        (2, 2),
    ),
    "a ranking beside them": (
        {"prompt": "q", "responses": ["x", "y", "z"], "ranking": [1, 2, 3], "ratings": [1, 2, 3]},
        "ranking",
        (0, 1, 2),
        (),
    ),
}


@pytest.mark.parametrize("case", EACH)
def test_as_many_ratings_as_answers_are_scores_of_them(case):
    row, kind, ranks = EACH[case]
    found = read_cases([row])
    assert (found.kind, found.cases[0].ranks, found.cases[0].ratings) == (kind, ranks, ())
    assert any("a score of each answer" in note for note in found.column_notes)


@pytest.mark.parametrize("case", VOTES)
def test_votes_of_people_stay_votes(case):
    row, kind, ranks, ratings = VOTES[case]
    found = read_cases([row])
    assert (found.kind, found.cases[0].ranks, found.cases[0].ratings) == (kind, ranks, ratings)


def test_a_row_without_ratings_is_left_out():
    """It does not make votes of the scores of the others."""
    rows = [
        {"prompt": f"q{n}", "responses": ["x", "y"], "ratings": r}
        for n, r in enumerate([[4, 5], None, [2, 1]])
    ]
    found = read_cases(rows)
    assert [case.ranks for case in found.cases] == [(1, 0), (0, 1)]
    assert "2 answers, and there are 0 scores" in found.skipped_rows[0].message


@pytest.mark.parametrize(
    "odd", [["4", "N/A"], [4, 5, 3], ["A", "B"], [4, {"Rating": 5}], "none given"]
)
def test_a_row_with_other_ratings_is_left_out(odd):
    """One odd row does not make votes of the scores of the others; where most rows are odd, or may
    be votes, they are no scores.
    """
    good = [{"prompt": f"q{n}", "responses": ["x", "y"], "ratings": [5, n % 5]} for n in range(6)]
    found = read_cases([*good, {**good[0], "prompt": "q", "ratings": odd}])
    assert (found.kind, len(found.cases), len(found.skipped_rows)) == ("pair", 6, 1)
    assert any("a score of each answer" in note for note in found.column_notes)
    votes = [{**row, "ratings": [2, 2] if n % 2 else [2, 1, 2]} for n, row in enumerate(good)]
    assert {case.ranks for case in read_cases(votes).cases} == {(1, 0)}


def test_what_may_be_two_votes_is_asked_back():
    """Two numbers 1 and 2 for two answers are either; both answers to the question work."""
    rows = [
        {"prompt": f"q{n}", "responses": ["x", f"y{n}"], "ratings": r}
        for n, r in enumerate([[1, 2], [2, 2], [1, 1]])
    ]
    with pytest.raises(ConfigError, match="a score of each or two votes"):
        read_cases(rows)
    assert [case.ranks for case in read_cases(rows, kind="ranking").cases] == [
        (1, 0),
        (0, 0),
        (0, 0),
    ]
    assert [
        case.ranks for case in read_cases(rows, {"label:1": "first", "label:2": "second"}).cases
    ] == [(1, 0), (0, 1)]


# ---- scales that run the other way

FALLING = [
    {"id": n, "prompt": f"q{n}", "response": "word " * n, "label": 40 - n} for n in range(1, 25)
]


@pytest.mark.slow
def test_a_scale_that_runs_the_other_way_gets_a_hint(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("grader.py").write_text("def length(text):\n    return min(1.0, len(text.split()) / 30)\n")
    Path("falling.jsonl").write_text("".join(json.dumps(row) + "\n" for row in FALLING))
    command = ["validate", "falling.jsonl", "--grader", "grader.py:length", "--cards-dir", "cards"]
    assert main(command) == 3
    assert "if lower labels are better, give --lower-is-better" in capsys.readouterr().out
    assert main([*command, "--lower-is-better"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("better than chance") and "--lower-is-better" not in out
    assert main([*command, "--higher-is-better"]) == 3


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("scale", [None, (0, 50)])
def test_lower_is_better_mirrors_the_labels(tmp_path, scale):
    """Agreement has the other sign, and the range of the labels stays."""
    higher, lower = (
        validated(FALLING, tmp_path, lower_is_better=each, scale=scale) for each in (None, True)
    )
    assert lower.headline.value == pytest.approx(-higher.headline.value)
    if scale:
        assert lower.measures["leniency"].value is not None
    assert not lower.card.headline.value < 0


NAMES = {
    "wer": True,
    "toxicity": True,
    "val_loss": True,
    "Perplexity": True,
    "fpr": True,
    "violations": True,
    "human_score": False,
    "overall": False,
}


@pytest.mark.slow(but_each=9)
@pytest.mark.parametrize("name", NAMES)
def test_labels_where_lower_is_usually_better_are_asked_back(tmp_path, name):
    rows = [
        {"id": row["id"], "prompt": row["prompt"], "response": row["response"], name: row["label"]}
        for row in FALLING
    ]
    if NAMES[name]:
        with pytest.raises(
            ConfigError, match="lower may be better for .*--lower-is-better or --higher-is-better"
        ):
            validated(rows, tmp_path, columns={"label": name})
        with pytest.raises(ConfigError, match="lower may be better"):
            compare_graders_sync(rows, length, length, columns={"label": name}, cards_dir=tmp_path)
        assert validated(rows, tmp_path, columns={"label": name}, lower_is_better=True).trusted
    assert not validated(rows, tmp_path, columns={"label": name}, lower_is_better=False).trusted


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [("toxic", 1, 0), ("hallucination", "yes", "no"), ("error", "True", "False")],
)
def test_words_where_no_is_usually_better_are_asked_back(tmp_path, name, bad, good):
    """What a value means is the answer; --lower-is-better is about numbers, and is not proposed."""
    rows = [
        {"prompt": f"q{n}", "response": "word " * n, name: good if n > 12 else bad}
        for n in range(1, 25)
    ]
    with pytest.raises(ConfigError, match=f"lower may be better for '{name}'") as caught:
        validated(rows, tmp_path, columns={"label": name})
    assert "label:1=fail" in str(caught.value) and "--lower-is-better" not in str(caught.value)
    said = {"label": name, f"label:{bad}": "fail", f"label:{good}": "pass"}
    assert validated(rows, tmp_path, columns=said).trusted
    assert not validated(rows, tmp_path, columns={"label": name}, lower_is_better=False).trusted


def test_words_have_no_direction(tmp_path):
    with pytest.raises(ConfigError, match="say what a value means, such as label:1=fail"):
        validated(SEVEN, tmp_path, lower_is_better=True)


# ---- labels in words

LABELS = {
    "C and I": (["C", "I"], "pass", [1, 0]),
    "CORRECT and INCORRECT": (["CORRECT", "INCORRECT"], "pass", [1, 0]),
    "True and False": (["True", "False"], "pass", [1, 0]),
    "percent": (["60%", "75%"], "score", [0.6, 0.75]),
    "fractions": (["6/10", "3/4"], "score", [0.6, 0.75]),
    "commas": (["3,5", "4,05"], "score", [3.5, 4.05]),
    "means of people with commas": (["3,5", "4,25", "3,75"], "score", [3.5, 4.25, 3.75]),
    "Inspect's four": (["C", "P"], "score", [1, 0.5]),
}
NO_LABELS = {
    "two labels in a cell": (["3,4", "4,5"], "'3,4' may be a number or two labels"),
    "two labels from 1 to 10": (["3,10", "4,5"], "'3,10' may be a number or two labels"),
    "two labels from 0 to 100": (["70,85", "5,20"], "'70,85' may be a number or two labels"),
    "options": (["A", "D"], "'A' is not a number"),
    "more than all": (["120%", "0.5"], "'120%' is no share from 0 to 1"),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_in_words_are_read(case):
    values, kind, numbers = LABELS[case]
    found = read_cases(
        [{"prompt": f"q{n}", "response": "x", "label": value} for n, value in enumerate(values)]
    )
    assert (found.kind, [each.label for each in found.cases]) == (kind, numbers)


@pytest.mark.parametrize("case", NO_LABELS)
def test_other_labels_are_refused_with_the_value(case):
    values, words = NO_LABELS[case]
    rows = [
        {"prompt": f"q{n}", "response": "x", "label": value}
        for n, value in enumerate([*values, 0.5])
    ]
    assert any(words in row.message for row in read_cases(rows).skipped_rows)


COLUMNS = {
    "BigCodeBench": {
        "complete_prompt": "def f():",
        "instruct_prompt": "q{}",
        "response": "r",
        "score": 0.5,
    },
    "LiveCodeBench": {
        "question_title": "t",
        "question_content": "q{}",
        "response": "r",
        "score": 0.5,
    },
    "HumanEval": {"task_id": "t{}", "prompt": "q{}", "completion": "c", "passed": True},
    "ragas": {
        "user_input": "q{}",
        "retrieved_contexts": ["c"],
        "response": "r",
        "reference": "x",
        "score": 0.5,
    },
    "DeepEval": {
        "input": "q{}",
        "actual_output": "r",
        "expected_output": "x",
        "retrieval_context": ["c"],
        "score": 0.5,
    },
}


@pytest.mark.parametrize("program", COLUMNS)
def test_columns_of_other_programs_are_known(program):
    rows = [
        {k: v.format(n) if isinstance(v, str) else v for k, v in COLUMNS[program].items()}
        for n in range(4)
    ]
    found = read_cases(rows)
    assert [case.task.prompt for case in found.cases] == [
        f"q{n}" for n in range(4)
    ] and not found.skipped_rows
    if program == "HumanEval":
        assert [case.id for case in found.cases] == [f"t{n}" for n in range(4)]
    elif program in {"ragas", "DeepEval"}:
        assert (found.cases[0].task.context, found.cases[0].task.reference) == ("c", "x")


LANGSMITH = {"inputs": {"question": "q{}"}, "outputs": {"answer": "r"}, "feedback": {"score": 1}}
OF_LANGSMITH = {
    "prompt": "inputs.question",
    "response": "outputs.answer",
    "label": "feedback.score",
}
TWO = {"prompt": "q{}", "one": "r", "two": "s", "better": "first"}
# a row, the columns that are named, and the kind, the responses and the label that are read
NAMED = {
    "LangSmith": (LANGSMITH, OF_LANGSMITH, ("pass", ("r",), 1)),
    "LangSmith's reference": (
        {**LANGSMITH, "output": "r", "outputs": {"answer": "x"}},
        {"prompt": "inputs.question", "reference": "outputs.answer", "label": "feedback.score"},
        ("pass", ("r",), 1),
    ),
    "Langfuse": (
        {"input": {"query": "q{}"}, "output": {"text": "r"}, "scores": {"human": 0.5}, "outputs": None},
        {"prompt": "input.query", "response": "output.text", "label": "scores.human"},
        ("score", ("r",), 0.5),
    ),
    "one answer beside a list": (
        {"question": "q{}", "mine": "r", "responses": ["r", "s"], "label": 1}, {"response": "mine"}, ("pass", ("r",), 1)
    ),
    "one answer beside a chosen one": (
        {"prompt": "q{}", "mine": "r", "chosen": "x", "rejected": "y", "label": 1}, {"response": "mine"}, ("pass", ("r",), 1)
    ),
    "one answer beside a pair": (
        {"prompt": "q{}", "mine": "r", "answer_a": "x", "answer_b": "y", "label": 1}, {"response": "mine"}, ("pass", ("r",), 1)
    ),
    "a list beside a pair": (
        {"prompt": "q{}", "both": ["r", "s"], "answer_a": "x", "answer_b": "y", "winner": "A"}, {"responses": "both"}, ("pair", ("r", "s"), (1, 2))
    ),
    "a list beside a chosen one": (
        {"prompt": "q{}", "both": ["r", "s"], "chosen": "x", "rejected": "y", "winner": "A"}, {"responses": "both"}, ("pair", ("r", "s"), (1, 2))
    ),
    "chosen beside a pair": (
        {"prompt": "q{}", "r": "r", "s": "s", "answer_a": "x", "answer_b": "y"}, {"chosen": "r", "rejected": "s"}, ("pair", ("r", "s"), (1, 2))
    ),
    "a pair beside a list": (
        {**TWO, "responses": ["x", "y"]}, {"response_a": "one", "response_b": "two"}, ("pair", ("r", "s"), (1, 2))
    ),
    "a prompt beside messages": (
        {"mine": "q{}", "messages": "none", "response": "r", "label": 1}, {"prompt": "mine"}, ("pass", ("r",), 1)
    ),
    "a label beside ranks": (
        {"prompt": "q{}", "responses": ["r", "s"], "ranks": "?", "mine": "A"}, {"label": "mine"}, ("pair", ("r", "s"), (1, 2))
    ),
    "an order beside ranks": (
        {"prompt": "q{}", "responses": ["r", "s"], "ranks": "?", "mine": [1, 2]}, {"order": "mine"}, ("ranking", ("r", "s"), (1, 2))
    ),
    "a label beside notes": (
        {"prompt": "q{}", "response": "r", "annotations": "fine", "mine": 1}, {"label": "mine"}, ("pass", ("r",), 1)
    ),
    "ratings beside two labels": (
        {"prompt": "q{}", "response": "r", "score": "?", "human": "?", "mine": [1, 1]}, {"ratings": "mine"}, ("pass", ("r",), 1)
    ),
    "a reference whose name is an answer's": (
        {"question": "q{}", "answer": "x", "output": "r", "label": 1}, {"reference": "answer"}, ("pass", ("r",), 1)
    ),
    "a context that is the prompt": ({"question": "q{}", "response": "r", "label": 1}, {"context": "question"}, ("pass", ("r",), 1)),
    "an answer of a pair that is the reference": (
        {"prompt": "q{}", "chosen": "x", "rejected": "y"}, {"reference": "chosen"}, ("pair", ("x", "y"), (1, 2))
    ),
    "no list": ({"prompt": "q{}", "response": "r", "outputs": ["x"], "label": 1}, {"responses": ""}, ("pass", ("r",), 1)),
    "no context": (
        {"prompt": "q{}", "response": "r", "context": {"a": 1}, "label": 1}, {"context": ""}, ("pass", ("r",), 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMED)
def test_a_guessed_column_is_not_in_the_way_of_a_named_one(case):
    row, columns, (kind, responses, label) = NAMED[case]
    found = read_cases(
        [json.loads(json.dumps(row).replace("q{}", f"q{n}")) for n in range(4)], columns
    )
    assert [each.task.prompt for each in found.cases] == [
        f"q{n}" for n in range(4)
    ] and not found.skipped_rows
    first = found.cases[0]
    ranks_by_text = dict(zip(first.responses, first.ranks or (), strict=bool(first.ranks)))
    assert found.kind == kind and set(first.responses) == set(responses)
    assert (
        ([ranks_by_text[text] + 1 for text in responses] == list(label))
        if first.ranks
        else first.label == label
    )
    assert first.task.reference == ("x" if "reference" in columns else None)


NOT_THERE = {
    "a named column": ({"response": "outputs.text"}, "there is no column 'outputs.text'"),
    "the other half": ({"response_a": "answer"}, "no column is known to be the response_b"),
    "no response": ({"response": ""}, "no column is known to be the response"),
}


@pytest.mark.parametrize("case", NOT_THERE)
def test_a_named_column_that_is_not_there_is_refused(case):
    columns, words = NOT_THERE[case]
    with pytest.raises(ConfigError, match=words):
        read_cases([{"prompt": "q", "answer": "r", "label": 1}], columns)


def test_a_column_of_which_there_is_none_is_said_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"prompt": f"q{n}", "response": "word " * n, "context": {"a": 1}, "label": int(n < 6)}
        for n in range(1, 13)
    ]
    Path("x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["validate", "x.jsonl", "--grader", "words:1-5"]) == 2
    assert main(["validate", "x.jsonl", "--grader", "words:1-5", "-c", "context="]) == 0
    assert "12 of 12 judged" in capsys.readouterr().err


# ---- intervals

ROWS = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 4)), min_size=2, max_size=30
)


@given(ROWS, st.sampled_from(["score", "pass", "pair", "ranking"]))
@settings(max_examples=20, deadline=None)
def test_no_interval_leaves_the_scale(rows, kind):
    """Shares lie from 0 to 1, correlations, kappa and differences from -1 to 1, with and without
    clusters.
    """
    cases, verdicts = [], []
    for n, (label, score, cluster) in enumerate(rows):
        texts = ("a",) if kind in {"score", "pass"} else ("a", "bb")
        about = (
            {"ranks": (0, 1) if label < 0.5 else (1, 0)}
            if len(texts) > 1
            else {"label": round(label) if kind == "pass" else label}
        )
        cases.append(
            LabelledCase(str(n), kind, Task("q"), texts, cluster=str(cluster or ""), **about)
        )
        verdicts.append(Verdict(str(n), (score,) if len(texts) == 1 else (score, 0.5)))
    report = build_report(cases, verdicts, ReportConfig(scale=(0, 1)))
    signed = {"Pearson", "Spearman", "Kendall tau-b", "Cohen's kappa", "verbosity", "leniency"}
    for measure in report.measures:
        lowest = -1 if measure.name in signed else 0
        if measure.low is not None:
            assert lowest <= measure.low <= measure.high <= 1, measure
            assert measure.clusters is None or measure.clusters < measure.n
