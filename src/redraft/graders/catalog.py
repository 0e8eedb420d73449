"""The table of graders with a name: LLM judges, one judge for every rubric file in `gallery/`, and
the computed graders.

A rubric's name is a judge that scores one answer; `ranker:NAME` and `pairwise:NAME` compare answers
by the same rubric.

The graders of code are in `sandbox.graders`, since the core imports no sandbox. Listing the entries
loads no grader but `Judge`. The registry adds the kinds of requirements and the graders of other
packages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ..base.lazy_imports import extension
from ..base.parameters import SAMPLING, check_parameters, merge_parameters, parse_parameter
from ..errors import ConfigError
from . import computed
from .composite import Jury
from .computed.base import parse_options
from .judging.pointwise import CriteriaMode, Judge, Scoring
from .registry import GraderEntry, Mode, check_no_argument, option_key, split_options
from .rubric import (
    DEFAULT_RUBRIC,
    Rubric,
    aliased_rubric,
    as_rubric,
    gallery_rubric,
    is_gallery_rubric,
    rubric_files,
)

if TYPE_CHECKING:
    from .judging.checklist import Checklist
    from .judging.ranking import Ranker

ALL_TASK_FIELDS = ("messages", "context", "reference", "tests")


# ---- options of judges


PYTHON_ARGUMENTS = {
    *(
        "images",
        "instruction",
        "max_group_size",
        "name",
        "params",
        "questions",
        "read",
        "reads_tool_calls",
        "rubric",
        "scale",
    ),
    "template",
}
"""Arguments of judges that no spec has, and no endpoint as a parameter."""
SLIP = 0.85  # similarity of two names from which on one is taken for the other


@dataclass(frozen=True)
class JudgeSettings:
    """The settings that can be written after the name of any judge."""

    max_eval_chars: int = 32_768


@dataclass(frozen=True)
class PointwiseSettings(JudgeSettings):
    """Those of a judge that scores one answer."""

    scoring: Scoring = "written"
    criteria_mode: CriteriaMode = "together"


def option_values(
    name: str, options: list[str], settings: type[JudgeSettings] = JudgeSettings
) -> dict[str, Any]:
    """Return the arguments of a judge that options give; `name` is that of the grader. Raises
    ConfigError.

    What is no setting is a parameter of its calls, such as `max_tokens=8192` or
    `reasoning_effort=low`; a name that is almost that of a setting is an error.
    """
    own = [f.name for f in fields(settings)]
    keys = list(map(option_key, options))
    given = [option for option, key in zip(options, keys, strict=True) if key in own]
    params: dict[str, Any] = {}
    try:
        values = vars(parse_options(settings, ",".join(given)))
        for option, key in zip(options, keys, strict=True):
            if key not in own:
                _check_parameter_name(option, key, own)
                params = merge_parameters(params, parse_parameter(option))
        check_parameters("params", params)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"grader {name!r}: {error}") from None
    given_values = {key: value for key, value in values.items() if key in keys}
    return given_values | ({"params": params} if params else {})


def _check_parameter_name(option: str, key: str, own: Collection[str]) -> None:
    """Raise ConfigError for an option that is no parameter of calls, but something else."""
    if any(f.name == key for f in fields(PointwiseSettings)):
        raise ConfigError(f"{option!r} is for judges that score one answer")
    if key in PYTHON_ARGUMENTS:
        raise ConfigError(f"{option!r} is not an option: {key} is an argument in Python")
    meant = get_close_matches(key, (*own, *SAMPLING), 1, SLIP)
    if meant and key not in SAMPLING:
        raise ConfigError(f"{option!r} is not an option; did you mean {meant[0]}=...?")


# ---- judges


def _judge(name: str, rubric: Rubric | str, argument: str, options: list[str]) -> Judge:
    """Return a judge with options; `argument` is what follows its name in the spec."""
    values = option_values(name, options, PointwiseSettings)
    return Judge(rubric, f"{name}:{argument}" if argument.strip() else name, **values)


def _make_judge(argument: str) -> Judge:
    """Return the judge for "RUBRIC,OPTION=VALUE,...", any part of which may be missing."""
    rubric, options = split_options(argument)
    return _judge("judge", aliased_rubric(rubric) or rubric or DEFAULT_RUBRIC, argument, options)


def _make_comparer(kind: str, argument: str) -> Ranker:
    """Return a ranker, or a comparer of pairs, that goes by a rubric if one is named, with options
    as those of a judge.
    """
    cls: type[Ranker] = getattr(import_module(".judging.ranking", __package__), kind)
    if not argument:
        return cls()
    rubric, options = split_options(argument)
    return cls(
        name=f"{cls.name}:{argument}",
        rubric=as_rubric(aliased_rubric(rubric) or rubric) if rubric else None,
        **option_values(cls.name, options),
    )


def _make_checklist(argument: str) -> Checklist:
    questions, options = split_options(argument)
    if is_gallery_rubric(questions):
        raise ConfigError(
            f"a checklist has questions, and {questions!r} is a rubric with criteria: use the "
            f"grader {questions!r}"
        )
    from .judging.checklist import Checklist

    values = option_values("checklist", options)
    return (
        Checklist(questions or None, name=f"checklist:{argument}", **values)
        if argument
        else Checklist()
    )


def _make_jury(argument: str) -> Jury:
    """Return a jury of the named graders, else of three votes of a judge; options are those of
    each.
    """
    names, options = split_options(argument)
    if names:
        voters = [
            ",".join([f"{name.strip()}:{options[0]}", *options[1:]]) if options else name.strip()
            for name in names.split(",")
        ]
        return Jury(voters, "median", name=f"jury:{argument}")
    values = option_values("jury", options, PointwiseSettings)
    name = f"jury:{argument}" if argument else "jury"
    return Jury(Judge(temperature=0.7, **values), "median", repeats=3, name=name)


def _entry(
    name: str, mode: Mode, about: str, make: Callable[[str], Any], example: str = ""
) -> GraderEntry:
    return GraderEntry(
        name, mode, about, make, ALL_TASK_FIELDS, calls_model=True, example=example or name
    )


JUDGES: tuple[GraderEntry, ...] = (
    _entry(
        "judge",
        "pointwise",
        "an LLM judge: instructions, correctness, completeness, clarity, or a rubric (a name or a "
        "file); says what to change",
        _make_judge,
    ),
    _entry(
        "checklist",
        "pointwise",
        "an LLM answers questions with yes, partial or no: generated from the task, or those in a "
        "file",
        _make_checklist,
    ),
    _entry(
        "ranker",
        "listwise",
        "an LLM that ranks all answers so far, by a rubric if one is named; its reason is "
        "feedback for the next draft",
        partial(_make_comparer, "Ranker"),
        "ranker:helpfulness",
    ),
    _entry(
        "pairwise",
        "pairwise",
        "an LLM that compares answers two at a time, in both orders, by a rubric if one is named; "
        "a verdict that changes with the order is a tie",
        partial(_make_comparer, "Pairwise"),
        "pairwise:clarity",
    ),
    _entry(
        "jury",
        "pointwise",
        "the median of three votes of a judge at temperature 0.7, or of one vote of each named "
        "grader; the votes are recorded",
        _make_jury,
        "jury:helpfulness,clarity",
    ),
    _entry(
        "trained",
        "pointwise",
        "what `redraft train` fitted to labels of people: a head over other graders, or a reward "
        "model; unknown for answers that are unlike the labelled ones",
        lambda argument: extension("trained").load_grader(argument),
        "trained:NAME",
    ),
)


def gallery_entries() -> Iterator[GraderEntry]:
    """Yield an entry for each rubric in the gallery; its file is read when the entry is reached."""
    for name in rubric_files():
        yield _judge_entry(name, gallery_rubric(name))


def _judge_entry(name: str, rubric: Rubric) -> GraderEntry:

    def make(argument: str) -> Judge:
        text, options = split_options(argument)
        check_no_argument(name, text)
        return _judge(name, rubric, argument, options)

    return GraderEntry(
        name,
        "pointwise",
        rubric.about,
        make,
        ("messages", *rubric.task_fields),
        calls_model=True,
        example=name,
    )


# ---- computed graders


def lazy_factory(module: str, kind: str, package: str = computed.__name__) -> Callable[[str], Any]:
    """Return a `make` that loads the module when it is called. Options become part of the grader's
    name.
    """

    def make(argument: str) -> Any:
        cls = getattr(import_module(f".{module}", package), kind)
        try:
            grader = parse_options(cls, argument)
        except ConfigError as error:
            raise ConfigError(f"grader {cls.name!r}: {error}") from None
        return replace(grader, name=f"{cls.name}:{argument}") if argument.strip() else grader

    return make


def _lazy_maker(module: str, function: str) -> Callable[[str], Any]:
    """Return a `make` that loads the module with the function which makes the grader."""

    def make(argument: str) -> Any:
        return getattr(import_module(module, __package__), function)(argument)

    return make


def computed_entry(
    name: str,
    about: str,
    make: Callable[[str], Any],
    task_fields: str = "",
    example: str = "",
    *,
    calls_server: bool = False,
    runs_programs: bool = False,
) -> GraderEntry:
    fields = tuple(task_fields.split())
    return GraderEntry(
        name,
        "code",
        about,
        make,
        fields,
        example=example or name,
        calls_server=calls_server,
        runs_programs=runs_programs,
    )


COMPUTED_GRADERS: tuple[GraderEntry, ...] = (
    computed_entry(
        "answered",
        "is an answer at all: more than nothing, a full stop or an opener",
        lazy_factory("no_answer", "AnswerPresence"),
    ),
    replace(
        computed_entry(
            "consensus",
            "the answer on which most answers agree: by its value if there is a form of answer, "
            "else by its text",
            lazy_factory("consensus", "Consensus"),
        ),
        mode="listwise",
    ),
    computed_entry(
        "bleu", "BLEU against the reference", lazy_factory("similarity", "Bleu"), "reference"
    ),
    computed_entry(
        "chrf", "chrF against the reference", lazy_factory("similarity", "Chrf"), "reference"
    ),
    computed_entry(
        "citations",
        "the share of quotes and cited passages that the context supports",
        lazy_factory("citations", "Citations"),
        "context",
        "citations:min_words=6",
    ),
    computed_entry(
        "embedding",
        "cosine with the reference by an embedding endpoint",
        _lazy_maker(".computed.embedding", "make_embedding"),
        "reference",
        "embedding:openai:text-embedding-3-small",
        calls_server=True,
    ),
    computed_entry(
        "exact",
        "equal to the reference",
        lazy_factory("similarity", "Exact"),
        "reference",
        "exact:case=false,punctuation=false",
    ),
    computed_entry(
        "fuzzy",
        "similarity of characters with the reference",
        lazy_factory("similarity", "Fuzzy"),
        "reference",
    ),
    computed_entry(
        "json_fields",
        "the share of JSON fields equal to the reference's",
        lazy_factory("json_fields", "JsonFields"),
        "reference",
        "json_fields:fields=name|items,ordered=false",
    ),
    computed_entry(
        "length",
        "the length in words, characters or tokens: 1 in a range, gradually less outside",
        lazy_factory("text_quality", "GradedLength"),
        example="length:words=80-200",
    ),
    computed_entry(
        "math",
        "the final answer equals the reference as mathematics",
        lazy_factory("math_answer", "Math"),
        "reference",
    ),
    computed_entry(
        "moderation",
        "1 minus the highest category score of a provider's moderation endpoint",
        _lazy_maker(".reward", "make_moderation"),
        example="moderation:openai:omni-moderation-latest",
        calls_server=True,
    ),
    computed_entry(
        "number_accuracy",
        "the share of the reference's numbers that the answer gives",
        lazy_factory("number_accuracy", "NumberAccuracy"),
        "reference",
        "number_accuracy:relative=0.01,order=false",
    ),
    computed_entry(
        "numeric",
        "the final number equals the reference's",
        lazy_factory("numeric", "Numeric"),
        "reference",
        "numeric:relative=0.01,pick=only",
    ),
    computed_entry(
        "pii",
        "no personal data: e-mail, phone, card, IBAN, SSN, IP address",
        lazy_factory("leaks", "Pii"),
        example="pii:kinds=email|card",
    ),
    computed_entry(
        "readability",
        "Flesch-Kincaid grade within a range, for English",
        lazy_factory("text_quality", "Readability"),
        example="readability:max_grade=8",
    ),
    computed_entry(
        "reasoning_format",
        "reasoning between tags, then the answer; reads the whole reply",
        lazy_factory("reasoning_format", "ReasoningFormat"),
        example="reasoning_format:think=think,answer=answer",
    ),
    computed_entry(
        "repetition",
        "does not repeat itself",
        lazy_factory("text_quality", "Repetition"),
        example="repetition:n=6",
    ),
    computed_entry(
        "reward",
        "a reward model behind a server: /classify, /score, /rerank, /pooling, /predict",
        _lazy_maker(".reward", "make_reward"),
        "messages",
        "reward:http://127.0.0.1:8000/classify#MODEL,range=-10:10",
        calls_server=True,
    ),
    computed_entry(
        "rouge",
        "ROUGE against the reference",
        lazy_factory("similarity", "Rouge"),
        "reference",
        "rouge:kind=rouge2",
    ),
    computed_entry(
        "secrets",
        "no API keys, private keys, tokens or passwords",
        lazy_factory("leaks", "Secrets"),
    ),
    computed_entry(
        "token_f1",
        "token F1 against the reference, as for SQuAD",
        lazy_factory("similarity", "TokenF1"),
        "reference",
        "token_f1:tokens=words",
    ),
    computed_entry(
        "tool_call_order",
        "the share of expected tool calls that the trajectory makes in the expected order",
        lazy_factory("tool_calls", "ToolCallOrder"),
        "messages reference metadata",
    ),
    computed_entry(
        "tool_call_precision",
        "the share of the trajectory's tool calls that are expected",
        lazy_factory("tool_calls", "ToolCallPrecision"),
        "messages reference metadata",
        "tool_call_precision:arguments=false",
    ),
    computed_entry(
        "tool_call_recall",
        "the share of expected tool calls that the trajectory makes",
        lazy_factory("tool_calls", "ToolCallRecall"),
        "messages reference metadata",
        "tool_call_recall:scope=steps",
    ),
    computed_entry(
        "tool_calls",
        "the share of tool calls that are the expected ones",
        lazy_factory("tool_calls", "ToolCalls"),
        "reference metadata",
        "tool_calls:mode=any",
    ),
)


def catalog_entries() -> Iterator[GraderEntry]:
    """Yield the entries of all judges, then those of the computed graders and of the graders of
    code, by name.
    """
    yield from JUDGES
    yield from gallery_entries()
    yield from sorted(
        (*COMPUTED_GRADERS, *extension("graders").CODE_GRADERS), key=attrgetter("name")
    )
