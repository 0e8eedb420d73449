"""What was learned and is kept: for which model and graders, how it is found again, and that no run dies of it."""

import asyncio
import json
from dataclasses import replace
from hashlib import sha256
from threading import Lock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft import Priors, Result, ScriptedModel, batch, must, refine, refine_many, stream, with_weight
from redraft.session import Session
from redraft.protocols import Reply
from redraft.errors import ConfigError, StoreError
from redraft.plans.adaptive import Adaptive
from redraft.core.records import Feedback
from redraft.usage import Usage
from redraft.core.trace import Trace
from redraft.options import Options
from redraft.runs import BatchRun
from redraft.runs.row_key import settings_parts
from redraft.storage.priors_store import StoredPriors, PriorsKey, PriorsStore, priors_from_data, read_priors

PAIR = PriorsKey.from_graders("m", "http://h/v1#m", [("judge", 1.0, "f" * 16)])
LEARNED = Priors(draft_mean=0.7, noise_sd=0.2, tasks=40)


def kept(priors=LEARNED, pair=PAIR):
    return StoredPriors.create(pair, priors, "a test")


def desk(graders=None, model="m", judge=None, **settings):
    named = ScriptedModel([], name=model) if model else None
    return Session(Options(**settings), named, graders, ScriptedModel([], name=judge) if judge else None)


async def asking(text, model):
    """A grader that asks a model."""
    return int((await model(text))[0], 16) / 16


def test_what_is_put_is_found_again(tmp_path):
    """As it was, for this pair and no other; the second takes the place of the first."""
    shelf = PriorsStore.in_folder(tmp_path / "deep" / "shelf")
    assert shelf.load(PAIR) is None and list(shelf.entries()) == []
    shelf.save(kept(Priors()))
    path = shelf.save(one := kept())
    assert shelf.load(PAIR) == one
    assert shelf.load(PriorsKey.from_graders("m", "http://other/v1#m", [("judge", 1.0, "f" * 16)])) is None
    assert list(shelf.entries()) == [(path, one)]
    shelf.delete(path)
    assert shelf.load(PAIR) is None


def test_it_lies_among_the_users_own_things(monkeypatch, tmp_path):
    """In a folder of its own in REDRAFT_HOME."""
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path))
    assert PriorsStore.in_folder().save(kept()).parent == tmp_path / "priors"


fractions = st.floats(0, 1)


@given(st.lists(fractions, min_size=11, max_size=11), st.integers(0, 10**9), st.text(st.characters(codec=None), min_size=1))
def test_any_priors_and_names_survive(tmp_path_factory, figures, tasks, name):
    """To the last bit."""
    shelf = PriorsStore.in_folder(tmp_path_factory.mktemp("shelf"))
    one = kept(Priors(*figures, tasks=tasks), PriorsKey.from_graders(name, name, [(name, 0.5, "a"), (name, 0.5, "b")]))
    shelf.save(one)
    assert shelf.load(one.priors_key) == one


def damaged():
    good = kept().as_data()
    yield from (b"", b"{", b"[]", b"null", b"\xff", b"[" * 50_000, b" " * 70_000 + json.dumps(good).encode())
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


@pytest.mark.parametrize("data", list(damaged()), ids=range(22))
def test_a_damaged_file_is_reported_and_does_no_harm(monkeypatch, tmp_path, data):
    """Nothing is found in it, the list says what is wrong with it, and a run goes by what is shipped."""
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path))
    pair = desk().priors_key
    path = PriorsStore.in_folder().save(kept(pair=pair))
    path.write_bytes(data)
    assert PriorsStore.in_folder().load(pair) is None
    [(where, error)] = PriorsStore.in_folder().entries()
    assert where == path and isinstance(error, StoreError) and str(path) in str(error)
    assert desk(priors="learned").priors == Priors()


