"""Prompts of the user's own: templates and functions, in Python, on the command line and in
batches.
"""

import asyncio
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from in_process import run_in_process
from redraft import (
    BestOfN,
    Feedback,
    ScriptedModel,
    SelfRefine,
    Task,
    refine,
    refine_sync,
)
from redraft.base.templates import fill_template, parse_template
from redraft.errors import ConfigError
from redraft.loop.trace import Trace
from redraft.plans.prompts import FIELDS, Prompts, prompt_fields
from redraft.runs import BatchRun
from redraft.runs.row_key import settings_parts
from redraft.session.options import PROMPT_KEYS, Options
from sessions import make_session

SYSTEM = {"role": "system", "content": "Be kind."}
CHAT = [
    SYSTEM,
    {"role": "user", "content": "Hi."},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Why?"},
]


def by_length(text):
    """Score 1 for ten characters, with advice below that."""
    score = min(1.0, len(text) / 10)
    return Feedback(
        score, reason=f"{len(text)} characters", actions=() if score == 1 else ["Write more."]
    )


def sent(model, n):
    return model.requests[n].messages


FILLED = {
    "{prompt}|{query}|{task}": "Why?|Why?|Why?",
    "{question}|{instruction}|{document}": "Why?|Why?|The sky.",
    "{score}": "0.30",
    "{feedback}": "- by_length: Write more.",
    "{reason}": "3 characters; 1 word",
    "{tried}": "(none)",
    "{system}": "Be kind.",
    "{history}": "user: Hi.\n\nassistant: Hello.",
    "{context}": "The sky.",
    "{colour} {n}": "blue [1, 2]",
    "{demands}": "- 1 to 9 words",
    "{{score}} {a: 1} ${HOME} {}": "{score} {a: 1} ${HOME} {}",
}


@pytest.mark.parametrize("template", FILLED)
async def test_each_field_of_a_template_holds_what_its_name_says(template):
    """The filled template takes the place of the last user message; what came before it stays."""
    model = ScriptedModel(["one", "two four sixteen"])
    task = Task(
        CHAT, context="The sky.", reference="SECRET", metadata={"colour": "blue", "n": [1, 2]}
    )
    graders = [by_length, redraft.must("words:1-9")]
    await refine(
        task, model, graders, refine_prompt=f"{{response}}|{template}|{{demands}}", editor=False
    )
    *before, last = sent(model, 1)
    assert before == CHAT[:-1]
    assert last == {"role": "user", "content": f"one|{FILLED[template]}|- 1 to 9 words"}


async def test_a_template_without_demands_has_them_at_its_end():
    """A hard constraint is never kept from the writer, in drafts and in refinements."""
    model = ScriptedModel(["one", "two four sixteen"])
    graders = [by_length, redraft.must("words:1-9")]
    await refine(
        "Why?",
        model,
        graders,
        draft_prompt="Q: {prompt}",
        refine_prompt="Again: {response}",
        editor=False,
    )
    assert [m["content"] for n in (0, 1) for m in sent(model, n)] == [
        "Q: Why?\n\nThe answer must meet this:\n- 1 to 9 words",
        "Again: one\n\nThe answer must meet this:\n- 1 to 9 words",
    ]


async def test_an_own_draft_prompt_begins_the_default_refinement():
    """The refinement continues the conversation that the draft began, so that a provider's prefix
    cache hits.
    """
    model = ScriptedModel(["one", "two four sixteen"])
    await refine("Why?", model, by_length, draft_prompt="Q: {prompt}")
    assert sent(model, 1)[0] == sent(model, 0)[0] == {"role": "user", "content": "Q: Why?"}
    assert sent(model, 1)[1] == {"role": "assistant", "content": "one"}


