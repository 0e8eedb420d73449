"""Leaderboards: the order, who is told apart, games in both orders, and what cannot be compared."""

import json
import random
import re
from dataclasses import replace
from math import ceil

import pytest

from redraft.cli import main
from redraft.cli.commands import compare as compare_command
from redraft.comparison import compare_sync, leaderboard_sync, noise
from redraft.errors import BudgetExhaustedError, ConfigError, GradingError
from redraft.loop.records import Comparison
from redraft.middleware import Budget
from redraft.models import ScriptedModel


def score_rows(shift, seed, n=60, noise=0.1):
    """Return rows of a run: the quality of a task is the same for each seed."""
    rng, tasks = random.Random(seed), random.Random(0)
    return [
        {
            "id": str(k),
            "prompt": f"Task {k}",
            "response": f"{seed} {k}",
            "score": min(1, max(0, tasks.uniform(0.3, 0.7) + shift + rng.gauss(0, noise))),
        }
        for k in range(n)
    ]


def answers(quality, n=40, first=0):
    """Return answers that `ByQuality` ranks by their first word, without a score."""
    return [
        {"id": str(k), "prompt": f"Task {k}", "response": f"{quality} answer {k}", "score": None}
        for k in range(first, first + n)
    ]


class ByQuality:
    """A comparer that only computes: the larger first number is better, with noise of its own."""

    name = "by_quality"
    model_free = True

    def __init__(self, noise=0.0):
        self.noise = noise

    async def compare(self, task, candidates, ask):
        def quality(candidate):
            chance = random.Random(f"{candidate.text} {sorted(c.text for c in candidates)}")
            return float(candidate.text.split()[0]) + chance.gauss(0, self.noise)

        best_first = sorted(candidates, key=lambda c: -quality(c))
        return Comparison(tuple(c.id for c in best_first))


class Silent:
    """A comparer that gives no verdict."""

    name, model_free = "silent", True

    async def compare(self, task, candidates, ask):
        raise GradingError("it says nothing")


def test_scores_of_finished_runs():
    """The best first; who differs by more than noise is told apart, with the ranks that remain."""
    board = leaderboard_sync([score_rows(shift, n) for n, shift in enumerate((0, 0, 0.3))])
    assert [entry.name for entry in board.entries][0] == "rows (C)"
    assert [entry.ranks for entry in board.entries] == [(1, 1), (2, 3), (2, 3)]
    assert [entry.not_told_apart for entry in board.entries] == [
        (),
        ("rows (B)",),
        ("rows (A)",),
    ] or [entry.not_told_apart for entry in board.entries] == [(), ("rows (A)",), ("rows (B)",)]
    assert board.headline() == "rows (C) is better than all others"
    assert board.table()[0][:4] == ("rank", "variant", "score", "interval")
    data = json.loads(json.dumps(board.as_data()))
    assert len(data["differences"]) == 3 and data["entries"][0]["rows"] == 60
    assert any("all 3 differences hold at once" in line for line in board.summary())


def test_two_variants_are_compared_as_by_compare():
    """With two, the difference is that of `compare`."""
    a, b = score_rows(0, 1), score_rows(0.05, 2)
    board, report = leaderboard_sync([a, b]), compare_sync(a, b)
    first, second = board.differences[next(iter(board.differences))], report.difference
    assert first.interval == pytest.approx(second.interval)
    assert (first.value, first.verdict) == (pytest.approx(second.value), second.verdict)


def test_lower_scores_may_be_better():
    """The lowest is first, and a difference is by how much lower it is."""
    board = leaderboard_sync(
        [score_rows(shift, n) for n, shift in enumerate((0.3, 0))], lower_is_better=True
    )
    assert [entry.name for entry in board.entries] == ["rows (B)", "rows (A)"]
    assert board.differences["rows (B)", "rows (A)"].value > 0.2
    assert board.entries[0].value < board.entries[1].value


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 5])
def test_equal_variants_are_rarely_told_apart(count):
    """All differences hold at once: in at most 5 % of leaderboards of equal variants, and what
    chance allows in 100, is anyone called better.
    """
    alarms = 0
    for seed in range(100):
        board = leaderboard_sync([score_rows(0, 100 * seed + n, 40) for n in range(count)])
        alarms += any(d.verdict != "undecided" for d in board.differences.values())
    assert alarms <= 11


