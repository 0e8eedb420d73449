"""The grader `consensus`, the share that agrees, and the net win rates of a ranking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from redraft import Candidate
from redraft.errors import ConfigError, RedraftError
from redraft.graders import as_grader
from redraft.loop.records import Comparison, ToolCall
from redraft.loop.task import Task
from redraft.protocols import Reply

NUMBER = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
CASES = {  # drafts, the form, and: the answer, the share that agrees, the reason
    "most agree": (["b", "a", "A ", "\n a"], None, "a", 0.75, "3 of 4 answers agree (75%)"),
    "a tie goes to the earliest": (["b", "a", "a", "b", "c"], None, "b", 0.4, "2 of 5 answers agree (40%)"),
    "none agree": (["a", "b", "c"], None, "a", 1 / 3, "1 of 3 answers agree (33%)"),
    "values of a form": (['{"n": 3}', '{"n":1.0}', '{"n": 1}'], NUMBER, '{"n":1.0}', 2 / 3, "2 of 3 answers agree (67%)"),
    "not of the form": (["no", "no", '{"n": 1}'], NUMBER, '{"n": 1}', 1 / 3, "1 of 3 answers agree (33%)"),
    "true is not 1": (["1", "true", "1.0"], {"type": ["number", "boolean"]}, "1", 2 / 3, "2 of 3 answers agree (67%)"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
async def test_the_answer_that_most_agree_on_is_best(case):
    drafts, form, best, share, reason = CASES[case]
    plan = redraft.BestOfN(len(drafts), repairs=False)
    result = await redraft.refine(
        "q", redraft.ScriptedModel(drafts), "consensus", plan=plan, answer=form
    )
    assert result.value.strip() == best
    assert result.agreement == pytest.approx(share)
    assert reason in result.trace.comparisons[-1].reason
    assert result.usage.calls == len(drafts)


async def test_answers_that_call_tools_agree_on_their_calls():
    tools = [{"type": "function", "function": {"name": "find", "parameters": {}}}]
    city = ["Oslo", "Rome", "Rome"]
    replies = [
        Reply("", tool_calls=(ToolCall("find", f'"{c}"', f"id{n}"),)) for n, c in enumerate(city)
    ]
    grader = as_grader("consensus")
    candidates = [Candidate(n, "", tool_calls=reply.tool_calls) for n, reply in enumerate(replies)]
    ranked = await grader.compare(Task("q", tools=tools), candidates, ask=None)
    assert ranked.ranking == (1, 2, 0) and ranked.ties == ((1, 2),)


@given(st.lists(st.sampled_from("aAbc"), min_size=1, max_size=12))
async def test_more_agreement_never_ranks_lower(texts):
    """A rank is shared by the answers on which as many agree."""
    candidates = [Candidate(id, text) for id, text in enumerate(texts)]
    ranked = await as_grader("consensus").compare(Task("q"), candidates, ask=None)
    assert sorted(ranked.ranking) == [*range(len(texts))]
    size = [sum(other.lower() == text.lower() for other in texts) for text in texts]
    for a in range(len(texts)):
        for b in range(len(texts)):
            assert (ranked.ranks[a] < ranked.ranks[b]) == (size[a] > size[b])


def test_it_takes_no_option():
    with pytest.raises(ConfigError, match="consensus"):
        as_grader("consensus:3")
    with pytest.raises(RedraftError, match="'consensus' ranks several responses"):
        redraft.grade_sync(("q", "a"), "consensus")


def test_no_answer_has_no_agreement():
    assert redraft.Result(redraft.Trace(Task("q"))).agreement is None


@given(st.permutations(range(6)), st.data())
def test_net_win_rates_add_up_to_0_and_follow_the_ranks(ranking, data):
    cut = data.draw(st.integers(0, 6))
    ties = (tuple(ranking[:cut]),) if cut > 1 else ()
    comparison = Comparison(tuple(ranking), ties=ties)
    rates, ranks = comparison.net_win_rates, comparison.ranks
    assert sum(rates.values()) == pytest.approx(0)
    assert all(-1 <= rate <= 1 for rate in rates.values())
    assert sorted(ranks, key=lambda id: (-rates[id], id)) == sorted(
        ranks, key=lambda id: (ranks[id], id)
    )


@pytest.mark.parametrize(
    ("comparison", "rates"),
    [
        (Comparison((1, 0)), {1: 1, 0: -1}),
        (Comparison((2, 0, 1), ties=((0, 1),)), {2: 1, 0: -0.5, 1: -0.5}),
        (Comparison((0, 1), ties=((0, 1),)), {0: 0, 1: 0}),
        (Comparison((7,)), {}),
    ],
)
def test_net_win_rates(comparison, rates):
    assert comparison.net_win_rates == rates
