"""Refine until your own evaluator is satisfied: target, patience, and the history of scores.

python examples/score_driven.py [MODEL]      MODEL: such as openai:gpt-4o-mini. Default: look for one.
"""  # noqa: E501

import asyncio
import sys

import redraft


async def evaluate(text: str) -> float:
    """Score 1 for fifty words; each word more or less costs 0.02."""
    return max(0.0, 1 - abs(len(text.split()) - 50) / 50)


async def main(model=None) -> redraft.Result:
    result = await redraft.refine(
        "Explain quantum entanglement.",
        model,
        evaluate,
        target_score=0.95,
        max_iterations=5,
        patience=3,
    )
    print(result.value)
    print(result.score, result.iterations, result.converged)
    print(result.score_history)
    return result


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
