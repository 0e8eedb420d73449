"""Several given answers: candidates from the start in `refine`, `best` and batches; rows of the
usual shapes that hold them.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from redraft import BestOfN, Budget, ScriptedModel, Task, refine, refine_sync
from redraft.base.checks import is_blank
from redraft.errors import ConfigError
from redraft.loop.serialize import pack, unpack
from redraft.requirements import parse
from redraft.result import Result
from redraft.runs import BatchRun
from redraft.runs.row_key import content_id
from redraft.tables.columns import TaskColumns, infer_columns
from redraft.validation.labelled import read_cases


def by_length(text):
    return min(1.0, len(text) / 10)


@given(st.lists(st.text(max_size=4), max_size=6))
def test_each_different_answer_is_one_graded_candidate(texts):
    """In their order, with the ids 0, 1, ...; nothing is drafted, and the task survives JSON."""
    task = Task("q", responses=texts)
    assert unpack(Task, json.loads(json.dumps(pack(task)))) == task
    model = ScriptedModel(["a draft"])
    trace = refine_sync(task, model, by_length, max_iterations=0).trace
    expected = [text for text in dict.fromkeys(texts) if not is_blank(text)]
    assert [(c.id, c.text, c.by) for c in trace.candidates if c.by == "given"] == [
        (n, t, "given") for n, t in enumerate(expected)
    ]
    assert len(model.requests) == (not expected)
    assert None not in trace.scores.values()


async def test_the_best_given_answer_is_refined():
    """The refinement is of the best, and counts as the first iteration."""
    model = ScriptedModel(["ten letters"])
    result = await refine(Task("q", responses=["a", "four", "bb"]), model, by_length)
    assert [c.parent for c in result.trace.candidates] == [None, None, None, 1]
    assert (result.value, result.iterations) == ("ten letters", 1)
    assert model.requests[0].messages[1] == {"role": "assistant", "content": "four"}


@pytest.mark.parametrize(
    "settings",
    [{}, {"drafts": 5}, {"plan": BestOfN(4)}, {"budget": Budget(calls=9)}, {"deadline": 60}],
)
async def test_nothing_is_drafted_beside_given_answers(settings):
    """Whatever the number of drafts, given answers take their place; a target that one reaches ends
    the work.
    """
    model = ScriptedModel(["never"])
    result = await refine(Task("q", responses=["a", "ten letters"]), model, by_length, **settings)
    assert (result.value, result.stop, len(model.requests)) == ("ten letters", "target", 0)


async def test_the_noise_aware_plan_grades_all_of_them_first():
    """A judge sees every given answer before the first refinement."""
    verdict = json.dumps(
        {
            "reason": "It is bare.",
            "criteria": {"truth": {"evidence": "", "change": "Say why.", "score": 2}},
            "done": False,
        }
    )
    judge = ScriptedModel([verdict] * 20)
    result = await refine(
        Task("q", responses=["one", "two"]),
        ScriptedModel(["three"]),
        redraft.Judge({"truth": "True."}),
        judge,
        max_iterations=1,
    )
    kinds = [type(record).__name__ for record in result.trace.records[:4]]
    assert kinds == ["Candidate", "Candidate", "Feedback", "Feedback"]
    assert len(result.trace.candidates) == 3


def test_without_a_model_the_best_given_answer_is_repaired():
    result = refine_sync(
        Task("q", responses=["a b c", "a b"], requirements=["words:-2"]), model=False
    )
    assert result.value == "a b"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"response": "a", "responses": ["b"]}, "response and responses exclude each other"),
        ({"responses": "ab"}, "responses must be a list of texts"),
        ({"responses": ["a", 1]}, "responses must be a list of texts"),
        ({"responses": None}, "responses must be a list of texts"),
    ],
)
def test_what_is_no_list_of_answers_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Task("q", **arguments)


def test_given_answers_are_part_of_the_content():
    """Rows that differ in them are different rows."""
    tasks = [
        Task("q"),
        Task("q", "a"),
        Task("q", responses=["a"]),
        Task("q", responses=["a", "b"]),
        Task("q", responses=["b", "a"]),
    ]
    assert len({content_id(task) for task in tasks}) == len(tasks)


# ---- the steps of a result


async def test_steps_show_how_each_answer_came_about():
    """The feedback on the parent, the messages that were sent, the answer, its grades and its
    usage, in order.
    """
    model = ScriptedModel(["one", "three", "ten letters"])
    result = await refine("q", model, by_length)
    first, second, third = result.steps
    assert (first.parent, first.feedback, first.response, first.score) == (None, (), "one", 0.3)
    assert (second.parent, second.feedback, second.response) == (
        first.candidate,
        first.grades,
        "three",
    )
    assert (third.parent, third.score) == (second.candidate, 1.0)
    assert [step.messages for step in result.steps] == [
        request.messages for request in model.requests
    ]
    assert sum((step.usage for step in result.steps), redraft.Usage()) == result.usage


async def test_steps_of_given_and_repaired_answers_have_no_messages():
    result = await refine(Task("q", "a  b", requirements=["words:-1"]), False)
    assert all(step.messages == () for step in result.steps)


async def test_without_the_plan_the_messages_are_unknown():
    """A trace that was read from a file does not say them; they are never guessed."""
    result = await refine("q", ScriptedModel(["one", "ten letters"]), by_length)
    assert [step.messages for step in Result(result.trace).steps] == [None, None]


@given(st.lists(st.integers(1, 12), min_size=4, max_size=4), st.integers(1, 3))
def test_steps_reproduce_every_request(lengths, drafts):
    """For any scores and any number of drafts, the messages are those that the model got."""
    model = ScriptedModel([f"{n}{'x' * length}" for n, length in enumerate([*lengths, 1, 1, 1])])
    result = refine_sync("q", model, by_length, drafts=drafts, max_iterations=3)
    written = [step.messages for step in result.steps]
    assert written == [request.messages for request in model.requests]


# ---- tables

CHAT = [{"role": "user", "content": "Hi"}]
BOTH = ("A", "B")
SHAPES = {
    "responses": ({"prompt": "Hi", "responses": ["A", "B"]}, BOTH),
    "outputs": ({"query": "Hi", "outputs": ["A", "B"]}, BOTH),
    "completions": ({"prompt": "Hi", "completions": ["A", "B"]}, BOTH),
    "candidates as messages": (
        {
            "prompt": "Hi",
            "candidates": [
                {"role": "assistant", "content": "A"},
                {"role": "assistant", "content": "B"},
            ],
        },
        BOTH,
    ),
    "output of texts": ({"input": "Hi", "output": ["A", "B"]}, BOTH),
    "JSON in a cell": ({"prompt": "Hi", "responses": '["A", "B"]'}, BOTH),
    "a data sample": (
        {
            "unique_id": "7",
            "input": [
                {**CHAT[0], "additional_kwargs": {}, "time_created": "2025-07-09", "name": None}
            ],
            "output": [
                {"answer": {"role": "assistant", "content": text, "label": None}, "steps": None}
                for text in BOTH
            ],
            "metadata": {"source": "x"},
        },
        BOTH,
    ),
    "output of one text": ({"prompt": "Hi", "output": ["A"]}, ("A",)),
    "correct answers": ({"question": "Hi", "answers": ["A", "B"]}, ()),
    "one answer of a chat": (
        {"prompt": "Hi", "completion": [{"role": "assistant", "content": "A"}]},
        ("A",),
    ),
}


@pytest.mark.parametrize(("row", "expected"), SHAPES.values(), ids=SHAPES)
def test_lists_of_answers_are_read(row, expected):
    """In each usual shape; a list of correct answers is no list of given ones."""
    task = infer_columns([row], check_requirement=parse).task(row)
    assert (task.given_responses, list(task.messages)) == (expected, CHAT)


def test_rows_with_one_several_and_no_answers_in_one_column():
    rows = [{"prompt": "Hi", "output": value} for value in (["A", "B"], "A", [], None, ["A", "A"])]
    mapping = infer_columns(rows, check_requirement=parse)
    assert [mapping.task(row).given_responses for row in rows] == [BOTH, ("A",), (), (), ("A",)]
    assert mapping.description == 'prompt from "prompt", responses from "output"'


STATED = {
    "both found": (
        [{"prompt": "q", "response": "x", "responses": ["A", "B"]}],
        TaskColumns(),
        "several columns could be the response",
    ),
    "both named": (
        [{"prompt": "q", "a": "x", "b": ["A"]}],
        TaskColumns(response="a", responses="b"),
        "name only one of them",
    ),
    "two lists": (
        [{"prompt": "q", "outputs": ["x"], "responses": ["A", "B"]}],
        TaskColumns(),
        "several columns could be the list",
    ),
}


@pytest.mark.parametrize(("rows", "columns", "message"), STATED.values(), ids=STATED)
def test_two_columns_of_answers_are_an_error(rows, columns, message):
    with pytest.raises(ConfigError, match=message):
        infer_columns(rows, columns, check_requirement=parse)


def test_a_named_column_settles_it():
    row = {"prompt": "q", "response": "x", "responses": ["A", "B"], "answers": ["C", "D"]}
    for columns, expected in [
        ({"response": "response"}, ("x",)),
        ({"responses": "responses"}, BOTH),
        ({"responses": "answers"}, ("C", "D")),
    ]:
        task = infer_columns([row], TaskColumns(**columns), check_requirement=parse).task(row)
        assert task.given_responses == expected


def test_a_batch_refines_the_best_of_each_row(tmp_path):
    """The preview counts the grades of all answers; the output has the best."""
    rows = [
        {
            "id": "1",
            "input": CHAT,
            "output": [{"answer": {"content": text}} for text in ("a", "ten letters")],
        },
        {"id": "2", "input": CHAT, "output": ["a", "four"]},
    ]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    redraft.batch_sync(source, output, ScriptedModel(["ten letters!"]), by_length)
    assert [json.loads(line)["best"] for line in output.read_text().splitlines()] == [
        "ten letters",
        "ten letters!",
    ]
    model = ScriptedModel([])
    redraft.batch_sync(source, output, model, by_length)
    assert not model.requests
    grades = tmp_path / "grades.jsonl"
    redraft.batch_sync(source, grades, False, by_length, mode="grade")
    assert [json.loads(line)["best_score"] for line in grades.read_text().splitlines()] == [
        1.0,
        0.4,
    ]


def sample(id, *answers):
    output = [
        {"answer": {"role": "assistant", "content": text, "label": {"preference": label}}}
        for text, label in answers
    ]
    return {"unique_id": id, "input": CHAT, "output": output}


def test_labelled_data_samples_are_cases(tmp_path):
    """Two answers make a pair, more a ranking; rows without a clear preference are left out with
    the reason.
    """
    path = tmp_path / "pairs.jsonl"
    rows = [
        sample("1", ("A", "chosen"), ("B", "rejected")),
        sample("2", ("A", "rejected"), ("B", "chosen")),
        sample("3", ("A", "chosen")),
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    cases = read_cases(path)
    assert cases.kind == "pair"
    assert {case.id: case.responses[case.ranks.index(0)] for case in cases.cases} == {
        "1": "A",
        "2": "B",
    }
    assert "two answers or more" in cases.skipped_rows[0].message
    path.write_text(json.dumps(sample("1", ("A", "rejected"), ("B", "chosen"), ("C", "rejected"))))
    cases = read_cases(path)
    assert (cases.kind, cases.cases[0].responses, cases.cases[0].ranks) == (
        "ranking",
        ("A", "B", "C"),
        (1, 0, 1),
    )


@pytest.mark.parametrize(
    ("mode", "best"), [("best", "four"), ("grade", "four"), ("refine", "ten letters")]
)
def test_each_mode_of_a_batch_reads_several_answers(tmp_path, mode, best):
    """`best` chooses among them and drafts nothing; `grade` calls no model. The starting point is
    the best of them.
    """
    model = ScriptedModel(["ten letters"])
    report = redraft.batch_sync(
        [{"prompt": "q", "responses": ["four", "a"]}],
        tmp_path / "o.jsonl",
        model,
        by_length,
        mode=mode,
    )
    row = json.loads((tmp_path / "o.jsonl").read_text())
    assert (row["best"], row["initial_score"]) == (best, 0.4)
    assert (report.rows.improved, report.rows.regressed) == (int(mode == "refine"), 0)
    assert len(model.requests) == (mode == "refine")


async def test_the_preview_counts_the_grades_of_all_answers(tmp_path):
    """One judge grades three answers of one row and one of the other; nothing else is certain."""
    rows = [{"prompt": "q", "responses": ["a", "b", "c"]}, {"prompt": "p", "responses": ["a"]}]
    judge = redraft.Judge({"truth": "It is true."})
    run = BatchRun.from_arguments(
        rows, tmp_path / "o.jsonl", ScriptedModel([]), judge, max_iterations=1
    )
    preview = await run.prepare()
    assert preview.calls == (4, 8)
    assert preview.summary[1:] == (
        'prompt from "prompt", responses from "responses"',
        "2 rows have a response to start with, 0 get a first draft",
    )
