"""The tools within this process: what they return, what they refuse, and what they never do."""

import asyncio
import json
import re
from functools import partial

import pytest
from chat_server import verdict, writer_and_judge
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

import redraft
from each_row import each_row
from redraft.errors import ConfigError
from redraft.graders.registry import foreign_grader
from redraft.mcp_server.arguments import LabelledExample, read_arguments, tool_schema
from redraft.mcp_server.tools import TOOLS
from redraft.mcp_server.workbench import CallLimits, Workbench
from redraft.middleware import Budget
from redraft.protocols import Reply

WITHOUT_MODEL = Workbench(models=False)


def client_of(bench):
    """A client of a server in this process."""
    from mcp import Client  # it takes long, and each process that runs tests reads this file

    from redraft.mcp_server.server import make_server

    return Client(make_server(bench))


async def call(tool, arguments, bench=WITHOUT_MODEL):
    async with client_of(bench) as client:
        return await client.call_tool(tool, arguments)


async def error_of(tool, arguments, bench=WITHOUT_MODEL):
    result = await call(tool, arguments, bench)
    assert result.is_error, result
    return result.content[0].text


@pytest.mark.parametrize("tool", TOOLS.values(), ids=lambda tool: tool.name)
def test_schemas_are_valid_and_plain(tool):
    """Clients of many kinds read them: no references, and no `model` unless there is a choice."""
    schema = tool_schema(tool.input, ("one", "two"))
    Draft202012Validator.check_schema(schema)
    Draft202012Validator.check_schema(tool.result.model_json_schema())
    assert "$ref" not in json.dumps(schema)
    assert schema["properties"]["model"]["enum"] == ["one", "two"]
    assert "model" not in tool_schema(tool.input, ("one",))["properties"]
    assert schema["additionalProperties"] is False


def test_descriptions_name_graders_that_exist():
    """The model that calls the tools learns the names from the descriptions."""
    text = json.dumps([tool_schema(tool.input, ()) for tool in TOOLS.values()])
    specs = set(re.findall(r'\\"([a-z_]+(?::[^"\\]+)?)\\"', text)) - {"name"}
    assert len(specs) > 6
    for spec in specs:
        assert foreign_grader(spec)


@each_row(
    ("tool", "arguments", "says"),
    [
        ("refine", {}, "give `prompt` (or `messages`), or a `draft`"),
        ("refine", {"promt": "x"}, "did you mean 'prompt'"),
        ("refine", {"prompt": "x", "messages": [{"role": "user", "content": "y"}]}, "not both"),
        ("refine", {"prompt": 3}, "prompt: Input should be a valid string"),
        (
            "refine",
            {"prompt": "x", "max_iterations": 1000},
            "max_iterations: Input should be less than or equal to 20",
        ),
        ("refine", {"prompt": "x", "target_score": 2}, "target_score"),
        (
            "refine",
            {"draft": "x", "requirements": ["json_schema:/etc/passwd"]},
            "would read a file",
        ),
        ("refine", {"draft": "x", "requirements": ["word:3"]}, "words"),
        ("refine", {"draft": "x", "graders": ["judge:rubric.toml"]}, "no rubric of the gallery"),
        ("refine", {"draft": "x", "graders": ["tests.py:check"]}, "tests.py"),
        ("refine", {"draft": "x", "model": "openai:gpt-4o"}, "is not one that may be used"),
        ("refine", {"draft": "x", "answer_schema": {"$ref": "file:///etc/passwd"}}, "$ref"),
        ("grade", {"response": "x"}, "asks a model"),
        ("grade", {"response": "x", "graders": ["helpfulness"]}, "helpfulness: asks a model"),
        ("grade", {"response": "x", "graders": ["exact"]}, "reference"),
        ("grade", {"response": "x", "graders": ["pairwise"]}, "asks a model"),
        ("compare", {"answers": ["x"]}, "answers"),
        (
            "validate_grader",
            {"grader": "words:1", "examples": [{"response": "a"}] * 2},
            "an example has",
        ),
        (
            "validate_grader",
            {"examples": [{"response": "a", "label": True}] * 2},
            "`grader` or `rubric`",
        ),
        (
            "validate_grader",
            {"grader": "words:1", "examples": [{"response": "a", "label": n} for n in (True, 3)]},
            "one kind",
        ),
    ],
)
async def test_what_is_wrong_is_said(tool, arguments, says):
    """The error names the argument and what is allowed; there is no stack trace."""
    text = await error_of(tool, arguments)
    assert says in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("models", "is_named"), [((), False), (("only",), False), (("one", "two"), True)]
)
@pytest.mark.parametrize("tool", TOOLS)
async def test_an_unknown_argument_is_answered_with_those_of_the_schema(tool, models, is_named):
    """`model` is named where the schema has it: with a choice of models."""
    bench = Workbench(models or False, connect=lambda name: redraft.ScriptedModel([]))
    text = await error_of(tool, {"modell": "x"}, bench)
    assert "unknown argument 'modell'" in text and bool(re.search(r"\bmodel\b", text)) == is_named


