"""Comparers: a fair order, both orders, ties that are stated, knockouts that end."""

import asyncio
import json
import re
from itertools import combinations, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft import BestOfN, Budget, Candidate, Comparison, Failure, ScriptedModel, Task, Trace, refine
from redraft.errors import ConfigError, GradingError
from redraft.graders.judging.pairwise import ORDER_CHANGED_NOTE, Pairwise, merge_orders, rank_by_wins
from redraft.graders.votes import copeland
from redraft.middleware.messages import IMAGES_OMITTED_NOTE
from redraft.graders.judging.listwise import Ranker, knockout, stable_shuffle
from redraft.graders.rubric import Criterion, Rubric
from redraft.perform import ModelClient, StepClient

SHOWN = re.compile(r"<(?:answer-)?(\d+|first|second)-([0-9a-f]{8})>\n(.*?)\n</(?:answer-)?\1-\2>", re.DOTALL)


def shown(messages):
    """What a judge is shown, in order: (its number, or first and second; the text)."""
    return [(number, text) for number, _, text in SHOWN.findall(messages[-1]["content"])]


def said(**verdict):
    return json.dumps({"reason": "because", "change": ["say more"], "done": False, **verdict})


def ranks(quality=len):
    """A judge that ranks by a quality of the texts, and states ties."""

    def answer(messages):
        texts = shown(messages)
        order = sorted(texts, key=lambda row: -quality(row[1]))
        groups = {}
        for number, text in order:
            groups.setdefault(quality(text), []).append(int(number))
        return said(ranking=[int(n) for n, _ in order], ties=[g for g in groups.values() if len(g) > 1])

    return answer


def prefers(quality=len):
    """A judge that decides duels by a quality of the texts."""

    def answer(messages):
        (_, one), (_, other) = shown(messages)
        a, b = quality(one), quality(other)
        return said(winner="tie" if a == b else "first" if a > b else "second")

    return answer


def always(winner, **more):
    return lambda messages: said(winner=winner, **more)


def model_of(answer):
    return ScriptedModel(repeat(answer))


def tab(model, look=0):
    return StepClient(ModelClient("judge", model.complete), look)


def some(*texts):
    return [Candidate(id, text) for id, text in enumerate(texts)]


def given_texts(*texts):
    return Trace(Task("q"), records=tuple(some(*texts)))


async def chosen(texts, grader, model, **more):
    """The result of choosing among texts."""
    return await refine(given_texts(*texts), model, grader, plan=BestOfN(len(texts)), editor=False, **more)


def check_whole(comparison, ids):
    """Each id once; those that tie stand side by side, none in two groups."""
    assert sorted(comparison.ranking) == sorted(ids)
    tied = [id for group in comparison.ties for id in group]
    assert len(set(tied)) == len(tied)
    for group in comparison.ties:
        places = [comparison.ranking.index(id) for id in group]
        assert len(group) > 1
        assert max(places) - min(places) == len(group) - 1


texts_of = st.lists(st.text(max_size=6), min_size=1, max_size=6)


@given(texts_of, st.integers(0, 3), st.randoms())
def test_answers_are_shown_in_an_order_of_their_own(texts, look, random):
    """It depends on content and look alone, not on the order in which they came."""
    candidates = some(*texts)
    mixed = random.sample(candidates, len(candidates))
    assert stable_shuffle(Task("q"), mixed, look) == stable_shuffle(Task("q"), candidates, look)
    assert sorted(c.id for c in stable_shuffle(Task("q"), mixed, look)) == list(range(len(texts)))


def test_no_place_is_favoured():
    """Over many tasks each candidate is shown about equally often in each place; another look is another order."""
    orders = [[c.id for c in stable_shuffle(Task(f"q{n}"), some("a", "b", "c"), 0)] for n in range(600)]
    counts = [sum(order[place] == id for order in orders) for place in range(3) for id in range(3)]
    assert all(150 < count < 250 for count in counts)
    looks = [tuple(c.id for c in stable_shuffle(Task("q"), some(*"abcdef"), look)) for look in range(5)]
    assert len(set(looks)) > 1


