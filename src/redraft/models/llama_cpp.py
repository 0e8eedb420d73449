"""A GGUF file as a model, run in this process by llama.cpp (the package `xllamacpp`, extra
`local`).

It answers in the same form as an HTTP endpoint. Loading and generating happen in separate threads;
a cancelled call stops generating at its next token.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from threading import Event, Lock
from typing import Any
from weakref import WeakSet

from ..base.checks import check_extra
from ..base.jsontext import replace_lone_surrogates
from ..base.text import shorten
from ..errors import ConfigError, ModelError, ModelUnavailableError
from ..protocols import FORMATS, Reply, Request
from .chat_replies import read_reply
from .http_client import REFUSED_USAGE
from .openai_chat import ExtraBodyTools, complete_body, request_body
from .pricing import FREE
from .server_errors import ErrorBody, error_from_status
from .sse import StreamAssembler


class LocalModel(ExtraBodyTools):
    """The model in a GGUF file. It is loaded on the first call and freed by `aclose`, or with the
    object.

    Args:
        path: The GGUF file.
        context: Tokens that one call may hold. 0: as many as the model was trained with.
        parallel: Calls that run at a time; others wait.
        threads: CPU threads. 0: the default of llama.cpp.
        extra_body: Parameters to add to every request.

    Raises:
        ConfigError: The file or the package is missing.
    """

    price = FREE
    formats = FORMATS

    def __init__(
        self,
        path: str | Path,
        *,
        context: int = 0,
        parallel: int = 1,
        threads: int = 0,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = Path(path).expanduser()
        if not self.path.is_file():
            raise ConfigError(f"local: there is no model file {str(self.path)!r}")
        check_extra("local", "a local: model needs the package", "xllamacpp")
        self.name = self.path.stem
        self._server_options = (context * parallel, parallel, threads)
        self._extra = dict(extra_body or {})
        self._reset()
        _models.add(self)

    def _reset(self) -> None:
        self._server: Any = None
        self._loading = Lock()
        self._executor = ThreadPoolExecutor(
            self._server_options[1], thread_name_prefix="redraft-local"
        )

    def __repr__(self) -> str:
        return f"LocalModel({str(self.path)!r})"

    @property
    def identity(self) -> str:
        """The path, size and modification time of the file, and the parameters."""
        stat = self.path.stat()
        return f"local:{self.path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}:{self._server_options[0]}:{sorted(self._extra.items())}"  # noqa: E501

    async def complete(self, request: Request) -> Reply:
        body = replace_lone_surrogates(
            complete_body(request_body(self.name, request), request, self._extra)
        )
        stop = Event()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, self._generate, body, stop)
        except ModelError as error:
            error.args = (f"{self.name} (local): {error}",)
            raise
        finally:
            stop.set()

    async def aclose(self) -> None:
        """Free the model once the running calls are done. A later call loads it again."""
        servers, self._server = [self._server], None
        if servers[0] is not None:
            # dropping the last reference waits for its calls
            await asyncio.to_thread(servers.clear)

    def _generate(self, body: dict[str, Any], stop: Event) -> Reply:
        if stop.is_set():
            raise ModelUnavailableError("the call was cancelled", usage=REFUSED_USAGE)
        parts: list[Any] = []

        def add(part: Any) -> bool:
            """Add a part of the answer, or a list; return True to stop generating."""
            parts.extend(part if isinstance(part, list) else [part])
            return stop.is_set()

        streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
        try:
            answer = self._load_server().handle_chat_completions(streamed, add)
        except ValueError as error:  # (a schema or template that it cannot use)
            raise ModelError(
                f"status 400: {shorten(str(error))}", status=400, usage=REFUSED_USAGE
            ) from None
        return _parse_parts(parts) if answer is None else _parse_answer(answer)

    def _load_server(self) -> Any:
        with self._loading:
            if self._server is None:
                self._server = start_server(self.path, *self._server_options)
            return self._server


_models: WeakSet[LocalModel] = WeakSet()
_inherited_servers: list[
    Any
] = []  # servers of the parent process: freeing one would wait for threads that do not exist


def _reset_after_fork() -> None:
    """Make models in a forked child load again."""
    for model in list(_models):
        _inherited_servers.append(model._server)  # noqa: SLF001
        model._reset()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def _parse_answer(answer: Any) -> Reply:
    """Return the Reply in an answer that was not streamed, which is mostly an error."""
    if isinstance(answer, dict) and answer.get("error"):
        error = ErrorBody(answer)
        raise error_from_status(error.status or 500, error)
    return read_reply(answer)


def _parse_parts(parts: list[Any]) -> Reply:
    """Return the Reply in the parts of an answer that was streamed."""
    assembler = StreamAssembler()
    for part in parts:
        if isinstance(part, dict) and part.get("error"):
            return _parse_answer(part)
        assembler.add(part)
    return assembler.reply()


def start_server(
    path: Path, context: int, parallel: int = 1, threads: int = 0, key: str = ""
) -> Any:
    """Start a server with the model loaded; it ends with its last reference. It also listens on a
    local port, its `listening_address`, with the key, by default a random one that is not stored.

    Raises ModelUnavailableError if the file cannot be loaded.
    """
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.verbosity = context, parallel, -1
    params.hostnames, params.port, params.api_keys, params.ui = (
        ["127.0.0.1"],
        0,
        [key or token_hex(32)],
        False,
    )
    if threads:
        params.cpuparams.n_threads = threads
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        raise ModelUnavailableError(
            f"{str(path)!r} cannot be loaded: {error}", usage=REFUSED_USAGE
        ) from None
