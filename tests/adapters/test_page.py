"""The code of docs/adapters.md runs, as far as its framework is installed, and its table has the
versions that are tested.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adapters.md").read_text()
BLOCK = re.compile(
    r"^```py\n(.*?)^```$(?:\n\n```text title=\"Output\"\n(.*?)^```)?", re.MULTILINE | re.DOTALL
)
ADAPTER = re.compile(r"from redraft\.adapters\.(\w+) import")
BLOCKS = {ADAPTER.search(code)[1]: (code, shown) for code, shown in BLOCK.findall(PAGE)}
NEEDS_NONE = ("langsmith", "promptfoo")  # their adapters import nothing of them


@pytest.mark.slow
@pytest.mark.parametrize("adapter", BLOCKS)
def test_the_code_of_the_page_runs(adapter, tmp_path):
    name = "llama_index.core" if adapter == "llama_index" else adapter
    if adapter not in NEEDS_NONE and not (find_spec(name.split(".")[0]) and find_spec(name)):
        pytest.skip(f"no {adapter.replace('_', '-')}")
    code, shown = BLOCKS[adapter]
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("Iteration")]
    assert "\n".join(lines[-len(shown.splitlines()) :] if shown else []) == shown.rstrip()


def test_every_adapter_is_on_the_page():
    modules = {path.stem for path in (ROOT / "src/redraft/adapters").glob("*.py")} - {
        "__init__",
        "grades",
    }
    assert modules == set(BLOCKS)


def test_the_page_has_the_tested_versions():
    pinned = (Path(__file__).parent / "requirements.txt").read_text().split()
    for line in (each for each in pinned if "==" in each):
        name, version = line.split("==")
        assert f"| {name.partition('[')[0]} {version} |" in PAGE, line
