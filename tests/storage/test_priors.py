"""Stored priors: for which model and graders they hold, how they are found, and that a damaged file
stops no run.
"""

import asyncio
import json
from dataclasses import replace
from hashlib import sha256
from threading import Lock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft import (
    Result,
    ScriptedModel,
    batch,
    must,
    refine,
    refine_many,
    stream,
    with_weight,
)
from redraft.errors import ConfigError, StoreError
from redraft.loop.records import Feedback
from redraft.loop.trace import Trace
from redraft.plans.adaptive import Adaptive
from redraft.plans.quality.priors import Priors
from redraft.protocols import Reply
from redraft.runs import BatchRun
from redraft.runs.row_key import settings_parts
from redraft.session.options import Options
from redraft.session.session import Session
from redraft.storage.priors_store import (
    PriorsKey,
    PriorsStore,
    StoredPriors,
    priors_from_data,
    read_priors,
)
from redraft.usage import Usage
from sessions import make_session

pytestmark = pytest.mark.usefixtures("no_open_files")

PAIR = PriorsKey.from_graders("m", "http://h/v1#m", [("judge", 1.0, "f" * 16)])
LEARNED = Priors(draft_mean=0.7, noise_sd=0.2, tasks=40)


def stored_priors(priors=LEARNED, pair=PAIR):
    return StoredPriors.create(pair, priors, "a test")


def open_session(graders=None, model="m", judge=None, **settings):
    named = ScriptedModel([], name=model) if model else None
    return make_session(
        Options(**settings), named, graders, ScriptedModel([], name=judge) if judge else None
    )


async def llm_grader(text, model):
    """A grader that calls a model."""
    return int((await model(text))[0], 16) / 16


def test_stored_priors_are_found(tmp_path):
    """Priors are found for their pair of model and graders only, and a second write replaces the
    first.
    """
    store = PriorsStore.in_folder(tmp_path / "deep" / "shelf")
    assert store.load(PAIR) is None and list(store.entries()) == []
    store.save(stored_priors(Priors()))
    path = store.save(one := stored_priors())
    assert store.load(PAIR) == one
    assert (
        store.load(PriorsKey.from_graders("m", "http://other/v1#m", [("judge", 1.0, "f" * 16)]))
        is None
    )
    assert list(store.entries()) == [(path, one)]
    store.delete(path)
    assert store.load(PAIR) is None


def test_priors_are_stored_in_redraft_home(monkeypatch, tmp_path):
    """They have a folder of their own in REDRAFT_HOME."""
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path))
    assert PriorsStore.in_folder().save(stored_priors()).parent == tmp_path / "priors"


fractions = st.floats(0, 1)


@given(
    st.lists(fractions, min_size=11, max_size=11),
    st.integers(0, 10**9),
    st.text(st.characters(codec=None), min_size=1),
)
def test_any_priors_and_names_round_trip(tmp_path_factory, figures, tasks, name):
    """Values round trip to the last bit."""
    store = PriorsStore.in_folder(tmp_path_factory.mktemp("shelf"))
    one = stored_priors(
        Priors(*figures, tasks=tasks),
        PriorsKey.from_graders(name, name, [(name, 0.5, "a"), (name, 0.5, "b")]),
    )
    store.save(one)
    assert store.load(one.priors_key) == one


def damaged_files():
    good = stored_priors().as_data()
    yield from (
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 50_000,
        b" " * 70_000 + json.dumps(good).encode(),
    )
    changes = [
        {"redraft_priors": 2},
        {"key": "../../x"},
        {"key": "0" * 16},
        {"model": None},
        {"graders": "judge"},
        {"fingerprints": [1]},
        {"created_at": "yesterday"},
        {"created_at": "0001-01-01T00:00:00+05:00"},
        {"created_at": "9999-12-31T23:59:59-05:00"},
        {"source": 3},
        {"priors": None},
        {"priors": {"draft_mean": float("nan")}},
        {"priors": {"draft_mean": 10**400}},
        {"priors": {"draft_mean": "0.5"}},
        {"priors": {"charm": 0.5}},
    ]
    yield from (json.dumps(good | change).encode() for change in changes)


@pytest.mark.parametrize("data", list(damaged_files()), ids=range(22))
def test_damaged_file_is_reported_and_ignored(monkeypatch, tmp_path, data):
    """Nothing is read from it, the list says what is wrong, and a run uses the default priors."""
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path))
    pair = open_session().knowledge.priors_key
    path = PriorsStore.in_folder().save(stored_priors(pair=pair))
    path.write_bytes(data)
    assert PriorsStore.in_folder().load(pair) is None
    [(where, error)] = PriorsStore.in_folder().entries()
    assert where == path and isinstance(error, StoreError) and str(path) in str(error)
    assert open_session(priors="learned").knowledge.priors == Priors()


