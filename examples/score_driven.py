"""Refine until an evaluator of your own is content: target, patience, and the history of scores.

python examples/score_driven.py [MODEL]      MODEL such as openai:gpt-4o-mini; without one Redraft looks for one
"""

import asyncio
import sys

import redraft


async def evaluate(text: str) -> float:
    """Fifty words are best; every word more or less costs two points in a hundred."""
    return max(0.0, 1 - abs(len(text.split()) - 50) / 50)


async def main(model=None) -> redraft.Result:
    result = await redraft.refine("Explain quantum entanglement.", model, evaluate, target_score=0.95, max_iterations=5, patience=3)
    print(result.value)
    print(result.score, result.metadata["iterations"], result.metadata["converged"])
    print(result.metadata["score_history"])
    return result


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
