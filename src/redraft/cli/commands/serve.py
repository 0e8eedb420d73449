"""`redraft serve`: the gateway, a server that refines the answers of any model for any client."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...base.checks import check_extra
from ...base.sync import run_sync
from ...errors import ConfigError
from ...gateway.config import GatewayConfig, default_config, load_config
from ...models.discovery import find_model
from ...models.openai_chat import Chat
from ...models.registry import openai_url
from .. import options
from ..output import RecordHandler, hide_waits, messages_are_json, notice, warning, write_event

if TYPE_CHECKING:
    from ...gateway.app import Gateway

LIBRARIES = ("starlette", "uvicorn", "prometheus_client")  # of the gateway
MODEL_OPTIONS = ("model", "judge", "model_param", "judge_param")

EPILOG = """\b
Examples:
  redraft serve --model openai:gpt-4o-mini
  redraft serve --model http://127.0.0.1:8080/v1#qwen3 --port 9000
  redraft serve --config gateway.toml
  redraft keys add chat-app --profile refine/fast --usd-per-day 5

\b
Clients of OpenAI and of Anthropic use it by changing their base URL. The model
is refine/NAME for a profile of the configuration, and pass/NAME for a model as
it is; with --model they are refine/default and pass/default.

\b
What is kept: by default one row for each request, without any text: its time,
key, model, status, score, tokens and cost, for 30 days and at most 1,000 MB.
store = "full" in [gateway] or [profiles.NAME] also keeps the prompt, the
answers and the grades; store = "off" keeps nothing. keep-days and keep-mb set
the limits. A request with "store": false is kept without any text in any case.
`redraft show ID` shows a request, `redraft view` those kept in full.
The access log on stderr has a line of JSON for each request, without texts
unless log-content = true.

\b
It listens on 127.0.0.1. On an address that other machines can reach it starts
only if there is an API key (`redraft keys add`), or with --insecure.
SIGTERM ends it once the requests at work are answered; SIGHUP reads --config
again.
"""


@click.command(short_help="Refine the answers of any model for any client.", epilog=EPILOG)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Models, profiles and limits (TOML).",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="The only model, instead of --config. Default: the one that is found.",
)
@click.option(
    "--judge",
    metavar="MODEL",
    help="The model that judges, or none; only with --model.",
)
@options.params
@click.option("--host", metavar="ADDRESS", help="Address to listen on. Default: 127.0.0.1.")
@click.option(
    "--port",
    type=options.WholeRange(0, 65_535),
    metavar="PORT",
    help="Port to listen on; 0: any free one. Default: 8484.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Where keys and requests are stored.",
)
@click.option("--insecure", is_flag=True, help="Let other machines use it without an API key.")
@click.option(
    "--access-log/--no-access-log",
    default=True,
    help="Write a line for each request to stderr. Default: yes.",
)
@options.debug
def serve(*, config: str | None, insecure: bool, access_log: bool, **given: Any) -> None:
    """Serve a gateway: clients of OpenAI and Anthropic get refined answers by changing their base
    URL.
    """
    check_extra("gateway", "redraft serve needs", *LIBRARIES)
    from ...gateway.access_log import access_log_on
    from ...gateway.server import GatewayServer, check_exposure

    hide_waits()
    gateway = read_config(config, given)
    if not insecure:
        check_exposure(gateway)
    with ExitStack() as stack:
        stack.enter_context(gateway_messages())
        log = stack.enter_context(access_log_on(sys.stderr.fileno())) if access_log else None

        def begin(url: str, running: Gateway) -> None:
            if log:
                log.on_lost = running.metrics.lost_lines.inc
            announce(url, running)

        GatewayServer(
            gateway,
            os.environ,
            read_config=(lambda: read_config(config, given)) if config else None,
            allow_public=insecure,
            say=_tell(notice),
            warn=_tell(warning),
            announce=begin,
            telemetry=click.get_current_context().obj,
        ).run()


def read_config(path: str | None, given: Mapping[str, Any]) -> GatewayConfig:
    """Return the configuration in a file, or for the one model that the options name, with the
    address and the folder that they name. Raises ConfigError, and UsageError for both.
    """
    of_models = {name: value for name in MODEL_OPTIONS if (value := given.get(name))}
    if path and of_models:
        raise click.UsageError(
            f"--{next(iter(of_models)).replace('_', '-')} cannot be combined with --config, which "
            "names the models"
        )
    if path:
        config = load_config(path, os.environ)
    else:
        model, judge = of_models.pop("model", None) or found_model(), of_models.pop("judge", None)
        settings = {f"{name}s": value for name, value in of_models.items()}
        config = default_config(model, os.environ, judge=judge, settings=settings)
    folder = given.get("folder")
    own = {"host": given.get("host"), "port": given.get("port"), "folder": folder and Path(folder)}
    chosen: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
    return replace(config, **chosen)


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


@contextmanager
def gateway_messages() -> Iterator[None]:
    """Show warnings and errors of the gateway within the context."""
    logger, handler = (
        logging.getLogger("redraft.gateway"),
        RecordHandler(lambda record: warning(record.getMessage())),
    )
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