async def test_a_ranker_finds_the_best_wherever_it_is_shown():
    """Its numbers mean the order shown, which is recorded; its ranking holds the candidates."""
    result = await chosen(["aa", "aaaa", "a"], Ranker(), model_of(ranks()))
    [comparison] = result.trace.comparisons
    assert (result.value, comparison.ranking, comparison.ties) == ("aaaa", (1, 0, 2), ())
    assert sorted(comparison.presentation_order) == [0, 1, 2]


async def test_looks_of_a_ranker_see_other_orders():
    """Two looks at the same answers are two askings."""
    from redraft import with_weight

    model = model_of(ranks())
    result = await chosen(["a", "b", "c", "d", "e"], with_weight(Ranker(), 1, repeats=3), model, cache={})
    assert model.calls == 3
    assert len({c.presentation_order for c in result.trace.comparisons}) > 1


@pytest.mark.parametrize(
    ("ties", "places"),
    [
        ([], {0: 0, 1: 1, 2: 2}),
        (None, {0: 0, 1: 1, 2: 2}),
        ([[1]], {0: 0, 1: 1, 2: 2}),
        ([[1, 2]], {0: 0, 1: 0, 2: 2}),
        ([[3, 2]], {0: 0, 1: 1, 2: 1}),
        ([[1, 2, 3]], {0: 0, 1: 0, 2: 0}),
    ],
)
async def test_ties_are_stated(ties, places):
    """Groups of numbers that share a place; none, a group of one and no word of them mean the same."""
    order = stable_shuffle(Task("q"), some("a", "b", "c"), 0)
    verdict = {"ranking": [1, 2, 3]} | ({} if ties is None else {"ties": ties})
    comparison = await Ranker().compare(Task("q"), order, tab(ScriptedModel([said(**verdict)])))
    assert {comparison.presentation_order.index(id): place for id, place in comparison.ranks.items()} == places


@pytest.mark.parametrize(
    "ties", [[[1, 3]], [[1, 2], [2, 3]], [[1, 4]], [[1, 1]], [["1", "2"]], [[True, 2]], [1, 2], "1, 2", {}, [[1.0, 2]]]
)
async def test_ties_that_cannot_be_are_asked_for_again(ties):
    """Numbers that do not exist, stand twice, or do not stand side by side; the complaint names what is wrong."""
    model = ScriptedModel([said(ranking=[1, 2, 3], ties=ties), said(ranking=[1, 2, 3])])
    await Ranker().compare(Task("q"), some("a", "b", "c"), tab(model))
    assert "tie" in model.messages[1][-1]["content"]


async def test_a_rubric_gives_the_criteria_and_what_is_shown():
    """Names, descriptions and weights are in the prompt; so is the context that it needs, and without that nothing is asked."""
    rubric = Rubric(
        "honesty", (Criterion("support", "The context says it.", 2.0), Criterion("tone", "It is calm.")), needs=("context",)
    )
    ranker, model = Ranker(rubric=rubric), ScriptedModel([said(ranking=[1, 2])])
    await ranker.compare(Task("q", context="THE SOURCE"), some("a", "b"), tab(model))
    prompt = model.messages[0][-1]["content"]
    assert "- support (weight 2): The context says it." in prompt
    assert "- tone: It is calm." in prompt
    assert "THE SOURCE" in prompt
    with pytest.raises(ConfigError, match="context"):
        await ranker.compare(Task("q"), some("a", "b"), tab(model))
    assert model.calls == 1


@pytest.mark.parametrize("comparer", [Ranker(), Pairwise()])
async def test_a_conversation_is_shown_as_data(comparer):
    """All turns, inside delimiters; order and length are said to be no merit."""
    task = Task(
        [{"role": "user", "content": "EARLIER"}, {"role": "assistant", "content": "SAID"}, {"role": "user", "content": "NOW"}]
    )
    model = model_of(ranks() if type(comparer) is Ranker else always("first"))
    await comparer.compare(task, some("one", "two"), tab(model))
    prompt = model.messages[0][-1]["content"]
    positions = [prompt.index(word) for word in ("data to be judged", "EARLIER", "SAID", "NOW", "no merit")]
    assert positions == sorted(positions)


