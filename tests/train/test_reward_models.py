"""What a reward model is trained on, its configuration, and its files, without the libraries that
train it.
"""

import json
import sys
from dataclasses import asdict

import pytest

from redraft.errors import ConfigError
from redraft.graders import as_grader
from redraft.graders.fingerprint import grader_fingerprint
from redraft.graders.reward import Reward
from redraft.loop.records import Candidate
from redraft.loop.task import Task
from redraft.train import RewardTrainingConfig, train_reward_model
from redraft.train.head import Features, Head
from redraft.train.reward_training import preference_pairs, read_losses
from redraft.validation import read_cases
from redraft.viewer.training_page import training_page

CONFIG = RewardTrainingConfig("base")
HEAD = Head(("reward",), (0.5,), (2.0,), (-9.0,), (9.0,), (3.0,), 0.25, ((3.0, 0.25),))
FILE = {"redraft_trained": 2, "reward_model": "ab" * 32, "max_tokens": 99, "head": asdict(HEAD)}


def texts(rows, config=CONFIG):
    """Return the pairs of answers of labelled rows, and the number of prompts."""
    pairs, prompts = preference_pairs(read_cases(rows).cases, config)
    return sorted((a[-1]["content"], b[-1]["content"]) for a, b in pairs), prompts


def test_scores_of_one_prompt_are_pairs():
    """The better one first; equal labels and single answers make none."""
    labels = {"p": {"x": 1, "y": 3, "z": 3}, "q": {"v": 5}, "r": {"s": 2, "t": 2}}
    rows = [
        {"prompt": prompt, "response": text, "label": label}
        for prompt, answers in labels.items()
        for text, label in answers.items()
    ]
    assert texts(rows) == ([("y", "x"), ("z", "x")], 1)


def test_pairs_and_rankings():
    """A tie makes none, and a prompt has no more than the configuration says."""
    rows = [
        {"prompt": f"{n}", "response_a": "x", "response_b": "y", "label": label}
        for n, label in enumerate(("a", "b", "tie"))
    ]
    assert texts(rows) == ([("x", "y"), ("y", "x")], 2)
    row = {"prompt": "p", "responses": ["x", "y", "z"], "ranking": [2, 1, 3]}
    assert texts([row]) == ([("x", "z"), ("y", "x"), ("y", "z")], 1)
    found, _ = texts([row], RewardTrainingConfig("base", max_pairs=2))
    assert len(found) == 2


