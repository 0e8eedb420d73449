"""A pilot runs a stratified sample, keeps its results, and forecasts what the other rows take."""

import asyncio
import json
import math
import random
from collections import Counter
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import redraft
import redraft.runs
from redraft.cli import main
from redraft.errors import ConfigError
from redraft.loop.task import Task
from redraft.protocols import Reply
from redraft.runs.dataset import BatchRow
from redraft.runs.forecast import (
    ForecastRange,
    PilotRow,
    _t_quantile,
    forecast_seconds,
    forecast_total,
    make_forecast,
    stratified_sample,
)
from redraft.usage import Usage
from redraft.validation.statistics import t_quantile


def rows_of(sizes, with_response=()):
    return [
        BatchRow(
            n, f"rows:{n}", {}, Task("x" * size, "r" if n in with_response else None, id=str(n))
        )
        for n, size in enumerate(sizes)
    ]


@given(
    st.lists(st.integers(1, 300), min_size=2, max_size=60), st.integers(2, 20), st.integers(0, 5)
)
def test_the_sample_has_its_size_and_spreads_over_sizes(sizes, size, seed):
    """Of rows in the order of their size, each stretch of total / size rows has at most two in the
    sample.
    """
    sample = stratified_sample(rows_of(sizes), size, len(sizes), seed)
    assert len(sample) == min(size, len(sizes))
    assert sample <= set(range(len(sizes)))
    if size < len(sizes):
        order = sorted(range(len(sizes)), key=lambda n: (sizes[n], n))
        places = sorted(order.index(n) for n in sample)
        gaps = [b - a for a, b in zip([places[-1] - len(sizes), *places], places, strict=False)]
        assert max(gaps) <= len(sizes) / size + 1


def test_rows_with_and_without_a_response_are_in_the_sample():
    """In the proportion that they have in the data."""
    rows = rows_of([10] * 100, with_response=set(range(30)))
    sample = stratified_sample(rows, 20, 100)
    assert Counter(n < 30 for n in sample) == {True: 6, False: 14}


WORLDS = {
    "refinements": lambda rng, size: rng.choice([2, 4, 4, 6, 8]),
    "lengths": lambda rng, size: size * rng.lognormvariate(0, 0.5),
    "long answers": lambda rng, size: rng.lognormvariate(6, 0.8),
    "errors": lambda rng, size: 0 if rng.random() < 0.05 else 3,
    "heavy tail": lambda rng, size: rng.lognormvariate(0, 1.4),
    "mostly cached": lambda rng, size: 4 if rng.random() < 0.3 else 0,
    "two kinds": lambda rng, size: rng.gauss(100, 10) if size < 400 else rng.gauss(900, 100),
}


@pytest.mark.slow(but_each=8)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("pilot", [10, 20])
def test_at_least_80_percent_of_forecasts_hold(world, pilot):
    """Over 150 worlds, the actual total of the other rows is in the range; the ranges are not
    useless.
    """
    rng, hits, widths = random.Random(f"{world} {pilot}"), 0, []
    for seed in range(150):
        sizes = [int(rng.lognormvariate(5.5, 0.7)) + 1 for _ in range(200)]
        taken = [WORLDS[world](rng, size) for size in sizes]
        sample = stratified_sample(
            rows_of(sizes) if seed < 2 else fast_rows(sizes), pilot, len(sizes), seed
        )
        forecast = forecast_total([taken[n] for n in sample], len(sizes) - pilot)
        actual = sum(amount for n, amount in enumerate(taken) if n not in sample)
        hits += forecast.low <= actual <= forecast.high
        widths.append((forecast.high - forecast.low) / actual)
    assert hits >= 0.8 * 150
    assert sum(widths) / 150 < 12 / pilot**0.5


class FastTask:
    def __init__(self, size):
        self.messages, self.given_responses = ({"content": "x" * size},), ()


def fast_rows(sizes):
    return [BatchRow(n, "", {}, FastTask(size)) for n, size in enumerate(sizes)]


