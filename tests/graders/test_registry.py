"""Every grader by name: ours, requirements, and those of other packages."""

import subprocess
import sys

import pytest

from redraft.contracts import Comparer, Grader
from redraft.errors import ConfigError
from redraft.graders import as_grader, entries, find_entry
from redraft.graders import registry


def test_names_are_one_grader_each(monkeypatch):
    """No name stands twice, every one has a line, a mode and an example that makes it."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")  # the example of `embedding` names a model that wants one
    found = list(entries())
    assert len({e.name for e in found}) == len(found)
    for e in found:
        assert e.about and e.example, e.name
        assert isinstance(as_grader(e.example), Grader | Comparer), e.name


def test_what_people_expect_is_there():
    """The gallery, and the names that reward-model galleries give its pillars."""
    names = {e.name for e in entries()}
    for pillar in ("helpfulness", "harmlessness", "honesty"):
        assert {pillar, f"base_{pillar}_pointwise", f"base_{pillar}_listwise"} <= names
    assert find_entry("base_honesty_listwise").mode == "listwise"
    assert {"exact", "math", "tool_calls", "pairwise", "jury", "checklist", "words"} <= names


def test_listing_loads_nothing_heavy():
    """Neither the libraries of graders nor other packages."""
    script = (
        "import sys; from redraft.graders import entries; list(entries()); "
        "print(sorted({'sympy','sacrebleu','math_verify','numpy','aiohttp','jsonschema'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip() == "[]"


PACKAGE = '''
class Kind:
    """Likes kind words."""

    name = "kind_words"
    free = True

    async def grade(self, task, candidate, ask):
        from redraft import Feedback
        return Feedback(float("please" in candidate.text))


def loud(text):
    return float(text.isupper())


class Says:
    """Looks for a word."""

    free = True

    def __init__(self, word="thanks"):
        self.name = f"says {word}"

    async def grade(self, task, candidate, ask):
        return None


thanks = Says()
'''


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A package of somebody else's that offers graders, installed for real."""
    (tmp_path / "kindly.py").write_text(PACKAGE)
    info = tmp_path / "kindly-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kindly\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[redraft.graders]\nkind_words = kindly:Kind\nloud = kindly:loud\ngone = kindly:Gone\nwords = kindly:loud\nsays = kindly:Says\nthanks = kindly:thanks\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "kindly", raising=False)


async def test_graders_of_other_packages(foreign):
    """A class or a function by entry point; listed with their package, loaded when used; ours are not given away."""
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


def test_an_argument_is_for_classes_alone(foreign):
    """A class is called with it, or with nothing; a grader or a function that gets one is refused, not asked without it."""
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


def test_a_name_that_is_none_is_told_its_neighbours():
    """With the nearest of all that there are."""
    with pytest.raises(ConfigError, match=r"^unknown grader 'helpfulnes'; did you mean 'helpfulness'.*`redraft graders` lists all"):
        as_grader("helpfulnes")
    assert registry.GROUP == "redraft.graders"