def test_a_shelf_that_is_none_does_no_harm(monkeypatch, tmp_path):
    """A file in its place: nothing is found, and putting says so."""
    (tmp_path / "priors").write_text("")
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path))
    assert desk(priors="learned").priors == Priors()
    with pytest.raises(StoreError, match="priors"):
        PriorsStore.in_folder().save(kept())


def test_a_pair_is_known_by_what_decides_its_scores():
    """Another model, judge, weight or grader is another pair; a name, a seed, a must or the order of graders is not."""
    same = [desk(), desk(seed=3), desk(["judge"]), desk(["judge", must("words:1-5")]), desk([with_weight("judge", 3)])]
    assert len({one.priors_key.key for one in same}) == 1
    two = [
        desk(["judge", "helpfulness"]),
        desk(["helpfulness", "judge"]),
        desk([with_weight("judge", 2), with_weight("helpfulness", 2)]),
    ]
    assert len({one.priors_key.key for one in two}) == 1
    others = [same[0], two[0], desk(model="n"), desk(judge="j"), desk([with_weight("judge", 2), "helpfulness"]), desk(asking)]
    others.append(desk(["judge", lambda text: 0.5]))
    assert len({one.priors_key.key for one in others}) == len(others)
    assert (two[0].priors_key.model, sorted(two[0].priors_key.graders)) == ("m", ["helpfulness", "judge"])


def test_a_tasks_own_requirements_make_no_other_pair():
    """They gate; what the score is made of is the same."""
    first, second = desk(), desk()
    first.resolve_panel(("words:1-5",))
    assert first.priors_key == second.priors_key


def locked():
    lock = Lock()

    async def judging(text, model):
        with lock:
            return await asking(text, model)

    return judging


@pytest.mark.parametrize(
    "arranged",
    [desk("words:1-5"), desk(lambda text: 0.5), desk(model=None, judge="j"), desk(model=None), desk(locked())],
    ids=["requirement", "function", "no writer", "nobody", "a grader that cannot be told"],
)
def test_where_nothing_can_be_kept_there_is_no_pair(arranged):
    """And what is shipped is believed."""
    assert arranged.priors_key is None
    assert arranged.priors == Priors()


def test_a_desk_goes_by_what_is_kept_where_that_is_asked_for(tmp_path):
    """Else by the shipped ones, or what a user gives, also in a file; other graders are looked up anew."""
    one = desk(priors="learned")
    PriorsStore.in_folder().save(kept(pair=one.priors_key))
    assert one.priors == LEARNED
    assert desk().priors == desk(priors="shipped").priors == Priors()
    mine = tmp_path / "mine.json"
    mine.write_text('{"draft_mean": 0.1}')
    assert desk(priors=mine).priors == desk(priors=str(mine)).priors == Priors(draft_mean=0.1)
    assert desk(priors=Priors(draft_mean=0.1)).priors == Priors(draft_mean=0.1)
    assert one.with_graders("helpfulness").priors == Priors()
    PriorsStore.in_folder().save(kept(Priors(draft_mean=0.9), one.priors_key))
    assert one.priors == LEARNED  # all that a run does, it does by one belief


@pytest.mark.parametrize("word", ["learn", "Shipped", "", 3, True, {}, ["learned"], 0.5])
async def test_priors_that_are_none_are_refused(word):
    """With what is allowed."""
    with pytest.raises(ConfigError, match=r"priors must be 'shipped', 'learned', Priors, the path of a \.json file or None, got"):
        await refine("q", ScriptedModel(["a"]), asking, priors=word)


async def refined(settings):
    return await refine("q", ScriptedModel(map(str, range(20))), asking, ScriptedModel(["8"] * 20, name="judge"), **settings)


async def refined_among_many(settings):
    [result] = await refine_many(
        ["q"], ScriptedModel(map(str, range(20))), asking, ScriptedModel(["8"] * 20, name="judge"), **settings
    )
    return result


async def streamed(settings):
    models = ScriptedModel(map(str, range(20))), asking, ScriptedModel(["8"] * 20, name="judge")
    return Result([trace async for trace in stream("q", *models, **settings)][-1])


