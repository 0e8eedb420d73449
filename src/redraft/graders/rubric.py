"""Rubrics: the criteria by which an answer is judged, the meaning of their levels, examples, and
prompt templates.

A rubric is data, read strictly from files. It knows no model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, cast

from ..base import checks
from ..base.documents import MAX_VALUES, check_yaml, parse_toml, read_small_text
from ..base.jsontext import TOO_DEEP_MESSAGE, check_bounds, strict_loads
from ..errors import ConfigError
from .template import (
    Kind,
    Paths,
    ReadInput,
    Scale,
    Template,
    check_scale,
    find_field,
    parse_read,
    parse_scale,
)

GALLERY = Path(__file__).with_name("gallery")
SUFFIXES = ".toml, .json, .yaml, .yml, .md or .txt"
MAX_SCORE = 5
TASK_FIELDS = ("context", "reference", "tests")
USES_FIELDS = (*TASK_FIELDS, "tools")
NEEDS_FIELDS = (*TASK_FIELDS, "history", "trajectory")
OVERALL = "overall"
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Criterion:
    """A criterion: a name, a description, a weight (> 0), and the meaning of some of the levels
    0-5, lowest first.
    """

    name: str
    description: str
    weight: float = 1.0
    levels: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredExample:
    """An answer with its scores: a whole number 0-5 for each criterion (or one, "overall"), and the
    reason.
    """

    answer: str
    scores: tuple[tuple[str, int], ...]
    task: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rubric:
    """The criteria of a judge.

    `needs` is what a task must have: out of context, reference, tests, history (earlier turns of
    the conversation) and trajectory (tool calls or their results). `uses` are the fields that the
    judge reads if the task has them: out of context, reference, tests, and tools (the tools that
    the answer could call). `reads_tool_calls` says that answers that call tools are judged, too.
    `template` is the author's own prompt (see `Template`), `scale` the worst and the best score of
    an own scale, `read` the keys of the template's own reply form (see `Judge`). `about` describes
    the rubric for people; it is not shown to a model. Raises ConfigError.
    """

    name: str
    criteria: tuple[Criterion, ...]
    about: str = ""
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = TASK_FIELDS
    examples: tuple[ScoredExample, ...] = ()
    template: str | None = None
    reads_tool_calls: bool = False
    scale: tuple[float, float] | None = None
    read: ReadInput | None = None

    def __post_init__(self) -> None:
        checks.text("rubric: name", self.name)
        checks.flag("rubric: reads_tool_calls", self.reads_tool_calls)
        checks.text("rubric: about", self.about, allow_blank=True)
        checks.text("rubric: template", self.template, optional=True)
        _check_instances("criteria", self.criteria, Criterion)
        _check_instances("examples", self.examples, ScoredExample)
        self._set_fields("needs", NEEDS_FIELDS)
        self._set_fields("uses", USES_FIELDS)
        names = [c.name for c in self.criteria]
        if not names or len(set(names)) < len(names):
            raise ConfigError(
                f"rubric {self.name!r} needs criteria with different names, got "
                f"{checks.format_value(names)}"
            )
        scored = {name for example in self.examples for name, _ in example.scores}
        if unknown := scored - {*names, OVERALL}:
            raise ConfigError(
                f"rubric {self.name!r}: an example scores {min(unknown)!r}; "
                f"{checks.available_names([*names, OVERALL])}"
            )
        self._check_form()

    def _set_fields(self, name: str, allowed: tuple[str, ...]) -> None:
        """Check a list of fields of a task, and set it as a tuple. Raises ConfigError."""
        value = getattr(self, name)
        if not isinstance(value, list | tuple) or not all(each in allowed for each in value):
            expected = f"a list out of {', '.join(allowed)}"
            raise checks.invalid_argument(f"rubric: {name}", expected, value)
        object.__setattr__(self, name, tuple(value))

    def _check_form(self) -> None:
        """Check the template, the scale and the reply form. Raises ConfigError."""
        kind: Kind = Template(self.template).kind if self.template is not None else "pointwise"
        if self.scale is not None:
            object.__setattr__(self, "scale", parse_scale(self.scale, "rubric: "))
            if kind != "pointwise":
                raise ConfigError(
                    "rubric: a scale is for a template that shows one answer: a comparison has no "
                    "score"
                )
            if self.examples or any(c.levels for c in self.criteria):
                raise ConfigError(
                    f"rubric: levels and examples are given from 0 to {MAX_SCORE}: leave them "
                    "out, or the scale"
                )
        if self.read is None:
            return
        if self.template is None:
            raise ConfigError(
                "rubric: read names the keys of a template's own reply form: give a template"
            )
        read = parse_read(self.read, kind, "rubric: ")
        object.__setattr__(self, "read", read)
        check_scale(self.score_scale if self.scale else None, read, "rubric: ")

    @property
    def paths(self) -> Paths | None:
        """The template's own reply form as (part, path) pairs, or None."""
        return cast("Paths | None", self.read)  # set by __post_init__

    @property
    def score_scale(self) -> Scale:
        """The scale of the scores: its own, or 0-5."""
        return Scale(*self.scale) if self.scale else Scale(0, MAX_SCORE)

    @property
    def task_fields(self) -> tuple[str, ...]:
        """The fields of the task that it needs or uses, in order."""
        return tuple(name for name in USES_FIELDS if name in {*self.needs, *self.uses})

    @property
    def spec(self) -> str:
        """Everything that a judge sees of it, as one line of JSON. Its name and `about` are not
        included.
        """
        return json.dumps(
            {**self.to_data(), "name": "", "about": ""}, ensure_ascii=False, sort_keys=True
        )

    @classmethod
    def load(cls, path: str | Path) -> Rubric:
        """Read a rubric from a file.

        TOML, YAML and JSON hold `criteria`: a table of name = description, or a list of {name,
        description, weight, levels}; and optionally `name`, `about`, `needs`, `uses`,
        `reads_tool_calls`, `examples`, `template`, `scale`, `read`. `levels` says what some of the
        scores 0-5 mean: a table of score = text, or a list of six texts. An example is {task,
        answer, score or scores, reason}. In .md and .txt each line "name: description" is a
        criterion. Raises ConfigError, also for a template in place of criteria.
        """
        data, name = read_table(path, "criteria", _parse_criteria_lines)
        return cls.from_data(data, name, str(path))

    @classmethod
    def from_data(cls, data: Mapping[str, Any], name: str, where: str) -> Rubric:
        """Return a rubric from plain data. Raises ConfigError naming `where`."""
        if "questions" in data:
            raise ConfigError(
                f"{where}: questions make a checklist, not a rubric: use the grader "
                f"'checklist:{where}'"
            )
        check_keys(data, tuple(f.name for f in fields(cls)), where)
        template = text_at(data, "template", where) or None
        try:
            return cls(
                text_at(data, "name", where) or name,
                tuple(
                    _criterion_from_row(row, where) for row in _criteria_rows(data, where, template)
                ),
                text_at(data, "about", where),
                data.get("needs", ()),
                data.get("uses", () if "needs" in data else TASK_FIELDS),
                tuple(_example_from_row(row, where) for row in _list_at(data, "examples", where)),
                template,
                reads_tool_calls=data.get("reads_tool_calls", False),
                scale=data.get("scale"),
                read=data.get("read"),
            )
        except ConfigError as error:
            raise error if where in str(error) else ConfigError(f"{where}: {error}") from error

    def to_data(self) -> dict[str, Any]:
        """Return plain data from which `from_data` makes the same rubric."""
        plain: dict[str, Any] = {
            "name": self.name,
            "about": self.about,
            "needs": list(self.needs),
            "uses": list(self.uses),
            "reads_tool_calls": self.reads_tool_calls,
            "criteria": [
                _to_plain_dict(c, levels={str(level): text for level, text in c.levels})
                for c in self.criteria
            ],
            "examples": [_to_plain_dict(e, scores=dict(e.scores)) for e in self.examples],
            "template": self.template,
            "scale": list(self.scale or ()),
            "read": dict(self.paths or ()),
        }
        return {key: value for key, value in plain.items() if value or key == "uses"}

    def to_toml(self) -> str:
        """Return the text of a TOML file from which `load` makes the same rubric. Lone surrogates
        are written as escapes.

        Raises ConfigError if the library that writes TOML is missing.
        """
        with checks.needs_extra("validate", "writing a rubric needs an extra"):
            import tomli_w
        data = self.to_data()
        # a multi-line string loses a \r
        text = tomli_w.dumps(data, multiline_strings="\\r" not in json.dumps(data))
        return SURROGATE.sub(lambda lone: f"\\\\u{ord(lone[0]):04x}", text)


