"""The command line: a file for each command.

`commands/NAME.py` has all of one command: its options and help, a typed function, what it does and
how it shows it. It is imported when that command runs or shows its help. Beside `commands` is what
they share: the options (`options`, generated from `redraft.settings`), the conversion of their
values to arguments of the library (`request`, `refinement`), files with defaults (`config`) and the
consent to them (`consent`), code of users (`user_code`), and the output (`output`, `progress`,
`terminal`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .entry_point import main, program
else:
    __getattr__ = attribute_loader(__name__, {"main": "entry_point", "program": "entry_point"})

__all__ = ["COMMANDS", "main", "program"]

COMMANDS = {  # with their short help, so that `redraft --help` lists them without importing them
    "run": "Refine one answer.",
    "best": "Keep the best of several answers.",
    "grade": "Grade given answers.",
    "batch": "Refine every row of a data set.",
    "runs": "List the runs of `redraft batch`; show, export or delete one.",
    "export": "Write a run as training data, or its scores to a tool.",
    "show": "Show a saved trace, or a request of a gateway.",
    "view": "Show runs in the browser.",
    "label": "Judge answers in the browser.",
    "serve": "Refine the answers of any model for any client.",
    "demo": "Improve sample answers without a key or a network.",
    "models": "List where Redraft looks for models, and what it found.",
    "graders": "List all graders, or show one.",
    "validate": "Measure a grader against labels of people.",
    "train": "Fit a grader to labels of people.",
    "compare": "Say whether B is better than A.",
    "gate": "Fail a build if B is worse than A.",
    "rubric": "Find criteria for a judge, from labelled data or a description.",
    "priors": "Show, learn or delete priors for a model and its graders.",
    "keys": "Add, list and revoke API keys of the gateway.",
    "mcp": "Serve Redraft's tools to coding agents (MCP).",
    "trust": "Consent to the settings of a folder or a trace.",
}
