"""Plan files: what `--plan` reads, what it refuses, and where the settings of the plan went that
were options.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest

from redraft import Task, Trace
from redraft.cli.options import PLAN_KEYS, PLAN_SETTINGS
from redraft.plans.quality.priors import Priors

VALUES = {
    "patience": 7,
    "min-delta": 0.25,
    "min-expected-gain": 0.5,
    "confidence": 0.75,
    "cost-unit": "tokens",
    "noise-aware": True,
}
DEFAULTS = {
    "min-delta": 0.01,
    "confidence": 0.6,
    "cost-unit": "calls",
}
RUN = ("run", "x", "--response", "-", "--model", "none", "--require", "contains:One")


def settings_of(redraft, *more, env=None):
    """The settings in the trace of a run."""
    path = redraft.folder / f"{len(list(redraft.folder.iterdir()))}.jsonl"
    done = redraft(*RUN, "--trace", path, *more, input="One.", env=env)
    assert done.returncode == 0, done.err
    held = json.loads(path.read_text().splitlines()[0])["settings"]
    return {key: value for key, value in held.items() if key in PLAN_KEYS}


def test_a_plan_file_has_every_setting_of_the_plan(redraft):
    """Each reaches the run, whose trace saves it with the defaults of the others, under the name
    that it has had before.
    """
    assert {*VALUES, "priors"} == set(PLAN_KEYS)  # priors: tests/cli/test_priors.py
    assert settings_of(redraft) == DEFAULTS
    for key, value in VALUES.items():
        found = settings_of(redraft, *redraft.plan(**{key: value}))
        assert found == {**DEFAULTS, key: value}, key
    assert settings_of(redraft, *redraft.plan(**VALUES)) == VALUES


def test_the_example_in_the_docs_is_a_plan_file(redraft):
    """Its settings reach a run."""
    page = (Path(__file__).parents[2] / "docs" / "adaptive.md").read_text()
    [example] = re.findall(r'```toml title="plan.toml"\n(.*?)```', page, re.DOTALL)
    (redraft.folder / "plan.toml").write_text(example)
    found = settings_of(redraft, "--plan", "plan.toml")
    said = tomllib.loads(example)
    assert {key: found[key] for key in found if key in said} == {
        key: value for key, value in said.items() if key != "priors"
    }


MISTAKES = {
    "patience = 0": ["patience must be a whole number >= 1, got 0"],
    "patience = 1.5": ["patience must be a whole number >= 1, got 1.5"],
    "patience = true": ["patience must be a whole number >= 1, got true"],
    "patience = [false, 'True']": ["patience must be a whole number >= 1, got [false, 'True']"],
    "min-delta = -0.5": ["min-delta must be a number >= 0, got -0.5"],
    'min_delta = "much"': ["min-delta must be a number >= 0, got 'much'"],
    "min-delta = nan": ["min-delta must be a number >= 0, got nan"],
    "min-expected-gain = -1": ["min-expected-gain must be a number >= 0, got -1"],
    "confidence = 1": ["confidence must be a number in [0.01, 0.99], got 1"],
    "confidence = [0.5]": ["confidence must be a number in [0.01, 0.99], got [0.5]"],
    'cost-unit = "dollars"': ["cost-unit must be one of calls, tokens, usd, got 'dollars'"],
    "cost-unit = 1": ["cost-unit must be one of calls, tokens, usd, got 1"],
    'noise-aware = "yes"': ["noise-aware must be true or false, got 'yes'"],
    "priors = 3": ["priors must be text", "got 3"],
    'priors = "taught"': ["priors", "taught", "shipped", "learned"],
    "priors = { draft_mean = 0.3 }": ["priors must be text"],
    "patiense = 3": ["'patiense'", "did you mean 'patience'"],
    "drafts = 3": ["'drafts'", "unknown key"],
    'model = "openai:gpt-4o"': ["'model'", "unknown key"],
    "width = 3": ["width is no longer a setting"],
    "tie_break = true": ["tie-break is no longer a setting"],
    "unseen-last = true": ["unseen-last is no longer a setting"],
    "[plan]\npatience = 3": ["'plan'", "unknown key"],
    "patience =": ["Invalid value"],
    "noise-aware = false\nconfidence = 0.9": ["noise-aware", "confidence", "leave out one"],
    "noise-aware = false\ncost_unit = 'usd'\npriors = 'shipped'": ["cost-unit, priors"],
}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_a_plan_file_is_named(redraft, text):
    """By file, key and value, with what is allowed, by each command that reads one, before it
    calls or writes anything.
    """
    (redraft.folder / "plan.toml").write_text(text)
    (redraft.folder / "in.jsonl").write_text('{"prompt": "x"}\n')
    for command in (RUN, ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "none")):
        done = redraft(*command, "--plan", "plan.toml", input="One.")
        assert done.returncode == 2, done.err
        assert [word for word in ("plan.toml: ", *MISTAKES[text]) if word not in done.err] == []
    assert not (redraft.folder / "out.jsonl").exists()


def test_a_mistake_in_a_settings_file_is_told_in_words_of_toml(redraft):
    """Those in redraft.toml as those in a plan file; text stays as it is."""
    for text, said in {
        "max-iterations = true": "max-iterations must be a whole number >= 0, got true",
        "editor = 'True'": "editor must be true or false, got 'True'",
        "require = ['words:1-2', false]": "got ['words:1-2', false]",
    }.items():
        (redraft.folder / "redraft.toml").write_text(text)
        done = redraft(*RUN, input="One.")
        assert (done.returncode, said in done.err) == (2, True), done.err


def test_a_missing_plan_file_is_named(redraft):
    """As for every option that names a file."""
    done = redraft(*RUN, "--plan", "absent.toml", input="One.")
    assert done.returncode == 2 and "--plan" in done.err and "absent.toml" in done.err


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("command", ["run", "batch"])
@pytest.mark.parametrize("each", PLAN_SETTINGS, ids=lambda each: each.key)
def test_a_former_option_variable_or_key_says_where_it_went(redraft, each, command):
    """In a plan file, or in Python only."""
    given = {
        "run": RUN,
        "batch": ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "none"),
    }[command]
    (redraft.folder / "in.jsonl").write_text('{"prompt": "x"}\n')
    now = "--plan plan.toml" if each.key in PLAN_KEYS else "in Python only"
    done = redraft(*given, f"--{each.key}", "1", input="One.")
    assert done.returncode == 2 and f"no such option: --{each.key}" in done.err
    assert now in done.err, done.err
    variable = f"REDRAFT_{each.key.replace('-', '_').upper()}"
    done = redraft(*given, input="One.", env={variable: "1"})
    assert done.returncode == 2 and variable in done.err and now in done.err, done.err
    for key in (each.key, each.name):
        (redraft.folder / "redraft.toml").write_text(f"{key} = 1\n")
        done = redraft(*given, input="One.")
        assert done.returncode == 2 and "redraft.toml: " in done.err and now in done.err, done.err


def test_the_other_form_of_a_former_flag_says_where_it_went(redraft):
    """--no-noise-aware had no name of its own in a file."""
    done = redraft(*RUN, "--no-noise-aware", input="One.")
    assert done.returncode == 2 and "write `noise-aware = ...`" in done.err


def test_the_command_line_before_the_environment_before_a_file(redraft):
    """One plan file is used, not parts of several."""
    for name, patience in (("a", 3), ("b", 4), ("c", 5)):
        (redraft.folder / f"{name}.toml").write_text(f"patience = {patience}\n")
    (redraft.folder / "redraft.toml").write_text('plan = "a.toml"\n')
    assert settings_of(redraft)["patience"] == 3
    assert settings_of(redraft, env={"REDRAFT_PLAN": "b.toml"})["patience"] == 4
    named = settings_of(redraft, "--plan", "c.toml", env={"REDRAFT_PLAN": "b.toml"})
    assert named["patience"] == 5


def test_a_trace_keeps_its_plan_unless_one_is_typed(redraft, serve):
    """What the typed plan says replaces the trace's settings; what it leaves out stays. A plan that
    a settings file names replaces nothing.
    """
    own = {"confidence": 0.9, "min-expected-gain": 0.3, "priors": Priors(gain=0.2).to_dict()}
    (redraft.folder / "redraft.toml").write_text('plan = "plan.toml"\n')
    redraft.plan(confidence=0.7)
    used = {}
    for name, more in (("kept", ()), ("typed", ("--plan", "plan.toml"))):
        (redraft.folder / "t.jsonl").write_text(
            json.dumps(Trace(Task("Say it"), settings=own).header()) + "\n"
        )
        server = serve(lambda messages, n: "One.")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "redraft.cli.commands.run.build_request",
                lambda settings, *_, name=name, **__: used.update({name: settings}) or 1 / 0,
            )
            redraft("run", "--resume", "t.jsonl", "--model", server.model, *more)
    names = ("confidence", "min_expected_gain", "priors")
    assert [[used[name][each] for each in names] for name in ("kept", "typed")] == [
        [0.9, 0.3, Priors(gain=0.2)],
        [0.7, 0.3, Priors(gain=0.2)],
    ]
