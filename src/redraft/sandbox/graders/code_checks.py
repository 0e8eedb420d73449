"""What can be said about Python code without running it: syntax, lint, types, complexity, security,
and how similar it is to the reference solution.

The code is taken from the answer as `answer="code:python"` does, by the tests of the task if it has
any; a completion follows `task.metadata["code_prefix"]`. It is parsed in a worker process or read
by a tool in the sandbox, never imported. No code, or code that does not compile, scores 0.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from textwrap import dedent
from typing import Any, Literal

from ...answers.code import code_blocks, plain_text
from ...answers.python_imports import with_missing_imports
from ...answers.python_program import defines, is_python
from ...answers.python_source import compile_error
from ...base import checks
from ...base.own_code import fingerprint_name
from ...base.threads import run_in_thread
from ...errors import ComputeLimitError, ConfigError
from ...graders.computed.base import reference_of, score_feedback, with_composed_texts
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from ...protocols import Edit, JudgeClient
from ...workers.pool import run
from ..code import ruff
from ..code.measures import code_similarity, worst_function
from ..code.ruff import Finding, ToolError
from ..code.runner import is_empty
from ..code.type_checkers import CHECKERS, TypeChecker, installed_checker, type_findings
from ..tiers import Sandbox
from .code_tests import PYTHON, program_of

MAX_CHARS = 200_000  # longer code is not checked
MAX_COMPARED_CHARS = 100_000  # and longer code not compared
MAX_ACTIONS = 10
NO_CODE = "there is no code"
USUAL_WAY = "Solve the task in the usual way, without steps that it does not need."
DEFAULT_RULES = ("E4", "E7", "E9", "F")  # those that ruff itself selects by default
RULES_EXAMPLE = "rules of ruff such as E, F or B006"


@dataclass(frozen=True)
class _CodeCheck:
    """What the checks share: the code in an answer, and what is said if there is none or it does
    not compile.
    """

    model_free = True
    reads_metadata = True

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return a score from 0 to 1; None if the check did not finish."""
        code = await run_in_thread(code_of, candidate.text, task)
        if len(code) > MAX_CHARS:
            return Feedback(None, f"code of more than {MAX_CHARS:,} characters is not checked")
        if await run_in_thread(is_empty, code):
            return _compile_failure(NO_CODE)
        try:
            problem = await _compile_problem(code)
            return _compile_failure(problem) if problem else await self._check(code, candidate.text)
        except (ComputeLimitError, ToolError) as error:
            return Feedback(None, str(error))

    async def _check(self, code: str, answer: str) -> Feedback:
        """Return what is to say of code that compiles, and of the answer that it is from. Raises
        ComputeLimitError and ToolError.
        """
        raise NotImplementedError


def code_of(answer: str, task: Task) -> str:
    """Return the code in an answer that the tests of the task test; a completion follows the
    beginning in its metadata.
    """
    form = PYTHON.for_task(task)
    code = form.extract(answer)
    if isinstance(task.metadata.get("code_prefix"), str) and not defines(code, None):
        return program_of(answer, task, form.tests)
    return code


def _labelled_codes(answer: str) -> list[str]:
    """Return the code of each block that is labelled as Python, if there are several; sessions of
    the interpreter aside.
    """
    blocks = PYTHON.labelled_codes(code_blocks(answer, PYTHON.language))
    codes = [code for code in blocks if not code.lstrip().startswith(">>>")]
    return codes if len(codes) > 1 else []


async def _compile_problem(code: str) -> str | None:
    failure = "the code could not be compiled"
    problem: str | None = await run(
        compile_error, code, failure_text=failure, text_length=len(code)
    )
    return problem


def _compile_failure(problem: str) -> Feedback:
    action = (
        "Answer with Python code."
        if problem == NO_CODE
        else f"Write code that compiles: {problem}."
    )
    return Feedback(0.0, problem, (action,), done=False)


