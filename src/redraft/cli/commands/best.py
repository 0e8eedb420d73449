"""`redraft best`: the best of several answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ...errors import RedraftError
from .. import options, output
from ..config import ConfiguredCommand
from ..errors import INTERRUPTED, exit_code
from ..options import SharedArguments

if TYPE_CHECKING:
    from ...result import Result
    from ..views.ranking import RankingDisplay

UNKNOWN_PROMPT = "(The request is unknown. Judge the answers as texts.)"

EPILOG = """\b
Examples:
  redraft best "Name a bakery on a boat" -n 6 --grader ranker
  redraft best "Explain quantum computing" --model ollama:llama3.2 --judge openai:gpt-4o-mini --require words:80-200
  redraft best "Summarise it" --response a.md --response b.md --grader judge > best.md
  redraft best --response a.md --response b.md --require bullets:3 --json

\b
The best answer goes to stdout, the ranking to stderr. Ties are marked; the
earliest of tied answers is kept. With --json, stdout gets one JSON object per
line for every event; the last two are {"event": "ranking", ...} and
{"event": "result", ...}. Given answers are compared, never changed; with
requirements only, no model is called.

\b
Exit codes: 0 the best answer is printed, 1 failed, 2 usage, 3 the best answer
breaks a requirement, 130 interrupted.
"""


@dataclass(frozen=True, kw_only=True)
class BestArguments(SharedArguments):
    """The arguments of `redraft best`."""

    prompt: str | None = None
    n: int = 4
    response: tuple[str, ...] = ()
    system: str | None = None
    context: str | None = None
    reference: str | None = None
    output: str | None = None


@click.command(short_help="Keep the best of several answers.", cls=ConfiguredCommand, epilog=EPILOG)
@click.argument("prompt", required=False)
@click.option("-n", "n", type=options.COUNT, default=4, show_default=True, metavar="N", help="Number of drafts.")
@click.option(
    "--response",
    type=options.READABLE,
    multiple=True,
    metavar="FILE",
    help="Choose among these answers instead of drafting (repeatable; - for stdin).",
)
@options.grading
@options.asking
@options.editing
@options.spending
@options.timeout
@options.sampling
@click.option("--system", metavar="TEXT", help="A system message.")
@click.option("--context", type=options.READABLE, metavar="FILE", help="Background material for the judge.")
@click.option("--reference", type=options.READABLE, metavar="FILE", help="A known good answer for the judge.")
@click.option("--output", "-o", type=click.Path(), metavar="FILE", help="Write the best answer to FILE instead of stdout.")
@options.as_json
@options.debug
@click.pass_context
def best(ctx: click.Context, /, **values: Any) -> int:
    """Draft several answers to PROMPT (- for stdin), or take those given, and keep the best."""
    arguments = BestArguments.from_values(values)
    _check(arguments, n_given=ctx.get_parameter_source("n") is ParameterSource.COMMANDLINE)
    import asyncio

    from ...result import error_data
    from ...sync import run_sync
    from ..progress import print_event
    from ..refinement import best_so_far, write_result
    from ..views.ranking import RankingDisplay, answer_data, rank, show_ranking

    display = RankingDisplay(as_json=arguments.as_json)
    try:
        result = run_sync(_choose(arguments, display))
    except (KeyboardInterrupt, asyncio.CancelledError) as interruption:
        if (partial_result := best_so_far(interruption)) is None:
            output.warning("interrupted before anything was graded")
            return INTERRUPTED
        result = partial_result
    except RedraftError as error:
        if error.result is not None and not arguments.response:
            write_result(error.result, arguments.output, as_json=arguments.as_json)
        if arguments.as_json:
            print_event("error", **error_data(error))
        raise
    ranking = rank(result.trace)
    if arguments.as_json:
        print_event("ranking", answers=[answer_data(row, result.trace, arguments) for row in ranking])
    else:
        show_ranking(result, ranking, arguments, display.progress.seconds)
    write_result(result, arguments.output, as_json=arguments.as_json)
    return exit_code(result)


def _check(arguments: BestArguments, *, n_given: bool) -> None:
    """Raise UsageError for arguments that exclude each other, and for a missing prompt."""
    if arguments.response and n_given:
        raise click.UsageError("-n drafts answers and --response gives them: leave out one")
    if len(arguments.response) == 1:
        raise click.UsageError("there is only one answer to choose from: give --response at least twice")
    if not arguments.response and not arguments.prompt:
        raise click.UsageError('a prompt is missing, for example: redraft best "Name a bakery on a boat" -n 4 --grader ranker')
    if arguments.output:
        output.check_writable(arguments.output)


async def _choose(arguments: BestArguments, display: RankingDisplay) -> Result:
    """Choose the best of new drafts, or of the given answers. With requirements alone, no model is called. Raises UsageError."""
    from ...core.records import Candidate
    from ...core.trace import Trace
    from ...plans.self_refine import BestOfN
    from ..refinement import run_request
    from ..request import build_request, find_model, make_task

    a, names = arguments, arguments.response
    if (a.prompt, *names).count("-") > 1:
        raise click.UsageError("only one of PROMPT and --response can be read from stdin")
    prompt = a.prompt or UNKNOWN_PROMPT
    task = make_task(prompt, a.require, system=a.system, context=a.context, reference=a.reference)
    texts = [output.read_text(name, "--response") for name in names]
    trace = Trace(task, records=tuple(Candidate(id, text) for id, text in enumerate(texts)))
    repairs = not names and a.settings.get("editor") is not False
    plan = BestOfN(len(names) or a.n, repairs=repairs)
    callbacks = {"on_record": display.record, "on_step": display.step}
    request = build_request(a, trace, plan=plan, editor=repairs, max_iterations=0, **callbacks)
    if names:
        needs_no_model = bool(task.requirements) and request.graders is None and request.judge is None
        request = replace(request, model=False if needs_no_model else await find_model(a.model) or False)
    return await run_request(request, display)
