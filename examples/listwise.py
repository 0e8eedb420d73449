"""Let a judge rank all answers so far, and use its reason as feedback. Print every iteration as it
happens.

python examples/listwise.py [MODEL]
"""

import asyncio
import sys

import redraft
from redraft.graders import Ranker
from redraft.loop.records import Comparison, Outcome


async def main(model=None) -> redraft.Trace:
    async for trace in redraft.stream(
        "Suggest a name for a bakery on a boat.", model, Ranker(), max_iterations=3
    ):
        match trace.records[-1]:
            case Comparison() as comparison:
                print("feedback received:", comparison.reason, *comparison.actions, sep="\n  ")
                print("best so far:", trace.best.text)
            case redraft.Candidate() as candidate:
                print(
                    f"response {candidate.id}, refined from {candidate.parent}:",
                    candidate.text,
                    sep="\n  ",
                )
            case Outcome() as outcome:
                print("kept:", outcome.best, "because", outcome.note)
    return trace


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