@fingerprint_name("syntax")
@dataclass(frozen=True)
class CodeSyntax(_CodeCheck):
    """1 if Python code compiles, else 0, with the first error. Every block that is labelled as
    Python must compile.

    The compiler belongs to the Python that runs Redraft. Code without a statement scores 0. Reads
    only the answer.
    """

    name: str = "syntax"

    editable = True

    async def repair(self, task: Task, candidate: Candidate) -> Edit | None:
        """Return the answer without the code fences and the indentation that keep its code from
        compiling; None if there are none.
        """
        return await run_in_thread(_form_edit, candidate.text, task)

    async def _check(self, code: str, answer: str) -> Feedback:
        for n, block in enumerate(await run_in_thread(_labelled_codes, answer), 1):
            if problem := await _compile_problem(dedent(block)):
                return _compile_failure(f"code block {n}, {problem}")
        return Feedback(1.0, "the code compiles")


def _form_edit(text: str, task: Task) -> Edit | None:
    for code in (PYTHON.for_task(task).extract(text), *_labelled_codes(text)):
        if edit := next(PYTHON.repairs(code), None):
            return _answer_edit(text, code, edit)
    return None


def _answer_edit(text: str, code: str, edit: Edit) -> Edit | None:
    """Return the edit of an answer that holds the edited code; None if the code is not one part of
    it.
    """
    text = plain_text(text)
    if text.count(code) == 1:
        return replace(edit, text=text.replace(code, edit.text))
    return edit if dedent(text).strip() == dedent(code).strip() else None


@fingerprint_name("complexity")
@dataclass(frozen=True)
class Complexity(_CodeCheck):
    """`limit` divided by the cyclomatic complexity of the most complex function, at most 1.

    The complexity is 1 and the number of decisions (McCabe 1976, who proposed the limit 10): `if`,
    `elif`, `for`, `while`, `except`, `case`, conditional expressions, `and`, `or`, and each `for`
    and `if` of a comprehension. The code outside of functions counts as one function. Reads only
    the answer.
    """

    limit: int = 10
    name: str = "complexity"

    def __post_init__(self) -> None:
        checks.whole_number("limit", self.limit, 1, 10_000)

    async def _check(self, code: str, answer: str) -> Feedback:
        failure = "the complexity could not be measured"
        where, line, complexity = await run(
            worst_function, code, failure_text=failure, text_length=len(code)
        )
        metadata = {"function": where, "line": line, "complexity": complexity}
        reason = f"the highest complexity is {complexity}, in {where} (line {line})"
        if complexity <= self.limit:
            return Feedback(1.0, reason, metadata=metadata)
        advice = "split it, or simplify its conditions"
        action = (
            f"Line {line}: the complexity of {where} is {complexity} and may be {self.limit}: "
            f"{advice}."
        )
        return Feedback(self.limit / complexity, reason, (action,), metadata=metadata)


@dataclass(frozen=True)
class _ToolCheck(_CodeCheck):
    """A check by a tool that lists findings; it is installed beside Redraft (see
    `graders.execution`).
    """

    runs_installed_tool = True

    def check_environment(self) -> None:
        """Raise SandboxUnavailableError if no sandbox works here."""
        self._sandbox().tier  # noqa: B018  (raises)

    async def _check(self, code: str, answer: str) -> Feedback:
        """Return 1 / (1 + number of findings), with the findings as actions."""
        found, tool = await run_in_thread(self._find, code)
        rules = Counter(each.rule for each in found)
        metadata = {
            "tool": tool,
            "sandbox": self._sandbox().tier,
            "findings": len(found),
            "rules": dict(rules.most_common(20)),
        }
        if not found:
            return Feedback(1.0, f"{tool} finds nothing", metadata=metadata)
        actions = [f"{str(each)[0].upper()}{str(each)[1:]}" for each in found[:MAX_ACTIONS]]
        if len(found) > MAX_ACTIONS:
            actions.append(f"Correct the other {len(found) - MAX_ACTIONS} findings, too.")
        count = f"{len(found)} {'finding' if len(found) == 1 else 'findings'}"
        reason = f"{tool}: {count} ({', '.join(f'{rule} {n}' for rule, n in rules.most_common(5))})"
        score, different = 1 / (1 + len(found)), tuple(dict.fromkeys(actions))
        return Feedback(score, reason, different, done=False, metadata=metadata)

    def _find(self, code: str) -> tuple[list[Finding], str]:
        """Return the findings, and the tool with its version. Raises ToolError and ConfigError."""
        raise NotImplementedError

    def _sandbox(self) -> Sandbox:
        raise NotImplementedError


