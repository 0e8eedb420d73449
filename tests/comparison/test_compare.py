"""Comparisons: verdicts, labels of people, slices, models and prompts that are run, graders that
look again, and errors.
"""

import json
import random
import re
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from redraft.comparison import compare_sync, read_results
from redraft.errors import BudgetExhaustedError, ConfigError
from redraft.loop.records import Comparison


def run_rows(n, shift, seed, noise=0.1, answers="x"):
    """Return rows of a run: the quality of a task is the same for each seed."""
    rng, tasks = random.Random(seed), random.Random(0)
    return [
        {
            "id": str(k),
            "prompt": f"Task {k}",
            "topic": "ab"[k % 2],
            "doc": k // 3,
            "response": f"{answers} {k}",
            "score": min(1, max(0, tasks.uniform(0.3, 0.7) + shift + rng.gauss(0, noise))),
        }
        for k in range(n)
    ]


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    ("shift", "n", "margin", "verdict", "gate"),
    [
        (0.1, 100, 0.02, "better", "not worse"),
        (-0.1, 100, 0.02, "worse", "worse"),
        (0.0, 1000, 0.02, "undecided", "not worse"),
        (0.0, 30, 0.001, "undecided", "undecided"),
        (-0.03, 1000, 0.1, "worse", "not worse"),
    ],
)
def test_three_answers(shift, n, margin, verdict, gate):
    """Better, worse or undecided; the gate allows a loss within the margin."""
    report = compare_sync(run_rows(n, 0, 1), run_rows(n, shift, 2, answers="y"), margin=margin)
    assert (report.verdict, report.gate) == (verdict, gate)
    assert (report.a, report.b) == ("rows (A)", "rows (B)")
    assert (verdict == "undecided") == (report.rows_needed is not None)
    if gate == "undecided":
        assert "more rows would decide" in report.gate_line()
        assert report.gate_rows_needed > n
    assert json.loads(json.dumps(report.as_data()))["gate"] == gate
    assert report.difference.wins + report.difference.ties + report.difference.losses == n


@given(st.permutations(range(12)), st.booleans())
def test_rows_are_paired_by_id_or_task(order, by_task):
    """Whatever their order: each row of B is compared with the row of A of its task."""
    a = [{"id": n, "prompt": f"t{n}", "score": n / 12} for n in range(12)]
    b = [{"id": n, "prompt": f"t{n}", "score": n / 12 + 0.01} for n in order]
    if by_task:
        a, b = (
            [{name: value for name, value in row.items() if name != "id"} for row in rows]
            for rows in (a, b)
        )
    report = compare_sync(a, b)
    assert report.difference.standard_error == pytest.approx(0, abs=1e-12)
    assert report.difference.value == pytest.approx(0.01)
    assert report.paired_by == ("task" if by_task else "id")


def test_what_is_left_out_is_told():
    """Rows of one run, rows without a score, repeats and unreadable rows are counted."""
    a = [{"id": n, "score": 0.5} for n in range(10)] + [
        {"id": 3, "score": 0.7},
        {"id": "x", "score": "?"},
    ]
    b = [{"id": n, "score": None if n == 2 else 0.5} for n in range(2, 13)]
    report = compare_sync(a, b)
    assert (report.only_a, report.only_b, report.unscored_a, report.unscored_b, report.repeats) == (
        2,
        3,
        0,
        1,
        1,
    )
    assert len(report.skipped) == 1
    assert report.difference.rows == 7
    assert report.difference.mean_a == pytest.approx((0.6 + 6 * 0.5) / 7)
    assert (
        "left out: 2 only in rows (A), 3 only in rows (B), 1 without a score in rows (B), 1 unreadable"
        in report.summary()
    )


