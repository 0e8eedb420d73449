"""Repairs that graders offer: they cost no call, come one after the other, and guards may veto
them.
"""

import redraft
from redraft.loop.records import Feedback
from redraft.protocols import Edit


class LetterGrader:
    """Scores the share of the letter `a`; its repair replaces one letter."""

    model_free = editable = True

    def __init__(self, name="letters", replacement=("b", "a"), guards=False, score=None):
        self.name, self.replacement, self.guards_repairs, self.score = (
            name,
            replacement,
            guards,
            score,
        )

    async def grade(self, task, candidate, ask):
        return Feedback(
            self.score(candidate.text)
            if self.score
            else candidate.text.count("a") / len(candidate.text)
        )

    async def repair(self, task, candidate):
        new = candidate.text.replace(*self.replacement)
        return Edit(new, f"{self.name} replaced") if new != candidate.text else None


def refined(text, *graders, **settings):
    return redraft.refine_sync(
        "q", redraft.ScriptedModel([text] * 3), list(graders), max_iterations=1, **settings
    )


def test_a_grader_may_offer_repairs():
    """An editable grader's repair becomes a candidate of its own, for free."""
    result = refined("ab", LetterGrader())
    assert (result.value, result.score, result.usage.calls) == ("aa", 1.0, 1)
    assert result.trace.best.note == "letters replaced"
    assert refined("ab", LetterGrader(), editor=False).value == "ab"


def test_repairs_of_several_graders_are_made_one_after_the_other():
    """Each gets the text of the one before."""
    result = refined("abc", LetterGrader(), LetterGrader("more", ("c", "a")))
    assert (result.value, result.trace.best.note) == ("aaa", "letters replaced; more replaced")


def test_a_repair_that_a_guard_scores_lower_is_dropped():
    """Style never costs a passing test; the guard's own repairs are its own matter."""
    for editable in (True, False):
        guard = LetterGrader(
            "guard", ("x", "x"), guards=True, score=lambda text: 0.5 if "b" in text else 0.2
        )
        guard.editable = editable
        result = refined("ab", LetterGrader(), guard)
        assert [c.role for c in result.trace.candidates if c.text != "ab"] == []


def test_a_repair_that_raises_is_a_failure_and_ends_nothing():
    """The loop goes on without repairs."""

    class Broken(LetterGrader):
        async def repair(self, task, candidate):
            raise OSError("no disk")

    result = refined("ab", Broken())
    assert result.score == 0.5
    assert [failure.role for failure in result.trace.failures.values()] == ["repair"]
