"""Hard constraints: a broken one is worth another step, the writer's prompt has each, and a text
that breaks one has not converged.
"""

import json

import pytest

import redraft
from each_row import each_row
from redraft import (
    Budget,
    Feedback,
    Judge,
    ScriptedModel,
    Task,
    must,
    refine,
    with_weight,
)
from redraft.cli.errors import exit_code
from redraft.cli.exit_codes import IMPERFECT, OK
from redraft.loop.stopping import done, max_iterations, patience, target
from redraft.loop.trace import Trace
from redraft.plans.self_refine import BestOfN, SelfRefine
from redraft.protocols import Check

WORDS = "words:80-200"
SHORT, KEPT = "short " * 10, "word " * 100


def satisfied_judge(messages, score=5):
    """A judge that is satisfied with every text."""
    criteria = {"truth": {"evidence": "", "change": "", "score": score}}
    return json.dumps({"reason": "It is so.", "criteria": criteria, "done": True})


def obedient_writer(messages):
    """A writer that keeps a constraint once its prompt mentions it."""
    return KEPT if "10 words; 80 to 200 words" in messages[-1]["content"] else SHORT


def stubborn_writer(messages):
    """A writer that answers in ten different words, whatever its prompt."""
    return f"{len(messages)} {len(str(messages))} " * 5


def judge():
    return Judge({"truth": "It is true."})


PLANS = {
    "adaptive": {},
    "plain": {"noise_aware": False},
    "drafts": {"drafts": 3},
    "plain drafts": {"drafts": 2, "noise_aware": False},
    "a budget": {"budget": Budget(calls=50)},
    "a deadline": {"deadline": 600.0},
    "a price": {"min_expected_gain": 1.0},
    "a price for tokens that nobody knows": {"cost_unit": "tokens"},
    "one refinement": {"max_iterations": 1},
    "little patience": {"patience": 1},
    "a rule of one's own": {
        "plan": SelfRefine(target(0.5) | done() | patience(2) | max_iterations(3))
    },
}


@each_row("response", [None, SHORT])
@each_row("settings", PLANS.values(), ids=PLANS)
async def test_a_broken_must_is_worth_a_step_whatever_the_judge_says(settings, response):
    """No rule for gain, done or target ends the work while it is broken: the refinement that keeps
    it is made and returned.
    """
    result = await refine(
        Task("Explain.", response),
        obedient_writer,
        [judge(), must(WORDS)],
        satisfied_judge,
        **settings,
    )
    assert (result.value, result.broken_musts, result.iterations) == (KEPT, [], 1)
    assert result.converged is result.stop.converged
    assert exit_code(result) == OK


@pytest.mark.parametrize("settings", PLANS.values(), ids=PLANS)
async def test_a_must_that_is_never_kept_ends_by_patience_without_convergence(settings):
    """A number of refinements in a row neither kept it nor came nearer."""
    result = await refine(
        "Explain.", stubborn_writer, [judge(), must(WORDS)], satisfied_judge, **settings
    )
    assert str(result.stop) in {"patience", "max_iterations"}
    assert result.iterations == min(settings.get("patience", 2), settings.get("max_iterations", 3))
    assert (result.broken_musts, result.converged, exit_code(result)) == (
        [WORDS],
        False,
        IMPERFECT,
    )


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    "settings",
    [{}, {"noise_aware": False}, {"budget": Budget(calls=100)}],
    ids=["adaptive", "plain", "market"],
)
@pytest.mark.parametrize("writer", [obedient_writer, stubborn_writer])
async def test_a_batch_refines_rows_with_a_broken_must(settings, writer, tmp_path):
    """This holds where rows share a budget."""
    rows = [{"prompt": f"Explain {i}."} for i in range(5)]
    report = await redraft.batch(
        rows, tmp_path / "out.jsonl", writer, [judge(), must(WORDS)], satisfied_judge, **settings
    )
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    broken = writer is stubborn_writer
    assert [row["broken"] for row in out] == [WORDS if broken else None] * 5
    assert {row["stop"] for row in out} <= ({"patience"} if broken else {"done", "target"})
    assert report.rows.broken == 5 * broken


async def test_a_satisfied_judge_does_not_end_the_work_on_a_broken_constraint():
    """It has a satisfied judge, a must, and a plain requirement."""

    def satisfied_judge(messages):
        return json.dumps(
            {
                "reason": "It is so.",
                "criteria": {"clarity": {"evidence": "", "change": "", "score": 5}},
                "done": True,
            }
        )

    graders = [
        Judge({"clarity": "A child of ten can follow it."}),
        must("words:20-80"),
        "contains:coin",
    ]
    first, second = "A coin.", "A coin " + "spins and " * 12 + "falls."
    result = await refine(
        "Explain a qubit to a child.",
        ScriptedModel([first, second]),
        graders,
        satisfied_judge,
        max_tokens=120,
    )
    assert (result.value, result.broken_musts, result.converged) == (
        second,
        [],
        True,
    )


