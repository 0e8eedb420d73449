"""Repeats of a task: epochs, samples and equal tasks under different IDs count as one cluster, and
all of their answers count.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redraft
from cpu_time import least_seconds
from redraft.cli import main
from redraft.comparison import compare_sync
from redraft.comparison.labels import read_labels
from redraft.comparison.results import ResultRow, RunResults, pair_results
from redraft.models import CallableModel
from redraft.viewer.figures import compare_runs
from redraft.viewer.index import RunIndex

# of the texts A and B; the first answers of both runs are the same
A_SCORES, B_SCORES = ((1.0, 0.0), (1.0, 1.0))
TASKS = 24


def samples(scores, form, tasks=TASKS):
    """Return the rows of a run with two samples a task, one after the other: the first is the text
    A, the second A or B.
    """
    rows = []
    for sample, score in enumerate(scores):
        for k in range(tasks):
            row = {
                "prompt": f"Question {k}: A or B?",
                "response": "A" if score else "B",
                "score": score,
            }
            if form == "repeated IDs":
                row["id"] = k
            if form == "other IDs":
                row["id"] = f"{k}-{sample}"
            if form == "IDs without a task":
                row = {"id": k, "response": row["response"], "score": score}
            rows.append(row)
    return rows


def inspect_log(scores, tasks=TASKS):
    """Return a log of Inspect with an epoch for each score."""
    listed = [
        {
            "id": k,
            "epoch": epoch + 1,
            "input": f"Question {k}: A or B?",
            "target": "A",
            "output": {
                "choices": [{"message": {"role": "assistant", "content": "A" if score else "B"}}]
            },
            "scores": {"match": {"value": "C" if score else "I"}},
        }
        for epoch, score in enumerate(scores)
        for k in range(tasks)
    ]
    return {"eval": {}, "samples": listed}


def write_sides(folder, form):
    """Return what stands for the two runs, as arguments of the commands and of Python."""
    paths = []
    for name, scores in (("a", A_SCORES), ("b", B_SCORES)):
        path = folder / (f"{name}.json" if form == "Inspect" else f"{name}.jsonl")
        rows = [] if form == "Inspect" else samples(scores, form)
        path.write_text(
            json.dumps(inspect_log(scores))
            if form == "Inspect"
            else "".join(f"{json.dumps(row)}\n" for row in rows)
        )
        paths.append(str(path))
    return paths


FORMS = ["repeated IDs", "other IDs", "no ID", "IDs without a task", "Inspect"]


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("form", FORMS)
def test_samples_whose_first_answers_coincide_differ(tmp_path, monkeypatch, capsys, form):
    """Half as good is worse, and the gate fails, also if an undecided one passed; the tasks are the
    clusters.
    """
    monkeypatch.chdir(tmp_path)
    a, b = write_sides(tmp_path, form)
    report = compare_sync(a, b)
    assert (report.verdict, report.same_answers, report.difference.clusters) == (
        "better",
        False,
        TASKS,
    )
    assert report.difference.value == pytest.approx(0.5)
    assert compare_sync(b, a).gate == "worse"
    assert report.repeats == (0 if form == "other IDs" else 2 * TASKS)
    assert report.equal_tasks == (TASKS if form == "other IDs" else 0)
    assert ("equal tasks are one cluster" in "\n".join(report.summary())) == (form == "other IDs")
    assert main(["compare", a, b]) == 0
    assert "is better than" in capsys.readouterr().out
    assert main(["gate", b, a, "--undecided", "pass"]) == 4


# ---- with labels of people


def repeated_worlds(form):
    """Return two runs of samples that differ in their second texts only, which people rate lower in
    B; the scores say higher.
    """
    runs = []
    for _side, second, scores in (("a", "good", (0.5, 0.4)), ("b", "bad", (0.5, 0.8))):
        rows = []
        for k in range(40):
            for sample, (text, score) in enumerate(zip(("same", second), scores, strict=True)):
                row = {
                    "id": f"{k}" if form == "repeated IDs" else f"{k}-{sample}",
                    "prompt": f"T{k}",
                    "response": f"{text} {k}",
                }
                rows.append({**row, "score": score + 0.01 * (k % 5)})
        runs.append(
            rows
            if form != "no ID"
            else [{name: row[name] for name in row if name != "id"} for row in rows]
        )
    return runs


def answer_labels(texts):
    ratings = {"same": 0.5, "good": 0.9, "bad": 0.3}
    return [
        {"prompt": f"T{k}", "response": f"{text} {k}", "label": ratings[text] + 0.02 * (k % 3)}
        for k in range(16)
        for text in texts
    ]


def pair_labels(pairs):
    """Return the preferences of people, who prefer the first of each two texts."""
    return [
        {"prompt": f"T{k}", "response_a": f"{one} {k}", "response_b": f"{other} {k}", "label": "a"}
        for k in range(16)
        for one, other in pairs
    ]


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("form", ["repeated IDs", "other IDs", "no ID"])
@pytest.mark.parametrize(
    ("labels", "value"),
    [
        # half of the difference of the second texts
        (answer_labels(["same", "good", "bad"]), -0.3),
        (answer_labels(["good", "bad"]), -0.3),  # the text that both have needs no label
        # of 4 meetings, 3 lose and 1 is a tie
        (pair_labels([("good", "bad"), ("good", "same"), ("same", "bad")]), -0.375),
    ],
)
def test_labels_are_of_all_samples(form, labels, value):
    """What people say of second samples counts, although the first ones are the same in both
    runs.
    """
    a, b = repeated_worlds(form)
    assert compare_sync(a, b).verdict == "better"
    report = compare_sync(a, b, labels=labels)
    assert (report.evidence, report.verdict) == ("labels", "worse")
    # there, each sample is a row, and meets the one of the other run with its ID
    if form != "other IDs":
        assert report.people.labels_only.value == pytest.approx(value)
        assert report.unused_labels == {}
    assert report.people.estimate.clusters == 16
    assert compare_sync(b, a, labels=labels).verdict == "better"


def test_errors_are_of_each_sample():
    """If only the graders differ, the score of each sample is held against the label of its own
    text.
    """
    rows = [
        {"id": k, "prompt": f"T{k}", "response": f"{text} {k}"}
        for k in range(20)
        for text in ("good", "bad")
    ]
    right = [{**row, "score": 0.9 if row["response"].startswith("good") else 0.3} for row in rows]
    swapped = [
        {**row, "score": 0.3 if row["response"].startswith("good") else 0.9} for row in rows
    ]  # the mean of each task is right
    labels = [
        {"prompt": row["prompt"], "response": row["response"], "label": row["score"]}
        for row in right
    ]
    report = compare_sync(swapped, right, labels=labels)
    assert (report.same_answers, report.evidence, report.verdict) == (True, "errors", "better")
    assert report.errors.value == pytest.approx(0.6)


@pytest.mark.slow
def test_labels_of_many_samples_of_a_task_take_linear_time():
    """Ten thousand samples of one task are read as fast as ten thousand tasks."""
    pairs = pair_results(
        *(
            RunResults(s, "table", [ResultRow("t", "", 0.5, f"{s}{n}") for n in range(10_000)])
            for s in "ab"
        )
    )
    labels = [
        {"id": "t", "response_a": f"a{n}", "response_b": f"b{n}", "winner": "a"}
        for n in range(10_000)
    ]
    assert least_seconds(lambda: read_labels(labels, pairs.pairs), 8) < 8


def test_the_order_of_samples_does_not_matter():
    """The same texts in another order are the same answers, and so are twice as many of each."""
    a, b = repeated_worlds("repeated IDs")
    assert compare_sync(a, a[::-1]).same_answers
    assert compare_sync(a, [*a, *a]).same_answers
    assert not compare_sync(a, b).same_answers
    assert not compare_sync(a, [*a, *a[::2]]).same_answers


def test_a_judge_sees_all_samples(tmp_path):
    """Each sample of A meets one of B; the win rate of a task is the mean of these, and equal texts
    take no call.
    """
    a, b = repeated_worlds("repeated IDs")

    def prefer_good(messages):
        shown = messages[-1]["content"]
        winner = (
            "first" if "good" in shown.split("<second-")[0].rsplit("<first-", 1)[-1] else "second"
        )
        return json.dumps({"reason": "because", "change": [], "winner": winner, "done": False})

    judge = redraft.ScriptedModel([prefer_good] * 80, name="judge")
    report = compare_sync(a, b, graders="pairwise", judge=judge, journal=tmp_path / "j.journal")
    assert (report.wins.value, report.wins.pairs, judge.calls) == (0.25, 40, 80)
    assert report.verdict == "worse"


# ---- clusters


def equal_task_rows(shift, same=("prompt", "context", "reference")):
    """Return rows with their own IDs, four for each task; tasks differ in the columns that are not
    in `same`.
    """
    columns = ("prompt", "context", "reference")
    return [
        {
            "id": n,
            "doc": n // 8,
            **{name: f"{name} {n // 4 if name in same else n}" for name in columns},
            "score": shift + n % 4 / 10,
        }
        for n in range(48)
    ]


@pytest.mark.parametrize(
    ("same", "cluster", "clusters", "said"),
    [
        (("prompt", "context", "reference"), None, 12, True),
        (("prompt", "context"), None, 48, False),  # another reference is another task
        (("prompt", "reference"), None, 48, False),
        (("context", "reference"), None, 48, False),
        (("prompt", "context", "reference"), "doc", 6, False),
        (("prompt", "context", "reference"), "id", 48, False),
    ],
)
def test_equal_tasks_are_one_cluster_unless_another_is_named(same, cluster, clusters, said):
    """The prompt, the context and the reference decide; one line says so."""
    report = compare_sync(equal_task_rows(0.3, same), equal_task_rows(0.5, same), cluster=cluster)
    lines = [line for line in report.summary() if "equal tasks are one cluster" in line]
    assert (report.difference.rows, report.difference.clusters, len(lines)) == (
        48,
        clusters,
        int(said),
    )
    assert report.equal_tasks == (36 if said else 0)


def test_samples_of_one_task_have_no_interval():
    """They say nothing of other tasks, and the report says how to count each one."""
    a, b = (
        [{"id": n, "prompt": "Write", "score": base + n % 3 / 10} for n in range(30)]
        for base in (0.2, 0.6)
    )
    report = compare_sync(a, b)
    assert (report.difference.interval, report.verdict, report.gate) == (
        None,
        "undecided",
        "undecided",
    )
    assert "all rows have the same task" in "\n".join(report.summary())
    assert compare_sync(a, b, cluster="id").verdict == "better"


def test_inspect_samples_with_another_target_are_other_tasks(tmp_path):
    """Of two samples with one input, the target tells the tasks apart."""
    for name, score in (("a", 0.2), ("b", 0.4)):
        listed = [
            {
                "id": n,
                "input": "Which?",
                "target": str(n // 2),
                "output": {},
                "scores": {"s": {"value": score + n % 3 / 10}},
            }
            for n in range(20)
        ]
        (tmp_path / f"{name}.json").write_text(json.dumps({"eval": {}, "samples": listed}))
    assert (
        compare_sync(str(tmp_path / "a.json"), str(tmp_path / "b.json")).difference.clusters == 10
    )


def test_the_page_of_two_runs_has_the_same_clusters(tmp_path):
    """`view` compares two runs of equal tasks under different IDs as the command does."""
    tasks = [{"id": n, "prompt": f"Question {n // 3}"} for n in range(30)]
    paths = [tmp_path / f"{name}.jsonl" for name in "ab"]
    for path, base in zip(paths, (3, 6), strict=True):
        lengths = iter([base + n % 4 for n in range(30)] * 2)
        model = CallableModel(lambda _, lengths=lengths: "x" * next(lengths), name=path.stem)
        redraft.batch_sync(
            tasks,
            path,
            model=model,
            graders=[lambda text: len(text) / 10],
            max_iterations=0,
            max_in_flight=1,
        )
    with (
        RunIndex(tmp_path / "a.jsonl.journal", "a-jsonl", tmp_path / "cache") as a,
        RunIndex(tmp_path / "b.jsonl.journal", "b-jsonl", tmp_path / "cache") as b,
    ):
        found = compare_runs(a, b, ("a.jsonl", "b.jsonl"))
    report = compare_sync(*map(str, paths))
    assert (found.report.difference, found.report.equal_tasks) == (report.difference, 20)
    assert found.won.clusters == report.difference.clusters == 10


SCORE = st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1)
ROWS = st.lists(
    st.tuples(SCORE, SCORE, st.integers(0, 3), st.integers(0, 2)), min_size=5, max_size=16
)


def columns_of_world(rows, form):
    """Return both runs, with tasks that occur once or more often, and the labels of answers and of
    rows.
    """
    runs = [], []
    for n, (a, b, task, _) in enumerate(rows):
        for run, side, score in zip(runs, "AB", (a, b), strict=True):
            row = {
                "id": f"{n}",
                "prompt": f"T{n}" if task or n < 5 else "T",
                "kind": "xy"[n % 2],
                "response": f"{side}{n}",
                "score": score,
            }
            run.append({name: row[name] for name in row if form != "no ID" or name != "id"})
    labels = [
        {
            "prompt": f"T{n}" if task or n < 5 else "T",
            "response": f"{side}{n}",
            "label": (a, b)[side == "B"] * 0.5 + 0.1 * label,
        }
        for n, (a, b, task, label) in enumerate(rows)
        if n < max(5, len(rows) // 2)
        for side in "AB"
    ]
    return *runs, labels


def twice(rows, form):
    return [
        *rows,
        *({**row, **({"id": f"{row['id']} again"} if form == "other IDs" else {})} for row in rows),
    ]


def intervals(report):
    found = [
        report.difference,
        *report.slices["kind"].values(),
        *([report.people.estimate] if report.people else []),
    ]
    return [report.anytime, *(each.interval for each in found)]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from(["repeated IDs", "other IDs", "no ID"]), st.booleans())
def test_rows_twice_never_narrow_an_interval(rows, form, has_labels):
    """The same tasks with the same scores once more are no more evidence, whatever their IDs, with
    labels or without.
    """
    a, b, labels = columns_of_world(rows, form)
    options = {"slices": "kind", "anytime": True, "labels": labels if has_labels else None}
    once = compare_sync(a, b, **options)
    again = compare_sync(twice(a, form), twice(b, form), **options)
    for before, after in zip(intervals(once), intervals(again), strict=True):
        if before is None or after is None:
            assert before is after
        else:
            assert after[1] - after[0] >= (before[1] - before[0]) * (1 - 1e-9)
    assert again.verdict == once.verdict
    assert again.gate == once.gate
