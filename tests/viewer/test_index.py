"""The index of a run: the facts that lists show agree with the journal, also after any change of
it.
"""

import itertools
import os
import random
from dataclasses import replace
from math import isclose
from statistics import correlation, fmean
from time import time
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from redraft.base.jsontext import dumps_text
from redraft.errors import ConfigError, StoreError
from redraft.loop.serialize import record_to_json
from redraft.plans.quality.result_facts import ResultFacts
from redraft.runs.report import ReportBuilder
from redraft.runs.row_result import row_result
from redraft.storage import Journal, JsonlStore
from redraft.viewer import index as index_module
from redraft.viewer.figures import EXAMPLES, pair_figures, part_figures, run_figures
from redraft.viewer.index import COLUMNS, RunIndex
from redraft.viewer.rows import CHANGES, ORDERS, RowQuery
from redraft.viewer.run_library import RunLibrary

from .synthetic_runs import add_row, make_trace, write_run

ROWS = 120


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run") / "answers.journal", ROWS)


@pytest.fixture(scope="module")
def index(journal, tmp_path_factory):
    with RunIndex(journal, "answers", tmp_path_factory.mktemp("cache")) as opened:
        yield opened


def resync(index):
    index._synced_at = -10
    index.sync()


def all_rows(index):
    return index.page(RowQuery(), 0, 10**6).rows


@pytest.mark.slow
def test_facts_are_those_of_the_result_and_the_trace(journal, index):
    """Every row that the journal holds is in the index, with the figures of its result and its
    records.
    """
    by_id = {row.id: row for row in all_rows(index)}
    with Journal(journal, read_only=True) as opened:
        stored = list(opened.traces("answers"))
    assert [row.id for row in all_rows(index)] == [info.id for info, _ in stored]
    for info, trace in stored:
        row, columns = by_id[info.id], info.facts.columns
        assert (row.first, row.best, row.stop, row.iterations) == tuple(
            columns[name] for name in ("initial_score", "best_score", "stop", "iterations")
        )
        assert (row.status, row.position, row.calls, row.cost) == (
            info.status,
            info.position,
            columns["calls"],
            columns["cost"],
        )
        assert row.prompt == " ".join(trace.task.prompt.split())[:240]
        scores = trace.with_estimates.scores
        later = [scores[c.id] for c in trace.candidates if c.parent is not None]
        assert row.loss == (
            pytest.approx(max(0.0, columns["initial_score"] - min(later)))
            if info.facts.worse
            else None
        )
        seconds = [r.seconds for r in trace.records if getattr(r, "seconds", None) is not None]
        assert row.seconds == (pytest.approx(sum(seconds)) if seconds else None)
        parts = index.read(
            "SELECT kind, name, first, best FROM scores WHERE number = ?", row.number
        )
        for kind, name, first, best in parts:
            if kind == "grader":
                grader = next(g for g in trace.panel if g.name == name)
                assert (first, best) == pytest.approx(
                    (trace.grader_score(0, grader), trace.grader_score(trace.best.id, grader))
                )
        assert {name for kind, name, *_ in parts if kind == "grader"} == (
            {g.name for g in trace.panel} if trace.candidates else set()
        )


@pytest.mark.slow
def test_figures_are_those_of_the_report(journal, index):
    """They are the sums that a batch reports at its end."""
    report = ReportBuilder()
    with Journal(journal, read_only=True) as opened:
        for info, _ in opened.traces("answers"):
            report.add(info.facts, str(info.position))
    figures = run_figures(index)
    assert figures.uplift == pytest.approx(report.uplift.mean)
    assert figures.interval == pytest.approx(report.uplift.interval)
    assert figures.changes == {
        "improved": report.counts["improved"],
        "unsure": report.counts["unsure"],
        "unchanged": report.counts["unchanged"],
        "worse": report.counts["regressed"],
    }
    assert figures.stops == dict(report.stops)
    assert {error.name: error.rows for error in figures.errors} == dict(report.errors)
    assert {error.name: error.id for error in figures.errors} == {
        kind: f"row-{example.row}" for kind, example in report.error_examples.items()
    }
    assert (figures.broken, figures.bases) == (report.counts["broken"], dict(report.bases))
    assert sum(figures.cells.values()) == report.uplift.n == figures.scored
    assert figures.by_iteration[-1].score == pytest.approx(figures.mean_best)
    assert figures.by_iteration[0].score == pytest.approx(figures.mean_first)
    for iteration in figures.by_iteration:
        expected = report.iterations[iteration.n].report(iteration.n)
        assert (iteration.rows, iteration.calls) == (expected.rows, expected.calls)
        for name in ("gain", "cost", "calls_per_point", "usd_per_point"):
            value, wanted = getattr(iteration, name), getattr(expected, name)
            assert value is None if wanted is None else isclose(value, wanted, rel_tol=1e-9), name