@pytest.mark.parametrize("comparer", [Ranker(max_eval_chars=100), Pairwise(max_eval_chars=100)])
async def test_what_was_left_out_is_said(comparer):
    """Every answer gets an equal share of the characters."""
    model = model_of(ranks() if type(comparer) is Ranker else always("first"))
    comparison = await comparer.compare(Task("q"), some("A" * 80, "B" * 10), tab(model))
    assert "30 characters of candidate 0 were left out" in comparison.reason
    assert "B" * 10 in model.messages[0][-1]["content"]


@pytest.mark.parametrize("kind", [Ranker, Pairwise])
@pytest.mark.parametrize("images", [True, False])
async def test_images_can_be_withheld(kind, images):
    """As with every judge: it is sent the images of the task, or told that it does not see them."""
    content = [{"type": "text", "text": "Which?"}, {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
    verdict = {"ranking": [1, 2]} if kind is Ranker else {"winner": "first"}
    model = ScriptedModel([json.dumps({"reason": "", "change": [], **verdict, "done": False})] * 2)
    await kind(images=images).compare(Task([{"role": "user", "content": content}]), some("a", "b"), tab(model))
    prompt = model.messages[0][-1]["content"]
    if images:
        assert [part["type"] for part in prompt] == ["text", "image_url"]
    else:
        assert prompt.endswith(IMAGES_OMITTED_NOTE)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Ranker(max_group_size=1), "max_group_size"),
        (lambda: Pairwise(max_group_size=True), "max_group_size"),
        (lambda: Ranker(rubric="honesty.toml"), "rubric"),
        (lambda: Pairwise(rubric={"a": "b"}), "rubric"),
    ],
)
def test_bad_arguments_are_refused(make, names):
    """At once, naming what is wrong."""
    with pytest.raises(ConfigError, match=names):
        make()


# --- duels


async def test_a_duel_is_asked_in_both_orders():
    """Both verdicts are kept, each with the order it was shown; agreement is a verdict."""
    model = model_of(prefers())
    result = await chosen(["long", "longer"], Pairwise(), model)
    [comparison] = result.trace.comparisons
    assert (result.value, model.calls) == ("longer", 2)
    assert sorted(vote.presentation_order for vote in comparison.votes) == [(0, 1), (1, 0)]
    assert comparison.consistent is True
    assert comparison.ties == ()


@pytest.mark.parametrize("winner", ["first", "second"])
async def test_a_verdict_that_changes_with_the_order_is_a_tie(winner):
    """A judge that favours a place decides nothing; the reason says so and the earliest is kept."""
    result = await chosen(["one", "two"], Pairwise(), model_of(always(winner)))
    [comparison] = result.trace.comparisons
    assert comparison.ties == ((0, 1),)
    assert comparison.reason.startswith(ORDER_CHANGED_NOTE)
    assert comparison.consistent is False
    assert result.value == "one"


async def test_a_tie_in_one_order_only_is_a_tie():
    """A win that holds in one order is none."""
    model = ScriptedModel([said(winner="first"), said(winner="tie")])
    comparison = await Pairwise().compare(Task("q"), some("a", "b"), tab(model))
    assert (comparison.ties, comparison.consistent) == (((0, 1),), False)


async def test_two_ties_agree():
    """Nothing changed with the order, so nothing is said of it."""
    comparison = await Pairwise().compare(Task("q"), some("a", "b"), tab(model_of(always("tie"))))
    assert (comparison.ties, comparison.reason, comparison.consistent) == (((0, 1),), "because", True)


@pytest.mark.parametrize(("there", "back", "done"), [(True, True, True), (True, False, False), (False, False, False)])
def test_done_takes_both(there, back, done):
    """A judge that would stop in one order only would not stop."""
    verdicts = [Comparison((0, 1), done=there, presentation_order=(0, 1)), Comparison((0, 1), done=back, presentation_order=(1, 0))]
    assert merge_orders(*verdicts).done is done


