"""`redraft train`: exit codes, what it prints, and what uses the grader afterwards."""

import json
import random
import re
import signal

import pytest

from .chat_server import verdict


def rows(*, noise=False, n=60):
    """Short answers are what people like."""
    rng, found = random.Random(3), []
    for task in range(n):
        words = task % 12 + 1
        good = rng.random() < 0.5 if noise else words < 7
        found.append({"prompt": f"Task {task}", "response": "word " * words, "label": bool(good)})
    return found


@pytest.fixture
def labels(redraft):
    """Files of labels: those that a grader can learn, and others."""
    for name, noise in (("labels", False), ("noise", True)):
        text = "".join(json.dumps(row) + "\n" for row in rows(noise=noise))
        (redraft.folder / f"{name}.jsonl").write_text(text)
    return redraft


GRADERS = ("--grader", "length:words=1-4", "--grader", "readability", "--judge", "none")


def train(redraft, data, *more):
    return redraft("train", data, "--name", "./short", "--cards-dir", "cards", *GRADERS, *more)


def test_a_grader_is_trained_shown_and_used(labels):
    """It prints the measure with those of its graders, and grades with `--require-validated`."""
    done = train(labels, "labels.jsonl")
    assert done.returncode == 0, done.stderr
    assert "better than chance" in done.stdout.decode()
    lines = [line.split("\t")[0] for line in done.stdout.decode().splitlines()]
    assert lines[3:5] == ["trained:./short", "length:words=1-4"]
    assert "length:words=1-4 alone, calibrated" in done.stdout.decode()
    assert "--grader trained:./short" in done.stderr.decode()
    (labels.folder / "answer.md").write_text("word word word")
    graded = labels(
        *(
            "grade",
            "--response",
            "answer.md",
            "--grader",
            "trained:./short",
            "--cards-dir",
            "cards",
        ),
        *("--require-validated", "error", "--json"),
    )
    assert graded.returncode == 0, graded.stderr
    assert json.loads(graded.stdout)["score"] > 0.6


