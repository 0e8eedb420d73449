"""Comparers: random but reproducible order, pairs in both orders, explicit ties, and knockouts."""

import asyncio
import json
import re
from itertools import combinations, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft import BestOfN, Candidate, ScriptedModel, Task, Trace, refine
from redraft.errors import ConfigError
from redraft.graders.base import copeland
from redraft.graders.judging.ranking import (
    ORDER_CHANGED_NOTE,
    Pairwise,
    Ranker,
    knockout,
    merge_orders,
    rank_by_wins,
    stable_shuffle,
)
from redraft.graders.rubric import Criterion, Rubric
from redraft.loop.records import Comparison, Failure
from redraft.middleware.messages import IMAGES_OMITTED_NOTE
from redraft.session.perform import ModelClient, StepClient

SHOWN = re.compile(
    r"<(?:answer-)?(\d+|first|second)-([0-9a-f]{8})>\n(.*?)\n</(?:answer-)?\1-\2>", re.DOTALL
)


def shown_answers(messages):
    """Return what the judge is shown, in order: (its number, or first and second; the text)."""
    return [(number, text) for number, _, text in SHOWN.findall(messages[-1]["content"])]


def verdict_json(**verdict):
    return json.dumps({"reason": "because", "change": ["say more"], "done": False, **verdict})


def ranks(quality=len):
    """A judge that ranks by a quality of the texts and states ties."""

    def answer(messages):
        texts = shown_answers(messages)
        order = sorted(texts, key=lambda row: -quality(row[1]))
        groups = {}
        for number, text in order:
            groups.setdefault(quality(text), []).append(int(number))
        return verdict_json(
            ranking=[int(n) for n, _ in order], ties=[g for g in groups.values() if len(g) > 1]
        )

    return answer


def prefers(quality=len):
    """A judge that decides pairs by a quality of the texts."""

    def answer(messages):
        (_, one), (_, other) = shown_answers(messages)
        a, b = quality(one), quality(other)
        return verdict_json(winner="tie" if a == b else "first" if a > b else "second")

    return answer


def always(winner, **more):
    return lambda messages: verdict_json(winner=winner, **more)


def model_of(answer):
    return ScriptedModel(repeat(answer))


def client(model, repeat=0):
    return StepClient(ModelClient("judge", model.complete), repeat)


def some(*texts):
    return [Candidate(id, text) for id, text in enumerate(texts)]


def given_texts(*texts):
    return Trace(Task("q"), records=tuple(some(*texts)))


async def choose(texts, grader, model, **more):
    """Return the result of choosing among texts."""
    return await refine(
        given_texts(*texts), model, grader, plan=BestOfN(len(texts)), editor=False, **more
    )


def check_whole(comparison, ids):
    """Assert that each ID occurs once, and that tied candidates are adjacent and in one group."""
    assert sorted(comparison.ranking) == sorted(ids)
    tied = [id for group in comparison.ties for id in group]
    assert len(set(tied)) == len(tied)
    for group in comparison.ties:
        places = [comparison.ranking.index(id) for id in group]
        assert len(group) > 1
        assert max(places) - min(places) == len(group) - 1


texts_of = st.lists(st.text(max_size=6), min_size=1, max_size=6)


@given(texts_of, st.integers(0, 3), st.randoms())
def test_order_shown_depends_on_content(texts, repeat, random):
    """The order depends on the texts and the repeat, not on the order of the candidates."""
    candidates = some(*texts)
    mixed = random.sample(candidates, len(candidates))
    assert stable_shuffle(Task("q"), mixed, repeat) == stable_shuffle(Task("q"), candidates, repeat)
    assert sorted(c.id for c in stable_shuffle(Task("q"), mixed, repeat)) == list(range(len(texts)))


