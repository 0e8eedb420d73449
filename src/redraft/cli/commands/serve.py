"""`redraft serve`: the gateway, a server that refines the answers of any model for any client."""

from __future__ import annotations

from typing import Any

import click

from .. import options

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
def serve(**values: Any) -> None:
    """Serve a gateway: clients of OpenAI and Anthropic get refined answers by changing their base
    URL.
    """
    from ..operations.serve import ServeOptions, serve_gateway

    serve_gateway(ServeOptions(**values))
