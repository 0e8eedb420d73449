"""Prepares test code for running apart from the candidate: what its parts are, and which names
stand for the candidate.

A part counts as one test. In `def check(candidate)`, and in code without functions, each statement
with an assertion is one; in a file for pytest or unittest each test function or method. The code is
read and rewritten here, and never executed.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
import re
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec

from ...answers.python_source import PARSER_ERRORS, FunctionNode, parse
from ...errors import ConfigError
from .arguments import checks_arguments, root
from .asserts import (
    CHECK_FUNCTION,
    awaited_expression,
    check_function,
    checked_name,
    says_nothing,
)

NAMES = {
    "part": "_part_of_the_tests",
    "reached": "_assertion_reached",
    "candidate": "_the_candidate",
}
SOLUTION = "solution"  # the module name of the candidate
CANDIDATE_MODULES = (SOLUTION, "candidate", "answer", "main", "submission")
# the second one is stood for where it is not installed
PYTEST_MODULES = ("pytest", "pytest_asyncio")
MODULE_NAMES = {"__name__", "__file__", "__doc__", "__builtins__"}
MAX_PART_TEXT = 300
# of values that arrive as something simpler: a list, a dictionary, an iterator, a proxy
LOST_CLASSES = {
    *(
        "Counter",
        "OrderedDict",
        "defaultdict",
        "ChainMap",
        "Generator",
        "Coroutine",
        "GeneratorType",
        "CoroutineType",
    ),
    *("FunctionType", "LambdaType", "MethodType", "Enum", "IntEnum", "Flag", "IntFlag"),
}


FILES = (  # names in tests that share files with a program
    "open", "write_text", "write_bytes", "read_text", "read_bytes", "touch", "mkdir", "makedirs", "exists", "isfile", "isdir",  # noqa: E501
    "is_file", "listdir", "tempfile", "tmp_path", "tmpdir",
)  # fmt: skip
# what tests and the program have in common in one process: names in the tests, what is in the
# program, and what it is
UNSHARED = (
    ({"seed", "manual_seed"}, r"rand|shuffle|uuid|secrets", "seed random numbers (seed)"),
    (
        {"redirect_stdout", "redirect_stderr", "stdout", "stderr", "capfd"},
        r"print|write|stdout|stderr",
        "read what is printed",
    ),
    ({"stdin"}, r"input|stdin", "give a standard input"),
    ({"argv"}, r"argv|argparse", "set the arguments of the command line"),
    (
        {"environ", "putenv", "chdir"},
        r"\bos\b|\bPath\b|\bopen\b|environ|getenv",
        "set the environment or the working folder",
    ),
    (
        {*FILES},
        r"\bopen\b|\bPath\b|\bos\b|\bread|\bto_|save|sqlite3|shutil|glob|zipfile|tarfile",
        "share files with it",
    ),
    ({"warns", "assertWarns", "catch_warnings", "recwarn"}, r"warn", "look at warnings"),
    ({"assertLogs", "assertNoLogs", "caplog"}, r"\blogg", "look at logs"),
    (
        {"getcontext", "setcontext", "localcontext"},
        r"[dD]ecimal",
        "set the context of decimal numbers",
    ),
    ({"setrecursionlimit"}, r"RecursionError", "set the limit of recursion"),
    (
        {"cancel", "TimeoutError", "CancelledError"},
        r"async",
        "cancel what is awaited, or limit its time",
    ),
    ({"sleep"}, r"has_tasks", "wait while tasks of the program run"),
    ({"patch"}, r"", "replace what it uses (patch)"),
)


@dataclass(frozen=True)
class TestCode:
    """Test code that is ready to run.

    - `source`: the rewritten code; `check`: the name of its check function, or "".
    - `parts`: the text of each numbered part; `functions`: the test functions without
      parameters, a part each, and whether an assertion of theirs must be reached.
    - `candidate_names`, `exceptions`, `modules`: the names that stand for functions and classes,
      exceptions and modules of the candidate.
    - `needs`: why the code needs the objects of the candidate themselves; "" if it does not.
    - `uses_pytest`: whether pytest runs it.
    - `compares_arguments`: whether it checks an argument of the candidate after the call, which the
      call may have changed.
    """

    __test__ = False

    source: str
    check: str
    parts: tuple[str, ...]
    functions: tuple[tuple[str, bool], ...]
    entry_point: str | None
    candidate_names: tuple[str, ...]
    exceptions: tuple[str, ...]
    modules: tuple[str, ...]
    needs: str
    uses_pytest: bool = False
    compares_arguments: bool = False


def read_test_code(
    source: str, entry_point: str | None = None, packages: Container[str] = ()
) -> TestCode:
    """Return test code that is ready to run. Raises ConfigError if nothing in it is a test."""
    tree = parse(source)
    check = check_function(tree)
    entry_point = entry_point or checked_name(tree)
    modules = tuple(dict.fromkeys(_candidate_modules(tree, packages)))
    imported = set(_names_imported_from(tree, modules))
    names = (set(_free_names(tree)) | imported) - MODULE_NAMES
    exceptions = _exceptions(tree, names)
    others = names - exceptions - imported | ({entry_point} if entry_point and check else set())
    stand_ins = names | ({check.args.args[0].arg} if check else set())
    code = TestCode(
        source,
        check=check.name if check else "",
        parts=(),
        functions=(),
        entry_point=entry_point,
        candidate_names=tuple(sorted(others)),
        exceptions=tuple(sorted(exceptions)),
        modules=modules,
        needs=_need_of_objects(tree, stand_ins),
        uses_pytest=check is None and _uses_pytest(tree),
        compares_arguments=checks_arguments(
            tree, {*stand_ins, *modules}, _parameters_of_helpers(tree)
        ),
    )
    return code if code.uses_pytest else _with_parts(code, tree)


def count_tests(source: str) -> int:
    """Return how many tests there are in test code, as far as one sees without running it."""
    names = [node.name for node in ast.walk(parse(source)) if isinstance(node, FunctionNode)]
    tests = [name for name in names if name.startswith("test")]
    return len(read_test_code(source).parts) or len(tests) or 1


def names_of_candidate(tree: ast.Module, entry_point: str | None = None) -> set[str]:
    """Return the names of the candidate that test code uses: those that it does not define,
    imports, or reads of its modules.
    """
    modules = tuple(_candidate_modules(tree, ()))
    found = (
        set(_free_names(tree))
        | set(_names_imported_from(tree, modules))
        | {entry_point or checked_name(tree) or ""}
    )
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import))
    aliases = [alias for node in imports for alias in node.names if alias.name in modules]
    renamed = {alias.asname for alias in aliases if alias.asname}
    own = {name.partition(".")[0] for name in modules} | renamed
    return (
        found
        | {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and root(node) in own
        }
    ) - MODULE_NAMES


def unshared_state(tree: ast.Module, code: str, test: str, *happened: str) -> str:
    """Return what a test and a program seem to have in common and have not, as they run in two
    processes; "" for nothing.

    `test`: the name of a test function or method, or the text of an assertion outside of them;
    `happened`: the name of the exception that came, and "has_tasks" if the program has tasks that
    run on.
    """
    name = re.split(r"\.|::", test.partition("[")[0])[-1]
    used, words = _used_names(_nodes_of_test(tree, name)), {*happened}
    with suppress(*PARSER_ERRORS):
        words |= _used_names(ast.walk(parse(code)))
    text = " ".join(words)
    return next(
        (what for names, pattern, what in UNSHARED if names & used and re.search(pattern, text)), ""
    )


def _nodes_of_test(tree: ast.Module, name: str) -> Iterator[ast.AST]:
    """Yield what is in a test function and outside of all of them."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if not (
            isinstance(node, FunctionNode) and node.name.startswith("test") and node.name != name
        ):
            yield node
            left += ast.iter_child_nodes(node)


