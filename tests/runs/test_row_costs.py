"""What a row has cost, iteration by iteration: in its result, in the journal, in the output, and in
the report of the run.
"""

import json
from collections import Counter
from contextlib import closing
from dataclasses import astuple
from statistics import NormalDist, mean, stdev

import pytest

from redraft import Feedback, Task, batch_sync
from redraft.cli.commands.batch import show_report
from redraft.errors import BadResponseError, ContextLengthError
from redraft.loop.records import Candidate, Comparison, Failure, Outcome
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.quality.result_facts import ResultFacts
from redraft.protocols import Reply
from redraft.runs.progress import BatchProgress
from redraft.runs.report import (
    BatchReport,
    ErrorExample,
    ReportBuilder,
    RunPriors,
    RunRows,
    RunScores,
    RunSpending,
)
from redraft.runs.row_result import row_result
from redraft.storage.journal import Journal
from redraft.usage import Usage

GRADER = PanelGrader("judge")


def answered(n, *, cached=False, retries=0, cost=True, tokens=True):
    """The usage of one answer whose figures are `n` alone: n tokens, n USD. Retries, and what they
    cost, are no part of it.
    """
    paid = 0 if cached else 1 + retries
    return Usage(
        paid,
        None if not tokens else 0 if cached else 900 * retries + n,
        0,
        int(cached),
        retries,
        None if not cost else 0.0 if cached else 900.0 * retries + n,
        n if tokens else None,
        float(n) if cost else None,
    )


def text(id, n, role="generate", parent=None, **how):
    return Candidate(id, f"text {id}", parent, by="w", role=role, usage=answered(n, **how))


def grade(candidate, n, score=0.5, repeat=0, **how):
    return Feedback(
        score, candidate=candidate, grader="judge", repeat=repeat, usage=answered(n, **how)
    )


def failed(slot, n):
    return Failure(slot, "grade", "ModelUnavailableError", "down", usage=answered(n))


