"""A result in one line, in notebooks, and as JSON."""

import json
from dataclasses import asdict, replace

import pytest

from redraft import (
    Budget,
    Judge,
    Result,
    ScriptedModel,
    must,
    refine,
    refine_many,
)
from redraft.cli.progress import candidate_rows, describe_comparison, summary_line
from redraft.errors import AuthenticationError, ModelError
from redraft.graders import Jury
from redraft.loop.records import Candidate, Comparison, Feedback, Outcome, StopReason
from redraft.loop.steps import Stop
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.ending import with_note
from redraft.plans.quality.priors import Priors
from redraft.plans.self_refine import SelfRefine
from redraft.result import headline
from redraft.runs.row_result import row_result
from redraft.usage import Usage

RUBRIC = {"truth": "It is true."}


def result(*scripted_grader, best=0, end=None, seat=PanelGrader("judge")):
    """A result whose answers have these scores, each refined from the first."""
    records = []
    for id, score in enumerate(scripted_grader):
        records.append(
            Candidate(
                id,
                f"text {id}",
                0 if id else None,
                role="refine" if id else "generate",
                usage=Usage(1, 10, 5),
            )
        )
        records.append(Feedback(score, candidate=id, grader=seat.name))
    end = end or Outcome(
        best, StopReason.GAIN, "nothing more is worth it", 0.71, (0.58, 0.84), ((0, 0.6), (1, 0.71))
    )
    return Result(Trace(Task("q"), (seat,), (*records, end)))


def test_a_first_answer_that_was_kept_has_gained_nothing():
    """Where the others scored less, the difference is no gain."""
    assert (
        "a difference of -0.10 may be a loss or the graders'" in result(0.7, 0.6, best=0).summary()
    )


def test_the_summary_shows_estimates_beside_observed_scores():
    """It has the score with its interval, the observed scores, and the reason for stopping in
    words.
    """
    told = result(0.7, 0.8, best=1)
    assert told.summary() == (
        "0.60 -> 0.71 (the judge said 0.80; 95% between 0.58 and 0.84); stopped: no further step is worth its cost "
        "(nothing more is worth it) · too few repeats: "
        f"a difference of +0.10 may be a gain or the graders' estimated noise ({Priors().noise_sd:.2f} per grade): "
        "too few repeats; about 12 at each answer would show a gain of 0.1 · calls 2 · tokens 30 · cost 0 USD"
    )
    assert (
        repr(told) == "Result(score=0.71 [0.58, 0.84] by this judge, stop='gain', value='text 1')"
    )
    assert told.summary() in told.__rich__().plain
    assert "95% between 0.58 and 0.84" in told._repr_html_()
    assert [score for _, score, _ in candidate_rows(told.trace)] == [
        "0.70, estimated 0.60",
        "0.80, estimated 0.71",
    ]
    assert summary_line(told) == headline(told)


def test_graders_that_compute_leave_no_interval():
    """This holds for the adaptive plan, too: rounding errors give no interval; a judge's noise
    gives one with two digits.
    """
    end = Outcome(0, StopReason.GAIN, "", 0.5, (0.49999804, 0.5000019), ((0, 0.5),))
    for seat, expected in (
        (PanelGrader("words", model_free=True), None),
        (PanelGrader("judge"), (0.5, 0.5)),
    ):
        told = result(0.5, end=end, seat=seat)
        assert told.score_interval == expected
        columns = row_result(told.trace).columns
        assert (columns["score_low"], columns["score_high"]) == (expected or (None, None))


async def test_the_summary_explains_an_observed_target_that_the_estimate_misses():
    """A judge that always gives the highest score does not end the work at the target."""

    async def judge(messages):
        said = {"evidence": "e", "change": "c", "score": 5}
        return json.dumps({"reason": "It is so.", "criteria": {"truth": said}, "done": False})

    told = await refine(
        "q", ScriptedModel(map(str, range(9))), Judge(RUBRIC), judge=judge, target_score=0.99
    )
    assert (str(told.stop), told.converged) == ("gain", True)
    assert told.score < told.judge_score == 1.0
    assert (
        "graders gave 1.00, which reaches the target, but the estimate does not" in told.summary()
    )