def test_the_examples_of_the_overview_are_those_that_changed_most(index):
    """The largest gains of the rows that improved, the largest losses of those that got worse, and
    how many there are.
    """
    rows, figures = all_rows(index), run_figures(index)
    gains = sorted((row for row in rows if row.improved), key=lambda row: -row.uplift)
    losses = sorted((row for row in rows if CHANGED["worse"](row)), key=lambda row: -row.loss)
    assert figures.gains.rows == tuple(gains[:EXAMPLES]) and figures.gains.total == len(gains)
    assert figures.losses.rows == tuple(losses[:EXAMPLES]) and figures.losses.total == len(losses)
    assert len(gains) > EXAMPLES and losses[0].loss > losses[-1].loss > 0


def test_graders_are_compared_on_the_rows_that_both_have_scored(index):
    """Their mean distance and Pearson's correlation, and the rows where they are furthest apart."""
    for pair in pair_figures(index):
        of_a, of_b = (
            dict(
                index.read(
                    "SELECT number, best FROM scores WHERE kind = 'grader' AND name = ?", name
                )
            )
            for name in (pair.a, pair.b)
        )
        both = [n for n in of_a if of_a[n] is not None and of_b.get(n) is not None]
        a, b = [of_a[n] for n in both], [of_b[n] for n in both]
        apart = {n: abs(x - y) for n, x, y in zip(both, a, b)}
        assert pair.rows == len(both)
        assert pair.distance == pytest.approx(fmean(apart.values()))
        is_constant = len(set(a)) == 1 or len(set(b)) == 1
        assert pair.correlation == (None if is_constant else pytest.approx(correlation(a, b)))
        furthest = sorted(apart, key=lambda n: -apart[n])[: len(pair.furthest)]
        assert sorted(apart[n] for n, _ in pair.furthest) == sorted(apart[n] for n in furthest)


KEYS = {
    "position": lambda row, parts: row.position,
    "uplift": lambda row, parts: row.uplift,
    "change": lambda row, parts: None if row.uplift is None else abs(row.uplift),
    "loss": lambda row, parts: row.loss,
    "score": lambda row, parts: row.best,
    "first": lambda row, parts: row.first,
    "iteration": lambda row, parts: row.best_iteration,
    "iterations": lambda row, parts: row.iterations,
    "cost": lambda row, parts: row.cost,
    "calls": lambda row, parts: row.calls,
    "seconds": lambda row, parts: row.seconds,
    "stop": lambda row, parts: row.stop,
    "error": lambda row, parts: row.error_kind,
    "grader": lambda row, parts: parts.get(("grader", "style")),
    "criterion": lambda row, parts: parts.get(("criterion", "judge: clarity")),
}
CHANGED = {
    "improved": lambda row: row.improved,
    "unsure": lambda row: row.unsure,
    "unchanged": lambda row: (
        row.uplift is not None and not (row.improved or row.unsure or row.worse)
    ),
    "worse": lambda row: row.worse and not (row.improved or row.unsure),
    "unknown": lambda row: row.uplift is None,
}
QUERIES = st.builds(
    RowQuery,
    sort=st.sampled_from(sorted(ORDERS)),
    descending=st.booleans(),
    text=st.sampled_from(["", "", "river", "row-1", "HARVEST", "%", "' OR 1=1 --"]),
    change=st.sampled_from(["", "", *CHANGES]),
    status=st.sampled_from(["", "", "done", "failed", "open"]),
    stop=st.sampled_from(["", "", "target", "patience", "none"]),
    error=st.sampled_from(["", "", "", "ModelUnavailableError"]),
    iteration=st.sampled_from([None, None, 0, 1, 7]),
    grader=st.sampled_from(["", "", "style"]),
    requirement=st.sampled_from(["", "", "", "words:5-80"]),
    criterion=st.sampled_from(["", "", "judge: clarity"]),
    below=st.sampled_from([0.0, 0.4, 0.7, 1.0]),
)


