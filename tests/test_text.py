"""Durations, moments and money as people read them."""

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from each_row import each_row
from redraft.base.money import format_usd, usd_amount
from redraft.base.text import format_duration, format_time_in, pluralize
from redraft.protocols import Reply
from redraft.usage import Usage


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0 s"),
        (1e-12, "0 s"),
        (3.93e-05, "39.3 microseconds"),
        (1e-6, "1 microsecond"),
        (0.00099949, "999 microseconds"),
        (0.0009996, "1 millisecond"),
        (0.0123, "12.3 milliseconds"),
        (0.09994, "99.9 milliseconds"),
        (0.09996, "0.1 s"),
        (0.25, "0.25 s"),
        (5, "5 s"),
        (90, "90 s"),
        (120, "2 min"),
        (125.4, "2 min 5 s"),
        (600.0, "10 min"),
        (3599.6, "1 h"),
        (5400, "1 h 30 min"),
        (86_400, "1 d"),
        (187_200, "2 d 4 h"),
        (86_460, "1 d 1 min"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds, told):
    """Smaller units are left out."""
    assert format_duration(seconds) == told


@given(st.floats(0, 1e9))
def test_a_duration_has_no_exponent(seconds):
    """Whatever its size: it is read by people."""
    assert not re.search(r"\de[-+]", format_duration(seconds))


@pytest.mark.parametrize(
    ("count", "words", "shown"),
    [
        (0, ("row",), "0 rows"),
        (1, ("row",), "1 row"),
        (1024, ("row",), "1,024 rows"),
        (1, ("row has", "rows have"), "1 row has"),
        (2, ("row has", "rows have"), "2 rows have"),
    ],
)
def test_counts_have_their_noun(count, words, shown):
    """In the singular for one, also where the verb changes."""
    assert pluralize(count, *words) == shown


def test_a_moment_has_its_date():
    """A pause may last until the next day."""
    told = (
        datetime.strptime(format_time_in(86_400), "%Y-%m-%d %H:%M UTC")
        .replace(tzinfo=UTC)
        .timestamp()
    )
    assert told == pytest.approx(time.time() + 86_400, abs=120)
    assert format_time_in(1e15) == "the year 10000"


# ---- money

AMOUNTS = {
    0.0: "0",
    0.0004: "0.0004",
    0.00000042: "0.00000042",
    4e-12: "less than 0.000000001",
    0.123456: "0.1235",
    0.5: "0.50",
    1.27: "1.27",
    9.9999: "10.00",
    12.3456: "12.35",
    1234.5: "1,234.50",
    1e9: "1,000,000,000.00",
    -0.0004: "-0.0004",
    float("inf"): "inf",
}


@pytest.mark.parametrize(("usd", "shown"), AMOUNTS.items(), ids=str)
def test_an_amount_has_the_digits_that_it_needs(usd, shown):
    """Small amounts are never 0, and large ones are readable; what is unknown is named so."""
    assert usd_amount(usd) == shown and format_usd(usd) == f"{shown} USD"
    assert format_usd(None) == "unknown"


@given(st.floats(1e-9, 1e12))
def test_an_amount_is_near_what_is_shown(usd):
    """Four digits, two decimals, no exponent, no needless zeros."""
    shown = usd_amount(usd)
    assert re.fullmatch(r"[0-9]{1,3}(,[0-9]{3})*\.[0-9]{2,}", shown) and not re.search(
        r"\.[0-9]{2,}0$", shown
    )
    assert float(shown.replace(",", "")) == pytest.approx(
        usd, rel=5.1e-4, abs=0.0051 if usd >= 10 else 0
    )


def cost_of_a_result(usd):
    model = redraft.ScriptedModel([Reply("A text.", Usage(1, 2, 3, cost=usd))])
    return redraft.refine_sync("Write.", model, "words:2").summary()


def payment_of_a_batch(usd):
    from redraft.runs.report import BatchReport, RunSpending

    usage = Usage(2, 3, 4, cached_calls=1, cost=usd)
    spending = RunSpending.from_usage(usage, cache_savings=usd)
    return BatchReport(spending=spending, seconds=1.0).summary()[-1]


def preview_of_a_batch(usd):
    from redraft.cli.commands.batch import _span

    return _span((usd, 2 * usd), usd, usd_amount)


def forecast_of_a_batch(usd):
    from redraft.runs.forecast import ForecastRange, RunForecast

    found = ForecastRange(usd, usd, usd)
    return "\n".join(RunForecast(1, 2, found, None, found, None, None).summary())


