"""Every grader by name: Redraft's, requirements, and those of other packages."""

import os
import re
import subprocess
import sys

import pytest

from redraft.errors import ConfigError
from redraft.graders import as_grader, entries, find_entry, registry
from redraft.graders.fingerprint import grader_fingerprint
from redraft.protocols import Comparer, Grader


def test_names_are_unique(monkeypatch):
    """Each name occurs once and has a summary, a mode and an example that makes it."""
    # the example of `embedding` names a model that wants one
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    found = list(entries())
    assert len({e.name for e in found}) == len(found)
    for e in found:
        assert e.about and e.example, e.name
        if e.name == "trained":  # each is in a file of its own
            assert callable(e.make)
        else:
            assert isinstance(as_grader(e.example), Grader | Comparer), e.name


def test_expected_graders_exist():
    """The gallery, the judges, the computed graders and the requirements are registered."""
    names = {e.name for e in entries()}
    assert {
        "helpfulness",
        "exact",
        "math",
        "tool_calls",
        "pairwise",
        "jury",
        "checklist",
        "words",
    } <= names


def test_listing_imports_no_heavy_library():
    """Neither grader libraries nor other packages are imported."""
    script = (
        "import sys; from redraft.graders import entries; list(entries()); "
        "print(sorted({'sympy','sacrebleu','rapidfuzz','math_verify','numpy','httptools','jsonschema'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


PACKAGE = '''
class Kind:
    """Likes kind words."""

    name = "kind_words"
    model_free = True

    async def grade(self, task, candidate, ask):
        from redraft import Feedback
        return Feedback(float("please" in candidate.text))


def loud(text):
    return float(text.isupper())


class Says:
    """Looks for a word."""

    model_free = True

    def __init__(self, word="thanks"):
        self.name = f"says {word}"

    async def grade(self, task, candidate, ask):
        return None


thanks = Says()
'''


@pytest.fixture
def other_package(tmp_path, monkeypatch):
    """A third-party package with graders, really installed."""
    (tmp_path / "kindly.py").write_text(PACKAGE)
    info = tmp_path / "kindly-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kindly\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[redraft.graders]\nkind_words = kindly:Kind\nloud = kindly:loud\ngone = kindly:Gone\nwords = kindly:loud\nsays = kindly:Says\nthanks = kindly:thanks\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "kindly", raising=False)


async def test_graders_of_other_packages(other_package):
    """A class or function entry point is listed with its package and loaded on use, and cannot
    replace a built-in name.
    """
    listed = {e.name: e for e in entries()}
    assert "kindly" not in sys.modules
    assert (listed["loud"].origin, listed["loud"].mode) == ("kindly", "function")
    from redraft import Candidate, Task

    kind = as_grader("kind_words")
    assert (await kind.grade(Task("q"), Candidate(0, "please"), None)).score == 1
    assert (await as_grader("loud").grade(Task("q"), Candidate(0, "low"), None)).score == 0
    assert as_grader("words:1-3").name == "words:1-3"
    assert listed["words"].mode == "requirement"
    with pytest.raises(ConfigError, match="gone.*kindly:Gone"):
        as_grader("gone")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package from its name and version, its module's text and its entry points."""

    def install_package(name, version, code, points):
        site = tmp_path / name
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text("\n".join(["[redraft.graders]", *points]))
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, name, raising=False)

    return install_package


GRADE = "def grade(text): return {}"
UNLIKE = [("a", "b"), ("b", "a")]


@pytest.mark.parametrize("order", UNLIKE, ids="".join)
def test_name_of_two_packages_is_ambiguous(install, order):
    """The error names both packages in any order of discovery, and names that only one of them has
    work.
    """
    for letter in order:
        points = ["polite = offers_{0}:grade", "only_{0} = offers_{0}:grade"]
        install(
            f"offers_{letter}", "1.0", GRADE.format(1.0), [point.format(letter) for point in points]
        )
    with pytest.raises(ConfigError) as refused:
        as_grader("polite")
    assert str(refused.value).startswith(
        "grader 'polite' is ambiguous: offers_a 1.0 (offers_a:grade) and offers_b 1.0 (offers_b:grade) define it"
    )
    assert {"offers_a", "offers_b"}.isdisjoint(sys.modules)
    assert as_grader("only_a") and as_grader("only_b")
    about = find_entry("polite").about
    assert "offers_a 1.0" in about and "offers_b 1.0" in about and about.startswith("ambiguous")
    assert [e.name for e in entries()].count("polite") == 1


