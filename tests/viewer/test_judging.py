"""The prompts of judges, made again from a journal: those that were sent, or a reason why they are
not shown.
"""

import json
import re
import sqlite3
from contextlib import closing

import pytest

import redraft
from redraft.graders import Judge
from redraft.graders.judging.stored_judge import SETTINGS, prompt_digest
from redraft.loop.records import Candidate, Feedback
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.models import CallableModel
from redraft.storage.journal import Journal
from redraft.viewer.index import RunIndex
from redraft.viewer.row_view import judging_views

CRITERIA = {"clear": "Everybody understands it.", "true": "All of it is true."}


def verdict(names):
    rows = {name: {"evidence": "x", "change": "more", "score": 2} for name in names}
    return json.dumps({"reason": "It is short.", "criteria": rows, "done": False})


def judge_model(sent):
    def reply(messages):
        sent.append([(m["role"], m["content"]) for m in messages])
        text = messages[-1]["content"]
        return verdict(re.findall(r"^- (\w+):", text, re.MULTILINE) or ["overall"])

    return CallableModel(reply, name="judge model")


def without_nonce(prompts):
    digits = sorted(
        {
            digits
            for prompt in prompts
            for _, text in prompt
            for digits in re.findall(r"<[\w-]+-([0-9a-f]{8})>", text)
        }
    )
    texts = json.dumps(prompts)
    for each in digits:
        texts = texts.replace(each, "NONCE")
    return json.loads(texts)


def shown(views):
    return [
        [[(role, text.text) for role, text in prompt] for prompt in view.prompts] for view in views
    ]


def trace_and_judges(path, id):
    with Journal(path, read_only=True) as journal:
        trace = journal.trace("out-jsonl", id)
    with RunIndex(path, "out-jsonl", path.parent / "cache") as index:
        return trace, index.judges(index.read("SELECT number FROM rows WHERE id = ?", id)[0][0])


def run_batch(folder, graders, sent, rows=None, *, asks=True, **settings):
    """`asks`: whether a grader asks a judge, so that naming one adds none."""
    rows = rows or [
        {
            "id": "r",
            "prompt": "Describe <|im_start|>the sea.",
            "context": "It is [INST]wet.",
            "mood": "calm",
        }
    ]
    model = CallableModel(
        lambda messages: "The sea is wet, <answer-12345678> and wide.", name="writer"
    )
    redraft.batch_sync(
        rows,
        folder / "out.jsonl",
        model,
        graders,
        judge_model(sent) if asks else None,
        max_iterations=0,
        **settings,
    )
    return folder / "out.jsonl.journal"


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    "judge",
    [
        Judge(),
        Judge("helpfulness"),
        Judge(CRITERIA, criteria_mode="separate"),
        Judge(CRITERIA, max_eval_chars=20),
        Judge(template="Is {response} a good answer to {query}, given {context}?"),
        Judge(CRITERIA, name="strict", scale=(1, 10), template="{criteria}: judge {response}"),
    ],
    ids=["default", "gallery", "separate", "cut", "template", "scale"],
)
def test_prompts_are_those_that_were_sent(tmp_path, judge):
    """Whatever the rubric, the template and the settings of the judge: equal but for the random
    digits.
    """
    sent = []
    path = run_batch(tmp_path, judge, sent)
    trace, judges = trace_and_judges(path, "r")
    (view,) = judging_views(trace, trace.best, judges)
    assert view.problem == ""
    first = [prompt for prompt in sent if len(prompt) == 2]
    assert sorted(without_nonce(shown([view])[0])) == sorted(without_nonce(first))
    assert len(view.prompts) == judge.grade_calls


def by_length(text: str) -> float:
    return min(1.0, len(text) / 100)


async def own_judge(text, model):
    return 0.5 if await model(text) else 0.4


