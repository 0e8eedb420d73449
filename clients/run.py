"""Run the clients that nobody here wrote through a gateway, and write what works as a table.

    python clients/run.py [--only TEXT] [--output FILE] [--verbose]

The clients are installed into build/clients. Nothing of this needs a key, or a network once they
are installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

import coding_agents
from coding_agents import AGENTS, Agent
from gateway.clients.coding_model import DONE, DRAFT
from gateway.clients.library_model import ClientsModel
from gateway.clients.scripted_model import ScriptedModel
from gateway.clients.scripted_upstream import NEVER
from gateway.clients.stand import DOWN, KINDS, ROUTES, Stand, stand
from installing import BUILD, NPM, install_from_npm, install_python, pinned_versions
from matrix import Cell, first_line, summary, summary_table, table
from proxies import deployment, proxy

LIBRARIES = ROOT / "clients" / "libraries"
WITH_LITELLM = (
    "dspy_programs",
    "instructor_forms",
    "litellm_sdk",
    "litellm_proxy",
)  # they need older ones
SCRIPT_SECONDS = 500
PAGE = ROOT / "docs" / "gateway.md"
MARKS = "<!-- gateway clients -->\n", "<!-- end of clients -->"
RESULTS = BUILD / "cells.json"  # of all runs; a run of some clients replaces theirs
LEAVE_SECONDS = 20
TASK, JUDGE_DOWN, KILLED = "task", "task, judge down", "killed midway"


def agent_cells(place: Stand, agent: Agent) -> Iterator[Cell]:
    """Run an agent over each route; over those to `refine/` also without a judge, and killed."""
    for route, model in ROUTES.items():
        if agent.model and "claude" in model:
            continue
        name = model.replace("gpt", agent.model) if agent.model else model
        done = {TASK: run_agent(place, agent, name)}
        if name.startswith("refine/"):
            done[JUDGE_DOWN] = run_agent(place, agent, name + DOWN)
            done[KILLED] = kill_agent(place, agent, name)
        for task, error in done.items():
            yield Cell(agent.name, agent.version, task, route, error)


def run_agent(place: Stand, agent: Agent, model: str) -> str | None:
    """Return the error of an agent's run, or None."""
    work = Path(tempfile.mkdtemp(prefix="agent-"))
    try:
        command, where = coding_agents.prepare(agent, place.gateway.root, model, work)
        place.model.reset(ClientsModel(str(where.folder)))
        place.judge.reset(place.judge.answer)
        process = coding_agents.start(command, where)
        try:
            printed, told = process.communicate(timeout=coding_agents.SECONDS)
        except subprocess.TimeoutExpired:
            end(process)
            return f"no end after {coding_agents.SECONDS} s; {first_line(process.communicate()[1])}"
        refined = model.startswith("refine/") and not model.endswith(DOWN)
        error = coding_agents.mistake(where, printed, DONE if refined else DRAFT)
        if error is None and refined and not place.judge.received:
            return "the judge was not asked"
        if error and process.returncode:
            return printed + told + error
        return error and f"{error}; {refusals(place)}"
    finally:
        shutil.rmtree(work, ignore_errors=True)


def refusals(place: Stand) -> str:
    return f"error of the model: {place.model.refused[0]}" if place.model.refused else "no error"


def kill_agent(place: Stand, agent: Agent, model: str) -> str | None:
    """Kill an agent while the model is at work on its second turn; return what is wrong then."""
    work = Path(tempfile.mkdtemp(prefix="agent-"))
    try:
        command, where = coding_agents.prepare(agent, place.gateway.root, model, work)
        script = ClientsModel(str(where.folder))
        place.model.reset(lambda talk: NEVER if talk.calls else script(talk))
        process = coding_agents.start(command, where)
        started = time.monotonic()
        while not any(has_calls(each.body) for each in place.model.received):
            if process.poll() is not None or time.monotonic() - started > coding_agents.SECONDS:
                end(process)
                return "".join(process.communicate()) + " error: it made no second request"
            time.sleep(0.05)
        end(process)
        process.communicate()
        if not place.model.left.wait(LEAVE_SECONDS):
            return "error: the call of the model goes on after the client left"
        return unhealthy(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def has_calls(body: dict) -> bool:
    text = json.dumps(body)
    return (
        any(
            f'"type": "{kind}"' in text
            for kind in ("tool_use", "function_call", "custom_tool_call")
        )
        or '"tool_calls"' in text
    )


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def unhealthy(place: Stand) -> str | None:
    """Return what is wrong with a gateway that should have no request at work."""
    until = time.monotonic() + LEAVE_SECONDS
    while (left := at_work(place.gateway.get("/metrics"))) and time.monotonic() < until:
        time.sleep(0.1)
    if left:
        return f"error: {left} requests are still at work"
    place.gateway.get("/healthz")
    return None


def at_work(metrics: str) -> float:
    """Return how many requests are at work or wait."""
    lines = [line for line in metrics.splitlines() if not line.startswith("#")]
    known = ("redraft_gateway_in_flight ", "redraft_gateway_queued ")
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(known))


