"""`redraft mcp`: refinement, grading, comparison and validation as tools of coding agents."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ... import mcp_server
from ...base.checks import check_extra
from ...gateway.config import default_folder
from ...graders.registry import as_grader
from ...mcp_server.workbench import CallLimits, Workbench
from .. import options
from ..command_classes import ConfiguredCommand
from ..exit_codes import OK, handle_sigterm
from ..output import notice
from ..request import announce_sources, budget_of, build_settings, connect_declared
from ..user_code import load_grader

SKILL = Path(mcp_server.__file__).parent / "SKILL.md"
HTTP_OPTIONS = ("host", "port", "folder", "allow_host", "insecure")
EPILOG = """\b
Examples:
  redraft mcp
  redraft mcp --model openai:gpt-4o-mini --budget-usd 0.10 --deadline 120
  redraft mcp --model ollama:llama3.2 --allow-model openai:gpt-4o --judge openai:gpt-4o
  redraft mcp --allow-grader graders.py:polite --traces traces
  redraft mcp --http --port 8485 --folder gateway
  redraft mcp --skill > .claude/skills/redraft/SKILL.md

\b
Coding agents start it themselves, for example with
  claude mcp add redraft -- redraft mcp --model openai:gpt-4o-mini
It speaks the Model Context Protocol over stdin and stdout, and ends when stdin does.

\b
The tools are refine, grade, compare and validate_grader. A call can name no file, no
code and no address, and only the models given here. The budget and the deadline are
those of each call. Without a model, requirements still work.

\b
With --http it serves http://127.0.0.1:8485/mcp. The keys of the folder (redraft keys
add) are required if there are any; a public address without keys is refused unless
--insecure is given. Nothing of a call is stored without --traces.
"""


@click.command(
    short_help="Serve Redraft's tools to coding agents (MCP).",
    cls=ConfiguredCommand,
    epilog=EPILOG,
)
@options.models
@options.option(
    "--allow-model",
    heading=options.WRITING,
    multiple=True,
    metavar="MODEL",
    help="Another model that calls may choose instead of --model (repeatable).",
)
@options.budget
@options.timeout
@options.option(
    "--max-calls",
    heading=options.SPENDING,
    type=options.COUNT,
    default=8,
    show_default=True,
    metavar="N",
    help="Number of calls that work at the same time; others wait.",
)
@options.option(
    "--allow-grader",
    type=options.GRADER,
    heading=options.GRADING,
    multiple=True,
    metavar="NAME",
    help="A grader that calls may name as well, such as FILE.py:NAME or reward:URL (repeatable).",
)
@options.option(
    "--skill",
    heading=options.GENERAL,
    is_flag=True,
    help="Print SKILL.md, which tells coding agents how to use the tools and commands, and end.",
)
@options.option(
    "--traces",
    heading=options.OUTPUT,
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Store the trace of every refinement in DIR.",
)
@options.option(
    "--http", heading="Over HTTP", is_flag=True, help="Serve over HTTP instead of stdin and stdout."
)
@options.option(
    "--host",
    heading="Over HTTP",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on (with --http).",
)
@options.option(
    "--port",
    heading="Over HTTP",
    type=options.WholeRange(0, 65535),
    default=8485,
    show_default=True,
    metavar="N",
    help="Port; 0 means any free one.",
)
@options.option(
    "--folder",
    heading="Over HTTP",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Folder of the keys and their budgets. Default: your data folder.",
)
@options.option(
    "--allow-host",
    heading="Over HTTP",
    multiple=True,
    metavar="NAME",
    help="Another name of this server in the Host header (repeatable).",
)
@options.option(
    "--insecure", heading="Over HTTP", is_flag=True, help="Serve a public address without keys."
)
@options.debug
@click.pass_context
def mcp(
    ctx: click.Context,
    /,
    *,
    allow_model: tuple[str, ...],
    max_calls: int,
    skill: bool,
    allow_grader: tuple[str, ...],
    traces: str | None,
    http: bool,
    host: str,
    port: int,
    folder: str | None,
    allow_host: tuple[str, ...],
    insecure: bool,
    **settings: Any,
) -> int:
    """Serve refine, grade, compare and validate_grader as tools, over stdin and stdout or over
    HTTP.
    """
    if skill:
        click.echo(SKILL.read_text(encoding="utf-8"), nl=False)
        return OK
    model, judge = settings["model"], settings["judge"]
    for name in () if http else HTTP_OPTIONS:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --http")
    if allow_model and model in {None, "none"}:
        raise click.UsageError("--allow-model goes with --model, which is the default of calls")
    check_extra("mcp", "redraft mcp needs", "mcp", "uvicorn")
    announce_sources(*filter(None, [model, judge]))
    limits = CallLimits(
        {**build_settings({**settings, "grader": ()}), "budget": budget_of(settings)}, max_calls
    )
    if http:
        from ...mcp_server.http import with_call_limit

        limits = with_call_limit(limits)
    models: Any = [model, *allow_model] if model else ()
    bench = Workbench(
        False if model == "none" else models,
        False if judge == "none" else judge,
        limits,
        graders={name: as_grader(load_grader(name)) for name in allow_grader},
        traces=Path(traces) if traces else None,
        connect=connect_declared,
    )
    if http:
        from ...mcp_server.http import HttpAddress, serve_http

        place = Path(folder) if folder else default_folder()
        address = HttpAddress(place, host, port, allow_host, insecure)
        work = serve_http(bench, address, lambda url: notice(f"serving {url}; Ctrl-C ends it"))
    else:
        from ...mcp_server.stdio import serve_stdio

        work = serve_stdio(bench)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(bench, work))
    return OK


async def _serve(bench: Workbench, work: Coroutine[Any, Any, None]) -> None:
    """Serve until the client ends it, or Ctrl-C or SIGTERM, which cancel the work that is not
    finished.
    """
    serving = asyncio.ensure_future(work)
    try:
        with (
            handle_sigterm(asyncio.get_running_loop(), serving.cancel),
            suppress(asyncio.CancelledError),
        ):
            await serving
    finally:
        await bench.close()