def test_games_of_answers(tmp_path):
    """Each pair is judged in both orders; shares of wins, strengths and games belong together."""
    runs = [answers(q) for q in (0, 0.05, 0.5)]
    board = leaderboard_sync(runs, graders=ByQuality(0.2), journal=tmp_path / "j.journal")
    assert [entry.name for entry in board.entries][0] == "rows (C)"
    assert board.entries[0].ranks == (1, 1)
    assert set(board.entries[1].not_told_apart) <= {"rows (A)", "rows (B)"}
    assert sum(entry.value for entry in board.entries) == pytest.approx(1.5)
    assert [sum(entry.games) for entry in board.entries] == [80, 80, 80]
    strengths = [entry.strength.value for entry in board.entries]
    assert strengths == sorted(strengths, reverse=True) and sum(strengths) == pytest.approx(0)
    assert (board.score_name, board.consistency, board.position_bias) == ("share of wins", 1, 0)
    assert board.table()[1][5].startswith("+")


def test_a_variant_that_wins_everything_has_no_strength(tmp_path):
    """It is told apart, with an interval of its share of wins, and no number stands for infinity."""
    board = leaderboard_sync(
        [answers(q) for q in (0, 0, 9)], graders=ByQuality(0.2), journal=tmp_path / "j.journal"
    )
    best = board.entries[0]
    assert (best.value, best.strength.value, best.games) == (1, None, (80, 0, 0))
    assert 0.8 < best.interval[0] < 1 and best.ranks == (1, 1)
    assert board.table()[1][5] == "none"
    assert any("cannot be compared" in line for line in board.summary())
    assert "Infinity" not in json.dumps(board.as_data())


def test_runs_without_a_common_row_are_not_compared(tmp_path):
    """What cannot be known is said; the others are compared."""
    runs = [answers(0), answers(1), answers(2, first=100), answers(3, first=100)]
    settings = {"graders": ByQuality(0.2), "journal": tmp_path / "j.journal"}
    board = leaderboard_sync(runs, **settings)
    assert len(board.differences) == 2
    assert len(board.entries[0].not_told_apart) == 2
    assert any(line.startswith("not compared, for want of common rows") for line in board.summary())
    with pytest.raises(ConfigError, match="no two of these runs have a row in common"):
        leaderboard_sync([score_rows(0, 1), [{"id": "x", "score": 1}]])
    with pytest.raises(ConfigError, match="'rows .C.' has no row in common with another one"):
        leaderboard_sync([answers(0), answers(1), answers(2, first=100)], **settings)
    with pytest.raises(GradingError, match="no verdict"):
        leaderboard_sync(runs[:2], graders=Silent(), journal=tmp_path / "s.journal")


def rows_of(places, score):
    return [{"id": f"{n}", "score": min(1.0, score + n % 3 / 100)} for n in places]


def test_the_best_is_first_by_rank():
    """A higher mean on other rows does not make a variant the first, or better than all others."""
    high = [{**row, "score": 0.9 + n % 3 / 100} for n, row in enumerate(rows_of(range(30), 0))]
    a = [*rows_of(range(30, 60), 0.2), *high]  # worse than B where they meet
    b = [*rows_of(range(30, 60), 0.5)]
    c = [*rows_of(range(30, 60), 0.1)]
    board = leaderboard_sync([a, b, c])
    means = [entry.value for entry in board.entries]
    assert means[0] < means[1]
    assert [entry.name for entry in board.entries] == ["rows (B)", "rows (A)", "rows (C)"]
    assert board.headline() == "rows (B) is better than all others"
    assert all(difference.value > 0 for difference in board.differences.values())


def test_each_may_be_worse_than_another_one():
    """Then none is called better than all others."""
    first, second, third = range(20), range(20, 40), range(40, 60)
    a = [*rows_of(first, 0.9), *rows_of(third, 0.1)]
    b = [*rows_of(first, 0.1), *rows_of(second, 0.9)]
    c = [*rows_of(second, 0.1), *rows_of(third, 0.9)]
    board = leaderboard_sync([a, b, c])
    assert {entry.ranks for entry in board.entries} == {(2, 2)}
    assert "ranks highest, and others are better on common rows" in board.headline()


