"""`redraft grade FILE --as-rewards`: rewards of recorded rollouts, a line of JSON for each row."""

import json

import pytest

from redraft.cli import rollouts

from .chat_server import verdict

GRADERS = """
def tenths(text):
    return len(text) / 10

def fails(text):
    raise ValueError("broken")
"""
ROLLOUTS = [
    {"step": 1, "input": "Say a.", "output": "aaa", "gts": "a", "score": 0.5},
    {"step": 1, "input": "Say a.", "output": "aa x", "gts": "a", "score": 1},
    {"step": 2, "input": "Say a.", "output": "", "gts": "a", "score": 0},
]
"""As verl writes them (`trainer.rollout_data_dir`)."""


def write(folder, rows):
    (folder / "graders.py").write_text(GRADERS)
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def lines(done):
    return [json.loads(line) for line in done.out.splitlines()]


def test_each_rollout_has_a_line(redraft):
    write(redraft.folder, ROLLOUTS)
    done = redraft(
        *("grade", "rollouts.jsonl", "--as-rewards", "--grader", "graders.py:tenths"),
        *("--require", "contains_none:x"),
    )
    assert done.returncode == 0, done.err
    assert [(each["step"], each["reward"]) for each in lines(done)] == [(1, 0.3), (1, 0), (2, 0)]
    assert lines(done)[1]["parts"] == {"contains_none:x": 0, "tenths": 0.4}
    assert "3 rewards · mean 0.100" in done.err


def test_an_unknown_reward_is_null(redraft):
    """The exit code says so, as for a grader that failed."""
    write(redraft.folder, ROLLOUTS[:1])
    done = redraft("grade", "rollouts.jsonl", "--as-rewards", "--grader", "graders.py:fails")
    assert (done.returncode, lines(done)[0]["reward"]) == (1, None)
    assert lines(done)[0]["reason"] == "fails: GradingError"
    assert "1 unknown" in done.err


def test_the_recorded_rewards_are_compared(redraft):
    """Also of more rows than `grade` shows as a table."""
    rows = [
        {"prompt": "Say a.", "completion": "a" * (n % 10 + 1), "reward": -n % 10 / 10}
        for n in range(250)
    ]
    write(redraft.folder, rows)
    done = redraft("grade", "rollouts.jsonl", "--as-rewards", "--grader", "graders.py:tenths")
    assert done.returncode == 0, done.err
    assert len(lines(done)) == 250
    assert "of pairs of answers as the recorded rewards do" in done.err


def test_a_group_of_a_step_is_ranked_in_one_call(redraft, serve):
    """The prompt is the same in both steps, which are groups of their own."""
    answer = {"reason": "So.", "change": [], "ranking": [1, 2], "ties": [], "done": False}
    server = serve(lambda messages, n: json.dumps(answer))
    rows = [{"step": n // 2, "input": "Say a.", "output": f"a{n}"} for n in range(4)]
    write(redraft.folder, rows)
    done = redraft(
        "grade", "rollouts.jsonl", "--as-rewards", "--grader", "ranker", "--judge", server.model
    )
    assert done.returncode == 0, done.err
    found = [each["reward"] for each in lines(done)]
    assert sorted(found[:2]) == sorted(found[2:]) == [0, 1]
    assert len(server.asked) == 2


@pytest.mark.parametrize("prompts", ["in a row", "mixed"])
def test_a_group_is_never_cut(redraft, serve, monkeypatch, prompts):
    """However many rows are graded together: in a row the rows have no step; those of a step stand
    in any order, as verl writes them.
    """
    monkeypatch.setattr(rollouts, "CHUNK_ROWS", 4)
    answer = {"reason": "So.", "change": [], "ranking": [1, 2, 3], "ties": [], "done": False}
    server = serve(lambda messages, n: json.dumps(answer))
    rows = [{"input": f"Say {n // 3}.", "output": f"a{n}"} for n in range(9)]
    if prompts == "mixed":
        rows = [{**rows[n * 4 % 9], "step": 7} for n in range(9)]
    write(redraft.folder, rows)
    done = redraft(
        *("grade", "rollouts.jsonl", "--as-rewards", "--grader", "ranker"),
        *("--judge", server.model),
    )
    assert done.returncode == 0, done.err
    assert sorted(each["reward"] for each in lines(done)) == [0, 0, 0, 0.5, 0.5, 0.5, 1, 1, 1]
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    "arguments", [("Say a.",), ("rollouts.jsonl", "--response", "graders.py"), ()]
)
def test_it_takes_a_file_of_rows(redraft, arguments):
    write(redraft.folder, ROLLOUTS)
    done = redraft("grade", *arguments, "--as-rewards", "--grader", "graders.py:tenths")
    assert done.returncode == 2
    assert "rows" in done.err


def test_a_budget_that_runs_out_loses_no_grade(redraft, serve):
    """What was paid for is written; what was not has no number, and the exit code says so."""
    rows = [{"step": n // 4, "prompt": f"Say {n}.", "completion": f"{n}"} for n in range(8)]
    write(redraft.folder, rows)
    server = serve(lambda messages, n: verdict(4))
    done = redraft(
        *("grade", "rollouts.jsonl", "--as-rewards", "--judge", server.model),
        *("--budget-calls", "2"),
    )
    assert done.returncode == 1
    given = [each["reward"] for each in lines(done)]
    assert len(given) == 4 and given.count(None) == 2, "the step that was begun"
    assert "4 rewards" in done.err and "2 unknown" in done.err
    assert "the budget of the rewards is used up (calls)" in done.err
