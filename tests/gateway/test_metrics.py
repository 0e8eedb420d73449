"""The figures for Prometheus: what each request adds, what is unknown, and the bounds of labels."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from redraft.errors import MODEL_CAUSES
from redraft.gateway.metrics import CONTENT_TYPE, MAX_VALUES, REFUSALS, GatewayMetrics
from redraft.gateway.request_table import RequestFacts

REFINED = RequestFacts(
    "t1",
    model="refine/fast",
    wire="chat",
    outcome="answered",
    status=200,
    score=0.85,
    iterations=2,
    stop="target",
    calls=6,
    input_tokens=300,
    output_tokens=100,
    cost=0.25,
    milliseconds=4000.0,
)
PASSED = replace(
    REFINED, model="pass/m", score=None, iterations=None, stop="", milliseconds=7.0, cost=None
)


def figures(metrics):
    """Every sample by its name without the prefix, and its labels."""
    return {
        (
            sample.name.removeprefix("redraft_gateway_"),
            *sorted(sample.labels.values()),
        ): sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
    }


def after(*all_facts, **options):
    metrics = GatewayMetrics(["refine/fast", "pass/m"], **options)
    for facts in all_facts:
        metrics.request_started()
        metrics.request_finished(facts)
    return metrics


def test_refined_request():
    """Everything that is known of it is counted, under the name of its profile."""
    shown = figures(after(REFINED, REFINED))
    assert shown["requests_total", "200", "chat", "refine/fast"] == 2
    assert shown["refine_seconds_sum", "refine/fast"] == 8
    assert shown["refine_seconds_bucket", "5.0", "refine/fast"] == 2
    assert shown["refine_seconds_bucket", "2.5", "refine/fast"] == 0
    assert shown["tokens_total", "input", "refine/fast"] == 600
    assert shown["tokens_total", "output", "refine/fast"] == 200
    assert shown["cost_usd_total", "refine/fast"] == 0.5
    assert shown["iterations_sum", "refine/fast"] == 4
    assert shown["score_sum", "refine/fast"] == 1.7
    assert shown["stops_total", "refine/fast", "target"] == 2
    assert shown["in_flight",] == 0


def test_passed_request_has_its_own_seconds_and_no_score():
    """Buckets of milliseconds; an unknown cost adds nothing."""
    shown = figures(after(PASSED))
    assert shown["pass_seconds_bucket", "0.01", "pass/m"] == 1
    assert shown["pass_seconds_bucket", "0.005", "pass/m"] == 0
    assert not {name for name, *_ in shown} & {
        "score_sum",
        "cost_usd_total",
        "stops_total",
        "refine_seconds_sum",
    }


def test_unknown_tokens_are_counted_as_unknown():
    """They are not read as 0."""
    shown = figures(after(replace(PASSED, input_tokens=None, output_tokens=None), PASSED))
    assert shown["unmetered_requests_total", "pass/m"] == 1
    assert shown["tokens_total", "input", "pass/m"] == 300


def test_a_refused_request_has_no_unknown_tokens():
    """No model was called, so nothing is missing in the sums."""
    shown = figures(
        after(replace(PASSED, status=400, calls=0, input_tokens=None, output_tokens=None))
    )
    assert ("unmetered_requests_total", "pass/m") not in shown


@pytest.mark.parametrize(
    ("status", "error"), [(402, "budget_exhausted"), (429, "rate_limited"), (503, "overloaded")]
)
def test_refusals(status, error):
    """By the code of the error."""
    shown = figures(
        after(
            RequestFacts(
                "t", model="refine/fast", wire="chat", status=status, error=error, outcome="failed"
            )
        )
    )
    assert shown["refusals_total", error] == 1
    assert shown["requests_total", str(status), "chat", "refine/fast"] == 1


def test_failures_are_counted_from_0():
    """The series of each model and cause are there before anything fails, so that the first failure
    is an increase; also of a model that a reload adds, and none of another name.
    """
    metrics = after()
    for name in ("upstream_errors_total", "failed_attempts_total"):
        found = {key: value for key, value in figures(metrics).items() if key[0] == name}
        models = ("refine/fast", "pass/m")
        assert found == {(name, *sorted((each, m))): 0 for each in MODEL_CAUSES for m in models}
    assert {key[1] for key in figures(metrics) if key[0] == "refusals_total"} == {*REFUSALS}
    metrics.use_models(["pass/new"])
    metrics.upstream_error("pass/new", "RateLimitError")
    shown = figures(metrics)
    assert shown["upstream_errors_total", "RateLimitError", "pass/new"] == 1
    assert shown["upstream_errors_total", "ModelTimeoutError", "pass/new"] == 0


def test_gauges_and_other_counters():
    """In flight, waiting, errors upstream and of the store, lost lines, and the process."""
    metrics = after(queue_length=lambda: 7)
    metrics.request_started()
    metrics.upstream_error("pass/m", "RateLimitError")
    metrics.store_error()
    metrics.lost_lines(3)
    shown = figures(metrics)
    assert (shown["in_flight",], shown["queued",]) == (1, 7)
    assert shown["upstream_errors_total", "RateLimitError", "pass/m"] == 1
    assert (shown["store_errors_total",], shown["access_log_lost_lines_total",]) == (1, 3)
    assert shown["process_resident_memory_bytes",] > 1e6
    assert CONTENT_TYPE.startswith("text/plain")


def test_labels_are_bounded_and_hold_nothing_of_clients():
    """Names of models that do not exist are one value, and so is everything beyond the limit."""
    many = [
        replace(REFINED, model=f"sk-secret-{n}", stop=f"stop{n}", wire=f"wire{n}")
        for n in range(500)
    ]
    metrics = after(*many)
    text = metrics.text()
    assert "sk-secret" not in text and "alice" not in text
    assert text.count("redraft_gateway_stops_total{") == MAX_VALUES + 1


def test_two_gateways_do_not_share_figures():
    """Each has a registry of its own."""
    assert (
        figures(after(REFINED))["iterations_sum", "refine/fast"]
        == figures(after(REFINED))["iterations_sum", "refine/fast"]
    )


def test_all_metrics_are_in_the_manual():
    """The page for operators explains each of them."""
    page = (Path(__file__).parents[2] / "docs/how-to/operate-a-gateway.md").read_text(
        encoding="utf-8"
    )
    names = {
        family.name for family in text_string_to_metric_families(after(REFINED, PASSED).text())
    }
    ours = {name for name in names if name.startswith("redraft_")}
    assert len(ours) == 17
    assert [name for name in sorted(ours) if name not in page] == []
    samples = {name for name, *_ in figures(after(REFINED, PASSED))}
    in_page = set(re.findall(r"redraft_gateway_(\w+)", page))
    histograms = {name.removesuffix("_count") for name in samples if name.endswith("_count")}
    assert in_page - samples - histograms == {"unmetered_requests_total"}, "no such figure"