def test_file_in_place_of_the_folder_is_ignored(monkeypatch, tmp_path):
    """Nothing is found there, and storing raises an error."""
    (tmp_path / "priors").write_text("")
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path))
    assert open_session(priors="learned").knowledge.priors == Priors()
    with pytest.raises(StoreError, match="priors"):
        PriorsStore.in_folder().save(stored_priors())


def test_pair_depends_on_what_decides_its_scores():
    """Another model, judge, weight or grader makes another pair; a name, a seed, a `must` or the
    order of graders does not.
    """
    same = [
        open_session(),
        open_session(seed=3),
        open_session(["judge"]),
        open_session(["judge", must("words:1-5")]),
        open_session([with_weight("judge", 3)]),
    ]
    assert len({one.knowledge.priors_key.key for one in same}) == 1
    two = [
        open_session(["judge", "helpfulness"]),
        open_session(["helpfulness", "judge"]),
        open_session([with_weight("judge", 2), with_weight("helpfulness", 2)]),
    ]
    assert len({one.knowledge.priors_key.key for one in two}) == 1
    others = [
        same[0],
        two[0],
        open_session(model="n"),
        open_session(judge="j"),
        open_session([with_weight("judge", 2), "helpfulness"]),
        open_session(llm_grader),
    ]
    others.append(open_session(["judge", lambda text: 0.5]))
    assert len({one.knowledge.priors_key.key for one in others}) == len(others)
    assert (two[0].knowledge.priors_key.model, sorted(two[0].knowledge.priors_key.graders)) == (
        "m",
        ["helpfulness", "judge"],
    )


def test_requirements_of_a_task_keep_the_pair():
    """Requirements do not change what the score consists of."""
    first, second = open_session(), open_session()
    first.resolve_panel(("words:1-5",))
    assert first.knowledge.priors_key == second.knowledge.priors_key


def grader_with_a_lock():
    lock = Lock()

    async def judging(text, model):
        with lock:
            return await llm_grader(text, model)

    return judging


@pytest.mark.parametrize(
    "arranged",
    [
        open_session("words:1-5"),
        open_session(lambda text: 0.5),
        open_session(model=None, judge="j"),
        open_session(model=None),
        open_session(grader_with_a_lock()),
    ],
    ids=["requirement", "function", "no writer", "nobody", "a grader that cannot be told"],
)
def test_unstorable_priors_have_no_pair(arranged):
    """The run uses the default priors."""
    assert arranged.knowledge.priors_key is None
    assert arranged.knowledge.priors == Priors()


def test_session_uses_stored_priors_on_request(tmp_path):
    """Otherwise it uses the default priors or those of the user, also from a file; other graders
    have other priors.
    """
    one = open_session(priors="learned")
    PriorsStore.in_folder().save(stored_priors(pair=one.knowledge.priors_key))
    assert one.knowledge.priors == LEARNED
    assert (
        open_session().knowledge.priors
        == open_session(priors="shipped").knowledge.priors
        == Priors()
    )
    mine = tmp_path / "mine.json"
    mine.write_text('{"draft_mean": 0.1}')
    assert (
        open_session(priors=mine).knowledge.priors
        == open_session(priors=str(mine)).knowledge.priors
        == Priors(draft_mean=0.1)
    )
    assert open_session(priors=Priors(draft_mean=0.1)).knowledge.priors == Priors(draft_mean=0.1)
    assert Session(one.options, one.models, "helpfulness").knowledge.priors == Priors()
    PriorsStore.in_folder().save(stored_priors(Priors(draft_mean=0.9), one.knowledge.priors_key))
    assert one.knowledge.priors == LEARNED  # a run uses one set of priors throughout


@pytest.mark.parametrize("word", ["learn", "Shipped", "", 3, True, {}, ["learned"], 0.5])
async def test_invalid_priors_are_rejected(word):
    """The error says what is allowed."""
    with pytest.raises(
        ConfigError,
        match=r"priors must be 'shipped', 'learned', Priors, the path of a \.json file or None, got",
    ):
        await refine("q", ScriptedModel(["a"]), llm_grader, priors=word)


async def run_refine(settings):
    return await refine(
        "q",
        ScriptedModel(map(str, range(20))),
        llm_grader,
        ScriptedModel(["8"] * 20, name="judge"),
        **settings,
    )