@pytest.mark.parametrize("door", [refined, refined_among_many, streamed])
async def test_what_others_taught_counts_where_it_is_asked_for_and_nowhere_else(tmp_path, door):
    """The same call gives the same records whatever is kept; which priors a result went by stands in its metadata."""
    useless = Priors(draft_mean=0.5, gain=0.0, retention=1.0, gain_sd=0, step_sd=0, draft_sd=0, tasks=500)
    before = [(await door(settings)).trace for settings in ({}, {"priors": "shipped"}, {"priors": "learned"})]
    PriorsStore.in_folder().save(kept(useless, desk(asking, model="scripted", judge="judge").priors_key))
    after = [await door(settings) for settings in ({}, {"priors": "shipped"})]
    (tmp_path / "p.json").write_text(json.dumps(useless.to_dict()))
    told = [await door({"priors": priors}) for priors in ("learned", useless, tmp_path / "p.json")]
    timeless = [[replace(r, seconds=None) if hasattr(r, "seconds") else r for r in t.records] for t in before]
    assert timeless[0] == timeless[1] == timeless[2]
    assert [[replace(r, seconds=None) if hasattr(r, "seconds") else r for r in one.trace.records] for one in after] == timeless[:2]
    assert [one.metadata["priors"] for one in after] == [None, None]
    assert [one.usage.calls for one in told] == [2, 2, 2]
    assert [one.metadata["priors"] for one in told] == [useless.to_dict()] * 3


async def test_where_refining_is_known_to_bring_nothing_none_is_paid_for():
    """Where refinements and new drafts are known to bring nothing, none is paid for."""
    useless = Priors(draft_mean=0.5, gain=0.0, retention=1.0, gain_sd=0, step_sd=0, draft_sd=0, tasks=500)

    async def calls(**settings):
        writer = ScriptedModel(map(str, range(20)))
        judge = ScriptedModel(["8"] * 20, name="judge")
        return (await refine("q", writer, asking, judge, **settings)).usage.calls

    assert await calls() > 2
    PriorsStore.in_folder().save(kept(useless, desk(asking, model="scripted", judge="judge").priors_key))
    assert await calls(priors="learned") == 2
    assert await calls() > 2


async def test_what_was_learned_since_reopens_no_finished_work():
    """A trace that ended before anything was learned stays as it is, unless a user asks for more."""
    eager = Priors(draft_mean=0.5, gain=0.5, gain_sd=0.3, step_sd=0.3, tasks=500)
    judge = ScriptedModel(["8"] * 20, name="judge")

    async def going_on(given, **settings):
        return await refine(given, ScriptedModel(map(str, range(20))), asking, judge, **{"priors": "learned", **settings})

    first = await going_on("q", min_expected_gain=0.1)
    assert (first.stop, first.usage.calls) == ("gain", 2)
    PriorsStore.in_folder().save(kept(eager, desk(asking, model="scripted", judge="judge").priors_key))
    assert (await going_on("q", min_expected_gain=0.1)).usage.calls > 2
    loaded = Trace.from_json(first.trace.to_json())
    for given in (first.trace, loaded):
        assert (await going_on(given, min_expected_gain=0.1)).trace.records == first.trace.records
    assert (await going_on(first.trace, min_expected_gain=0.001)).usage.calls > 2
    assert (await going_on(first.trace, min_expected_gain=0.1, priors=eager)).usage.calls > 2


