"""Bespoke Curator's `LLM` over a data set, with an empty cache folder and without its rate limits.

It asks the endpoint once before it begins (for rate limits), which the server counts. Telemetry,
the viewer, and downloads of price lists and token tables are off, so that nothing leaves the
loopback interface.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

from rows import INSTRUCTION, arguments, files, measurement, read

given = arguments()
TABLES = Path(find_spec("litellm").origin).parent / "litellm_core_utils" / "tokenizers"
HERE = {
    "TIKTOKEN_CACHE_DIR": TABLES,
    "HOME": given.folder,
    "CURATOR_CACHE_DIR": given.folder / "curator",
    "HF_HOME": given.folder / "hf",
}
OFF = {
    "TELEMETRY_ENABLED": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
    "CURATOR_DISABLE_RICH_DISPLAY": "1",
}
os.environ.update({name: str(value) for name, value in {**HERE, **OFF}.items()})

from bespokelabs import curator  # noqa: E402
from datasets import Dataset  # noqa: E402


class Judge(curator.LLM):
    """Asks for one verdict per row."""

    def prompt(self, row):
        return f"{INSTRUCTION}\n\n{row['query']}\n\n{row['response']}"

    def parse(self, row, response):
        return {**row, "score": json.loads(response)["score"]}


def main():
    warm, rows = files(given)
    endless = {"max_requests_per_minute": 10**9, "max_tokens_per_minute": 10**12}
    params = {
        "base_url": f"{given.url}/v1",
        "api_key": "none",
        "max_concurrent_requests": given.in_flight,
        **endless,
    }
    judge = Judge(
        "loopback", backend="openai", backend_params=params, generation_params={"temperature": 0}
    )

    def batch(source, output):
        found = judge(Dataset.from_list(read(source)))
        found.dataset.to_json(output)
        assert len(found.dataset) == sum(1 for _ in source.open())

    batch(warm, given.folder / "warm.out")
    with measurement(given.url, given.rows):
        batch(rows, given.folder / "rows.out")


if __name__ == "__main__":
    main()
