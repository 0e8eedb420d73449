"""Graders in files and modules that the command line names: `--grader FILE.py:NAME` and `--grader
MODULE:NAME`.
"""

import json
import sys

import pytest

from redraft.cli.consent import find_sensitive_settings, rebase_paths
from redraft.cli.user_code import find_code, load_grader
from redraft.errors import ConfigError
from redraft.graders import as_grader
from redraft.graders.fingerprint import grader_fingerprint

CODE = '''
from __future__ import annotations
from dataclasses import dataclass
import redraft

def polite(text):
    """Count."""
    return 1.0 if "please" in text else 0.0

@dataclass
class Mentions:
    word: str = "please"
    name: str = "mentions"
    model_free = True

    async def grade(self, task, candidate, ask):
        return redraft.Feedback(float(self.word in candidate.text))

instance = Mentions("no")
condition = redraft.must(polite)
number = 3

class NeedsArgument:
    def __init__(self, word): ...

class Outer:
    inner = staticmethod(polite)
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "graders.py").write_text(CODE)
    (tmp_path / "a.md").write_text("yes please")
    (tmp_path / "b.md").write_text("no")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["polite", "Mentions", "instance", "condition", "Outer.inner"])
def test_functions_classes_and_graders_are_loaded(folder, name):
    """The file is run once, however often it is named, and leaves no bytecode behind."""
    assert load_grader(f"graders.py:{name}") is not None
    loaded = [module for module in sys.modules if module.endswith("graders")]
    load_grader(f"{folder}/graders.py:polite")
    assert [module for module in sys.modules if module.endswith("graders")] == loaded
    assert not (folder / "__pycache__").exists()


def test_a_file_imports_those_beside_it_and_hides_no_module(folder):
    """The folder is on the path while the file runs; a file with the name of an installed module
    does not take its place.
    """
    (folder / "marked_words.py").write_text("WORD = 'please'")
    (folder / "wave.py").write_text(
        "from marked_words import WORD\ndef polite(text): return float(WORD in text)"
    )
    assert load_grader("wave.py:polite")("please") == 1
    import wave

    assert hasattr(wave, "open") and str(folder) not in sys.path


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("graders.py", r"name a function or class in the file: --grader graders\.py:NAME"),
        ("nowhere.py:polite", r"there is no file 'nowhere\.py'"),
        pytest.param("x" * 5000 + ".py:polite", r"cannot be loaded: File name too long", id="long"),
        ("graders.py:polit", r"unknown name in graders\.py 'polit'; did you mean 'polite'"),
        ("graders.py:number", "a grader is a name, a function"),
        ("graders.py:NeedsArgument", "cannot be loaded: TypeError: .*word"),
        (
            "raises.py:x",
            r"cannot be loaded: ZeroDivisionError: division by zero \(in <module>, raises\.py line 2\)",
        ),
        ("exits.py:x", "cannot be loaded: SystemExit: 3"),
        ("wrong.py:x", r"cannot be loaded: SyntaxError: .*wrong\.py, line 1"),
        ("statistics:nothing", "unknown name in statistics 'nothing'"),
    ],
)
def test_code_that_cannot_be_used_is_an_error_with_its_place(folder, spec, words):
    """A file whose code failed is run again the next time."""
    (folder / "raises.py").write_text("x = 1\n1 / 0\n")
    (folder / "exits.py").write_text("raise SystemExit(3)")
    (folder / "wrong.py").write_text("def x(:")
    for _ in range(2):
        with pytest.raises(ConfigError, match=words):
            load_grader(spec)


def test_a_name_that_no_file_can_have_is_an_error(folder):
    """The message is short; the name of a module is a name that is not known."""
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        load_grader(f"{'x' * 5000}.py:f")
    assert len(str(caught.value)) < 400
    assert find_code(f"{'x' * 5000}:f") is None


@pytest.mark.parametrize(
    "spec",
    [
        "judge",
        "words:1-5",
        "judge:rubric.py:x",
        "exat:foo",
        "http://host/x.py:f",
        "a.py:not a name",
        "a.py:f()",
    ],
)
def test_other_specs_are_no_code(folder, spec):
    """Names of graders come first, and a name that may be mistyped stays one."""
    assert find_code(spec) is None
    assert load_grader(spec) == spec


@pytest.mark.parametrize(
    "spec",
    [
        "graders.py:polite",
        "a:b.py:f",
        "x/../y.py:f",
        "sub//y.py:f",
        " y.py:f ",
        "statistics:mean",
        "json.tool:main",
    ],
)
def test_whatever_is_loaded_needs_consent_in_a_file_of_settings(tmp_path, spec):
    """Consent and loading decide by the same function."""
    assert find_code(spec)
    found = find_sensitive_settings({"grader": [spec]}, tmp_path, tmp_path)
    assert [(s.key, s.kind) for s in found] == [("grader", "code")]


def test_a_file_in_settings_is_relative_to_them():
    """A module has no folder."""
    assert rebase_paths("grader", "graders.py:polite", "sub") == "sub/graders.py:polite"
    assert rebase_paths("grader", "statistics:mean", "sub") == "statistics:mean"


def test_the_fingerprint_covers_the_source(folder):
    """A changed function has another fingerprint, an unchanged one in another file the same."""

    def fingerprint(file):
        return grader_fingerprint(as_grader(load_grader(f"{file}:polite")), lambda _: None)

    (folder / "copy.py").write_text(CODE)
    (folder / "changed.py").write_text(CODE.replace("please", "thanks"))
    assert fingerprint("graders.py") == fingerprint("copy.py") != fingerprint("changed.py")


def test_grade_takes_code_and_several_responses(folder, redraft):
    """One answer gets its feedback, several a table or a list of reports."""
    for name in ("graders.py", "a.md", "b.md"):
        (redraft.folder / name).write_text((folder / name).read_text())
    grade = (
        "grade",
        "Ask.",
        "--model",
        "none",
        "--grader",
        "graders.py:polite",
        "--grader",
        "graders.py:instance",
    )
    done = redraft(*grade, "--response", "a.md")
    assert (done.returncode, "score 0.50" in done.out) == (0, True), done.err
    done = redraft(*grade, "--response", "a.md", "--response", "b.md")
    assert [line.split() for line in done.out.splitlines()[:3]] == [
        ["response", "score", "polite", "mentions"],
        ["a.md", "0.50", "1.00", "0.00"],
        ["b.md", "0.50", "0.00", "1.00"],
    ]
    done = redraft(*grade, "--response", "a.md", "--response", "b.md", "--json")
    assert [(report["response"], report["score"]) for report in json.loads(done.out)] == [
        ("a.md", 0.5),
        ("b.md", 0.5),
    ]
    assert redraft(*grade, "--response", "-", "--response", "-", input="x").returncode == 2


def test_a_failed_grader_is_shown_beside_the_others(folder, redraft):
    """The exit code is 1, and the score unknown."""
    (redraft.folder / "g.py").write_text(
        "def bad(text):\n    return 1 / 0\n\ndef good(text):\n    return 0.25, 'so so'\n"
    )
    (redraft.folder / "a.md").write_text("yes")
    done = redraft(
        "grade",
        "Ask.",
        "--response",
        "a.md",
        "--grader",
        "g.py:good",
        "--grader",
        "g.py:bad",
        "--model",
        "none",
    )
    assert done.returncode == 1
    assert (
        "so so" in done.out
        and "bad failed: ZeroDivisionError" in done.out
        and "score unknown" in done.out
    )


def test_an_error_of_code_names_no_command_that_does_not_know_it(redraft):
    """`redraft graders` lists no function of a file; a class says how it is told apart from one
    that asks a model.
    """
    code = "def bad(text):\n    return 'high'\n\nclass Silent:\n    name = 's'\n    async def grade(self, task, candidate, ask): ...\n"
    (redraft.folder / "g.py").write_text(code)
    (redraft.folder / "a.md").write_text("yes")
    done = redraft("grade", "Ask.", "--response", "a.md", "--model", "none", "--grader", "g.py:bad")
    assert (done.returncode, "must return a score" in done.err, "redraft graders" in done.err) == (
        1,
        True,
        False,
    )
    done = redraft(
        "grade", "Ask.", "--response", "a.md", "--model", "none", "--grader", "g.py:Silent"
    )
    assert (done.returncode, "model_free = True" in done.err) == (2, True)


def test_validate_and_batch_take_code_too(folder, redraft):
    """The card of a function in a file is that of the function."""
    (redraft.folder / "graders.py").write_text(CODE)
    rows = [
        {"prompt": "q", "response": f"{n} please" if n % 2 else str(n), "label": n % 2}
        for n in range(20)
    ]
    (redraft.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = redraft(
        "validate", "rows.jsonl", "--grader", "graders.py:polite", "--cards-dir", "cards"
    )
    assert done.returncode == 0 and "polite: balanced accuracy 1.000" in done.out, done.err
    trusted = ("--require-validated", "error", "--cards-dir", "cards", "--model", "none")
    done = redraft(
        "batch",
        "rows.jsonl",
        "-o",
        "out.jsonl",
        "--mode",
        "grade",
        "--grader",
        "graders.py:polite",
        *trusted,
    )
    assert done.returncode == 0, done.err
    first = json.loads((redraft.folder / "out.jsonl").read_text().splitlines()[0])
    assert (first["polite_score"], first["polite_reason"], first["best_score"]) == (0, None, 0)
