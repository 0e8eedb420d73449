"""Defaults from files and the environment."""

import json

import pytest

RUN = ("run", "x", "--response", "-", "--model", "none", "--trace")


def settings(redraft, *more, env=None, cwd=None):
    """The settings that a run used."""
    path = redraft.folder / f"{len(list(redraft.folder.iterdir()))}.jsonl"
    done = redraft(*RUN, path, *more, input="One.", env=env, cwd=cwd)
    assert done.returncode in {0, 3}, done.err
    header = json.loads(path.read_text().splitlines()[0])
    return {**header["settings"], "require": header["task"].get("requirements")}


def test_option_before_environment_before_file(redraft):
    """An option overrides the environment, and the environment overrides a file."""
    (redraft.folder / "redraft.toml").write_text(
        'max-iterations = 5\ndrafts = 4\ntarget-score = 0.5\nrequire = ["contains:One"]\n'
    )
    found = settings(
        redraft,
        "--max-iterations",
        "0",
        env={"REDRAFT_MAX_ITERATIONS": "1", "REDRAFT_DRAFTS": "2"},
    )
    assert (found["max-iterations"], found["drafts"], found["target-score"]) == (0, 2, 0.5)
    assert found["require"] == ["contains:One"]


def test_pyproject_applies_in_every_folder_of_its_repository(redraft):
    """[tool.redraft] applies in each folder of its repository; its paths are relative to the
    file.
    """
    (redraft.folder / ".git").mkdir()
    (redraft.folder / "schema.json").write_text('{"type": "string"}')
    (redraft.folder / "pyproject.toml").write_text(
        '[tool.redraft]\ndrafts = 2\nrequire = ["json_schema:schema.json"]\n'
    )
    below = redraft.folder / "a" / "b"
    below.mkdir(parents=True)
    found = settings(redraft, cwd=below)
    assert (found["drafts"], found["require"]) == (2, ['json_schema:{"type":"string"}'])


def test_outside_a_repository_only_the_current_folder_counts(redraft):
    """A file in a folder above has no effect."""
    (redraft.folder / "redraft.toml").write_text("drafts = 2\n")
    below = redraft.folder / "a"
    below.mkdir()
    assert settings(redraft, "--require", "contains:One", cwd=below)["drafts"] == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("max-iteration = 3", "did you mean 'max-iterations'"),
        ('target-score = "high"', "target-score must be a number in [0, 1], got 'high'"),
        ("target-score = 2", "target-score must be a number in [0, 1], got 2"),
        ("drafts = true", "drafts must be a whole number >= 1, got true"),
        ('require = "words:3"', "require must be a list of names such as"),
        ('api-key = "sk-1"', "read from the environment only"),
        ('model = "http://me:pw@host/v1#m"', "must not contain a user or a key"),
        ("target-score = ", "redraft.toml"),
    ],
)
def test_mistakes_name_the_file_and_the_key(redraft, line, said):
    """An invalid file is a usage error that says where and what."""
    (redraft.folder / "redraft.toml").write_text(f"{line}\n")
    done = redraft("run", "x", "--model", "none")
    assert done.returncode == 2
    assert "redraft.toml" in done.err and said in done.err
    assert "me:pw" not in done.err


def test_help_works_with_a_broken_file(redraft):
    """An invalid configuration file does not prevent --help."""
    (redraft.folder / "redraft.toml").write_text("target-score = \n")
    assert redraft("run", "--help").returncode == 0


def test_a_bad_value_in_the_environment_names_the_variable(redraft):
    """The error names the environment variable."""
    done = redraft("run", "x", env={"REDRAFT_TARGET_SCORE": "high"})
    assert done.returncode == 2 and "REDRAFT_TARGET_SCORE" in done.err