def test_answers_that_cannot_be_scored_may_hide_a_loss():
    """A candidate that fails on hard rows does not pass because of that."""
    a = [{"id": n, "score": 0.5 + 0.3 * (n % 2)} for n in range(400)]
    b = [{"id": n, "score": None if n < 40 else 0.5 + 0.3 * (n % 2)} for n in range(400)]
    report = compare_sync(a, b)
    assert report.gate == "undecided"
    assert report.worst_case.value == pytest.approx(-0.065)
    assert "40 without a score in rows (B) may hide a loss" in report.gate_line()
    assert compare_sync(b, a).gate == "not worse"


def people_rows(n, seed=5):
    """Return two runs whose judge prefers B by 0.1, although people rate A higher by 0.05, and the
    labels of people.
    """
    rng = random.Random(seed)
    a, b, people = [], [], {}
    for k in range(n):
        quality = [rng.uniform(0.3, 0.7) for _ in "ab"]
        truth = [quality[0], quality[1] - 0.05]
        a.append(
            {
                "id": str(k),
                "prompt": f"T{k}",
                "response": f"A{k}",
                "score": min(1, truth[0] + rng.gauss(0, 0.03)),
            }
        )
        b.append(
            {
                "id": str(k),
                "prompt": f"T{k}",
                "response": f"B{k}",
                "score": min(1, truth[1] + 0.15 + rng.gauss(0, 0.03)),
            }
        )
        people[str(k)] = truth
    return a, b, people


def column_labels(people, rng):
    return [{"id": id, "label_a": a, "label_b": b} for id, (a, b) in people.items()]


def answer_labels(people, rng):
    rows = [
        {"prompt": f"T{id}", "response": f"{side}{id}", "label": label}
        for id, both in people.items()
        for side, label in zip("AB", both, strict=True)
    ]
    rng.shuffle(rows)
    return rows


def preference_labels(people, rng):
    rows = []
    for id, (a, b) in people.items():
        swap = rng.random() < 0.5
        texts, better = (f"A{id}", f"B{id}"), "a" if a > b else "b"
        rows.append(
            {
                "prompt": f"T{id}",
                "response_a": texts[swap],
                "response_b": texts[not swap],
                "label": {"a": "b", "b": "a"}[better] if swap else better,
            }
        )
    return rows


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    ("labels", "unit"),
    [(column_labels, "score"), (answer_labels, "score"), (preference_labels, "preference")],
)
def test_labels_of_people_overrule_a_biased_judge(labels, unit):
    """The judge says that B is better; with labels of a part of the rows the verdict is about
    people.
    """
    a, b, people = people_rows(900)
    assert compare_sync(a, b).verdict == "better"
    labelled = {id: people[id] for id in list(people)[:300]}
    given = labels(labelled, random.Random(1))
    other = {**given[0], **{name: "other text" for name in given[0] if name.startswith("resp")}}
    report = compare_sync(
        a, b, labels=[*given, {**other, "id": "no such row"} if "id" in other else other]
    )
    estimate = report.people.estimate
    true = sum(y - x if unit == "score" else (y > x) - 0.5 for x, y in people.values()) / len(
        people
    )
    assert report.verdict == "worse"
    assert report.evidence == "labels"
    assert estimate.interval[0] <= true <= estimate.interval[1]
    assert (report.people.unit, estimate.labels, estimate.unlabelled) == (unit, 300, 600)
    assert report.unused_labels == {"of other answers": 1}
    assert "people" in "\n".join(report.summary())
    alone = report.people.labels_only.interval
    assert estimate.interval[1] - estimate.interval[0] < alone[1] - alone[0]


@pytest.mark.slow
def test_few_labels_say_how_many_more_are_needed():
    """An undecided verdict names a number of labels, and is decided with about that many."""
    a, b, people = people_rows(4000)
    rng = random.Random(2)
    people = {id: [x + rng.uniform(-0.25, 0.25) for x in both] for id, both in people.items()}
    few = column_labels(dict(list(people.items())[:8]), None)
    report = compare_sync(a, b, labels=few)
    assert report.verdict == "undecided"
    assert "more labels would decide" in report.headline()
    needed = report.people.needed
    assert 8 < needed < 4000
    labels = column_labels(dict(list(people.items())[: min(4000, 4 * needed)]), None)
    assert compare_sync(a, b, labels=labels).verdict == "worse"


