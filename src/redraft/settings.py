"""Every setting, declared once: its type, default, allowed values, help, group and functions.

To add a setting, add a field to a class below, run `python scripts/docs.py`, and read the value
where it has an effect: as an attribute of `Options`, `BatchConfig` or `EndpointLimits`. Everything
else follows from the declaration:

- the check of its values, which raises ConfigError (`check_settings`);
- the keyword arguments of `refine`, `batch` and of the functions in `used_by`: the typed
  dictionaries at the end of this file and of runs/config.py, which scripts/docs.py writes;
- the option of each command that shows its `group`, and the key in configuration files and in the
  environment (`redraft.cli.options`);
- whether a profile of the gateway has it, and whether it may name a file;
- the tables in docs/python.md.

A subset of the settings is asked for with `names_of` and written nowhere.

The command line imports this module to show its help, so it imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import Field, dataclass, field, fields
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict, get_args

from .base import checks
from .base.parameters import check_parameters
from .errors import ConfigError

if TYPE_CHECKING:
    from .loop.records import Record
    from .loop.steps import Step
    from .middleware import Budget
    from .plans import CostUnit, Plan
    from .plans.prompts import DraftPrompt, RefinePrompt
    from .plans.quality.priors import Priors
    from .protocols import Editor, Reply, Store
    from .storage.schema import Durability
    from .tables.columns import TaskColumns

Validation: TypeAlias = Literal["off", "warn", "error"]
Mode: TypeAlias = Literal["refine", "grade", "best"]
OnDuplicate: TypeAlias = Literal["error", "first", "last", "rename"]
ExecutionEngine: TypeAlias = Literal["local", "ray", "provider-batch"]

Function: TypeAlias = Literal["grade", "calibrate", "validate"]
# settings that a command shows together; "" are all of a class
GROUPS = (
    *("", "answer", "budget", "callbacks", "calls", "cards", "code", "editor", "noise-aware"),
    *("output", "prompts", "rates", "rows", "running", "sampling", "stopping", "work"),
)
"""The functions that have some of the settings of `refine`."""

MAX_ROWS = 10**15


class ValueKind(Protocol):
    """The kind of values that a setting takes."""

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        """Raise ConfigError for a value that is not allowed. None is allowed if `optional`."""


@dataclass(eq=False)
class WholeNumber:
    """An integer from `minimum` to `maximum`."""

    minimum: int | None = None
    maximum: int | None = None

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        checks.whole_number(name, value, self.minimum, self.maximum, optional=optional)


@dataclass(eq=False)
class Number:
    """A finite number from `minimum` to `maximum`; `exclusive`: greater than 0."""

    minimum: float = 0
    maximum: float = inf
    exclusive: bool = False

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        if self.exclusive:
            checks.positive(name, value, self.maximum, optional=optional)
        else:
            checks.number(name, value, self.minimum, self.maximum, optional=optional)


class Flag:
    """True or False."""

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        checks.flag(name, value, optional=optional)


@dataclass(eq=False)
class Keyword:
    """One of a few keywords."""

    choices: tuple[str, ...]

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        checks.one_of(name, value, (*self.choices, None) if optional else self.choices)


@dataclass(eq=False)
class Keywords:
    """A collection of keywords."""

    choices: tuple[str, ...]

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        expected = f"a list of any of {', '.join(self.choices)}"
        checks.require(isinstance(value, COLLECTIONS), name, expected, value)
        for word in value:
            checks.one_of(name, word, self.choices)


@dataclass(eq=False)
class Names:
    """A list of names."""

    example: str

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        fits = isinstance(value, COLLECTIONS) and all(
            isinstance(each, str) and each.strip() for each in value
        )
        checks.require(fits, name, f"a list of names such as {self.example}", value)


class Text:
    """A text, possibly empty."""

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        checks.text(name, value, optional=optional, allow_blank=True)


@dataclass(eq=False)
class FilePath:
    """The path of a file or a folder."""

    what: str = "file"

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        fits = isinstance(value, str | Path) and "\0" not in str(value)
        checks.require(fits, name, f"the path of a {self.what}", value, optional=optional)


@dataclass(eq=False)
class PromptSource:
    """A template, the path of a file with one, or a function. `options` reads the file, and the
    plan checks the template.
    """

    expected: str

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        is_function = callable(value) and not isinstance(value, type)
        fits = is_function or isinstance(value, str | Path)
        checks.require(fits, name, self.expected, value, optional=optional)


@dataclass(eq=False)
class Instance:
    """An object of the caller: `expected` describes it, `methods` names what it must provide;
    `or_flag`: True and False, too.
    """

    expected: str
    methods: tuple[str, ...] = ()
    may_be_class: bool = False
    or_flag: bool = False

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        if (value is None and optional) or (isinstance(value, bool) and self.or_flag):
            return
        if not self.may_be_class:
            checks.instance(name, value, self.expected)
        fits = all(callable(getattr(value, method, None)) for method in self.methods)
        checks.require(fits, name, self.expected, value)


class Parameters:
    """Further parameters of a model's calls by name."""

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        if value is not None or not optional:
            check_parameters(name, value)