async def run_refine_many(settings):
    [result] = await refine_many(
        ["q"],
        ScriptedModel(map(str, range(20))),
        llm_grader,
        ScriptedModel(["8"] * 20, name="judge"),
        **settings,
    )
    return result


async def run_stream(settings):
    models = ScriptedModel(map(str, range(20))), llm_grader, ScriptedModel(["8"] * 20, name="judge")
    return Result([trace async for trace in stream("q", *models, **settings)][-1])


@pytest.mark.parametrize("run_once", [run_refine, run_refine_many, run_stream])
async def test_stored_priors_are_used_only_on_request(tmp_path, run_once):
    """Without the option the same call gives the same records; the result's metadata names its
    priors.
    """
    useless = Priors(
        draft_mean=0.5, gain=0.0, retention=1.0, gain_sd=0, step_sd=0, draft_sd=0, tasks=500
    )
    before = [
        (await run_once(settings)).trace
        for settings in ({}, {"priors": "shipped"}, {"priors": "learned"})
    ]
    PriorsStore.in_folder().save(
        stored_priors(
            useless, open_session(llm_grader, model="scripted", judge="judge").knowledge.priors_key
        )
    )
    after = [await run_once(settings) for settings in ({}, {"priors": "shipped"})]
    (tmp_path / "p.json").write_text(json.dumps(useless.to_dict()))
    results = [
        await run_once({"priors": priors}) for priors in ("learned", useless, tmp_path / "p.json")
    ]
    timeless = [
        [replace(r, seconds=None) if hasattr(r, "seconds") else r for r in t.records]
        for t in before
    ]
    assert timeless[0] == timeless[1] == timeless[2]
    assert [
        [replace(r, seconds=None) if hasattr(r, "seconds") else r for r in one.trace.records]
        for one in after
    ] == timeless[:2]
    assert [one.priors for one in after] == [None, None]
    assert [one.usage.calls for one in results] == [2, 2, 2]
    assert [one.priors for one in results] == [useless.to_dict()] * 3


async def test_useless_refinement_is_not_paid_for():
    """With priors that expect no gain, the run makes no refinement and no new draft."""
    useless = Priors(
        draft_mean=0.5, gain=0.0, retention=1.0, gain_sd=0, step_sd=0, draft_sd=0, tasks=500
    )

    async def calls(**settings):
        writer = ScriptedModel(map(str, range(20)))
        judge = ScriptedModel(["8"] * 20, name="judge")
        return (await refine("q", writer, llm_grader, judge, **settings)).usage.calls

    assert await calls() > 2
    PriorsStore.in_folder().save(
        stored_priors(
            useless, open_session(llm_grader, model="scripted", judge="judge").knowledge.priors_key
        )
    )
    assert await calls(priors="learned") == 2
    assert await calls() > 2


async def test_later_priors_do_not_reopen_a_finished_trace():
    """A trace that finished before stays as it is unless the user asks for more."""
    eager = Priors(draft_mean=0.5, gain=0.5, gain_sd=0.3, step_sd=0.3, tasks=500)
    judge = ScriptedModel(["8"] * 20, name="judge")

    async def resume(given, **settings):
        return await refine(
            given,
            ScriptedModel(map(str, range(20))),
            llm_grader,
            judge,
            **{"priors": "learned", **settings},
        )

    first = await resume("q", min_expected_gain=0.1)
    assert (first.stop, first.usage.calls) == ("gain", 2)
    PriorsStore.in_folder().save(
        stored_priors(
            eager, open_session(llm_grader, model="scripted", judge="judge").knowledge.priors_key
        )
    )
    assert (await resume("q", min_expected_gain=0.1)).usage.calls > 2
    loaded = Trace.from_json(first.trace.to_json())
    for trace in (first.trace, loaded):
        assert (await resume(trace, min_expected_gain=0.1)).trace.records == first.trace.records
    assert (await resume(first.trace, min_expected_gain=0.001)).usage.calls > 2
    assert (await resume(first.trace, min_expected_gain=0.1, priors=eager)).usage.calls > 2


