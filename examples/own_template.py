"""Improve an existing {"query", "response"} sample with a judge that has your own prompt.

python examples/own_template.py [MODEL]
"""

import asyncio
import sys

import redraft

SAMPLE = {"query": "How do I keep basil alive indoors?", "response": "Water it."}

helpful = redraft.Judge(
    template="""\
You are an experienced gardener. Somebody asked:
{query}

They were told:
{response}

How much does that help a beginner? An answer such as {"advice": "Water it."} helps little: it says neither when nor how much.
"""  # noqa: E501
)


async def main(model=None) -> redraft.Result:
    result = await redraft.refine(redraft.Task(SAMPLE["query"], SAMPLE["response"]), model, helpful)
    print(
        "The judge gave",
        result.score_history[0],
        "to the original, and",
        result.judge_score,
        "to this answer:",
    )
    print(result.value)
    print("Scores of a judge are noisy. The estimate from all of them is", result.score)
    print("with the 95 % interval", result.score_interval)
    return result


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
