"""Families as tables: what is recorded on the left; who comes from whom, what was said, and how often on the right."""

import random

import pytest

from redraft.quality.lineage import observe, llm_graders
from redraft.core.records import Candidate, Failure, Feedback, Task
from redraft.core.trace import PanelGrader, Trace

JUDGE, OTHER = PanelGrader("judge"), PanelGrader("other")
CHECK, FORM = PanelGrader("check", model_free=True), PanelGrader("form", must=True, model_free=True)


def draft(id):
    return Candidate(id, f"text {id}", by="m", role="generate")


def child(id, parent, role="refine", text=None):
    return Candidate(id, text or f"text {id}", parent, by="m", role=role)


def said(id, score, grader="judge", look=0, votes=()):
    return Feedback(score, candidate=id, grader=grader, repeat=look, votes=votes)


def vote(score, grader="judge"):
    return Feedback(score, grader=grader)


def of(panel, *records):
    return observe(Trace(Task("q"), tuple(panel), records))


@pytest.mark.parametrize(
    ("panel", "records", "kin", "scores"),
    [
        ([JUDGE], [], [], []),
        ([JUDGE], [draft(0)], [("generate", None, None)], []),
        ([JUDGE], [Candidate(0, "given"), said(0, 0.5)], [("given", None, 1.0)], [0.5]),
        ([JUDGE], [draft(0), said(0, 0.5)], [("generate", None, 1.0)], [0.5]),
        ([JUDGE], [draft(0), said(0, None)], [("generate", None, None)], []),
        (
            [JUDGE],
            [draft(0), said(0, 0.5), child(1, 0), said(1, 0.7)],
            [("generate", None, 1.0), ("refine", 0, 1.0)],
            [0.5, 0.7],
        ),
        (
            [CHECK],
            [draft(0), child(1, 0, "repair"), said(1, 0.7, "check")],
            [("generate", None, None), ("repair", 0, 0.0)],
            [0.7],
        ),
        ([JUDGE], [draft(0), said(0, 0.5), said(0, 0.7, look=1)], [("generate", None, 0.5)], [0.6]),
        ([JUDGE, OTHER], [draft(0), said(0, 0.5)], [("generate", None, None)], []),
        ([JUDGE, OTHER], [draft(0), said(0, 0.5), said(0, 0.7, "other")], [("generate", None, 0.5)], [0.6]),
        ([JUDGE, CHECK], [draft(0), said(0, 0.5), said(0, 1.0, "check")], [("generate", None, 0.25)], [0.75]),
        ([FORM, JUDGE], [draft(0), said(0, 0.5), said(0, 0.0, "form")], [("generate", None, 1.0)], [0.5]),
        (
            [PanelGrader("judge", 3.0), OTHER],
            [draft(0), said(0, 0.5), said(0, 0.7, look=1), said(0, 1.0, "other")],
            [("generate", None, pytest.approx(0.75**2 / 2 + 0.25**2))],
            [pytest.approx(0.7)],
        ),
    ],
)
def test_a_family(panel, records, kin, scores):
    """Roles, parents, and the noise of each score in terms of that of one look."""
    found = of(panel, *records)
    assert [tuple(each) for each in found.shape.nodes] == kin
    assert list(found.scores) == scores


@pytest.mark.parametrize(
    ("records", "places", "parents"),
    [
        ([draft(0), child(1, 0), child(2, 1)], {0: 0, 1: 1, 2: 2}, [None, 0, 1]),
        ([draft(0), child(1, 0, text="text 0"), child(2, 0)], {0: 0, 1: 0, 2: 1}, [None, 0]),
        ([draft(0), child(1, 0, text="text 0"), child(2, 1)], {0: 0, 1: 0, 2: 1}, [None, 0]),
        ([draft(0), child(1, 0, text="text 0"), child(2, 1, text="text 0")], {0: 0, 1: 0, 2: 0}, [None]),
        ([draft(0), draft(3), child(4, 3)], {0: 0, 3: 1, 4: 2}, [None, None, 1]),
        ([draft(0), Failure(("candidate", 1), "generate", "ModelError"), child(2, 0)], {0: 0, 2: 1}, [None, 0]),
    ],
)
def test_copies_have_the_place_of_their_parent(records, places, parents):
    """What changed nothing is nobody new; its own children are its parent's."""
    found = of([JUDGE], *records)
    assert found.node_indices == places
    assert [kin.parent for kin in found.shape.nodes] == parents


