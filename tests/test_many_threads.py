"""Many threads at once: the caches that all of them share, and every public entry."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier

import pytest

import redraft
from redraft.base.bounded_cache import BoundedCache
from redraft.plans.quality.filtering import FILTER_CACHE, tree_with_intervals
from redraft.plans.quality.likelihood import score_interval
from redraft.plans.quality.lineage import Node, Observations, TreeShape
from redraft.plans.quality.priors import Priors
from redraft.plans.quality.tree import TREE_CACHE, cached_tree

THREADS = 16


@contextmanager
def hasty_threads() -> Iterator[ThreadPoolExecutor]:
    """Give threads that Python changes as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            yield pool
    finally:
        sys.setswitchinterval(before)


def at_once(function):
    """Return what a function of the number of a thread returns in each of many threads that begin
    together.
    """
    start = Barrier(THREADS)

    def begin(number):
        start.wait()
        return function(number)

    with hasty_threads() as pool:
        return list(pool.map(begin, range(THREADS)))


def test_a_bounded_cache_drops_what_was_not_used_for_longest():
    """It never holds more than its size; a value that was read stays."""
    cache = BoundedCache(3)
    for n in range(3):
        cache[n] = str(n)
    assert cache.get(0) == "0"
    cache[3] = "3"
    assert [cache.get(n) for n in (0, 2, 3)] == ["0", "2", "3"]
    assert cache.get(1) is None
    assert len(cache) == 3
    cache.clear()
    assert (len(cache), cache.get(0)) == (0, None)


def test_a_bounded_cache_is_shared_by_threads():
    """More keys than fit, set and read by all: what is found is what was set under the key."""
    cache = BoundedCache(8)

    def use(number):
        wrong = 0
        for n in range(3000):
            key = (n + number) % 24
            cache[key] = key * 2
            wrong += cache.get((key + 1) % 24) not in {None, (key + 1) % 24 * 2}
        return wrong

    assert at_once(use) == [0] * THREADS
    assert len(cache) == 8


def shape_of(number, texts):
    """Return the shape of a chain of scored texts, another one for each number."""
    nodes = [Node("draft", None, 1.0 + number / 1e6)]
    nodes += [Node("refinement", n, 1.0 + number / 1e6) for n in range(texts - 1)]
    return TreeShape(tuple(nodes), 1.0)


def test_the_cache_of_trees_is_shared_by_threads():
    """Each thread plans other runs, more than the cache holds: no thread drops an entry that
    another one drops.
    """
    TREE_CACHE.clear()

    def plan(number):
        return [
            len(cached_tree(shape_of(number * 150 + n, 1 + n % 2), Priors()).cholesky)
            for n in range(150)
        ]

    assert at_once(plan) == [[1 + n % 2 for n in range(150)]] * THREADS


@pytest.mark.slow
def test_the_cache_of_filters_is_shared_by_threads():
    """The same for scores that are intervals."""
    FILTER_CACHE.clear()

    shape = TreeShape((Node("generate", None, 1.0),), 1.0)

    def scores_for(number):
        shares = [(number * 200 + n) / (THREADS * 200) for n in range(200)]
        bounds = [{0: (score_interval(share, 0.25),)} for share in shares]
        tasks = [Observations(shape, (0.5,), {0: 0}, intervals=each) for each in bounds]
        return [tree_with_intervals(task, Priors())[1] for task in tasks]

    found = at_once(scores_for)
    FILTER_CACHE.clear()
    assert found == [scores_for(number) for number in range(THREADS)]


@pytest.mark.slow
def test_a_scripted_model_counts_the_calls_of_all_threads():
    """No call is lost, and no answer is given twice."""
    model = redraft.ScriptedModel([str(n) for n in range(THREADS * 10)])

    def ask(_):
        return [redraft.refine_sync("T", model, graders=lambda text: 1.0).value for _ in range(10)]

    answers = [text for texts in at_once(ask) for text in texts]
    assert sorted(map(int, answers)) == list(range(THREADS * 10))
    assert model.calls == len(model.messages) == THREADS * 10


REGISTRATION = """
import sys
from concurrent.futures import ThreadPoolExecutor
from redraft.requirements import kinds, parse, register_kind

def use(number):
    missing = 0
    for n in range(60):
        name = f"own_{number}_{n}"
        register_kind(name, "", name)(lambda argument: parse("no_commas"))
        missing += name not in kinds()
    return missing

sys.setswitchinterval(1e-6)
before = len(kinds())
with ThreadPoolExecutor(16) as pool:
    assert sum(pool.map(use, range(16))) == 0
assert len(kinds()) == before + 16 * 60
"""


def test_requirements_are_registered_by_many_threads():
    """A kind is known as soon as it is registered, whatever other threads register or list
    meanwhile.
    """
    done = subprocess.run(
        [sys.executable, "-c", REGISTRATION], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_every_public_entry_is_called_by_many_threads(tmp_path):
    """At the first use in a process, each thread another one: nothing raises, and the results are
    those of a single thread.
    """
    environment = {**os.environ, "REDRAFT_HOME": str(tmp_path / "home"), "OPENAI_API_KEY": "none"}
    command = [
        sys.executable,
        str(Path(__file__).with_name("public_entries.py")),
        str(tmp_path),
        str(THREADS),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, [f"{THREADS * 23} calls"]), (
        done.stdout + done.stderr
    )