def _used_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that code uses, modules and parameters included, and "async" if a
    function is.
    """
    found: set[str] = set()
    for node in nodes:
        match node:
            case (
                ast.Name(id=name)
                | ast.Attribute(attr=name)
                | ast.arg(arg=name)
                | ast.alias(name=name)
            ):
                found.add(name)
            case ast.ImportFrom(module=str() as name):
                found.add(name)
            case ast.AsyncFunctionDef():
                found.add("async")
    return found


def _exceptions(tree: ast.Module, names: set[str]) -> set[str]:
    """Return which names of the candidate are exceptions, as far as the test code catches
    them.
    """
    caught = set(_caught_names(tree))
    if caught - names - set(dir(builtins)):  # a variable: any of the exceptions
        caught |= {name for name in names if name.endswith(("Error", "Exception", "Err"))}
    return caught & names


def _with_parts(code: TestCode, tree: ast.Module) -> TestCode:
    """Return the code with each of its parts marked. Raises ConfigError if there is none."""
    splitter = _Splitter(tree)
    if check := check_function(tree):
        tree.body = [node for node in tree.body if not _is_main_call(node)]
        check.body = splitter.split(check.body)
    else:
        tree.body = splitter.split(tree.body)
    functions = () if check else tuple(_test_functions(tree))
    if not splitter.parts and not functions and not any(map(_is_unittest_class, tree.body)):
        raise ConfigError(
            "tests: nothing in the test code is a test: no assert, no test function, no "
            "unittest.TestCase"
        )
    tree = ast.fix_missing_locations(_MarkAssertions().visit(tree))
    return replace(code, source=ast.unparse(tree), parts=tuple(splitter.parts), functions=functions)


# ---- parts


class _Splitter:
    """Wraps each statement that asserts something, so that the statements after one that fails
    still run.

    `helpers` are the functions of the test code that assert something.
    """

    def __init__(self, tree: ast.Module) -> None:
        functions = [node for node in ast.walk(tree) if isinstance(node, FunctionNode)]
        self.helpers = {
            node.name
            for node in functions
            if any(isinstance(inner, ast.Assert) for inner in ast.walk(node))
        }
        self.parts: list[str] = []

    def split(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [
            self._wrap(node) if not says_nothing(node) and self._asserts(node) else node
            for node in body
        ]

    def _wrap(self, node: ast.stmt) -> ast.stmt:
        self.parts.append(_part_text(node))
        arguments: list[ast.expr] = [
            ast.Constant(len(self.parts) - 1),
            ast.Constant(must_assert(node)),
        ]
        part = ast.Call(ast.Name(NAMES["part"], ast.Load()), arguments, [])
        return ast.With([ast.withitem(part)], [node])

    def _asserts(self, node: ast.AST) -> bool:
        """Return whether code asserts something when it runs: itself, by a helper, or by a
        library's `assert_...`.
        """
        if isinstance(node, ast.Assert) or (
            isinstance(node, ast.Call)
            and (_function_name(node) in self.helpers or _is_library_assertion(node))
        ):
            return True
        if isinstance(node, FunctionNode | ast.ClassDef | ast.Lambda):
            return False
        return any(self._asserts(inner) for inner in ast.iter_child_nodes(node))


def must_assert(node: ast.AST) -> bool:
    """Return whether code proves nothing unless one of its assertions is reached.

    It may await an exception instead, or assert by a library's function.
    """
    nodes = list(ast.walk(node))
    awaits = any(isinstance(each, ast.Try | ast.With) for each in nodes)
    return not awaits and not any(
        isinstance(each, ast.Call) and _is_library_assertion(each) for each in nodes
    )


def _function_name(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_library_assertion(node: ast.Call) -> bool:
    return _function_name(node).startswith("assert")


class _MarkAssertions(ast.NodeTransformer):
    """Lets each assertion tell that it was reached: a loop that runs no time asserts nothing, and
    `assert False` never passes.
    """

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        never = isinstance(node.test, ast.Constant) and not node.test.value
        keywords = [ast.keyword("never", ast.Constant(value=True))] if never else []
        reached = ast.Call(ast.Name(NAMES["reached"], ast.Load()), [node.test], keywords)
        return ast.Assert(reached, node.msg)


def _part_text(node: ast.stmt) -> str:
    text = ast.unparse(node.test if isinstance(node, ast.Assert) else node)
    return text if len(text) <= MAX_PART_TEXT else f"{text[: MAX_PART_TEXT - 3]}..."


def _is_main_call(node: ast.stmt) -> bool:
    """Return whether a statement only calls the check function, which is called by ourselves."""
    match node:
        case ast.Expr(value=value):
            match awaited_expression(value):
                case ast.Call(func=ast.Name(id=name)):
                    return name in (CHECK_FUNCTION, "test_check")
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    return False


def _test_functions(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield the names of test functions that take nothing, and whether one of their assertions must
    be reached.
    """
    for node in tree.body:
        if (
            isinstance(node, FunctionNode)
            and node.name.startswith("test")
            and not ast.unparse(node.args)
        ):
            yield (
                node.name,
                must_assert(node)
                and any(isinstance(inner, ast.Assert) for inner in ast.walk(node)),
            )


