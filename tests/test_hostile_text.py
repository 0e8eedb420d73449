"""No text stops a run: a text that cannot be graded in time has no score, and the event loop keeps
running.
"""

import asyncio
import contextlib
import json
import math
import random
import time
from functools import partial

import pytest

import redraft
from redraft.errors import BadResponseError, RedraftError
from redraft.graders import as_grader
from redraft.graders.judging.checklist import Checklist
from redraft.graders.judging.ranking import Ranker
from redraft.loop.records import Candidate
from redraft.protocols import Reply

CHAIN = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(40)} | {
    "a40": {"type": "object"}
}
TREE = {"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}


def schema(**told):
    return f"json_schema:{json.dumps(told)}"


def trace_of_texts(count):
    return json.dumps([{"a": i} for i in range(count)])


@pytest.fixture(autouse=True)
def low_limit(monkeypatch):
    """Set a computing limit of a quarter of a second instead of five seconds: each of these texts
    uses all of it.
    """
    monkeypatch.setattr("redraft.workers.pool.CPU_SECONDS", 0.25)
    monkeypatch.setattr("redraft.workers.pool.WALL_PER_CPU_SECOND", 28.0)


WORDS = "the quick brown fox jumps over the lazy dog "
KNOWN = {
    "newlines": (["sentences:3"], "\n" * 200_000 + "x", None),
    "carriage returns": (
        ["no_duplicate_sentences", "sentences:3"],
        "a" + "\r" * 200_000 + "b",
        None,
    ),
    "boxed answers as JSON": (["json"], "x " + r"\boxed{1}" * 1100, None),
    "braces as JSON": (["json", "words:2-"], "{" * 90_000, None),
    "unique items": ([schema(uniqueItems=True)], trace_of_texts(6000), None),
    "unique items under all of it": (
        [schema(allOf=[{"uniqueItems": True}] * 2)],
        trace_of_texts(6000),
        None,
    ),
    "a chain of references": ([schema(**{"$defs": CHAIN, "$ref": "#/$defs/a0"})], "{}", None),
    "a tree of references": ([schema(**TREE)], '{"a":' * 60 + "1" + "}" * 60, None),
    "a slow pattern for every string": (
        [schema(items={"pattern": "(?:a+a+)+y"})],
        json.dumps(["a" * 4000 + "b"] * 40),
        None,
    ),
    "many alternatives": (
        [schema(items={"anyOf": [{"const": i} for i in range(500)]})],
        json.dumps([-1] * 30_000),
        None,
    ),
    "combining marks": (["exact"], "a" + "\u0316\u0301" * 60_000, "a"),
    "combining marks in both": (
        ["exact"],
        "a" + "\u0316\u0301" * 60_000,
        "a" + "\u0301\u0316" * 60_000,
    ),
    "likeness of characters": (["fuzzy"], "ab" * 500_000, "ba" * 500_000),
    "subsequence of words": (["rouge"], "a b " * 250_000, "b a " * 250_000),
    "BLEU": (["bleu"], WORDS * 24_000, WORDS * 24_000),
    "chrF": (["chrf"], WORDS * 24_000, WORDS * 24_000),
    "numbers": (["numeric"], "1,1 " * 250_000, "42"),
    "citations of many labels": (
        ["citations"],
        " ".join(f"[{i}] w{i}" for i in range(60_000)),
        None,
    ),
    "places to split": (["paragraphs:45"], "One two. Three four.\n\n" * 20_000, None),
    "changed lines": (["no_commas"], "a,\n" * 200_000, None),
}


async def longest_hold(work, clock):
    """The most CPU time between two turns of the event loop during the work, without other
    programs.
    """
    most, latest, done = 0.0, clock(), False

    async def tick():
        nonlocal most, latest
        while not done:
            await asyncio.sleep(0.005)
            most, latest = max(most, clock() - latest), clock()

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.02)
    try:
        await work
    finally:
        done = True
        await ticking
    return most


async def least_hold(start, bound, clock):
    """The least `longest_hold` of up to five times that the work is done, until one is below the
    bound.
    """
    for _ in range(5):
        if (hold := await longest_hold(start(), clock)) < bound:
            break
    return hold


VERDICT = {
    name: {"evidence": "", "change": "more", "score": 3}
    for name in ("instructions", "correctness", "completeness", "clarity")
}
LINES = "\n" * 2**20
MENTIONED = "It is a solution, or [1] it is not.\n" * 2**15
SHOWN = {
    "an answer that says nothing": ("Say it.", LINES, None),
    "an answer of stops": ("Say it.", "." * 2**20, None),
    "an opener, and a long task": (MENTIONED, "Solution:", None),
    "an opener, and a long reference": ("Say it.", "Solution:", MENTIONED),
    "a long answer": ("Say it.", MENTIONED, None),
    "long turns": (
        [{"role": role, "content": MENTIONED} for role in ("user", "assistant") * 2 + ("user",)],
        MENTIONED,
        None,
    ),
}


@pytest.mark.parametrize(
    "grader",
    [redraft.Judge(), Checklist(["Is it so?"]), Ranker(), "answered"],
    ids=["judge", "checklist", "ranker", "answered"],
)
@pytest.mark.parametrize(("prompt", "answer", "reference"), SHOWN.values(), ids=SHOWN)
@pytest.mark.slow(but_each=4)
async def test_preparing_a_judges_prompt_does_not_block_the_event_loop(
    grader, prompt, answer, reference
):
    """A megabyte of a task or an answer is searched, cut and enclosed."""
    task, shown = (
        redraft.Task(prompt, reference=reference),
        [Candidate(0, answer), Candidate(1, answer)],
    )

    class JudgeModel:
        repeat = 0

        async def complete(self, request):
            return Reply(
                json.dumps(
                    {"reason": "It is so.", "criteria": VERDICT, "done": False, "answers": []}
                )
            )

    async def grade_text(candidates):
        with contextlib.suppress(BadResponseError):
            if isinstance(grader, Ranker):
                return await grader.compare(task, candidates, JudgeModel())
            return await as_grader(grader).grade(task, candidates[0], JudgeModel())

    await grade_text(
        [Candidate(0, "Solution:"), Candidate(1, "It.")]
    )  # imports what is imported lazily
    assert await least_hold(partial(grade_text, shown), 0.05, time.thread_time) < 0.05