def test_what_is_unknown_stays_unknown():
    """One row without a cost, and the cost of the others is unknown; no calls take no time."""
    assert forecast_total([1.0, None], 10) is None
    assert forecast_total([], 10) is None
    assert forecast_total([0.0, 0.0, 0.0], 10) == ForecastRange(0.0, 0.0, 0.0)
    equal = forecast_total([2.0] * 20, 10)
    # a row may fail, or take more than all in the sample
    assert 10 < equal.low < equal.value == 20 < equal.high < 30
    assert forecast_total([2.0, 4.0], 0) == ForecastRange(0, 0, 0)
    found = make_forecast(
        [PilotRow(2, None, 0.1, None)] * 3, 7, concurrency=None, limit=4, uplift=None, interval=None
    )
    assert (found.calls.value, found.tokens, found.seconds, found.uplift) == (14, None, None, None)
    assert found.cost.value == pytest.approx(0.7)
    assert "tokens unknown" in "\n".join(found.summary())


@pytest.mark.parametrize(
    ("sample", "rows"),
    [
        ([1, 2, 3, 4], 16),
        ([1, 2, 3, 4], 1),
        ([0, 0, 0, 10], 40),
        ([5] * 4, 3),
        ([2, 9, 4, 4, 0, 1, 7, 30, 2, 2], 990),
    ],
)
def test_a_total_is_the_mean_of_a_row_for_each_row(sample, rows):
    """Its range is that of a prediction by Student's t, for the logarithm, of the sample with a row
    of 0 and one of its largest and its mean together.
    """
    found, average = forecast_total(sample, rows), mean(sample)
    assert found.value == pytest.approx(average * rows)
    spread = (
        stdev([*sample, 0, max(sample) + average]) / average * math.sqrt(1 / len(sample) + 1 / rows)
    )
    factor = math.exp(stats.t.ppf(0.95, len(sample) - 1) * spread)
    assert (found.high / found.value, found.value / found.low) == pytest.approx(
        (factor, factor), rel=0.03 * math.log(factor)
    )


def test_a_range_from_one_row_or_of_any_width_has_ends():
    """From one row up to twice its amount; and no end is infinite."""
    assert forecast_total([3.0], 10) == ForecastRange(30.0, 0.0, 60.0)
    wide = forecast_total([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1e9], 1)
    assert 1 < wide.high / wide.value <= math.exp(20) * 1.001
    wider = forecast_total([1e-9, 5.0], 1)
    assert (wider.high / wider.value, wider.value / wider.low) == pytest.approx(
        (wider.high / wider.value,) * 2
    )


def test_a_forecast_has_the_amounts_of_its_rows():
    """Each total from the amounts of its own kind; an uplift has its interval."""
    rows = [PilotRow(2, 100, 0.5, 3.0), PilotRow(4, 300, 1.5, 5.0)]
    found = make_forecast(rows, 10, concurrency=2.0, limit=4, uplift=0.25, interval=(0.1, 0.4))
    assert (found.pilot, found.rows) == (2, 10)
    assert (found.calls.value, found.tokens.value, found.cost.value) == (30, 2000, 10)
    # two rows kept two of four calls in flight, so ten keep all four
    assert found.seconds.value == pytest.approx(40 / 4)
    assert found.uplift == ForecastRange(0.25, 0.1, 0.4)
    assert (
        make_forecast(rows, 10, concurrency=2.0, limit=4, uplift=0.25, interval=None).uplift is None
    )
    assert make_forecast(
        [], 10, concurrency=None, limit=4, uplift=None, interval=None
    ).calls == ForecastRange(0, 0, 0)


@pytest.mark.parametrize(
    ("concurrency", "pilot", "limit", "value", "low", "high"),
    [
        (4.0, 20, 4, 25.0, 25.0, 25.0),  # the limit was reached
        # twenty rows kept ten calls in flight, so a hundred would keep fifty
        (10.0, 20, 100, 2.0, 1.0, 10.0),
        (1.0, 20, 100, 20.0, 1.0, 100.0),
        # calls with pauses between them: no fewer than one at a time is expected
        (0.5, 20, 20, 100.0, 5.0, 100.0),
        (9.0, 5, 4, 100 / 9, 100 / 9, 100 / 9),  # an earlier limit was higher
        (2.0, 0, 4, 25.0, 25.0, 50.0),
    ],
)
def test_time_depends_on_calls_at_the_same_time(concurrency, pilot, limit, value, low, high):
    """From all calls that may be in flight to no more of them than in the pilot."""
    found = forecast_seconds(ForecastRange(100, 100, 100), concurrency, pilot, 1000, limit)
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high))