@pytest.mark.slow
def test_name_of_two_packages_is_a_usage_error(install):
    """The command line names both packages and lists the grader with both."""
    for letter in "ab":
        install(f"offers_{letter}", "1.0", GRADE.format(1.0), [f"polite = offers_{letter}:grade"])
    path = os.pathsep.join(sys.path)

    def redraft(*arguments):
        command = [sys.executable, "-m", "redraft", *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=dict(os.environ, PYTHONPATH=path, COLUMNS="400"),
        )

    run = redraft("run", "x", "--model", "http://127.0.0.1:9/v1#m", "--grader", "polite")
    assert run.returncode == 2 and "offers_a 1.0" in run.stderr and "offers_b 1.0" in run.stderr
    listed = next(
        line for line in redraft("graders").stdout.splitlines() if line.split()[:1] == ["polite"]
    )
    assert "offers_a 1.0" in listed and "offers_b 1.0" in listed


@pytest.mark.parametrize("name", ["exact", "helpfulness", "pairwise", "words", "jury"])
def test_built_in_names_cannot_be_replaced(install, name):
    """A package that offers a built-in name is not loaded, whatever the kind of grader."""
    install("greedy", "1.0", "raise SystemExit('loaded')", [f"{name} = greedy:grade"])
    listed = [e for e in entries() if e.name == name]
    assert [e.origin for e in listed] == ["redraft"]
    as_grader(listed[0].example)
    assert "greedy" not in sys.modules


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise ValueError", "ValueError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("grade = 7", "a grader is a name"),
        ("grade = ", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_broken_package_is_named(install, code, why):
    """The error gives its version and the cause; the package is listed, and the others work."""
    install("broken", "2.1", code, ["cracked = broken:grade"])
    install("sound", "1.0", GRADE.format(0.5), ["whole = sound:grade"])
    with pytest.raises(ConfigError) as refused:
        as_grader("cracked")
    assert why in str(refused.value)
    assert "broken 2.1" in str(refused.value) and "'cracked'" in str(refused.value)
    assert as_grader("whole") and "cracked" in {e.name for e in entries()}


def test_only_classes_take_an_argument(other_package):
    """A class may be called with it; a grader or a function with an argument is rejected."""
    assert [as_grader(name).name for name in ("says", "says:please", "thanks", "loud")] == [
        "says thanks",
        "says please",
        "says thanks",
        "loud",
    ]
    for spec in ("thanks:please", "loud:please"):
        with pytest.raises(ConfigError, match="nothing after a colon, got 'please'"):
            as_grader(spec)
    with pytest.raises(ConfigError, match="kind_words.*kindly:Kind.*cannot be loaded"):
        as_grader("kind_words:please")


def test_unknown_name_lists_the_nearest():
    """The error suggests the nearest of all registered names."""
    with pytest.raises(
        ConfigError,
        match=r"^unknown grader 'helpfulnes'; did you mean 'helpfulness'.*`redraft graders` lists all",
    ):
        as_grader("helpfulnes")
    assert registry.ENTRY_POINT_GROUP == "redraft.graders"


JUDGES = {
    # spec: rubric, scoring, criteria_mode
    "judge": ("default", "written", "together"),
    "judge:helpfulness": ("helpfulness", "written", "together"),
    "judge:scoring=expectation": ("default", "expectation", "together"),
    "judge:criteria_mode=separate,helpfulness": ("helpfulness", "written", "separate"),
    "judge:helpfulness,scoring=expectation,criteria_mode=separate": (
        "helpfulness",
        "expectation",
        "separate",
    ),
    "clarity:scoring=expectation": ("clarity", "expectation", "together"),
}


@pytest.mark.parametrize("spec", JUDGES)
def test_judges_take_options_after_their_name(spec):
    """Each way to judge has a name of its own in the trace, and a fingerprint of its own."""
    judge = as_grader(spec)
    assert (judge.rubric.name, judge.scoring, judge.criteria_mode) == JUDGES[spec]
    assert judge.name == spec
    prints = {each: grader_fingerprint(as_grader(each), lambda model: "") for each in JUDGES}
    same = [each for each in JUDGES if prints[each] == prints[spec]]
    assert same == [spec]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            "judge:scoring=mean",
            "grader 'judge': scoring must be written or expectation, got 'mean'",
        ),
        (
            "judge:helpfulness,scorin=expectation",
            "'scorin=expectation' is not an option; did you mean scoring=",
        ),
        (
            "clarity:criteria_mode=alone",
            "grader 'clarity': criteria_mode must be together or separate",
        ),
        ("clarity:fast", "grader 'clarity' takes nothing after a colon"),
        ("judge:my=rubric.toml", "rubric 'my=rubric.toml' cannot be read"),
    ],
)
def test_wrong_options_of_a_judge_are_named(spec, says):
    """The name of a file may hold an equals sign."""
    with pytest.raises(ConfigError, match=re.escape(says)):
        as_grader(spec)


@pytest.mark.parametrize(
    ("name", "instead"), [("bleu_on_topic", "'bleu'"), ("speed:goal=2", "'tests'")]
)
def test_removed_grader_says_what_to_use(name, instead):
    """Its name is an error, not that of another grader."""
    with pytest.raises(ConfigError, match=f"was removed: use {instead}"):
        as_grader(name)