EXAMPLES = [{"response": "a", "label": True}, {"response": "a, b", "label": False}]
PAIRS = [
    {
        "prompt": "q",
        "response_a": "a",
        "response_b": "a, b",
        "better": "a",
        "reference": "r",
        "context": "c",
    }
] * 2
TURN = {"role": "user", "content": '{"a": 1}'}
GRADED_BY = {
    "requirements": ["no_commas"],
    "graders": ["exact"],
    "rubric": {"clear": "say"},
    "reference": "[1]",
    "context": "{}",
}
# the arguments of each tool with every field, all texts of which are JSON where they may be any
# text
COMPLETE = [
    (
        "refine",
        {
            "draft": '["a"]',
            "target_score": 0.5,
            "max_iterations": 2,
            "answer_schema": {"type": "object"},
            **GRADED_BY,
        },
    ),
    ("refine", {"prompt": "true", "model": "1", **GRADED_BY}),
    ("refine", {"messages": [TURN]}),
    ("grade", {"response": "3", "messages": [TURN], "model": "m", **GRADED_BY}),
    ("grade", {"response": "null", "prompt": '"q"'}),
    (
        "compare",
        {"answers": ["[1]", "2"], "prompt": "null", "messages": [], "model": "m", **GRADED_BY},
    ),
    ("validate_grader", {"grader": "null", "examples": EXAMPLES, "threshold": 0.25, "model": "m"}),
    ("validate_grader", {"rubric": {"a": "[]"}, "examples": PAIRS}),
    (
        "validate_grader",
        {
            "grader": "g",
            "examples": [{"response": "1", "label": 0.5}, {"response": "2", "label": 3}],
        },
    ),
]


def test_the_table_has_every_field():
    """Also those of messages and examples."""
    for name, tool in TOOLS.items():
        assert {field for each, arguments in COMPLETE if each == name for field in arguments} == {
            *tool.input.model_fields
        }
    assert {field for example in [*EXAMPLES, *PAIRS] for field in example} == {
        *LabelledExample.model_fields
    }


def loosened(value, data):
    """A value as clients may send it: lists, objects, numbers and booleans as JSON in a text, and
    nulls for what was left out.
    """
    if isinstance(value, dict):
        value = {name: loosened(each, data) for name, each in value.items()}
    elif isinstance(value, list):
        value = [loosened(each, data) for each in value]
    return json.dumps(value) if not isinstance(value, str) and data.draw(st.booleans()) else value


@given(case=st.sampled_from(COMPLETE), data=st.data())
def test_values_in_texts_and_nulls_are_read(case, data):
    """What is no text may come as JSON in a text, at any depth, and what is optional as null. Texts
    are left as they are.
    """
    kind, arguments = TOOLS[case[0]].input, case[1]
    sent = {name: loosened(value, data) for name, value in arguments.items()}
    optional = [
        name
        for name, field in kind.model_fields.items()
        if name not in arguments and not field.is_required()
    ]
    if data.draw(st.booleans()):
        sent |= dict.fromkeys(optional)
    assert read_arguments(kind, sent) == kind.model_validate(arguments)


