"""One declaration for each setting: keyword arguments, options, keys and checks follow from it."""

from dataclasses import MISSING, fields
from typing import get_args

import click
import pytest

from redraft.cli import COMMANDS, program
from redraft.cli.commands.batch import batch
from redraft.cli.commands.run import run
from redraft.cli.options import SettingOption, setting_keys
from redraft.errors import ConfigError
from redraft.plans import CostUnit
from redraft.runs import BatchSettings
from redraft.runs.config import BatchCallbacks, BatchConfig
from redraft.session.options import Options
from redraft.settings import (
    BatchFields,
    CalibrationSettings,
    EndpointLimits,
    ExecutionEngine,
    GradeSettings,
    Keyword,
    Mode,
    OnDuplicate,
    OptionFields,
    Settings,
    Validation,
    ValidationSettings,
    info_of,
    names_of,
    settings_of,
)
from redraft.storage.schema import Durability

DECLARATIONS = (OptionFields, BatchFields, BatchCallbacks, EndpointLimits)
DECLARED = [pytest.param(f, id=f.name) for declaration in DECLARATIONS for f in fields(declaration)]


def test_the_keyword_arguments_equal_the_declared_settings():
    """The generated typed dictionaries have every setting and no other."""
    names = [n for n, info in settings_of(OptionFields).items() if not info.has_own_parameter]
    assert sorted(Settings.__annotations__) == sorted(names)
    more = settings_of(BatchFields, BatchCallbacks)
    assert sorted(BatchSettings.__annotations__) == sorted([*names, *more])


@pytest.mark.parametrize(
    ("function", "dictionary"),
    [
        ("grade", GradeSettings),
        ("calibrate", CalibrationSettings),
        ("validate", ValidationSettings),
    ],
)
def test_a_function_has_the_settings_that_name_it(function, dictionary):
    """Its typed dictionary has those, and no other."""
    assert sorted(dictionary.__annotations__) == sorted(names_of(OptionFields, used_by=function))


@pytest.mark.parametrize("declared", DECLARED)
def test_every_default_passes_its_own_check(declared):
    """The default of each setting is allowed."""
    info = info_of(declared)
    assert declared.default is not MISSING
    info.kind.check(declared.name, declared.default, optional=info.optional)


@pytest.mark.parametrize("declared", [p for p in DECLARED if info_of(p.values[0]).on_command_line])
def test_an_option_and_its_key_have_the_name_of_the_setting(declared):
    """Python, the command line and configuration files use one word, explained by the same
    sentence.
    """
    option = {p.name: p for command in (batch, run) for p in command.params}[declared.name]
    info, name = info_of(declared), declared.name.replace("_", "-")
    assert max(option.opts, key=len) == (f"--{name}" if len(name) > 1 else f"-{name}")
    assert option.help == info.help
    assert isinstance(option, SettingOption) == info.in_files
    if isinstance(option, SettingOption):
        # a variable holds one value
        variable = None if option.multiple else f"REDRAFT_{declared.name.upper()}"
        assert (option.key, option.envvar) == (name, variable)


def test_the_keys_of_files_are_those_of_all_commands():
    """A configuration file serves every command, so each key of one is known to all."""
    commands = [program.get_command(click.Context(program), name) for name in COMMANDS]
    every = [command for c in commands for command in (c, *getattr(c, "commands", {}).values())]
    assert set(setting_keys()) == {
        p.key for command in every for p in command.params if isinstance(p, SettingOption)
    }


@pytest.mark.parametrize(
    ("declaration", "name", "words"),
    [
        (OptionFields, "cost_unit", CostUnit),
        (OptionFields, "require_validated", Validation),
        (BatchFields, "mode", Mode),
        (BatchFields, "on_duplicate", OnDuplicate),
        (BatchFields, "engine", ExecutionEngine),
        (BatchFields, "durability", Durability),
    ],
)
def test_a_choice_allows_the_words_of_its_type(declaration, name, words):
    """The type checker and the check at run time agree."""
    kind = info_of(next(f for f in fields(declaration) if f.name == name)).kind
    assert isinstance(kind, Keyword) and kind.choices == get_args(words)


def test_options_without_arguments_are_the_declared_defaults():
    """No default is stated a second time."""
    options = Options()
    assert all(getattr(options, f.name) == f.default for f in fields(OptionFields))
    config = BatchConfig.from_settings("in.jsonl", "out.jsonl", options=options)
    same = [
        f
        for f in fields(BatchFields)
        if f.name not in {"journal", "name", "errors", "columns", "limits"}
    ]
    assert all(getattr(config, f.name) == f.default for f in same)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"initial_in_flight": 0}, "initial_in_flight must be a whole number >= 1, got 0"),
        ({"rpm": 0}, "rpm must be a number > 0 or None, got 0"),
        ({"give_up_after": -1}, "give_up_after must be a number > 0, got -1"),
    ],
)
def test_invalid_limits_are_refused(settings, said):
    """The error has the name, the value and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        EndpointLimits(**settings)
    assert str(caught.value) == said
