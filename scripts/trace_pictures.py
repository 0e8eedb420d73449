"""Take the pictures of scores in Phoenix and MLflow with a real browser: python
scripts/trace_pictures.py [phoenix] [mlflow]

It starts the real servers (their programs `phoenix` and `mlflow`, and `chromium`, must be on the
PATH), makes the run of the tests of scores, exports its scores, and opens the trace of a row.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import urllib.request
from pathlib import Path

from opentelemetry import trace
from playwright.sync_api import Page, sync_playwright

from redraft.base.sync import run_sync

ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "cli")]
from telemetry import score_tools, scored_run  # noqa: E402  (the path is set above)
from telemetry.score_server import export  # noqa: E402

FOLDER = ROOT / "docs" / "how-to" / "pictures"
SIZE = {"width": 1200, "height": 620}
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def open_phoenix(page: Page, url: str, trace_id: str) -> None:
    """Open the span of the call that wrote the answer, with its annotations."""
    with urllib.request.urlopen(f"{url}/v1/projects", timeout=30) as reply:  # noqa: S310  (our own)
        project = json.load(reply)["data"][0]["id"]
    page.goto(f"{url}/projects/{project}/traces/{trace_id}")
    page.get_by_text("chat Writer").last.click(timeout=60_000)
    page.wait_for_timeout(3_000)
    page.mouse.click(675, 304)  # "Annotations"
    page.wait_for_timeout(3_000)


def open_mlflow(page: Page, url: str, trace_id: str) -> None:
    """Open the trace with its assessments."""
    page.goto(f"{url}/#/experiments/0/traces?selectedEvaluationId=tr-{trace_id}")
    page.get_by_text("chat Writer").last.click(timeout=60_000)
    page.mouse.click(750, 68)  # "Assess" with the number of assessments
    page.wait_for_timeout(3_000)


# what starts a server, what opens a trace there, and the columns of the page that are shown
TOOLS = {
    "phoenix": (score_tools.phoenix, open_phoenix, (300, 900)),
    "mlflow": (score_tools.mlflow, open_mlflow, (0, 840)),
}


def take(tool: str, page: Page) -> None:
    """Make the run, export its scores to a tool, and write what the page shows."""
    start, open_trace, (left, width) = TOOLS[tool]
    with tempfile.TemporaryDirectory() as name, start(Path(name)) as (url, exporter):
        trace._TRACER_PROVIDER = scored_run.tracer_provider(exporter)  # noqa: SLF001  (for each tool another)
        run_sync(scored_run.make_run(Path(name)))
        run_sync(export(Path(name), tool, url))
        outcome = scored_run.stored_traces(Path(name))["known"].outcome
        open_trace(page, url, outcome.traceparent.split("-")[1])
        FOLDER.mkdir(exist_ok=True)
        clip = {"x": left, "y": 0, "width": width, "height": SIZE["height"]}
        page.screenshot(path=FOLDER / f"scores-{tool}.png", clip=clip)


def main(tools: list[str]) -> None:
    """Take the pictures of these tools, or of all."""
    os.environ[CONTENT] = "true"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for tool in tools or TOOLS:
            take(tool, browser.new_page(viewport=SIZE, color_scheme="light"))
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
