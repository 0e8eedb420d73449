"""Runs the tests of a program in a sandbox, and reports which passed. The program cannot forge the
verdict.

`parse_tests` reads tests of many forms, `run_tests` runs a program against them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .compare import CallTest
    from .report import TestReport, TestResult
    from .runner import arun_tests, run_tests
    from .tests import CodeTest, StdioTest, Tests, parse_tests
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "CallTest": "compare",
            "CodeTest": "tests",
            "StdioTest": "tests",
            "TestReport": "report",
            "TestResult": "report",
            "Tests": "tests",
            "arun_tests": "runner",
            "parse_tests": "tests",
            "run_tests": "runner",
        },
    )

__all__ = [
    "CallTest",
    "CodeTest",
    "StdioTest",
    "TestReport",
    "TestResult",
    "Tests",
    "arun_tests",
    "parse_tests",
    "run_tests",
]
