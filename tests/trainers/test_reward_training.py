"""A reward model from labels, the whole way: a tiny base of random weights, TRL's trainer, kill and
resume, the grader, its card, and a recipe for verl.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import redraft
from redraft.errors import ConfigError, GradingError
from redraft.graders import as_grader
from redraft.train import RewardTrainingConfig, load_grader, reward_model, train_reward_model
from trainers.tiny_base import answer, pair_rows, save_tiny_base, scored_rows

pytest.importorskip("trl", reason="no trl")
pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
PROGRAM = re.compile(
    r'^```python title="reward_model.py"\n(.*?)^```\n\n```text\n(.*?)^```', re.DOTALL | re.MULTILINE
)
ROWS = {
    "pairs": pair_rows(),
    "noise": pair_rows(noise=True),
    "scores": scored_rows(),
}


class Recorder(BaseHTTPRequestHandler):
    """A proxy that refuses all requests, and remembers them."""

    requests = []

    def do_GET(self):
        self.requests.append(self.path)
        self.send_error(502)

    do_HEAD = do_POST = do_CONNECT = do_GET


@pytest.fixture(scope="module")
def proxy():
    """The URL of a proxy; at the end, no request may have reached it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    assert Recorder.requests == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory, proxy):
    """A folder with a base, labels and a configuration."""
    folder = tmp_path_factory.mktemp("training")
    save_tiny_base(folder / "base")
    for name, rows in ROWS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {"base": "base", "learning_rate": 0.01, "epochs": 3}
    (folder / "how.json").write_text(json.dumps({"redraft_training": 1, "config": config}))
    return folder