async def test_images_stay_and_messages_after_the_request_come_first():
    """A filled template replaces texts only; after a tool's result it is a message of its own."""
    image = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    prompts = Prompts(draft="Q: {prompt}")
    trace = Trace(Task([{"role": "user", "content": [{"type": "text", "text": "Why?"}, image]}]))
    assert prompts.draft_messages(trace)[-1]["content"] == [
        {"type": "text", "text": "Q: Why?"},
        image,
    ]
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    chat = [
        CHAT[1],
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    messages = prompts.draft_messages(Trace(Task(chat)))
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "user"]
    assert messages[-1]["content"] == "Q: Hi."


async def test_a_function_gets_the_trace_and_the_parent():
    """It may return all messages, or a text, which is used like a filled template."""
    seen = []

    def own(trace, parent):
        seen.append((len(trace.records), parent.text, prompt_fields(trace, parent)["score"]))
        return [SYSTEM, {"role": "user", "content": f"Better: {parent.text}"}]

    model = ScriptedModel(["one", "two", "three", "one two four"])
    result = await refine(
        "Why?",
        model,
        by_length,
        refine_prompt=own,
        draft_prompt=lambda trace: trace.task.prompt.upper(),
    )
    assert sent(model, 0) == ({"role": "user", "content": "WHY?"},)
    assert sent(model, 1) == (SYSTEM, {"role": "user", "content": "Better: one"})
    assert seen[0] == (2, "one", "0.30")
    assert (result.stop, result.value) == ("target", "one two four")


SETTINGS = {
    "target": ({"target_score": 0.5}, "target"),
    "patience": ({"patience": 1, "max_iterations": 9}, "patience"),
    "iterations": ({"max_iterations": 1, "patience": 5}, "max_iterations"),
    "budget": ({"budget": redraft.Budget(calls=2), "patience": 5}, "budget"),
}


