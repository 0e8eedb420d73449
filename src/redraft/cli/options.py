"""The options that commands share, so that they read and mean the same everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import reduce
from math import isfinite
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from .config import Setting

F = TypeVar("F", bound=Callable[..., Any])
READABLE = click.Path(exists=True, dir_okay=False, allow_dash=True)
WHOLE, COUNT = click.IntRange(0), click.IntRange(1)
POSITIVE = click.FloatRange(0)


def setting(*names: str, **about: Any) -> Callable[[F], F]:
    """An option with defaults in the environment and in files."""
    return click.option(*names, cls=Setting, **about)


def group(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several decorators as one, the first on top."""
    return lambda command: reduce(lambda done, decorate: decorate(done), reversed(decorators), command)


def _debug(ctx: click.Context, param: click.Parameter, on: bool) -> None:
    if on:
        os.environ["REDRAFT_DEBUG"] = "1"


debug = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_debug, is_eager=True, help="Show a traceback with an error."
)

as_json = click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout.")

grading = group(
    setting(
        "--require",
        multiple=True,
        metavar="SPEC",
        help="What the answer must keep, such as words:80-200 or contains:qubit (repeatable; `redraft graders` lists all).",
    ),
    setting(
        "--grader",
        multiple=True,
        metavar="NAME",
        help="Who scores it: a name that `redraft graders` lists, or a SPEC (repeatable).",
    ),
    setting(
        "--rubric", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="An LLM judge with the criteria in FILE."
    ),
    setting(
        "--trust",
        type=click.Choice(["check", "require"]),
        envvar="REDRAFT_GRADER_TRUST",
        help="Warn of graders that no card shows to be better than chance, or refuse them (see `redraft validate`).",
    ),
    setting("--cards", type=click.Path(file_okay=False), metavar="DIR", help="Where the cards are. Default: the user's own."),
)

asking = group(
    setting(
        "--model",
        metavar="MODEL",
        help="Who writes, such as openai:gpt-4o-mini or ollama:llama3.2; none: nobody. Default: look for one.",
    ),
    setting("--judge", metavar="MODEL", help="Who judges. Default: the model that writes."),
)

stopping = group(
    setting("--target", type=click.FloatRange(0, 1), default=0.9, show_default=True, metavar="SCORE", help="Stop at this score."),
    setting("--max-iterations", type=WHOLE, default=3, show_default=True, metavar="N", help="Refine at most N times."),
    setting("--patience", type=COUNT, default=2, show_default=True, metavar="N", help="Stop after N refinements without a gain."),
    setting("--min-delta", type=POSITIVE, default=0.01, show_default=True, metavar="D", help="A gain is more than D."),
    setting("--drafts", type=COUNT, default=1, show_default=True, metavar="N", help="Write N first drafts at once."),
    setting(
        "--min-gain",
        type=POSITIVE,
        default=0.01,
        show_default=True,
        metavar="G",
        help="Where a model judges: stop when no step is expected to lift the score by G for what it costs.",
    ),
    setting(
        "--gain-per",
        type=click.Choice(["calls", "tokens", "usd"]),
        default="calls",
        show_default=True,
        help="What a step costs: its calls, thousands of tokens, or USD.",
    ),
    setting(
        "--priors",
        metavar="shipped|learned|FILE",
        help="What is expected at first: the shipped figures (default), what earlier runs taught (`redraft priors`), or FILE.",
    ),
    setting(
        "--plain/--adaptive",
        default=None,
        help="Take scores at their word, or weigh what they are worth. Default: weigh them where a model judges.",
    ),
    setting(
        "--final-check/--no-final-check",
        default=False,
        help="Where it is not clear which of two is best, let the judge compare them. Default: no.",
    ),
)


WEIGHING = ("min_gain", "gain_per", "priors", "final_check")


def check_plain(ctx: click.Context) -> None:
    """Raises UsageError for what was typed beside --plain, and has no use there. Defaults from elsewhere do no harm."""
    typed = [name for name in WEIGHING if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE and ctx.params[name]]
    if ctx.params["plain"] and typed:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in typed)
        raise click.UsageError(f"--plain takes scores at their word, and has no use for {named}: leave out one or the other")


def price_of(text: str) -> tuple[str, tuple[float, float]]:
    """The model that `MODEL=IN,OUT` names, and its price. Raises ValueError."""
    model, _, amounts = text.rpartition("=")
    read, written = map(float, amounts.split(","))
    if not model.strip() or not all(isfinite(amount) and amount >= 0 for amount in (read, written)):
        raise ValueError(text)
    return model.strip(), (read, written)


def _priced(text: str) -> str:
    """A model with its price, as it was typed: settings are kept, and read again, as texts."""
    try:
        price_of(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no price: give MODEL=IN,OUT in USD per million tokens, such as llama3.2=0.1,0.4"
        ) from None
    return text


spending = group(
    setting("--budget-usd", type=POSITIVE, metavar="USD", help="Spend at most this much."),
    setting("--budget-calls", type=WHOLE, metavar="N", help="Make at most N model calls."),
    setting("--budget-tokens", type=WHOLE, metavar="N", help="Use at most N tokens, read and written together."),
    setting("--deadline", type=POSITIVE, metavar="SECONDS", help="End after so long."),
    setting(
        "--price",
        type=_priced,
        multiple=True,
        metavar="MODEL=IN,OUT",
        help="What a model takes for a million tokens read and written, in USD (repeatable).",
    ),
)

timeout = setting(
    "--timeout", type=POSITIVE, default=600.0, show_default=True, metavar="SECONDS", help="A call takes at most this long."
)

sampling = group(
    setting("--temperature", type=POSITIVE, metavar="T", help="How freely the model writes."),
    setting("--max-tokens", type=COUNT, metavar="N", help="Tokens in one answer, at most."),
    setting("--seed", type=int, metavar="N", help="For models that can repeat themselves."),
)