@pytest.mark.slow
def test_a_grader_of_noise_is_refused(labels):
    """Exit code 3, and what requires validated graders refuses it."""
    done = train(labels, "noise.jsonl", "--json")
    assert done.returncode == 3, done.stderr
    data = json.loads(done.stdout)
    assert data["card"]["trusted"] is False and data["fitted"] == 42
    (labels.folder / "answer.md").write_text("word word word")
    refused = labels(
        *(
            "grade",
            "--response",
            "answer.md",
            "--grader",
            "trained:./short",
            "--cards-dir",
            "cards",
        ),
        *("--require-validated", "error"),
    )
    assert refused.returncode == 2
    assert "no better than chance" in refused.stderr.decode()
    scored = [{**row, "score": 0.5} for row in rows(n=12)]
    (labels.folder / "run.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scored))
    gated = labels(
        *("gate", "--aa", "run.jsonl", "--grader", "trained:./short", "--judge", "none"),
        *("--cards-dir", "cards", "--require-validated", "error"),
    )
    assert gated.returncode == 2
    assert "no better than chance" in gated.stderr.decode()


def test_what_is_missing_is_named(labels):
    """No grader, too few labels, and a function of the user, which cannot be stored."""
    without = labels("train", "labels.jsonl", "--name", "a", "--judge", "none")
    assert without.returncode == 2 and "name what a head can learn from" in without.stderr.decode()
    few = train(labels, "labels.jsonl", "--limit", "12")
    assert few.returncode == 2 and "labels of 20 tasks are the fewest" in few.stderr.decode()
    (labels.folder / "mine.py").write_text("def grade(text): return 1.0\n")
    own = labels("train", "labels.jsonl", "--name", "a", "--grader", "mine.py:grade")
    assert own.returncode == 2 and "mine.py:grade" in own.stderr.decode()


def test_a_reward_model_is_not_replaced_by_a_head(labels):
    """Its folder is known by its configuration, also before it is finished."""
    (labels.folder / "short").mkdir()
    (labels.folder / "short" / "training.json").write_text("{}")
    done = train(labels, "labels.jsonl")
    assert done.returncode == 2 and "short has a reward model: choose another name" in done.err
    assert [path.name for path in (labels.folder / "short").iterdir()] == ["training.json"]


def counting_judge(messages, n):
    """A judge that prefers few words."""
    words = messages[-1]["content"].rpartition("<answer")[2].count("word ")
    return verdict(max(0, 5 - words // 2))


def judged(redraft, *more, data="labels.jsonl"):
    where = ("--name", "./judged", "--cards-dir", "cards")
    return redraft("train", data, *where, "--grader", "judge", *more)


@pytest.mark.slow
def test_what_the_judge_cost_is_shown(labels, serve):
    """Each answer is one call; the cost is that of the prices, and unknown without one."""
    server = serve(counting_judge)
    done = judged(labels, "--judge", server.model, "--price", "tiny=1,2")
    assert done.returncode == 0, done.err
    assert server.calls == 60
    assert re.search(
        r"^graded once: calls 60 · tokens [\d,]+ · cost [\d.]+ USD$", done.out, re.MULTILINE
    )
    assert done.out.splitlines()[0] == "better than chance"
    unknown = judged(labels, "--judge", server.model)
    assert "· cost unknown" in unknown.out


@pytest.mark.slow
def test_an_interrupted_training_resumes(labels, serve):
    """A budget that runs out is exit code 1; the same command pays only for what is missing."""
    server = serve(counting_judge)
    short = judged(labels, "--judge", server.model, "--budget-calls", "12")
    assert short.returncode == 1
    assert "the same command goes on from here" in short.err
    assert server.calls == 12
    assert judged(labels, "--judge", server.model).returncode == 0
    assert server.calls == 60


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_process_loses_no_reply(labels, serve, ending):
    """Exit code 130, and how to resume; the same command asks again only for the reply that had not
    arrived.
    """
    server = serve(counting_judge)
    where = ("--name", "./judged", "--cards-dir", "cards", "--max-in-flight", "1")
    command = ("train", "labels.jsonl", *where, "--grader", "judge", "--judge", server.model)
    arrived = server.hold(20)
    process = labels.start(*command)
    assert arrived.wait(60)
    process.send_signal(ending)
    _, err = process.communicate(timeout=30)
    server.release()
    assert process.returncode == 130
    assert b"run the same command to resume" in err and b"Traceback" not in err
    assert not (labels.folder / "judged" / "grader.json").exists()
    done = labels(*command)
    assert done.returncode == 0, done.err
    tasks = [re.findall(r"Task \d+", messages[-1]["content"])[0] for messages in server.asked]
    assert tasks.count(tasks[20]) == 2 and len(tasks) == len(set(tasks)) + 1 == 61


@pytest.mark.slow
def test_a_grader_with_too_few_scores_is_not_read(labels):
    """It is named, and the head is fitted to the others: readability is unknown of each third
    answer here.
    """
    mixed = [
        row if n % 3 else {**row, "response": row["response"].replace("word", "слово")}
        for n, row in enumerate(rows())
    ]
    text = "".join(json.dumps(row) + "\n" for row in mixed)
    (labels.folder / "mixed.jsonl").write_text(text)
    done = train(labels, "mixed.jsonl")
    assert done.returncode == 0, done.err
    assert "the head does not read readability: it gives too few scores" in done.err
    assert "fitted to 42 labels" in done.err


def test_a_judge_that_fails_is_an_error(labels, serve):
    """Exit code 1, with how many answers could not be graded, and the reason; nothing is stored."""
    server = serve(lambda messages, n: (401, "no such key"))
    done = judged(labels, "--judge", server.model)
    assert done.returncode == 1
    assert "60 of 60 answers could not be graded" in done.err and "no such key" in done.err
    assert not (labels.folder / "judged" / "grader.json").exists()


def test_a_judge_needs_a_model(labels):
    """Exit code 2 before anything is stored, if none is to be found."""
    done = judged(labels, "--judge", "none")
    assert done.returncode == 2, done.err
    assert not (labels.folder / "judged").exists()


HOSTILE = {
    "no grader": ('{"redraft_trained": 1}', "is not a trained grader"),
    "not even text": (b"\xff\x00\x80", "is not a trained grader"),
    "itself": (
        '{"redraft_trained": 1, "graders": ["trained:./bad"], "embeddings": null, "head": {}}',
        "is not a trained grader",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_foreign_file_is_a_mistake_in_the_call(name, redraft):
    """Exit code 2, and no traceback."""
    content, message = HOSTILE[name]
    (redraft.folder / "bad").mkdir()
    data = content if isinstance(content, bytes) else content.encode()
    (redraft.folder / "bad" / "grader.json").write_bytes(data)
    (redraft.folder / "a.md").write_text("Hi.")
    done = redraft("grade", "--response", "a.md", "--grader", "trained:./bad")
    assert done.returncode == 2
    assert message in done.err and "Traceback" not in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--base", "b", "--grader", "readability"), "a reward model (--base) reads text"),
        (("--lora", "8"), "need --base MODEL"),
        (("--recipe", "verl"), "need --base MODEL"),
        (("--base", "b"), "no pairs: a reward model learns from answers to the same prompt"),
        (("--training", "labels.jsonl"), "is not a configuration of a training"),
    ],
)
def test_what_a_reward_model_cannot_be_trained_with(options, message, labels):
    """Exit code 2 before anything is stored."""
    done = labels("train", "labels.jsonl", "--name", "./short", *options)
    assert done.returncode == 2 and message in done.err
    assert not (labels.folder / "short").exists()


def test_a_recipe_has_the_prompts_and_the_grader(labels):
    """For a head, too; it is not written twice, and the grader must be there."""
    recipe = ("--base", "some/model", "--recipe", "verl")
    early = labels("train", "labels.jsonl", "--name", "./short", *recipe)
    assert early.returncode == 2 and "there is no trained grader" in early.err
    assert train(labels, "labels.jsonl").returncode == 0
    done = labels("train", "labels.jsonl", "--name", "./short", *recipe)
    assert done.returncode == 0, done.err
    folder = labels.folder / "short" / "verl"
    prompts = [
        json.loads(line)["extra_info"]["prompt"][0]["content"]
        for name in ("train", "validation")
        for line in (folder / f"{name}.jsonl").read_text().splitlines()
    ]
    assert sorted(prompts) == sorted(row["prompt"] for row in rows())
    assert f"'trained:{folder.parent.resolve()}'" in (folder / "rewards.py").read_text()
    assert 'path: "some/model"' in (folder / "config.yaml").read_text()
    again = labels("train", "labels.jsonl", "--name", "./short", *recipe)
    assert again.returncode == 2 and "is there already" in again.err


def test_losses_are_a_page(redraft):
    """`redraft view trained:NAME`, as a file; a folder without losses is a mistake in the call."""
    (redraft.folder / "short").mkdir()
    missing = redraft("view", "trained:./short", "--html", "losses.html")
    assert missing.returncode == 2 and "has no losses of a training" in missing.err
    steps = [{"step": 1, "loss": 0.7}, {"step": 2, "loss": 0.5}]
    (redraft.folder / "short" / "losses.json").write_text(json.dumps({"steps": steps}))
    done = redraft("view", "trained:./short", "--html", "losses.html")
    assert done.returncode == 0, done.err
    assert "0.500 at step 2" in (redraft.folder / "losses.html").read_text()


def test_help_has_examples(redraft):
    """They name the command, a grader that was trained, and the exit codes."""
    done = redraft("train", "--help")
    for text in ("redraft train labels.jsonl", "trained:support", "Exit codes"):
        assert text in done.out


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_judge_of_random_weights_is_refused(labels, digit_server):
    """The whole of it with a real llama.cpp server, whose verdicts say nothing."""
    others = ("--grader", "length:words=1-4", "--limit", "24", "--json")
    done = judged(labels, "--judge", digit_server, *others, data="noise.jsonl")
    assert done.returncode == 3, done.err
    data = json.loads(done.out)
    assert data["usage"]["calls"] >= 24 and data["card"]["trusted"] is False
    (labels.folder / "answer.md").write_text("word word")
    refused = labels(
        *("grade", "--response", "answer.md", "--grader", "trained:./judged"),
        *("--judge", digit_server, "--cards-dir", "cards", "--require-validated", "error"),
    )
    assert refused.returncode == 2
    assert "no better than chance" in refused.err
