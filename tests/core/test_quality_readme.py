"""The worked numbers in quality/README.md are those that the code computes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import redraft
from redraft.quality.posterior import Posterior
from redraft.quality.lineage import Observations, Node, TreeShape
from redraft.quality.fit import fit_priors
from redraft.quality.priors import Priors

README = Path(redraft.__file__).parent / "quality" / "README.md"
SHIPPED = Priors()


def one_draft(score):
    """A task with one draft that one judge scored once."""
    return Observations(TreeShape((Node("generate", None, 1.0),), 1.0), (score,), {0: 0})


QUANTITIES = {
    "posterior mean": lambda scores: Posterior(one_draft(*scores), SHIPPED).means[0],
    "posterior standard deviation": lambda scores: Posterior(one_draft(*scores), SHIPPED).sds[0],
    "value of a refinement": lambda scores: Posterior(one_draft(*scores), SHIPPED).value_of_candidate("refine", 0, 0),
    "value of a new draft": lambda scores: Posterior(one_draft(*scores), SHIPPED).value_of_candidate("generate", None, 0),
    "fitted `draft_mean`": lambda scores: fit_priors(map(one_draft, scores), SHIPPED).draft_mean,
}


def worked_numbers() -> Iterator[tuple[str, list[float], str]]:
    """The rows of the last table of the page: quantity, scores and value."""
    for scores, quantity, value in re.findall(r"^\| \d \| ([\d., ]+) \| ([^|]+) \| ([\d.]+) \|$", README.read_text(), re.MULTILINE):
        yield quantity, [float(score) for score in scores.split(", ")], value


@pytest.mark.parametrize(("quantity", "scores", "value"), list(worked_numbers()))
def test_a_worked_number_is_computed(quantity, scores, value):
    """With the scores that the page gives, to all the digits that it gives."""
    digits = len(value.partition(".")[2])
    assert f"{QUANTITIES[quantity](scores):.{digits}f}" == value


def test_every_quantity_is_on_the_page():
    """Three examples, with five numbers."""
    assert [quantity for quantity, _, _ in worked_numbers()] == list(QUANTITIES)


def test_the_page_gives_the_shipped_values():
    """Each parameter with its value, in the order of the class."""
    values = re.findall(r"`\w+` \(([\d.]+)\)", README.read_text())
    assert [float(value) for value in values] == [value for name, value in SHIPPED.to_dict().items() if name != "tasks"]