def test_few_rows_cannot_keep_many_calls_in_flight():
    """Fewer rows than in the pilot keep fewer, down to one at a time; without a concurrency there
    is no forecast.
    """
    busy = ForecastRange(90, 60, 120)
    assert forecast_seconds(busy, 2.0, 10, 3, 100) == ForecastRange(90.0, 20.0, 120.0)
    assert forecast_seconds(busy, 4.0, 10, 5, 100) == ForecastRange(45.0, 12.0, 60.0)
    assert forecast_seconds(busy, 4.0, 10, 20, 100) == ForecastRange(11.25, 3.0, 30.0)
    assert [
        forecast_seconds(*given, 10, 3, 100) for given in ((None, 2.0), (busy, None), (busy, 0.0))
    ] == [None] * 3


@given(st.floats(0.01, 1e3), st.integers(0, 50), st.integers(0, 100), st.integers(1, 64))
def test_the_expected_time_is_in_its_range(concurrency, pilot, rows, limit):
    """However many rows are left, and were in the pilot."""
    found = forecast_seconds(ForecastRange(90, 60, 120), concurrency, pilot, rows, limit)
    assert 0 < found.low <= found.value <= found.high <= 120


@pytest.mark.parametrize("degrees", [3, 9, 19, 99])
def test_the_quantile_is_students(degrees):
    """To 1 %."""
    assert _t_quantile(0.95, degrees) == pytest.approx(t_quantile(0.95, degrees), rel=0.01)


class CountingModel:
    """A model whose answers take tokens by their prompt, and that counts its calls."""

    name = identity = "counting"

    def __init__(self, delay=0.0):
        self.calls, self.delay = 0, delay

    async def complete(self, request):
        self.calls += 1
        await asyncio.sleep(self.delay)
        size = sum(len(message["content"]) for message in request.messages)
        return Reply("fine " * (1 + size % 7), Usage(1, size, 5))


def grade(text: str) -> float:
    return min(1.0, len(text) / 40)


def data(n):
    rng = random.Random(0)
    return [{"id": str(k), "prompt": f"{k} " + "word " * rng.randint(2, 60)} for k in range(n)]


@pytest.mark.slow
def test_the_rows_of_a_pilot_are_kept(tmp_path):
    """The run without `pilot` repeats none of them, and takes what was forecast; the output is
    complete.
    """
    output, model = tmp_path / "out.jsonl", CountingModel(0.002)
    settings = {"max_iterations": 2, "prices": {"counting": (1.0, 2.0)}, "max_in_flight": 4}
    report = redraft.batch_sync(data(120), output, model, grade, pilot=20, **settings)
    forecast, of_pilot = report.forecast, model.calls
    assert (forecast.calls.value, forecast.tokens.value) == pytest.approx(
        (5 * of_pilot, 5 * report.spending.tokens)
    )
    assert forecast.cost.value == pytest.approx(5 * report.spending.cost)
    assert (report.rows.done, forecast.pilot, forecast.rows, output.exists()) == (
        20,
        20,
        100,
        False,
    )
    assert report.resumable is False
    whole = redraft.batch_sync(data(120), output, model, grade, **settings)
    assert (whole.rows.done, whole.rows.reused, whole.forecast) == (120, 20, None)
    rest = model.calls - of_pilot
    assert forecast.calls.low <= rest <= forecast.calls.high
    assert forecast.tokens.low <= whole.spending.tokens <= forecast.tokens.high
    assert forecast.cost.low <= whole.spending.cost <= forecast.cost.high
    assert forecast.seconds.low < forecast.seconds.value < forecast.seconds.high
    assert forecast.uplift.low <= whole.scores.uplift <= forecast.uplift.high
    assert [json.loads(line)["id"] for line in output.read_text().splitlines()] == [
        str(k) for k in range(120)
    ]
    assert json.loads(json.dumps(report.as_data()))["forecast"]["rows"] == 100
    assert whole.as_data()["forecast"] is None


def test_a_second_pilot_costs_nothing(tmp_path):
    """It gives the same forecast; a larger one adds rows."""
    output, model = tmp_path / "out.jsonl", CountingModel()
    first = redraft.batch_sync(data(60), output, model, grade, pilot=10, max_iterations=0)
    again = redraft.batch_sync(data(60), output, model, grade, pilot=10, max_iterations=0)
    assert (again.rows.reused, again.spending.calls, model.calls) == (10, 0, 10)
    assert again.forecast.calls == first.forecast.calls
    assert again.forecast.seconds is not None
    redraft.batch_sync(data(60), output, model, grade, pilot=30, max_iterations=0)
    assert 20 <= model.calls <= 40


