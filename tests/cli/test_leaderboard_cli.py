"""A leaderboard of models on tasks that a model writes first, on the command line."""

import json

import pytest

WORDS = "red blue green amber violet grey black white pink teal".split()


def answer(messages, n):
    """Write tasks, compare answers by their length, or answer a task."""
    prompt = messages[-1]["content"]
    if "Write tasks with which" in prompt:
        return json.dumps({"tasks": [f"Explain {word} {n}" for n, word in enumerate(WORDS)]})
    if "winner" in json.dumps(messages):
        return json.dumps({"reason": "", "change": [], "winner": "tie", "done": True})
    return f"Answer {n}"


@pytest.mark.slow
def test_tasks_are_written_then_models_compared(redraft, serve, tmp_path):
    """The model and the number of calls are said before the first one. The tasks can be edited: a
    second start leaves them alone, and takes no call.
    """
    server = serve(answer)
    models = [f"{server.model}{n}" for n in range(3)]
    options = [
        "--tasks-from",
        "colours",
        "-n",
        "8",
        "--grader",
        "pairwise",
        "--judge",
        server.model,
    ]
    done = redraft("compare", *models, *options, "--data", "mine.jsonl")
    assert done.returncode == 0, done.err
    assert "tiny writes 8 tasks to mine.jsonl, in about 1 call\n" in done.err
    assert "mine.jsonl has 8 tasks: read and edit them" in done.err
    assert "undecided: nothing tells them apart" in done.out
    server_name, _, _ = server.model.rpartition("#")
    assert f"models of {server_name}: tiny0, tiny1, tiny2\n" in done.err
    assert "tiny1" in done.out and server_name not in done.out  # names are short
    assert "tasks written by tiny" in done.out
    tasks = (tmp_path / "mine.jsonl").read_text()
    assert len(tasks.splitlines()) == 8
    assert server.calls == 1 + 3 * 8 + 3 * 8 * 2
    again = redraft("compare", *models, *options, "--data", "mine.jsonl", "--json")
    assert again.returncode == 0, again.err
    assert "mine.jsonl has 8 tasks, and none is written" in again.err
    data = json.loads(again.out)
    assert [entry["games"] for entry in data["entries"]] == [[0, 16, 0]] * 3
    assert (tmp_path / "mine.jsonl").read_text() == tasks
    assert server.calls == 1 + 3 * 8 + 3 * 8 * 2


def test_one_budget_for_tasks_and_comparison(redraft, serve):
    """What the tasks take is part of it, and in the report."""
    server = serve(answer)
    models = [f"{server.model}{n}" for n in range(2)]
    options = ["-n", "2", "--grader", "pairwise", "--judge", server.model, "--json"]
    command = ["compare", *models, *options, "--tasks-from", "colours"]
    done = redraft(*command, "--budget-calls", "8")
    assert done.returncode == 1 and "budget" in done.err
    assert server.calls <= 8
    before = server.calls
    whole = redraft(*command, "--budget-calls", "9", "--data", "b.jsonl", "--journal", "b.journal")
    assert whole.returncode == 0, whole.err
    assert json.loads(whole.out)["usage"]["calls"] == 9 == server.calls - before