GIVEN = Candidate(0, "given")
# records -> the best score, the calls and the cost of each iteration; each record has a digit of
# its own
ROWS = {
    "draft only": ([text(0, 1), grade(0, 20)], [(0.5, 2, 21)]),
    "two refinements": (
        [
            text(0, 1),
            grade(0, 20),
            text(1, 300, "refine", 0),
            grade(1, 4000, 0.7),
            text(2, 50000, "refine", 1),
            grade(2, 600000),
        ],
        [(0.5, 2, 21), (0.7, 2, 4300), (0.7, 2, 650000)],
    ),
    "two drafts": (
        [
            text(0, 1),
            text(1, 20),
            grade(0, 300, 0.4),
            grade(1, 4000, 0.6),
            text(2, 50000, "refine", 1),
            grade(2, 600000, 0.9),
        ],
        [(0.6, 4, 4321), (0.9, 2, 650000)],
    ),
    "grades once more": (
        [
            text(0, 1),
            grade(0, 20),
            text(1, 300, "refine", 0),
            grade(1, 4000),
            grade(0, 50000, repeat=1),
            grade(1, 600000, repeat=1),
        ],
        [(0.5, 3, 50021), (0.5, 3, 604300)],
    ),
    "a repair": (
        [
            text(0, 1),
            grade(0, 20),
            Candidate(1, "mended", 0, by="editor", role="repair"),
            grade(1, 300, 0.6),
        ]
        + [text(2, 4000, "refine", 1), grade(2, 50000, 0.7)],
        [(0.6, 3, 321), (0.7, 2, 54000)],
    ),
    "a repaired refinement": (
        [
            text(0, 1),
            grade(0, 20),
            text(1, 300, "refine", 0),
            Candidate(2, "mended", 1, by="editor", role="repair"),
        ]
        + [grade(2, 4000, 0.8), text(3, 50000, "refine", 2), grade(3, 600000, 0.9)],
        [(0.5, 2, 21), (0.8, 2, 4300), (0.9, 2, 650000)],
    ),
    "a given answer": (
        [GIVEN, grade(0, 1), text(1, 20, "refine", 0), grade(1, 300, 0.6)],
        [(0.5, 1, 1), (0.6, 2, 320)],
    ),
    "cached and retried": (
        [
            text(0, 1, cached=True),
            grade(0, 20, retries=2),
            text(1, 300, "refine", 0, retries=1),
            grade(1, 4000, 0.6, cached=True),
        ],
        [(0.5, 2, 21), (0.6, 2, 4300)],
    ),
    "failures": (
        [
            text(0, 1),
            failed(("feedback", 0, "judge", 0), 20),
            grade(0, 300),
            failed(("candidate", 1), 4000),
        ]
        + [text(1, 50000, "refine", 0), failed(("feedback", 1, "judge", 0), 600000)],
        [(0.5, 2, 301), (0.5, 1, 50000)],
    ),
    "a comparison": (
        [
            text(0, 1),
            grade(0, 20),
            text(1, 300, "refine", 0),
            grade(1, 4000),
            text(2, 50000, "refine", 1),
            grade(2, 600000, 0.4),
        ]
        + [
            Comparison(
                (1, 0),
                grader="judge",
                usage=Usage(2, 7000000, 0, 0, 0, 7000000.0, 7000000, 7000000.0),
            )
        ],
        [(0.5, 2, 21), (0.5, 4, 7004300), (0.5, 2, 650000)],
    ),
    "a cost that is unknown": (
        [
            text(0, 1),
            grade(0, 20),
            text(1, 300, "refine", 0, cost=False),
            grade(1, 4000, 0.6),
            text(2, 50000, "refine", 1),
        ]
        + [grade(2, 600000, 0.7)],
        [(0.5, 2, 21), (0.6, 2, None), (0.7, 2, 650000)],
    ),
    "tokens that are unknown": (
        [text(0, 1, tokens=False), grade(0, 20), text(1, 300, "refine", 0), grade(1, 4000, 0.6)],
        [(0.5, 2, 21), (0.6, 2, 4300)],
    ),
    "a refinement of no grade": (
        [
            text(0, 1),
            grade(0, 20),
            text(1, 300, "refine", 0),
            text(2, 4000, "refine", 0),
            grade(2, 50000, 0.4),
        ],
        [(0.5, 2, 21), (0.5, 1, 300), (0.5, 2, 54000)],
    ),
}


@pytest.mark.parametrize(("records", "expected"), ROWS.values(), ids=ROWS)
def test_each_iteration_has_its_own_calls_and_costs(records, expected):
    """A text, its grades and its repair count for the iteration that wrote it, from the cache or
    not; failures and retries for none.

    The columns have the sums. With an outcome or without one the figures are the same.
    """
    trace = Trace(Task("t"), (GRADER,), tuple(records))
    for ended in (trace, trace + Outcome(0, "max_iterations")):
        result = row_result(ended)
        assert [*result.by_iteration] == expected
        unknown = any(cost is None for _, _, cost in expected)
        costs = None if unknown else sum(cost for _, _, cost in expected)
        answers = [
            record.usage.answer_tokens for record in records if not isinstance(record, Failure)
        ]
        columns = result.columns
        assert (columns["calls"], columns["cost"]) == (
            sum(calls for _, calls, _ in expected),
            costs,
        )
        assert columns["tokens"] == (None if None in answers else sum(answers))
        assert ResultFacts.from_data(json.loads(json.dumps(result.to_data()))) == result


def test_failures_count_where_no_answer_is_graded():
    """All that such a row has cost: without them it would seem to have been free."""
    lost = Failure(
        (*GRADED, 0), "grade", "ModelTimeoutError", "late", usage=Usage(1, None, None, cost=None)
    )
    for failure, expected in ((failed((*GRADED, 0), 20), (2, 21, 21)), (lost, (2, None, None))):
        result = row_result(
            Trace(Task("t"), (GRADER,), (text(0, 1), failure, Outcome(0, "failed")))
        )
        assert tuple(result.columns[name] for name in ("calls", "tokens", "cost")) == expected
        assert result.by_iteration == ((None, *expected[::2]),)
    none = row_result(
        Trace(Task("t"), (GRADER,), (failed(("candidate", 0), 20), Outcome(None, "failed")))
    )
    assert (none.columns["calls"], none.columns["cost"], none.by_iteration) == (1, 20, ())