def test_no_position_is_favoured():
    """Over many tasks each candidate is shown about equally often in each position, and each repeat
    has another order.
    """
    orders = [
        [c.id for c in stable_shuffle(Task(f"q{n}"), some("a", "b", "c"), 0)] for n in range(600)
    ]
    counts = [sum(order[place] == id for order in orders) for place in range(3) for id in range(3)]
    assert all(150 < count < 250 for count in counts)
    looks = [
        tuple(c.id for c in stable_shuffle(Task("q"), some(*"abcdef"), repeat))
        for repeat in range(5)
    ]
    assert len(set(looks)) > 1


async def test_ranker_finds_the_best_in_any_position():
    """The order shown is recorded, and the ranking holds the candidates' IDs."""
    result = await choose(["aa", "aaaa", "a"], Ranker(), model_of(ranks()))
    [comparison] = result.trace.comparisons
    assert (result.value, comparison.ranking, comparison.ties) == ("aaaa", (1, 0, 2), ())
    assert sorted(comparison.presentation_order) == [0, 1, 2]


async def test_repeats_of_a_ranker_see_other_orders():
    """Two repeats over the same answers are two calls."""
    from redraft import with_weight

    model = model_of(ranks())
    result = await choose(
        ["a", "b", "c", "d", "e"], with_weight(Ranker(), 1, repeats=3), model, cache={}
    )
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
        ([["1", 2.0]], {0: 0, 1: 0, 2: 2}),
        ([[1, 2], [2, 1]], {0: 0, 1: 0, 2: 2}),
        ([[1, 1]], {0: 0, 1: 1, 2: 2}),
    ],
)
async def test_ties_are_stated(ties, places):
    """Groups of numbers share a place; null, a group of one and a missing key all mean no tie."""
    order = stable_shuffle(Task("q"), some("a", "b", "c"), 0)
    verdict = {"reason": "It is so.", "ranking": [1, 2, 3]} | (
        {} if ties is None else {"ties": ties}
    )
    comparison = await Ranker().compare(
        Task("q"), order, client(ScriptedModel([verdict_json(**verdict)]))
    )
    assert {
        comparison.presentation_order.index(id): place for id, place in comparison.ranks.items()
    } == places


@pytest.mark.parametrize(
    "ties",
    [
        [[1, 3]],
        [[1, 2], [2, 3]],
        [[1, 4]],
        [["1 and 2"]],
        [[True, 2]],
        [1, 2],
        "1, 2",
        {},
        [[1.5, 2]],
    ],
)
async def test_invalid_ties_are_requested_again(ties):
    """The complaint names numbers that are unknown, duplicate or not adjacent."""
    model = ScriptedModel(
        [verdict_json(ranking=[1, 2, 3], ties=ties), verdict_json(ranking=[1, 2, 3])]
    )
    await Ranker().compare(Task("q"), some("a", "b", "c"), client(model))
    assert "tie" in model.messages[1][-1]["content"]


async def test_rubric_sets_criteria_and_inputs():
    """The prompt has names, descriptions, weights and the required context; without that context no
    call is made.
    """
    rubric = Rubric(
        "honesty",
        (Criterion("support", "The context says it.", 2.0), Criterion("tone", "It is calm.")),
        needs=("context",),
    )
    ranker, model = Ranker(rubric=rubric), ScriptedModel([verdict_json(ranking=[1, 2])])
    await ranker.compare(Task("q", context="THE SOURCE"), some("a", "b"), client(model))
    prompt = model.messages[0][-1]["content"]
    assert "- support (weight 2): The context says it." in prompt
    assert "- tone: It is calm." in prompt
    assert "THE SOURCE" in prompt
    with pytest.raises(ConfigError, match="context"):
        await ranker.compare(Task("q"), some("a", "b"), client(model))
    assert model.calls == 1