@pytest.mark.parametrize(
    ("requirement", "texts"),
    [
        ("words:80-200", ["w " * 10, "w " * 12, "w " * 14, "w " * 90]),
        ("words:-5", ["w " * 99, "w " * 98, "w " * 97, "w"]),
        ("contains:war>=8", ["war " * 3, "war " * 4, "war " * 5, "war " * 8]),
        (
            "bullets:5",
            ["- a\n- b", "- a\n- b\n- c", "- a\n- b\n- c\n- d", "- a\n- b\n- c\n- d\n- e"],
        ),
        ("contains_none:one,two,three", ["one two three", "one two", "one", "four"]),
        (
            "no_duplicate_sentences",
            [
                "So it is. So it is. So it is. So it is.",
                "So it is. So it is. So it is.",
                "So it is. So it is.",
                "So.",
            ],
        ),
    ],
)
async def test_coming_nearer_to_a_constraint_is_progress(requirement, texts):
    """A model that comes nearer each time is not stopped, even with patience of one, nor with a
    partial score.
    """
    result = await refine(
        "q", ScriptedModel(texts), [must(requirement), lambda t: 0.95], patience=1, editor=False
    )
    assert (result.value, result.converged) == (texts[-1], True)
    away = [texts[1], texts[0], texts[2], texts[3]]
    result = await refine(
        "q", ScriptedModel(away), [must(requirement), lambda t: 0.95], patience=1, editor=False
    )
    assert (result.value, str(result.stop), result.converged) == (
        texts[1],
        "patience",
        False,
    )


async def test_a_partial_score_of_a_must_is_a_distance():
    """A score below 1 says how near the text is."""
    scores = dict(zip("abcd", [0.1, 0.2, 0.3, 1.0], strict=True))
    result = await refine(
        "q",
        ScriptedModel(list("abcd")),
        [must(lambda text: scores[text]), lambda t: 0.95],
        patience=1,
    )
    assert (result.value, str(result.stop)) == ("d", "target")


async def test_the_text_nearest_to_its_constraints_is_refined():
    """A text with a higher score but farther from its constraint is not refined."""
    texts = ["w " * 10, "w " * 60, "w " * 70, "w " * 90]
    score = {10: 0.9, 60: 0.5, 70: 0.4, 90: 0.3}
    result = await refine(
        "q", ScriptedModel(texts), [must(WORDS), lambda t: score[len(t.split())]], editor=False
    )
    assert [c.parent for c in result.trace.candidates] == [None, 0, 1, 2]
    assert result.value == texts[-1]


async def test_one_more_kept_constraint_resets_patience():
    """It counts as progress though another is still broken."""
    texts = ["a", "b c", "b c d", "qubit c d e f"]
    graders = [must("words:2-"), must("words:5-"), must("contains:qubit"), lambda t: 0.95]
    result = await refine("q", ScriptedModel(texts), graders, patience=1)
    assert (result.value, result.broken_musts) == (texts[-1], [])


async def test_without_a_writer_it_ends_when_repairs_are_exhausted():
    """The editor repairs what it can; the rest stays broken, and the work has not converged."""
    fixed = await refine(Task("q", "one, two"), False, [must("no_commas")])
    assert (fixed.broken_musts, fixed.converged) == ([], True)

    def content(text):
        return Feedback(1.0, done=True)

    left = await refine(Task("q", "one, two"), False, [must("no_commas"), must(WORDS), content])
    assert (str(left.stop), left.broken_musts, left.converged) == (
        "max_iterations",
        [WORDS],
        False,
    )


@pytest.mark.parametrize("plan", [BestOfN(3), BestOfN(3, target_score=0.1)])
async def test_best_of_n_returns_the_draft_that_keeps_its_must(plan):
    """The scores of the others do not matter; without such a draft it has not converged."""
    graders = [must(WORDS), lambda t: 0.2 if t == KEPT else 0.9]
    found = await refine("q", ScriptedModel([SHORT, KEPT, SHORT + "x"]), graders, plan=plan)
    assert found.value == KEPT
    lost = await refine("q", ScriptedModel([SHORT, SHORT + "y", SHORT + "x"]), graders, plan=plan)
    assert (lost.converged, str(lost.stop)) == (False, "max_iterations")


@pytest.mark.parametrize("stop", [target(0.5), done(), target(0.1) | done()])
def test_no_rule_ends_the_work_with_a_broken_must(stop):
    """Each rule alone is tried on a trace where only the must is broken."""
    from redraft.loop.records import Candidate
    from redraft.loop.trace import PanelGrader

    said = [Feedback(1.0, done=True, grader="judge"), Feedback(0.0, grader="check")]
    trace = Trace(
        Task("q"),
        (PanelGrader("judge"), PanelGrader("check", must=True)),
        (Candidate(0, "a", role="generate"), *said),
    )
    assert stop(trace) is None


# ---- demands in the prompt


def prompts_of(model, n=0):
    return model.messages[n]


