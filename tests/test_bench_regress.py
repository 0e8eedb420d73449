"""The comparison of two revisions, on a repository whose benchmark only writes figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from require import require_program

BENCH = Path(__file__).parent.parent / "bench"
SCRIPT = """
import json, sys
import redraft
figures = {way: {"median_ms": redraft.MS, "p90_ms": 1.0} for way in ("SelfRefine", redraft.LABEL)}
with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
    json.dump({"ways": figures}, file)
"""


@pytest.fixture
def regress(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("regress", "tables"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import regress

    yield regress
    for name in ("regress", "tables"):
        sys.modules.pop(name, None)


def git(folder, *command):
    identity = [
        "-c",
        "user.name=Someone",
        "-c",
        "user.email=someone@example.org",
        "-c",
        "commit.gpgsign=false",
    ]
    subprocess.run(["git", "-C", str(folder), *identity, *command], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """Five revisions: `base`; `slower` by a fifth; `same`, with another label; `broken`, whose
    script fails; `older`, without it.
    """
    require_program("git")
    package, bench = tmp_path / "src" / "redraft", tmp_path / "bench"
    package.mkdir(parents=True)
    bench.mkdir()
    git(tmp_path, "init", "-q")
    for tag, ms, label in (
        ("base", 1.0, "Adaptive"),
        ("slower", 1.2, "Adaptive"),
        ("same", 1.0, "other"),
        ("broken", 1.0, ""),
    ):
        (package / "__init__.py").write_text(f"MS, LABEL = {ms}, {label!r}\n")
        (bench / "planning.py").write_text(
            SCRIPT if tag != "broken" else "raise SystemExit('no such option')\n"
        )
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", tag)
        git(tmp_path, "tag", tag)
    git(tmp_path, "rm", "-q", "bench/planning.py")
    git(tmp_path, "commit", "-qm", "older")
    git(tmp_path, "tag", "older")
    return tmp_path


def run(repository, *revisions):
    command = [
        sys.executable,
        BENCH / "regress.py",
        *revisions,
        "--pairs",
        "2",
        "--only",
        "planning",
    ]
    command += ["--repository", repository, "--json", repository / "out.json"]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_each_revision_runs_its_own_sources_and_scripts(repository):
    """A revision that is slower beyond the limit ends with exit code 1, and the table names the
    figure.
    """
    ended = run(repository, "base", "slower")
    assert ended.returncode == 1, ended.stderr
    results = json.loads((repository / "out.json").read_text())["results"]
    assert {name: round(r["ratio"], 3) for name, r in results.items()} == {
        "SelfRefine: CPU ms/step": 1.2,
        "Adaptive: CPU ms/step": 1.2,
    }
    assert "slower" in ended.stdout
    assert run(repository, "slower", "base").returncode == 0


def test_a_figure_of_one_revision_alone_is_named(repository):
    """It is not compared, and does not end the comparison."""
    ended = run(repository, "base", "same")
    assert ended.returncode == 0, ended.stderr
    assert (
        "not compared: only one of the two revisions has the figure 'other: CPU ms/step'"
        in ended.stdout
    )


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("revisions", [("base", "older"), ("older", "base")])
def test_a_benchmark_of_one_revision_alone_is_named(repository, revisions):
    """It is left out, and the others are compared."""
    ended = run(repository, *revisions)
    assert (ended.returncode, "not compared: older has no bench/planning.py" in ended.stdout) == (
        0,
        True,
    ), ended.stderr


def test_a_benchmark_that_fails_is_named(repository):
    """Exit code 2, with the script's output; an unknown revision is named."""
    ended = run(repository, "base", "broken")
    assert (ended.returncode, "planning.py wrote no figures" in ended.stderr) == (2, True)
    assert "no such option" in ended.stderr
    assert "nowhere" in run(repository, "base", "nowhere").stderr


@pytest.mark.parametrize(
    ("ratios", "slower"),
    [
        ([1.07, 1.08, 1.09], True),
        ([1.06, 1.12], False),
        ([1.0, 1.2, 1.02], False),
        ([0.9, 1.1, 1.0, 1.0], False),
        ([1.05, 1.05], False),
    ],
)
def test_only_an_interval_wholly_above_the_limit_is_a_regression(regress, ratios, slower):
    """Noise around the limit is none, and neither are two high ratios that differ."""
    found = regress.compare([1.0] * len(ratios), ratios, 1.05)
    assert found["low"] <= found["ratio"] <= found["high"]
    assert found["slower"] is slower
