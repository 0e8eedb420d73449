"""`redraft label`: people judge answers in the browser."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from ...base.checks import check_extra, read_error_message
from ...base.documents import open_regular
from ...base.text import pluralize
from ...errors import ConfigError
from ...graders.rubric import as_rubric, rubric_files
from ...storage.secure_files import write_atomic
from ...validation.label_file import (
    MAX_BYTES,
    AnnotationKind,
    LabelFile,
    LabelQuestion,
    export_labels,
    import_labels,
    is_label_file,
    read_labels,
)
from ...viewer.label_items import (
    LabelQueue,
    LabelSource,
    file_source,
    identical_pairs,
    run_source,
    two_runs_source,
)
from ...viewer.run_library import RunEntry, RunLibrary, is_sqlite_file
from .. import options
from ..output import check_output, notice
from ..stored_runs import RUN, SUFFIX
from .view import LIBRARIES, names_of_runs, open_library, serve_pages

LABELS = ".labels.jsonl"
RANDOM_SHARE = 0.25

EPILOG = """\b
Examples:
  redraft label answers.jsonl
  redraft label answers.jsonl better.jsonl
  redraft label answers.jsonl --kind score --scale 1-5 --rubric helpfulness
  redraft label pairs.csv -c response_a=left -c response_b=right
  redraft label answers.jsonl --export labels.json --format label-studio
  redraft validate answers.jsonl.labels.jsonl --grader judge