def test_a_pilot_after_a_complete_run_changes_nothing(tmp_path):
    """Its rows are in the journal, and the output stays."""
    output, model = tmp_path / "out.jsonl", CountingModel()
    redraft.batch_sync(data(20), output, model, grade, max_iterations=0)
    before = output.read_text()
    report = redraft.batch_sync(data(20), output, model, grade, pilot=5, max_iterations=0)
    assert (report.rows.reused, report.spending.calls, output.read_text()) == (5, 0, before)
    again = redraft.batch_sync(data(20), output, model, grade, max_iterations=0)
    assert (again.rows.reused, again.spending.calls, output.read_text()) == (20, 0, before)


def test_a_pilot_of_all_rows(tmp_path):
    """Nothing is left to forecast."""
    report = redraft.batch_sync(
        data(6), tmp_path / "out.jsonl", CountingModel(), grade, pilot=20, max_iterations=0
    )
    assert (report.rows.done, report.forecast.rows, report.forecast.calls.value) == (6, 0, 0)


def test_a_budget_ends_a_pilot_without_a_forecast(tmp_path):
    """Half a sample is no sample."""
    report = redraft.batch_sync(
        data(40),
        tmp_path / "out.jsonl",
        CountingModel(),
        grade,
        pilot=20,
        max_iterations=0,
        budget=redraft.Budget(calls=5),
    )
    assert report.stop == "budget"
    assert report.forecast is None


def test_other_engines_have_no_pilot(tmp_path):
    """The error says which engine has."""
    with pytest.raises(
        ConfigError, match="pilot needs engine 'local', got engine 'provider-batch'"
    ):
        redraft.batch_sync(
            data(4),
            tmp_path / "out.jsonl",
            CountingModel(),
            grade,
            pilot=2,
            engine="provider-batch",
        )


def test_the_command_shows_the_forecast(tmp_path, monkeypatch, capsys):
    """And says nothing of an output that is not there yet."""
    monkeypatch.chdir(tmp_path)
    rows = [{"id": k, "prompt": "p", "response": f"Answer, number {k}"} for k in range(30)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (
        main(
            [
                "batch",
                "in.jsonl",
                "-o",
                "out.jsonl",
                "--model",
                "none",
                "--require",
                "no_commas",
                "--pilot",
                "5",
            ]
        )
        == 0
    )
    printed = capsys.readouterr().err
    assert "forecast for the other 25 rows, from 5" in printed
    assert "calls 0 (0 to 0)" in printed
    assert (
        main(["batch", "in.jsonl", "-o", "out.jsonl", "--model", "none", "--require", "no_commas"])
        == 0
    )
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 30


async def prompts_of_preview(tmp_path, graders, **settings):
    model = redraft.ScriptedModel([])
    run = redraft.runs.BatchRun.from_arguments(
        data(3), tmp_path / "out.jsonl", model, graders, **settings
    )
    preview = await run.prepare()
    assert model.calls == 0
    assert not (tmp_path / "out.jsonl.journal").exists()
    return {(each.role, each.grader): each.messages for each in preview.prompts}


async def test_a_preview_shows_the_prompts_of_a_row(tmp_path):
    """For the draft with its demands, for each judge, and for a refinement, with stand-ins; no
    model is called.
    """
    found = await prompts_of_preview(tmp_path, ["helpfulness", redraft.must("words:1-5")])
    assert list(found) == [("generate", ""), ("grade", "helpfulness"), ("refine", "")]
    assert "1 to 5 words" in found["generate", ""][-1]["content"]
    assert "(the answer of the model)" in found["grade", "helpfulness"][-1]["content"]
    assert "(what the graders ask to change)" in found["refine", ""][-1]["content"]


async def test_a_preview_runs_no_code_of_the_user(tmp_path):
    """A function that grades may do anything; templates of prompts are filled."""
    called = []

    def grader(text: str) -> float:
        called.append(text)
        return 0.5

    found = await prompts_of_preview(
        tmp_path, [grader], draft_prompt="Please: {prompt}", max_iterations=0
    )
    assert (list(found), called) == ([("generate", "")], [])
    assert found["generate", ""][-1]["content"].startswith("Please: 0 word")