class PriceTable:
    """A mapping of model names to two prices."""

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        if value is None and optional:
            return
        expected = (
            'USD per million (input, output) tokens by model name, such as {"llama3.2": (0.1, 0.4)}'
        )
        if not isinstance(value, Mapping):
            raise checks.invalid_argument(name, expected, value)
        for model, price in value.items():
            fits = (
                isinstance(price, tuple | list)
                and len(price) == 2
                and all(checks.is_number(amount) and amount >= 0 for amount in price)
            )
            if not fits:
                raise ConfigError(
                    f"{name} must be {expected}, got {checks.format_value(price)} for "
                    f"{checks.format_value(model)}"
                )


COLLECTIONS = (list, tuple, set, frozenset)
CALLABLE = ("__call__",)


@dataclass(kw_only=True, eq=False)
class SettingInfo:
    """What a declaration contains besides type and default.

    Attributes:
        kind: The values that are allowed, besides None if `optional`.
        help: Explains the setting in the help of commands and in the documentation.
        detail: Continues `help` in the documentation.
        group: One of `GROUPS`.
        used_by: The functions that have this setting of `refine`, besides those that refine.
        on_command_line: Whether there is an option.
        common: Whether `--help` shows that option; `--help-all` shows the others, too.
        in_files: Whether that option can also be set in configuration files and the environment.
        in_profiles: Whether a profile of the gateway has it. Others take objects, the gateway
            chooses them, or they have another name there.
        in_plan_file: Whether the plan file of `--plan` has it, and no option.
        has_own_parameter: Whether the functions have a parameter of that name, so that types can
            depend on it; it is in none of the typed dictionaries.
        in_batch: The default of `batch`, if it differs.
        engine: The engine of `batch` that has it; None for every engine.
        in_other_processes: Whether it can be sent to another process.
        present_name: The name that this one has given way to; help does not mention it.
    """

    kind: ValueKind
    help: str
    detail: str = ""
    group: str = ""
    used_by: tuple[Function, ...] = ()
    optional: bool = False
    metavar: str | None = None
    on_command_line: bool = True
    common: bool = False
    in_files: bool = True
    in_profiles: bool = True
    in_plan_file: bool = False
    has_own_parameter: bool = False
    in_batch: Any = None
    engine: ExecutionEngine | None = None
    in_other_processes: bool = True
    present_name: str = ""

    @property
    def names_file(self) -> bool:
        """Whether a value may be the path of a file or folder."""
        return isinstance(self.kind, FilePath | PromptSource)


def setting(
    default: Any, kind: ValueKind, help: str, *, optional: bool = False, **more: Any
) -> Any:
    """Declare a setting as a field of a dataclass; `more` is what `SettingInfo` has. None is
    allowed if it is the default, or with `optional`.
    """
    info = SettingInfo(kind=kind, help=help, optional=optional or default is None, **more)
    checks.one_of("group", info.group, GROUPS)
    return field(default=default, metadata={"setting": info})


def info_of(field: Field[Any]) -> SettingInfo:
    """Return the information in the declaration of a setting."""
    info: SettingInfo = field.metadata["setting"]
    return info


