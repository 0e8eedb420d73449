"""Scores as expectations over token probabilities: computed from the place of the score, or refused
with the reason.
"""

import json
from math import log

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from redraft import Candidate, Judge, Task
from redraft.errors import ConfigError
from redraft.graders.judging.expectation import (
    MIN_COVERED,
    NoExpectation,
    expected_score,
    expected_scores,
)
from redraft.graders.template import Scale
from redraft.models.chat_replies import MAX_TOP_TOKENS, read_logprobs
from redraft.protocols import Reply, TokenLogprobs
from redraft.session.perform import ModelClient, StepClient
from redraft.storage.journal import Journal

TEMPLATE = "Rate {response}."


def reply(before, score, after="}", top=None, text=None, tokens=None):
    """A reply whose score is one token with these probabilities."""
    shown = TokenLogprobs(score, tuple((t, log(p)) for t, p in (top or {}).items()))
    pieces = (
        [TokenLogprobs(c) for c in before] + (tokens or [shown]) + [TokenLogprobs(c) for c in after]
    )
    return Reply(text or f"{before}{score}{after}", token_logprobs=tuple(pieces))


def expect(made, scale=Scale(1, 5), path=("score",)):
    return expected_scores(made, [path], scale)


def test_the_score_is_the_mean_by_probability():
    """What is no score is left out, and the rest normalised."""
    found = expect(reply('{"score": ', "4", top={"4": 0.5, "5": 0.3, "7": 0.1, "four": 0.1}))
    assert found.scores == (pytest.approx((4 * 0.5 + 5 * 0.3) / 0.8),)
    assert found.covered == pytest.approx(0.8)
    assert found.as_metadata() == {"scoring": "expectation", "covered": 0.8}


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (Reply('{"score": 4}'), "gave no log-probabilities"),
        (reply('{"score": ', "4", top={"4": 0.3, "x": 0.7}), "only 30%"),
        (reply('{"score": ', "4"), "only 0%"),
        (reply('{"score": ', "4", top={"4": 1.0, "5": 1.0, "1": 1.0}), "add up to 3.00"),
        (reply("{'score': ", "4", top={"4": 1.0}), "not clean JSON"),
        (reply('{"score": ', "4", top={"4": 1.0}, text='{"score": 5}'), "not those of the text"),
        (reply('{"score": [', "4", "]}", top={"4": 1.0}), "only 0%"),
        (reply('{"other": ', "4", top={"4": 1.0}), "stands twice, or in a list"),
    ],
)
def test_without_sound_probabilities_there_is_no_expectation(made, says):
    """The reason says why; no number is made up."""
    found = expect(made)
    assert found.scores == ()
    assert says in found.problem


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({1: 0.5}, (1.0, 0.5)),
        ({1: 0.25, 3: 0.25}, (2.0, 0.5)),
        ({2: 0.26, 4: 0.23}, "only 49% of the probability is on scores of the scale"),
        ({}, "only 0% of the probability is on scores of the scale"),
        ({1: 1.02}, (1.0, 1.0)),
        ({1: 0.51, 5: 0.51}, (3.0, 1.0)),
        ({1: 1.0, 5: 0.03}, "the probabilities of the scores add up to 1.03, more than 1"),
        ({-2: 0.5, 2: 0.25}, (-2 / 3, 0.75)),
    ],
)
def test_how_much_of_the_probability_must_be_on_scores(weights, expected):
    """At least half, and at most all, but for what endpoints round; the share is never more than
    1.
    """
    if isinstance(expected, tuple):
        assert expected_score(weights) == pytest.approx(expected)
        return
    with pytest.raises(NoExpectation) as problem:
        expected_score(weights)
    assert str(problem.value) == expected


@pytest.mark.parametrize(
    ("low", "high", "accepted"), [(1, 101, True), (0, 100, True), (0, 101, False), (-50, 50, True)]
)
def test_how_many_numbers_a_scale_may_have(low, high, accepted):
    """As many as a schema lists: 101."""
    try:
        Judge(template=TEMPLATE, scale=(low, high), read="score", scoring="expectation")
    except ConfigError as error:
        assert not accepted and "at most 101 whole numbers" in str(error)
    else:
        assert accepted


def test_the_last_score_counts():
    """A score that the reasoning before the object mentions is another place."""
    made = reply(
        '<think>{"score": 1}</think>I say 1. {"reason": "1 or 2? \u00e9\u4e2d", "score":',
        " 5",
        top={" 5": 0.9, " 4": 0.1},
    )
    assert expect(made).scores == (pytest.approx(4.9),)