@pytest.mark.slow
@each_row(
    ("tool", "arguments", "says"),
    [
        (
            "refine",
            {"draft": "a", "target_score": "abc"},
            "target_score: Input should be a valid number, got 'abc'",
        ),
        (
            "refine",
            {"draft": "a", "target_score": '"0.5"'},
            "target_score: Input should be a valid number, got '\"0.5\"'",
        ),
        (
            "refine",
            {"draft": "a", "target_score": "2"},
            "target_score: Input should be less than or equal to 1, got 2",
        ),
        ("refine", {"draft": "a", "target_score": "NaN"}, "target_score: Input should be"),
        (
            "refine",
            {"draft": "a", "target_score": "true"},
            "target_score: Input should be a valid number, got True",
        ),
        (
            "refine",
            {"draft": "a", "max_iterations": "2.5"},
            "max_iterations: Input should be a valid integer, got 2.5",
        ),
        (
            "refine",
            {"draft": "a", "max_iterations": ""},
            "max_iterations: Input should be a valid integer, got ''",
        ),
        (
            "refine",
            {"draft": "a", "requirements": "no_commas"},
            "requirements: Input should be a valid list, got 'no_commas'",
        ),
        (
            "refine",
            {"draft": "a", "requirements": '["no_commas"'},
            "requirements: Input should be a valid list",
        ),
        (
            "refine",
            {"draft": "a", "requirements": '{"a": 1}'},
            "requirements: Input should be a valid list, got {'a': 1}",
        ),
        (
            "refine",
            {"draft": "a", "requirements": "[1]"},
            "requirements.0: Input should be a valid string, got 1",
        ),
        (
            "refine",
            {"draft": "a", "requirements": [None]},
            "requirements.0: Input should be a valid string, got None",
        ),
        (
            "refine",
            {"draft": "a", "rubric": '{"a": "x", "a": "y"}'},
            "rubric: Input should be a valid dictionary",
        ),
        (
            "refine",
            {"draft": "a", "rubric": {"a": None}},
            "rubric.a: Input should be a valid string, got None",
        ),
        (
            "refine",
            {"draft": "a", "answer_schema": "[" * 300},
            "answer_schema: Input should be a valid dictionary",
        ),
        (
            "refine",
            {"draft": "a", "answer_schema": f'{{"enum": {[0] * 100_001}}}'},
            "it holds more than 100,000 values",
        ),
        ("refine", {"draft": "a", "rubrik": None}, "did you mean 'rubric'"),
        (
            "refine",
            {"draft": "a", "messages": '[{"role": "user", "content": "b", "name": null}]'},
            "messages.0.name: Extra inputs",
        ),
        ("refine", {"draft": ["a"]}, "draft: Input should be a valid string, got ['a']"),
        ("refine", {"draft": 5}, "draft: Input should be a valid string, got 5"),
        ("grade", {"response": None}, "response: Input should be a valid string, got None"),
        ("compare", {"answers": None}, "answers: Input should be a valid list, got None"),
        (
            "validate_grader",
            {"grader": "words:1", "examples": [{"response": "a", "label": "True"}] * 2},
            "examples.0.label",
        ),
    ],
)
async def test_what_means_nothing_is_still_refused(tool, arguments, says):
    """The error names the field and the value."""
    text = await error_of(tool, arguments)
    assert says in text and len(text) < 1500


async def test_a_client_that_sends_texts_gets_the_same_result():
    """With the client of the protocol's library."""
    plain = {
        "draft": '["red, green"]',
        "requirements": ["no_commas"],
        "max_iterations": 0,
        "answer_schema": {"type": "array"},
    }
    sent = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in plain.items()
    }
    nothing = dict.fromkeys(
        ["graders", "rubric", "messages", "prompt", "reference", "context", "target_score", "model"]
    )
    first, second = [
        (await call("refine", each)).structured_content for each in (plain, {**sent, **nothing})
    ]
    assert first["answer"] == second["answer"] and first["broken"] == second["broken"] == [
        "no_commas"
    ]


@each_row(
    ("tool", "arguments", "report"),
    [
        ("refine", {"draft": "a, b"}, redraft.refine_sync),
        ("grade", {"prompt": "q", "response": "a, b"}, redraft.grade_sync),
    ],
)
async def test_results_have_the_form_of_all_results(tool, arguments, report):
    """What a result of Python or of the command line has by a name is the same by this name."""
    task = redraft.Task(
        "Improve this text." if tool == "refine" else "q",
        "a, b",
        requirements=["no_commas", "contains:c"],
    )
    whole = (await asyncio.to_thread(report, task, judge=False)).to_dict()
    whole = json.loads(json.dumps(whole))
    found = (
        await call(tool, {**arguments, "requirements": ["no_commas", "contains:c"]})
    ).structured_content
    assert found["schema"] == 2
    assert found["broken"] == ["no_commas", "contains:c"][tool == "refine" :]
    shared = found.keys() - {"usage", "feedback", "summary", "changes", "trace_id"}
    assert {name: whole.get(name) for name in shared} == {name: found[name] for name in shared}
    for mine, theirs in [
        (found["usage"], whole["usage"]),
        *zip(found.get("feedback", ()), whole.get("feedback", ()), strict=True),
    ]:
        assert {name: theirs[name] for name in mine} == mine