@pytest.mark.parametrize("comparer", [Ranker(), Pairwise()])
async def test_conversation_is_shown_as_data(comparer):
    """All turns are inside delimiters, and the prompt says that order and length are no merit."""
    task = Task(
        [
            {"role": "user", "content": "EARLIER"},
            {"role": "assistant", "content": "SAID"},
            {"role": "user", "content": "NOW"},
        ]
    )
    model = model_of(ranks() if type(comparer) is Ranker else always("first"))
    await comparer.compare(task, some("one", "two"), client(model))
    prompt = model.messages[0][-1]["content"]
    positions = [
        prompt.index(word)
        for word in (
            "data to be judged",
            "EARLIER",
            "SAID",
            "NOW",
            "order of the answers has no meaning",
        )
    ]
    assert positions == sorted(positions)


@pytest.mark.parametrize("comparer", [Ranker(max_eval_chars=100), Pairwise(max_eval_chars=100)])
async def test_truncation_is_marked(comparer):
    """Every answer gets an equal share of the characters."""
    model = model_of(ranks() if type(comparer) is Ranker else always("first"))
    comparison = await comparer.compare(Task("q"), some("A" * 80, "B" * 10), client(model))
    assert "30 characters of candidate 0 were left out" in comparison.reason
    assert "B" * 10 in model.messages[0][-1]["content"]


@pytest.mark.parametrize("kind", [Ranker, Pairwise])
@pytest.mark.parametrize("images", [True, False])
async def test_images_can_be_withheld(kind, images):
    """A comparer gets the images of the task, or is told that it does not see them."""
    content = [
        {"type": "text", "text": "Which?"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]
    verdict = {"reason": "It is so."} | (
        {"ranking": [1, 2]} if kind is Ranker else {"winner": "first"}
    )
    model = ScriptedModel([json.dumps({"change": [], **verdict, "done": False})] * 2)
    await kind(images=images).compare(
        Task([{"role": "user", "content": content}]), some("a", "b"), client(model)
    )
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
        (lambda: Pairwise(rubric=5), "rubric"),
    ],
)
def test_invalid_arguments_are_rejected(make, names):
    """The error comes at once and names what is wrong."""
    with pytest.raises(ConfigError, match=names):
        make()


# --- pairwise comparisons


async def test_pair_is_compared_in_both_orders():
    """Both verdicts are kept with the order shown, and two equal verdicts decide."""
    model = model_of(prefers())
    result = await choose(["long", "longer"], Pairwise(), model)
    [comparison] = result.trace.comparisons
    assert (result.value, model.calls) == ("longer", 2)
    assert sorted(vote.presentation_order for vote in comparison.votes) == [(0, 1), (1, 0)]
    assert comparison.consistent is True
    assert comparison.ties == ()


@pytest.mark.parametrize("winner", ["first", "second"])
async def test_verdict_that_changes_with_the_order_is_a_tie(winner):
    """A judge that favours a position decides nothing; the reason says so, and the earliest
    candidate is returned.
    """
    result = await choose(["one", "two"], Pairwise(), model_of(always(winner)))
    [comparison] = result.trace.comparisons
    assert comparison.ties == ((0, 1),)
    assert comparison.reason.startswith(ORDER_CHANGED_NOTE)
    assert comparison.consistent is False
    assert result.value == "one"


async def test_tie_in_one_order_is_a_tie():
    """A win in one order only does not count."""
    model = ScriptedModel([verdict_json(winner="first"), verdict_json(winner="tie")])
    comparison = await Pairwise().compare(Task("q"), some("a", "b"), client(model))
    assert (comparison.ties, comparison.consistent) == (((0, 1),), False)


async def test_two_ties_agree():
    """Two ties agree, so no disagreement is reported."""
    comparison = await Pairwise().compare(
        Task("q"), some("a", "b"), client(model_of(always("tie")))
    )
    assert (comparison.ties, comparison.reason, comparison.consistent) == (
        ((0, 1),),
        "because",
        True,
    )