@pytest.mark.slow
@settings(
    max_examples=3 * settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(query=QUERIES)
def test_lists_are_filtered_and_sorted(index, query):
    """Any combination of filters and orders gives the rows that a plain loop would, with unknown
    values last.
    """
    part = {"grader": "style", "criterion": "judge: clarity"}.get(query.sort, "")
    query = replace(query, part=part)
    parts = {}
    for number, kind, name, best in index.read("SELECT number, kind, name, best FROM scores"):
        parts.setdefault(number, {})[kind, name] = best
    texts = dict(index.read("SELECT number, text FROM texts"))

    def fits(row):
        scores = parts.get(row.number, {})
        low = all(
            (
                scores.get((kind, getattr(query, kind))) is not None
                and scores[kind, getattr(query, kind)] < query.below
            )
            for kind in ("grader", "criterion")
            if getattr(query, kind)
        )
        return (
            low
            and (not query.text or query.text.casefold() in texts[row.number])
            and (not query.change or bool(CHANGED[query.change](row)))
            and query.status in {"", row.status}
            and query.stop in {"", row.stop}
            and query.error in {"", row.error_kind}
            and query.iteration in {None, row.best_iteration}
            and (not query.requirement or ("must", query.requirement) in parts.get(row.number, {}))
        )

    kept = [row for row in all_rows(index) if fits(row)]
    known = [row for row in kept if KEYS[query.sort](row, parts.get(row.number, {})) is not None]
    ordered = sorted(
        known,
        key=lambda row: KEYS[query.sort](row, parts.get(row.number, {})),
        reverse=query.descending,
    )
    if query.descending:  # equal values stay in the order of the input
        ordered = sorted(
            sorted(known, key=lambda r: r.position),
            key=lambda r: KEYS[query.sort](r, parts.get(r.number, {})),
            reverse=True,
        )
    page = index.page(query, 0, 10**6)
    assert [row.id for row in page.rows] == [
        row.id for row in [*ordered, *(r for r in kept if r not in known)]
    ]
    assert page.total == len(kept)
    half = index.page(query, 3, 5)
    assert [row.id for row in half.rows] == [row.id for row in page.rows][3:8]
    assert (
        RowQuery.from_parameters(
            dict(__import__("urllib.parse").parse.parse_qsl(query.parameters()))
        )
        == query
    )


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"sort": "best; DROP TABLE rows"}, "sort"),
        ({"change": "better"}, "change"),
        ({"status": "x"}, "status"),
        ({"iteration": "one"}, "iteration"),
        ({"text": "x" * 501}, "500 characters"),
    ],
)
def test_a_wrong_query_says_what_is_allowed(parameters, named):
    """An address that somebody changed is refused with a reason."""
    with pytest.raises(ConfigError, match=named):
        RowQuery.from_parameters(parameters)


OPERATIONS = st.lists(
    st.sampled_from(
        [
            "add",
            "finish",
            "append",
            "redo",
            "again",
            "continue",
            "retry",
            "erase",
            "move",
            "delete",
            "remove",
            "resync",
        ]
    ),
    min_size=1,
    max_size=12,
)


def write_again(journal, row, key, trace, invocation):
    """Write what a later invocation finds for a row that had ended."""
    journal.update_run("live", invocation=invocation)
    journal.begin_row("live", row.id, row.position, key, {}, dumps_text(trace.header()))
    journal.append_records("live", row.id, 0, [record_to_json(r) for r in trace.records])
    journal.finish_row("live", row.id, "done", row_result(trace).to_data())


def add_failed_row(journal, attempt):
    """Write a row that failed, or what its next attempt wrote."""
    if attempt == 1:
        add_row(journal, "live", 0, make_trace(96), id="failing")
        return
    result = ResultFacts(
        "failed", "failed", calls=attempt, error=f"attempt {attempt}", error_kind="ModelError"
    )
    if journal.rows_by_id("live", ["failing"]):
        journal.mark_seen("live", ["failing"])
        journal.finish_row("live", "failing", "failed", result.to_data())


