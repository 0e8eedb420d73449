"""DSPy's `Refine` around a `Predict`, with a constant reward below the threshold, and one thread
for each row.

Four attempts make seven calls: between two attempts it asks the model for advice. So a row is not
the same work as the others', and only the cost of a call can be compared.
"""

from __future__ import annotations

import dspy
from common import CALLS_A_ROW, PROMPT, arguments, measurement


def middling(_args, _prediction):
    return 0.5


def main(given):
    model = dspy.LM(
        "openai/loopback", api_base=f"{given.url}/v1", api_key="none", cache=False, num_retries=0
    )
    dspy.configure(lm=model)
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    refine = dspy.Refine(
        dspy.Predict("question -> answer"), N=CALLS_A_ROW, reward_fn=middling, threshold=1.0
    )
    question = dspy.Example(question=PROMPT).with_inputs("question")

    def rows(n):
        parallel = dspy.Parallel(
            num_threads=given.in_flight, disable_progress_bar=True, max_errors=1
        )
        results = parallel([(refine, question)] * n)
        assert all(result.answer for result in results)

    rows(given.in_flight)
    n = max(1, given.calls // (2 * CALLS_A_ROW - 1))
    with measurement(given.url, n * (2 * CALLS_A_ROW - 1)):
        rows(n)


if __name__ == "__main__":
    main(arguments())