@pytest.mark.parametrize(
    ("reason", "suffix"), [("patience", True), ("target", True), ("gain", False), ("done", False)]
)
def test_the_reason_for_stopping_mentions_estimates_where_they_differ(reason, suffix):
    """A refinement without gain may have a higher observed score, except with computed graders."""
    trace = result(0.5).trace
    end = Stop(0, StopReason(reason), "so it is", 0.5)
    assert with_note(end, trace, SelfRefine()).note == "so it is" + ", by the estimates" * suffix
    assert (
        with_note(end, replace(trace, panel=(PanelGrader("judge", model_free=True),)), SelfRefine())
        == end
    )


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (Comparison((1, 0), grader="j"), "j puts 1 first"),
        (Comparison((1, 0, 2), grader="j", ties=((0, 1),)), "j puts 0 and 1 first"),
        (Comparison((1, 0), grader="j", ties=((0, 1),)), "j cannot tell which of 0 and 1 is best"),
        (
            Comparison((1, 0), grader="j", votes=(Comparison((1, 0)), Comparison((0, 1)))),
            "j cannot tell which of 0 and 1 is best",
        ),
    ],
)
def test_the_summary_has_the_verdict_of_a_comparison(told, said):
    """It names the winner or says that it was undecided."""
    assert describe_comparison(told) == said


def test_the_summary_of_computed_graders_has_no_estimate():
    """They have one certain score, and the reason for stopping."""
    seat = PanelGrader("words", model_free=True)
    told = result(0.5, 0.4, 0.4, end=Outcome(0, StopReason.PATIENCE, "2 in a row"), seat=seat)
    assert told.summary() == (
        "0.50 (the first answer is the best of 3); stopped: the last refinements brought no improvement"
        " · calls 3 · tokens 45 · cost 0 USD"
    )
    assert repr(told) == "Result(score=0.50, stop='patience', value='text 0')"
    assert told.diagnosis.kind == "regression"


async def test_the_diagnosis_uses_the_noise_of_the_plans_priors():
    """Scores that differ for a steady judge may be noise with the shipped priors."""

    def judging():
        marks = iter([2, 3, 2, 3])
        return lambda messages: json.dumps(
            {
                "reason": "It is so.",
                "criteria": {"truth": {"evidence": "", "change": "c", "score": next(marks)}},
                "done": False,
            }
        )

    kinds = []
    for priors in (Priors(noise_sd=0.01, bias_sd=0), Priors()):
        writer = ScriptedModel(map(str, range(9)))
        told = await refine(
            "q",
            writer,
            Judge(RUBRIC),
            judge=judging(),
            priors=priors,
            max_iterations=1,
            min_expected_gain=0,
        )
        assert told.trace.outcome.noise_sd == priors.noise_sd
        kinds.append(told.diagnosis and str(told.diagnosis.kind))
    assert kinds == [None, "too few repeats"]


@pytest.mark.parametrize("end", [None, Outcome(0, StopReason.BUDGET, "used up")])
def test_the_diagnosis_is_in_the_data(end):
    """A kind and words, or nothing."""
    told = result(0.7, 0.8, end=end)
    data = json.loads(json.dumps(told.to_dict()))
    found = told.diagnosis
    assert data["diagnosis"] == ("" if end else "too few repeats")
    assert data["diagnosis_note"] == (found.message if found else "")
    assert data["judge_score"] == 0.7
    assert data["interval"] == (None if end else [0.58, 0.84])


def test_control_sequences_in_a_graders_name_have_no_effect():
    """A grader's name may be foreign text."""
    seat = PanelGrader("\x1b[31m<b>check</b>", must=True, model_free=True)
    told = result(
        0.0, 0.0, 0.0, end=Outcome(0, StopReason.GAIN, "", 0.0, (0.0, 0.1), ((0, 0.0),)), seat=seat
    )
    assert told.diagnosis.kind == "bad check"
    assert "\x1b" not in told.summary()
    assert "<b>" not in told._repr_html_()


async def test_a_refinement_reports_the_estimated_change():
    """The estimate for a lucky grade is lower than the grade."""

    async def judge(messages):
        said = {"evidence": "e", "change": "c", "score": 5}
        return json.dumps({"reason": "It is so.", "criteria": {"truth": said}, "done": True})

    told = await refine("q", ScriptedModel(["a"]), Judge(RUBRIC), judge=judge)
    low, high = told.score_interval
    assert low < told.score < told.judge_score == 1.0
    assert low < told.score < high
    assert told.diagnosis.kind == "reached"
    assert "reached" not in told.summary()


def scripted_grader(*given):
    """A grader that gives these scores, one after the other."""
    left = iter(given)
    return lambda text: next(left)


