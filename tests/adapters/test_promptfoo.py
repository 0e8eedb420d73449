"""An assertion of promptfoo."""

import json
import os
import subprocess
import sys

import pytest

from require import require_program

from .answers import FAILS, GOOD, SHORT

ASSERTION = """
import sys
sys.path.insert(0, {tests!r})
from adapters.answers import six_words
from redraft.adapters.promptfoo import assertion

get_assert = assertion(six_words, unknown=0.25, retries=0)
"""


@pytest.mark.slow
def test_promptfoo_runs_the_assertion(tmp_path):
    """The scores of its own report: 1, 0, and the value named where the grader fails."""
    promptfoo = require_program("promptfoo")
    tests = os.path.dirname(os.path.dirname(__file__))
    (tmp_path / "redraft_assert.py").write_text(ASSERTION.format(tests=tests))
    config = {
        "prompts": ["{{answer}}"],
        "providers": ["echo"],
        "tests": [
            {
                "vars": {"answer": answer},
                "assert": [{"type": "python", "value": "file://redraft_assert.py"}],
            }
            for answer in (GOOD, SHORT, FAILS)
        ],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    environment = {
        **os.environ,
        "PROMPTFOO_PYTHON": sys.executable,
        "PROMPTFOO_CONFIG_DIR": str(tmp_path),
        "PROMPTFOO_DISABLE_TELEMETRY": "1",
        "PROMPTFOO_DISABLE_UPDATE": "1",
        "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
    }
    command = [promptfoo, "eval", "-c", "config.json", "-o", "output.json", "--no-cache"]
    subprocess.run(
        [*command, "--no-progress-bar", "--no-table"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    results = json.loads((tmp_path / "output.json").read_text())["results"]["results"]
    assert [(each["success"], each["score"]) for each in results] == [
        (True, 1),
        (False, 0),
        (False, 0.25),
    ]
    reasons = [each["gradingResult"]["componentResults"][0]["reason"] for each in results]
    assert reasons[1:] == [
        "six_words (0.00): 2 words; write six words",
        "the score is unknown: six_words: GradingError",
    ]