def test_a_token_may_hold_more_than_the_number():
    """Alternatives count if they have the same other characters."""
    made = reply('{"score"', ": 4}", "", top={": 4}": 0.6, ": 2}": 0.2, ": 3": 0.1, ":": 0.1})
    assert expect(made).scores == (pytest.approx((4 * 0.6 + 2 * 0.2) / 0.8),)


probabilities = st.lists(st.floats(0.001, 1), min_size=10, max_size=10).map(
    lambda ps: [p / sum(ps) for p in ps]
)


@given(probabilities, st.integers(1, 10))
def test_numbers_of_one_token(shares, written):
    """On 1-10, a tokenizer that has a token for 10 gives the exact mean."""
    made = reply('{"score": ', str(written), top={str(n): p for n, p in enumerate(shares, 1)})
    (score,) = expect(made, Scale(1, 10)).scores
    assert score == pytest.approx(sum(n * p for n, p in enumerate(shares, 1)))


@given(probabilities, st.integers(1, 10))
@example([0.3, *[0.05] * 8, 0.3], 5)
@example([0.3, *[0.05] * 8, 0.3], 10)
def test_numbers_of_several_tokens(shares, written):
    """If digits are tokens, 1 and 10 are told apart where one of them was written; else their part
    is left out.
    """
    chance = dict(enumerate(shares, 1))
    first = {"1": chance[1] + chance[10], **{str(n): chance[n] for n in range(2, 10)}}
    tokens = [TokenLogprobs(str(written)[0], tuple((t, log(p)) for t, p in first.items()))]
    after = (
        {"0": chance[10] / first["1"], "}": chance[1] / first["1"]}
        if written in (1, 10)
        else {"}": 1.0}
    )
    tokens.append(
        TokenLogprobs("0" if written == 10 else "}", tuple((t, log(p)) for t, p in after.items()))
    )
    closing = "}" if written == 10 else ""
    made = reply('{"score": ', "", closing, tokens=tokens, text=f'{{"score": {written}}}')
    known = chance if written in (1, 10) else {n: chance[n] for n in range(2, 10)}
    covered = sum(known.values())
    assume(abs(covered - MIN_COVERED) > 1e-6)
    found = expect(made, Scale(1, 10))
    if covered < MIN_COVERED:
        assert not found.scores
    else:
        assert found.scores == (pytest.approx(sum(n * p for n, p in known.items()) / covered),)


@given(
    st.lists(
        st.tuples(
            st.text('0123456789 {}":,ab-', max_size=3),
            st.lists(st.tuples(st.text("0123456789 -}", max_size=3), st.floats(-9, 0))),
        )
    ),
    st.dictionaries(st.text("0123456789 -}", max_size=3), st.floats(0.01, 0.1), max_size=5),
    st.integers(0, 9),
)
@example([], {"11": 0.1, "-3": 0.1, "99": 0.1}, 7)
def test_any_tokens_give_a_score_on_the_scale_or_none(pieces, others, written):
    """Whatever the tokens are, nothing outside of the scale comes out."""
    tokens = tuple(TokenLogprobs(token, tuple(top)) for token, top in pieces)
    text = "".join(t.token for t in tokens)
    (score,) = expect(
        reply('{"score": ', str(written), top={**others, str(written): 0.51}), Scale(0, 9)
    ).scores
    assert 0 <= score <= 9
    for made in (
        Reply(text, token_logprobs=tokens),
        Reply('{"score": 3}', token_logprobs=tokens + (TokenLogprobs('{"score": 3}'),)),
    ):
        found = expect(made, Scale(-2, 10))
        assert bool(found.scores) != bool(found.problem)
        assert all(-2 <= score <= 10 for score in found.scores)


async def grade(judge, made):
    async def complete(request):
        asked.append(request)
        return made

    asked = []
    return await judge.grade(
        Task("q"), Candidate(0, "a"), StepClient(ModelClient("judge", complete))
    ), asked


