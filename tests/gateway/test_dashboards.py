"""What Prometheus and Grafana get for a gateway: the alerts and the dashboard of `deploy/`, and the
queries of the docs. Every query names metrics and labels that /metrics has, and parses.
"""

import asyncio
import json
import re
import shutil
import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
import yaml
from fault_server import error
from prometheus_client.parser import text_string_to_metric_families

from redraft.gateway.keys import METRICS_ONLY, KeyRing
from redraft.gateway.request_table import RequestFacts
from require import require_program
from reserved_port import reserved_port

from .running import PROMPT, config_for, http_client, running

ROOT = Path(__file__).parents[2]
ALERTS, DASHBOARD = ROOT / "deploy/prometheus-alerts.yml", ROOT / "deploy/grafana-dashboard.json"
OF_PROMETHEUS = {"up": {"instance", "job"}}
KEYWORDS = set("by without on ignoring group_left group_right and or unless bool offset".split())
GROUPING = r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)"
SELECTOR = r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}"


@dataclass(frozen=True)
class Query:
    """A query in PromQL."""

    text: str

    @property
    def bare(self):
        """The text without strings and durations."""
        return re.sub(r"\[[^\]]*\]", "", re.sub(r'"(?:[^"\\]|\\.)*"', '""', self.text))

    @property
    def metrics(self):
        """The names of the metrics."""
        text = re.sub(r"\{[^}]*\}", "", re.sub(GROUPING, "", self.bare))
        names = re.findall(r"(?<![\w.])[a-zA-Z_:][\w:]*(?![\w:]*\s*\()", text)
        return set(names) - KEYWORDS

    @property
    def labels(self):
        """Pairs of metrics and a label that is asked of them."""
        grouped = re.findall(r"\w+", " ".join(re.findall(GROUPING, self.bare)))
        pairs = {(metric, label) for metric in self.metrics for label in grouped}
        for metric, matchers in re.findall(SELECTOR, self.bare):
            pairs |= {(metric, label) for label in re.findall(r"(\w+)\s*[=!]", matchers)}
        return pairs


def rules():
    return [
        rule
        for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]


def panels():
    return [
        panel
        for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
        if panel["type"] != "row"
    ]


def queries():
    """All queries, by where they are."""
    found = [(f"alert {rule['alert']}", rule["expr"]) for rule in rules()]
    for panel in panels():
        found += [(f"panel {panel['title']}", each["expr"]) for each in panel["targets"]]
    for page in sorted((ROOT / "docs").rglob("*.md")):
        spans = re.findall(
            r"`([^`\n]*\b(?:redraft_(?:gateway|telemetry)_|process_\w+_)\w+[^`\n]*)`",
            page.read_text("utf-8"),
        )
        found += [(page.name, span.replace("\\|", "|")) for span in spans]
    return [(where, Query(text)) for where, text in found]


@pytest.fixture
async def labels(tmp_path):
    """The labels of each metric of a gateway, once it has answered requests of each kind."""
    known = {"outcome": "answered", "milliseconds": 5.0, "calls": 1, "status": 200, "wire": "chat"}
    used = {"input_tokens": 3, "output_tokens": 5, "cost": 0.5}
    refined = {"score": 0.5, "iterations": 1, "stop": "target"}
    async with (
        running(config_for(tmp_path, "http://127.0.0.1:9/v1")) as (url, gateway),
        http_client(url.removesuffix("/v1")) as client,
    ):
        for facts in (
            RequestFacts("t1", model="refine/fast", **known, **used, **refined),
            RequestFacts("t2", model="pass/tiny", **known),
        ):
            gateway.metrics.request_started()
            gateway.metrics.request_finished(facts)
        text = (await client.get("/metrics")).text
    families = list(text_string_to_metric_families(text))
    return (
        {family.name: set() for family in families}
        | OF_PROMETHEUS
        | {
            sample.name: {*sample.labels, "instance", "job"}
            for family in families
            for sample in family.samples
        }
    )


async def test_every_query_asks_what_there_is(labels):
    """Of the alerts, of the dashboard and of the docs."""
    wrong = [
        (where, query.text, name)
        for where, query in queries()
        for name in query.metrics
        # the page that lists the metrics also names histograms as a whole
        if not (labels.get(name) or (name in labels and query.text == name))
    ]
    assert wrong == []
    wrong = [
        (where, query.text, metric, label)
        for where, query in queries()
        for metric, label in query.labels
        if label not in labels[metric]
    ]
    assert wrong == []
    places = [where for where, _ in queries()]
    assert len(places) > 60 and places.count("operate-a-gateway.md") > 25


