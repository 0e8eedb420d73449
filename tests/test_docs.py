"""Docs execute, against a real llama.cpp server, and list what there is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(language):
    return [
        pytest.param(code, id=f"{page.name}-{n}")
        for page in PAGES
        for n, (kind, code) in enumerate(BLOCK.findall(page.read_text()))
        if kind == language
    ]


def environment(server):
    bin = Path(sys.executable).parent
    return {**os.environ, "REDRAFT_MODEL": server, "PATH": f"{bin}:{os.environ['PATH']}"}


@pytest.mark.parametrize("code", blocks("python"))
def test_python_in_the_docs_runs(code, plain_server, tmp_path):
    """Each block is a program of its own, with a model to be found."""
    done = subprocess.run([sys.executable, "-c", code], env=environment(plain_server), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", blocks("sh"))
def test_commands_in_the_docs_run(code, plain_server, tmp_path):
    """Typed one after the other; a model of random weights may leave demands unmet (3), but nothing may fail."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for line in code.splitlines():
        done = subprocess.run(line, shell=True, env=environment(plain_server), cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode in (0, 3), (line, done.stderr)


def test_the_generated_parts_are_fresh():
    """Every command, grader and requirement is listed, as it is now."""
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "docs.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_lead_somewhere():
    """A relative link names a file that is there."""
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
