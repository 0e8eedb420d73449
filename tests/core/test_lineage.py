"""Observations of a trace, as tables: records on the left; parents, scores and their repeats on the
right.
"""

import random

import pytest

from redraft.loop.records import Candidate, Failure, Feedback
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.quality.lineage import llm_graders, observe

JUDGE, OTHER = PanelGrader("judge"), PanelGrader("other")
CHECK, FORM = PanelGrader("check", model_free=True), PanelGrader("form", must=True, model_free=True)


def draft(id):
    return Candidate(id, f"text {id}", by="m", role="generate")


def child(id, parent, role="refine", text=None):
    return Candidate(id, text or f"text {id}", parent, by="m", role=role)


def feedback(id, score, grader="judge", repeat=0, votes=()):
    return Feedback(score, candidate=id, grader=grader, repeat=repeat, votes=votes)


def vote(score, grader="judge"):
    return Feedback(score, grader=grader)


def of(panel, *records):
    return observe(Trace(Task("q"), tuple(panel), records))


@pytest.mark.parametrize(
    ("panel", "records", "nodes", "scores"),
    [
        ([JUDGE], [], [], []),
        ([JUDGE], [draft(0)], [("generate", None, None)], []),
        ([JUDGE], [Candidate(0, "given"), feedback(0, 0.5)], [("given", None, 1.0)], [0.5]),
        ([JUDGE], [draft(0), feedback(0, 0.5)], [("generate", None, 1.0)], [0.5]),
        ([JUDGE], [draft(0), feedback(0, None)], [("generate", None, None)], []),
        (
            [JUDGE],
            [draft(0), feedback(0, 0.5), child(1, 0), feedback(1, 0.7)],
            [("generate", None, 1.0), ("refine", 0, 1.0)],
            [0.5, 0.7],
        ),
        (
            [CHECK],
            [draft(0), child(1, 0, "repair"), feedback(1, 0.7, "check")],
            [("generate", None, None), ("repair", 0, 0.0)],
            [0.7],
        ),
        (
            [JUDGE],
            [draft(0), feedback(0, 0.5), feedback(0, 0.7, repeat=1)],
            [("generate", None, 0.5)],
            [0.6],
        ),
        ([JUDGE, OTHER], [draft(0), feedback(0, 0.5)], [("generate", None, None)], []),
        (
            [JUDGE, OTHER],
            [draft(0), feedback(0, 0.5), feedback(0, 0.7, "other")],
            [("generate", None, 0.5)],
            [0.6],
        ),
        (
            [JUDGE, CHECK],
            [draft(0), feedback(0, 0.5), feedback(0, 1.0, "check")],
            [("generate", None, 0.25)],
            [0.75],
        ),
        (
            [FORM, JUDGE],
            [draft(0), feedback(0, 0.5), feedback(0, 0.0, "form")],
            [("generate", None, 1.0)],
            [0.5],
        ),
        (
            [PanelGrader("judge", 3.0), OTHER],
            [draft(0), feedback(0, 0.5), feedback(0, 0.7, repeat=1), feedback(0, 1.0, "other")],
            [("generate", None, pytest.approx(0.75**2 / 2 + 0.25**2))],
            [pytest.approx(0.7)],
        ),
    ],
)
def test_family(panel, records, nodes, scores):
    """A family holds roles, parents and the noise of each score relative to that of one grade."""
    observations = of(panel, *records)
    assert [tuple(each) for each in observations.shape.nodes] == nodes
    assert list(observations.scores) == scores


