"""`redraft models`: which models were found, and where."""

from __future__ import annotations

import click

from ...base.sync import run_sync
from ...errors import ConfigError
from ...models import DiscoveryResult, find_model
from ...models.discovery import search_address
from ...models.endpoint_url import parse_base_url
from .. import options
from ..exit_codes import FAILED, OK
from ..output import print_json
from ..terminal import console, grid, text_line

MAX_NAMES = 6  # of models at one place
EPILOG = """\b
Examples:
  redraft models
  redraft models http://127.0.0.1:8080/v1
  redraft models --json | jq '.locations[] | select(.available)'
"""


def _checked_url(
    _context: click.Context, _parameter: click.Parameter, url: str | None
) -> str | None:
    try:
        if url is not None:
            parse_base_url(url.partition("#")[0])
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return url


@click.command(short_help="List where Redraft looks for models, and what it found.", epilog=EPILOG)
@click.argument("url", required=False, callback=_checked_url)
@options.as_json
@options.debug
def models(url: str | None, as_json: bool) -> int:
    """List the places where Redraft looks for models, what each needs, and what it found. The first
    model is used.

    With the URL of a server, list its models alone; the exit code is 1 if there are none.
    """
    discovery = run_sync(search_address(url) if url else find_model(search_all=True))
    code = FAILED if url and not discovery.locations[0].models else OK
    if not as_json:
        _show(discovery, is_all=url is None)
        return code
    locations = [
        {
            "where": place.where,
            "available": place.is_available,
            "models": list(place.models),
            "selected": place.selected_model,
            "note": place.note,
        }
        for place in discovery.locations
    ]
    name = discovery.model.name if discovery.model else None
    print_json({"model": name, "locations": locations})
    return code


def _show(discovery: DiscoveryResult, *, is_all: bool) -> None:
    """Draw a row for each place, then which model is used; or a row with all models of one place,
    and how they are named.
    """
    out = console(stderr=False)
    table = grid()
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for place in discovery.locations:
        shown = place.models[: MAX_NAMES if is_all else None]
        more = (
            f" and {len(place.models) - len(shown)} more" if len(shown) < len(place.models) else ""
        )
        about = text_line(", ".join(shown) + more)
        if place.note:
            about.append_text(
                text_line(
                    ("; " if place.models else "") + place.note, "" if place.is_available else "dim"
                )
            )
        table.add_row(
            text_line("✓", "green") if place.is_available else text_line("·", "dim"),
            text_line(place.where),
            about,
        )
    out.print(table)
    out.print()
    if not is_all:
        (place,) = discovery.locations
        name = f"{place.where}#{place.selected_model or 'NAME'}"
        if place.models:
            out.print(text_line(f"Name one with --model: {name}", "bold"))
        return
    used = (
        f"Used unless --model says otherwise: {discovery.model.name}"
        if discovery.model
        else "No model was found. Without one, the built-in editor repairs what it can: "
        "redraft demo"
    )
    out.print(text_line(used, "bold"))
    others = "anthropic:NAME, google:NAME, http://host:port/v1#NAME, local:FILE.gguf ..."
    out.print(text_line(f"Name others with --model: {others}", "dim"))