@pytest.mark.parametrize(("settings", "stop"), SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(
    "prompt", [None, "{response} {feedback}", lambda trace, parent: f"Better than {parent.text}"]
)
async def test_stop_rules_hold_with_any_prompt(settings, stop, prompt):
    """The prompt determines what the model is told, and nothing else."""
    replies = ["four five" if stop == "target" else "one"] + ["two"] * 5
    result = await refine(
        "Why?", ScriptedModel(replies), by_length, refine_prompt=prompt, **settings
    )
    assert result.stop == stop


async def test_the_noise_aware_plan_uses_them_too():
    """Estimates decide when to refine; the template what the refinement says."""
    verdict = json.dumps(
        {
            "reason": "It is bare.",
            "criteria": {"truth": {"evidence": "", "change": "Say why.", "score": 2}},
            "done": False,
        }
    )
    model = ScriptedModel(["one"] * 20)
    judge = ScriptedModel([verdict] * 20)
    result = await refine(
        "Why?",
        model,
        redraft.Judge({"truth": "It is true."}),
        judge,
        refine_prompt="<{response}> {feedback}",
    )
    assert result.score_interval
    assert sent(model, 1)[-1]["content"] == "<one> - truth: Say why."
    assert [step.messages for step in result.steps] == [
        request.messages for request in model.requests
    ]


BAD = {
    "no answer": ({"refine_prompt": "Again."}, "put {response} where"),
    "no request": ({"draft_prompt": "Again."}, "put {prompt} where"),
    "an answer before the first": ({"draft_prompt": "{prompt} {score}"}, "no {score} before"),
    "the reference": ({"refine_prompt": "{response} {reference}"}, "never sees the reference"),
    "tests": ({"draft_prompt": "{prompt} {tests}"}, "never sees the tests"),
    "an unknown field": ({"refine_prompt": "{response} {colour}"}, "no field {colour}"),
    "a number": ({"refine_prompt": 3}, "refine_prompt must be a template"),
    "a class": ({"draft_prompt": dict}, "draft_prompt must be a template"),
    "a missing file": (
        {"refine_prompt": Path("missing.txt")},
        "refine_prompt: 'missing.txt' cannot be read",
    ),
    "a plan": (
        {"refine_prompt": "{response}", "plan": SelfRefine()},
        "cannot be combined with plan",
    ),
}


@pytest.mark.parametrize(("settings", "message"), BAD.values(), ids=BAD)
async def test_a_bad_prompt_is_refused_before_any_call(settings, message):
    """The error names the argument and what is allowed."""
    model = ScriptedModel(["one"])
    with pytest.raises(ConfigError, match=message.replace("{", r"\{").replace("(", r"\(")):
        await refine("Why?", model, by_length, **settings)
    assert not model.requests


async def test_async_functions_are_refused():
    async def own(trace, parent):
        return "x"

    with pytest.raises(ConfigError, match="an async function cannot"):
        await refine("Why?", ScriptedModel(["one"]), by_length, refine_prompt=own)


@pytest.mark.parametrize(
    "settings",
    [
        {"draft_prompt": lambda: "x"},
        {"draft_prompt": lambda trace, parent: "x"},
        {"refine_prompt": lambda: "x"},
        {"refine_prompt": lambda trace: "x"},
        {"refine_prompt": lambda trace, parent, more: "x"},
        {"refine_prompt": lambda trace, *, parent: "x"},
    ],
)
async def test_functions_of_other_parameters_are_refused(settings):
    """Before any call; parameters with a default are no others."""
    model = ScriptedModel(["x"])
    (name, _function), *_ = settings.items()
    with pytest.raises(
        ConfigError, match=rf"{name} must be .* a function of a trace.*; the function takes \("
    ):
        await refine("q", model, "words:5", **settings)
    assert model.calls == 0
    await refine(
        "q",
        model,
        "words:1",
        draft_prompt=lambda trace, more=1: "x",
        refine_prompt=lambda *args: "x",
    )


@pytest.mark.parametrize(
    "returned", ["", " ", None, 3, [], [{"role": "user"}], {"role": "user", "content": "x"}]
)
async def test_what_is_no_prompt_ends_the_work_with_the_best_so_far(returned):
    result = await refine(
        "Why?", ScriptedModel(["one"]), by_length, refine_prompt=lambda trace, parent: returned
    )
    assert (result.value, result.stop) == ("one", "failed")
    assert result.stop_note.startswith("refine_prompt: ValueError")


async def test_an_error_in_a_function_names_its_line_and_keeps_the_best():
    """A failed prompt is a failure of its step, as a failed grader is; a later run tries it
    again.
    """

    def broken(trace, parent):
        raise KeyError("colour")

    result = await refine("Why?", ScriptedModel(["one"]), by_length, refine_prompt=broken)
    assert (result.value, result.stop) == ("one", "failed")
    assert (
        "refine_prompt: KeyError: 'colour' (in broken, test_own_prompts.py line" in result.stop_note
    )
    resumed = await refine(
        Trace.from_json(result.trace.to_json()), ScriptedModel(["ten letters"]), by_length
    )
    assert (resumed.value, resumed.stop) == ("ten letters", "target")
    with pytest.raises(ConfigError, match="draft_prompt: KeyError"):
        await refine("Why?", ScriptedModel(["one"]), by_length, draft_prompt=lambda trace: {}["x"])


async def test_best_of_n_has_a_draft_prompt():
    model = ScriptedModel(["one", "four letters"])
    result = await refine("Why?", model, by_length, plan=BestOfN(2, draft_prompt="Q: {prompt}"))
    assert [sent(model, n)[-1]["content"] for n in (0, 1)] == ["Q: Why?"] * 2
    assert result.value == "four letters"


def key_of(**settings):
    options = Options(**settings)
    return settings_parts(
        make_session(options, ScriptedModel(["x"]), by_length),
        options.make_plan(writes=True, noisy=False),
    )["plan"]


def test_a_changed_prompt_changes_the_row_key():
    """Equal templates and functions of equal source have equal keys."""
    assert key_of(refine_prompt="{response}!") == key_of(refine_prompt="{response}!")
    first, second = (lambda trace, parent: "a"), (lambda trace, parent: "b")
    prompts = [
        {},
        {"refine_prompt": "{response}"},
        {"refine_prompt": "{response}!"},
        {"draft_prompt": "{prompt}!"},
    ]
    prompts += [{"refine_prompt": first}, {"refine_prompt": second}]
    keys = [key_of(**settings) for settings in prompts]
    assert len(set(keys)) == len(keys)


def test_the_trace_records_the_prompts():
    """A template as it is, a function by its name and a hash of its source."""
    settings = {"refine_prompt": "{response}", "draft_prompt": lambda trace: "x"}
    saved = refine_sync(
        "Why?", ScriptedModel(["one", "two"]), by_length, max_iterations=1, **settings
    ).trace.settings
    assert saved[PROMPT_KEYS[1]] == {"template": "{response}"}
    assert saved[PROMPT_KEYS[0]].keys() == {"function", "fingerprint"}


async def test_metadata_in_a_template_is_part_of_the_row(tmp_path):
    """A row whose column is in the prompt is redone when the column changes; one whose column is
    not stays.
    """
    source = tmp_path / "in.jsonl"

    def run(colour, template):
        source.write_text(json.dumps({"id": "1", "prompt": "Why?", "colour": colour}))
        model = ScriptedModel(["ten letters", "ten letters too"])
        redraft.batch_sync(
            source, tmp_path / f"{len(template)}.jsonl", model, by_length, draft_prompt=template
        )
        return [m["content"] for request in model.requests for m in request.messages]

    def both(template):
        return [run(colour, template) for colour in ("red", "blue", "blue")]

    assert await asyncio.to_thread(both, "{prompt} {colour}") == [["Why? red"], ["Why? blue"], []]
    assert await asyncio.to_thread(both, "{prompt}") == [["Why?"], [], []]


def test_a_row_without_the_column_fails_alone(tmp_path):
    """Its error names the field; the other rows have results. A column that no row has is an error
    before any call.
    """
    rows = [{"prompt": "Why?", "colour": "red"}, {"prompt": "How?"}]
    model = ScriptedModel(["ten letters"] * 2)
    report = redraft.batch_sync(
        rows, tmp_path / "out.jsonl", model, by_length, draft_prompt="{prompt} {colour}"
    )
    best = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert report.rows.in_output == 2
    assert [row["best"] for row in best] == ["ten letters", None]
    assert "no field {colour}" in best[1]["error"]
    with pytest.raises(ConfigError, match="no field {size}.*{colour}"):
        redraft.batch_sync(
            rows, tmp_path / "other.jsonl", model, by_length, draft_prompt="{prompt} {size}"
        )
    assert len(model.requests) == 1


async def test_a_preview_shows_the_prompt_of_the_draft(tmp_path):
    """The messages of the first rows are those that would be sent."""
    settings = {"draft_prompt": "{question} in {colour}"}
    run = BatchRun.from_arguments(
        [{"question": "Why?", "colour": "red"}],
        tmp_path / "o.jsonl",
        ScriptedModel([]),
        by_length,
        **settings,
    )
    assert (await run.prepare()).samples == (({"role": "user", "content": "Why? in red"},),)


@pytest.mark.parametrize(
    ("mode", "setting"),
    [("best", "refine_prompt"), ("grade", "refine_prompt"), ("grade", "draft_prompt")],
)
def test_a_mode_without_that_step_refuses_its_prompt(tmp_path, mode, setting):
    rows = [{"prompt": "Why?", "response": "x"}]
    with pytest.raises(ConfigError, match=f"leave out {setting}"):
        redraft.batch_sync(
            rows,
            tmp_path / "o.jsonl",
            ScriptedModel([]),
            by_length,
            mode=mode,
            **{setting: "{prompt} {response}"[: 8 if setting == "draft_prompt" else None]},
        )


# ---- templates


PIECES = ["{a}", "{{a}}", "{prompt}", "{{prompt}}", "{{", "}}", *"{}ab_1 \n\"':$\\"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_any_text_is_a_template_and_only_fields_change(text):
    """A known field has its value wherever it stands; all else is the text itself, apart from
    doubled braces around a name.
    """
    parts = parse_template(text, FIELDS)
    single = re.sub(r"\{\{([A-Za-z_]\w*)\}\}", r"<\1>", text)
    assert fill_template(parts, lambda name: f"{{{name}}}") == re.sub("<(.*?)>", r"{\1}", single)
    assert [name for _, name in parts].count("prompt") == single.count("{prompt}")


@given(st.dictionaries(st.sampled_from(FIELDS), st.text(), min_size=1))
def test_inserted_text_is_never_parsed_again(values):
    """Whatever an answer holds stays as it is: no field of it is replaced, nothing is evaluated."""
    template = "|".join(f"{{{name}}}" for name in values)
    assert fill_template(parse_template(template, FIELDS), values.__getitem__) == "|".join(
        values.values()
    )


# ---- the command line


def test_prompt_files_on_the_command_line(tmp_path, plain_server):
    """A trace keeps the template, so that it is resumed with it after the file is gone."""
    (tmp_path / "p.txt").write_text("Improve <{response}> by {feedback}.")
    (tmp_path / "d.txt").write_text("Please: {prompt}")
    command = [
        "run",
        "Say it",
        "--model",
        plain_server,
        "--max-iterations",
        "1",
        "--grader",
        "contains:zzz",
        "--max-tokens",
        "8",
    ]
    files = ["--refine-prompt", "p.txt", "--draft-prompt", "d.txt", "--trace", "t.jsonl"]
    done = run_in_process([*command, *files], cwd=tmp_path)
    assert done.returncode in (0, 3), done.err
    header = json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0])
    assert header["settings"]["refine-prompt"] == {
        "template": "Improve <{response}> by {feedback}."
    }
    (tmp_path / "p.txt").unlink()
    done = run_in_process(["run", "--resume", "t.jsonl", "--max-iterations", "2"], cwd=tmp_path)
    assert done.returncode in (0, 3), done.err
    bad = run_in_process([*command, "--refine-prompt", "d.txt"], cwd=tmp_path)
    assert bad.returncode == 2
    assert b"--refine-prompt: put {response} where the answer belongs" in bad.stderr
    best = run_in_process(
        [
            "best",
            "Say it",
            "-n",
            "2",
            "--model",
            plain_server,
            "--grader",
            "words:1-99",
            "--draft-prompt",
            "d.txt",
        ],
        cwd=tmp_path,
    )
    assert best.returncode in (0, 3), best.err