@pytest.mark.slow
@settings(max_examples=18, deadline=None)
@given(operations=OPERATIONS, seed=st.integers(0, 9))
@example(operations=["resync", "resync", "retry"], seed=0)
@example(operations=["resync", "delete"], seed=0)
@example(operations=["add", "resync", "again"], seed=0)
@example(operations=["add", "resync", "again"], seed=1)
@example(operations=["add", "resync", "erase"], seed=0)
@example(operations=["add", "resync", "continue"], seed=0)
@example(operations=["add", "add", "resync", "move"], seed=0)
def test_an_extended_index_is_the_index_built_anew(operations, seed, tmp_path_factory):
    """Whatever happened to the journal between two looks, also of another process: rows begun,
    finished, redone and left out.
    """
    folder = tmp_path_factory.mktemp("live")
    path = folder / "live.journal"
    numbers, seconds = random.Random(seed), itertools.count()
    with Journal(path) as journal:
        journal.update_run("live", invocation=1)
        add_row(journal, "live", 0, make_trace(0))
        add_failed_row(journal, 1)
        journal.flush()
        with (
            RunIndex(path, "live", folder / "one") as index,
            RunIndex(path, "live", folder / "one") as other,
        ):
            index.sync()
            count, invocation = 1, 1
            for operation in operations:
                trace = make_trace(count + 100 * seed)
                if operation in {"add", "append"}:
                    shown = (
                        trace
                        if operation == "add"
                        else replace(
                            trace,
                            records=trace.records[: numbers.randint(0, len(trace.records) - 1)],
                        )
                    )
                    add_row(journal, "live", count, shown)
                    count += 1
                elif operation == "finish":
                    add_row(journal, "live", count - 1, trace, id="same")
                elif operation in {
                    "redo",
                    "again",
                }:  # with other settings, or with the same, as after `retry` or a larger budget
                    rows = [row for row, _ in journal.traces("live")]
                    if rows:
                        invocation += 1
                        row = numbers.choice([rows[0], rows[-1]])
                        key = f"key {invocation}" if operation == "redo" else row.key
                        write_again(journal, row, key, make_trace(1000 + invocation), invocation)
                elif operation == "continue":  # a row that the price had stopped goes on
                    for row, shown in list(journal.traces("live"))[-1:]:
                        invocation += 1
                        journal.update_run("live", invocation=invocation)
                        longer = replace(shown, records=(*shown.records[:-1], *shown.records))
                        journal.append_records(
                            "live", row.id, 0, [record_to_json(r) for r in longer.records]
                        )
                        journal.finish_row("live", row.id, "done", row_result(trace).to_data())
                elif (
                    operation == "erase"
                ):  # as the gateway does, which may give the next row the same place
                    rows = [row for row, _ in journal.traces("live")]
                    if rows:
                        journal.erase("live", [rows[-1].id])
                        add_row(
                            journal,
                            "live",
                            rows[-1].position,
                            make_trace(20_000 + count),
                            id=f"new {count}",
                        )
                        count += 1
                elif operation == "move":
                    for row, _ in list(journal.traces("live"))[:1]:
                        journal.set_position("live", row.id, 500 + count)
                elif operation == "retry":  # a failed row fails again, in another way
                    invocation += 1
                    journal.update_run("live", invocation=invocation)
                    add_failed_row(journal, invocation)
                elif operation == "delete":  # the run is deleted and begun anew
                    journal.delete("live")
                    invocation = 1
                    with patch(
                        "redraft.storage.journal._now",
                        lambda: f"2030-01-01T00:00:{next(seconds):02}+00:00",
                    ):
                        journal.update_run("live", invocation=1)
                    for n in range(count):
                        add_row(journal, "live", n, make_trace(n + 50_000))
                elif operation == "remove":
                    invocation += 1
                    journal.update_run(
                        "live", invocation=invocation, last_full_invocation=invocation
                    )
                else:
                    resync(numbers.choice([index, other]))  # two processes share the index
                    other.computed("figures", lambda: run_figures(other))
                journal.flush()
            resync(index)
            resync(other)
            with RunIndex(path, "live", folder / "two") as fresh:
                fresh.sync()
                for table in ("rows", "texts", "scores", "iterations"):
                    columns = ", ".join(COLUMNS) if table == "rows" else "*"
                    sql = f"SELECT {columns} FROM {table} ORDER BY 1, 2, 3"
                    if table == "texts":
                        sql = "SELECT * FROM texts ORDER BY 1"
                    assert index.read(sql) == fresh.read(sql)
                assert (
                    run_figures(index)
                    == run_figures(fresh)
                    == other.computed("figures", lambda: run_figures(other))
                )