@pytest.mark.parametrize(
    "bad",
    [
        said(winner="First"),
        said(winner="1"),
        said(winner=1),
        said(winner=None),
        said(winner=["first"]),
        said(),
        said(winner="first", done="yes"),
        said(winner="first", change="say more"),
        "The first is better.",
    ],
)
async def test_an_unreadable_duel_fails_the_comparison(bad):
    """It is asked once more; then the comparison is a Failure, and nothing is made up."""
    with pytest.raises(GradingError) as caught:
        await chosen(["a", "b"], Pairwise(), ScriptedModel([said(winner="first"), bad, bad, said(winner="first")]))
    trace = caught.value.result.trace
    assert [type(r) for r in trace.records if not isinstance(r, Candidate)][0] is Failure
    assert trace.comparisons == []


async def test_one_asking_in_one_order_can_be_had():
    """For measuring how much the place decides."""
    first, second = some("a", "b")
    comparison = await Pairwise().compare_pair(Task("q"), second, first, tab(ScriptedModel([said(winner="second")])))
    assert (comparison.ranking, comparison.presentation_order, comparison.votes) == ((0, 1), (1, 0), ())


async def test_one_answer_alone_is_compared_with_nothing():
    """Nobody is asked."""
    result = await chosen(["only"], Pairwise(), ScriptedModel([]))
    assert (result.value, result.usage.calls) == ("only", 0)


async def test_up_to_four_all_meet_and_wins_decide():
    """n (n - 1) calls; the usage is that of all; the advice is what was said where the best won."""
    model = model_of(prefers())
    result = await chosen(["a", "aaaa", "aa", "aaa"], Pairwise(), model)
    [comparison] = result.trace.comparisons
    assert comparison.ranking == (1, 3, 2, 0)
    assert (model.calls, comparison.usage.calls, len(comparison.votes)) == (12, 12, 12)
    assert (comparison.reason, comparison.actions) == ("because", ("say more",))


async def test_a_circle_is_a_tie():
    """a beats b beats c beats a: nobody is best, and it is said."""
    beats = {("a", "b"), ("b", "c"), ("c", "a")}

    def answer(messages):
        (_, one), (_, other) = shown(messages)
        return said(winner="first" if (one, other) in beats else "second")

    comparison = await Pairwise().compare(Task("q"), some("a", "b", "c"), tab(model_of(answer)))
    assert comparison.ties == ((0, 1, 2),)


places_of = st.lists(st.permutations(range(4)), min_size=1, max_size=6)


@given(places_of)
def test_copeland_ranks_each_once(rankings):
    """Whatever the votes; who beats all others is first."""
    ranking, ties = copeland([Comparison(tuple(r)) for r in rankings])
    check_whole(Comparison(ranking, ties=ties), range(4))
    for a in range(4):
        if all(sum(r.index(a) < r.index(b) for r in rankings) * 2 > len(rankings) for b in range(4) if b != a):
            assert ranking[0] == a
            assert not any(a in group for group in ties)


verdicts = st.sampled_from(["first", "second", "tie"])


@given(
    st.integers(2, 5).flatmap(
        lambda n: st.lists(st.tuples(verdicts, verdicts), min_size=n * (n - 1) // 2, max_size=n * (n - 1) // 2)
    )
)
def test_any_verdicts_make_a_whole_comparison(pairs):
    """Each candidate once, ties side by side, every verdict kept, and a verdict that changed is told."""
    n = next(n for n in range(2, 6) if n * (n - 1) // 2 == len(pairs))

    def verdict(winner, one, other):
        order = (other, one) if winner == "second" else (one, other)
        return Comparison(order, ties=((one, other),) if winner == "tie" else (), presentation_order=(one, other))

    duels = [
        merge_orders(verdict(there, a, b), verdict(back, b, a))
        for (a, b), (there, back) in zip(combinations(range(n), 2), pairs, strict=True)
    ]
    comparison = rank_by_wins(duels)
    check_whole(comparison, range(n))
    assert len(comparison.votes) == 2 * len(pairs)
    changed = any((there, back) not in {("first", "second"), ("second", "first"), ("tie", "tie")} for there, back in pairs)
    assert (ORDER_CHANGED_NOTE in comparison.reason) is changed
    assert comparison.consistent is not changed


# --- many answers


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=40),
    st.sampled_from([Ranker(), Ranker(max_group_size=2), Ranker(max_group_size=5)]),
)
def test_long_lists_are_ranked_by_knockout(lengths, ranker):
    """It ends; each stands once; the best is first; no asking shows more than `max_group_size`."""
    candidates, model = some(*("x" * n for n in lengths)), model_of(ranks())
    comparison = asyncio.run(ranker.compare(Task("q"), candidates, tab(model)))
    check_whole(comparison, range(len(lengths)))
    assert lengths[comparison.ranking[0]] == max(lengths)
    assert all(len(shown(messages)) <= ranker.max_group_size for messages in model.messages)
    assert len(comparison.votes) == (model.calls if len(lengths) > ranker.max_group_size else 0)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=40))
