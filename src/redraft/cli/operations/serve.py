"""`redraft serve`: finds the configuration, and serves it until a signal ends it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...base import checks
from ...base.sync import run_sync
from ...errors import ConfigError
from ...gateway.config import GatewayConfig, default_config, load_config
from ...models import find_model
from ...models.openai_chat import Chat
from ...models.registry import openai_url
from ..output import hide_waits, messages_are_json, notice, warning, write_event

if TYPE_CHECKING:
    from ...gateway.app import Gateway


@dataclass(frozen=True)
class ServeOptions:
    """The options of the command; None: not given."""

    config: str | None = None
    model: str | None = None
    judge: str | None = None
    model_param: Mapping[str, Any] | None = None
    judge_param: Mapping[str, Any] | None = None
    host: str | None = None
    port: int | None = None
    folder: str | None = None
    insecure: bool = False
    access_log: bool = True


def check_gateway_extra(command: str) -> None:
    """Raise ConfigError unless the libraries of the gateway are installed."""
    libraries = ("starlette", "uvicorn", "prometheus_client")
    checks.check_extra("gateway", f"redraft {command} needs", *libraries)


def serve_gateway(options: ServeOptions) -> None:
    """Serve until a signal. Raises ConfigError."""
    check_gateway_extra("serve")
    from ...gateway.access_log import access_log_on
    from ...gateway.server import GatewayServer, check_exposure

    hide_waits()
    config = read_config(options)
    if not options.insecure:
        check_exposure(config)
    with ExitStack() as stack:
        stack.enter_context(gateway_messages())
        if options.access_log:
            stack.enter_context(access_log_on(sys.stderr.fileno()))
        read_again = (lambda: read_config(options)) if options.config else None
        GatewayServer(
            config,
            os.environ,
            read_config=read_again,
            allow_public=options.insecure,
            say=_tell(notice),
            warn=_tell(warning),
            announce=announce,
        ).run()


def read_config(options: ServeOptions) -> GatewayConfig:
    """Return the configuration that the options mean. Raises ConfigError."""
    if options.config:
        for name in ("model", "judge", "model_param", "judge_param"):
            if getattr(options, name):
                raise click.UsageError(
                    f"--{name.replace('_', '-')} cannot be combined with --config, which names "
                    "the models"
                )
        config = load_config(options.config, os.environ)
    else:
        settings = {
            f"{name}s": value
            for name in ("model_param", "judge_param")
            if (value := getattr(options, name))
        }
        config = default_config(
            options.model or found_model(), os.environ, judge=options.judge, settings=settings
        )
    given = {
        "host": options.host,
        "port": options.port,
        "folder": Path(options.folder) if options.folder else None,
    }
    return replace(config, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def found_model() -> str:
    """Return the name of the model that is found. Raises ConfigError if there is none."""
    found = run_sync(find_model())
    model = found.model
    if model is None:
        raise ConfigError(
            "no model was found: name one with --model or --config (`redraft models` shows where "
            "Redraft looks)"
        )
    if isinstance(model, Chat):
        is_openai = model.base_url.rstrip("/") == openai_url(os.environ).rstrip("/")
        return f"openai:{model.name}" if is_openai else f"{model.base_url}#{model.name}"
    return model.name


def announce(url: str, gateway: Gateway) -> None:
    """Write where the gateway listens, and what it serves."""
    from ...gateway.server import prefer_event_loop

    prefer_event_loop()
    names, folder = gateway.routing.names, gateway.config.folder
    for name, refiner in gateway.routing.refiners.items():
        if refiner.default_judge_note:
            notice(f"refine/{name}: {refiner.default_judge_note}")
    if messages_are_json():
        write_event(
            "serving",
            stdout=True,
            url=url,
            models=names,
            folder=str(folder),
            needs_key=not gateway.keys.is_open,
        )
        return
    click.echo(url)
    sys.stdout.flush()
    notice(f"models: {', '.join(names)}")
    notice(
        f"stored in {folder}; {'no API key is needed' if gateway.keys.is_open else 'clients need an API key'}; Ctrl-C ends it"  # noqa: E501
    )


def _tell(write: Callable[[str], object]) -> Callable[[str], None]:
    """Return a function that writes a message if it can: a full disk behind stderr must fail no
    request, nor the end.
    """

    def tell(message: str) -> None:
        with suppress(OSError):
            write(message)

    return tell


class _MessageHandler(logging.Handler):
    """Shows what the gateway logs as warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        _tell(warning)(record.getMessage())


@contextmanager
def gateway_messages() -> Iterator[None]:
    """Show warnings and errors of the gateway within the context."""
    logger, handler = logging.getLogger("redraft.gateway"), _MessageHandler(logging.WARNING)
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