@fingerprint_name("lint")
@dataclass(frozen=True)
class Lint(_ToolCheck):
    """1 / (1 + number of findings of ruff): 1 without findings, 1/2 with one. An added line cannot
    make up for a finding.

    `rules` and `ignore` name rules of ruff, or the beginnings of their names ("E", "B006"); the
    default are those that ruff selects itself. Only these rules count: no configuration is read,
    and `# noqa` comments have no effect. The editor adds imports of the standard library that are
    missing, applies the fixes that ruff calls safe, and formats the code if findings are left. Ruff
    runs in the sandbox; needs the extra `code`. Reads only the answer.
    """

    rules: tuple[str, ...] = DEFAULT_RULES
    ignore: tuple[str, ...] = ()
    sandbox: str = "auto"
    name: str = "lint"

    editable = True

    def __post_init__(self) -> None:
        _check_rule_names("rules", self.rules, required=True)
        _check_rule_names("ignore", self.ignore)
        self._sandbox()

    def check_environment(self) -> None:
        """Raise ConfigError if ruff is not installed or does not know a rule,
        SandboxUnavailableError if nothing can run it.
        """
        super().check_environment()
        ruff.check_rules(tuple(self.rules), tuple(self.ignore), self._sandbox())

    def _find(self, code: str) -> tuple[list[Finding], str]:
        found = ruff.findings(code, self.rules, self.ignore, sandbox=self._sandbox())
        return found, f"ruff {ruff.ruff_version()}"

    def _sandbox(self) -> Sandbox:
        return Sandbox(self.sandbox)

    async def repair(self, task: Task, candidate: Candidate) -> Edit | None:
        """Return the answer with fewer findings, by repairs that keep what the code does; None if
        there are none.
        """
        return await run_in_thread(self._repair, candidate.text, task)

    def _repair(self, text: str, task: Task) -> Edit | None:
        code = PYTHON.for_task(task).extract(text)
        if is_empty(code) or len(code) > MAX_CHARS:
            return None
        try:
            return self._with_fewer_findings(text, code)
        except ToolError:
            return None

    def _with_fewer_findings(self, text: str, code: str) -> Edit | None:
        """Try the imports that are missing and the safe fixes, then the format as well. Raises
        ToolError.
        """
        findings, notes, new = len(self._find(code)[0]), list[str](), code
        if (imported := with_missing_imports(code)) and len(
            self._find(imported.text)[0]
        ) < findings:
            new, notes = imported.text, [imported.note]
        fixed = _as_long(
            new, ruff.apply_safe_fixes(new, self.rules, self.ignore, sandbox=self._sandbox())
        )
        if fixed != new:
            new, notes = fixed, [*notes, "applied the safe fixes of ruff"]
        left = len(self._find(new)[0])
        if left:
            formatted = _as_long(new, ruff.format_code(new, sandbox=self._sandbox()))
            if (after := len(self._find(formatted)[0])) < left:
                new, left, notes = formatted, after, [*notes, "formatted the code with ruff"]
        return (
            _answer_edit(text, code, Edit(new, "; ".join(notes)))
            if left < findings and not is_empty(new)
            else None
        )


def _as_long(old: str, new: str) -> str:
    """Return the new code without empty lines at its start, and with a line end at its end only if
    the old one has it.
    """
    return new.lstrip("\n") if old.endswith("\n") else new.strip("\n")


@fingerprint_name("security")
@dataclass(frozen=True)
class Security(Lint):
    """1 / (1 + number of findings of the security rules), which are bandit's as ruff has them
    (`S`).

    Ignores S101 (`assert`) unless `ignore` says otherwise. A finding is a place to look at, and
    code without findings is not proved safe. For the rest see `Lint`.
    """

    rules: tuple[str, ...] = ("S",)
    ignore: tuple[str, ...] = ("S101",)
    name: str = "security"

    editable = False


def _check_rule_names(field: str, names: Any, *, required: bool = False) -> None:
    if not isinstance(names, tuple | list) or (required and not names):
        raise checks.invalid_argument(field, RULES_EXAMPLE, names)
    for name in names:
        if not isinstance(name, str) or not ruff.RULE.fullmatch(name):
            raise checks.invalid_argument(field, RULES_EXAMPLE, name)