def test_many_duels_end(lengths):
    """Pairs meet until few enough are left for all to meet; every verdict is kept."""
    candidates, model = some(*("x" * n for n in lengths)), model_of(prefers())
    comparison = asyncio.run(Pairwise().compare(Task("q"), candidates, tab(model)))
    check_whole(comparison, range(len(lengths)))
    assert lengths[comparison.ranking[0]] == max(lengths)
    assert len(comparison.votes) == model.calls <= 2 * (len(lengths) + 6)


@given(st.integers(1, 40), st.integers(2, 8), st.integers(2, 8), st.randoms())
def test_a_knockout_ends_whatever_is_said(n, most, size, random):
    """Also where all tie: the earliest goes on."""
    rounds = []

    async def contest(group):
        ids = [c.id for c in group]
        random.shuffle(ids)
        rounds.append(ids)
        return Comparison(tuple(ids), ties=(tuple(ids),) if random.random() < 0.5 and len(ids) > 1 else ())

    comparison = asyncio.run(knockout(some(*"x" * n), most, size, contest))
    check_whole(comparison, range(n))
    assert len(rounds) <= 2 * n


async def test_the_knocked_out_tie_by_the_round_they_reached():
    """Whoever reached a later round stands before whoever did not; the finalists are ranked."""
    comparison = await Ranker(max_group_size=2).compare(Task("q"), some(*("x" * n for n in range(1, 8))), tab(model_of(ranks())))
    finalists = len(comparison.ranking) - sum(map(len, comparison.ties))
    assert comparison.ranking[0] == 6
    assert finalists >= 2
    assert [len(group) for group in comparison.ties] == [2, 3]


# --- in the loop


@pytest.mark.parametrize(("grader", "judging"), [("ranker", ranks()), (Pairwise(), prefers())])
async def test_the_best_of_n_drafts(grader, judging):
    """`refine(task, plan=BestOfN(4), graders=...)` drafts four, compares them once, keeps the best."""
    writer = ScriptedModel(["aa", "a", "aaaa", "aaa"])
    result = await refine("q", writer, grader, model_of(judging), plan=BestOfN(4))
    assert (result.value, writer.calls, len(result.trace.comparisons)) == ("aaaa", 4, 1)


async def test_a_finished_choice_is_not_made_again():
    """A trace with its comparison asks nobody, also after it was written and read."""
    texts = ["x" * n for n in range(1, 12)]
    first = await chosen(texts, Ranker(max_group_size=3), model_of(ranks()))
    kept = Trace.from_json(first.trace.to_json())
    assert kept.records == first.trace.records
    again = await refine(kept, ScriptedModel([]), Ranker(max_group_size=3), plan=BestOfN(len(texts)), editor=False)
    assert again.trace.records == first.trace.records


@pytest.mark.parametrize(("comparer", "judging"), [(Ranker(max_group_size=3), ranks()), (Pairwise(), prefers())])
async def test_an_interrupted_knockout_asks_nothing_twice(comparer, judging):
    """With a cache, what was answered before the judge fell silent is not asked again."""
    texts, memory, asked = ["x" * n for n in range(1, 12)], {}, []

    def heard(messages):
        asked.append(tuple(text for _, text in shown(messages)))
        return judging(messages)

    with pytest.raises(GradingError):  # one in flight: what is cut off in the middle of its flight was not answered
        await chosen(texts, comparer, ScriptedModel([heard] * 4), cache=memory, max_in_flight=1)
    result = await chosen(texts, comparer, model_of(heard), cache=memory)
    assert result.value == texts[-1]
    assert len(asked) == len(set(asked))