async def test_trace_with_stored_priors_can_be_reopened():
    """A trace that stopped by stored priors continues with them if the user asks for more."""
    dull = Priors(
        draft_mean=0.5,
        gain=0.05,
        gain_sd=0.01,
        step_sd=0.01,
        draft_sd=0.01,
        noise_sd=0.05,
        tasks=500,
    )
    judge = ScriptedModel(["8"] * 20, name="judge")
    PriorsStore.in_folder().save(
        stored_priors(
            dull, open_session(llm_grader, model="scripted", judge="judge").knowledge.priors_key
        )
    )
    first = await refine(
        "q", ScriptedModel(["a"]), llm_grader, judge, min_expected_gain=0.04, priors="learned"
    )
    assert (first.stop, first.usage.calls) == ("gain", 2)
    again = await refine(
        first.trace,
        ScriptedModel(map(str, range(20))),
        llm_grader,
        judge,
        min_expected_gain=0.0,
        priors="learned",
    )
    assert again.usage.calls > 2


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"charm": 1}',
        '{"draft_mean": 2}',
        f'{{"draft_mean": 1{"0" * 400}}}',
        '{"redraft_priors": 1}',
    ],
)
def test_invalid_priors_file_is_rejected(tmp_path, text):
    """The error names the file."""
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.json"):
        read_priors(str(path))
    with pytest.raises(ConfigError, match="absent"):
        read_priors(str(tmp_path / "absent"))


def test_priors_file_has_two_forms(tmp_path):
    """A file with fields and a stored file are both read, and missing fields keep their default."""
    path = tmp_path / "mine.json"
    path.write_text('{"draft_mean": 0.3}')
    assert read_priors(str(path)) == Priors(draft_mean=0.3)
    assert read_priors(str(PriorsStore.in_folder(tmp_path).save(stored_priors()))) == LEARNED
    assert priors_from_data({}) == Priors()


class HashModel:
    """A model that answers with a hash of its prompt and counts its calls."""

    name = identity = "writer"

    def __init__(self):
        self.calls = 0

    async def complete(self, request):
        await asyncio.sleep(0)
        self.calls += 1
        text = json.dumps([dict(m) for m in request.messages])
        return Reply(sha256(f"{text}{request.look}".encode()).hexdigest(), Usage(1, 1, 1, cost=0.0))


async def test_later_priors_repeat_no_rows(tmp_path):
    """Stored priors are no setting of a run; priors of the user are, and --explain names them."""
    rows = [{"id": f"r{i}", "prompt": f"question {i}"} for i in range(6)]

    async def calls(**settings):
        model = HashModel()
        await batch(rows, tmp_path / "out.jsonl", model, llm_grader, **settings)
        return model.calls

    assert await calls() > 0
    before = (tmp_path / "out.jsonl").read_bytes()
    one = make_session(Options(), HashModel(), llm_grader)
    PriorsStore.in_folder().save(stored_priors(pair=one.knowledge.priors_key))
    assert (
        make_session(Options(priors="learned"), HashModel(), llm_grader).knowledge.priors == LEARNED
    )
    assert await calls() == await calls(priors="learned") == 0
    assert await calls(priors="shipped") == 0
    assert (tmp_path / "out.jsonl").read_bytes() == before
    given = {"priors": Priors(draft_mean=0.2)}
    results = await BatchRun.from_arguments(
        rows, tmp_path / "out.jsonl", HashModel(), llm_grader, **given
    ).prepare(explain=True)
    assert results.known == 0 and "setting plan changed: 6 rows" in str(results.changes)
    await calls(**given)
    results = await BatchRun.from_arguments(
        rows, tmp_path / "out.jsonl", HashModel(), llm_grader, **given
    ).prepare(explain=True)
    assert results.known == 6


def test_only_user_priors_are_a_setting_of_a_run():
    """Priors given by the user, also in a plan, are a setting; fitted ones are not."""

    def plan_part(at_first, **settings):
        one = open_session(**settings)
        return settings_parts(one, one.options.make_plan(writes=True, noisy=True, priors=at_first))[
            "plan"
        ]

    unset = plan_part(Priors())
    assert (
        unset
        == plan_part(LEARNED)
        == plan_part(LEARNED, priors="shipped")
        == plan_part(LEARNED, priors="learned")
    )
    given = [plan_part(p, priors=p) for p in (Priors(), LEARNED)] + [
        plan_part(LEARNED, plan=Adaptive(priors=Priors(draft_mean=0.1)))
    ]
    assert len({unset, *given}) == 4


def test_pair_round_trips_as_plain_data():
    """A valid record is read, and a damaged one is rejected."""
    assert PriorsKey.from_data(PAIR.as_data()) == PAIR
    for data in (None, [], {"key": "a"}, {**PAIR.as_data(), "key": 3}, Feedback(0.5)):
        with pytest.raises(StoreError, match="must be|cannot be"):
            PriorsKey.from_data(data)