class PartlySilent(ByQuality):
    """A comparer without a verdict on A and C in five tasks."""

    async def compare(self, task, candidates, ask):
        qualities = {candidate.text.split()[0] for candidate in candidates}
        if qualities == {"0", "0.9"} and task.prompt.endswith("5"):
            raise GradingError("it says nothing")
        return await super().compare(task, candidates, ask)


@pytest.mark.parametrize(
    ("last", "grader"), [(answers(0.9, 6), ByQuality(0.2)), (answers(0.9), PartlySilent(0.2))]
)
def test_all_games_of_two_count(tmp_path, last, grader):
    """Also if another variant has fewer rows, or there is no verdict on it."""
    runs = [answers(0), answers(0.5), last]
    board = leaderboard_sync(runs, graders=grader, journal=tmp_path / "j.journal")
    rows = {"".join(sorted(a[-2] + b[-2])): d.rows for (a, b), d in board.differences.items()}
    games = len(last)
    assert rows == {"AB": 40, "BC": games, "AC": games - 4 * isinstance(grader, PartlySilent)}
    assert [entry.name[-2] for entry in board.entries][-1] == "A"
    assert {entry.name[-2]: entry.rows for entry in board.entries} == {"A": 40, "B": 40, "C": games}
    a_b = next(d for pair, d in board.differences.items() if "rows (C)" not in pair)
    assert a_b.verdict == "better"
    assert not any("no score" in line for line in board.summary())


def test_what_would_decide_is_said():
    """The number of rows that would tell the first one apart from those that are not: with so many
    that are like these it is decided. The level of the intervals is not rounded.
    """
    runs = [score_rows(-0.02, 1), score_rows(0, 2)]
    board = leaderboard_sync(runs, level=0.999)
    more = int(re.search(r"; about (\d+) more rows would decide", board.headline())[1])
    copies = 1 + ceil(more / 60)
    many = [
        [{"id": f"{n} {row['id']}", "score": row["score"]} for n in range(copies) for row in run]
        for run in runs
    ]
    assert "better than all others" in leaderboard_sync(many, level=0.999).headline()
    three = leaderboard_sync([score_rows(0, n) for n in range(3)], level=0.999)
    assert any("hold at once, with 99.9%" in line for line in three.summary())


def test_rows_without_a_score_are_counted():
    """They may hide a loss."""
    few = [
        {**row, "score": row["score"] if n > 9 else None} for n, row in enumerate(score_rows(0, 1))
    ]
    board = leaderboard_sync([few, score_rows(0, 2), score_rows(0, 3)])
    assert "rows (A) has no score on 10 rows" in board.summary()


@pytest.mark.parametrize("count", [0, 1, 21])
def test_two_to_twenty_variants(count):
    """Others are refused before anything is read."""
    with pytest.raises(ConfigError, match="give 2 to 20"):
        leaderboard_sync(["missing.jsonl"] * count)


TASKS = [{"id": str(n), "prompt": f"T{n}", "written_by": "scripted"} for n in range(12)]


def writer(word):
    """Return a model whose answers begin with a number."""
    return ScriptedModel([lambda _: f"{word} words"] * 100, name=f"m{word}")


def test_models_answer_the_same_tasks_once(tmp_path):
    """Each model answers each task once, a second start takes no call, and a model is named that
    wrote the tasks.
    """
    models = [writer(n) for n in (1, 2, 3)]
    settings = {"graders": ByQuality(), "journal": tmp_path / "j.journal"}
    board = leaderboard_sync(models, TASKS, **settings)
    assert [entry.name for entry in board.entries] == ["m3", "m2", "m1"]
    assert [len(model.requests) for model in models] == [12, 12, 12]
    assert board.usage.calls == 36 and board.written_by == ("scripted",)
    assert any(line.startswith("tasks written by scripted") for line in board.summary())
    again = leaderboard_sync(models, TASKS, **settings)
    assert replace(again, usage=board.usage) == board
    assert [len(model.requests) for model in models] == [12, 12, 12]