CHANGED = ORDER_CHANGED_NOTE
A, B, C = "abc"
# what a judge says of each pair in each order: the winner, the reason, what to change, done; the
# whole comparison
PAIRS = {
    "both orders": ({A + B: (A, "x", ["1"], True), B + A: (A, "x", ["1"], True)}, ((0, 1), "x", ("1",), True, ())),
    "the second": ({A + B: (B, "x", ["1"], True), B + A: (B, "y", ["2"], False)}, ((1, 0), "x; y", ("1", "2"), False, ())),
    "no reasons": ({A + B: (A, "", [], None), B + A: (A, "", [], None)}, ((0, 1), "", (), None, ())),
    "one reason": ({A + B: (A, "", [], None), B + A: (A, "y", [], True)}, ((0, 1), "y", (), True, ())),
    "ties": ({A + B: ("tie", "x", [], True), B + A: ("tie", "y", [], True)}, ((0, 1), "x; y", (), True, ((0, 1),))),
    "changed": ({A + B: (A, "x", ["1"], True), B + A: (B, "y", ["1"], True)}, ((0, 1), f"{CHANGED}; x; y", ("1",), True, ((0, 1),))),
    "changed without reasons": ({A + B: (B, "", [], None), B + A: (A, "", [], None)}, ((0, 1), CHANGED, (), None, ((0, 1),))),
    "changed to a tie": ({A + B: (B, "x", [], None), B + A: ("tie", "x", [], None)}, ((0, 1), f"{CHANGED}; x", (), None, ((0, 1),))),
    "three in order": (
        {B + A: (B, "ba", ["1"], True), C + A: (C, "ca", ["2"], False), C + B: (C, "cb", ["3"], True)},
        ((2, 1, 0), "ca; cb", ("2", "3"), False, ()),
    ),
    "three, done as far as the best": (
        {A + B: (A, "ab", [], True), A + C: (A, "ac", [], True), C + B: (C, "cb", ["3"], False)},
        ((0, 2, 1), "ab; ac", (), True, ()),
    ),
    "three, two tie for the best": (
        {A + B: ("tie", "ab", ["1"], None), A + C: (A, "ac", ["2"], None), B + C: (B, "bc", ["3"], None)},
        ((0, 1, 2), "ac", ("2",), None, ((0, 1),)),
    ),
    "three that tie": (
        {pair: ("tie", pair, [pair], True) for pair in ("ab", "ac", "bc")},
        ((0, 1, 2), "ab; ac", ("ab", "ac"), True, ((0, 1, 2),)),
    ),
    "three, one pair changes with the order": (
        {A + B: (A, "ab", [], None), B + A: (B, "ba", [], None), C + A: (C, "ca", [], None), C + B: (C, "cb", [], None)},
        ((2, 0, 1), f"{CHANGED} in 1 of 3 pairs; ca; cb", (), None, ((0, 1),)),
    ),
    "three, all change with the order": (
        {pair: (pair[0], f"of {pair}", [pair], False) for pair in ("ab", "ba", "ac", "ca", "bc", "cb")},
        ((0, 1, 2), f"{CHANGED} in 3 of 3 pairs; of ab; of ba; of ac; of ca", ("ab", "ba", "ac", "ca"), False, ((0, 1, 2),)),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("verdicts", "expected"), PAIRS.values(), ids=PAIRS)
async def test_what_a_comparison_by_pairs_says(verdicts, expected):
    """Ranking, reason, changes, `done` and ties of all pairs. A verdict without one of the other
    order is given in both.
    """
    candidates = some(*sorted({letter for pair in verdicts for letter in pair}))

    def answer(messages):
        (_, one), (_, other) = shown_answers(messages)
        winner, reason, change, done = (
            verdicts[one + other] if one + other in verdicts else verdicts[other + one]
        )
        place = "tie" if winner == "tie" else "first" if winner == one else "second"
        return verdict_json(winner=place, reason=reason, change=change, done=done)

    async def verdict(first, second):
        return await Pairwise().compare_pair(Task("q"), first, second, client(model_of(answer)))

    merged = [
        merge_orders(await verdict(x, y), await verdict(y, x))
        for x, y in combinations(candidates, 2)
    ]
    made = rank_by_wins(merged)
    assert (made.ranking, made.reason, made.actions, made.done, made.ties) == expected
    assert [vote.presentation_order for vote in made.votes] == [
        order for x, y in combinations(range(len(candidates)), 2) for order in ((x, y), (y, x))
    ]
    whole = await Pairwise().compare(Task("q"), candidates, client(model_of(answer)))
    assert (whole.ranking, whole.done, whole.ties) == (expected[0], *expected[3:])
    assert sorted(whole.reason.split("; ")) == sorted(made.reason.split("; "))


@pytest.mark.parametrize(
    ("there", "back", "done"), [(True, True, True), (True, False, False), (False, False, False)]
)
def test_done_needs_both_orders(there, back, done):
    """A judge that would stop in one order only does not stop."""
    verdicts = [
        Comparison((0, 1), done=there, presentation_order=(0, 1)),
        Comparison((0, 1), done=back, presentation_order=(1, 0)),
    ]
    assert merge_orders(*verdicts).done is done


@pytest.mark.parametrize(
    "bad",
    [
        verdict_json(winner="first or second"),
        verdict_json(winner="1"),
        verdict_json(winner=1),
        verdict_json(winner=None),
        verdict_json(winner=["first"]),
        verdict_json(),
        verdict_json(winner="first", done="yes"),
        verdict_json(winner="first", change={"say": "more"}),
        "The first is better.",
    ],
)
async def test_unreadable_verdict_fails_the_comparison(bad):
    """The judge is called once more, then the comparison is a Failure."""
    judge = ScriptedModel([verdict_json(winner="first"), bad, bad, verdict_json(winner="first")])
    trace = (await choose(["a", "b"], Pairwise(), judge)).trace
    assert [type(r) for r in trace.records if not isinstance(r, Candidate)][0] is Failure
    assert trace.comparisons == []


async def test_pair_can_be_compared_in_one_order():
    """One order alone measures how much the position decides."""
    first, second = some("a", "b")
    comparison = await Pairwise().compare_pair(
        Task("q"), second, first, client(ScriptedModel([verdict_json(winner="second")]))
    )
    assert (comparison.ranking, comparison.presentation_order, comparison.votes) == (
        (0, 1),
        (1, 0),
        (),
    )


async def test_single_answer_needs_no_comparison():
    """A single answer costs no call."""
    result = await choose(["only"], Pairwise(), ScriptedModel([]))
    assert (result.value, result.usage.calls) == ("only", 0)


async def test_up_to_four_answers_are_all_compared():
    """n (n - 1) calls decide by wins; usage is the sum, and the advice comes from the winner's
    comparisons.
    """
    model = model_of(prefers())
    result = await choose(["a", "aaaa", "aa", "aaa"], Pairwise(), model)
    [comparison] = result.trace.comparisons
    assert comparison.ranking == (1, 3, 2, 0)
    assert (model.calls, comparison.usage.calls, len(comparison.votes)) == (12, 12, 12)
    assert (comparison.reason, comparison.actions) == ("because", ("say more",))


async def test_cycle_is_a_tie():
    """If a beats b, b beats c and c beats a, all tie, and the reason says so."""
    beats = {("a", "b"), ("b", "c"), ("c", "a")}

    def answer(messages):
        (_, one), (_, other) = shown_answers(messages)
        return verdict_json(winner="first" if (one, other) in beats else "second")

    comparison = await Pairwise().compare(Task("q"), some("a", "b", "c"), client(model_of(answer)))
    assert comparison.ties == ((0, 1, 2),)


places_of = st.lists(st.permutations(range(4)), min_size=1, max_size=6)


@given(places_of)
def test_copeland_ranks_each_candidate_once(rankings):
    """A candidate that beats all others is first, whatever the other votes."""
    ranking, ties = copeland([Comparison(tuple(r)) for r in rankings])
    check_whole(Comparison(ranking, ties=ties), range(4))
    for a in range(4):
        if all(
            sum(r.index(a) < r.index(b) for r in rankings) * 2 > len(rankings)
            for b in range(4)
            if b != a
        ):
            assert ranking[0] == a
            assert not any(a in group for group in ties)


verdicts = st.sampled_from(["first", "second", "tie"])


@given(
    st.integers(2, 5).flatmap(
        lambda n: st.lists(
            st.tuples(verdicts, verdicts), min_size=n * (n - 1) // 2, max_size=n * (n - 1) // 2
        )
    )
)
def test_any_verdicts_give_a_complete_comparison(pairs):
    """Each candidate occurs once, ties are adjacent, every verdict is kept, and a contradiction is
    reported.
    """
    n = next(n for n in range(2, 6) if n * (n - 1) // 2 == len(pairs))

    def verdict(winner, one, other):
        order = (other, one) if winner == "second" else (one, other)
        return Comparison(
            order, ties=((one, other),) if winner == "tie" else (), presentation_order=(one, other)
        )

    pair_votes = [
        merge_orders(verdict(there, a, b), verdict(back, b, a))
        for (a, b), (there, back) in zip(combinations(range(n), 2), pairs, strict=True)
    ]
    comparison = rank_by_wins(pair_votes)
    check_whole(comparison, range(n))
    assert len(comparison.votes) == 2 * len(pairs)
    changed = any(
        (there, back) not in {("first", "second"), ("second", "first"), ("tie", "tie")}
        for there, back in pairs
    )
    assert (ORDER_CHANGED_NOTE in comparison.reason) is changed
    assert comparison.consistent is not changed


# --- many answers


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=40),
    st.sampled_from([Ranker(), Ranker(max_group_size=2), Ranker(max_group_size=5)]),
)
def test_long_lists_are_ranked_by_knockout(lengths, ranker):
    """The knockout ends, ranks each answer once with the best first, and no call shows more than
    `max_group_size`.
    """
    candidates, model = some(*("x" * n for n in lengths)), model_of(ranks())
    comparison = asyncio.run(ranker.compare(Task("q"), candidates, client(model)))
    check_whole(comparison, range(len(lengths)))
    assert lengths[comparison.ranking[0]] == max(lengths)
    assert all(len(shown_answers(messages)) <= ranker.max_group_size for messages in model.messages)
    assert len(comparison.votes) == (model.calls if len(lengths) > ranker.max_group_size else 0)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=40))