def library_cells(place: Stand, script: Path, tasks: str = "", behind: str = "") -> Iterator[Cell]:
    """Run a script of libraries/ over all routes; it prints a line of JSON for each cell. `tasks`:
    a pattern for the names of the cells' functions; `behind`: ends the cells' names.
    """
    place.model.reset(ClientsModel())
    python = install_python("litellm" if script.stem in WITH_LITELLM else "plain")
    names = {model: route for route, model in ROUTES.items()}
    with tempfile.TemporaryDirectory(prefix="library-") as home:
        environment = {"PATH": program_path(script, python), "HOME": home, "CELLS": tasks}
        done = subprocess.run(
            [python, script, place.gateway.root, place.model.url, *names],
            capture_output=True,
            text=True,
            cwd=home,
            env=environment,
            timeout=SCRIPT_SECONDS,
            check=False,
        )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"cell"')]
    versions = {**pinned_versions(), "promptfoo": NPM["promptfoo"][1]}
    for line in lines:
        yield Cell(
            line["client"],
            versions[line["client"]],
            line["cell"] + behind,
            names[line["model"]],
            line["error"],
        )
    if done.returncode or not lines:
        yield Cell(script.stem, "", "runs", next(iter(ROUTES)), done.stderr[-2000:] or "no output")


def program_path(script: Path, python: Path) -> str:
    """Return where a script finds its programs."""
    folders = [str(python.parent), os.environ["PATH"]]
    if script.stem == "promptfoo_command":
        folders.insert(0, str(install_from_npm("promptfoo") / ".bin"))
    return ":".join(folders)


def cells_behind() -> Iterator[Cell]:
    """Run the SDKs through a gateway whose models are deployments of litellm's proxy."""
    program = install_python("litellm").parent / "litellm"

    @contextmanager
    def before_model(model: ScriptedModel) -> Iterator[str]:
        names = [
            (name, f"{kind}/{name}", model.url if kind == "openai" else model.root)
            for name, kind in KINDS.items()
        ]
        with proxy(program, [deployment(*each) for each in names]) as address:
            yield f"{address}/v1"

    with stand(before_model) as place:
        behind = f", litellm {pinned_versions()['litellm']} behind us"
        yield from library_cells(place, LIBRARIES / "openai_sdk.py", "chat.*", behind)
        yield from library_cells(place, LIBRARIES / "anthropic_sdk.py", "messages.*", behind)


def cells(only: str) -> Iterator[Cell]:
    with stand() as place:
        for agent in AGENTS:
            if only in f"{agent.name} {agent.package}".lower():
                yield from agent_cells(place, agent)
        for script in sorted(LIBRARIES.glob("[a-z]*.py")):
            if script.stem != "cells" and only in script.stem:
                yield from library_cells(place, script)
    if only in "litellm_behind":
        yield from cells_behind()


def known_cells() -> dict[tuple[str, ...], Cell]:
    """Return what earlier runs found, by place."""
    if not RESULTS.exists():
        return {}
    return {cell.place: cell for cell in (Cell(**each) for each in json.loads(RESULTS.read_text()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run clients with this text in their name")
    parser.add_argument("--output", type=Path, help="write the table to this file")
    parser.add_argument("--docs", action="store_true", help="put the summary into docs/gateway.md")
    parser.add_argument("--verbose", action="store_true", help="print errors whole")
    chosen = parser.parse_args()
    if not chosen.only:
        RESULTS.unlink(missing_ok=True)
    for cell in cells(chosen.only.lower()):
        done = {**known_cells(), cell.place: cell}
        RESULTS.write_text(json.dumps([asdict(each) for each in done.values()], indent=1))
        error = cell.error and (cell.error if chosen.verbose else first_line(cell.error))
        print(
            f"{cell.client} {cell.version}, {cell.task}, {cell.route}: {error or 'works'}",
            file=sys.stderr,
            flush=True,
        )
    found = sorted(known_cells().values(), key=lambda cell: cell.place[:2])
    text = table(found, ROUTES) + "\n" + summary(found) + "\n"
    if chosen.output:
        chosen.output.write_text(text)
    if chosen.docs:
        begin, end = MARKS
        before, _, rest = PAGE.read_text().partition(begin)
        after = rest.partition(end)[2]
        PAGE.write_text(f"{before}{begin}\n{summary_table(found, ROUTES)}{end}{after}")
    print(text)


if __name__ == "__main__":
    main()
