"""The dataset card of an export (README.md): the contents of the files, how they were made, and how
reliable the graders are.

It is Markdown with a YAML header that Hugging Face `datasets` reads: the file of each split, and
the types of all columns. (Without the types a text such as "2024-01-01" would be loaded as a date.)
The names of runs, models and graders are untrusted input.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...base.text import escape_cell, markdown_table, strip_control_sequences
from .formats import ExportResult, types_of

CONFIGS = "configs: "  # the start of the line with the files
MARK = "<!-- redraft export -->"  # identifies a card of Redraft
SIZES = (
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
)
DESCRIPTIONS = {
    "preference": "Preference pairs (TRL: DPO, reward modelling)",
    "unpaired": "Answers labelled good or bad (TRL: KTO, BCO)",
    "prompt-completion": "Prompts with the best answer found (TRL: SFT)",
    "messages": "Conversations that end with the best answer found (TRL: SFT)",
    "stepwise": (
        "Every answer of a refinement, labelled with whether it was better than the one it came "
        "from (TRL: PRM)"
    ),
    "trajectory": "Whole refinements: every answer with its parent, its score and its feedback",
}


def dataset_card(exported: ExportResult) -> str:
    """Return the dataset card of an export."""
    return "\n".join([*_header(exported), *_body(exported)]) + "\n"


def _header(x: ExportResult) -> Iterator[str]:
    """Yield the YAML header. Every value is written as JSON, so that untrusted text stays in its
    quotes.
    """
    types = types_of(x.config)
    values: dict[str, Any] = {
        "license": "unknown",
        "pretty_name": " ".join(strip_control_sequences(x.provenance.run).split())[:200],
        "task_categories": ["text-generation"],
        "size_categories": [size_of(x.train + x.test)],
        "tags": [
            "redraft",
            "synthetic",
            x.config.format,
            *(["trl"] if types and x.config.format != "trajectory" else []),
        ],
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    {"split": Path(file).stem, "path": Path(file).name} for file in x.files
                ],
            }
        ],
        **({"dataset_info": {"features": features(types)}} if types else {}),
    }
    yield "---"
    yield from (
        f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()
    )
    yield f"---\n{MARK}\n"


def size_of(n: int) -> str:
    """Return the size category of Hugging Face for a number of examples."""
    return next((name for limit, name in SIZES if n < limit), "n>10M")


def features(types: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the types of columns in the form of the header."""
    return [{"name": name, **_feature(column_type)} for name, column_type in types.items()]


def _feature(column_type: Any) -> dict[str, Any]:
    match column_type:
        case [element]:
            return {"list": element if isinstance(element, str) else features(element)}
        case Mapping():
            return {"struct": features(column_type)}
    return {"dtype": column_type}


def _body(x: ExportResult) -> Iterator[str]:
    yield f"# {escape_cell(x.provenance.run)}\n"
    yield (
        f"{DESCRIPTIONS[x.config.format]}, made by Redraft: a model's answers were graded, "
        "refined and graded again.\n"
    )
    yield from markdown_table(("", ""), _count_rows(x))
    yield "\n## How it was made\n"
    yield from markdown_table(("", ""), _provenance_rows(x))
    yield "\nAnswers were written by:\n"
    yield from markdown_table(
        ("writer", "answers"), ((name, str(n)) for name, n in x.writers.items())
    )
    yield "\n## Graders\n\nThe scores are theirs, not people's. What is known of each:\n"
    yield from markdown_table(
        ("grader", "its validation card"),
        ((name, card or "none was looked for") for name, card in x.graders.items()),
    )
    if x.histograms:
        yield "\n## Scores\n"
        yield from _histograms(x)
    yield "\n## What was left out\n"
    if x.left_out:
        yield from markdown_table(("why", "rows"), ((why, str(n)) for why, n in x.left_out.items()))
    yield f"\n{x.duplicates} duplicate examples were left out.\n"
    yield (
        "The licence is unknown: it depends on the prompts and on the terms of the models that "
        "wrote the answers."
    )


def _count_rows(x: ExportResult) -> Iterator[tuple[str, str]]:
    yield "examples", f"{x.train + x.test}: train {x.train}, test {x.test}"
    yield "rows of the run", f"{x.rows}; {x.used} of them gave examples"
    yield from ((f"mean {name}", f"{mean:.3f}") for name, mean in x.means.items())


def _provenance_rows(x: ExportResult) -> Iterator[tuple[str, str]]:
    config = x.config
    yield "run", x.provenance.run
    yield "model", x.provenance.model or "unknown"
    yield from ((str(name), str(value)) for name, value in x.provenance.about.items())
    yield "format", f"{config.format}, {'plain text' if config.standard else 'messages'}"
    if config.format in {"preference", "unpaired"} and config.good is None:
        yield "pairs", f"{config.pairs}, margin at least {config.min_margin:g}"
    if config.good is not None:
        yield "good from", f"{config.good:g}"
    yield (
        "prompts",
        "with the requirements, as the model was given them"
        if config.with_requirements
        else "the user's own",
    )
    if config.test_size:
        yield (
            "test",
            (
                f"{config.test_size:g} of the prompts, by a hash of their words (salt "
                f"{config.salt!r}): one prompt, one side"
            ),
        )


def _histograms(x: ExportResult) -> Iterable[str]:
    names = list(x.histograms)
    counts = zip(*x.histograms.values(), strict=True)
    steps = (f"{i / 10:.1f} to {(i + 1) / 10:.1f}" for i in range(10))
    return markdown_table(
        ("", *names), ((step, *map(str, row)) for step, row in zip(steps, counts, strict=True))
    )
