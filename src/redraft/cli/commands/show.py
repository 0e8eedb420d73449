"""`redraft show`: show a saved trace, or a request of a gateway."""

from __future__ import annotations

import re
from pathlib import Path

import click

from .. import options

EPILOG = """\b
Examples:
  redraft show proof.jsonl
  redraft show proof.jsonl --full | less -R
  redraft show proof.jsonl --json | jq .score
  redraft show req-0f8fad5bd9cb469fa1654c7f1a2b3c4d
  redraft show req-0f8fad5bd9cb469fa1654c7f1a2b3c4d --config gateway.toml

\b
A gateway (`redraft serve`) tells the ID of a request in the header x-redraft-trace-id.
Of a request whose profile keeps only metadata, the facts are shown: it has no texts.
"""
TRACE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@click.command(short_help="Show a saved trace, or a request of a gateway.", epilog=EPILOG)
@click.argument("trace", type=options.FILE)
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help=(
        "The folder of the gateway. Default: that of --config, else `gateway` in your data folder."
    ),
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Configuration of the gateway (TOML).",
)
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

    TRACE is a file, or the ID of a request that a gateway answered.
    """
    from ..operations.show import config_folder, show_file, show_request

    if folder and config:
        raise click.UsageError(
            "--folder and --config both say where the request is: give one of them"
        )
    if TRACE_ID.fullmatch(trace) and (folder or config or not Path(trace).exists()):
        show_request(
            trace, folder or (config_folder(config) if config else None), as_json=as_json, full=full
        )
    else:
        parameter = next(each for each in context.command.params if each.name == "trace")
        path = click.Path(exists=True, dir_okay=False).convert(trace, parameter, context)
        show_file(str(path), as_json=as_json, full=full)