def test_an_index_is_kept_and_a_broken_one_made_anew(journal, tmp_path):
    """The second look reads nothing; a file that is no index, or that of another release, is
    replaced.
    """
    read = []
    with RunIndex(journal, "answers", tmp_path) as index:
        index.sync(lambda done, total: read.append(total))
        expected = all_rows(index)
    with RunIndex(journal, "answers", tmp_path) as index:
        index.sync(lambda done, total: read.append("again"))
    assert "again" not in read and read
    (path,) = tmp_path.glob("*.sqlite")
    assert path.stat().st_mode & 0o077 == 0
    for damage in (b"not a database at all", path.read_bytes()[:5000]):
        path.write_bytes(damage)
        with RunIndex(journal, "answers", tmp_path) as index:
            assert all_rows(index) == expected


def test_the_run_is_never_written(journal, tmp_path):
    """The bytes of the journal stay the same, and a run that does not exist is an error."""
    before = journal.read_bytes()
    with RunIndex(journal, "answers", tmp_path) as index:
        run_figures(index)
        pair_figures(index)
    assert journal.read_bytes() == before
    with pytest.raises(StoreError, match="no run 'other'"):
        RunIndex(journal, "other", tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE rows SET result = '{}' WHERE row = 3",
        "UPDATE rows SET result = 'no json' WHERE row = 3",
        "UPDATE rows SET id = '[1' WHERE row = 3",
        "UPDATE lines SET line = '[]' WHERE number = 3 * 1048576",
        "UPDATE lines SET line = '{\"task\": 1}' WHERE number = 3 * 1048576",
        'UPDATE lines SET line = \'{"kind": "feedback", "criteria": 5}\' WHERE number = 3 * 1048576 + 2',
        "UPDATE rows SET result = json_set(result, '$.columns.best_score', 'high') WHERE row = 3",
    ],
)
def test_a_damaged_row_is_one_row(tmp_path, damage):
    """It is listed without figures, and the others are there."""
    import sqlite3

    path = write_run(tmp_path / "damaged.journal", 10)
    with sqlite3.connect(path) as connection:
        connection.execute(damage)
    connection.close()
    with RunIndex(path, "answers", tmp_path / "cache") as index:
        rows = all_rows(index)
        assert len(rows) == 10
        assert rows[2].uplift is None
        assert sum(row.best is not None for row in rows) == 9


def test_which_criterion_limits_rows(tmp_path):
    """The lowest one of a row whose score is below 1; means are over the rows that have both
    scores.
    """
    path = write_run(tmp_path / "limits.journal", 40)
    with (
        RunIndex(path, "answers", tmp_path / "cache") as index,
        Journal(path, read_only=True) as journal,
    ):
        figures = {part.name: part for part in part_figures(index, "criterion")}
        expected = dict.fromkeys(figures, 0)
        for _, trace in journal.traces("answers"):
            if trace.best:
                (judge,) = [f for f in trace.feedback[trace.best.id] if f.grader == "judge"]
                least = min(c.score for c in judge.criteria)
                for c in judge.criteria:
                    expected[f"judge: {c.name}"] += c.score == least < 1
        assert {name: part.limits for name, part in figures.items()} == expected
        pairs = {frozenset((pair.a, pair.b)) for pair in pair_figures(index)}
        assert pairs == {
            frozenset(p)
            for p in (("judge", "style"), ("judge", "words:5-80"), ("style", "words:5-80"))
        }


# ---- two runs