async def test_an_unknown_tool_is_an_error_of_the_protocol():
    """It names those that there are."""
    from mcp import MCPError

    async with client_of(WITHOUT_MODEL) as client:
        with pytest.raises(MCPError, match="there is no tool 'rewrite'; there are: refine, grade"):
            await client.call_tool("rewrite", {})


async def test_too_many_values_are_refused():
    """A schema of any size would be checked for long."""
    text = await error_of("refine", {"prompt": "x", "answer_schema": {"enum": [0] * 100_001}})
    assert "it holds more than 100,000 values" in text


async def test_answers_are_compared_in_both_orders(serve):
    """The model that compares sees each pair twice; the answer that it prefers wherever it stands
    is best.
    """

    def answer(messages, n):
        text = "".join(message["content"] for message in messages)
        first = text.index("GOOD") < text.index("BAD")
        return json.dumps(
            {
                "reason": "It is so.",
                "change": [],
                "winner": "first" if first else "second",
                "done": True,
            }
        )

    server = serve(answer)
    bench = Workbench([server.model])
    result = await call("compare", {"prompt": "Say it", "answers": ["BAD", "GOOD"]}, bench)
    await bench.close()
    found = result.structured_content
    assert not result.is_error, result.content[0].text
    assert found["best"] == 2
    assert [row["number"] for row in found["ranking"]] == [2, 1]
    assert found["usage"]["calls"] == server.calls == 2


@pytest.mark.slow
async def test_a_grader_is_validated_by_labels():
    """Accuracy with its interval, and the examples that contradict the labels, in both kinds of
    labels.
    """
    examples = [
        {"response": f"a {n}" if n % 2 else f"a, {n}", "label": bool(n % 2)} for n in range(1, 21)
    ]
    examples[4] = {"response": "a, b", "label": True}
    found = (
        await call("validate_grader", {"grader": "no_commas", "examples": examples})
    ).structured_content
    assert found["better_than_chance"]
    assert found["disagreements"] == [5]
    assert {"accuracy", "Cohen's kappa"} <= {measure["name"] for measure in found["measures"]}
    pairs = [
        {"response_a": "a", "response_b": f"a, {n}", "better": "a" if n < 13 else "b"}
        for n in range(1, 14)
    ]
    found = (
        await call("validate_grader", {"grader": "no_commas", "examples": pairs})
    ).structured_content
    assert found["judged"] == 13
    assert found["disagreements"] == [13]


async def test_nothing_is_stored_unless_asked_for(tmp_path, monkeypatch):
    """Neither cards nor verdicts nor traces; with a folder, the trace has the name in the
    result.
    """
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path / "home"))
    draft = {"draft": "a, b", "requirements": ["no_commas"]}
    examples = [{"response": "a", "label": True}, {"response": "a, b", "label": False}]
    assert (await call("refine", draft)).structured_content["trace_id"] is None
    await call("validate_grader", {"grader": "no_commas", "examples": examples * 6})
    assert not (tmp_path / "home").exists() or not [*(tmp_path / "home").rglob("*.*")]
    result = await call("refine", draft, Workbench(models=False, traces=tmp_path / "traces"))
    assert (
        tmp_path / "traces" / f"{result.structured_content['trace_id']}.jsonl"
    ).read_text().count("\n") > 2


async def test_an_operator_may_allow_more_graders():
    """Such a grader is named as the operator wrote it; nothing else of that kind is allowed."""
    bench = Workbench(models=False, graders={"polite.py:polite": lambda text: "please" in text})
    found = (
        await call("grade", {"response": "please", "graders": ["polite.py:polite"]}, bench)
    ).structured_content
    assert found["score"] == 1
    assert "'other.py" in await error_of(
        "grade", {"response": "x", "graders": ["other.py:f"]}, bench
    )


async def test_the_budget_of_a_call_is_kept(serve):
    """The best answer so far comes back when it is used up; if there is none, an error says so."""
    server = serve(writer_and_judge(["One.", "Two.", "Three.", "Four."], [1, 1, 1, 1]))
    bench = Workbench([server.model], limits=CallLimits({"budget": Budget(calls=3)}))
    found = (await call("refine", {"prompt": "Say it"}, bench)).structured_content
    assert found["stop"] == "budget"
    assert found["usage"]["calls"] == server.calls <= 3
    none = Workbench([server.model], limits=CallLimits({"budget": Budget(calls=0)}))
    assert "budget" in await error_of("refine", {"prompt": "Say it"}, none)
    await bench.close()
    await none.close()