def settings_of(*declarations: type) -> dict[str, SettingInfo]:
    """Return what the declarations contain, by the names of the settings."""
    return {each.name: info_of(each) for kind in declarations for each in fields(kind)}


def names_of(
    declaration: type, *, group: str | None = None, used_by: Function | None = None
) -> tuple[str, ...]:
    """Return the names of the settings of a group, of those that a function has, or of all."""
    return tuple(
        name
        for name, info in settings_of(declaration).items()
        if group in {None, info.group} and (used_by is None or used_by in info.used_by)
    )


def settings_for(function: Function, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the given settings that a function has."""
    names = names_of(OptionFields, used_by=function)
    return {name: value for name, value in given.items() if name in names}


def check_settings(declaration: type, values: Any) -> None:
    """Check the attributes of `values` that `declaration` declares. Raises ConfigError for the
    first invalid one.
    """
    for name, info in settings_of(declaration).items():
        info.kind.check(name, getattr(values, name), optional=info.optional)


def check_names(function: Function, given: Iterable[str], own: Iterable[str]) -> None:
    """Raise ConfigError for an argument that is no setting of a function; `own` are its others."""
    check_known(given, (*names_of(OptionFields, used_by=function), *own))


def check_known(given: Iterable[str], known: Collection[str], own: Iterable[str] = ()) -> None:
    """Raise ConfigError for an argument that is not known, which says what to do instead; `own` are
    arguments that the caller takes apart from the given ones.
    """
    for name in given:
        if name not in known:
            unknown = checks.unknown_name_message("argument", name, (*known, *own))
            raise ConfigError(removed_setting_message(name) or unknown)


def removed_setting_message(name: str) -> str:
    """Return why a name is no longer a setting, and what to do; "" for any other name."""
    reason = REMOVED_SETTINGS.get(name.replace("-", "_"))
    return f"{name} is no longer a setting: leave it out; {reason}" if reason else ""


REMOVED_SETTINGS = {  # of Redraft 0.2
    "tie_break": "give a grader that compares, such as 'pairwise', to let the judge break ties",
    "width": "with a deadline, several texts are written at once; `drafts` sets the first ones",
    "unseen_last": "every answer is graded",
}


EVERYWHERE: tuple[Function, ...] = get_args(Function)
PYTHON_ONLY: Any = {"on_command_line": False}
PLAN_FILE: Any = {"on_command_line": False, "in_plan_file": True}


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # a subclass has them
class PlanSettings:
    """The settings that describe the default plan (see
    `redraft.session.options.Options.make_plan`).
    """

    target_score: float = setting(
        0.9,
        Number(0, 1),
        "Stop when an answer scores at least this much.",
        metavar="SCORE",
        group="stopping",
        common=True,
    )
    max_iterations: int | None = setting(
        None,
        WholeNumber(0),
        "Maximum number of refinements. Default: the plan's own.",
        detail="See [how much work a plan does](adaptive.md#how-much-work-a-plan-does).",
        metavar="N",
        group="stopping",
        common=True,
    )
    patience: int | None = setting(
        None,
        WholeNumber(1),
        "Stop after this many refinements in a row without an improvement. Default: the plan's "
        "own.",
        detail="See [how much work a plan does](adaptive.md#how-much-work-a-plan-does).",
        metavar="N",
        group="stopping",
        **PLAN_FILE,
    )
    min_delta: float = setting(
        0.01,
        Number(),
        "Smallest increase of the score that counts as an improvement.",
        metavar="D",
        group="stopping",
        **PLAN_FILE,
    )
    drafts: int = setting(
        1,
        WholeNumber(1),
        "Number of first drafts, written at the same time.",
        metavar="N",
        group="stopping",
        common=True,
    )
    min_expected_gain: float | None = setting(
        None,
        Number(),
        "Stop when no step is expected to raise the score by this much per unit of cost "
        "(noise-aware only). Default: the plan's own, which rises with the texts.",
        detail="See the [example](adaptive.md#how-the-next-step-is-chosen).",
        metavar="G",
        group="noise-aware",
        **PLAN_FILE,
    )
    confidence: float = setting(
        0.6,
        Number(0.01, 0.99),
        "Stop for the target when the quality reaches it with this probability (noise-aware only).",
        detail="See [when the target is reached](adaptive.md#when-the-target-is-reached).",
        metavar="P",
        group="noise-aware",
        **PLAN_FILE,
    )
    cost_unit: CostUnit = setting(
        "calls",
        Keyword(("calls", "tokens", "usd")),
        "Unit of cost: one call, 1,000 tokens, or 1 USD (noise-aware only).",
        group="noise-aware",
        **PLAN_FILE,
    )
    priors: Priors | str | Path | None = setting(
        None,
        Instance(
            "'shipped', 'learned', Priors, the path of a .json file or None", may_be_class=True
        ),
        "Priors to start with: shipped (default), learned (from earlier runs, see `redraft "
        "priors`), or from a JSON file.",
        detail='In Python also `redraft.plans.quality.priors.Priors`. "learned" falls back to '
        "the shipped "
        "ones if no run with this model and these graders has been learned from.",
        metavar="shipped|learned|FILE",
        group="noise-aware",
        **PLAN_FILE,
    )
    noise_aware: bool | None = setting(
        None,
        Flag(),
        "Treat scores as noisy and stop when no step is worth its cost. Default: yes if a model "
        "grades.",
        detail="`False` takes scores as exact. See [the default plan](adaptive.md).",
        group="stopping",
        **PLAN_FILE,
    )
    draft_prompt: DraftPrompt | Path | None = setting(
        None,
        PromptSource(
            "a template with {prompt}, the Path of a file with one, or a function of a trace"
        ),
        "Template of the prompt for drafts: {prompt}, {demands}, {context} and the names of "
        "columns are fields.",
        detail="In Python the text of a template, a `Path`, or a function `(trace) -> str | "
        "messages`. See [Write your own prompts](how-to/own-prompts.md).",
        metavar="FILE",
        group="prompts",
    )
    refine_prompt: RefinePrompt | Path | None = setting(
        None,
        PromptSource(
            "a template with {response}, the Path of a file with one, or a function of a trace "
            "and a candidate"
        ),
        "Template of the prompt for refinements: also {response}, {feedback}, {score}, "
        "{reason} and {tried} are fields.",
        detail="In Python the text of a template, a `Path`, or a function `(trace, "
        "parent) -> str | messages`. See [Write your own "
        "prompts](how-to/own-prompts.md).",
        metavar="FILE",
        group="prompts",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # a subclass has them
class OptionFields(PlanSettings):
    """The settings of `refine`; see `redraft.session.options.Options`."""

    plan: Plan | None = setting(
        None,
        Instance("a Plan: a function from a trace to steps", CALLABLE),
        "A plan of your own, instead of all settings above.",
        **PYTHON_ONLY,
        group="work",
        in_profiles=False,
    )
    answer: Any = setting(
        None,
        Instance("a type, a JSON schema or 'code:LANGUAGE'", may_be_class=True),
        "The form of the answer: a type such as a pydantic model, a JSON schema, or "
        "'code:LANGUAGE'.",
        detail="`result.parsed` is then the value. See [typed answers](how-to/typed-answers.md). On "  # noqa: E501
        "the command line: `--answer`, `--schema`.",
        has_own_parameter=True,
        **PYTHON_ONLY,
        group="answer",
        in_profiles=False,
    )
    answer_context: Mapping[str, Any] | None = setting(
        None,
        Instance('a mapping such as {"source": text}', ("keys",)),
        "What validators of pydantic find as `info.context`, for an `answer` that is a type.",
        in_files=False,
        **PYTHON_ONLY,
        group="answer",
        used_by=("grade",),
    )
    budget: Budget | None = setting(
        None,
        Instance("a Budget, such as Budget(calls=10)"),
        "Maximum spending. When it is used up, the best answer so far is returned.",
        detail="On the command line: `--budget-usd`, `--budget-calls`, `--budget-tokens`.",
        **PYTHON_ONLY,
        group="budget",
        used_by=EVERYWHERE,
    )
    deadline: float | None = setting(
        None,
        Number(),
        "Stop after this many seconds and return the best answer so far.",
        metavar="SECONDS",
        group="budget",
        used_by=EVERYWHERE,
        common=True,
    )
    strict_budget: bool = setting(
        False,
        Flag(),
        "Raise an error when the budget or the deadline ends the run.",
        detail="The error carries the result.",
        **PYTHON_ONLY,
        group="budget",
        in_profiles=False,
    )
    editor: bool | Editor = setting(
        True,
        Instance("True, False or an Editor", ("repair",), or_flag=True),
        "Repair the form of an answer without a model where possible. Default: yes.",
        detail="In Python also an `Editor` of your own.",
        group="editor",
    )
    store: Store | None = setting(
        None,
        Instance('a Store, such as JsonlStore("run.jsonl"), or None', ("append",)),
        "Where the trace is saved, record by record.",
        **PYTHON_ONLY,
        group="callbacks",
        in_profiles=False,
    )
    on_record: Callable[[Record], object] | None = setting(
        None,
        Instance("a function of a record, or None", CALLABLE, may_be_class=True),
        "Called with every record when it is added; awaited if it is async. What it raises is "
        "named in the result.",
        **PYTHON_ONLY,
        group="callbacks",
        used_by=("grade", "calibrate"),
        in_profiles=False,
        in_other_processes=False,
    )
    on_step: Callable[[Step], object] | None = setting(
        None,
        Instance("a function of a step, or None", CALLABLE, may_be_class=True),
        "Called with every step when it begins, in the same way.",
        **PYTHON_ONLY,
        group="callbacks",
        in_profiles=False,
        in_other_processes=False,
    )
    temperature: float | None = setting(
        None,
        Number(),
        "Sampling temperature of the model that writes.",
        metavar="T",
        group="sampling",
        used_by=("calibrate",),
    )
    max_tokens: int | None = setting(
        None,
        WholeNumber(1),
        "Maximum number of tokens in one answer.",
        metavar="N",
        group="sampling",
        used_by=("calibrate",),
        common=True,
    )
    seed: int | None = setting(
        None,
        WholeNumber(),
        "Random seed, for models that support one.",
        metavar="N",
        group="sampling",
        used_by=("calibrate",),
    )
    model_params: Mapping[str, Any] | None = setting(
        None,
        Parameters(),
        "Further parameters of the model that writes, such as {'top_p': 0.9}, which its "
        "endpoint takes.",
        detail=(
            "On the command line: `--model-param NAME=VALUE`, repeatable. See "
            "[Parameters](models.md#parameters)."
        ),
        **PYTHON_ONLY,
        group="sampling",
        used_by=("calibrate",),
        in_profiles=False,
    )
    judge_params: Mapping[str, Any] | None = setting(
        None,
        Parameters(),
        "Parameters of the model that judges, such as {'reasoning_effort': 'low', 'max_tokens': "
        "8192}.",
        detail="On the command line: `--judge-param NAME=VALUE`, repeatable.",
        **PYTHON_ONLY,
        group="sampling",
        used_by=EVERYWHERE,
        in_profiles=False,
    )
    timeout: float | None = setting(
        600.0,
        Number(0, exclusive=True),
        "Maximum duration of one call, in seconds.",
        optional=True,
        metavar="SECONDS",
        group="calls",
        used_by=EVERYWHERE,
    )
    retries: int = setting(
        3,
        WholeNumber(0),
        "Maximum number of retries of a failed call.",
        detail="In a batch 8.",
        **PYTHON_ONLY,
        group="calls",
        used_by=EVERYWHERE,
        in_batch=8,
    )
    max_in_flight: int = setting(
        64,
        WholeNumber(1),
        "Maximum number of calls in flight.",
        detail="In a batch 512, for each endpoint.",
        metavar="N",
        group="rates",
        used_by=EVERYWHERE,
        in_profiles=False,
        in_batch=512,
    )
    cache: MutableMapping[str, Reply] | None = setting(
        None,
        Instance("a mutable mapping, such as {}, or None", ("get", "__setitem__")),
        "Cache of replies, so that no call is repeated.",
        **PYTHON_ONLY,
        group="calls",
        used_by=EVERYWHERE,
        in_profiles=False,
        in_other_processes=False,
    )
    prices: Mapping[str, tuple[float, float]] | None = setting(
        None,
        PriceTable(),
        "Price in USD per million (input, output) tokens by model name, if the known price is "
        "missing or wrong.",
        detail="On the command line: `--price MODEL=IN,OUT`, repeatable.",
        **PYTHON_ONLY,
        group="calls",
        used_by=EVERYWHERE,
        in_profiles=False,
    )
    sandbox: str = setting(
        "auto",
        Text(),
        "Where graders run the code of an answer: auto (the best that works here), bubblewrap, "
        "landlock or docker:IMAGE.",
        detail='"unsafe" limits resources and protects nothing; on the command line that is '
        "`--unsafe-exec`. "
        "See [Run code](how-to/running-code.md).",
        metavar="TIER",
        group="code",
        used_by=EVERYWHERE,
    )
    packages: Collection[str] = setting(
        (),
        Names('["numpy"]'),
        "A package that code in the sandbox may import besides the standard library (repeatable).",
        detail="In Python a list of names of installed packages.",
        metavar="NAME",
        group="code",
        used_by=EVERYWHERE,
    )
    trust_in_process: bool = setting(
        False,
        Flag(),
        "Count tests that can only run beside the code, which could forge their outcome. Default: "
        "no.",
        detail=(
            "Such are tests that need objects of the code's classes, or another thing that is no "
            "value. Without it they give no score."
        ),
        group="code",
        used_by=EVERYWHERE,
    )
    require_validated: Validation = setting(
        "off",
        Keyword(get_args(Validation)),
        "Warn about, or reject, graders without a validation card that shows them better than "
        "chance (see `redraft validate`).",
        group="cards",
        used_by=("grade", "calibrate"),
    )
    cards_dir: str | Path | None = setting(
        None,
        FilePath("folder"),
        "Folder of validation cards. Default: your data folder.",
        metavar="DIR",
        group="cards",
        used_by=EVERYWHERE,
    )


@dataclass(frozen=True)
class EndpointLimits:
    """Rate limits of one endpoint. Its limit of calls in flight adapts between `min_in_flight` and
    `max_in_flight`.
    """

    initial_in_flight: int = setting(
        16, WholeNumber(1), "Number of calls in flight at the start.", metavar="N"
    )
    min_in_flight: int = setting(
        1, WholeNumber(1), "Lower bound of the limit, which adapts to the endpoint.", metavar="N"
    )
    rpm: float | None = setting(
        None,
        Number(0, exclusive=True),
        "Maximum number of requests per minute.",
        metavar="N",
        common=True,
    )
    tpm: float | None = setting(
        None, Number(0, exclusive=True), "Maximum number of tokens per minute.", metavar="N"
    )
    give_up_after: float = setting(
        3600.0,
        Number(0, exclusive=True),
        "End the run when an endpoint has not answered for this many seconds.",
        metavar="SECONDS",
    )

    def __post_init__(self) -> None:
        check_settings(EndpointLimits, self)


NOT_IN_FILES: Any = {"in_files": False}


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # a subclass has them
class BatchFields:
    """The settings of `batch` besides those of `refine`; see `redraft.runs.config.BatchConfig`."""

    mode: Mode = setting(
        "refine",
        Keyword(get_args(Mode)),
        "Refine each answer, only grade the given ones, or keep the best of several drafts.",
        **NOT_IN_FILES,
        group="work",
        common=True,
    )
    n: int = setting(
        4,
        WholeNumber(1),
        "Number of drafts (mode best only).",
        metavar="N",
        **NOT_IN_FILES,
        group="work",
        common=True,
    )
    keep: int = setting(
        1,
        WholeNumber(1),
        "Number of the best drafts to keep, at most n (mode best only). More than 1 adds the "
        "column kept.",
        metavar="K",
        **NOT_IN_FILES,
        group="work",
    )
    limit: int | None = setting(
        None,
        WholeNumber(1, MAX_ROWS),
        "Read only the first N rows.",
        metavar="N",
        **NOT_IN_FILES,
        group="rows",
        common=True,
    )
    pilot: int | None = setting(
        None,
        WholeNumber(2, 10_000),
        "Run only a stratified sample of N rows, keep their results, and forecast what the others "
        "take.",
        detail="`report.forecast` has the calls, tokens, cost and time. The output is "
        "written by the run without `pilot`, which "
        'reuses these rows. Needs `engine="local"`. See [Pilot](batch.md#pilot).',
        metavar="N",
        **NOT_IN_FILES,
        group="rows",
        common=True,
    )
    retry: Collection[str] = setting(
        (),
        Keywords(("failed", "truncated")),
        "Redo these rows of a finished run (repeatable).",
        **NOT_IN_FILES,
        group="rows",
    )
    on_duplicate: OnDuplicate = setting(
        "error",
        Keyword(get_args(OnDuplicate)),
        "What to do with rows that have the same ID.",
        group="rows",
    )
    columns: TaskColumns | Mapping[str, str] | None = setting(
        None,
        Instance("a mapping of roles to names of columns, such as {'prompt': 'question'}"),
        "The roles of the input columns, if their names do not say so.",
        detail="On the command line: `--column ROLE=NAME`, repeatable.",
        **PYTHON_ONLY,
        group="rows",
    )
    overwrite: bool = setting(
        False,
        Flag(),
        "Replace an existing file.",
        detail="Without it, a run that would leave out rows of its output is refused. See [Another "
        "run with the same output](batch.md#another-run-with-the-same-output).",
        **NOT_IN_FILES,
        group="output",
        common=True,
    )
    spreadsheet_safe: bool = setting(
        False,
        Flag(),
        "In CSV and TSV output, escape cells that a spreadsheet would evaluate; reading reverses "
        "this. Default: no.",
        **NOT_IN_FILES,
        group="output",
    )
    ordered: bool = setting(
        True,
        Flag(),
        "Write the rows in the order of the input, not as they finish. Default: yes.",
        **NOT_IN_FILES,
        group="output",
    )
    errors: str | Path | None = setting(
        None,
        FilePath(),
        "File for rows that cannot be read. Default: OUT.errors.jsonl.",
        metavar="FILE",
        **NOT_IN_FILES,
        group="output",
    )
    journal: str | Path | None = setting(
        None,
        FilePath(),
        "File in which the run keeps its state. Default: OUT.journal.",
        metavar="FILE",
        **NOT_IN_FILES,
        group="output",
    )
    name: str | None = setting(
        None,
        Text(),
        "Name of the run in its journal. Default: made from OUT.",
        metavar="NAME",
        **NOT_IN_FILES,
        group="output",
    )
    durability: Durability = setting(
        "normal",
        Keyword(("normal", "full")),
        "Survive a crash of the process (normal), or also of the machine (full).",
        group="output",
    )
    workers: int | None = setting(
        None,
        WholeNumber(1),
        "Number of processes that work on the rows, if one keeps a processor busy. Default: 1; "
        "with --ray, one for each processor of the cluster, at most 64.",
        detail=(
            "At most four for each processor of this machine, unless with `ray`. See [Several "
            "workers](batch.md#several-workers)."
        ),
        metavar="N",
        **NOT_IN_FILES,
        group="running",
    )
    ray: str | None = setting(
        None,
        Text(),
        "Run the workers on Ray: on the cluster at this address, on the one of this machine "
        "(auto), or on a Ray that is started for the run (local).",
        metavar="ADDRESS",
        **NOT_IN_FILES,
        group="running",
    )
    engine: ExecutionEngine = setting(
        "local",
        Keyword(get_args(ExecutionEngine)),
        "Run here, or through the provider's batch API (ray: use --ray).",
        detail='With "provider-batch", only `limits.give_up_after` has an effect.',
        **NOT_IN_FILES,
        group="running",
    )
    processes: int | None = setting(
        None,
        WholeNumber(1),
        "Former name of `workers`.",
        metavar="N",
        **NOT_IN_FILES,
        group="running",
        present_name="workers",
    )
    shards: int | None = setting(
        None,
        WholeNumber(1),
        "Former name of `workers`, with `ray`.",
        metavar="N",
        **NOT_IN_FILES,
        group="running",
        present_name="workers",
    )
    ray_address: str | None = setting(
        None,
        Text(),
        "Former name of `ray`.",
        metavar="ADDRESS",
        **NOT_IN_FILES,
        group="running",
        present_name="ray",
    )
    poll: float | None = setting(
        None,
        Number(0, 3600, exclusive=True),
        "Seconds between two queries for results (engine provider-batch only).",
        detail="Default: 1 at first, then longer.",
        metavar="SECONDS",
        **NOT_IN_FILES,
        group="running",
        engine="provider-batch",
    )
    learn: bool = setting(
        True,
        Flag(),
        "Learn priors from finished rows, for later rows; with learned priors also for other "
        "runs. Default: yes.",
        detail='With `engine="provider-batch"`, later rows of the same run do not use them.',
        **NOT_IN_FILES,
        group="running",
    )
    calibrate: bool = setting(
        True,
        Flag(),
        "Grade the first answer of 16 of the first 64 rows twice, to learn how noisy the judge "
        "is. Default: yes.",
        detail="About 4% of the calls of those rows. See [Priors](adaptive.md#priors).",
        **NOT_IN_FILES,
        group="running",
    )
    limits: EndpointLimits | None = setting(
        None,
        Instance("EndpointLimits, such as EndpointLimits(rpm=60)"),
        "Rate limits of each endpoint.",
        detail="On the command line, one option for each field: "
        "`--initial-in-flight`, `--min-in-flight`, `--rpm`, `--tpm`, `--give-up-after`.",
        **PYTHON_ONLY,
        group="running",
    )


BATCH_DEFAULTS = {
    name: info.in_batch for name, info in settings_of(OptionFields).items() if info.in_batch
}
"""The defaults of a batch that differ: a busy endpoint may need several retries."""


# The rest of this file is written by scripts/docs.py from `OptionFields`.


class SharedSettings(TypedDict, total=False):
    """The settings of every function that calls models."""

    budget: Budget | None
    deadline: float | None
    judge_params: Mapping[str, Any] | None
    timeout: float | None
    retries: int
    max_in_flight: int
    cache: MutableMapping[str, Reply] | None
    prices: Mapping[str, tuple[float, float]] | None
    sandbox: str
    packages: Collection[str]
    trust_in_process: bool
    cards_dir: str | Path | None


class Settings(SharedSettings, total=False):
    """The keyword arguments of `refine`, `refine_sync`, `stream` and `refine_many`."""

    target_score: float
    max_iterations: int | None
    patience: int | None
    min_delta: float
    drafts: int
    min_expected_gain: float | None
    confidence: float
    cost_unit: CostUnit
    priors: Priors | str | Path | None
    noise_aware: bool | None
    draft_prompt: DraftPrompt | Path | None
    refine_prompt: RefinePrompt | Path | None
    plan: Plan | None
    answer_context: Mapping[str, Any] | None
    strict_budget: bool
    editor: bool | Editor
    store: Store | None
    on_record: Callable[[Record], object] | None
    on_step: Callable[[Step], object] | None
    temperature: float | None
    max_tokens: int | None
    seed: int | None
    model_params: Mapping[str, Any] | None
    require_validated: Validation


class GradeSettings(SharedSettings, total=False):
    """The keyword arguments of `grade`, `grade_sync` and `grade_many`."""

    answer_context: Mapping[str, Any] | None
    on_record: Callable[[Record], object] | None
    require_validated: Validation


class CalibrationSettings(SharedSettings, total=False):
    """The settings of `calibrate` that are those of `refine`."""

    on_record: Callable[[Record], object] | None
    temperature: float | None
    max_tokens: int | None
    seed: int | None
    model_params: Mapping[str, Any] | None
    require_validated: Validation


class ValidationSettings(SharedSettings, total=False):
    """The settings of `validate` that are those of `refine`."""