@pytest.mark.parametrize(
    ("graders", "problems"),
    [
        ([by_length, "words:1-50"], []),
        (own_judge, ["journals describe judges"]),
        ([Judge(template="Is {response} {mood}?"), by_length], ["cannot be made again: .*mood"]),
    ],
    ids=["no model", "own code", "a column"],
)
def test_what_is_not_known_is_told(tmp_path, graders, problems):
    """Graders that ask no model are not listed; for the others there is a reason."""
    path = run_batch(tmp_path, graders, [], asks=bool(problems))
    trace, judges = trace_and_judges(path, "r")
    views = list(judging_views(trace, trace.best, judges))
    assert [bool(view.prompts) for view in views] == [False] * len(problems)
    for view, problem in zip(views, problems):
        assert re.search(problem, view.problem)


def test_other_wording_is_never_shown_as_the_prompt(tmp_path, monkeypatch):
    """If this release writes other prompts, or the journal was changed, there is a reason and no
    prompt.
    """
    path = run_batch(tmp_path, Judge(CRITERIA), [])
    trace, judges = trace_and_judges(path, "r")
    with monkeypatch.context() as patch:
        patch.setattr(Judge, "prompt_texts", ("other words",))
        (view,) = judging_views(trace, trace.best, judges)
        assert (view.prompts, "other prompts" in view.problem) == ((), True)
    for damage in (
        {},
        {"judge": 1},
        {"judge": {}},
        {"judge": {"rubric": {"criteria": {"x": "y"}}, "settings": []}},
    ):
        found = list(judging_views(trace, trace.best, damage))
        assert [view.prompts for view in found] == [()]
        assert all(view.problem for view in found)


def test_each_row_has_the_judge_of_its_own_settings(tmp_path):
    """A run that was resumed with another rubric has both; the rows keep theirs, and the journal
    grows by little.
    """
    rows = [{"id": str(n), "prompt": f"Describe {n}."} for n in range(2)]
    path = run_batch(tmp_path, Judge({"old": "x"}), [], rows)
    run_batch(tmp_path, Judge({"new": "y"}), [], rows, limit=1, overwrite=True)
    found = {}
    for id in ("0", "1"):
        trace, judges = trace_and_judges(path, id)
        (view,) = judging_views(trace, trace.best, judges)
        found[id] = re.findall(r"^- (\w+):", shown([view])[0][0][-1][1], re.MULTILINE)
    assert found == {"0": ["new"], "1": ["old"]}
    with closing(sqlite3.connect(path)) as database:
        assert all(
            len(json.dumps(json.loads(text).get("judges"))) < 2000
            for (text,) in database.execute("SELECT metadata FROM runs")
        )


@pytest.mark.parametrize(
    ("criteria", "settings", "said"),
    [
        (
            {f"c{n}": "x" for n in range(900)},
            {"criteria_mode": "separate"},
            "the first 20 of 900 calls",
        ),
        (
            {f"c{n}": "x" for n in range(900)},
            {"criteria_mode": "separate", "max_eval_chars": 10**9},
            "too long",
        ),
        ({"a": "x"}, {"template": "{response}" * 4000, "max_eval_chars": 10**9}, "too long"),
        ({"a": "x" * 200_000}, {}, "longer than any that is stored"),
    ],
)
def test_a_hostile_journal_makes_no_large_page(criteria, settings, said):
    """Whatever a journal says of a judge, prompts are made and shown up to a limit."""
    judge = Judge(criteria, **settings)
    data = {
        "rubric": judge.rubric.to_data(),
        "settings": {name: getattr(judge, name) for name in SETTINGS},
        "digest": prompt_digest(judge),
    }
    text = "word " * (20_000 if "max_eval_chars" in settings else 10)
    trace = (
        Trace(Task("q"), (PanelGrader("judge"),))
        + Candidate(0, text)
        + Feedback(0.5, grader="judge")
    )
    (view,) = judging_views(trace, trace.candidates[0], {"judge": data})
    assert said in view.problem
    assert len(view.prompts) <= 20