@pytest.mark.parametrize(
    ("text", "metrics", "pairs"),
    [
        ("up", {"up"}, set()),
        ("a_total / b_total > 0.01", {"a_total", "b_total"}, set()),
        ('sum by (m) (rate(a{s=~"5.."}[5m])) > 1e3', {"a"}, {("a", "m"), ("a", "s")}),
        ('a{b="or {c}", d!="x"} and on (i) c', {"a", "c"}, {("a", "b"), ("a", "d"), ("a", "i")}),
    ],
)
def test_names_in_a_query(text, metrics, pairs):
    """What this file reads out of queries."""
    query = Query(text)
    assert query.metrics == metrics
    assert query.labels >= pairs


def promtool(*arguments):
    return subprocess.run(
        [require_program("promtool"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_prometheus_accepts_the_alerts():
    """`promtool check rules` finds nothing."""
    done = promtool("check", "rules", ALERTS)
    assert done.returncode == 0, done.stderr
    assert f"{len(rules())} rules found" in done.stdout


def test_prometheus_parses_every_query(tmp_path):
    """As the expression of a rule: of the dashboard, whose only variable stands in a string, and of
    the docs.
    """
    recorded = [{"record": f"q{n}", "expr": query.text} for n, (_, query) in enumerate(queries())]
    groups = [{"name": "all", "rules": recorded}]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": groups}))
    done = promtool("check", "rules", tmp_path / "rules.yml")
    assert done.returncode == 0, done.stderr + done.stdout


def series(name, values, **labels):
    return {"series": f"{name}{json_labels(labels)}", "values": values}


def json_labels(labels):
    pairs = {"instance": "g:8484", "job": "redraft"} | labels
    return "{" + ", ".join(f"{name}={json.dumps(value)}" for name, value in pairs.items()) + "}"


CAUSE = {"model": "pass/small", "cause": "ModelUnavailableError"}
REQUESTS = {"model": "pass/small", "wire": "chat"}
FIRING = {
    "RedraftDown": [series("up", "1x9 0x20")],
    "RedraftFailures": [
        series("redraft_gateway_requests_total", "0+100x30", **REQUESTS, status="200"),
        series("redraft_gateway_requests_total", "0x9 0+5x20", **REQUESTS, status="502"),
    ],
    "RedraftKeyRefused": [
        series(
            "redraft_gateway_upstream_errors_total",
            "0x9 1x20",
            model="pass/small",
            cause="AuthenticationError",
        )
    ],
    "RedraftModelFails": [series("redraft_gateway_upstream_errors_total", "0x9 0+2x20", **CAUSE)],
    "RedraftRetries": [
        series("redraft_gateway_requests_total", "0+10x60", **REQUESTS, status="200"),
        series("redraft_gateway_failed_attempts_total", "0x9 0+90x50", **CAUSE),
    ],
    "RedraftQueue": [series("redraft_gateway_queued", "0x9 3x20")],
    "RedraftRefusals": [
        series("redraft_gateway_refusals_total", "0x9 0+1x50", reason="budget_exhausted")
    ],
    "RedraftStore": [series("redraft_gateway_store_errors_total", "0x9 1x20")],
    "RedraftAccessLog": [series("redraft_gateway_access_log_lost_lines_total", "0x9 40x20")],
    "RedraftTelemetry": [series("redraft_telemetry_dropped_total", "0x9 0+9x50", signal="traces")],
    "RedraftDescriptors": [
        series("process_open_fds", "100x9 900x20"),
        series("process_max_fds", "1000x30"),
    ],
}
"""What each alert is for: all is well for nine minutes."""


def fires(alert, minute, count):
    """A check of promtool: how many of an alert have fired within nineteen minutes."""
    return {
        "expr": f'count(max_over_time(ALERTS{{alertname="{alert}", alertstate="firing"}}[19m]))',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": "{}", "value": count}] if count else [],
    }


def test_each_alert_fires_for_what_it_is_for(tmp_path):
    """Not before: among them those for the first failure of its kind since the start."""
    assert set(FIRING) == {rule["alert"] for rule in rules()}
    shutil.copy(ALERTS, tmp_path)
    tests = [
        {
            "interval": "1m",
            "input_series": given,
            "promql_expr_test": [fires(alert, 9, 0), fires(alert, 29, 1)],
        }
        for alert, given in FIRING.items()
    ]
    content = {"rule_files": [ALERTS.name], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yml").write_text(json.dumps(content))
    done = promtool("test", "rules", tmp_path / "test.yml")
    assert done.returncode == 0, done.stderr + done.stdout


def test_dashboard():
    """Each panel has an identity and a place of its own, a title, and the data source and the
    instance that the user chooses.
    """
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    every = board["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert {variable["name"] for variable in board["templating"]["list"]} == {
        "datasource",
        "instance",
    }
    cells = [
        (x, y)
        for panel in every
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    for panel in panels():
        assert panel["title"] and panel["targets"]
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == every[1]["datasource"]
            metric_count = len(
                re.findall(r"\b(?:redraft_gateway|redraft_telemetry|process)_\w+", target["expr"])
            )
            assert target["expr"].count('instance=~"$instance"') == metric_count


def own_address():
    """An address of this machine that is no loopback: what comes from it needs a key."""
    told = subprocess.run([require_program("hostname"), "-I"], capture_output=True, text=True)
    addresses = [each for each in told.stdout.split() if "." in each]
    return addresses[0] if addresses else pytest.skip("no address besides loopback")


@asynccontextmanager
async def prometheus(folder, jobs):
    """Run Prometheus with the alerts, scraping each second; yield a function that asks it."""
    program = require_program("prometheus")
    shutil.copy(ALERTS, folder)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [ALERTS.name],
        "scrape_configs": jobs,
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    with reserved_port() as port:
        process = await asyncio.create_subprocess_exec(
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1") as client:

            async def ask(path, **params):
                try:
                    return (await client.get(path, params=params)).json().get("data", {})
                except (httpx2.TransportError, ValueError):  # it is starting
                    return {}

            try:
                yield ask
            finally:
                process.terminate()
                await process.wait()


async def found(ask, query):
    """The values that a query has once it has any, by the job."""
    async with asyncio.timeout(60):
        while not (result := (await ask("/query", query=query)).get("result")):
            await asyncio.sleep(0.2)
    return {each["metric"].get("job"): each["value"][1] for each in result}


@pytest.mark.slow
async def test_a_real_prometheus_sees_the_first_failure(faults, tmp_path):
    """With a key that only scrapes it gets the figures, without one it does not; the first failure
    of a cause is an increase, and its alert fires.
    """
    with KeyRing(tmp_path) as ring:
        secret = ring.add("prometheus", profiles=METRICS_ONLY)[1]
        client_key = ring.add("app")[1]
    faults.says(error(401))
    gateway = replace(config_for(tmp_path, f"{faults.url}#tiny"), host="0.0.0.0")
    async with running(gateway) as (url, _), http_client(url) as client:
        targets = [{"targets": [f"{own_address()}:{urlsplit(url).port}"]}]
        keyed = {"authorization": {"credentials": secret}, "static_configs": targets}
        jobs = [
            {"job_name": "redraft", **keyed},
            {"job_name": "keyless", "static_configs": targets},
        ]
        async with prometheus(tmp_path, jobs) as ask:
            assert await found(ask, "up == 1") == {"redraft": "1"}
            assert await found(ask, "up == 0") == {"keyless": "0"}
            errors = 'redraft_gateway_upstream_errors_total{cause="AuthenticationError"}'
            await found(ask, f"count_over_time({errors}[1m]) > 1")
            reply = await client.post(
                "/chat/completions",
                json={"model": "pass/tiny", "messages": PROMPT},
                headers={"x-api-key": client_key},
            )
            assert reply.status_code == 502
            increased = await found(ask, f"increase({errors}[1m]) > 0")
            assert set(increased) == {"redraft"}
            assert await found(ask, 'ALERTS{alertname="RedraftKeyRefused"}') == {"redraft": "1"}
            groups = (await ask("/rules"))["groups"]
            health = {rule["name"]: rule["health"] for each in groups for rule in each["rules"]}
            assert health == {rule["alert"]: "ok" for rule in rules()}
            for where, query in queries():
                data = await ask("/query", query=query.text.replace("$instance", ".*"))
                assert "result" in data, (where, query.text)
