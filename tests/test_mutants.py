"""`make mutants` on a small package: changes that no test notices are listed, others not, and the
checkout stays as it is.
"""

import re
import signal
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
PRICE = """def price(count, each=1):
    total = count * each
    if total > 100:
        total -= 10
    return total
"""
PRICE_TEST = """import pytest
from shop.prices import price


def test_price():
    assert price(3, 2) == 6
    assert price(20, 10) == 190
    assert price(3) == 3


def test_skipped():
    pytest.skip("is no failure")


def test_fails_anyway():
    assert price(100) == 0
"""
EDGE_TEST = """from shop.prices import price


def test_edge():
    assert (price(100), price(101)) == (100, 91)
"""
ENDLESS = """def count(end):
    while end > 0:
        end -= 1
    return end
"""
ENDLESS_TEST = """import pytest
from shop.counts import count


@pytest.mark.timeout(20)
def test_count():
    assert count(3) == 0
"""
SETTINGS = """[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = "-p no:schemathesis -p no:langsmith_plugin -p no:anyio"
"""
HOLES = {
    ("    if total > 100:", "    if total >= 100:"),
    ("    if total > 100:", "    if total > 101:"),
}
EVERY_KIND = [
    ("a + b", ["a - b"]),
    ("a ** b * c", ["a * b * c", "a ** b / c"]),
    ("(a) and (b\n  or c)", ["(a) or (b\n  or c)", "(a) and (b\n  and c)"]),
    ("a < b is not c", ["a <= b is not c", "a < b is c"]),
    ("é == a not in b", ["é != a not in b", "é == a in b"]),
    ("[a for a in b if a]", ["[a for a in b if (not (a))]"]),
    ("a if b else c", ["a if (not (b)) else c"]),
    ("max(a, b)", ["(a)", "(b)"]),
    (
        "f(a=True, b=7, c=0.0, d=None)",
        [
            "f(a=False, b=7, c=0.0, d=None)",
            "f(a=True, b=8, c=0.0, d=None)",
            "f(a=True, b=7, c=1.0, d=None)",
        ],
    ),
    ("not a", ["bool(a)"]),
    ("a + 'text'", []),
    ("zip(a, b, strict=True)", []),
    ("f'{a + b}'", []),
    ("isinstance(a, int | str)", []),
    ("log.info(a + b)", []),
]


@pytest.fixture(scope="module")
def mutations():
    """The module from scripts/, which is no package."""
    spec = spec_from_file_location("mutations", SCRIPTS / "mutations.py")
    module = sys.modules["mutations"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutations"]


@pytest.mark.parametrize(("expression", "expected"), EVERY_KIND)
def test_changes_of_an_expression(mutations, tmp_path, expression, expected):
    (path := tmp_path / "module.py").write_text(f"x = ({expression})\n", encoding="utf-8")
    assert {mutant.changed.decode() for mutant in mutations.Mutations(path).found} == {
        f"x = ({new})\n" for new in expected
    }


def test_changes_of_statements(mutations, tmp_path):
    (path := tmp_path / "module.py").write_text(
        """if TYPE_CHECKING:
    from a import b
@cache(maxsize=3)
def f(x: Literal[1] = None) -> Literal[2]:
    "A docstring."
    assert x > 3
    g(x)
    x += y
    log.debug("text", 1)
    return x
""",
        encoding="utf-8",
    )
    assert {
        mutant.diff.partition("\n+")[2].partition("\n")[0]
        for mutant in mutations.Mutations(path).found
    } == {
        "    pass",
        "    x -= y",
        "    return None",
    }


def test_a_seed_repeats_a_draw(mutations, tmp_path):
    """Nothing is drawn twice; a part without weight is not drawn; one that does not exist is
    named.
    """
    for name in "abc":
        (tmp_path / f"{name}.py").write_text("\n".join(f"x = y + {number}" for number in range(50)))
    draws = [
        [
            (mutant.path.name, mutant.diff)
            for mutant in mutations.draw(tmp_path, ["a", "b=3", "c=0"], 60, seed)
        ]
        for seed in "112"
    ]
    assert draws[0] == draws[1] != draws[2]
    assert len({*draws[0]}) == 60
    assert {name for name, _ in draws[0]} == {"a.py", "b.py"}
    assert len(mutations.draw(tmp_path, ["a:7"], 60, "1")) == 2
    for wrong in ("d", "a:x", "a=much", "../a"):
        with pytest.raises(ValueError, match=re.escape(wrong.partition("=")[2] or wrong)):
            mutations.draw(tmp_path, [wrong], 1, "1")


@pytest.fixture
def checkout(tmp_path):
    files = {
        "src/shop/__init__.py": "",
        "src/shop/prices.py": PRICE,
        "src/shop/counts.py": ENDLESS,
        "tests/test_prices.py": PRICE_TEST,
        "tests/test_counts.py": ENDLESS_TEST,
        "pyproject.toml": SETTINGS,
    }
    for script in SCRIPTS.glob("mut*.py"):
        files[f"scripts/{script.name}"] = script.read_text()
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    yield tmp_path
    assert {name: (tmp_path / name).read_text() for name in files} == files
    assert not [*(tmp_path / "build").glob("mutants-copies-*")]


def command(checkout, *arguments):
    return [sys.executable, str(checkout / "scripts" / "mutants.py"), *arguments]


def survivors(checkout, *arguments):
    """The lines that the listed changes remove and add, and the whole output."""
    output = subprocess.run(
        command(checkout, *arguments), capture_output=True, text=True, check=True
    ).stdout
    return {*re.findall(r"^-(.+)\n\+(.+)$", output, re.MULTILINE)}, output


@pytest.mark.slow
def test_what_no_test_notices_is_listed(checkout):
    """The tests know no price of about 100. That a condition is negated is noticed."""
    found, output = survivors(
        checkout, "--packages", "prices:3", "-n", "9", "--tests", "tests/test_prices.py"
    )
    assert found == HOLES
    assert (
        "1 tests fail without a change, and are left out: tests/test_prices.py::test_fails_anyway\n"
        in output
    )
    assert output.endswith("2 survived, 1 noticed\n")


@pytest.mark.slow
def test_a_further_test_closes_the_hole(checkout):
    """Only the tests of the new file are run for their lines; all other changes of the module were
    noticed already.
    """
    assert survivors(checkout, "--packages", "prices", "-n", "99")[0] == HOLES
    (checkout / "tests/test_edge.py").write_text(EDGE_TEST)
    found, output = survivors(checkout, "--packages", "prices:3", "-n", "99")
    assert "[0/1 files" in output
    assert not found


@pytest.mark.slow
def test_an_endless_loop_is_noticed_by_time(checkout):
    found, output = survivors(checkout, "--packages", "counts:3", "-n", "9")
    assert re.search(r"noticed by time: src/shop/counts.py:3 operator", output)
    assert not found


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(checkout):
    """Runs in progress are killed, and their copies removed."""
    with subprocess.Popen(
        command(checkout, "--packages", "counts", "-n", "99"), stdout=subprocess.PIPE, text=True
    ) as process:
        while not process.stdout.readline().startswith("Trying"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert "Interrupted" in process.stdout.read()
        assert process.wait() == 130