def command(folder, proxy, *arguments):
    """Return what starts a command in the folder."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        **dict.fromkeys(("HF_ENDPOINT", "http_proxy", "https_proxy"), proxy),
        "no_proxy": "",
        "OMP_NUM_THREADS": "1",
        "REDRAFT_HOME": str(folder / "home"),
    }
    return {
        "args": [sys.executable, "-m", "redraft", *map(str, arguments)],
        **dict(cwd=folder, env=environment, text=True),
        **dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE),
    }


@pytest.fixture(scope="module")
def cli(folder, proxy):
    return lambda *arguments: subprocess.run(
        **command(folder, proxy, *arguments), timeout=280, check=False
    )


def train_command(data, name, *more):
    how = ("--name", f"./{name}", "--training", "how.json", "--cards-dir", "cards")
    return ("train", f"{data}.jsonl", "--log-format", "json", *how, *more)


@pytest.fixture(scope="module")
def trained(cli):
    """Train graders, each once: of pairs with all weights, and of scores with LoRA."""
    found = {}

    def train(data, *more):
        if data not in found:
            found[data] = cli(*train_command(data, data, "--json", *more))
        return found[data]

    return train


def score(folder, name, good):
    """Return the score of an answer by a trained grader that must be validated."""
    return redraft.grade_sync(
        ("Task 5", answer(good)),
        f"trained:{folder}/{name}",
        cards_dir=folder / "cards",
        require_validated="error",
    )


@pytest.mark.parametrize(("data", "more"), [("pairs", ()), ("scores", ("--lora", "4"))])
def test_labels_make_a_grader_with_a_card(data, more, trained, folder):
    """It is better than chance on held-out labels, and prefers what people prefer; nothing is left
    but the model, the configuration, the losses and the grader.
    """
    done = trained(data, *more)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["card"]["trusted"] and result["pairs"] > 40
    assert result["card"]["rows"] == {"pairs": 27, "scores": 54}[data]
    assert {path.name for path in (folder / data).iterdir()} == {
        *("grader.json", "losses.json", "model", "training.json")
    }
    assert all(path.suffix in reward_model.SUFFIXES for path in (folder / data / "model").iterdir())
    low, high = (score(folder, data, good) for good in (2, 8))
    assert low.score + 0.2 < high.score
    feedback = high.feedback[0].repeats[0]
    start, end = feedback.metadata["interval"]
    assert start <= feedback.score <= end
    assert [each["loss"] for each in result["losses"] if "loss" in each][-1] < 0.69
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert any(each["event"] == "training" and each["loss"] > 0 for each in events)


def test_a_card_of_noise_is_refused(trained, folder, cli):
    """Exit code 3, and what requires validated graders refuses it."""
    done = trained("noise")
    assert done.returncode == 3, done.stderr
    (folder / "answer.md").write_text(answer(5))
    use = ("--response", "answer.md", "--grader", "trained:./noise", "--cards-dir", "cards")
    refused = cli("grade", *use, "--require-validated", "error")
    assert refused.returncode == 2 and "no better than chance" in refused.stderr
    assert cli("grade", *use).returncode == 0


def checkpoints(folder):
    return sorted(
        int(path.parent.name.rpartition("-")[2])
        for path in folder.glob("checkpoints/checkpoint-*/trainer_state.json")
    )


def started(folder, proxy, name):
    """Start a training, and return it when it has written a checkpoint or two."""
    process = subprocess.Popen(**command(folder, proxy, *train_command("pairs", name)))
    while len(checkpoints(folder / name)) < 2 and process.poll() is None:
        threading.Event().wait(0.02)
    return process


def test_a_killed_training_resumes(trained, folder, proxy, cli):
    """From its last whole checkpoint, to the same weights as one that nothing interrupted."""
    assert trained("pairs").returncode == 0
    process = started(folder, proxy, "killed")
    process.kill()
    process.communicate()
    last = checkpoints(folder / "killed")[-1]
    torn = folder / "killed" / "checkpoints" / f"checkpoint-{last + 1}"
    torn.mkdir(exist_ok=True)
    (torn / "trainer_state.json").write_text('{"global_st')
    done = cli(*train_command("pairs", "killed"))
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line).get("step") for line in done.stderr.splitlines()]
    assert next(step for step in steps if step) > last
    digests = [
        json.loads((folder / name / "grader.json").read_text())["reward_model"]
        for name in ("pairs", "killed")
    ]
    assert digests[0] == digests[1]
    again = cli(*train_command("pairs", "killed"))
    assert again.returncode == 0 and '"training"' not in again.stderr


def test_an_interrupted_training_resumes(folder, proxy, cli):
    """Ctrl-C is exit code 130; another configuration is refused, and the same one goes on."""
    process = started(folder, proxy, "stopped")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert "run the same command to resume" in said
    other = cli(*train_command("pairs", "stopped", "--lora", "2"))
    assert other.returncode == 2 and "another configuration" in other.stderr
    assert cli(*train_command("pairs", "stopped")).returncode == 0


def test_many_threads_load_the_model_once(trained, folder):
    """And each gets the score that it would get alone."""
    assert trained("pairs").returncode == 0
    reward_model._load.cache_clear()
    alone = [score(folder, "pairs", good).score for good in (3, 7)]

    async def grade():
        return await asyncio.gather(
            *(asyncio.to_thread(score, folder, "pairs", good) for good in (3, 7) * 6)
        )

    reward_model._load.cache_clear()
    assert [each.score for each in asyncio.run(grade())] == alone * 6
    assert reward_model._load.cache_info().misses == 1


def test_a_longer_answer_has_no_score(trained, folder):
    """None with the reason, and never a number."""
    assert trained("pairs").returncode == 0
    report = redraft.grade_sync(("q", "good " * 100), f"trained:{folder}/pairs")
    assert report.score is None
    assert "it reads 64 tokens" in report.feedback[0].reason


def changed(folder, name, change):
    """Copy a trained grader, and change its model."""
    copy = folder / name
    shutil.copytree(folder / "pairs", copy)
    change(copy / "model")
    return as_grader(f"trained:{copy}")


def edit_config(model, **values):
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


HOSTILE = {
    "pickle": (lambda m: (m / "pytorch_model.bin").write_bytes(b"\x80\x04."), "not a file of a model"),
    "code": (lambda m: (m / "modeling.py").write_text("1/0"), "not a file of a model"),
    "named code": (lambda m: edit_config(m, auto_map={"AutoConfig": "modeling.C"}), "'auto_map'"),
    "a kernel": (lambda m: edit_config(m, attn_implementation="a/b"), "'attn_implementation'"),
    "an adapter": (lambda m: (m / "adapter_config.json").write_text("{}"), "not a whole model"),
    "no JSON": (lambda m: (m / "tokenizer.json").write_text("{"), "tokenizer.json is not a file"),
    "a pipe": (lambda m: os.mkfifo(m / "a.json"), "pipe"),
    "other weights": (lambda m: (m / "model.safetensors").write_bytes(b"0" * 99), "have changed"),
    "no model": (shutil.rmtree, "is not a model"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_folder_that_something_else_wrote(case, trained, folder):
    """It is named, and so is what is wrong; nothing of it is loaded."""
    assert trained("pairs").returncode == 0
    change, message = HOSTILE[case]
    grader = changed(folder, f"bad {case}", change)
    with pytest.raises(ConfigError, match=message):
        grader._reward([{"role": "user", "content": "good"}])


def test_weights_that_are_missing_or_damaged(trained, folder):
    """Also with a digest that fits: no random weights take their place."""
    assert trained("pairs").returncode == 0
    from safetensors.torch import load_file, save_file

    def without_head(model):
        weights = load_file(model / "model.safetensors")
        del weights["score.weight"]
        save_file(weights, model / "model.safetensors", {"format": "pt"})

    def damaged(model):
        (model / "model.safetensors").write_bytes(b"\xff" * 64)

    for n, (change, message) in enumerate(
        ((without_head, "weights are missing"), (damaged, "cannot be loaded"))
    ):
        grader = changed(folder, f"damaged {n}", change)
        path = grader.folder.parent / "grader.json"
        data = json.loads(path.read_text())
        data["reward_model"] = reward_model.folder_digest(grader.folder)
        path.write_text(json.dumps(data))
        with pytest.raises(ConfigError, match=message):
            load_grader(f"{grader.folder.parent}")._reward([{"role": "user", "content": "good"}])


def test_bases_that_cannot_be_used(folder):
    """No folder of that name, an adapter, code: an error before anything is trained."""
    rows = ROWS["pairs"]
    for name, change, message in (
        ("nothing", shutil.rmtree, "cannot be loaded|is not a model"),
        ("code", lambda m: edit_config(m, auto_map={"AutoConfig": "x.C"}), "'auto_map'"),
        ("pickle", lambda m: (m / "model.safetensors").rename(m / "pytorch_model.bin"), "loaded"),
    ):
        base = folder / f"base of {name}"
        shutil.copytree(folder / "base", base)
        change(base)
        if name == "nothing":
            base.mkdir()
        with pytest.raises((ConfigError, GradingError), match=message):
            train_reward_model(rows, RewardTrainingConfig(str(base)), name=f"{folder}/to {name}")


def test_the_program_of_the_page_runs(tmp_path, proxy):
    """It prints what the page shows, but for digits that depend on the processor."""
    page = (HERE.parents[1] / "docs" / "how-to" / "train-a-grader.md").read_text()
    ((code, shown),) = PROGRAM.findall(page)
    call = {**command(tmp_path, proxy), "args": [sys.executable, "-c", code]}
    done = subprocess.run(**call, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    expected, found = shown.splitlines(), done.stdout.splitlines()
    assert found[0] == expected[0] and len(found) == len(expected)
    low, high = (float(line.split()[0]) for line in found[1:])
    assert low < high and "by labels; reward" in found[1]


def test_a_recipe_for_verl(trained, folder, cli):
    """verl's own loader composes the configuration, and reads the prompts and the reward."""
    pytest.importorskip("verl", reason="no verl")
    assert trained("pairs").returncode == 0
    done = cli(*train_command("pairs", "pairs", "--recipe", "verl"))
    assert done.returncode == 0, done.stderr
    recipe = folder / "pairs" / "verl"
    script = HERE / "verl_recipe_loader.py"
    found = subprocess.run(
        [sys.executable, script, recipe], capture_output=True, text=True, timeout=280, check=False
    )
    assert found.returncode == 0, found.stderr[-3000:]
    facts = json.loads(found.stdout.splitlines()[-1])
    assert facts["estimator"] == "grpo" and facts["base"] == "base"
    assert facts["prompts"] == 63
    assert facts["prompt"].startswith("Task ")
    low, high = facts["scores"]
    assert low < high
    shutil.rmtree(recipe)