def test_pairwise_knockout_ends(lengths):
    """Pairs compete until few enough remain for all to be compared, and every verdict is kept."""
    candidates, model = some(*("x" * n for n in lengths)), model_of(prefers())
    comparison = asyncio.run(Pairwise().compare(Task("q"), candidates, client(model)))
    check_whole(comparison, range(len(lengths)))
    assert lengths[comparison.ranking[0]] == max(lengths)
    assert len(comparison.votes) == model.calls <= 2 * (len(lengths) + 6)


@given(st.integers(1, 40), st.integers(2, 8), st.integers(2, 8), st.randoms())
def test_knockout_ends_for_any_verdicts(n, most, size, random):
    """If all tie, the earliest advances."""
    rounds = []

    async def contest(group):
        ids = [c.id for c in group]
        random.shuffle(ids)
        rounds.append(ids)
        return Comparison(
            tuple(ids), ties=(tuple(ids),) if random.random() < 0.5 and len(ids) > 1 else ()
        )

    comparison = asyncio.run(knockout(some(*"x" * n), most, size, contest))
    check_whole(comparison, range(n))
    assert len(rounds) <= 2 * n


# answers, finalists at most, size of a group; the groups compared, the ranking, the ties
KNOCKOUTS = [
    (3, 3, 3, [[0, 1, 2]], (2, 1, 0), ()),
    (4, 3, 3, [[0, 2], [1, 3], [2, 3]], (3, 2, 0, 1), ((0, 1),)),
    (5, 2, 2, [[0, 3], [1, 4], [2, 4], [3, 4]], (4, 3, 2, 0, 1), ((0, 1),)),
    (1, 2, 2, [[0]], (0,), ()),
    (
        7,
        2,
        2,
        [[0, 4], [1, 5], [2, 6], [3, 5], [4, 6], [5, 6]],
        (6, 5, 3, 4, 0, 1, 2),
        ((3, 4), (0, 1, 2)),
    ),
]