@pytest.mark.slow
def test_two_runs_are_compared_as_the_command_does(tmp_path, monkeypatch, capsys):
    """The same words and figures as `redraft compare` on the journals; the rows that changed most
    are those of the scores.
    """
    import json

    from redraft.cli import main
    from redraft.viewer.figures import compare_runs

    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a.journal", 70, run="short")
    write_run(tmp_path / "b.journal", 60, run="long", gain=0.3)
    with (
        RunIndex(tmp_path / "a.journal", "short", tmp_path / "c") as a,
        RunIndex(tmp_path / "b.journal", "long", tmp_path / "c") as b,
    ):
        found = compare_runs(a, b, ("a.journal", "b.journal"))
        same, back = compare_runs(a, a, ("A", "B")), compare_runs(b, a, ("b", "a"))
        scores = [dict(index.read("SELECT id, best FROM rows")) for index in (a, b)]
    assert main(["compare", "a.journal", "b.journal", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    report = found.report.as_data()
    assert {
        name: report[name]
        for name in ("verdict", "interval", "rows_needed", "only_a", "unscored_b")
    } == {
        name: data[name] if name != "interval" else tuple(data[name])
        for name in ("verdict", "interval", "rows_needed", "only_a", "unscored_b")
    }
    assert main(["compare", "a.journal", "b.journal"]) == 0
    assert found.report.headline() == capsys.readouterr().out.splitlines()[0]
    both = {
        id: scores[1][id] - a
        for id, a in scores[0].items()
        if a is not None and scores[1].get(id) is not None
    }
    assert [row.id for row in found.gains] == sorted(both, key=lambda id: (-both[id], 0))[
        : len(found.gains)
    ]
    assert [(row.id, -row.difference) for row in back.drops] == [
        (row.id, row.difference) for row in found.gains
    ]
    assert sum(found.cells.values()) == len(both)
    low, high = found.won_interval
    assert 0 <= low < found.won.mean_b < high <= 1
    assert (
        same.report.headline() == "undecided: both runs have the same answers with the same scores"
    )


def test_building_can_be_stopped_and_goes_on(journal, tmp_path):
    """Ctrl-C does not wait for 100,000 rows; what is read is kept, and the next look reads the
    rest.
    """
    with RunIndex(journal, "answers", tmp_path) as index:

        def stop(done, total):
            raise StoreError("enough")

        with pytest.raises(StoreError, match="enough"):
            index.sync(stop)
    with RunIndex(journal, "answers", tmp_path) as index:
        assert len(all_rows(index)) == ROWS


def test_an_index_that_nobody_uses_is_deleted(journal, tmp_path):
    """Old files of other runs go when an index is opened; those of today stay."""
    for name, age in [("old", 40), ("new", 3)]:
        for suffix in ("", "-wal"):
            path = tmp_path / f"{name}.sqlite{suffix}"
            path.write_bytes(b"x")
            os.utime(path, (time() - age * 86_400,) * 2)
    (tmp_path / "notes.txt").write_text("mine")
    os.utime(tmp_path / "notes.txt", (0, 0))
    with RunIndex(journal, "answers", tmp_path):
        assert {p.name for p in tmp_path.iterdir()} >= {"new.sqlite", "new.sqlite-wal", "notes.txt"}
        assert not list(tmp_path.glob("old*"))
        assert tmp_path.stat().st_mode & 0o077 == 0


def test_a_failed_write_leaves_the_index_as_it_was(journal, tmp_path, monkeypatch):
    """Whatever fails in the middle of a change, it is taken back, and the next look makes it."""
    with RunIndex(journal, "answers", tmp_path) as index:
        good = index_module.row_facts
        monkeypatch.setattr(
            index_module,
            "row_facts",
            lambda row: replace(good(row), calls=10**30 if row.number == 60 else 1),
        )
        with pytest.raises(StoreError, match="delete it, and it is made anew"):
            index.sync()
        monkeypatch.undo()
        assert len(all_rows(index)) == ROWS


def test_a_library_that_cannot_be_opened_leaves_nothing(tmp_path, monkeypatch):
    """The copies of traces that it had made are gone before the error is seen."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trace = tmp_path / "t.jsonl"
    with JsonlStore(trace) as store:
        store.append(make_trace(1))
    with pytest.raises(ConfigError, match="is no journal, folder or trace") as caught:
        RunLibrary([trace, tmp_path / "missing"])
    assert caught.value and list(tmp_path.iterdir()) == [trace]