def as_rubric(value: Any) -> Rubric:
    """Return the rubric that a value is or names: in the gallery, or in a file; or one of the
    criteria in a mapping.

    Raises ConfigError.
    """
    if isinstance(value, Rubric):
        return value
    if isinstance(value, Mapping):
        _check_no_template("\n".join(map(str, value.values())))
        return Rubric.from_data({"criteria": dict(value)}, "rubric", "rubric")
    if isinstance(value, str):
        _check_no_template(value)
        return _named_rubric(value)
    if isinstance(value, Path):
        return Rubric.load(value)
    raise ConfigError(
        "a rubric is a Rubric, a name in the gallery, a file name, or a mapping of criterion to "
        f"description, got {checks.format_value(value)}"
    )


def _check_no_template(text: str) -> None:
    """Raise ConfigError for a text with a field of a template: it would be taken for a criterion or
    a file name.
    """
    if message := _template_message(text):
        raise ConfigError(f"rubric: {message}")


def _template_message(text: str) -> str:
    """Return what to do with a text that holds a field of a template; "" if it holds none."""
    if field := find_field(text):
        return (
            f"{field} is a field of a prompt template, and a rubric holds criteria: "
            "give the template as Judge(template=...), or on the command line with --template FILE"
        )
    return ""


def overall_criterion(description: str = "As described above.") -> tuple[Criterion, ...]:
    """Return the criteria of a judge that gives one overall score."""
    return (Criterion(OVERALL, description),)


