"""The public names and the layers: what users may rely on, and the direction of imports."""

import pickle
import subprocess
import sys
import tomllib
from importlib import import_module
from inspect import iscoroutinefunction, signature, unwrap
from pathlib import Path

import pytest

import redraft
from each_row import each_row
from redraft import errors
from redraft.base.lazy_imports import extension

ROOT = Path(__file__).parents[1]


def test_imports_follow_the_layers():
    """The contracts of [tool.importlinter] set the direction of imports and what the pure packages
    may not import, and forbid cycles.
    """
    pytest.importorskip("importlinter", reason="no import-linter")
    lint = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as lint; lint()",
        "--no-cache",
    ]
    ended = subprocess.run(lint, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_contracts_count_every_import():
    """Imports for type checkers count, and every module is on a layer."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert config["exclude_type_checking_imports"] is False
    contracts = {contract["id"]: contract for contract in config["contracts"]}
    assert contracts["layers"]["exhaustive"] is True
    layers = [set(layer.split(" | ")) for layer in contracts["layers"]["layers"]]
    below = next(n for n, layer in enumerate(layers, 1) if "sandbox" in layer)
    core = sorted(f"redraft.{name}" for name in set().union(*layers[below:]))
    assert contracts["core"]["source_modules"] == core


def test_what_the_core_uses_of_other_rooms_is_there():
    """The core finds it by name, which no contract sees: it is in the rooms that extend the core."""
    assert sorted(redraft.EXTENSIONS) == ["graders", "observer", "sandbox", "tests", "trained"]
    for name, module in redraft.EXTENSIONS.items():
        assert module.partition(".")[0] in {"sandbox", "telemetry", "train"}
        assert extension(name) is import_module(f"redraft.{module}")


def test_the_public_names_are_sorted_and_documented():
    """They are few, and each exists."""
    assert redraft.__all__ == sorted(redraft.__all__)
    assert len(redraft.__all__) <= 27
    assert all(getattr(redraft, name).__doc__ for name in redraft.__all__)
    assert set(redraft._LAZY_MODULES) == set(redraft.__all__)


@pytest.mark.parametrize("name", redraft._MOVED_NAMES)
def test_a_name_that_moved_says_where_it_is(name):
    """The error names the module that has it."""
    module = f"redraft.{redraft._MOVED_NAMES[name]}"
    with pytest.raises(AttributeError, match=rf"redraft\.{name} is in {module}$"):
        getattr(redraft, name)
    assert hasattr(import_module(module), name)
    assert name not in dir(redraft)


LAZY_PACKAGES = [
    "answers",
    "sandbox.code",
    "comparison",
    "graders",
    "middleware",
    "models",
    "plans",
    "requirements",
    "rewards",
    "runs",
    "sandbox",
    "storage",
    "tables",
    "validation",
    "viewer",
]


@pytest.mark.parametrize("name", LAZY_PACKAGES)
def test_packages_list_what_they_offer(name):
    """Completion finds the names that are loaded when they are first used."""
    package = import_module(f"redraft.{name}")
    assert dir(package) == sorted(package.__all__)
    assert all(hasattr(package, each) for each in package.__all__)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("redraft", "refine"),
        ("redraft", "grade"),
        ("redraft", "batch"),
        ("redraft", "calibrate"),
        ("redraft.comparison", "compare"),
        ("redraft.validation", "validate"),
        ("redraft.validation", "compare_graders"),
    ],
)
def test_a_function_without_await_looks_like_the_one_that_it_calls(module, name):
    """Completion, help and pickle find its own name, and the same arguments."""
    package = import_module(module)
    awaited, called = getattr(package, name), getattr(package, f"{name}_sync")
    assert called.__name__ == f"{name}_sync" and pickle.loads(pickle.dumps(called)) is called
    assert signature(called) == signature(awaited)
    assert not iscoroutinefunction(unwrap(called))
    assert called.__doc__.startswith(f"Call `{name}` without await")


def test_errors_are_one_tree():
    """Every error in redraft.errors is a RedraftError with that name."""
    named = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, Exception)}
    assert set(errors.ERROR_TYPES) == named
    assert all(issubclass(getattr(errors, n), errors.RedraftError) for n in named)


def test_errors_need_no_import_of_their_own():
    """`except redraft.errors.ConfigError` works where only redraft was imported."""
    subprocess.run([sys.executable, "-c", "import redraft; redraft.errors.ConfigError"], check=True)


def test_importing_does_nothing():
    """It prints nothing and loads no slow package."""
    script = "import sys, redraft; print(sorted({'aiohttp','rich','click','pydantic','numpy','orjson','asyncio'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


RARELY_USED = (
    "redraft.answers.json_forms",
    "redraft.graders.aliases",
    "redraft.graders.judging.checklist",
    "redraft.graders.judging.ranking",
    "redraft.graders.reward",
    "redraft.graders.composite",
    "redraft.models.discovery",
    "redraft.runs",
    "redraft.storage.journal",
    "redraft.validation.api",
    "sqlite3",
    "urllib.request",
)


def test_refine_loads_what_every_run_needs_and_no_more():
    """What few runs use is loaded by those runs, so that a program that refines starts quickly."""
    script = f"import sys, redraft; redraft.refine, redraft.Judge; print(sorted({set(RARELY_USED)} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow(but_each=5)
@pytest.mark.parametrize("package", ["redraft", *(f"redraft.{name}" for name in LAZY_PACKAGES)])
def test_names_that_load_on_first_use_exist(package):
    """Every name of the package can be imported in a new process, and any other is an error that
    names the package.
    """
    script = f"import {package} as p; [getattr(p, name) for name in p.__all__]; p.no_such_name"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (
        ended.stderr.splitlines()[-1]
        == f"AttributeError: module {package!r} has no attribute 'no_such_name'"
    )


@each_row("package", ["redraft", *(f"redraft.{name}" for name in LAZY_PACKAGES)])
def test_names_that_load_on_first_use_are_no_mistakes(package):
    """The same in one process, for every package."""
    module = import_module(package)
    for name in module.__all__:
        getattr(module, name)
    with pytest.raises(
        AttributeError, match=f"^module '{package}' has no attribute 'no_such_name'$"
    ):
        module.no_such_name


def test_pyproject_and_the_package_have_the_same_version():
    """The version is stated in both."""
    from importlib.metadata import version

    assert version("redraft") == redraft.__version__
