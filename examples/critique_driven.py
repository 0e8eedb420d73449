"""Let a model criticise and improve its own code. Print the suggested actions, `done`, and every
version.

python examples/critique_driven.py [MODEL]
"""

import asyncio
import sys

import redraft

CODE = """\
def total(n):
    result = 0
    for i in range(n + 1):
        result += i
    return result
"""

reviewer = redraft.Judge(
    {
        "speed": "It takes as few steps as the problem allows.",
        "readability": "Names and structure say what it does.",
    }
)


async def main(model=None) -> redraft.Result:
    task = redraft.Task("Write a Python function for the sum of the numbers from 1 to n.", CODE)
    result = await redraft.refine(task, model, reviewer)
    for step, candidate in enumerate(result.trace.candidates):
        for feedback in result.trace.feedback[candidate.id]:
            print(f"--- timestep {step}: score {feedback.score}, done: {feedback.done}")
            print(*feedback.actions, sep="\n")
        print(candidate.text)
    return result


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