# ---- from plain data


def _criteria_rows(data: Mapping[str, Any], where: str, template: str | None) -> list[Any]:
    if template is not None and "criteria" not in data:
        return [_to_plain_dict(c) for c in overall_criterion()]
    criteria = data.get("criteria")
    if isinstance(criteria, Mapping):
        criteria = [
            {**(value if isinstance(value, Mapping) else {"description": value}), "name": name}
            for name, value in criteria.items()
        ]
    if not isinstance(criteria, list) or not criteria:
        raise ConfigError(
            f"{where}: a rubric needs `criteria`: name = description, or a list of them"
        )
    return criteria


def _criterion_from_row(row: Any, where: str) -> Criterion:
    if (
        not isinstance(row, Mapping)
        or not _is_nonempty_text(row.get("name"))
        or not isinstance(row.get("description"), str)
    ):
        raise ConfigError(
            f"{where}: a criterion needs `name` and `description`, got {checks.format_value(row)}"
        )
    at = f"{where}: criterion {row['name']!r}"
    check_keys(row, ("name", "description", "weight", "levels"), at)
    return Criterion(
        row["name"],
        row["description"],
        weight_of(row.get("weight", 1.0), row["name"], where),
        _levels_from_row(row, at),
    )


def weight_of(weight: Any, name: str, where: str) -> float:
    """Return a weight > 0. Raises ConfigError naming what has it."""
    checks.positive(f"{where}: the weight of {name!r}", weight)
    return float(weight)