def test_a_configuration_file_names_a_prompt_file(tmp_path, plain_server):
    """Its path starts from the folder of the configuration."""
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "p.txt").write_text("no field")
    (tmp_path / "redraft.toml").write_text('refine-prompt = "p.txt"\n')
    done = run_in_process(
        ["run", "Say it", "--model", plain_server, "--require", "words:1-99"], cwd=tmp_path / "sub"
    )
    assert done.returncode == 2
    assert b"--refine-prompt: put {response} where" in done.stderr


def test_a_trace_with_a_prompt_function_is_resumed_in_python(tmp_path, plain_server):
    """The command line says so, unless another prompt is given."""
    from redraft.storage import JsonlStore

    with JsonlStore(tmp_path / "t.jsonl") as store:
        refine_sync(
            "Why?",
            ScriptedModel(["one"]),
            "contains:zzz",
            refine_prompt=lambda t, p: "x",
            max_iterations=0,
            store=store,
        )
    command = [
        "run",
        "--resume",
        "t.jsonl",
        "--model",
        plain_server,
        "--grader",
        "contains:zzz",
        "--max-iterations",
        "1",
        "--max-tokens",
        "8",
    ]
    done = run_in_process(command, cwd=tmp_path)
    assert done.returncode == 2
    assert b"its refine-prompt is a function of Python" in done.stderr
    (tmp_path / "p.txt").write_text("{response}!")
    done = run_in_process([*command, "--refine-prompt", "p.txt"], cwd=tmp_path)
    assert done.returncode in (0, 3), done.err