@pytest.mark.parametrize(("n", "most", "size", "groups", "ranking", "ties"), KNOCKOUTS)
async def test_the_rounds_of_a_knockout(n, most, size, groups, ranking, ties):
    """Later answers are better. Each group's winner advances, and an answer alone without a
    comparison; rounds tie.
    """
    compared = []

    async def contest(group):
        compared.append([c.id for c in group])
        return Comparison(tuple(sorted(compared[-1], reverse=True)), f"of {compared[-1]}")

    made = await knockout(some(*"x" * n), most, size, contest)
    assert (compared, made.ranking, made.ties, made.reason) == (
        groups,
        ranking,
        ties,
        f"of {groups[-1]}",
    )
    assert [sorted(vote.ranking) for vote in made.votes] == (groups if len(groups) > 1 else [])


async def test_of_those_who_tie_in_a_group_the_earliest_advances():
    """And the votes of a comparison that has votes are kept in its place."""

    async def contest(group):
        ids = tuple(c.id for c in group)
        return Comparison(ids[::-1], ties=(ids,), votes=(Comparison(ids), Comparison(ids[::-1])))

    made = await knockout(some(*"x" * 5), 2, 3, contest)
    assert (made.ranking, made.ties) == ((1, 0, 2, 3, 4), ((0, 1), (2, 3, 4)))
    assert [vote.ranking for vote in made.votes] == [
        (0, 2, 4),
        (4, 2, 0),
        (1, 3),
        (3, 1),
        (0, 1),
        (1, 0),
    ]