def _levels_from_row(row: Mapping[str, Any], where: str) -> tuple[tuple[int, str], ...]:
    value: Any = row.get("levels", {})
    if isinstance(value, list) and len(value) == MAX_SCORE + 1:
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where}: levels must be a table of 0-{MAX_SCORE} = text or a list of "
            f"{MAX_SCORE + 1} texts, got {checks.format_value(value)}"
        )
    levels = sorted(
        (_parse_level(key, where), text_at(value, cast("str", key), f"{where}: levels"))
        for key in value
    )
    if len({level for level, _ in levels}) < len(levels) or not all(text for _, text in levels):
        raise ConfigError(f"{where}: each level has one text, got {checks.format_value(value)}")
    return tuple(levels)


def _parse_level(key: Any, where: str) -> int:
    """Return a level. Keys are texts in TOML and JSON, and may be numbers in YAML."""
    if str(key) not in {str(n) for n in range(MAX_SCORE + 1)}:
        raise ConfigError(
            f"{where}: a level is a whole number from 0 to {MAX_SCORE}, got "
            f"{checks.format_value(key)}"
        )
    return int(key)


def _check_score(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SCORE:
        raise ConfigError(
            f"{where}: a score is a whole number from 0 to {MAX_SCORE}, got "
            f"{checks.format_value(value)}"
        )
    return value


def _example_from_row(row: Any, where: str) -> ScoredExample:
    if not isinstance(row, Mapping):
        raise ConfigError(
            f"{where}: an example is a table with `answer` and `score` or `scores`, got "
            f"{checks.format_value(row)}"
        )
    at = f"{where}: an example"
    check_keys(row, ("task", "answer", "score", "scores", "reason"), at)
    value = row["scores"] if "scores" in row else {OVERALL: row.get("score")}
    if (
        not _is_nonempty_text(row.get("answer"))
        or not isinstance(value, Mapping)
        or not value
        or len({"score", "scores"} & row.keys()) != 1
    ):
        raise ConfigError(
            f"{at} needs `answer`, and either `score` or a table `scores`, got "
            f"{checks.format_value(dict(row))}"
        )
    scores = tuple((str(name), _check_score(score, at)) for name, score in value.items())
    return ScoredExample(
        row["answer"], scores, text_at(row, "task", at), text_at(row, "reason", at)
    )


def _check_instances(name: str, values: Any, kind: type) -> None:
    if not isinstance(values, list | tuple) or not all(isinstance(one, kind) for one in values):
        raise checks.invalid_argument(f"rubric: {name}", f"a list of {kind.__name__}s", values)


def _list_at(data: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = data.get(key, [])
    if not isinstance(value, list):
        raise checks.invalid_argument(f"{where}: {key}", "a list", value)
    return value


def _to_plain_dict(value: Any, **overrides: Any) -> dict[str, Any]:
    plain = {f.name: getattr(value, f.name) for f in fields(value)} | overrides
    return {key: value for key, value in plain.items() if value or key == "description"}


def check_keys(data: Mapping[str, Any], allowed: Iterable[str], where: str) -> None:
    """Raise ConfigError for an unknown key, naming the known ones."""
    if unknown := [key for key in data if key not in allowed]:
        raise ConfigError(
            f"{where}: {checks.unknown_name_message('key', str(unknown[0]), allowed)}"
        )


def is_gallery_rubric(name: str) -> bool:
    """Return whether the gallery has a rubric of that name; every other text that names a rubric is
    the name of a file.
    """
    return name in rubric_files()


@cache
def gallery_rubric(name: str) -> Rubric:
    """Return the gallery's rubric of that name. Raises KeyError if there is none."""
    return Rubric.load(rubric_files()[name])


@cache
def rubric_files() -> dict[str, Path]:
    """Return the files of the gallery by the names of their rubrics."""
    return {path.stem: path for path in sorted(GALLERY.glob("*.toml"))}


def _named_rubric(name: str) -> Rubric:
    """Return the gallery's rubric of that name or of that name in another library, else that in a
    file. Raises ConfigError.
    """
    if is_gallery_rubric(name):
        return gallery_rubric(name)
    if aliased := aliased_rubric(name):
        return gallery_rubric(aliased)
    if name.isidentifier():
        raise ConfigError(
            checks.unknown_name_message("rubric", name, rubric_files(), "redraft graders")
        )
    return Rubric.load(name)


def aliased_rubric(name: str) -> str | None:
    """Return the rubric of the gallery by which the grader of another library judges; None for any
    other name.

    A name in the gallery is no name of another library. Raises ConfigError for a grader that
    Redraft does not have, and for one that has no rubric.
    """
    if is_gallery_rubric(name):
        return None
    from .aliases import aliased_spec  # a long table, and few names need it

    spec = aliased_spec(name, "")
    if spec is None:
        return None
    rubric = spec.removeprefix("ranker:")
    if not is_gallery_rubric(rubric):
        raise ConfigError(f"{name!r} stands for the grader {spec!r}, which has no rubric")
    return rubric


def text_at(data: Mapping[str, Any], key: str, where: str) -> str:
    """Return the text under `key`, without white space around it; "" if there is none. Raises
    ConfigError.
    """
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise checks.invalid_argument(f"{where}: {key}", "text", value)
    return (value or "").strip()


def _is_nonempty_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


# ---- from files


def read_text_file(path: str | Path, subject: str) -> str:
    """Return the text of a file. Raises ConfigError naming it."""
    try:
        return read_small_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{subject} {str(path)!r} cannot be read: {checks.read_error_message(error)}"
        ) from error


def read_table(
    path: str | Path, key: str, parse_lines: Callable[[str], Any], subject: str = "rubric"
) -> tuple[Mapping[str, Any], str]:
    """Return the plain data in a file, and a name for it. `parse_lines` reads .md and .txt. Raises
    ConfigError.
    """
    file = Path(path)
    text = read_text_file(path, subject)
    readers: dict[str, Callable[[str], Any]] = {
        ".toml": parse_toml,
        ".json": strict_loads,
        ".yaml": _parse_yaml,
        ".yml": _parse_yaml,
        ".md": parse_lines,
        ".txt": parse_lines,
    }
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise ConfigError(f"{subject} {str(file)!r}: the file must end in {SUFFIXES}")
    try:
        data = reader(text)
        check_bounds(data, MAX_VALUES)
    except RecursionError as error:
        raise ConfigError(f"{subject} {str(file)!r}: {TOO_DEEP_MESSAGE}") from error
    except ValueError as error:
        raise ConfigError(f"{subject} {str(file)!r}: {error}") from error
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"{subject} {str(file)!r}: expected a table with `{key}`, got {type(data).__name__}"
        )
    return data, file.stem


def _parse_yaml(text: str) -> Any:
    with checks.needs_extra("yaml", "a YAML rubric needs an extra"):
        import yaml
    check_yaml(yaml, text)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    except (
        TypeError,
        LookupError,
        AttributeError,
        OverflowError,
    ) as error:  # the value does not fit its tag or its form
        raise ValueError(
            f"a value does not fit its tag: {type(error).__name__}: {error}"
        ) from error


def _parse_criteria_lines(text: str) -> Mapping[str, Any]:
    if message := _template_message(text):
        raise ValueError(message)
    rows = [line.strip().lstrip("-*# ").partition(":") for line in text.splitlines() if ":" in line]
    return {
        "criteria": [
            {"name": name.strip(), "description": about.strip()} for name, _, about in rows
        ]
    }


DEFAULT_RUBRIC = Rubric(
    "default",
    (
        Criterion("instructions", "It does all that is asked, in the form asked for."),
        Criterion("correctness", "What it says is true; its reasoning and code hold."),
        Criterion("completeness", "Nothing that is needed is missing."),
        Criterion("clarity", "It is easy to follow, precise, with nothing superfluous."),
    ),
)