async def test_the_last_user_message_ends_with_every_hard_constraint():
    """These are the task's and those of `must`, not of a plain requirement, a function or a
    judge.
    """
    model = ScriptedModel(["one two"])
    graders = [must("contains:qubit"), "no_commas", must(lambda t: 1.0), must(judge())]
    task = Task(
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Explain."}],
        requirements=["words:2"],
    )
    await refine(task, model, graders, satisfied_judge, max_iterations=0)
    system, user = prompts_of(model)
    assert system == task.messages[0]
    assert user["role"] == "user"
    assert (
        user["content"]
        == "Explain.\n\nThe answer must meet all of this:\n- exactly 2 words\n- contains 'qubit'"
    )


async def test_without_hard_constraints_the_prompt_is_unchanged():
    """No grader adds anything to it."""
    model = ScriptedModel(["a"])
    await refine("Explain.", model, ["no_commas", must(lambda t: 1.0)], max_iterations=0)
    assert prompts_of(model) == [{"role": "user", "content": "Explain."}]


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
DEMAND = "The answer must meet this:\n- exactly 3 words"
SHAPES = {
    "a prompt": [{"role": "user", "content": "q"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "q"}, PICTURE]}],
    "a conversation": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "more"},
    ],
    "a tool": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ],
    "an answer begun": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "Well,"},
    ],
    "only a system message": [{"role": "system", "content": "Say something."}],
}


@each_row("response", [None, "", " \n", "given text"])
@each_row("demands", [[], ["words:3"]], ids=["free", "with a demand"])
@each_row("messages", SHAPES.values(), ids=SHAPES)
async def test_adjacent_roles_differ_and_the_prefix_stays(messages, demands, response):
    """The refiner's messages begin with those for a draft, whatever the task ends with; no message
    is empty.
    """
    model = ScriptedModel(["one two", "one two three", "four"])
    graders = [*map(must, demands), lambda text: 0.95 if text == "one two three" else 0.3]
    await refine(Task(messages, response), model, graders, editor=False, max_iterations=1)
    told = str(model.messages)
    assert ("exactly 3 words" in told) is bool(demands)
    for sent in model.messages:
        roles = [message["role"] for message in sent]
        assert all(a != b for a, b in zip(roles, roles[1:], strict=False))
        assert all(
            str(m["content"]).strip()
            for m in sent
            if m["role"] == "assistant" and not m.get("tool_calls")
        )
    refining = model.messages[-1]
    assert refining[-1]["role"] == "user"
    if response == "given text":
        assert response in str(refining[len(messages) :])
    else:  # a blank response is none
        draft = model.messages[0]
        assert refining[: len(draft)] == draft
        assert "one two" in str(refining[len(draft) :])


async def test_the_refiners_prompt_has_broken_and_kept_constraints():
    """Each has its measured value; a plain requirement is mentioned only if it fails."""
    model = ScriptedModel(["one, two three", "a qubit here"])
    graders = [must("words:3"), must("contains:qubit"), "no_commas", lambda t: 0.5]
    await refine("q", model, graders, editor=False, max_iterations=1)
    *_, parent, advice = prompts_of(model, 1)
    assert parent == {"role": "assistant", "content": "one, two three"}
    assert "- contains:qubit: 'qubit' occurs 0 times; contains 'qubit'" in advice["content"]
    assert "- still holds: exactly 3 words" in advice["content"]
    assert "1 comma; no commas" in advice["content"]
    assert "still holds: no commas" not in advice["content"]


async def test_the_trace_has_the_demands_and_older_traces_load_without_them():
    """A trace that was written and read again plans the same next step."""
    result = await refine(
        "q", ScriptedModel(["a"]), [must("words:1"), must(lambda t: 1.0)], max_iterations=0
    )
    again = Trace.from_json(result.trace.to_json())
    assert again == result.trace
    assert [seat.demand for seat in again.panel] == ["exactly 1 word", ""]
    older = json.loads(result.trace.to_json())
    for seat in older["panel"]:
        seat.pop("demand", None)
    assert [seat.demand for seat in Trace.from_json(json.dumps(older)).panel] == ["", ""]


async def test_the_cache_key_includes_the_demands():
    """The same prompt with another demand is a new call; with the same one it is cached."""
    cache, model = {}, ScriptedModel(["a", "a", "a"])
    for spec, calls in (("words:1", 1), ("words:1-2", 2), ("words:1", 2)):
        await refine("q", model, [must(spec)], cache=cache, max_iterations=0)
        assert model.calls == calls


def test_a_users_requirement_may_report_a_distance():
    """One that reports none counts as far until it is kept."""
    assert Check(ok=False, measurement="3 of 4", nearness=0.75).nearness == 0.75
    assert Check(ok=False, measurement="no").nearness is None
    with pytest.raises(ValueError, match="nearness"):
        Feedback(0.0, nearness=1.5)


async def test_a_weighted_must_is_in_the_prompt():
    """Neither weight nor repeats hide its demand."""
    model = ScriptedModel(["a"])
    await refine("q", model, [must(with_weight("words:1", 2)), lambda t: 1.0])
    assert "exactly 1 word" in prompts_of(model)[0]["content"]