def _is_unittest_class(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and any(
        "TestCase" in ast.unparse(base) for base in node.bases
    )


def _uses_pytest(tree: ast.Module) -> bool:
    """Return whether code is a file for pytest: it imports it, or has test functions with fixtures,
    or test classes.
    """
    if any(name in PYTEST_MODULES for name in _imported_modules(tree)):
        return True
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name, bases=[]) if name.startswith("Test"):
                return True
            case (
                ast.FunctionDef(name=name, args=args) | ast.AsyncFunctionDef(name=name, args=args)
            ) if name.startswith("test_") and ast.unparse(args):
                return True
    return False


# ---- names


def _candidate_modules(tree: ast.Module, packages: Container[str]) -> Iterator[str]:
    """Yield the names of modules that test code imports and nobody has installed: they are the
    candidate.
    """
    for name in _imported_modules(tree):
        top = name.partition(".")[0]
        known = top in sys.stdlib_module_names or top in PYTEST_MODULES or top in packages
        if top in CANDIDATE_MODULES or not (known or _is_installed(top)):
            yield name


def _imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=module):
                yield module or ""


def _is_installed(name: str) -> bool:
    try:
        return bool(name) and find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _parameters_of_helpers(tree: ast.Module) -> Iterator[str]:
    """Yield the parameters of functions that are neither tests nor the check function: they may get
    a returned value.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) or (
            isinstance(node, FunctionNode) and not node.name.startswith(("test", CHECK_FUNCTION))
        ):
            yield from (
                inner.arg
                for inner in ast.walk(node.args)
                if isinstance(inner, ast.arg) and inner.arg != "self"
            )


def _names_imported_from(tree: ast.Module, modules: Container[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "") in modules:
            yield from (alias.name for alias in node.names)


def _free_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that test code reads and nothing in it defines."""
    defined = set(dir(builtins))
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store() | ast.Del())
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
            ):
                defined.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                defined.update((alias.asname or alias.name).partition(".")[0] for alias in aliases)
    reads = (
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )
    yield from (name for name in reads if name not in defined)