# --- in the loop


@pytest.mark.parametrize(("grader", "judging"), [("ranker", ranks()), (Pairwise(), prefers())])
async def test_best_of_n_drafts(grader, judging):
    """`refine(task, plan=BestOfN(4), graders=...)` drafts four answers, compares them once and
    returns the best.
    """
    writer = ScriptedModel(["aa", "a", "aaaa", "aaa"])
    result = await refine("q", writer, grader, model_of(judging), plan=BestOfN(4))
    assert (result.value, writer.calls, len(result.trace.comparisons)) == ("aaaa", 4, 1)


async def test_finished_comparison_is_not_repeated():
    """A trace with its comparison needs no call, also after it was written and read."""
    texts = ["x" * n for n in range(1, 12)]
    first = await choose(texts, Ranker(max_group_size=3), model_of(ranks()))
    stored = Trace.from_json(first.trace.to_json())
    assert stored.records == first.trace.records
    again = await refine(
        stored, ScriptedModel([]), Ranker(max_group_size=3), plan=BestOfN(len(texts)), editor=False
    )
    assert again.trace.records == first.trace.records


@pytest.mark.parametrize(
    ("comparer", "judging"), [(Ranker(max_group_size=3), ranks()), (Pairwise(), prefers())]
)
async def test_interrupted_knockout_repeats_no_call(comparer, judging):
    """With a cache, answers from before the interruption are reused."""
    texts, memory, asked = ["x" * n for n in range(1, 12)], {}, []

    def answer_prompt(messages):
        asked.append(tuple(text for _, text in shown_answers(messages)))
        return judging(messages)

    # one in flight: what is cut off in the middle of its flight was not answered
    cut = await choose(
        texts, comparer, ScriptedModel([answer_prompt] * 4), cache=memory, max_in_flight=1
    )
    assert str(cut.stop) == "failed"
    result = await choose(texts, comparer, model_of(answer_prompt), cache=memory)
    assert result.value == texts[-1]
    assert len(asked) == len(set(asked))