@pytest.mark.parametrize("answer", ["code:python", {"type": "object"}], ids=["code", "JSON"])
async def test_reading_the_form_of_an_answer_does_not_block_the_event_loop(answer):
    """Many code blocks, each of which might end at any of the fences after it."""
    text = ("```python\nx = '''\n" + "a = 1\n" * 1000 + "```\n") * 50
    settings = dict(graders=["words:1-"], answer=answer, max_iterations=0)
    with contextlib.suppress(RedraftError):
        await redraft.refine(
            "Write it.", redraft.ScriptedModel(["x = 1"]), **settings
        )  # imports what is imported lazily

    async def write():
        with contextlib.suppress(RedraftError):
            await redraft.refine("Write it.", redraft.ScriptedModel([text]), **settings)

    assert await least_hold(write, 0.1, time.thread_time) < 0.1


@pytest.mark.parametrize(("graders", "text", "reference"), KNOWN.values(), ids=KNOWN)
@pytest.mark.slow(but_each=21)
async def test_a_hostile_text_has_a_grade_or_a_limit_error_without_blocking(
    graders, text, reference
):
    """The run ends with a grade or names the limit; slow computations are not in this process."""
    task = redraft.Task(
        "Say it.", text, reference=reference, context=text if graders == ["citations"] else None
    )
    await redraft.refine(
        redraft.Task("Say it.", "It.", reference="It."), model=False, graders=["words:1-"]
    )  # imports what is imported lazily

    async def grade_text():
        result = await redraft.refine(task, model=False, graders=graders)
        if result.score is None:
            note = result.stop_note
            assert "could not be" in note
            assert (
                f"({len(text) + len(task.reference or '') + len(task.context or ''):,} characters)"
                in note
            )

    begun = time.process_time()
    assert await longest_hold(grade_text(), time.process_time) < 1  # the bench measures it
    assert time.process_time() - begun < 4


@pytest.mark.slow
async def test_the_row_of_a_hostile_text_fails_alone(tmp_path):
    """The row has the reason, and the other rows are graded."""
    rows = [
        {"prompt": "Say it.", "response": text}
        for text in ('{"b": 1}', '{"a":' * 60 + "1" + "}" * 60, '{"b": 2}')
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = await redraft.batch(
        tmp_path / "rows.jsonl",
        output=tmp_path / "out.jsonl",
        model=False,
        graders=[schema(**TREE)],
    )
    assert (report.rows.done, report.rows.failed, report.rows.errors) == (
        2,
        1,
        {"ComputeLimitError": 1},
    )
    failed = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[1])
    assert failed["best_score"] is None
    assert "could not be checked within 0.25 s" in failed["error"]


async def test_a_deadline_ends_a_computation(monkeypatch):
    """The best so far, or the deadline's error, comes at the deadline and not at the computing
    limit.
    """
    monkeypatch.setattr("redraft.workers.pool.CPU_SECONDS", 300.0)
    task = redraft.Task("Say it.", '{"a":' * 60 + "1" + "}" * 60)
    begun = time.monotonic()
    result = await redraft.refine(task, model=False, graders=[schema(**TREE)], deadline=0.3)
    assert (result.score, str(result.stop)) == (None, "deadline")
    assert time.monotonic() - begun < 60


@pytest.mark.slow
async def test_a_users_requirements_run_in_this_process():
    """They are the user's code, and must accept the editor's repairs of a long text."""

    class UserRequirement:
        spec, demand = "mine", "says the end"

        def check(self, text):
            return redraft.protocols.Check(text.endswith("the end"), "it was looked at")

        def repairs(self, text):
            return ()

    text = "It is so, and so. " * 3000 + "the end"
    result = await redraft.refine(
        redraft.Task("Say it.", text), model=False, graders=["no_commas", UserRequirement()]
    )
    assert result.value == text.replace(",", "")
    text = "the end. " * 3000 + "the end"
    result = await redraft.refine(
        redraft.Task("Say it.", text), model=False, graders=["ends_with:Bye", UserRequirement()]
    )
    assert result.value == text


@pytest.fixture(scope="module")
def texts_drawn():
    from hostile import ATOMS, SHAPES

    draw = random.Random(9)
    return lambda: (draw.choice(list(ATOMS)), draw.choice(list(SHAPES)))


@pytest.mark.slow
def test_cpu_time_is_linear_in_the_text_or_limited(texts_drawn):
    """In a sample of the benchmark four times the text takes at most about four times the CPU time,
    or there is no score.
    """
    from hostile import cpu_seconds, operations
    from redraft.workers.pool import run_sync

    def seconds(operation, text, size):
        try:
            return run_sync(
                cpu_seconds,
                operation.kind,
                operation.spec,
                *text,
                size,
                failure_text="it",
                text_length=size,
            )
        except RedraftError:
            return math.inf

    def grows_faster(operation, text):
        large = seconds(operation, text, 2**17)
        return 0.1 < large < math.inf and large > 4**1.6 * seconds(operation, text, 2**15)

    for operation in operations():
        text = texts_drawn()
        assert not all(grows_faster(operation, text) for _ in range(5)), (str(operation), text)
