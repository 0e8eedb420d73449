"""Record the run that the README shows: python scripts/record.py MODEL FILE

The prompt and the graders are those of the README's first block of Python. FILE gets the trace,
which `redraft show` and `redraft view` read. See examples/recorded/README.md for the model of the
recorded run.
"""

from __future__ import annotations

import sys

import redraft
from redraft.storage.trace_file import JsonlStore

PROMPT = "Explain in plain words what a library is for."
GRADERS = [
    "readability:max_grade=7",
    "repetition",
    redraft.must("words:20-60"),
    redraft.must("contains_none:answer,improve,requirement"),
]


def main(name: str, file: str) -> None:
    """Refine with the model, which costs nothing because it runs on this machine."""
    model = redraft.connect(name)
    with JsonlStore(file) as store:
        result = redraft.refine_sync(
            PROMPT, model, GRADERS, max_tokens=100, prices={model.name: (0, 0)}, store=store
        )
    print(result.summary())


if __name__ == "__main__":
    main(*sys.argv[1:])
