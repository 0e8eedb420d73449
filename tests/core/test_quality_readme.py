"""The code computes the worked numbers of plans/quality/README.md."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import redraft
from redraft.loop.records import Candidate, Feedback
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.quality.fit import fit_priors
from redraft.plans.quality.lineage import Node, Observations, TreeShape, observe
from redraft.plans.quality.posterior import Posterior, expected_improvement
from redraft.plans.quality.priors import Priors

README = Path(redraft.__file__).parent / "plans" / "quality" / "README.md"
SHIPPED = Priors()


def one_draft(score, times=1):
    """A task with one draft that one judge scored repeatedly."""
    return Observations(TreeShape((Node("generate", None, 1 / times),), 1.0), (score,), {0: 0})


def judged(scores, step):
    """The posterior mean of a draft with these scores by one judge whose scale has this step."""
    records = [
        Feedback(score, candidate=0, grader="judge", repeat=n) for n, score in enumerate(scores)
    ]
    panel = (PanelGrader("judge", score_step=step),)
    return Posterior(
        observe(Trace(Task("q"), panel, (Candidate(0, "a", by="m", role="generate"), *records))),
        SHIPPED,
    ).means[0]


QUANTITIES = {
    "posterior mean": lambda scores: Posterior(one_draft(*scores), SHIPPED).means[0],
    "posterior standard deviation": lambda scores: Posterior(one_draft(*scores), SHIPPED).sds[0],
    "posterior mean after three scores": lambda scores: Posterior(
        one_draft(*scores, times=3), SHIPPED
    ).means[0],
    "value of a refinement": lambda scores: Posterior(
        one_draft(*scores), SHIPPED
    ).value_of_candidate("refine", 0, 0),
    "value of a new draft": lambda scores: Posterior(
        one_draft(*scores), SHIPPED
    ).value_of_candidate("generate", None, 0),
    "fitted `draft_mean`": lambda scores: fit_priors(map(one_draft, scores), SHIPPED).draft_mean,
    "posterior mean after a yes": lambda scores: judged(scores, 1.0),
    "posterior mean after a no": lambda scores: judged(scores, 1.0),
    "posterior mean after a full score": lambda scores: judged(scores, None),
}


def worked_numbers() -> Iterator[tuple[str, list[float], str]]:
    """Return the rows of the last table of the page: quantity, scores and value."""
    for scores, quantity, value in re.findall(
        r"^\| \d \| ([\d., ]+) \| ([^|]+) \| ([\d.]+) \|$", README.read_text(), re.MULTILINE
    ):
        yield quantity, [float(score) for score in scores.split(", ")], value


@pytest.mark.parametrize(("quantity", "scores", "value"), list(worked_numbers()))
def test_worked_numbers(quantity, scores, value):
    """The page gives each value as computed from its scores, to all its digits."""
    digits = len(value.partition(".")[2])
    assert f"{QUANTITIES[quantity](scores):.{digits}f}" == value


def test_every_quantity_is_on_the_page():
    """The page has four examples with nine numbers."""
    assert [quantity for quantity, _, _ in worked_numbers()] == list(QUANTITIES)


def test_page_gives_the_default_priors():
    """The page lists each parameter with its value in the order of the class."""
    values = re.findall(r"`\w+` \(([\d.]+)\)", README.read_text())
    assert [float(value) for value in values] == [
        value for name, value in SHIPPED.to_dict().items() if name != "tasks"
    ]


def test_step_half_a_standard_deviation_behind_has_a_value():
    """The formula of the page, computed by hand: 0.1 phi(-0.5) - 0.05 Phi(-0.5)."""
    assert expected_improvement(-0.05, 0.10) == pytest.approx(0.0198, abs=0.00005)
