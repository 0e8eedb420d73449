"""Training data with tool calls: in chat templates' form, and in that of OpenAI's fine-tuning."""

import json

import pytest

from redraft.errors import ConfigError, RedraftError
from redraft.loop.task import Task
from redraft.tables.export.formats import WITH_TOOLS, ExportConfig, Provenance
from redraft.tables.export.writer import export

from .called_tools import ADD, HISTORY, OSLO, TRACES, WEATHER, rows, trace_of

RUN = Provenance("nightly", "m")


def call(name, arguments, id):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def exported(tmp_path, given=TRACES, **settings):
    """The examples in a file, and what is left out."""
    done = export(rows(given), tmp_path / "out.jsonl", ExportConfig(**settings), RUN)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], done.left_out


CALLING = {"role": "assistant", "content": "Wait."}
ENDS = {  # the columns that have the best answer, and the other
    "preference": ("chosen", "rejected"),
    "unpaired": ("completion",),
    "prompt-completion": ("completion",),
    "messages": ("messages",),
}


@pytest.mark.parametrize("format", WITH_TOOLS)
def test_every_format_has_the_calls_and_the_tools(tmp_path, format):
    """Arguments are objects, as chat templates read them; the tools are JSON, as TRL reads them."""
    examples, left_out = exported(tmp_path, format=format, tool_calls=True)
    assert not left_out
    first = examples[0]
    assert first[ENDS[format][0]][-1] == CALLING | {
        "tool_calls": [call("weather", {"city": "Oslo"}, "c1")]
    }
    assert json.loads(first["tools"]) == [WEATHER]
    assert json.loads(examples[-1]["tools"]) == []
    assert "tool_calls" not in examples[-1][ENDS[format][0]][-1]
    if format == "preference":
        assert first["rejected"][-1]["tool_calls"] == [call("weather", {"city": ""}, "c0")]
        prompt = examples[1]["prompt"]
        assert prompt[1] == {
            "role": "assistant",
            "content": "",
            "tool_calls": [call("add", {"n": 1}, "a1")],
        }
        assert prompt[2] == {"role": "tool", "content": "2", "tool_call_id": "a1"}


def test_without_the_setting_nothing_changes(tmp_path):
    examples, left_out = exported(tmp_path, format="messages")
    assert [set(message) for message in examples[0]["messages"]] == [{"role", "content"}] * 2
    assert "tools" not in examples[0]
    assert left_out == {"the answers call tools": 1, "the prompt is more than text": 1}


@pytest.mark.parametrize("format", ["messages", "preference"])
def test_openai_s_form_is_that_of_their_package(tmp_path, format):
    """Arguments are texts; nothing stands beside what the service reads."""
    openai = pytest.importorskip("openai", reason="no openai")
    from pydantic import TypeAdapter

    chat = openai.types.chat
    messages = TypeAdapter(list[chat.ChatCompletionMessageParam])
    tools = TypeAdapter(list[chat.ChatCompletionToolParam])
    examples, left_out = exported(tmp_path, format=format, style="openai", tool_calls=True)
    assert len(examples) == 3 and not left_out
    for example in examples:
        asked = example if format == "messages" else example["input"]
        assert set(asked) <= {"messages", "tools"}
        texts = [asked["messages"], example.get("preferred_output", [])]
        for given in (*texts, example.get("non_preferred_output", [])):
            checked = messages.validate_python(given, strict=True)
            assert json.loads(messages.dump_json(checked)) == given
        tools.validate_python(asked.get("tools", []), strict=True)
    best = examples[0]["messages" if format == "messages" else "preferred_output"][-1]
    assert best["tool_calls"] == [call("weather", OSLO[1], "c1")]
    both = examples[1] if format == "messages" else examples[1]["input"]
    assert both["tools"] == [WEATHER, ADD]
    last = examples[2] if format == "messages" else examples[2]["input"]
    assert "tools" not in last
    if format == "preference":
        assert set(examples[0]) == {"input", "preferred_output", "non_preferred_output"}


@pytest.mark.parametrize("arguments", ["[1]", '{"a": ', "", '{"a": 1, "a": 2}'])
def test_arguments_that_are_no_object_are_left_out_and_counted(tmp_path, arguments):
    wrong = trace_of(
        Task("q", tools=[WEATHER]), ("", [OSLO], 0.1), ("", [("weather", arguments)], 0.9)
    )
    for style in ("conversational", "openai"):
        with pytest.raises(RedraftError, match="1 x the arguments of a tool call are no JSON"):
            export(
                rows([wrong]),
                tmp_path / "out.jsonl",
                ExportConfig("messages", style=style, tool_calls=True),
                RUN,
            )


def test_equal_texts_with_other_calls_are_other_answers(tmp_path):
    """And equal ones with other IDs are the same."""
    task = Task("q", tools=[WEATHER])
    other = ("weather", '{"city":"Rome"}')
    pair = trace_of(task, ("", [other], 0.1), ("", [OSLO], 0.9))
    same = trace_of(task, ("", [OSLO], 0.1), ("", [OSLO], 0.9))
    examples, left_out = exported(tmp_path, [pair, same], tool_calls=True)
    assert len(examples) == 1 and left_out == {"the same text": 1}


@pytest.mark.parametrize("name", ["out.parquet", "out.PARQUET", "out.parquet.gz"])
@pytest.mark.parametrize("settings", [{"tool_calls": True}, {"style": "openai"}])
def test_parquet_is_refused(tmp_path, name, settings):
    with pytest.raises(ConfigError, match=r"needs JSON Lines \(.jsonl\), got"):
        export(rows(), tmp_path / name, ExportConfig("messages", **settings), RUN)


@pytest.mark.slow
@pytest.mark.parametrize("format", WITH_TOOLS)
def test_datasets_loads_a_folder_with_its_card(tmp_path, monkeypatch, format):
    """Messages have the keys that they had, and none that is filled up with null."""
    datasets = pytest.importorskip("datasets", reason="no datasets")
    if not hasattr(datasets, "Json"):
        pytest.skip("no datasets with JSON")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets.disable_progress_bars()
    export(rows(), tmp_path / "data", ExportConfig(format, tool_calls=True), RUN)
    loaded = datasets.load_dataset(
        str(tmp_path / "data"), cache_dir=str(tmp_path / "cache"), split="train"
    )
    lines = (tmp_path / "data" / "train.jsonl").read_text().splitlines()
    assert [*loaded] == [json.loads(line) for line in lines]
    assert loaded[0][ENDS[format][0]][-1]["tool_calls"][0]["function"]["arguments"] == {
        "city": "Oslo"
    }


def test_the_history_is_not_changed():
    assert HISTORY[1]["content"] is None