def failing_model(*answers):
    """A model that gives these answers and then fails."""
    left = iter(answers)

    async def complete(messages):
        if (answer := next(left, None)) is None:
            raise AuthenticationError("key gone", status=401)
        return answer

    return complete


TEXTS = [f"text {n}" for n in range(9)]
ENDS = {  # the stop reason, or a name for another end
    "target": (TEXTS, scripted_grader(0.95), {}),
    "done": (TEXTS, lambda text: Feedback(0.5, "why", ("more",), True), {}),
    "patience": (TEXTS, lambda text: 0.5, {}),
    "max_iterations": (TEXTS, scripted_grader(0.1, 0.2, 0.3, 0.4), {}),
    "budget": (TEXTS, scripted_grader(0.1, 0.2, 0.3), {"budget": Budget(calls=2)}),
    "deadline": (TEXTS, scripted_grader(0.1), {"deadline": 0.0}),
    "gain": (TEXTS, Judge(RUBRIC), {"min_expected_gain": 0.5}),
    "failed": (failing_model("a"), scripted_grader(0.1), {}),
    "failed at once": (failing_model(), scripted_grader(0.1), {}),
    "ungraded": (TEXTS, lambda text: 1 / 0, {}),
    "unknown": (TEXTS, lambda text: None, {}),
    "broken for good": (TEXTS, [must("words:5-9"), lambda text: 0.5], {"patience": 1}),
    "broken": (
        ["\ud800 half a pair\x00"],
        [must("words:5-9"), lambda text: 0.5],
        {"max_iterations": 0},
    ),
    "several": (
        TEXTS,
        [Jury([lambda text: 0.4, lambda text: 1 / 0], quorum=1), "pairwise"],
        {"drafts": 2, "max_iterations": 1},
    ),
}
OTHER_ENDS = {
    "failed at once": "failed",
    "ungraded": "failed",
    "unknown": "failed",
    "broken for good": "patience",
    "broken": "max_iterations",
    "several": "max_iterations",
}
FAILED = {"deadline", "failed at once", "ungraded", "unknown"}


@pytest.mark.parametrize("end", ENDS)
async def test_a_result_is_plain_data(end):
    """However the work ended, `json.dumps` takes it unchanged, and the trace can be read again."""
    texts, graders, given = ENDS[end]
    model = ScriptedModel(texts) if isinstance(texts, list) else texts
    said = json.dumps(
        {
            "reason": "It is so.",
            "criteria": {"truth": {"evidence": "", "change": "c", "score": 3}},
            "winner": "first",
            "done": False,
        }
    )
    # a judge that is named grades
    judge = (lambda messages: said) if end in {"gain", "several"} else None
    [result] = await refine_many(["q"], model, graders, judge, retries=0, **given)
    data = json.loads(json.dumps(result.to_dict(trace=True)))
    facts = json.loads(json.dumps(result.facts.as_data()))
    assert {name: data[name] for name in facts if not name.startswith("error")} == {
        name: value for name, value in facts.items() if not name.startswith("error")
    }
    assert (data["answer"] or "", data["score"]) == (result.value, result.score)
    assert data["usage"] == asdict(result.usage)
    names = ("converged", "score_history", "iterations", "stop_note", "truncated")
    names += ("changed_fields", "failures", "validation", "repairs", "p_target", "priors")
    for name in names:
        assert data[name] == json.loads(json.dumps(getattr(result, name))), name
    assert [*result.to_dict()] == [*data][:-1]
    metadata = json.loads(json.dumps(result.metadata))
    former = {"note": "stop_note", "broken": "broken", "best": "best_candidate"}
    for name, value in metadata.items():
        if name != "diagnosis":
            assert value == data[former.get(name, name)], name
    assert ((metadata["diagnosis"] or {}).get("kind") or "") == data["diagnosis"]
    assert {"iterations", "converged", "score_history", "usage_by"} <= metadata.keys()
    assert Trace.from_json(json.dumps(data["trace"])).records == result.trace.records
    if result.error:
        kind = type(result.error).__name__
        assert (data["error"], data["error_kind"]) == (f"{kind}: {result.error}", kind)
        assert data["error_details"] == {
            **{
                name: value
                for name, value in vars(result.error).items()
                if name in {"status", "retry_after", "limit"}
            },
            **(
                {"retryable": result.error.retryable}
                if isinstance(result.error, ModelError)
                else {}
            ),
        }
    else:
        assert (data["error"], data["error_kind"], data["error_details"]) == (
            facts["error"],
            facts["error_kind"],
            {},
        )
    assert data["stop"] == OTHER_ENDS.get(end, end)
    assert bool(result.error) == (end in FAILED)