@pytest.mark.parametrize(
    ("labels", "arguments", "message"),
    [
        (
            [{"id": "0", "label_a": 1, "label_b": 5}],
            {},
            "row '0' has the label 5, which is not from 0 to 1; give the scale",
        ),
        (
            [{"id": str(n), "label_a": 1, "label_b": 5} for n in range(3)],
            {"label_scale": (1, 5)},
            "3 rows have labels of people, and at least 5",
        ),
        (
            [{"id": "no", "label_a": 1, "label_b": 0}],
            {},
            "none of the 1 rows belongs to a row of both runs",
        ),
        ([{"label_a": 1, "label_b": 0}], {}, "there must be an ID"),
        (
            [{"prompt": "T0", "response": "old answer", "label": 1}],
            {},
            "none of the 1 labels is of an answer of these runs",
        ),
        (
            [{"prompt": f"T{n}", "response": f"A{n}", "label": n % 2} for n in range(6)],
            {},
            "no pair has a label of both answers",
        ),
    ],
)
def test_labels_that_do_not_fit(labels, arguments, message):
    """The error says which label, and what is expected."""
    a, b, _ = people_rows(20)
    with pytest.raises(ConfigError, match=message):
        compare_sync(a, b, labels=labels, **arguments)


def test_graders_on_the_same_answers_need_labels():
    """A higher score of the same answers is no better grader; with labels it is known which run
    rates as people do.
    """
    rows = run_rows(200, 0, 1)
    higher = [{**row, "score": min(1, row["score"] + 0.1)} for row in rows]
    report = compare_sync(rows, higher)
    assert report.same_answers
    assert (report.verdict, report.gate) == ("undecided", "undecided")
    assert "labels of people say which is better" in report.headline()
    rng = random.Random(3)
    labels = [
        {
            "prompt": row["prompt"],
            "response": row["response"],
            "label": min(1, row["score"] + rng.uniform(0.05, 0.1)),
        }
        for row in rows
    ]
    report = compare_sync(rows, higher, labels=labels[:60])
    assert (report.evidence, report.verdict, report.errors.rows) == ("errors", "better", 60)
    assert compare_sync(higher, rows, labels=labels[:60]).verdict == "worse"
    assert any(line.startswith("error against people") for line in report.summary())


def test_slices_and_clusters():
    """Each slice has its own difference; rows of one document count together."""
    a, b = run_rows(300, 0, 1), run_rows(300, 0, 2, answers="y")
    for row in b:
        row["score"] = min(1, row["score"] + 0.1 * (row["topic"] == "a"))
    report = compare_sync(a, b, slices="topic", cluster="doc")
    assert report.difference.clusters == 100
    assert {name: found.verdict for name, found in report.slices["topic"].items()} == {
        "a": "better",
        "b": "undecided",
    }
    assert report.slices["topic"]["a"].confidence == pytest.approx(0.975)
    a, b = ([{**row, "kind": "k"} for row in rows] for rows in (a, b))
    more = compare_sync(a, b, slices=["topic", "kind"])
    assert more.slices["topic"]["a"].confidence == pytest.approx(0.9875)  # for all columns at once
    with pytest.raises(
        ConfigError, match="no row has a column 'nope'; there are 'id', 'prompt', 'topic'"
    ):
        compare_sync(a, b, slices=["nope"])