# --- what is shown of comparisons


class ByLength:
    """A comparer of the user: the longest text first, and why."""

    name = "by_length"
    model_free = True

    async def compare(self, task, candidates, ask):
        ordered = sorted(candidates, key=lambda c: (-len(c.text), c.id))
        ids = {}
        for c in ordered:
            ids.setdefault(len(c.text), []).append(c.id)
        ties = tuple(tuple(group) for group in ids.values() if len(group) > 1)
        return Comparison(
            tuple(c.id for c in ordered),
            reason=f"{ordered[0].text} is longest",
            actions=("say more",),
            ties=ties,
        )


RANKERS = [(ByLength(), None), (Ranker(), model_of(ranks())), (Pairwise(), model_of(prefers()))]


@pytest.mark.parametrize(("grader", "judge"), RANKERS, ids=lambda value: getattr(value, "name", ""))
async def test_the_steps_have_the_reason_and_the_rank(grader, judge):
    """The feedback that led to a candidate is what was known of its parent then; the calls of all
    steps are those of the run.
    """
    result = await refine(
        "q", ScriptedModel(["a", "bb", "ccc", "dddd"]), grader, judge, max_iterations=3
    )
    steps = result.steps
    assert [len(step.feedback) for step in steps] == [0, 1, 1, 1]
    for n, step in enumerate(steps[1:], 1):
        [feedback] = step.feedback
        assert feedback.metadata == {"rank": 1, "ranking": list(reversed(range(n)))}
        assert feedback.reason.startswith(
            f"rank 1 of {n} ({' > '.join(map(str, reversed(range(n))))})"
        )
        assert (feedback.grader, feedback.score, feedback.candidate) == (grader.name, None, n - 1)
        if n > 1 or type(grader) is not Pairwise:  # which says nothing of a single answer
            assert feedback.actions == ("say more",)
    [grade] = steps[3].grades
    assert grade.metadata["ranking"] == [3, 2, 1, 0] and grade.reason.startswith(
        "rank 1 of 4 (3 > 2 > 1 > 0): "
    )
    assert sum(step.usage.calls for step in steps) == result.usage.calls


@pytest.mark.parametrize(("grader", "judge"), RANKERS, ids=lambda value: getattr(value, "name", ""))
async def test_the_result_has_the_reason_and_the_ranking(grader, judge):
    """In the reason, the summary, the repr and the plain data; no score is called unknown."""
    result = await refine(
        "q", ScriptedModel(["a", "bb", "ccc", "dddd"]), grader, judge, max_iterations=3
    )
    assert (
        result.reason
        == result.to_dict()["reason"]
        == ("dddd is longest" if type(grader) is ByLength else "because")
    )
    assert result.summary().startswith("ranked 3 > 2 > 1 > 0")
    assert (
        "ranked 3 > 2 > 1 > 0" in repr(result) and "unknown" not in repr(result) + result.summary()
    )


async def test_drafts_that_one_comparison_ranks_have_their_rank():
    """Each its own, with ties; what to change is about the best."""
    result = await refine(
        Task("q", responses=["aa", "bbb", "cc"]), False, ByLength(), max_iterations=0
    )
    grades = [step.grades[0] for step in result.steps]
    assert [grade.metadata["rank"] for grade in grades] == [2, 1, 2]
    assert [grade.actions for grade in grades] == [(), ("say more",), ()]
    assert result.summary().startswith("ranked 1 > 0 = 2")


@given(st.permutations(range(60)), st.integers(1, 60))
def test_the_order_names_each_of_some_candidates_once(ranking, n):
    """The best first; of very many, the best 40 and the number of the others."""
    ids = ranking[:n]
    order = Comparison(tuple(ids)).order_text.split(" > ")
    assert order == [str(id) for id in ids[:40]] + [f"{n - 40} more"] * (n > 40)
