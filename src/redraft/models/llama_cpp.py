"""A GGUF file as a model, run in this process by llama.cpp (the package `xllamacpp`, extra `local`).

It answers in the same form as an HTTP endpoint, and is read by the same reader. Loading and generating happen in
threads of its own; a cancelled call stops generating at its next token.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from threading import Event, Lock
from typing import Any
from weakref import WeakSet

from ..errors import ConfigError, ModelError, ModelUnavailableError
from ..jsontext import replace_lone_surrogates
from ..protocols import FORMATS, Reply, Request
from .http_client import REFUSED_USAGE
from .openai_chat import ExtraBodyTools, extra_parameters, request_body, without_none
from .openai_responses import ErrorBody, error_from_status, read_reply, shorten
from .pricing import FREE
from .sse import StreamAssembler

_INSTALL = "a local: model needs the package xllamacpp: pip install 'redraft[local]'"


class LocalModel(ExtraBodyTools):
    """The model in a GGUF file. `context` is what one call may hold in tokens (0: what the model was trained with).

    It is loaded on the first call and freed by `aclose`, or with the object. `parallel` calls run at a time, others wait.
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
        if find_spec("xllamacpp") is None:
            raise ConfigError(_INSTALL)
        self.name = self.path.stem
        self._server_options = (context * parallel, parallel, threads)
        self._extra = dict(extra_body or {})
        self._reset()
        _models.add(self)

    def _reset(self) -> None:
        """With nothing loaded."""
        self._server: Any = None
        self._loading = Lock()
        self._executor = ThreadPoolExecutor(self._server_options[1], thread_name_prefix="redraft-local")

    def __repr__(self) -> str:
        return f"LocalModel({str(self.path)!r})"

    @property
    def identity(self) -> str:
        """The file as it is now, and what it is run with."""
        now = self.path.stat()
        return (
            f"local:{self.path.resolve()}:{now.st_size}:{now.st_mtime_ns}:{self._server_options[0]}:{sorted(self._extra.items())}"
        )

    async def complete(self, request: Request) -> Reply:
        asked = replace_lone_surrogates(without_none(request_body(self.name, request) | extra_parameters(request, self._extra)))
        stop = Event()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, self._generate, asked, stop)
        except ModelError as error:
            error.args = (f"{self.name} (local): {error}",)
            raise
        finally:
            stop.set()

    async def aclose(self) -> None:
        """Frees the model once the calls under way are done. A later call loads it again."""
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(_release, [server])

    def _generate(self, body: dict[str, Any], stop: Event) -> Reply:
        if stop.is_set():
            raise ModelUnavailableError("the call was cancelled", usage=REFUSED_USAGE)
        pieces = _AnswerCollector(stop)
        streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
        try:
            whole = self._load_server().handle_chat_completions(streamed, pieces.add)
        except ValueError as error:  # a schema or template it cannot use
            raise ModelError(f"status 400: {shorten(str(error))}", status=400, usage=REFUSED_USAGE) from None
        return _parse_answer(whole) if whole is not None else pieces.reply()

    def _load_server(self) -> Any:
        with self._loading:
            if self._server is None:
                self._server = _start_server(self.path, *self._server_options)
            return self._server


_models: WeakSet[LocalModel] = WeakSet()
_inherited_servers: list[Any] = []  # engines whose threads are in another process: freeing one would wait for them


def _reset_after_fork() -> None:
    """In a forked child: it loads a model for itself."""
    for model in list(_models):
        _inherited_servers.append(model._server)  # noqa: SLF001  (this module's own)
        model._reset()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def _release(references: list[Any]) -> None:
    references.clear()


def _parse_answer(answer: Any) -> Reply:
    """A Reply from an answer that came in one piece: an error, as a rule."""
    if isinstance(answer, dict) and answer.get("error"):
        said = ErrorBody(answer)
        raise error_from_status(said.status or 500, said)
    return read_reply(answer)


class _AnswerCollector:
    """The parts of an answer as the engine hands them over. Saying True stops it."""

    def __init__(self, stop: Event) -> None:
        self._stop = stop
        self._parts: list[Any] = []

    def add(self, part: Any) -> bool:
        self._parts += part if isinstance(part, list) else [part]
        return self._stop.is_set()

    def reply(self) -> Reply:
        pieces = StreamAssembler()
        for part in self._parts:
            if isinstance(part, dict) and part.get("error"):
                return _parse_answer(part)
            pieces.add(part)
        return pieces.reply()


def _start_server(path: Path, context: int, parallel: int, threads: int) -> Any:
    """The engine with the model loaded. (It also listens on a port of this machine: to a key that nobody has.)"""
    xllamacpp: Any = import_module("xllamacpp")
    wanted = xllamacpp.CommonParams()
    wanted.model.path = str(path)
    wanted.n_ctx, wanted.n_parallel, wanted.verbosity = context, parallel, -1
    wanted.hostnames, wanted.port, wanted.api_keys, wanted.ui = ["127.0.0.1"], 0, [token_hex(32)], False
    if threads:
        wanted.cpuparams.n_threads = threads
    try:
        return xllamacpp.Server(wanted)
    except RuntimeError as error:
        raise ModelUnavailableError(f"{str(path)!r} cannot be loaded: {error}", usage=REFUSED_USAGE) from None