async def test_what_was_learned_before_is_no_reason_to_stay_closed():
    """Work that ended by what had been learned goes on by it where a user asks for more."""
    dull = Priors(draft_mean=0.5, gain=0.05, gain_sd=0.01, step_sd=0.01, draft_sd=0.01, noise_sd=0.05, tasks=500)
    judge = ScriptedModel(["8"] * 20, name="judge")
    PriorsStore.in_folder().save(kept(dull, desk(asking, model="scripted", judge="judge").priors_key))
    first = await refine("q", ScriptedModel(["a"]), asking, judge, min_expected_gain=0.04, priors="learned")
    assert (first.stop, first.usage.calls) == ("gain", 2)
    again = await refine(first.trace, ScriptedModel(map(str, range(20))), asking, judge, min_expected_gain=0.0, priors="learned")
    assert again.usage.calls > 2


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"charm": 1}', '{"draft_mean": 2}', f'{{"draft_mean": 1{"0" * 400}}}', '{"redraft_priors": 1}']
)
def test_a_file_of_priors_that_is_none_is_refused(tmp_path, text):
    """By its name."""
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.json"):
        read_priors(str(path))
    with pytest.raises(ConfigError, match="absent"):
        read_priors(str(tmp_path / "absent"))


def test_a_file_of_priors_holds_their_fields_or_is_of_the_shelf(tmp_path):
    """Both are read; what is not given is as shipped."""
    path = tmp_path / "mine.json"
    path.write_text('{"draft_mean": 0.3}')
    assert read_priors(str(path)) == Priors(draft_mean=0.3)
    assert read_priors(str(PriorsStore.in_folder(tmp_path).save(kept()))) == LEARNED
    assert priors_from_data({}) == Priors()


class Hashing:
    """Answers by a hash of what it is sent; counts what it is asked."""

    name = identity = "writer"

    def __init__(self):
        self.calls = 0

    async def complete(self, request):
        await asyncio.sleep(0)
        self.calls += 1
        text = json.dumps([dict(m) for m in request.messages])
        return Reply(sha256(f"{text}{request.look}".encode()).hexdigest(), Usage(1, 1, 1, cost=0.0))


async def test_priors_that_were_learned_since_redo_nothing(tmp_path):
    """What is on the shelf is no setting of a run; what a user gives is, and --explain names it."""
    rows = [{"id": f"r{i}", "prompt": f"question {i}"} for i in range(6)]

    async def calls(**settings):
        model = Hashing()
        await batch(rows, tmp_path / "out.jsonl", model, asking, **settings)
        return model.calls

    assert await calls() > 0
    before = (tmp_path / "out.jsonl").read_bytes()
    one = Session(Options(), Hashing(), asking)
    PriorsStore.in_folder().save(kept(pair=one.priors_key))
    assert Session(Options(priors="learned"), Hashing(), asking).priors == LEARNED
    assert await calls() == await calls(priors="learned") == 0
    assert await calls(priors="shipped") == 0
    assert (tmp_path / "out.jsonl").read_bytes() == before
    given = {"priors": Priors(draft_mean=0.2)}
    told = await BatchRun.of(rows, tmp_path / "out.jsonl", Hashing(), asking, **given).prepare(explain=True)
    assert told.known == 0 and "setting plan changed: 6 rows" in str(told.changes)
    await calls(**given)
    told = await BatchRun.of(rows, tmp_path / "out.jsonl", Hashing(), asking, **given).prepare(explain=True)
    assert told.known == 6


def test_which_priors_are_a_setting_of_a_run():
    """Those that a user gave, by themselves or in a plan; not those that were learned."""

    def plan_part(at_first, **settings):
        one = desk(**settings)
        return settings_parts(one, one.options.make_plan(writes=True, noisy=True, priors=at_first))["plan"]

    unset = plan_part(Priors())
    assert unset == plan_part(LEARNED) == plan_part(LEARNED, priors="shipped") == plan_part(LEARNED, priors="learned")
    given = [plan_part(p, priors=p) for p in (Priors(), LEARNED)] + [
        plan_part(LEARNED, plan=Adaptive(priors=Priors(draft_mean=0.1)))
    ]
    assert len({unset, *given}) == 4


def test_a_pair_as_plain_data():
    """A sound note of it is read, a damaged one refused."""
    assert PriorsKey.from_data(PAIR.as_data()) == PAIR
    for data in (None, [], {"key": "a"}, {**PAIR.as_data(), "key": 3}, Feedback(0.5)):
        with pytest.raises(ValueError, match="must be|is a table"):
            PriorsKey.from_data(data)