@pytest.mark.slow
def test_looking_early_is_allowed():
    """Looking three times and stopping at the first verdict is wrong in at most 5 % of 30
    worlds.
    """
    wrong = 0
    for seed in range(30):
        a, b = run_rows(100, 0, 2 * seed + 1), run_rows(100, 0, 2 * seed + 2, answers="y")
        verdicts = [compare_sync(a[:n], b[:n], anytime=True).verdict for n in (20, 50, 100)]
        wrong += any(verdict != "undecided" for verdict in verdicts)
    assert wrong <= 0.05 * 30 + 3 * sqrt(0.05 * 0.95 * 30)
    report = compare_sync(run_rows(200, 0, 1), run_rows(200, 0.2, 2, answers="y"), anytime=True)
    assert (report.verdict, report.evidence) == ("better", "scores at any time")


@pytest.mark.slow
@pytest.mark.parametrize("n", [30, 100])
def test_false_alarms_of_the_gate(n):
    """With A = B, the gate says "worse" in at most 2.5 % of 150 worlds."""
    alarms = 0
    for seed in range(150):
        rng = random.Random(seed)
        a, b = ([{"id": k, "score": float(rng.random() < 0.8)} for k in range(n)] for _ in "ab")
        alarms += compare_sync(a, b).gate == "worse"
    assert alarms <= 0.025 * 150 + 3 * sqrt(0.025 * 0.975 * 150)


TASKS = [{"id": str(n), "prompt": f"Task {n}", "topic": "ab"[n % 2]} for n in range(12)]


def writes(length):
    """Return a model that answers with a text of about a length, and counts its calls."""
    return redraft.ScriptedModel(
        [lambda messages: "y" * (length + len(messages[-1]["content"]) % 2)] * 200,
        name=f"length-{length}",
    )


def length_share(text: str) -> float:
    return min(1.0, len(text) / 20)


def test_models_answer_the_same_tasks(tmp_path):
    """Both are graded by the same graders; a second comparison makes no call, a new B only its
    own.
    """
    journal = tmp_path / "compare.journal"

    short, long = writes(4), writes(12)
    variants = {"a": {"model": short, "label": "short"}, "b": {"model": long, "label": "long"}}
    report = compare_sync(
        *variants.values(), TASKS, graders=length_share, journal=journal, slices=["topic"]
    )
    assert (report.a, report.b, report.verdict) == ("short", "long", "better")
    assert set(report.slices["topic"]) == {"a", "b"}
    assert (short.calls, long.calls, report.usage.calls) == (12, 12, 24)
    again = compare_sync(*variants.values(), TASKS, graders=length_share, journal=journal)
    assert (short.calls, long.calls, again.usage.calls) == (12, 12, 0)
    assert again.difference == report.difference
    longer = writes(16)
    third = compare_sync(
        variants["a"],
        {"model": longer, "label": "longer"},
        TASKS,
        graders=length_share,
        journal=journal,
    )
    assert (short.calls, third.usage.calls) == (12, 12)


@pytest.mark.parametrize("grader", [length_share, "pairwise"])
def test_progress_is_that_of_one_run_after_the_other(tmp_path, grader):
    """Of A, of B, and then of the pairs that a grader compares, each up to its last row."""
    seen = []

    def note(progress):
        if not any(progress is each for each, _ in seen):
            seen.append((progress, []))
        seen[-1][1].append(progress.ended_rows)
        assert seen[-1][0] is progress

    compare_sync(
        {"model": writes(4), "label": "short"},
        {"model": writes(12), "label": "long"},
        TASKS,
        graders=grader,
        judge=None if grader is length_share else pair_judge(biased=False),
        journal=tmp_path / "j.journal",
        on_progress=note,
    )
    assert [(progress.total, rows[-1]) for progress, rows in seen] == [(12, 12)] * (
        2 if grader is length_share else 3
    )
    assert all(rows == sorted(rows) for _, rows in seen)


