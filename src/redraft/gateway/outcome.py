"""What clients are told of a refined answer besides its text: `usage.redraft`, the field `redraft`
of replies, and headers.

It is a view of the one form of results (`ResultFacts.as_data`, schema 2), under its names. What the
reply has already, and the texts of graders, are not in it: `redraft show` shows those.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import Field
from typing_extensions import TypedDict

from ..base.text import shorten
from ..loop.trace import Trace
from ..plans.quality.result_facts import result_facts

# an address as errors of Python's sockets show it, such as ('127.0.0.1', 80), a proxy, and where a
# server redirects to
PLACES = re.compile(
    r" ?\('[0-9A-Fa-f.:%]{2,64}', \d{1,5}(?:, \d+, \d+)?\)"
    r"| through the proxy \S+?(?=:?(?:\s|$))"
    r"|(?<= redirects) to \S+(?=:\s)"
)
Score = Annotated[float, Field(ge=0, le=1)]


class SpentUsage(TypedDict):
    """What all calls used, failed and repeated ones included. What is unknown is null."""

    calls: int
    input_tokens: int | None
    output_tokens: int | None
    cost: Annotated[float | None, Field(description="In USD.")]


class RefinementOutcome(TypedDict):
    """What came out of a refinement. What is unknown is null; a text that does not apply is
    empty.
    """

    schema: Annotated[Literal[2], Field(description="The version of the form.")]
    trace_id: Annotated[str, Field(description="By which `redraft show` finds the request.")]
    status: Annotated[
        Literal["done", "failed", "open"],
        Field(description="`failed`: no answer could be graded; `open`: cut short."),
    ]
    stop: Annotated[str, Field(description="Why the work ended, such as `target` or `budget`.")]
    stop_note: Annotated[str, Field(description="The same in words.")]
    reason: Annotated[str, Field(description="Why the answer has no score.")]
    note: Annotated[
        str, Field(description="What is to be known of the answer, as that its prompt was cut.")
    ]
    score: Score | None
    interval: Annotated[
        tuple[float, float] | None, Field(description="The 95 % interval of the score.")
    ]
    score_basis: Annotated[str, Field(description="What stands behind the score.")]
    judge_score: Annotated[Score | None, Field(description="What the graders said on average.")]
    initial_score: Annotated[Score | None, Field(description="The score of the first answer.")]
    iterations: Annotated[int, Field(ge=0, description="The number of refinements.")]
    broken: Annotated[list[str], Field(description="The musts that the answer does not meet.")]
    diagnosis: str
    calls: Annotated[int, Field(description="Of the answers and grades, without retries.")]
    tokens: Annotated[int | None, Field(description="Their tokens.")]
    cost: Annotated[float | None, Field(description="Their cost in USD.")]
    usage: SpentUsage


def outcome_of(trace: Trace, trace_id: str, hosts: Collection[str] = ()) -> RefinementOutcome:
    """Return what came out of the refinement in a finished trace. Its texts do not say where models
    are (see `without_hosts`).
    """
    facts, used = result_facts(trace), trace.usage
    stop_note, note = (without_hosts(text, hosts) for text in (facts.stop_note, facts.note))
    known = {
        **facts.as_data(),
        "trace_id": trace_id,
        "stop_note": stop_note,
        "note": note,
        "reason": "; ".join(filter(None, [stop_note, note])) if facts.score is None else "",
        "usage": {name: getattr(used, name) for name in SpentUsage.__annotations__},
    }
    view = {name: known[name] for name in RefinementOutcome.__annotations__}
    return cast("RefinementOutcome", view)


def outcome_headers(outcome: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that tell an outcome. What is unknown has none."""
    score, cost = outcome["score"], outcome["usage"]["cost"]
    values = {
        "x-redraft-score": None if score is None else f"{score:.4f}",
        "x-redraft-iterations": str(outcome["iterations"]),
        "x-redraft-stop": outcome["stop"] or None,
        "x-redraft-reason": shorten(outcome["reason"]).encode("ascii", "replace").decode() or None,
        "x-redraft-cost": None if cost is None else f"{cost:.9f}",
    }
    return {name: value for name, value in values.items() if value is not None}


def without_hosts(text: str, hosts: Collection[str]) -> str:
    """Return a message for clients without the hosts of models, which it may have as `HOST:PORT`,
    as `HOST`, in a URL or as the address that was tried, and without other places in the network.
    """
    names = {name for host in hosts for name in (host, host.rpartition(":")[0]) if name}
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(f" at {name}", "").replace(f"host {name}", "its host")
        url = rf"https?://{re.escape(name)}[^\s]*(?: \(model ([^)]*)\))?"
        text = re.sub(url, lambda found: found[1] or "its server", text)
    return PLACES.sub("", text)
