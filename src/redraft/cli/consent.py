"""Consent to settings that come with a folder or a trace: with some of them, someone else could
choose where texts are sent, which code runs and where, or which files are read.

The first part finds these settings: explicit addresses, model files, code, paths that lead out of
the folder of the file that names them, and what loosens the sandbox of code. Named providers
("openai:gpt-4o-mini") and all other settings need no consent. It looks at names and resolves paths;
it opens nothing.

The second part keeps the consents in the user's own data folder, one file each, named after what it
is for: a folder together with a hash of its sensitive settings, or such a hash alone for traces,
which may be moved. The hash covers the sensitive settings only: changing a target score asks
nothing again, changing a host does. A run that a user starts saves the hash of the trace that it
writes, so that the trace can be resumed; this allows no more than the run did.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ..answers.forms import CODE_PREFIX
from ..base.documents import parse_toml, read_small_bytes
from ..base.text import strip_control_sequences
from ..errors import ConfigError, StoreError
from ..graders import entries
from ..graders.aliases import find_alias
from ..graders.execution import EXECUTION_FIELDS
from ..graders.rubric import is_gallery_rubric
from ..loop.trace import Trace
from ..models.model_names import LOCAL_SERVERS, PREFIXES, VENDORS, split_names
from ..requirements import kinds, reads_file
from ..settings import OptionFields, Validation, settings_of
from ..storage.secure_files import data_dir, make_folder, write_atomic
from .user_code import find_code, parse_code_name

Kind: TypeAlias = Literal["address", "model file", "code", "path", "sandbox", "package", "trust"]
Visit: TypeAlias = Callable[[Kind, str], str]
Visitor: TypeAlias = Callable[[str, Visit], str]

MODEL_SETTINGS = ("model", "judge")
PATH_SETTINGS = (
    "rubric",
    "template",
    "priors",
    "plan",
    *(
        name.replace("_", "-")
        for name, info in settings_of(OptionFields).items()
        if info.names_file
    ),
)
PRIORS_KEYWORDS = ("shipped", "learned")  # values of `priors` that are not paths
KIND_DESCRIPTIONS: Mapping[Kind, str] = {
    "address": "an address that receives texts",
    "model file": "a model file that is loaded",
    "code": "code that runs",
    "path": "a path outside the folder",
    "sandbox": "where code of answers runs",
    "package": "a package that code of answers may import",
    "trust": "tests whose outcome the code could forge",
}
# values of `sandbox` that need no consent: with Landlock, code learns more
SAFE_TIERS = ("auto", "bubblewrap")
# in the spec of a grader that runs code
EXECUTION_OPTION = re.compile(rf"(?:^|,)\s*(?:{'|'.join(EXECUTION_FIELDS)})\s*=")
MAX_JURY_SIZE = 200  # graders in a jury, nested juries included
MAX_SHOWN = 500  # characters of a value in a message
VARIABLE = "REDRAFT_TRUST"
NOT_FOLDERS = get_args(Validation)  # the values of --require-validated, which another variable sets
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class SensitiveSetting:
    """A setting that needs consent, by its key; `value` is what the consent is for, a path with its
    target.
    """

    key: str
    kind: Kind
    value: str

    @property
    def description(self) -> str:
        """The setting on one line, without control characters, characters that imitate another
        host, or a password.
        """
        value = self.value
        if self.kind == "address":  # also one inside a spec: without user info and query
            value = re.sub(r"(?<=//)[^/#?\s]*@|\?[^#]*", "", value)
        quoted = json.dumps(value, ensure_ascii=self.kind == "address")
        if len(quoted) > MAX_SHOWN:
            quoted = f"{quoted[:MAX_SHOWN]}... ({len(value):,} characters)"
        return f"{self.key}: {strip_control_sequences(quoted)} ({KIND_DESCRIPTIONS[self.kind]})"


def find_sensitive_settings(
    table: Mapping[str, Any], folder: Path, base: Path
) -> tuple[SensitiveSetting, ...]:
    """Return the settings in a table that need consent, each once, in the order of their keys.

    `folder` is the folder of the file that holds the table; relative paths start from `base`.
    Raises ConfigError for a path in the folder that is neither a file nor a folder: reading a pipe
    could block forever.
    """
    settings: dict[SensitiveSetting, None] = {}
    for key in sorted(table):
        name = key.replace("_", "-")

        def add(kind: Kind, text: str, name: str = name) -> str:
            if kind != "path":
                settings[SensitiveSetting(name, kind, text)] = None
            elif target := _target_outside(text, folder, base, name):
                settings[SensitiveSetting(name, kind, target)] = None
            return text

        values = table[key] if isinstance(table[key], list | tuple) else [table[key]]
        for text in values:
            if isinstance(text, str):  # values of other types are rejected where settings are read
                visit_setting(name, text, add)
                if name == "plan" and (priors := _priors_of_plan(text, folder, base)):
                    add("path", priors)
            elif name == "trust-in-process" and text is True:
                add("trust", "true")
    return tuple(settings)


def _priors_of_plan(text: str, folder: Path, base: Path) -> str:
    """Return the file of priors that a plan file in the folder names; "" without one. What is wrong
    with the plan file is said where it is used.
    """
    with suppress(OSError, ValueError, RuntimeError):
        path = base / text
        if path.resolve().is_relative_to(folder.resolve()):
            named = parse_toml(read_small_bytes(path).decode()).get("priors")
            if isinstance(named, str) and named not in PRIORS_KEYWORDS:
                return rebase_paths("priors", named, str(path.parent))  # as it will be read
    return ""


def sensitive_settings_of_trace(trace: Trace, path: Path) -> tuple[SensitiveSetting, ...]:
    """Return the settings of a trace in a file that need consent. Raises ConfigError."""
    own = trace.settings.get("require", ())  # takes precedence over the requirements of the task
    required = [*trace.task.requirements, *(own if isinstance(own, list | tuple) else ())]
    try:
        return find_sensitive_settings(
            {**trace.settings, "require": required}, path.resolve().parent, Path.cwd()
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def settings_digest(settings: tuple[SensitiveSetting, ...]) -> str:
    """Return one hash over all settings: an address may be harmless alone, but not together with a
    certain file.
    """
    keys = sorted({(s.key, s.kind, s.value) for s in settings})
    return hashlib.sha256(json.dumps(keys).encode()).hexdigest()


def _visit_model(name: str, visit: Visit) -> str:
    prefix, colon, rest = name.strip().partition(":")
    if "//" in name:
        return visit("address", name)
    if not colon or prefix in {"openai", *LOCAL_SERVERS, *VENDORS} or f"{prefix}:" not in PREFIXES:
        return name  # an unknown prefix loads and sends nothing
    return f"{prefix}:{visit('model file', rest)}"


def _visit_models(value: str, visit: Visit) -> str:
    return ",".join(_visit_model(name, visit) for name in split_names(value))


def _visit_grader(value: str, visit: Visit) -> str:
    if value.count("jury:") + value.count(",") > MAX_JURY_SIZE:
        raise ConfigError(f"grader: {value[:40]!r}... names more than {MAX_JURY_SIZE} graders")
    return _visit_spec(value, visit)


def _visit_spec(spec: str, visit: Visit) -> str:
    name, _, argument = spec.partition(":")
    if (name := name.strip()) in kinds():
        return _visit_requirement(spec, visit)
    entry = next((entry for entry in entries() if entry.name == name), None)
    if entry is None:
        kind = _kind_of_unknown(spec, name, argument)
        return visit(kind, spec) if kind else spec
    if entry.origin != "redraft":
        return visit("code", spec)
    if not argument:
        return spec
    if name in {"judge", "checklist", "ranker", "pairwise"}:
        is_named = is_gallery_rubric(argument) or find_alias(argument)
        return spec if is_named else f"{name}:{visit('path', argument)}"
    if name == "jury":
        return f"jury:{','.join(_visit_spec(part.strip(), visit) for part in argument.split(','))}"
    if name == "embedding":
        return f"embedding:{_visit_model(argument, visit)}"
    if entry.mode == "code" and EXECUTION_OPTION.search(argument):
        return visit("sandbox", spec)
    return visit("address", spec) if "//" in argument else spec


def _visit_requirement(spec: str, visit: Visit) -> str:
    name, _, argument = spec.partition(":")
    return f"{name}:{visit('path', argument.strip())}" if reads_file(spec) else spec


def _kind_of_unknown(spec: str, name: str, argument: str) -> Kind | None:
    """Return what a spec is that names no known grader: code, or an address, if it looks like one;
    others are rejected later.
    """
    if find_code(spec):
        return "code"
    if "//" in spec:
        return "address"
    is_path = name.endswith(".py") or {"/", os.sep} & set(name)
    is_dotted = argument.replace(".", "_").isidentifier()
    return "code" if argument and (is_path or is_dotted) else None


def _visit_unless(is_safe: Callable[[str], bool], kind: Kind) -> Visitor:
    """Return what visits a value as a whole, unless it needs no consent."""
    return lambda value, visit: value if is_safe(value) else visit(kind, value)


VISITORS: Mapping[str, Visitor] = {
    **dict.fromkeys(MODEL_SETTINGS, _visit_models),
    **dict.fromkeys(PATH_SETTINGS, _visit_unless(lambda _: False, "path")),
    "priors": _visit_unless(lambda value: value in PRIORS_KEYWORDS, "path"),
    "require": _visit_requirement,
    "grader": _visit_grader,
    "answer": _visit_unless(lambda value: value.startswith(CODE_PREFIX), "code"),
    "schema": _visit_unless(lambda value: value.lstrip().startswith("{"), "path"),
    "sandbox": _visit_unless(lambda value: value in SAFE_TIERS, "sandbox"),
    "packages": _visit_unless(lambda _: False, "package"),
}
"""What in the value of each setting needs consent; no other setting has anything that does."""


def visit_setting(key: str, value: str, visit: Visit) -> str:
    """Return the value of a setting with each address, model file, path and piece of code replaced
    by the result of `visit`.

    Raises ConfigError for a jury of more than 200 graders.
    """
    return VISITORS[key](value, visit) if key in VISITORS else value


def rebase_paths(key: str, value: str, base: str) -> str:
    """Return the value of a setting with its relative files taken from the folder `base`."""

    def rebase(kind: Kind, text: str) -> str:
        if kind == "path" or (kind == "model file" and not text.startswith("~")):
            return str(Path(base, text.strip()))
        if kind == "code" and (
            code := find_code(text) if key == "grader" else parse_code_name(text)
        ):
            return code.beside(base)
        return text

    return visit_setting(key, value, rebase)


def _target_outside(text: str, folder: Path, base: Path, key: str) -> str | None:
    """Return the target of a path, all links followed, unless it is in the folder. Raises
    ConfigError for a pipe or a device.
    """
    try:
        target = (base / text).resolve()
        if not target.is_relative_to(folder.resolve()):
            return str(target)
        special = target.exists() and not (target.is_file() or target.is_dir())
    except (OSError, ValueError, RuntimeError):  # not a path on any system
        return text
    if special:
        raise ConfigError(f"{key}: {text!r} is neither a file nor a folder")
    return None


@dataclass(frozen=True, slots=True)
class Consent:
    """Consent to the settings of a folder, or to those of a trace; `descriptions` are their lines
    as they were shown.
    """

    place: str
    is_trace: bool
    digest: str
    descriptions: tuple[str, ...]

    @property
    def file(self) -> Path:
        """Where it is saved."""
        key = f"trace\0{self.digest}" if self.is_trace else f"folder\0{self.place}"
        name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return data_dir() / "trust" / f"{name}.json"

    @property
    def is_saved(self) -> bool:
        """Whether it was given, for these settings and this place."""
        saved = _read_consent(self.file)
        return (
            saved is not None
            and saved.digest == self.digest
            and (self.is_trace or saved.place == self.place)
        )


def consent_for(place: Path, settings: tuple[SensitiveSetting, ...], *, is_trace: bool) -> Consent:
    """Return the consent that the settings of a folder, or of a trace, need."""
    return Consent(
        str(place.resolve()),
        is_trace,
        settings_digest(settings),
        tuple(s.description for s in settings),
    )


def require_consent(
    place: Path,
    settings: tuple[SensitiveSetting, ...],
    used: set[str],
    where: str,
    *,
    is_trace: bool = False,
) -> None:
    """Raise ConfigError naming the command that gives consent if this command uses settings without
    it.

    `place` is the folder of a settings file, or a trace. `used` are the keys of the settings that
    this command uses.
    """
    chosen = [s for s in settings if s.key in used]
    if not chosen:
        return
    folder = place.resolve().parent if is_trace else place.resolve()
    if any(folder.is_relative_to(trusted) for trusted in trusted_folders()):
        return
    check_store_location(folder)
    if not consent_for(place, settings, is_trace=is_trace).is_saved:
        descriptions = "; ".join(s.description for s in chosen)
        command = f"redraft trust {shlex.quote(str(place.resolve()))}"
        raise ConfigError(
            f"{where} chooses {descriptions}. If it is yours, or you trust its author, allow it "
            f"once with: {command}"
        )


def check_store_location(folder: Path) -> None:
    """Raise ConfigError if consent to the settings of a folder would be saved inside that folder:
    it could come with it.
    """
    if could_be_planted(data_dir() / "trust", folder):
        raise ConfigError(
            f"consent would be saved in {data_dir()}, which lies in {folder.resolve()}: "
            f"name another folder in REDRAFT_HOME, or trust this one with {VARIABLE}"
        )


def trusted_folders() -> list[Path]:
    """Return the folders in REDRAFT_TRUST, separated as in PATH. Raises ConfigError for a value of
    --require-validated.
    """
    names = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name.strip()]
    if mistaken := [name for name in names if name in NOT_FOLDERS]:
        raise ConfigError(
            f"{VARIABLE}={mistaken[0]}: it names folders whose settings are trusted; "
            f"for --require-validated {mistaken[0]} set REDRAFT_REQUIRE_VALIDATED={mistaken[0]} "
            f"(a folder of that name is ./{mistaken[0]})"
        )
    return [Path(name).resolve() for name in names]


def save_consent(consent: Consent) -> None:
    """Save a consent. Raises StoreError if it cannot be written."""
    path = consent.file
    data = {
        "redraft_trust": SCHEMA,
        "trace" if consent.is_trace else "folder": consent.place,
        "digest": consent.digest,
        "settings": consent.descriptions,
    }
    try:
        make_folder(path.parent)
        write_atomic(path, json.dumps(data), private=True, follow=False)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror}; name another folder in REDRAFT_HOME"
        ) from error


def save_consent_for_trace(path: str, settings: tuple[SensitiveSetting, ...]) -> None:
    """Save consent to the settings of a run that writes a trace. If that fails, resuming the trace
    asks for consent.
    """
    if settings:
        consent = consent_for(Path(path), settings, is_trace=True)
        with suppress(StoreError):
            if not consent.is_saved:
                save_consent(consent)


def saved_consents() -> Iterator[Consent]:
    """Yield every consent, by the names of their files; one that cannot be read is none."""
    return filter(None, map(_read_consent, sorted((data_dir() / "trust").glob("*.json"))))


def revoke_consent(consent: Consent) -> bool:
    """Remove a consent and return whether there was one. Raises StoreError if its file cannot be
    removed.
    """
    try:
        consent.file.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{consent.file} cannot be removed: {error.strerror}") from error
    return True


def _read_consent(path: Path) -> Consent | None:
    try:
        data = json.loads(read_small_bytes(path))
        is_trace = "trace" in data
        consent = Consent(
            data["trace" if is_trace else "folder"],
            is_trace,
            data["digest"],
            tuple(data["settings"]),
        )
        return (
            consent if data["redraft_trust"] == SCHEMA and consent.file.name == path.name else None
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def could_be_planted(own: Path, folder: Path) -> bool:
    """Return whether one of the user's own files or folders lies inside a folder of someone else
    and may have come with it.

    A folder that contains the user's home directory is not someone else's.
    """
    with suppress(RuntimeError):
        if Path.home().resolve().is_relative_to(folder.resolve()):
            return False
    return own.resolve().is_relative_to(folder.resolve())
