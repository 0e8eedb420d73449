"""Tasks that a model writes: to a file that stays as people edit it, without repetitions."""

import json

import pytest

from redraft.comparison import write_tasks_sync
from redraft.errors import BadResponseError, ConfigError
from redraft.models import ScriptedModel

WORDS = "red blue green amber violet grey black white pink teal".split()


def reply(topic, count=10):
    """Return a reply with tasks that differ."""
    tasks = [f"Explain {topic} {word}{topic} {WORDS[-n]}" for n, word in enumerate(WORDS[:count])]
    return json.dumps({"tasks": tasks})


def prompts(path):
    return [json.loads(line)["prompt"] for line in path.read_text().splitlines()]


def test_tasks_are_written_and_kept(tmp_path):
    """The number of calls is said beforehand; each row names the model; a second start takes no
    call, and a larger number goes on after what people left in the file.
    """
    path, said = tmp_path / "tasks.jsonl", []
    model = ScriptedModel([reply("one"), reply("two"), reply("three")])
    write_tasks_sync("topics", path, 15, model, say=said.append)
    before = f"scripted writes 15 tasks to {path}, in about 2 calls"
    assert said == [before, f"{path} has 15 tasks: read and edit them"]  # after the last call
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["id"] for row in rows}) == 15 == len({row["prompt"] for row in rows})
    assert {row["written_by"] for row in rows} == {"scripted"}
    mine = {"id": "mine", "prompt": "My own task", "topic": "x"}
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows[3:], mine]))
    write_tasks_sync("topics", path, 13, model, say=said.append)
    assert said[2] == f"{path} has 13 tasks, and none is written"
    write_tasks_sync("topics", path, 20, model)
    assert prompts(path)[:13] == [*(row["prompt"] for row in rows[3:]), "My own task"]
    assert len(prompts(path)) == 20 and len(model.requests) == 3
    limits = [request.schema["properties"]["tasks"] for request in model.requests]
    assert [(each["minItems"], each["maxItems"]) for each in limits] == [(1, 10), (1, 5), (1, 7)]
    assert len({json.loads(line)["id"] for line in path.read_text().splitlines()}) == 20


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8-sig", "utf-16"])
def test_tasks_in_another_encoding(tmp_path, encoding):
    """Those of an editor that does not write UTF-8 are read as in a batch, and count."""
    path, said = tmp_path / "tasks.jsonl", []
    path.write_bytes('{"prompt": "café"}\n'.encode(encoding))
    write_tasks_sync("d", path, 1, ScriptedModel([]), say=said.append)
    assert said == [f"{path} has 1 task, and none is written"]


def test_repetitions_are_left_out(tmp_path):
    """Also those in nearly the same words; a model that has no other tasks is an error, and what
    there is stays.
    """
    path = tmp_path / "tasks.jsonl"
    again = json.dumps({"tasks": ["EXPLAIN one redone red!", *json.loads(reply("one"))["tasks"]]})
    model = ScriptedModel([reply("one"), again, again, again])
    with pytest.raises(BadResponseError, match="has 10 of 30 tasks"):
        write_tasks_sync("topics", path, 30, model)
    assert len(prompts(path)) == 10


def test_what_is_there_survives_a_failure(tmp_path):
    """A start that fails has written what it had, and the next one goes on."""
    path = tmp_path / "tasks.jsonl"
    with pytest.raises(BadResponseError):
        write_tasks_sync("topics", path, 20, ScriptedModel([reply("one"), "no JSON", "none"]))
    write_tasks_sync("topics", path, 20, ScriptedModel([reply("two")]))
    assert len(prompts(path)) == 20


def test_equal_seeds_make_equal_requests(tmp_path):
    """They show the same earlier tasks, and carry a seed for models that support one."""
    requests = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        model = ScriptedModel([reply(f"t{n}") for n in range(8)])
        write_tasks_sync("topics", tmp_path / f"{name}.jsonl", 60, model, seed=seed)
        texts = [request.messages[0]["content"] for request in model.requests]
        nonces = [request.nonce for request in model.requests]
        requests.append([t.replace(n, "") for t, n in zip(texts, nonces, strict=True)])
        assert [request.seed for request in model.requests] == [10 * n + seed for n in range(6)]
    assert requests[0] == requests[1] != requests[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", "t.jsonl"), "description"),
        (("d", "t.csv"), "JSON lines, to NAME.jsonl"),
        (("d", "t.jsonl", 0), "count"),
        (("d", "bad.jsonl"), "without a text 'prompt'"),
    ],
)
def test_wrong_arguments(tmp_path, monkeypatch, arguments, message):
    """Each is refused before a call."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"question": 1}\n')
    model = ScriptedModel([])
    with pytest.raises(ConfigError, match=message):
        write_tasks_sync(*arguments, model=model)
    assert not model.requests


def test_edits_while_tasks_are_written_stay(tmp_path):
    """What people change, add and delete while a reply is awaited is in the file at the end, and
    counts.
    """
    path, model = tmp_path / "tasks.jsonl", ScriptedModel([reply("one"), reply("two")])
    complete = model.complete

    async def edit_and_complete(request):
        if path.exists():
            first, second, *_ = path.read_text().splitlines()
            mine = {"id": "mine", "prompt": "My own task"}
            first = json.dumps({**json.loads(first), "prompt": "My words"})
            path.write_text(f"{first}\n{second}\n{json.dumps(mine)}\n")
        return await complete(request)

    model.complete = edit_and_complete
    write_tasks_sync("topics", path, 13, model)
    first, second, third, *others = prompts(path)
    assert (first, third) == ("My words", "My own task")
    assert second in json.loads(reply("one"))["tasks"]
    assert others == json.loads(reply("two"))["tasks"]


@pytest.mark.parametrize(
    ("replies", "calls"),
    [([reply("one"), "no JSON", "none"], 3), ([reply("one")] * 4, 4)],
    ids=["unreadable", "repeated"],
)
def test_an_error_has_the_usage_of_all_calls(tmp_path, replies, calls):
    """Also of those whose tasks are in the file."""
    with pytest.raises(BadResponseError) as raised:
        write_tasks_sync("topics", tmp_path / "t.jsonl", 20, ScriptedModel(replies))
    assert raised.value.usage.calls == calls
