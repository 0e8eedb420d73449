"""`redraft mcp`: checks the arguments, makes what all calls share, and serves until the client or
the user ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...base import checks
from ...graders import as_grader
from ..exit_codes import OK, handle_sigterm
from ..output import notice
from ..request import (
    SharedArguments,
    announce_sources,
    budget_of,
    build_settings,
    connect_declared,
)
from ..user_code import load_grader

if TYPE_CHECKING:
    from ...mcp_server.workbench import Workbench

HTTP_OPTIONS = ("host", "port", "folder", "allow_host", "insecure")


@dataclass(frozen=True, kw_only=True)
class McpArguments(SharedArguments):
    """The arguments of `redraft mcp`."""

    allow_model: tuple[str, ...] = ()
    max_calls: int = 8
    allow_grader: tuple[str, ...] = ()
    traces: str | None = None
    http: bool = False
    host: str = "127.0.0.1"
    port: int = 8485
    folder: str | None = None
    allow_host: tuple[str, ...] = ()
    insecure: bool = False


def run_command(values: Mapping[str, Any]) -> int:
    """Serve the tools, and return the exit code."""
    arguments = McpArguments.from_values(values)
    _check(arguments)
    announce_sources(*filter(None, [arguments.model, arguments.judge]))
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(arguments))
    return OK


def _check(arguments: McpArguments) -> None:
    """Raise UsageError for options without an effect, and ConfigError if the extra is not
    installed.
    """
    ctx = click.get_current_context()
    if not arguments.http:
        chosen = [
            name
            for name in HTTP_OPTIONS
            if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        ]
        if chosen:
            raise click.UsageError(f"--{chosen[0].replace('_', '-')} goes with --http")
    if arguments.allow_model and arguments.model in {None, "none"}:
        raise click.UsageError("--allow-model goes with --model, which is the default of calls")
    checks.check_extra("mcp", "redraft mcp needs", "mcp", "uvicorn")


async def _serve(arguments: McpArguments) -> None:
    """Serve until the client ends it, or Ctrl-C or SIGTERM, which cancel the work that is not
    finished.
    """
    bench = _workbench(arguments)
    serve = _http_server(arguments, bench) if arguments.http else _stdio_server(bench)
    serving = asyncio.ensure_future(serve())
    try:
        with (
            handle_sigterm(asyncio.get_running_loop(), serving.cancel),
            suppress(asyncio.CancelledError),
        ):
            await serving
    finally:
        await bench.close()


def _workbench(arguments: McpArguments) -> Workbench:
    """Return what all calls share. Raises ConfigError."""
    from ...mcp_server.workbench import CallLimits, Workbench

    a = arguments
    models: Any = False if a.model == "none" else [a.model, *a.allow_model] if a.model else ()
    limits = CallLimits({**build_settings(a), "budget": budget_of(a)}, a.max_calls)
    graders = {name: as_grader(load_grader(name)) for name in a.allow_grader}
    judge: Any = False if a.judge == "none" else a.judge
    if a.http:
        from ...mcp_server.http import with_call_limit

        limits = with_call_limit(limits)
    return Workbench(
        models,
        judge,
        limits,
        graders=graders,
        traces=Path(a.traces) if a.traces else None,
        connect=connect_declared,
    )


def _stdio_server(bench: Workbench) -> Callable[[], Awaitable[None]]:
    from ...mcp_server.stdio import serve_stdio

    return lambda: serve_stdio(bench)


def _http_server(arguments: McpArguments, bench: Workbench) -> Callable[[], Awaitable[None]]:
    from ...gateway.config import default_folder
    from ...mcp_server.http import HttpAddress, serve_http

    a = arguments
    folder = Path(a.folder) if a.folder else default_folder()
    address = HttpAddress(folder, a.host, a.port, a.allow_host, a.insecure)
    return lambda: serve_http(bench, address, lambda url: notice(f"serving {url}; Ctrl-C ends it"))