async def test_the_error_of_a_result_has_the_servers_message():
    """It is plain data in one row of many."""
    [result] = await refine_many(["q"], failing_model(), lambda text: 0.5, retries=0)
    data = result.to_dict()
    assert (data["error"], data["error_kind"]) == (
        "AuthenticationError: key gone",
        "AuthenticationError",
    )
    assert data["error_details"] == {"status": 401, "retry_after": None, "retryable": False}


def test_a_result_without_any_work_is_plain_data():
    """It has no text, no score and no reason for stopping."""
    data = json.loads(json.dumps(Result(Trace(Task("q"))).to_dict(trace=True)))
    assert (data["answer"], data["score"], data["stop"], data["usage"]["calls"]) == (
        None,
        None,
        "cancelled",
        0,
    )


@pytest.mark.parametrize("n", [1, 2, 500])
async def test_the_summary_stays_short(n):
    """Of several given answers that of the best is shown."""
    task = Task("q", responses=[f"answer {i}" for i in range(n)])
    summary = (await refine(task, False, lambda text: 0.5, max_iterations=0)).summary()
    assert summary.startswith("0.50; stopped: ")


JUDGE, WORDS = PanelGrader("judge"), PanelGrader("words", model_free=True)
NOISY = Outcome(1, StopReason.DONE, "", 0.81, (0.69, 0.92), ((0, 0.35), (1, 0.81)))
LABELLED = replace(NOISY, labels=120)
HEADLINES = {
    "judge": (
        (0.4, 1.0),
        (JUDGE,),
        NOISY,
        "0.35 -> 0.81 (the judge said 1.00; 95% between 0.69 and 0.92); stopped: the judge is satisfied",
    ),
    "labels": (
        (0.4, 1.0),
        (JUDGE,),
        LABELLED,
        (
            "0.35 -> 0.81 (the judge said 1.00; 95% between 0.69 and 0.92 by people's labels (n = 120)); "
            "stopped: the judge is satisfied"
        ),
    ),
    "computed": (
        (0.4, 1.0),
        (WORDS,),
        Outcome(1, StopReason.TARGET, "0.9"),
        "0.40 -> 1.00; stopped: the target is reached",
    ),
    "one answer": (
        (1.0,),
        (WORDS,),
        Outcome(0, StopReason.DONE),
        "1.00; stopped: the grader is satisfied",
    ),
    "condition": (
        (1.0,),
        (replace(WORDS, must=True),),
        Outcome(0, StopReason.DONE),
        "1.00; stopped: the graders are satisfied",
    ),
    "unknown": (
        (None, None),
        (JUDGE,),
        Outcome(1, StopReason.BUDGET, "2 of 2"),
        "unknown; stopped: the budget is used up (2 of 2)",
    ),
    "unknown, and the first is returned": (
        (None, None),
        (JUDGE,),
        Outcome(0, StopReason.DEADLINE),
        "unknown; stopped: the time is up",
    ),
    "better than unknown": (
        (None, 0.5),
        (JUDGE,),
        Outcome(1, StopReason.DEADLINE),
        "unknown -> 0.50; stopped: the time is up",
    ),
    "kept": (
        (0.5, 0.4),
        (WORDS,),
        Outcome(0, StopReason.PATIENCE),
        "0.50 (the first answer is the best of 2); stopped: the last refinements brought no improvement",
    ),
    "cut short": ((0.5,), (WORDS,), None, "0.50; stopped: it was interrupted"),
}


@pytest.mark.parametrize(("scores", "panel", "end", "line"), HEADLINES.values(), ids=HEADLINES)
def test_a_result_begins_in_plain_words(scores, panel, end, line):
    """The first and the best score, what stands behind them, and why the work ended; an unknown
    score is said to be unknown.
    """
    told = result(*scores, seat=panel[0])
    trace = replace(
        told.trace, panel=panel, records=(*told.trace.records[:-1], *([end] if end else []))
    )
    assert headline(Result(trace)) == line
    assert Result(trace).summary().startswith(line)


def test_every_reason_for_stopping_is_told_in_words():
    """None is shown as the value that programs read."""
    for reason in StopReason:
        told = headline(result(0.5, end=Outcome(0, reason), seat=WORDS))
        assert "stopped: " in told and "_" not in told and not told.endswith(f": {reason}")
