"""`redraft label`: serves the page for judging; exports and imports labels."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from ...base.checks import read_error_message
from ...base.documents import open_regular
from ...base.text import pluralize
from ...errors import ConfigError
from ...graders.rubric import as_rubric, rubric_files
from ...storage import write_atomic
from ...validation.label_file import (
    AnnotationKind,
    LabelFile,
    LabelQuestion,
    is_label_file,
    read_labels,
)
from ...validation.label_formats import MAX_BYTES, export_labels, import_labels
from ...viewer.label_items import (
    LabelQueue,
    LabelSource,
    file_source,
    identical_pairs,
    run_source,
    two_runs_source,
)
from ...viewer.run_library import RunEntry, RunLibrary, is_sqlite_file
from ..output import check_output, notice
from ..stored_runs import SUFFIX
from .view import check_extra, entry_named, open_library

LABELS = ".labels.jsonl"
RANDOM_SHARE = 0.25
SCALE = re.compile(r"([0-9])-([0-9])")


@dataclass(frozen=True)
class LabelArguments:
    """The arguments and options of the command."""

    source: str
    against: str | None
    journal: str | None
    kind: AnnotationKind
    scale: str
    question: str | None
    rubric: str | None
    labels: str | None
    count: int | None
    random_share: float | None
    columns: tuple[str, ...]
    export: str | None
    import_file: str | None
    format: str
    overwrite: bool
    port: int
    browser: bool

    @property
    def labels_path(self) -> Path:
        """The file of labels."""
        if self.labels:
            return Path(self.labels)
        if is_label_file(Path(self.source)):
            return Path(self.source)
        return Path(f"{self.source.removesuffix(SUFFIX)}{LABELS}")

    @property
    def label_question(self) -> LabelQuestion:
        """What annotators are asked. Raises UsageError for a scale that is none."""
        match = SCALE.fullmatch(self.scale)
        if match is None or match[1] >= match[2]:
            raise click.UsageError(
                f"--scale {self.scale}: a scale is LOW-HIGH with digits, such as 1-5"
            )
        criteria = ""
        if self.rubric:
            rubric = as_rubric(
                Path(self.rubric)
                if self.rubric not in rubric_files() and Path(self.rubric).is_file()
                else self.rubric
            )
            criteria = "\n".join(f"{each.name}: {each.description}" for each in rubric.criteria)
        return LabelQuestion(
            self.kind,
            "\n\n".join(filter(None, (self.question, criteria))),
            (int(match[1]), int(match[2])),
        )

    @property
    def column_names(self) -> dict[str, str]:
        """The columns that -c names, by our names. Raises UsageError."""
        parts = [text.partition("=") for text in self.columns]
        if wrong := [ours for ours, equals, _ in parts if not (ours and equals)]:
            raise click.UsageError(
                f"-c {wrong[0]}: a column is given as OURS=THEIRS, such as -c prompt=question"
            )
        return {ours.strip(): theirs.strip() for ours, _, theirs in parts}


def run_command(arguments: LabelArguments) -> None:
    """Export, import, or serve the page until Ctrl-C."""
    if arguments.export:
        _export(arguments, arguments.export)
    elif arguments.import_file:
        _import(arguments, arguments.import_file)
    else:
        _serve(arguments)


def _export(arguments: LabelArguments, path: str) -> None:
    check_output(path, overwrite=arguments.overwrite, option="--export")
    labels = read_labels(arguments.labels_path)
    write_atomic(path, export_labels(labels, arguments.format))
    notice(
        f"{path}: {pluralize(len(labels.labels), 'label')} of "
        f"{pluralize(len(labels.items), 'item')}"
        + (f"; {identical_pairs(labels.identical)}" if labels.identical else "")
    )


def _import(arguments: LabelArguments, path: str) -> None:
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--import {path}: {read_error_message(error)}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"--import {path}: it is larger than {MAX_BYTES:,} bytes")
    labels = import_labels(text, arguments.format, arguments.label_question)
    with LabelFile(arguments.labels_path, arguments.label_question) as file:
        file.extend((labels.items[label.item], label) for label in labels.labels.values())
    notice(f"{arguments.labels_path}: {pluralize(len(labels.labels), 'label')} added")


def _serve(arguments: LabelArguments) -> None:
    check_extra("label")
    from ...base.page_server import PageServer, browser_page
    from ...viewer.label_pages import LabelPages

    question = arguments.label_question
    with ExitStack() as stack:
        source = _open_source(arguments, stack)
        left_out = f"{identical_pairs(source.identical)}; " if source.identical else ""
        if not source.information:
            raise ConfigError(
                f"{source.name!r} has nothing to judge: no row has two different answers; "
                f"{left_out}--kind pass judges single ones"
            )
        file = stack.enter_context(LabelFile(arguments.labels_path, question))
        file.note_identical(source.identical)
        server = PageServer(arguments.port)
        stack.callback(server.close)
        queue = LabelQueue(source, file.choose_random_share(arguments.random_share, RANDOM_SHARE))
        pages = LabelPages(source, file, queue, server.root, arguments.count)

        def announce() -> None:
            click.echo(server.url)
            sys.stdout.flush()
            notice(
                f"{_amount(len(source.information), arguments.count)}; {left_out}labels go to "
                f"{arguments.labels_path}; Ctrl-C ends it"
            )
            if arguments.browser and sys.stdout.isatty():
                stack.enter_context(browser_page(server.url))

        server.run(pages.app(), (), announce)


def _amount(items: int, count: int | None) -> str:
    """Say how many items there are, and how many of them each annotator is asked for."""
    return pluralize(items, "item") + (
        f", of which each annotator labels {count}" if count and count < items else ""
    )


def _open_source(arguments: LabelArguments, stack: ExitStack) -> LabelSource:
    """Return what is to be judged. Raises ConfigError if the arguments do not mean it clearly."""
    path = Path(arguments.source)
    is_run = (
        arguments.journal or is_sqlite_file(path) or Path(f"{arguments.source}{SUFFIX}").is_file()
    )
    if path.is_file() and not is_run:
        if arguments.against:
            raise ConfigError(
                f"{arguments.source!r} is no run: two runs can be compared, or one file with two "
                "answers in a row"
            )
        return file_source(path, arguments.kind, arguments.column_names)
    first = _open_run(arguments.source, arguments.journal, stack)
    if arguments.against is None:
        return run_source(*first, arguments.kind)
    if arguments.kind != "pair":
        raise ConfigError(f"--kind {arguments.kind}: with two runs, pairs are judged")
    library, entry = _open_run(arguments.against, arguments.journal, stack)
    if entry.key == first[1].key:
        raise ConfigError(
            f"{arguments.source!r} and {arguments.against!r} are the same run: pairs need two"
        )
    return two_runs_source((first[0], library), (first[1], entry))


def _open_run(name: str, journal: str | None, stack: ExitStack) -> tuple[RunLibrary, RunEntry]:
    library, run = open_library(name, journal)
    stack.callback(library.close)
    entry = entry_named(library, run)
    if entry is None:
        names = ", ".join(repr(each.info.display_name) for each in library.entries()) or "none"
        raise ConfigError(
            f"{name!r} does not mean one run: there are {names}; name one with --journal"
        )
    return library, entry