\b
SOURCE is a run (its name, its output or its journal), or a file with answers. With a second
run, the best answers of both are pairs. Annotators see neither scores nor where an answer
comes from. Keys: 1 and 2 for the better answer, 0 for a tie, s to skip, u to undo; the page
also works with several browsers, one for each annotator. Labels are saved at once, in
SOURCE.labels.jsonl, and the same command continues. `redraft validate` reads that file.
"""


@click.command(short_help="Judge answers in the browser.", epilog=EPILOG)
@click.argument("source", type=RUN)
@click.argument("against", required=False, type=RUN)
@options.journal
@click.option(
    "--kind",
    type=click.Choice(["pair", "pass", "score"]),
    default="pair",
    show_default=True,
    help="What is asked: which of two answers is better, whether one is good, or how good.",
)
@options.scale("Scale of --kind score, within 0-9.", default="1-5", show_default=True)
@click.option("--question", metavar="TEXT", help="The question, shown above each item.")
@click.option(
    "--rubric",
    type=options.FILE,
    metavar="NAME",
    help="Show the criteria of a rubric: a name that `redraft graders` lists, or a file.",
)
@click.option(
    "--labels",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The file of labels. Default: SOURCE.labels.jsonl.",
)
@click.option(
    "--count",
    type=options.COUNT,
    metavar="N",
    help="Stop after N labels of an annotator. Default: all items.",
)
@click.option(
    "--random-share",
    type=options.NumberRange(0, 1),
    metavar="S",
    help="Share of labels for items drawn at random, which represent all items; the others are "
    "those that teach most. It is chosen once for a file of labels. Default: 0.25.",
)
@options.label_columns
@click.option(
    "--export",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the labels to FILE instead, in --format.",
)
@click.option(
    "--import",
    "import_file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Add labels from FILE, in --format.",
)
@click.option(
    "--format",
    type=click.Choice(["jsonl", "label-studio", "argilla"]),
    default="jsonl",
    show_default=True,
    help="Format of --export and --import.",
)
@options.overwrite
@options.port
@options.browser
@options.debug
def label(
    *,
    source: str,
    against: str | None,
    journal: str | None,
    kind: AnnotationKind,
    scale: tuple[float, float],
    question: str | None,
    rubric: str | None,
    labels: str | None,
    count: int | None,
    random_share: float | None,
    columns: dict[str, str],
    export: str | None,
    import_file: str | None,
    format: str,
    overwrite: bool,
    port: int,
    browser: bool,
) -> None:
    """Judge the answers of SOURCE in the browser: blind, with one key for each. The labels measure
    graders and compare runs.
    """
    path = _labels_path(source, labels)
    if export:
        check_output(export, overwrite=overwrite, option="--export")
        _export(path, export, format)
        return
    text = "\n\n".join(filter(None, (question, _criteria(rubric))))
    asked = LabelQuestion(kind, text, (_digit(scale[0]), _digit(scale[1])))
    if import_file:
        _import(import_file, format, path, asked)
        return
    check_extra("view", "redraft label needs", *LIBRARIES)
    from ...base.page_server import PageServer
    from ...viewer.label_pages import LabelPages

    with ExitStack() as stack:
        items = _open_source(source, kind, stack, against=against, journal=journal, columns=columns)
        left_out = f"{identical_pairs(items.identical)}; " if items.identical else ""
        if not items.information:
            raise ConfigError(
                f"{items.name!r} has nothing to judge: no row has two different answers; "
                f"{left_out}--kind pass judges single ones"
            )
        file = stack.enter_context(LabelFile(path, asked))
        file.note_identical(items.identical)
        server = PageServer(port)
        queue = LabelQueue(items, file.choose_random_share(random_share, RANDOM_SHARE))
        app = LabelPages(items, file, queue, server.root, count).app()
        amount = _amount(len(items.information), count)
        message = f"{amount}; {left_out}labels go to {path}; Ctrl-C ends it"
        serve_pages(server, app, (), message, browser=browser)


def _labels_path(source: str, labels: str | None) -> Path:
    """Return the file of labels of a source, unless one is named."""
    if labels or is_label_file(Path(source)):
        return Path(labels or source)
    return Path(f"{source.removesuffix(SUFFIX)}{LABELS}")


def _criteria(rubric: str | None) -> str:
    """Return the criteria of a rubric, a line for each; "" without one."""
    if not rubric:
        return ""
    is_file = rubric not in rubric_files() and Path(rubric).is_file()
    found = as_rubric(Path(rubric) if is_file else rubric)
    return "\n".join(f"{each.name}: {each.description}" for each in found.criteria)


def _digit(end: float) -> int:
    """Return an end of a scale as a whole number. Raises UsageError."""
    if not end.is_integer():
        raise click.UsageError(f"--scale: a scale is LOW-HIGH with digits, such as 1-5, got {end}")
    return int(end)


def _export(labels_path: Path, path: str, format: str) -> None:
    labels = read_labels(labels_path)
    write_atomic(path, export_labels(labels, format))
    notice(
        f"{path}: {pluralize(len(labels.labels), 'label')} of "
        f"{pluralize(len(labels.items), 'item')}"
        + (f"; {identical_pairs(labels.identical)}" if labels.identical else "")
    )


def _import(path: str, format: str, labels_path: Path, question: LabelQuestion) -> None:
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--import {path}: {read_error_message(error)}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"--import {path}: it is larger than {MAX_BYTES:,} bytes")
    labels = import_labels(text, format, question)
    with LabelFile(labels_path, question) as file:
        file.extend((labels.items[label.item], label) for label in labels.labels.values())
    notice(f"{labels_path}: {pluralize(len(labels.labels), 'label')} added")


def _amount(items: int, count: int | None) -> str:
    """Say how many items there are, and how many of them each annotator is asked for."""
    return pluralize(items, "item") + (
        f", of which each annotator labels {count}" if count and count < items else ""
    )


def _open_source(
    source: str,
    kind: AnnotationKind,
    stack: ExitStack,
    *,
    against: str | None,
    journal: str | None,
    columns: dict[str, str],
) -> LabelSource:
    """Return what is to be judged. Raises ConfigError if the arguments do not mean it clearly."""
    path = Path(source)
    is_run = journal or is_sqlite_file(path) or Path(f"{source}{SUFFIX}").is_file()
    if path.is_file() and not is_run:
        if against:
            raise ConfigError(
                f"{source!r} is no run: two runs can be compared, or one file with two "
                "answers in a row"
            )
        return file_source(path, kind, columns)
    first = _open_run(source, journal, stack)
    if against is None:
        return run_source(*first, kind)
    if kind != "pair":
        raise ConfigError(f"--kind {kind}: with two runs, pairs are judged")
    library, entry = _open_run(against, journal, stack)
    if entry.key == first[1].key:
        raise ConfigError(f"{source!r} and {against!r} are the same run: pairs need two")
    return two_runs_source((first[0], library), (first[1], entry))


def _open_run(name: str, journal: str | None, stack: ExitStack) -> tuple[RunLibrary, RunEntry]:
    library, entry = open_library(name, journal, stack)
    if entry is None:
        raise ConfigError(
            f"{name!r} does not mean one run: there are {names_of_runs(library)}; name one with "
            "--journal"
        )
    return library, entry
