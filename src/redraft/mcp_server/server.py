"""The protocol: the list of tools, and calls with progress, cancellation and errors.

An error of a call is a result with `isError`, whose text the calling model can act on. It holds no
stack trace; what is unexpected is logged on stderr.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, TypeVar

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from pydantic import ValidationError

from .. import __version__
from ..base.checks import format_value, unknown_name_message
from ..base.error_text import error_text
from ..base.jsontext import check_bounds, replace_lone_surrogates
from ..base.masking import Mask, secrets_in_environment
from ..base.text import format_duration
from ..errors import RedraftError
from ..gateway.exchange import GatewayError
from .arguments import ToolInput, read_arguments, tool_schema
from .progress import CallProgress
from .results import ToolResult
from .tools import TOOLS, ToolEntry
from .workbench import Workbench

T = TypeVar("T")
Context: TypeAlias = ServerRequestContext[Any, Any]
Admit: TypeAlias = Callable[[Context, CallProgress], AbstractAsyncContextManager[object]]
"""What stands around the work of a call: it waits for a place, and reserves a budget. It may raise
RedraftError and GatewayError.
"""

MAX_ERRORS = 5  # of one invalid input that are named
MAX_SHOWN = 60  # characters of a wrong value in an error
MAX_VALUES = 100_000  # in the arguments of a call
INSTRUCTIONS = (
    "Redraft makes texts better and measures how good they are. `grade` checks a text against "
    "requirements and graders, `refine` rewrites it until they are met, `compare` says which of "
    "several is best, and `validate_grader` whether a grader agrees with people. Requirements "
    "such as words:80-200 or bullets:3 need no model."
)
LOG = logging.getLogger("redraft.mcp_server")


def make_server(bench: Workbench, admit: Admit | None = None) -> Server[Any]:
    """Return the server of the tools. `admit` stands around each call; without it, calls only wait
    for a place.
    """
    listed = [_listed_tool(tool, bench) for tool in TOOLS.values()]

    async def list_tools(
        _context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(
        context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            raise MCPError(
                types.INVALID_PARAMS,
                f"there is no tool {params.name[:80]!r}; there are: {', '.join(TOOLS)}",
            )
        return await _call(tool, params.arguments or {}, bench, context, admit)

    return Server(
        "redraft",
        version=__version__,
        title="Redraft",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _listed_tool(tool: ToolEntry, bench: Workbench) -> types.Tool:
    """Return the description of a tool. None changes anything but stored traces; most call models,
    which are elsewhere.
    """
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool_schema(tool.input, bench.model_names),
        output_schema=tool.result.model_json_schema(),
        annotations=types.ToolAnnotations(
            title=tool.title, read_only_hint=True, open_world_hint=True
        ),
    )


async def _call(
    tool: ToolEntry,
    arguments: dict[str, Any],
    bench: Workbench,
    context: Context,
    admit: Admit | None,
) -> types.CallToolResult:
    """Do the work of a call, and return its result or its error."""
    progress = CallProgress()
    try:
        call = _read(tool.input, arguments)
        async with admit(context, progress) if admit else bench.admission.slot():
            result = await _run_apart(_work(tool, call, bench, context, progress))
    except ValidationError as error:
        return _error_result(_invalid_input_text(tool, bench, error))
    except RedraftError as error:
        so_far = error.result.value if tool.name == "refine" and error.result is not None else ""
        return _error_result(
            error_text(error), *([f"the best answer so far:\n\n{so_far}"] if so_far else [])
        )
    except GatewayError as error:
        wait = error.retry_after
        later = "" if wait is None else f"; try again in {format_duration(wait)}"
        return _error_result(error.message + later)
    except Exception:
        LOG.exception("%s failed", tool.name)
        return _error_result(
            f"{tool.name} failed because of a fault in Redraft; the log of the server says more"
        )
    return _tool_result(result)


def _read(kind: type[ToolInput], arguments: dict[str, Any]) -> ToolInput:
    """Return the checked input of a call. Raises ValidationError, and OverlargeInputError for one
    that is too large or too deep.
    """
    try:
        check_bounds(arguments, MAX_VALUES)
        call = read_arguments(kind, arguments)
        # the one field whose values are not limited otherwise
        check_bounds(getattr(call, "answer_schema", None), MAX_VALUES)
    except ValidationError:
        raise
    except ValueError as error:
        raise OverlargeInputError(f"the arguments are refused: {error}") from None
    return call


class OverlargeInputError(RedraftError):
    """The arguments of a call hold too many values, or are nested too deep."""


async def _work(
    tool: ToolEntry, call: ToolInput, bench: Workbench, context: Context, progress: CallProgress
) -> ToolResult:
    """Run a tool. If the client asks for its progress, send that, to the last note before the
    result or the error.
    """
    if not (context.meta and "progress_token" in context.meta):
        return await tool.run(call, bench, progress)
    async with progress.sent_to(context.session.report_progress):
        return await tool.run(call, bench, progress)


async def _run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run the work in a task of its own. When cancelled, cancel it once and wait until it has
    ended.

    The protocol's library cancels again and again, at every await: the work could not close its
    connections.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        raise


def _tool_result(result: ToolResult) -> types.CallToolResult:
    """Return a result for the client. Lone surrogates, which UTF-8 cannot hold, are replaced."""
    content: list[Any] = [
        types.TextContent(type="text", text=replace_lone_surrogates(text))
        for text in result.texts()
    ]
    data = json.dumps(result.model_dump(by_alias=True), ensure_ascii=False)
    return types.CallToolResult(
        content=content, structured_content=json.loads(replace_lone_surrogates(data))
    )


def _error_result(*texts: str) -> types.CallToolResult:
    """Return an error for the client."""
    mask = Mask(secrets_in_environment(os.environ))  # an endpoint may echo a key
    content: list[Any] = [
        types.TextContent(type="text", text=mask(replace_lone_surrogates(text))) for text in texts
    ]
    return types.CallToolResult(content=content, is_error=True)


def _invalid_input_text(tool: ToolEntry, bench: Workbench, error: ValidationError) -> str:
    """Return what is wrong with an input: the fields, and what is allowed."""
    problems = error.errors(include_url=False, include_context=False)
    named = [_problem_text(tool, bench, each) for each in problems[:MAX_ERRORS]]
    more = f"; and {len(problems) - MAX_ERRORS} more" if len(problems) > MAX_ERRORS else ""
    return f"{tool.name}: {'; '.join(named)}{more}"


def _problem_text(tool: ToolEntry, bench: Workbench, problem: Mapping[str, Any]) -> str:
    """Return one problem of an input, with the value found; for an unknown argument with the most
    similar ones.
    """
    kind, where = problem["type"], problem["loc"]
    if kind == "extra_forbidden" and len(where) == 1:
        return unknown_name_message(
            "argument", str(where[0]), tool_schema(tool.input, bench.model_names)["properties"]
        )
    found = (
        ""
        if kind in {"value_error", "missing", "extra_forbidden"}
        else f", got {format_value(problem['input'], MAX_SHOWN)}"
    )
    return ": ".join(
        filter(
            None, [".".join(map(str, where)), problem["msg"].removeprefix("Value error, ") + found]
        )
    )