GRADED = ("feedback", 0, "judge")


# ---- a whole run

# of the calls about each row, in order: the writer's and the judge's in turn, each with a digit of
# its own
TOKENS = {
    "a": (1, 20, 300, 4000, 50000, 600000),
    "b": (2, 50),
    "c": (3, 40, 100),
    "d": (4,),
}
SCORES = {"a": (0.25, 0.75, 0.5), "b": (1.0,), "c": (0.5,)}
BUSY = BadResponseError("odd", retryable=True, usage=Usage(1, 7_000_000, 0, cost=7.0))


class Role:
    """The writer or the judge. It counts the calls about each row, for both; with `busy` the
    judge's second one fails once.
    """

    def __init__(self, name, calls, busy):
        self.name = self.identity = name
        self.calls, self.busy = calls, busy

    async def complete(self, request):
        row = request.messages[0]["content"].removeprefix("Grade ")[0]
        n = self.calls[row]
        if row == "d" or (row, n) == ("c", 3):
            raise ContextLengthError("too long", usage=Usage(1, 8_000_000, 0, cost=8.0))
        if (row, n) == ("a", 3) and self.busy:
            raise self.busy.pop()
        self.calls[row] += 1
        said = f"{row} {n // 2}" if self.name == "w" else str(SCORES[row][n // 2])
        return Reply(said, Usage(1, TOKENS[row][n] - 1, 1, cost=None))


async def verdict(text, model):
    return Feedback(float(await model(f"Grade {text}")), "so so", ("more",))


def run(folder, calls, busy=(), **more):
    writer, judge = (Role(name, calls, [*busy]) for name in "wj")
    settings = dict(
        judge=judge, max_iterations=2, patience=3, target_score=1.0, editor=False, noise_aware=False
    )
    prices = dict.fromkeys("wj", (1.0, 1.0))
    rows = [{"id": name, "prompt": f"{name}, please"} for name in TOKENS]
    return batch_sync(
        rows, folder / "out.jsonl", writer, verdict, prices=prices, **settings, **more
    )


def results(folder):
    """The columns of each row in the output, and its figures by iteration in the journal."""
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    with closing(Journal(folder / "out.jsonl.journal", read_only=True)) as journal:
        iterations = {
            info.id: [list(each) for each in info.facts.by_iteration]
            for info, _ in journal.traces("out-jsonl")
        }
    return {
        row["id"]: (row["calls"], row["tokens"], row["cost"], iterations[row["id"]]) for row in rows
    }


def test_a_run_reports_what_each_iteration_has_cost(tmp_path, capsys):
    """The writer's calls and the judge's, in the output, the journal, the report and the table:
    from the cache the same to the digit.

    A call that is made again counts once for its row, and as paid for; a failure counts for its row
    if that has no grade.
    """
    calls = Counter()
    paid = run(tmp_path, calls, [BUSY])
    first = results(tmp_path)
    cached = run(tmp_path, calls, min_delta=0.02)
    assert (
        first
        == results(tmp_path)
        == {
            "a": (6, 654321, 0.654321, [[0.25, 2, 0.000021], [0.75, 2, 0.0043], [0.75, 2, 0.65]]),
            "b": (2, 52, 0.000052, [[1.0, 2, 0.000052]]),
            # its second grade has failed, twice
            "c": (3, 143, 0.000143, [[0.5, 2, 0.000043], [0.5, 1, 0.0001]]),
            "d": (1, 8_000_000, 8.0, []),
        }
    )
    for report, usage, amount, saved in (
        (paid, (15, 1, 0), 31.654516, 0.0),
        (cached, (3, 0, 11), 24.0, 0.654516),
    ):
        used = report.spending.usage
        assert (used.calls, used.retried_calls, used.cached_calls) == usage
        assert (used.tokens, used.cost) == (round(amount * 1e6), pytest.approx(amount))
        assert (used.answer_tokens, used.answer_cost) == (654_516, pytest.approx(0.654516))
        data = report.as_data()["spending"]
        assert data["cache_savings"] == report.spending.cache_savings == pytest.approx(saved)
        names = ("calls", "retried_calls", "cached_calls", "tokens", "cost")
        assert tuple(data[name] for name in names) == (*usage, used.tokens, used.cost)
        assert [astuple(row) for row in report.scores.by_iteration] == [
            (0, 3, None, 6, pytest.approx(0.000116), None, None),
            (
                1,
                2,
                pytest.approx(0.25),
                3,
                pytest.approx(0.0044),
                pytest.approx(0.06),
                pytest.approx(0.000088),
            ),
            (2, 1, pytest.approx(0.0), 2, pytest.approx(0.65), None, None),
        ]
    show_report(paid)
    shown = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert [line for line in shown if line and line[0] in "012"] == [
        ["0", "3", "–", "6", "0.000116", "–", "–"],
        ["1", "2", "+0.250", "3", "0.0044", "0.06", "0.000088"],
        ["2", "1", "+0.000", "2", "0.65", "–", "–"],
    ]


@pytest.mark.parametrize(
    ("usage", "saved"),
    [
        (Usage(), 0.0),
        (Usage(2, 10, 10, cost=0.25, answer_cost=0.125), 0.0),
        (Usage(2, None, None, cost=None), 0.0),
        (Usage(cached_calls=2, answer_cost=0.75), 0.75),
        (Usage(cached_calls=2, answer_cost=None), None),
        (Usage(1, 10, 10, cached_calls=2, cost=0.25, answer_cost=0.75), 0.5),
        (Usage(1, None, None, cached_calls=2, cost=None, answer_cost=0.75), None),
        (Usage(2, 10, 10, cached_calls=2, retried_calls=1, cost=0.25, answer_cost=0.75), None),
        (Usage(1, 10, 10, cached_calls=1, cost=0.75, answer_cost=0.5), 0.0),
    ],
)
def test_what_the_cache_saves_in_a_step(usage, saved):
    """What its answers cost when they were made; unknown is not 0, and what is saved in one step
    does not hide what is unknown.
    """
    assert usage.cached_cost == saved
    progress = BatchProgress()
    for each in (
        Usage(cached_calls=1, answer_cost=1.0),
        usage,
        Usage(1, 10, 10, cost=8.0),
        Usage(cached_calls=1, answer_cost=2.0),
    ):
        progress.add_usage(each)
    assert progress.cache_savings == (None if saved is None else 3.0 + saved)
    assert progress.usage.calls == usage.calls + 1


def result_of(*iterations):
    first, best = iterations[0][0], iterations[-1][0]
    return ResultFacts(
        "done",
        "gain",
        initial_score=first,
        score=best,
        score_basis="by this judge",
        by_iteration=iterations,
        improved=best > first,
    )


def test_the_report_sums_iterations_over_rows():
    """Gains are those over the same row's iteration before; an unknown cost makes only that of its
    iteration unknown.

    The interval is the mean plus or minus 1.96 standard errors.
    """
    builder = ReportBuilder()
    rows = [
        result_of((0.5, 2, 1.0), (0.75, 3, 2.0), (0.75, 1, 0.5)),
        result_of((0.25, 2, 4.0), (1.0, 5, None)),
        result_of((0.5, 1, 8.0)),
        result_of((0.0, 2, 0.25), (None, 1, 0.125), (0.5, 2, 16.0)),
    ]
    for n, row in enumerate(rows):
        builder.add(row, f"row {n}")
    assert [astuple(stats.report(n)) for n, stats in builder.iterations.items()] == [
        (0, 4, None, 7, 13.25, None, None),
        (1, 3, 0.5, 9, None, 9 / 100, None),
        (2, 2, 0.0, 3, 16.5, None, None),
    ]
    gains = [0.25, 0.75, 0.0, 0.5]
    half = NormalDist().inv_cdf(0.975) * stdev(gains) / 2
    assert builder.uplift.mean == mean(gains)
    assert builder.uplift.interval == pytest.approx(
        (mean(gains) - half, mean(gains) + half), rel=1e-6
    )
    counts = builder.counts
    assert (counts["improved"], counts["unchanged"], builder.stops, builder.bases) == (
        3,
        1,
        {"gain": 4},
        {"by this judge": 4},
    )
    one = ReportBuilder()
    one.add(rows[0], "row 0")
    assert one.uplift.interval is None
    one.add(result_of((1.0, 1, 0.0), (0.0, 1, 0.0)), "row 1")
    assert one.uplift.interval == (-1.0, pytest.approx(-0.375 + 1.959964 * 0.625))


SUMMARIES = {
    "no row": ({}, ["rows 0 done", "score unknown", "paid: 0 calls, 0 tokens, 0 USD; 1.25 s"]),
    "everything finished before": (
        {"rows": RunRows(done=2, failed=1, reused=3)},
        [
            "rows 2 done, 1 failed (3 of them before)",
            (
                "all rows were finished before, so nothing was done; --retry failed repeats the failed ones; "
                "another output starts a new run"
            ),
            "score unknown",
            "paid: 0 calls, 0 tokens, 0 USD; 1.25 s",
        ],
    ),
    "much at once": (
        {
            "rows": RunRows(
                done=2000,
                failed=5,
                reused=1000,
                unfinished=4,
                not_started=900,
                remaining=100,
                bad=2,
                blank=1,
                improved=1200,
                unsure=3,
                unchanged=790,
                regressed=7,
                broken=8,
                cut_prompts=1,
                stops={"target": 1999, "not_started": 900, "gain": 1},
                diagnoses={"noise": 3},
                errors={"ConfigError": 1, "ModelError": 2, "OtherError": 2},
                error_examples={
                    "ConfigError": ErrorExample("no prompt", "r1"),
                    "ModelError": ErrorExample("private text", "r2"),
                    "OtherError": ErrorExample("other text"),
                },
            ),
            "scores": RunScores(
                0.5, 0.625, 0.125, (-0.0625, 0.25), {"by judge a": 1999, "by judge b": 1}
            ),
            "spending": RunSpending.from_usage(
                Usage(1000, None, None, cached_calls=20, cost=None),
                cache_savings=0.5,
                excess="2 calls more than the budget",
                price=0.015,
                price_unit="calls",
            ),
            "priors": RunPriors(
                initial_tasks=1500,
                refits=({"from": 300, "rows": 250},),
                offered_rows=250,
                saved_tasks=250,
                second_looks=50,
            ),
            "callback_errors": ("on_step raised KeyError",),
            "stop": "budget",
        },
        [
            "rows 2,000 done, 5 failed, 4 cut short, 1,000 not tried, 2 unreadable (1,000 of them before)",
            "blank given responses, which count as none: 1",
            (
                "score 0.500 -> 0.625 (1,999 by judge a, 1 by judge b), uplift +0.125 (95%: -0.062 to +0.250); "
                "improved 1,200, too few grades to tell 3, unchanged 790, regressed (first answer kept) 7"
            ),
            "stopped: target 1,999, gain 1",
            "diagnosis: noise 3",
            "errors: ConfigError 1, ModelError 2, OtherError 2",
            "ConfigError, for example: no prompt",
            "ModelError, for example in row 'r2' of the output",
            "OtherError, for example in a row of the output",
            "on_step raised KeyError",
            "best answer violates a must: 8",
            "prompts cut by the server: 1 row",
            "2 calls more than the budget",
            "price 0.015 a call; 1 row ended because nothing more was worth its price",
            "started with priors fitted to 1,500 tasks; rows from 300 on use priors fitted to 250 earlier rows",
            "50 first answers were graded twice, to learn how noisy the judge is (5.0% of the calls)",
            "priors fitted to 250 rows are saved for runs with learned priors: redraft priors",
            "paid: 1,000 calls, tokens unknown, cost unknown; 20 calls from the cache, 0.50 USD saved; 1.25 s",
        ],
    ),
    "scores by one judge": (
        {
            "rows": RunRows(done=2, reused=1, unchanged=2, stops={"gain": 2}),
            "scores": RunScores(0.5, 0.5, 0.0, bases={"by this judge": 2}),
            "spending": RunSpending.from_usage(
                Usage(2, 300, 45, cached_calls=1, cost=0.25),
                cache_savings=None,
                price=250.0,
                price_unit="tokens",
            ),
            "priors": RunPriors({"noise_sd": 0.1}, offered_rows=5, saved_tasks=9),
        },
        [
            "rows 2 done (1 of them before)",
            "score 0.500 -> 0.500 by this judge, uplift +0.000; improved 0, unchanged 2, regressed (first answer kept) 0",
            "stopped: gain 2",
            "price 250 for 1,000 tokens; 2 rows ended because nothing more was worth its price",
            "started with the given priors",
            "priors fitted to 9 tasks stay saved for runs with learned priors, not those of 5 rows now: redraft priors",
            "paid: 2 calls, 345 tokens, 0.25 USD; 1 call from the cache; 1.25 s",
        ],
    ),
}


@pytest.mark.parametrize(("figures", "expected"), SUMMARIES.values(), ids=SUMMARIES)
def test_the_summary_of_a_run(figures, expected):
    """To the letter: what is 0 or unknown is left out, and with `quote_errors` a line has the
    message instead of the row.
    """
    report = BatchReport(**figures, seconds=1.25)
    assert report.summary(quote_errors=False) == expected
    whole = report.summary()
    assert [line for line in whole if line not in expected] == [
        f"{kind}, for example: {example.message}"
        for kind, example in report.rows.error_examples.items()
        if kind != "ConfigError"
    ]
    assert len(whole) == len(expected)


@pytest.mark.parametrize(
    ("figures", "is_resumable"),
    [
        ({}, False),
        ({"rows": RunRows(done=1, failed=1, bad=1)}, False),
        ({"rows": RunRows(unfinished=1)}, True),
        ({"rows": RunRows(not_started=1)}, True),
        ({"stop": "budget"}, True),
        ({"stop": "disk", "rows": RunRows(unfinished=1), "journal_lost": True}, False),
    ],
)
def test_whether_a_run_can_be_resumed(figures, is_resumable):
    """If something is left to do and the journal is there."""
    report = BatchReport(**figures)
    assert report.resumable is report.as_data()["resumable"] is is_resumable


def test_the_rate_is_that_of_the_last_30_seconds(monkeypatch):
    """Rows of an earlier run do not count; at the end it is that of the whole run."""
    now = [100.0]
    monkeypatch.setattr("redraft.runs.progress.monotonic", lambda: now[0])
    progress, row, seen = BatchProgress(total=20, started_at=100.0), result_of((0.5, 1, 1.0)), []
    for at in (104.0, 110.0, 120.0, 136.0, 140.0):
        now[0] = at
        progress.count(row, reused=False)
        seen.append(progress.rows_per_s)
        progress.count(row, reused=True)
    assert seen == [None, 2 / 10, 3 / 20, 2 / 26, 3 / 30]
    now[0] = 180.0
    assert (progress.rows_per_s, progress.eta) == (3 / 70, 10 / (3 / 70))
    progress.finish()
    assert (progress.rows_per_s, progress.seconds) == (5 / 80, 80.0)


MUST = PanelGrader("must", must=True, model_free=True)
CHANGES = {  # the scores of answers, and whether each keeps the must -> improved, worse
    "higher": ([(0.5, 1), (0.75, 1)], (True, False)),
    "equal": ([(0.5, 1), (0.5, 1)], (False, False)),
    "all zero": ([(0.0, 1), (0.0, 1)], (False, False)),
    "higher by a rounding error": ([(0.5, 1), (0.5 + 1e-10, 1)], (False, False)),
    "lower by a rounding error": ([(0.5, 1), (0.5 - 1e-10, 1)], (False, False)),
    "lower": ([(0.5, 1), (0.25, 1)], (False, True)),
    "higher and lower": ([(0.5, 1), (0.75, 1), (0.25, 1)], (True, True)),
    "keeps the must at last": ([(0.75, 0), (0.25, 1)], (True, False)),
    "keeps it no longer": ([(0.25, 1), (0.75, 0)], (False, True)),
    "only one": ([(0.5, 1)], (False, False)),
}


@pytest.mark.parametrize(("answers", "expected"), CHANGES.values(), ids=CHANGES)
def test_a_row_is_improved_or_worse_by_musts_first(answers, expected):
    """Then by the score, of computed graders by any amount but a rounding error."""
    records = []
    for n, (score, kept) in enumerate(answers):
        records += [
            Candidate(
                n, f"text {n}", n - 1 if n else None, by="w", role="refine" if n else "generate"
            )
        ]
        records += [
            Feedback(score, candidate=n, grader="rule"),
            Feedback(float(kept), candidate=n, grader="must"),
        ]
    result = row_result(
        Trace(Task("t"), (PanelGrader("rule", model_free=True), MUST), tuple(records))
    )
    assert (result.improved, result.worse, result.unsure) == (*expected, False)


@pytest.mark.parametrize(
    ("given", "records", "initial"),
    [
        ((), [text(0, 1), grade(0, 1, 0.25), text(1, 1, "refine", 0), grade(1, 1, 0.75)], 0.25),
        ((), [text(0, 1), text(1, 1), grade(1, 1, 0.75), grade(0, 1, 0.25)], 0.25),
        ((), [text(0, 1)], None),
        (
            ("a", "b"),
            [Candidate(0, "a"), Candidate(1, "b"), grade(0, 1, 0.25), grade(1, 1, 0.5)],
            0.5,
        ),
        (("a", "b"), [Candidate(0, "a"), Candidate(1, "b"), grade(0, 1, 0.25)], None),
        (
            ("a", "b"),
            [
                Candidate(0, "a"),
                Candidate(1, "b"),
                grade(0, 1, 0.5),
                grade(1, 1, 0.25),
                text(2, 1, "refine", 0),
            ],
            0.5,
        ),
    ],
)
def test_the_initial_score_is_that_of_the_first_answer(given, records, initial):
    """Of several given ones it is the best, once all have a score."""
    result = row_result(Trace(Task("t", responses=given), (GRADER,), tuple(records)))
    assert result.columns["initial_score"] == initial


NO_TEXT = Failure(("candidate", 1), "refine", "ModelTimeoutError", "ModelTimeoutError: late")
NO_GRADE = Failure(("feedback", 0, "judge", 0), "grade", "BadResponseError", "odd")


@pytest.mark.parametrize(
    ("records", "status", "error", "kind"),
    [
        ([text(0, 1), grade(0, 1), Outcome(0, "target")], "done", None, ""),
        ([text(0, 1), NO_GRADE], "open", None, ""),  # cut short
        (
            [text(0, 1), NO_GRADE, NO_TEXT, Outcome(0, "failed")],
            "failed",
            "ModelTimeoutError: late",
            "ModelTimeoutError",
        ),
        (
            [text(0, 1), NO_GRADE, Outcome(0, "failed")],
            "failed",
            "BadResponseError: grader judge: odd",
            "BadResponseError",
        ),
        (
            [text(0, 1), Outcome(0, "max_iterations", note="no score")],
            "failed",
            "GradingError: no score",
            "GradingError",
        ),
        (
            [text(0, 1), Outcome(0, "done")],
            "failed",
            "GradingError: the graders gave no score",
            "GradingError",
        ),
        ([text(0, 1), grade(0, 1), NO_TEXT, Outcome(0, "patience")], "done", None, ""),
        (
            [text(0, 1), NO_GRADE, Outcome(0, "budget")],
            "open",
            "BadResponseError: grader judge: odd",
            "",
        ),
        ([text(0, 1), grade(0, 1), Outcome(0, "deadline")], "open", None, ""),
    ],
)
def test_a_row_names_the_failure_that_ended_it(records, status, error, kind):
    """That of an answer before that of a grader, in whatever order they came; a row that was cut
    short may have none.
    """
    result = row_result(Trace(Task("t"), (GRADER,), tuple(records)))
    assert (result.status, result.columns["error"], result.error_kind) == (status, error, kind)