async def test_the_feedback_says_how_it_was_scored():
    """With probabilities the score is the expectation; without, that it is not stands in reason and
    metadata.
    """
    judge = Judge(template=TEMPLATE, scale=(1, 5), read="score", scoring="expectation")
    feedback, asked = await grade(judge, reply('{"score": ', "4", top={"4": 0.5, "5": 0.5}))
    assert feedback.score == pytest.approx(0.875)
    assert feedback.metadata == {"scoring": "expectation", "covered": 1.0}
    assert asked[0].top_logprobs == 20
    feedback, _ = await grade(judge, Reply('{"score": 4}'))
    assert feedback.score == 0.75
    assert feedback.metadata["scoring"] == "written"
    assert (
        "as written, not an expectation: the endpoint gave no log-probabilities" in feedback.reason
    )
    _, asked = await grade(
        Judge(template=TEMPLATE, scale=(1, 5), read="score"), Reply('{"score": 4}')
    )
    assert asked[0].top_logprobs is None


async def test_every_criterion_has_its_own_expectation():
    """Each is read at its own place; the weighted mean is over expectations."""
    judge = Judge({"truth": "It is true.", "style": "It is plain."}, scoring="expectation")
    row = '{"evidence": "", "change": "", "score": '
    head = '{"reason": "Fine.", "criteria": {"truth": ' + row
    made = [
        *map(TokenLogprobs, head),
        TokenLogprobs("5", (("5", log(0.5)), ("4", log(0.5)))),
        *map(TokenLogprobs, '}, "style": ' + row),
        TokenLogprobs("2", (("2", log(0.75)), ("0", log(0.25)))),
        *map(TokenLogprobs, '}}, "done": false}'),
    ]
    text = "".join(t.token for t in made)
    feedback, _ = await grade(judge, Reply(text, token_logprobs=tuple(made)))
    assert [c.score for c in feedback.criteria] == pytest.approx([0.9, 0.3])
    assert feedback.score == pytest.approx(0.6)


# ---- reading and storing log-probabilities


def entry(token, logprob=-0.5, top=()):
    return {
        "token": token,
        "logprob": logprob,
        "bytes": list(token.encode()),
        "top_logprobs": list(top),
    }


@pytest.mark.parametrize(
    "bad",
    [
        None,
        3,
        {},
        {"token": 3},
        {"token": "1"},
        entry("1", "x"),
        entry("1", True),
        entry("1", float("nan")),
        entry("1", 3.0),
        entry("1", top=[4]),
    ],
)
def test_malformed_entries_count_as_none(bad):
    """An answer with broken log-probabilities is still an answer."""
    assert read_logprobs([entry("a"), bad]) == ()


def test_alternatives_are_kept_at_numbers_only():
    """Those of other tokens would fill a journal; a part of a character keeps its bytes."""
    top = [entry(str(n), -n) for n in range(30)]
    tokens = read_logprobs(
        [entry("a", top=top), entry("1", top=top), entry(",", top=top), entry("b", top=top)]
    )
    assert [len(t.top) for t in tokens] == [0, MAX_TOP_TOKENS, MAX_TOP_TOKENS + 1, 0]
    halves = read_logprobs(
        [{"token": "?", "logprob": 0, "bytes": [195]}, {"token": "?", "logprob": 0, "bytes": [169]}]
    )
    assert "".join(t.token for t in halves).encode("utf-8", "surrogateescape").decode() == "\u00e9"


async def test_a_journal_keeps_log_probabilities(tmp_path):
    """A cached reply gives the same expectation; replies without them are stored as before."""
    made = reply('{"score": ', "4", top={"4": 0.5, "\udcc3": 0.5})
    with Journal(tmp_path / "j") as journal:
        journal.response_cache["a"] = made
        journal.response_cache["b"] = Reply("x")
        assert journal.response_cache["a"] == made
        assert journal.response_cache["b"].token_logprobs == ()


def test_the_cache_keeps_requests_for_log_probabilities_apart():
    """A reply that was stored without them does not answer a request for them."""
    from dataclasses import replace

    from redraft.middleware.cache import cache_key
    from redraft.protocols import Request

    plain = Request(({"role": "user", "content": "q"},))
    assert cache_key("m", plain) != cache_key("m", replace(plain, top_logprobs=20))


def test_json_is_located_with_every_kind_of_value():
    """Nested objects, escapes and texts with braces before the score do not move it."""
    data = {"a": {"b": [1, {"c": 2}], "d\n": '}{\\"'}, "e": -1.5e3, "f": None}
    before = json.dumps(data, indent=1)[:-1].rstrip() + ', "rating": {"score": '
    made = reply(before, "3", "}}", top={"3": 0.6, "1": 0.4})
    assert expect(made, path=("rating", "score")).scores == (pytest.approx(2.2),)