def test_the_budget_is_that_of_the_whole_leaderboard(tmp_path):
    """It ends in the second model, and the same call with more resumes."""
    models = [writer(n) for n in (1, 2, 3)]
    settings = {"graders": ByQuality(), "journal": tmp_path / "j.journal"}
    with pytest.raises(BudgetExhaustedError, match="'m2' ended early"):
        leaderboard_sync(models, TASKS, **settings, budget=Budget(calls=15))
    leaderboard_sync(models, TASKS, **settings)
    assert sum(len(model.requests) for model in models) == 36


COMPARER = """
class Longer:
    name, model_free = "longer", True

    async def compare(self, task, candidates, ask):
        from redraft.loop.records import Comparison

        return Comparison(tuple(c.id for c in sorted(candidates, key=lambda c: -len(c.text))))


longer = Longer()


def length(text: str) -> float:
    return min(1.0, len(text) / 100)
"""


def write_runs(folder, lengths):
    """Write runs whose answers have these lengths on average."""
    names = []
    for name, length in zip("abcd", lengths, strict=False):
        rng, names = random.Random(name), [*names, f"{name}.jsonl"]
        rows = [
            {
                "id": str(k),
                "prompt": f"Task {k}",
                "response": "x" * (length + rng.randrange(10)),
                "score": rng.random() / 10 + length / 100,
            }
            for k in range(30)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
    (folder / "own.py").write_text(COMPARER)
    return names


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("grader", [None, "own.py:longer", "own.py:length"])
def test_three_runs_make_a_leaderboard(tmp_path, monkeypatch, capsys, grader):
    """The best first, as text and as JSON; with recorded scores, a comparer, or a scorer."""
    monkeypatch.chdir(tmp_path)
    names = write_runs(tmp_path, (20, 21, 60))
    options = ["--grader", grader, "--trust-in-process"] if grader else []
    assert main(["compare", *names, *options]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "c.jsonl is better than all others"
    assert ("strength" in printed) == (grader == "own.py:longer")
    assert main(["compare", *names, *options, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [entry["ranks"] for entry in data["entries"]] == [[1, 1], [2, 3], [2, 3]]


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("command", [["compare"], ["gate", "--aa"]])
def test_unreadable_rows_are_said(tmp_path, monkeypatch, capsys, command):
    """Each is listed with its reason, and they are counted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(noise, "SAMPLES", 50)  # the smallest loss need not be accurate
    names = write_runs(tmp_path, (20, 20, 20))
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write("no JSON\n")
    assert main([*command, *names[: 2 if "--aa" in command else 3]]) in (0, 4)
    printed = capsys.readouterr()
    assert "unreadable: b.jsonl" in printed.err and "left out: 1 unreadable" in printed.out


@pytest.mark.parametrize(
    "option", [("--slice", "topic"), ("--margin", "0.1"), ("--anytime",), ("--labels", "a.jsonl")]
)
def test_options_about_two_are_refused_for_three(tmp_path, monkeypatch, capsys, option):
    """The message names the option."""
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *write_runs(tmp_path, (1, 2, 3)), *option]) == 2
    assert f"{option[0]} is about two, and there are 3" in capsys.readouterr().err


TASKS_FROM = ("--tasks-from", "colours", "--judge", "fake:m")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m:a", "m:b", "m:c", *TASKS_FROM, "--margin", "0.1"], "--margin is about two"),
        (["m:a", "absent.md", *TASKS_FROM], "there is no file 'absent.md'"),
        (["a.jsonl", "b.jsonl", *TASKS_FROM], "'a.jsonl' is a finished run"),
        (["a.jsonl", "b.jsonl", "-n", "7"], "-n is the number of tasks that --tasks-from writes"),
    ],
)
def test_mistakes_are_found_before_tasks_are_written(
    tmp_path, monkeypatch, capsys, arguments, message
):
    """No call is made."""
    monkeypatch.chdir(tmp_path)
    write_runs(tmp_path, (1, 2, 3))

    async def add_tasks(*_args, **_settings):
        raise AssertionError("tasks are written")

    monkeypatch.setattr(compare_command, "add_tasks", add_tasks)
    assert main(["compare", *arguments]) == 2
    assert message in capsys.readouterr().err
