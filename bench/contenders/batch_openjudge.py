"""OpenJudge's `GradingRunner` with one `LLMGrader` on its `OpenAIChatModel`; results stay in
memory.

Its client takes 1,000 connections and two retries as installed. The progress bar is off.
"""

from __future__ import annotations

import asyncio
import json

from openjudge.graders.llm_grader import LLMGrader
from openjudge.models.openai_chat_model import OpenAIChatModel
from openjudge.runner.grading_runner import GraderConfig, GradingRunner
from rows import INSTRUCTION, arguments, files, measurement, read

TEMPLATE = INSTRUCTION.replace("{", "{{").replace("}", "}}") + "\n\n{query}\n\n{response}"
FIELDS = {"query": "query", "response": "response"}


async def main(given):
    warm, rows = files(given)
    model = OpenAIChatModel("loopback", api_key="none", base_url=f"{given.url}/v1", temperature=0)
    configs = {"judge": GraderConfig(LLMGrader(model, name="judge", template=TEMPLATE), FIELDS)}
    runner = GradingRunner(configs, max_concurrency=given.in_flight, show_progress=False)

    async def batch(source, output):
        results = (await runner.arun(read(source)))["judge"]
        assert all(result.score == 4 for result in results), results[0]
        with output.open("w") as out:
            out.writelines(
                json.dumps({**row, "score": r.score}) + "\n"
                for row, r in zip(read(source), results, strict=True)
            )

    await batch(warm, given.folder / "warm.out")
    with measurement(given.url, given.rows):
        await batch(rows, given.folder / "rows.out")


if __name__ == "__main__":
    asyncio.run(main(arguments()))