async def test_errors_of_the_model_are_said_without_its_key(serve, monkeypatch):
    """The message of the endpoint is in the error; a key that it echoes is not."""
    monkeypatch.setenv("REDRAFT_API_KEY", "sk-very-secret-1234567890")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-1234567890")
    server = serve(lambda messages, n: (401, "bad key sk-very-secret-1234567890"))
    bench = Workbench([server.model])
    text = await error_of("refine", {"prompt": "Say it"}, bench)
    await bench.close()
    assert "bad key" in text
    assert "very-secret" not in text


async def test_a_fault_is_logged_and_not_shown(caplog):
    """An exception that nobody expected is a short error for the client."""

    def fail(text):
        raise RuntimeError("secret detail")

    class BrokenBench(Workbench):
        def grader(self, spec):
            raise RuntimeError("secret detail")

    text = await error_of(
        "grade", {"response": "x", "graders": ["judge"]}, BrokenBench(models=False)
    )
    assert "secret detail" not in text
    assert "secret detail" in caplog.text


async def test_a_reply_that_utf8_cannot_hold_arrives(serve):
    """A lone surrogate in an answer is replaced, in the text and in the structure."""

    class Broken:
        name = identity = "broken"

        async def complete(self, request):
            return Reply(verdict(5) if request.is_judgement else "bad \ud800 half")

    bench = Workbench(models=False)
    bench._models[""], bench._searches = Broken(), True
    result = await call("refine", {"prompt": "Say it"}, bench)
    assert result.content[0].text == result.structured_content["answer"] == "bad \ufffd half"


@pytest.mark.slow
async def test_calls_wait_for_a_place():
    """No more calls work at a time than the limit; beyond the queue they are refused."""
    bench = Workbench(models=False, limits=CallLimits(max_calls=1))
    grade = partial(call, "grade", {"response": "one", "requirements": ["words:1"]}, bench)
    async with bench.admission.slot():
        waiting = [asyncio.ensure_future(grade()) for _ in range(64)]
        while bench.admission.waiting < 64:
            await asyncio.sleep(0)
        refused = await grade()
        assert refused.is_error
        assert "64 requests are waiting; try again in" in refused.content[0].text
        assert not any(task.done() for task in waiting)
    assert not any(result.is_error for result in await asyncio.gather(*waiting))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=10,
)
NAMES = sorted({name for tool in TOOLS.values() for name in tool.input.model_fields})


@given(
    tool=st.sampled_from([*TOOLS.values()]),
    arguments=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6),
)
def test_any_input_is_read_or_refused(tool, arguments):
    """Arguments of any form are either valid or a validation error."""
    try:
        assert tool.input.model_validate(arguments)
    except ValidationError as error:
        assert error.errors()


def test_a_wrong_name_is_found_at_the_start():
    """The names of models are connected when the server starts, so that a mistake is no error of a
    call.
    """
    with pytest.raises(ConfigError, match="nonsense"):
        Workbench(["nonsense:model"])


SKILL = re.compile(r"A call to `(\w+)`:\n\n```json\n(.*?)\n```", re.DOTALL)


def skill_text():
    from redraft.cli.commands.mcp import SKILL as PATH

    return PATH.read_text()


def test_the_skill_shows_a_call_of_each_tool():
    """Each is a call that the tool accepts."""
    calls = dict(SKILL.findall(skill_text()))
    assert set(calls) == set(TOOLS)
    for name, text in calls.items():
        read_arguments(TOOLS[name].input, json.loads(text))


def test_the_skill_has_the_header_of_skills():
    """A name, and a description that says when to use it, of a length that agents read."""
    yaml = pytest.importorskip("yaml", reason="no pyyaml")
    _, header, body = skill_text().split("---\n", 2)
    fields = yaml.safe_load(header)
    assert fields["name"] == "redraft" and set(fields) == {"name", "description"}
    assert 100 < len(fields["description"]) <= 1024
    assert len(body.splitlines()) < 500


def test_the_skill_is_printed_and_its_commands_run(tmp_path):
    from in_process import run_in_process

    printed = run_in_process(["redraft", "mcp", "--skill"][1:], cwd=tmp_path)
    assert printed.stdout.decode() == skill_text()
    (tmp_path / "note.md").write_text("We fixed bugs, and more.")
    [block] = re.findall(r"```sh\n(.*?)```", skill_text(), re.DOTALL)
    for line in block.splitlines():
        done = run_in_process(line.split()[1:], cwd=tmp_path)
        assert done.returncode in (0, 3), done.err
    assert done.stdout.decode() == "We fixed bugs and more.\n"
