"""The public surface and the floors: what people may rely on, and which way imports point."""

import ast
import subprocess
import sys
from pathlib import Path

import redraft
from redraft import errors

SOURCE = Path(redraft.__file__).parent
FLOORS = {
    "core": 0,
    "errors": 0,
    "masking": 0,
    "checks": 0,
    "contracts": 1,
    "ledger": 1,
    "perform": 1,
    "reservations": 1,
    "around": 1,
    "text": 1,
    "jsontext": 0,
    "small_files": 1,
    "tomltext": 1,
    "yamltext": 1,
    "compute": 1,
    "models": 2,
    "graders": 2,
    "editors": 2,
    "requirements": 2,
    "stores": 2,
    "datasets": 2,
    "sync": 3,
    "error_text": 1,
    "options": 3,
    "casting": 3,
    "result": 3,
    "api": 3,
    "validation": 3,
    "runs": 3,
    "cli": 4,
}
WORLD = {"os", "time", "random", "socket", "pathlib", "subprocess", "threading", "datetime", "secrets", "aiohttp", "sqlite3"}


def modules():
    return [p for p in sorted(SOURCE.rglob("*.py")) if p.relative_to(SOURCE).as_posix() not in ("__init__.py", "__main__.py")]


def imported(path):
    """Every module that a file imports, as absolute dotted names, typing-only imports included."""
    package = ["redraft", *path.relative_to(SOURCE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            root = ".".join([*base, *([node.module] if node.module else [])])
            yield root
            yield from (f"{root}.{a.name}" for a in node.names)


def floor_of(dotted):
    parts = dotted.split(".")
    return FLOORS.get(parts[1]) if parts[0] == "redraft" and len(parts) > 1 else None


def test_imports_point_down_only():
    """No module imports from a floor above its own."""
    climbing = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in modules()
        for name in imported(path)
        if (target := floor_of(name)) is not None and target > FLOORS[path.relative_to(SOURCE).with_suffix("").parts[0]]
    ]
    assert climbing == []


def test_every_module_stands_on_a_floor():
    """A new top-level module has to choose one."""
    assert {p.relative_to(SOURCE).with_suffix("").parts[0] for p in modules()} == set(FLOORS)


def test_the_core_knows_no_world():
    """Floor 0 imports no clock, no chance, no file, no socket; the engine, and what ends its tasks, may use asyncio."""
    for path in (SOURCE / "core").rglob("*.py"):
        names = {name.split(".")[0] for name in imported(path)}
        assert not names & WORLD, path
        assert "asyncio" not in names or path.name in {"engine.py", "tasks.py"}, path


def test_the_public_names():
    """Sorted, few, each there and documented."""
    assert redraft.__all__ == sorted(redraft.__all__)
    assert len(redraft.__all__) <= 29
    assert all(getattr(redraft, name).__doc__ for name in redraft.__all__)
    assert set(redraft._LAZY_MODULES) == set(redraft.__all__)


def test_errors_are_one_tree():
    """Everything raised is a RedraftError, and every error is in redraft.errors."""
    from redraft import errors as drawn

    named = {n for n, v in vars(drawn).items() if isinstance(v, type) and issubclass(v, Exception)}
    assert set(errors.__all__) == named
    assert all(issubclass(getattr(errors, n), errors.RedraftError) for n in named)


def test_errors_are_there_without_an_import_of_their_own():
    """`except redraft.errors.ConfigError` works where only redraft was imported."""
    subprocess.run([sys.executable, "-c", "import redraft; redraft.errors.ConfigError"], check=True)


def test_importing_does_nothing():
    """No output, and nothing heavy is loaded."""
    script = (
        "import sys, redraft; print(sorted({'aiohttp','rich','click','pydantic','numpy','orjson','asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_version_is_one():
    """pyproject and the package say the same."""
    from importlib.metadata import version

    assert version("redraft") == redraft.__version__
