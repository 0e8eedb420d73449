"""`redraft show`: reads a trace from a file, or a request from the folder of a gateway, and shows
it.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from ...base.money import format_usd
from ...base.text import pluralize
from ...errors import ConfigError
from ...gateway.config import configured_folder, default_folder
from ...gateway.request_store import StoredRequest, find_stored_request
from ...gateway.request_table import RequestFacts
from ...loop.trace import Trace
from ...storage import read_trace
from ..output import format_time
from ..terminal import (
    console,
    grid,
    show_exchange,
    show_trace,
    text_line,
    trace_as_json,
)


def show_file(path: str, *, as_json: bool, full: bool) -> None:
    """Show the trace in a file. Raises StoreError."""
    _show(read_trace(path), as_json=as_json, full=full)


def config_folder(path: str) -> Path:
    """Return the folder that a configuration names; the keys of its models are not needed. Raises
    ConfigError.
    """
    return configured_folder(path)


def show_request(trace_id: str, folder: Path | None, *, as_json: bool, full: bool) -> None:
    """Show a request that a gateway answered. Raises ConfigError if its folder has none of that ID,
    StoreError.
    """
    place = folder or default_folder()
    request = find_stored_request(place, trace_id)
    if request is None:
        start = f"the gateway's folder {str(place)!r} has no request {trace_id!r}"
        raise ConfigError(
            start
            if folder
            else f"there is no file {trace_id!r}, and {start}: --folder names another"
        )
    if as_json:
        trace = json.loads(trace_as_json(request.trace)) if request.trace else {}
        click.echo(json.dumps({"request": request.facts.as_data(), **trace}, indent=2))
        return
    _show_facts(request)
    if request.trace and request.facts.outcome and request.facts.iterations is None:
        show_exchange(request.trace, full=full)
    elif request.trace:
        _show(request.trace, as_json=False, full=full)


def _show(trace: Trace, *, as_json: bool, full: bool) -> None:
    if as_json:
        click.echo(trace_as_json(trace))
    else:
        show_trace(trace, full=full)


def _show_facts(request: StoredRequest) -> None:
    """Show the facts; those that the trace shows as well only without a trace."""
    out = console(stderr=False)
    out.print(text_line(f"request {request.facts.trace_id}", "bold"))
    table = grid(indent=1)
    for label, value in _fact_lines(request.facts).items():
        if value:
            table.add_row(text_line(label, "dim"), text_line(value))
    out.print(table)
    if request.trace is None:
        why = "there is no answer" if request.facts.outcome else "the request is in progress"
        why = why if request.facts.level == "full" else "its texts were not kept"
        out.print(text_line(f"no trace: {why}", "dim"))


def _fact_lines(facts: RequestFacts) -> dict[str, str]:
    """Return what to show, by label; "" for what does not apply."""
    data = facts.as_data()
    known = {
        name: "unknown" if data[name] is None else f"{data[name]:,}"
        for name in ("input_tokens", "output_tokens")
    }
    calls = "unknown calls" if facts.calls is None else pluralize(facts.calls, "call")
    return {
        "model": facts.model,
        "protocol": facts.wire,
        "key": f"{facts.key_name} ({facts.key_id})"
        if facts.key_name and facts.key_id
        else facts.key_name or facts.key_id,
        "started": format_time(data["started_at"]),
        "outcome": " ".join(
            str(part)
            for part in (facts.outcome or "in progress", facts.status, facts.error)
            if part
        ),
        "took": "" if facts.milliseconds is None else f"{facts.milliseconds / 1000:,.3f} s",
        "score": "" if facts.score is None else f"{facts.score:.2f}",
        "iterations": "" if facts.iterations is None else str(facts.iterations),
        "stopped": facts.stop,
        "usage": f"{calls}, {known['input_tokens']} tokens in, {known['output_tokens']} tokens out",
        "cost": format_usd(facts.cost),
        "kept": facts.level,
    }