def test_prompts_are_files(tmp_path):
    """A changed prompt is run again; an unchanged one is not."""
    journal = tmp_path / "compare.journal"
    model = redraft.ScriptedModel(
        [
            lambda messages: (
                "a long answer"
                if "long" in messages[-1]["content"]
                else f"short {len(messages[-1]['content']) % 2}"
            )
        ]
        * 99
    )
    first, second = tmp_path / "first.md", tmp_path / "second.md"
    first.write_text("Answer: {prompt}")
    second.write_text("Give a long answer: {prompt}")
    report = compare_sync(first, second, TASKS, model=model, graders=length_share, journal=journal)
    assert (report.a, report.b, report.verdict) == ("first.md", "second.md", "better")
    assert model.calls == 24
    assert {"Answer: Task 0", "Give a long answer: Task 11"} < {
        messages[-1]["content"] for messages in model.messages
    }
    second.write_text("Give a very long answer: {prompt}")
    assert (
        compare_sync(
            first, second, TASKS, model=model, graders=length_share, journal=journal
        ).usage.calls
        == 12
    )


def test_a_budget_holds_for_both_runs(tmp_path):
    """It ends the comparison, which the same call with more resumes."""
    journal = tmp_path / "compare.journal"
    short, long = writes(4), writes(12)
    variants = ({"model": short, "label": "short"}, {"model": long, "label": "long"})

    def run(calls):
        return compare_sync(
            *variants,
            TASKS,
            graders=length_share,
            journal=journal,
            budget=redraft.Budget(calls=calls),
        )

    with pytest.raises(
        BudgetExhaustedError, match="the run of 'long' ended early: .*; the same call resumes it"
    ):
        run(18)
    assert short.calls + long.calls <= 18
    assert run(18).verdict == "better"
    assert short.calls + long.calls == 24


def test_answers_are_graded_anew(tmp_path):
    """Finished runs, also of other programs, are graded by the same grader."""
    a = [
        {"id": n, "prompt": f"T{n}", "response": "y" * (4 + n % 2), "score": 0.9} for n in range(12)
    ]
    b = [
        {"id": n, "prompt": f"T{n}", "response": "y" * (10 + n % 2), "score": 0.1}
        for n in range(12)
    ]
    assert compare_sync(a, b).verdict == "worse"
    report = compare_sync(a, b, graders=length_share, journal=tmp_path / "j.journal")
    assert report.verdict == "better"
    assert report.difference.value == pytest.approx(0.3)
    assert report.difference.rows == 12


def test_a_missing_judge_is_an_error(tmp_path):
    """Two models that each judge themselves are not compared."""
    with pytest.raises(
        ConfigError, match="judge: name one model that judges both, or each would judge itself"
    ):
        compare_sync(
            writes(3), writes(5), TASKS, graders="helpfulness", journal=tmp_path / "j.journal"
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"judge": "openai:x"},
            "judge has no effect on finished runs: give tasks to run, or graders",
        ),
        ({"temperature": 0.1}, "temperature has no effect on finished runs"),
        ({"margin": -1}, "margin must be a number >= 0 or None, got -1"),
        ({"level": 95}, "level must be a number between 0 and 1"),
        (
            {"tasks": TASKS, "graders": length_share, "mode": "grade"},
            "mode is no argument of a comparison",
        ),
        ({"graders": length_share, "model": "openai:x"}, "model has no effect without tasks"),
        (
            {"graders": ["pairwise", length_share]},
            "'pairwise' compares answers; it must be the only grader",
        ),
        (
            {"graders": length_share, "max_iterations": -1},
            "max_iterations must be a whole number >= 0 or None, got -1",
        ),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    """The error names the argument."""
    with pytest.raises(ConfigError, match=message):
        compare_sync([{"id": 1, "score": 1}], [{"id": 1, "score": 1}], **arguments)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([{"id": 1, "score": 1}], [{"id": 2, "score": 1}], "have no row in common by id"),
        ([{"score": 1}], [{"score": 1}], "cannot be paired: some have neither an ID nor a task"),
        (
            [{"id": 1, "score": 1}],
            [{"id": 1, "score": None}],
            "1 row in common, and none has a score in both",
        ),
    ],
)
def test_runs_that_cannot_be_compared(a, b, message):
    """The error says why."""
    with pytest.raises(ConfigError, match=message):
        compare_sync(a, b)