def test_no_pairs_are_an_error(tmp_path):
    """It says why, before anything is stored or loaded."""
    rows = [{"prompt": f"{n}", "response": "x " * n + "y", "label": n % 5} for n in range(40)]
    with pytest.raises(ConfigError, match="no pairs: .* same prompt .* among 18 labelled rows"):
        train_reward_model(rows, CONFIG, name=f"{tmp_path}/a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("missing", ["trl", "transformers"])
async def test_the_extra_is_named(missing, tmp_path, monkeypatch):
    """Where a library is missing, before anything is stored; a grader that is there has no score."""
    monkeypatch.setitem(sys.modules, missing, None)
    rows = [
        {"prompt": f"{n}", "response_a": "x", "response_b": "y", "label": "a"} for n in range(40)
    ]
    if missing == "trl":
        with pytest.raises(ConfigError, match=r"pip install 'redraft\[train\]'"):
            train_reward_model(rows, CONFIG, name=f"{tmp_path}/a")
        assert not (tmp_path / "a").exists()
    else:
        grader = write(tmp_path / "a")
        with pytest.raises(ConfigError, match=r"pip install 'redraft\[train\]'"):
            await grader.grade(Task("q"), Candidate(0, "a"), None)


WRONG = {
    "no base": dict(base=" "),
    "no rank": dict(base="b", lora=0),
    "no steps": dict(base="b", epochs=0),
    "a rate as text": dict(base="b", learning_rate="1"),
    "no batch": dict(base="b", batch_size=0),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_configuration_that_cannot_be(case, tmp_path):
    """It is refused in Python and in a file, which has no other keys and versions."""
    with pytest.raises(ConfigError):
        RewardTrainingConfig(**WRONG[case])
    path = tmp_path / "training.json"
    for data in (
        {"redraft_training": 1, "config": WRONG[case]},
        {"redraft_training": 2, "config": {"base": "b"}},
        {"redraft_training": 1, "config": {"base": "b", "trust_remote_code": True}},
        {"redraft_training": 1},
        [],
    ):
        path.write_text(json.dumps(data))
        with pytest.raises(ConfigError, match="is not a configuration of a training"):
            RewardTrainingConfig.from_file(path)


def test_the_configuration_is_resolved():
    """Nothing is left open, and a file of it gives it again."""
    assert CONFIG.with_rate.learning_rate == 1e-5
    assert RewardTrainingConfig("b", lora=8).with_rate.learning_rate == 1e-4
    assert RewardTrainingConfig("b", learning_rate=0.5).with_rate.learning_rate == 0.5


def write(folder, **changes):
    folder.mkdir(exist_ok=True)
    (folder / "grader.json").write_text(json.dumps({**FILE, **changes}))
    return as_grader(f"trained:{folder}")


def test_other_weights_are_another_grader(tmp_path):
    """The digest and the head are in the fingerprint; the place and the name are not."""

    def fingerprint(folder, **changes):
        return grader_fingerprint(write(tmp_path / folder, **changes), str)

    assert fingerprint("a") == fingerprint("b")
    others = (
        {"reward_model": "cd" * 32},
        {"max_tokens": 98},
        {"head": {**asdict(HEAD), "intercept": 0.0}},
    )
    assert len({fingerprint("a"), *(fingerprint("a", **each) for each in others)}) == 4


def test_a_server_of_the_model_gives_the_same_scores(tmp_path):
    """By `center` and `scale` of the grader "reward:"."""
    grader = write(tmp_path / "a")
    center, scale = grader.scale
    served = Reward("http://127.0.0.1:1/classify#m", center=center, scale=scale)
    for raw in (-3.0, 0.0, 2.5):
        score = grader.head.score(Features({"reward": raw}))
        assert served.map(raw) == pytest.approx(score.value)


DAMAGED = {
    "no digest": {"reward_model": None},
    "no length": {"max_tokens": 0},
    "a long length": {"max_tokens": 10**9},
    "another head": {"head": {**asdict(HEAD), "names": ["judge"]}},
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_file_of_something_else(case, tmp_path):
    """It is named before a model is loaded."""
    with pytest.raises(ConfigError, match=r"grader\.json is not a trained grader: .{8}"):
        write(tmp_path / "a", **DAMAGED[case])


STEPS = [
    {"step": 1, "loss": 0.7, "accuracy": 0.5, "grad_norm": 1.0},
    {"step": 2, "eval_loss": 0.6, "epoch": 1.0},
    {"step": 2, "loss": 0.5},
    {"step": 2, "train_runtime": 3.0},
]


def test_losses_are_read_and_drawn(tmp_path):
    """Both curves with their numbers; unknown is a dash, and markup is none."""
    (tmp_path / "losses.json").write_text(json.dumps({"redraft_losses": 1, "steps": STEPS}))
    losses = read_losses(tmp_path)
    assert losses[0] == {"step": 1, "loss": 0.7, "accuracy": 0.5}
    page = training_page("trained:<b>", losses)
    assert "training: 0.700 at step 1, 0.500 at step 2" in page
    assert "other labels: 0.600 at step 2" in page
    assert "trained:&lt;b&gt;" in page and "<b>" not in page and "–" in page
    assert "fewer than two steps" in training_page("a", losses[:1])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"steps": 3}', '{"steps": [3]}', '{"steps": [{}]}'])  # fmt: skip
def test_losses_of_something_else(text, tmp_path):
    """A clear error."""
    (tmp_path / "losses.json").write_text(text)
    with pytest.raises(ConfigError, match="has no losses of a training"):
        read_losses(tmp_path)