@fingerprint_name("types")
@dataclass(frozen=True)
class Types(_ToolCheck):
    """1 / (1 + number of type errors), as mypy or basedpyright finds them: 1 without errors, 1/2
    with one.

    `checker` names one of the two; "auto" is mypy if it is installed, else basedpyright. If neither
    is, the score is None. With `strict`, the checker's strict mode counts, which demands
    annotations. The bodies of functions without annotations are checked, too. `packages` are those
    whose types are known; a module that is not found is no error. No configuration is read, and
    comments such as `# type: ignore` have no effect; `Any` and `typing.no_type_check` do. The
    checker runs in the sandbox, for one to three seconds. Reads only the answer.
    """

    checker: Literal["auto", "mypy", "basedpyright"] = "auto"
    strict: bool = False
    packages: tuple[str, ...] = ()
    sandbox: str = "auto"
    name: str = "types"

    def __post_init__(self) -> None:
        object.__setattr__(self, "packages", tuple(self.packages))
        checks.one_of("checker", self.checker, ("auto", *CHECKERS))
        checks.flag("strict", self.strict)
        self._sandbox()

    def check_environment(self) -> None:
        """Raise ConfigError if the named checker is not installed, SandboxUnavailableError if
        nothing can run it.
        """
        super().check_environment()
        self._find_checker()

    def _find(self, code: str) -> tuple[list[Finding], str]:
        checker = self._find_checker()
        if checker is None:
            raise ToolError("types were not checked: neither mypy nor basedpyright is installed")
        return type_findings(
            checker, code, strict=self.strict, sandbox=self._sandbox()
        ), f"{checker.name} {checker.version}"

    def _find_checker(self) -> TypeChecker | None:
        """Return the checker; None if there is none. Raises ConfigError if it was named."""
        checker = installed_checker(self.checker)
        if checker is None and self.checker != "auto":
            raise ConfigError(
                f"grader {self.name!r}: {self.checker} is not installed (pip install "
                f"{self.checker})"
            )
        return checker

    def _sandbox(self) -> Sandbox:
        return Sandbox(self.sandbox, packages=self.packages)


@fingerprint_name("code_similarity")
@dataclass(frozen=True)
class CodeSimilarity:
    """The similarity of Python code with the reference solution, from 0 to 1.

    It is twice the length of the longest common subsequence of tokens, divided by the number of
    tokens of both. Layout, comments, docstrings and annotations do not count, and the names that a
    program gives its own variables and functions count as equal, unless `names` is true. Code that
    does not compile scores 0. A different solution may be as good: this measures nearness, not
    quality. Reads `reference`, which is Python code, has it in a fence or, as a completion, follows
    `task.metadata["code_prefix"]`.
    """

    names: bool = False
    name: str = "code_similarity"

    model_free = True
    needs = ("reference",)
    reads_metadata = True

    def __post_init__(self) -> None:
        checks.flag("names", self.names)

    def check_task(self, task: Task) -> None:
        """Raise ConfigError for a reference that is no Python code."""
        self._reference(task)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return a score from 0 to 1; None if comparing takes too long. Raises ConfigError for a
        reference that is no code.
        """
        task, candidate = await with_composed_texts(task, candidate)
        reference = await run_in_thread(self._reference, task)
        code = await run_in_thread(code_of, candidate.text, task)
        size = len(code) + len(reference)
        if size > MAX_COMPARED_CHARS:
            return Feedback(
                None, f"code of more than {MAX_COMPARED_CHARS:,} characters is not compared"
            )
        try:
            score = await run(
                code_similarity,
                code,
                reference,
                self.names,
                failure_text="the similarity could not be computed",
                text_length=size,
            )
        except ComputeLimitError as error:
            return Feedback(None, str(error))
        if score is None:
            return Feedback(
                0.0, "the code does not compile", ("Write code that compiles.",), done=False
            )
        return score_feedback(score, f"{score:.0%} like the reference", USUAL_WAY)

    def _reference(self, task: Task) -> str:
        code = code_of(reference_of(task, self.name), task)
        if not is_python(code):
            raise ConfigError(
                f"grader {self.name!r}: the reference is not Python code: give a solution in Python"
            )
        return code