def test_scores_of_another_scale_need_a_margin_for_the_gate():
    """Differences are in their unit; 0.02 would mean nothing."""
    a, b = (
        [{"id": n, "score": 3 + n % 2} for n in range(30)],
        [{"id": n, "score": 4 + n % 2} for n in range(30)],
    )
    report = compare_sync(a, b)
    assert report.verdict == "better"
    assert "gate" not in report.as_data()
    with pytest.raises(ConfigError, match="margin: the scores are not from 0 to 1; give the loss"):
        _ = report.gate
    assert compare_sync(b, a, margin=1.5).gate == "not worse"


def test_variants_have_no_graders_of_their_own(tmp_path):
    """What differs must be the variant only."""
    with pytest.raises(ConfigError, match="a variant cannot have 'judge': give it to `compare`"):
        compare_sync(
            {"judge": "x"},
            {"model": "y"},
            TASKS,
            graders=length_share,
            journal=tmp_path / "j.journal",
        )


def test_results_can_be_read_once_and_compared_often():
    """`read_results` gives what `compare` takes."""
    a, b = (
        read_results(run_rows(50, 0, 1), name="old"),
        read_results(run_rows(50, 0.2, 2, answers="y"), name="new"),
    )
    assert compare_sync(a, b).headline() == "new is better than old"


SHOWN = re.compile(r"<(first|second)-([0-9a-f]{8})>\n(.*?)\n</\1-\2>", re.DOTALL)


def pair_judge(biased):
    """Return a judge of pairs that prefers the longer answer, or always the first that it is
    shown.
    """

    def answer(messages):
        one, other = (text for _, _, text in SHOWN.findall(messages[-1]["content"]))
        winner = "first" if biased or len(one) > len(other) else "second"
        return json.dumps({"reason": "because", "change": [], "winner": winner, "done": False})

    return redraft.ScriptedModel([answer] * 300, name="judge")


@pytest.mark.parametrize(("biased", "rate", "bias"), [(False, 11 / 12, 0.0), (True, 0.5, 0.5)])
def test_a_judge_sees_each_pair_in_both_orders(tmp_path, biased, rate, bias):
    """Its preference for a position cancels and is told; equal answers are ties that take no call;
    calls are cached.
    """
    a = [{"id": n, "prompt": f"T{n}", "response": f"short {n}", "score": 0.5} for n in range(24)]
    b = [
        {**row, "response": row["response"] if row["id"] < 4 else f"a long answer {row['id']}"}
        for row in a
    ]
    judge = pair_judge(biased)
    report = compare_sync(a, b, graders="pairwise", judge=judge, journal=tmp_path / "j.journal")
    assert report.evidence == "win rate"
    assert report.wins.value == pytest.approx(rate)
    assert report.wins.position_bias == pytest.approx(bias * 20 / 24)
    assert report.verdict == ("undecided" if biased else "better")
    assert report.usage.calls == judge.calls == 40
    assert any(line.startswith("win rate of B") for line in report.summary())
    again = compare_sync(a, b, graders="pairwise", judge=judge, journal=tmp_path / "j.journal")
    assert (again.wins, judge.calls) == (report.wins, 40)


