"""`redraft show`: show a saved trace, or a request of a gateway."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ...base.money import format_usd
from ...base.text import pluralize
from ...errors import ConfigError
from ...gateway.config import configured_folder, default_folder
from ...gateway.request_store import StoredRequest, find_stored_requests
from ...gateway.request_table import RequestFacts, clean_request_id
from ...storage import read_trace
from .. import options
from ..output import format_time, notice, print_json
from ..terminal import (
    console,
    figure_table,
    print_trace,
    show_exchange,
    show_facts,
    show_trace,
    text_line,
    trace_as_json,
)

EPILOG = """\b
Examples:
  redraft show proof.jsonl
  redraft show proof.jsonl --full | less -R
  redraft show proof.jsonl --json | jq .score
  redraft show req-0f8fad5bd9cb469fa1654c7f1a2b3c4d
  redraft show req-0f8fad5bd9cb469fa1654c7f1a2b3c4d --config gateway.toml

\b
A gateway (`redraft serve`) tells the ID of a request in the header x-redraft-trace-id.
What the client sent as x-request-id and the W3C ID of the trace find requests, too: the
latest hundred are listed if there are several. An ID with "." or "/" in it needs --folder
or --config.
Of a request whose profile keeps only metadata, the facts are shown: it has no texts.
"""


@click.command(short_help="Show a saved trace, or a request of a gateway.", epilog=EPILOG)
@click.argument("trace", type=options.FILE)
@options.gateway_place(exists=True)
@options.as_json
@click.option(
    "--full", is_flag=True, help="Show whole texts instead of excerpts around the changes."
)
@options.debug
@click.pass_context
def show(
    context: click.Context,
    trace: str,
    folder: Path | None,
    config: str | None,
    *,
    as_json: bool,
    full: bool,
) -> None:
    """Show a saved TRACE: scores, feedback, changes and usage. It calls no model.

    TRACE is a file, or an ID of a request that a gateway answered: its own, the client's
    x-request-id, or the W3C ID of the trace to which it belongs.
    """
    if folder and config:
        raise click.UsageError(
            "--folder and --config both say where the request is: give one of them"
        )
    is_file = Path(trace).exists() or Path(trace).suffix or "/" in trace
    if folder or config or (clean_request_id(trace) and not is_file):
        # the keys of the models of a configuration are not needed
        place = folder or (configured_folder(config) if config else None)
        _show_request(trace, place, as_json=as_json, full=full)
    else:
        parameter = next(each for each in context.command.params if each.name == "trace")
        path = click.Path(exists=True, dir_okay=False).convert(trace, parameter, context)
        print_trace(read_trace(str(path)), as_json=as_json, full=full)


def _show_request(id: str, folder: Path | None, *, as_json: bool, full: bool) -> None:
    """Show the request of a gateway that has an ID, or a list of several. Raises ConfigError if its
    folder has none, StoreError.
    """
    place = folder or default_folder()
    found = find_stored_requests(place, clean_request_id(id) or id)
    if not found:
        start = f"the gateway's folder {str(place)!r} has no request {id!r}"
        raise ConfigError(
            start if folder else f"there is no file {id!r}, and {start}: --folder names another"
        )
    if len(found) > 1:
        _list_requests([request.facts for request in found], as_json=as_json)
        return
    [request] = found
    if as_json:
        trace = json.loads(trace_as_json(request.trace)) if request.trace else {}
        click.echo(json.dumps({"request": request.facts.as_data(), **trace}, indent=2))
        return
    _show_facts(request)
    if request.trace and request.facts.outcome and request.facts.iterations is None:
        show_exchange(request.trace, full=full)
    elif request.trace:
        show_trace(request.trace, full=full)


def _list_requests(found: list[RequestFacts], *, as_json: bool) -> None:
    """List requests that share an ID of a client, or a trace."""
    if as_json:
        print_json({"requests": [facts.as_data() for facts in found]})
        return
    shown = ("started", "key", "model", "outcome", "took", "score")
    cells = ([each.trace_id, *(_fact_lines(each)[name] for name in shown)] for each in found)
    console(stderr=False).print(figure_table(("id", *shown), cells, ("id", "took", "score")))
    notice("several requests have this ID: `redraft show` with an ID of the first column shows one")


def _show_facts(request: StoredRequest) -> None:
    """Show the facts; without a trace, why there is none."""
    facts = request.facts
    show_facts(
        f"request {facts.trace_id}",
        ((label, value) for label, value in _fact_lines(facts).items() if value),
    )
    if request.trace is None:
        why = "there is no answer" if facts.outcome else "the request is in progress"
        why = why if facts.level == "full" else "its texts were not kept"
        console(stderr=False).print(text_line(f"no trace: {why}", "dim"))


def _fact_lines(facts: RequestFacts) -> dict[str, str]:
    """Return what to show, by label; "" for what does not apply."""
    data = facts.as_data()
    known = {
        name: "unknown" if data["usage"][name] is None else f"{data['usage'][name]:,}"
        for name in ("input_tokens", "output_tokens")
    }
    calls = "unknown calls" if facts.calls is None else pluralize(facts.calls, "call")
    return {
        "model": facts.model,
        "protocol": facts.wire,
        "client's ID": facts.client_request_id or "",
        "trace": facts.otel_trace_id or "",
        "key": f"{facts.key_name} ({facts.key_id})"
        if facts.key_name and facts.key_id
        else facts.key_name or facts.key_id,
        "started": format_time(data["started_at"]),
        "outcome": " ".join(
            str(part)
            for part in (facts.outcome or "in progress", facts.status, facts.error, facts.cause)
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