def _caught_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that stand where an exception is expected."""
    for node in ast.walk(tree):
        match node:
            case ast.ExceptHandler(type=ast.expr() as kind):
                yield from _names_in(kind)
            case ast.Call(
                func=ast.Name(id="raises")
                | ast.Attribute(attr="raises" | "assertRaises" | "assertRaisesRegex"),
                args=[kind, *_],
            ):
                yield from _names_in(kind)


def _names_in(node: ast.AST) -> Iterator[str]:
    yield from (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))


def _last_name(node: ast.AST) -> str:
    return (
        node.id
        if isinstance(node, ast.Name)
        else node.attr
        if isinstance(node, ast.Attribute)
        else ""
    )


# ---- objects


def _functions_here(tree: ast.Module) -> set[str]:
    """Return the names that stand for functions and classes of the test code, or for built-in
    ones.
    """
    found = {name for name in dir(builtins) if callable(getattr(builtins, name))}
    variables: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                variables.add(name)
    return found - variables


def _passes_function(argument: ast.expr, functions: Container[str]) -> bool:
    """Return whether an argument is a function or contains one; what a call in it returns is not
    looked at.
    """
    match argument:
        case ast.Lambda():
            return True
        case ast.Name(id=name):
            return name in functions
        case ast.Attribute(value=ast.Name(id="math" | "operator" as module), attr=name):
            return callable(getattr({"math": math, "operator": operator}[module], name, None))
        case ast.Starred(value=inner):
            return _passes_function(inner, functions)
        case (
            ast.List(elts=items)
            | ast.Tuple(elts=items)
            | ast.Set(elts=items)
            | ast.Dict(values=items)
        ):
            return any(_passes_function(item, functions) for item in items)
    return False


def _compares_types(node: ast.Compare, names: Container[str]) -> bool:
    """Return whether the type of something is compared with a class of the candidate."""
    sides = (node.left, *node.comparators)
    asks = any(
        _last_name(each) == "__class__"
        or (isinstance(each, ast.Call) and _function_name(each) == "type")
        for each in sides
    )
    return asks and any(
        _last_name(inner) in names
        for each in sides
        for inner in ast.walk(each)
        if not isinstance(each, ast.Call)
    )


def _need_of_objects(tree: ast.Module, names: Container[str]) -> str:
    """Return what in test code cannot be done by value; "" if there is nothing.

    That is an argument that is a function, and a class of the candidate as a base, in isinstance,
    or patched. Code that the candidate returns would be beside the tests, too, if the test code
    runs it.
    """
    functions = _functions_here(tree)
    needs = (
        _passed_function(node, names, functions)
        or _use_of_class(node, names)
        or _access(node, names)
        for node in ast.walk(tree)
    )
    return next(filter(None, needs), "")


def _passed_function(node: ast.AST, names: Container[str], functions: Container[str]) -> str:
    """Return which function of the candidate is called with a function; "" if none is."""
    match node:
        case ast.Call(func=function, args=args, keywords=keywords) if root(
            function
        ) in names and any(
            _passes_function(argument, functions)
            for argument in (*args, *(each.value for each in keywords))
        ):
            return f"{ast.unparse(function)[:80]} is called with a function"
    return ""


def _use_of_class(node: ast.AST, names: Container[str]) -> str:
    """Return what needs a class itself, of the candidate or of a value of it; "" if nothing
    does.
    """
    match node:
        case ast.ClassDef(name=name, bases=bases) if any(
            base in names for each in bases for base in _names_in(each)
        ):
            return f"the class {name} is derived from a class of the candidate"
        case ast.Call(
            func=ast.Name(id="isinstance" | "issubclass" as name), args=[value, kind]
        ) if any(
            n in names
            for n in (*_names_in(kind), *([_last_name(value)] if name == "issubclass" else ()))
        ):
            return f"{name} is asked about a class of the candidate"
        case ast.Compare() if _compares_types(node, names):
            return "type is compared with a class of the candidate"
        case ast.Call(
            func=ast.Name(id="isinstance")
            | ast.Attribute(attr="assertIsInstance" | "assertNotIsInstance"),
            args=[_, kind, *_],
        ) if lost := LOST_CLASSES & set(map(_last_name, ast.walk(kind))):
            return (
                f"isinstance is asked about {min(lost)}, and values are passed as their built-in "
                "base classes"
            )
    return ""


def _access(node: ast.AST, names: Container[str]) -> str:
    """Return what changes or inspects the candidate, or may run its code here; "" if nothing
    does.
    """
    match node:
        case ast.Attribute(value=value, attr=name) if (
            name.startswith("__") and root(value) in names
        ):
            return f"it reads {name} of the candidate's {ast.unparse(value)[:80]}"
        case ast.Attribute(attr="patch" | "setattr") | ast.arg(arg="monkeypatch" | "capsys"):
            return "it changes or watches the candidate's module"
        case (
            ast.Call(func=ast.Attribute(value=ast.Name(id="inspect")))
            | ast.Call(
                func=ast.Name(id="iscoroutinefunction") | ast.Attribute(attr="iscoroutinefunction")
            )
        ):
            return "it inspects the candidate"
        case ast.Call(func=ast.Name(id="eval" | "exec" | "compile" as name), args=[code, *_]) if (
            not isinstance(code, ast.Constant)
        ):
            return f"it may run code that the candidate wrote ({name})"
        case ast.Call(
            func=ast.Attribute(
                value=ast.Name(id="pickle" | "marshal" | "dill" as name), attr="loads"
            )
        ):
            return f"it may run code that the candidate wrote ({name}.loads)"
    return ""