@pytest.mark.parametrize(
    ("records", "places", "parents"),
    [
        ([draft(0), child(1, 0), child(2, 1)], {0: 0, 1: 1, 2: 2}, [None, 0, 1]),
        ([draft(0), child(1, 0, text="text 0"), child(2, 0)], {0: 0, 1: 0, 2: 1}, [None, 0]),
        ([draft(0), child(1, 0, text="text 0"), child(2, 1)], {0: 0, 1: 0, 2: 1}, [None, 0]),
        (
            [draft(0), child(1, 0, text="text 0"), child(2, 1, text="text 0")],
            {0: 0, 1: 0, 2: 0},
            [None],
        ),
        ([draft(0), draft(3), child(4, 3)], {0: 0, 3: 1, 4: 2}, [None, None, 1]),
        (
            [draft(0), Failure(("candidate", 1), "generate", "ModelError"), child(2, 0)],
            {0: 0, 2: 1},
            [None, 0],
        ),
    ],
)
def test_copy_takes_its_parents_place(records, places, parents):
    """A copy adds no node, and its children count as its parent's."""
    observations = of([JUDGE], *records)
    assert observations.node_indices == places
    assert [node.parent for node in observations.shape.nodes] == parents


@pytest.mark.parametrize(
    ("panel", "words", "noise", "again"),
    [
        ([JUDGE], [feedback(0, 0.5)], 1.0, (0, 0.0)),
        ([JUDGE], [feedback(0, 0.5), feedback(0, 0.5, repeat=1)], 0.5, (1, 0.0)),
        ([JUDGE], [feedback(0, 0.4), feedback(0, 0.6, repeat=1)], 0.5, (1, 0.02)),
        (
            [JUDGE],
            [feedback(0, 0.3), feedback(0, 0.6, repeat=1), feedback(0, 0.9, repeat=2)],
            1 / 3,
            (2, 0.18),
        ),
        ([JUDGE], [feedback(0, 0.4, votes=(vote(0.2), vote(0.6)))], 0.5, (1, 0.08)),
        (
            [JUDGE],
            [
                feedback(
                    0,
                    0.4,
                    votes=(
                        vote(0.2),
                        vote(0.6),
                        Failure(("feedback", 0, "judge", 2), "grade", "X"),
                    ),
                )
            ],
            0.5,
            (1, 0.08),
        ),
        (
            [JUDGE],
            [feedback(0, 0.4, votes=(vote(0.2), vote(0.6))), feedback(0, 0.4, repeat=1)],
            1 / 3,
            (2, 0.08),
        ),
        ([JUDGE], [feedback(0, 0.4, votes=(vote(0.2, "tone"), vote(0.6, "facts")))], 1.0, (0, 0.0)),
        ([JUDGE], [feedback(0, 0.0, votes=(vote(0.3, "gate"),))], 1.0, (0, 0.0)),
        ([JUDGE, OTHER], [feedback(0, 0.4), feedback(0, 0.6, "other")], 0.5, (0, 0.0)),
        ([CHECK], [feedback(0, 0.4, "check"), feedback(0, 0.4, "check", 1)], 0.0, (0, 0.0)),
    ],
)
def test_repeats_of_the_same_text(panel, words, noise, again):
    """More repeats mean less noise; graders of different criteria do not repeat each other."""
    observations = of(panel, draft(0), *words)
    assert observations.shape.nodes[0].noise_weight == pytest.approx(noise)
    assert observations.repeat_stats == (again[0], pytest.approx(again[1]))


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
def test_noisy_graders(panel, shares, share):
    """Graders that call a model are noisy as far as they enter the score; a `must` counts only if
    nothing else does.
    """
    assert {grader.name: part for grader, part in llm_graders(panel)} == shares
    assert of(panel).shape.repeat_noise_weight == share


def test_order_of_records_does_not_matter():
    """The same records in any order are the same family."""
    records = [
        draft(0),
        child(1, 0),
        feedback(0, 0.3),
        feedback(0, 0.4, repeat=1),
        feedback(1, 0.9),
        draft(2),
        feedback(2, 0.1),
    ]
    observations = of([JUDGE], *records)
    for seed in range(20):
        assert of([JUDGE], *random.Random(seed).sample(records, len(records))) == observations


def test_families_of_the_same_shape_share_their_shape():
    """The computation for one shape serves every family of that shape."""
    one = of([JUDGE], draft(0), feedback(0, 0.3), child(1, 0), feedback(1, 0.9))
    other = of([JUDGE], draft(0), feedback(0, 0.8), child(3, 0), feedback(3, 0.1))
    assert one.shape == other.shape and hash(one.shape) == hash(other.shape)