@pytest.mark.parametrize(
    ("panel", "words", "noise", "again"),
    [
        ([JUDGE], [said(0, 0.5)], 1.0, (0, 0.0)),
        ([JUDGE], [said(0, 0.5), said(0, 0.5, look=1)], 0.5, (1, 0.0)),
        ([JUDGE], [said(0, 0.4), said(0, 0.6, look=1)], 0.5, (1, 0.02)),
        ([JUDGE], [said(0, 0.3), said(0, 0.6, look=1), said(0, 0.9, look=2)], 1 / 3, (2, 0.18)),
        ([JUDGE], [said(0, 0.4, votes=(vote(0.2), vote(0.6)))], 0.5, (1, 0.08)),
        ([JUDGE], [said(0, 0.4, votes=(vote(0.2), vote(0.6), Failure(("feedback", 0, "judge", 2), "grade", "X")))], 0.5, (1, 0.08)),
        ([JUDGE], [said(0, 0.4, votes=(vote(0.2), vote(0.6))), said(0, 0.4, look=1)], 1 / 3, (2, 0.08)),
        ([JUDGE], [said(0, 0.4, votes=(vote(0.2, "tone"), vote(0.6, "facts")))], 1.0, (0, 0.0)),
        ([JUDGE], [said(0, 0.0, votes=(vote(0.3, "gate"),))], 1.0, (0, 0.0)),
        ([JUDGE, OTHER], [said(0, 0.4), said(0, 0.6, "other")], 0.5, (0, 0.0)),
        ([CHECK], [said(0, 0.4, "check"), said(0, 0.4, "check", 1)], 0.0, (0, 0.0)),
    ],
)
def test_looks_at_the_same_text(panel, words, noise, again):
    """The more of them, the less noise; by how much they differ is kept. Graders of different things do not repeat each other."""
    found = of(panel, draft(0), *words)
    assert found.shape.nodes[0].noise_weight == pytest.approx(noise)
    assert found.repeat_stats == (again[0], pytest.approx(again[1]))


@pytest.mark.parametrize(
    ("panel", "shares", "share"),
    [
        ([JUDGE], {"judge": 1.0}, 1.0),
        ([CHECK], {}, 0.0),
        ([JUDGE, CHECK], {"judge": 0.5}, 0.25),
        ([PanelGrader("judge", 3.0), OTHER], {"judge": 0.75, "other": 0.25}, 0.625),
        ([FORM, JUDGE], {"judge": 1.0}, 1.0),
        ([PanelGrader("judge", must=True)], {"judge": 1.0}, 1.0),
        ([PanelGrader("judge", must=True), CHECK], {}, 0.0),
        ([JUDGE, PanelGrader("ranker", compares=True)], {"judge": 1.0}, 1.0),
        ([PanelGrader("ranker", compares=True)], {}, 0.0),
        ([], {}, 0.0),
    ],
)
def test_who_is_noisy(panel, shares, share):
    """Those that ask a model, as far as they count in the score; musts count where there is nothing else."""
    assert {seat.name: part for seat, part in llm_graders(panel)} == shares
    assert of(panel).shape.repeat_noise_weight == share


def test_the_order_of_records_decides_nothing():
    """The same records in any order are the same family."""
    records = [draft(0), child(1, 0), said(0, 0.3), said(0, 0.4, look=1), said(1, 0.9), draft(2), said(2, 0.1)]
    found = of([JUDGE], *records)
    for seed in range(20):
        assert of([JUDGE], *random.Random(seed).sample(records, len(records))) == found


def test_families_of_the_same_shape_are_told_by_their_scores_alone():
    """What is worked out for one serves the others."""
    one = of([JUDGE], draft(0), said(0, 0.3), child(1, 0), said(1, 0.9))
    other = of([JUDGE], draft(0), said(0, 0.8), child(3, 0), said(3, 0.1))
    assert one.shape == other.shape and hash(one.shape) == hash(other.shape)