def iterations_of_a_batch(usd):
    from redraft.cli.commands.batch import _iterations
    from redraft.runs.report import BatchReport, IterationReport, RunScores

    row = IterationReport(1, 1, 0.1, 2, usd, 1.0, usd)
    report = BatchReport(scores=RunScores(by_iteration=(row,)))
    return str([list(column.cells) for column in _iterations(report).columns])


def end_of_a_budget(usd):
    from redraft.middleware import BudgetTracker

    tracker = BudgetTracker(redraft.Budget(usd=usd))
    return str(tracker._exhaustion_error("usd", usd))


def shortage_of_a_plan(usd):
    from redraft.plans.limits import shortage_text

    return shortage_text("usd", SimpleNamespace(usd=usd), SimpleNamespace(usd=usd))


def usage_line(usd):
    from redraft.cli.progress import format_usage

    return format_usage(Usage(1, 2, 3, cost=usd))


def facts_of_a_request(usd):
    from redraft.cli.commands.show import _fact_lines
    from redraft.gateway.request_table import RequestFacts

    return _fact_lines(RequestFacts("t", cost=usd))["cost"]


def facts_of_a_run(usd):
    from redraft.cli.commands.runs import _facts
    from redraft.runs.report import BatchReport, RunSpending

    return str(list(_facts({"budget": {"usd": usd}}, BatchReport(spending=RunSpending(cost=usd)))))


def usage_of_a_tool(usd):
    from redraft.mcp_server.results import _calls_text

    return _calls_text({"calls": 1, "cost": usd})


def page_of_a_card(usd):
    from redraft.graders.cards import Card, Measure
    from redraft.validation.card_page import card_facts

    fields = dict.fromkeys(("grader", "fingerprint", "model", "date", "data", "sha256"), "x")
    headline = Measure("accuracy", None)
    card = Card(
        **fields,
        source="live",
        kind="pass",
        rows=1,
        unjudged=0,
        headline=headline,
        usage={"calls": 1, "cost": usd},
    )
    return dict(card_facts(card))["calls"]


def page_of_the_viewer(usd):
    from redraft.viewer.page_parts import money

    return money(usd)


def refusal_of_a_key(usd):
    from redraft.gateway.exchange import GatewayError
    from redraft.gateway.key_database import Charge, Spending
    from redraft.gateway.keys import NANO, KeyLimits, _check_budget

    key, charge = (
        SimpleNamespace(name="ci", limits=KeyLimits(usd_per_month=usd)),
        Charge(round(usd * NANO), 1),
    )
    with pytest.raises(GatewayError) as caught:
        _check_budget(key, "month", Spending(spent=round(usd * NANO), used_at=1.0), charge, 60.0)
    return caught.value.message


FACES = [
    cost_of_a_result,
    payment_of_a_batch,
    preview_of_a_batch,
    forecast_of_a_batch,
    iterations_of_a_batch,
    end_of_a_budget,
    shortage_of_a_plan,
    usage_line,
    facts_of_a_request,
    facts_of_a_run,
    usage_of_a_tool,
    page_of_a_card,
    page_of_the_viewer,
    refusal_of_a_key,
]


@each_row("face", FACES, ids=lambda face: face.__name__)
@each_row("usd", [0.0000042, 0.0004, 1234.5])
def test_money_is_shown_alike_everywhere(face, usd):
    """Each place where a person reads an amount in USD has the same digits, and no other form of
    it.
    """
    shown = face(usd)
    assert usd_amount(usd) in shown
    assert not re.search(r"\b0\.0+\b|1234|e-0", shown)


def test_no_place_formats_money_by_itself():
    """The source has one function for it: no number with fixed digits stands before a unit of
    money, or after a dollar sign.
    """
    own = re.compile(
        r"\.[0-9][fge]\}'?\"?\}? USD|\$\{[^}]*:[^}]*\}|(?:cost|usd|spent)[^{}\"]*:[^{}\"]*\.[0-9][fge]\}",
        re.IGNORECASE,
    )
    sources = [
        path for path in Path(redraft.__file__).parent.rglob("*.py") if path.name != "money.py"
    ]
    found = [
        f"{path}: {line.strip()}"
        for path in sources
        for line in path.read_text("utf-8").splitlines()
        if own.search(line)
    ]
    assert [line for line in found if "x-redraft-cost" not in line and "float(f" not in line] == []