class Longer:
    """A comparer that only computes: the longer answer is better."""

    name = "longer"
    model_free = True

    async def compare(self, task, candidates, ask):
        return Comparison(tuple(c.id for c in sorted(candidates, key=lambda c: -len(c.text))))


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize(
    "grader",
    ["pairwise", "pairwise:clarity", Longer()],
    ids=lambda each: getattr(each, "name", each),
)
@pytest.mark.parametrize("max_iterations", [0, 1])
def test_models_are_compared_by_a_grader_that_compares(tmp_path, grader, max_iterations):
    """Their answers have no score of their own: the report has the win rate, and the share of wins
    as the score.
    """
    judge = pair_judge(biased=False)
    variants = ({"model": writes(4), "label": "short"}, {"model": writes(12), "label": "long"})
    settings = {"journal": tmp_path / "j.journal", "max_iterations": max_iterations}
    report = compare_sync(*variants, TASKS, graders=grader, judge=judge, **settings)
    assert (report.evidence, report.verdict, report.gate) == ("win rate", "better", "not worse")
    assert (report.wins.value, report.wins.pairs) == (1, 12)
    assert (report.score_name, report.difference.mean_a, report.difference.mean_b) == (
        "share of wins",
        0,
        1,
    )
    if not max_iterations:  # then a single answer is compared with that of the other model alone
        assert report.usage.calls == 24 + judge.calls and judge.calls == (
            0 if isinstance(grader, Longer) else 24
        )
    calls = judge.calls
    again = compare_sync(*variants, TASKS, graders=grader, judge=judge, **settings)
    assert (again.wins, judge.calls) == (report.wins, calls)


@pytest.mark.parametrize("grader", ["ranker", "ranker:clarity", "base_helpfulness_listwise"])
@pytest.mark.parametrize("are_runs", [False, True])
def test_a_ranker_is_refused_before_the_first_call(tmp_path, grader, are_runs):
    """It shows the answers in one order; the message names the grader that shows them in both."""
    judge, models = pair_judge(biased=False), (writes(4), writes(12))
    rows = [{"id": 1, "prompt": "T", "response": "x"}]
    sides = (
        (rows, rows, None)
        if are_runs
        else ({"model": models[0], "label": "a"}, {"model": models[1], "label": "b"}, TASKS)
    )
    with pytest.raises(ConfigError, match="shows answers in one order, .*: use 'pairwise"):
        compare_sync(*sides, graders=grader, judge=judge, journal=tmp_path / "j.journal")
    assert judge.calls == sum(model.calls for model in models) == 0


def test_answers_without_a_score_are_compared(tmp_path):
    """Of finished runs, too; an answer that only one side has is a loss of the other, and the gate
    counts it.
    """
    a = [{"id": n, "prompt": f"T{n}", "response": f"short {n}", "score": None} for n in range(30)]
    b = [{**row, "response": f"a long answer {row['id']}" if row["id"] else None} for row in a]
    report = compare_sync(
        a, b, graders="pairwise", judge=pair_judge(biased=False), journal=tmp_path / "j.journal"
    )
    assert (report.wins.value, report.wins.pairs, report.verdict) == (1, 29, "better")
    assert (report.unscored_a, report.unscored_b) == (0, 1)
    assert report.worst_case.rows == 30 and report.worst_case.mean_a == pytest.approx(1 / 30)


def test_settings_are_compared_on_a_real_server(plain_server, tmp_path):
    """Two settings of one model, against llama.cpp: the second comparison makes no call."""
    variants = [
        {"model": plain_server, "max_tokens": limit, "temperature": 0, "label": f"{limit} tokens"}
        for limit in (4, 40)
    ]
    tasks = [{"id": str(n), "prompt": f"Write about the number {n}."} for n in range(8)]
    report = compare_sync(*variants, tasks, graders=length_share, journal=tmp_path / "j.journal")
    assert (report.a, report.b, report.difference.rows, report.usage.calls) == (
        "4 tokens",
        "40 tokens",
        8,
        16,
    )
    assert report.difference.mean_b > report.difference.mean_a
    assert report.usage.tokens > 0
    again = compare_sync(*variants, tasks, graders=length_share, journal=tmp_path / "j.journal")
    assert (again.usage.calls, again.difference) == (0, report.difference)
