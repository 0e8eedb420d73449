"""The card of a data set: what is in it, how it was made, and how far its graders can be believed.

Markdown under a YAML header that Hugging Face `datasets` reads: which file is which split, and the types of all columns.
(Without them a text such as "2024-01-01" would be loaded as a date.) Names of runs, models and graders are foreign.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..text import strip_control_sequences
from ..validation.card_page import escape_cell, markdown_table
from .pairs import types_of

if TYPE_CHECKING:
    from .export import Exported

CONFIGS = "configs: "  # what the line with the files begins with
MARK = "<!-- redraft export -->"  # by which a card of ours is known again
SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))
USES = {
    "preference": "Preference pairs (TRL: DPO, reward modelling)",
    "unpaired": "Answers labelled good or bad (TRL: KTO, BCO)",
    "prompt-completion": "Prompts with the best answer found (TRL: SFT)",
    "messages": "Conversations that end with the best answer found (TRL: SFT)",
    "stepwise": "Every answer of a refinement, labelled with whether it was better than the one it came from (TRL: PRM)",
    "trajectory": "Whole refinements: every answer with its parent, its score and its feedback",
}


def card_text(exported: Exported) -> str:
    """The README.md of a folder of examples."""
    return "\n".join([*_header(exported), *_body(exported)]) + "\n"


def _header(x: Exported) -> Iterator[str]:
    """YAML, every value as JSON: nothing foreign can leave its quotes."""
    values: dict[str, Any] = {
        "license": "unknown",
        "pretty_name": _line(x.provenance.run),
        "task_categories": ["text-generation"],
        "size_categories": [size_of(x.train + x.test)],
        "tags": ["redraft", "synthetic", x.recipe.format, *([] if x.recipe.format == "trajectory" else ["trl"])],
        "configs": [{"config_name": "default", "data_files": [_split(file) for file in x.files]}],
        "dataset_info": {"features": features(types_of(x.recipe))},
    }
    yield "---"
    yield from (f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    yield f"---\n{MARK}\n"


def _line(text: str) -> str:
    return " ".join(strip_control_sequences(text).split())[:200]


def _split(file: str) -> dict[str, str]:
    return {"split": Path(file).stem, "path": Path(file).name}


def size_of(n: int) -> str:
    """The size as Hugging Face puts it."""
    return next((name for most, name in SIZES if n < most), "n>10M")


def features(types: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Types of columns as a card's header holds them."""
    return [{"name": name, **_feature(kind)} for name, kind in types.items()]


def _feature(kind: Any) -> dict[str, Any]:
    match kind:
        case [inner]:
            return {"list": inner if isinstance(inner, str) else features(inner)}
        case Mapping():
            return {"struct": features(kind)}
    return {"dtype": kind}


def _body(x: Exported) -> Iterator[str]:
    yield f"# {escape_cell(x.provenance.run)}\n"
    yield f"{USES[x.recipe.format]}, made by Redraft: a model's answers were graded, refined and graded again.\n"
    yield from markdown_table(("", ""), _numbers(x))
    yield "\n## How it was made\n"
    yield from markdown_table(("", ""), _made(x))
    yield "\nAnswers were written by:\n"
    yield from markdown_table(("writer", "answers"), ((name, str(n)) for name, n in x.writers.items()))
    yield "\n## Graders\n\nThe scores are theirs, not people's. What is known of each:\n"
    yield from markdown_table(
        ("grader", "its validation card"), ((name, said or "none was looked for") for name, said in x.graders.items())
    )
    if x.histograms:
        yield "\n## Scores\n"
        yield from _histograms(x)
    yield "\n## What was left out\n"
    if x.left_out:
        yield from markdown_table(("why", "rows"), ((why, str(n)) for why, n in x.left_out.items()))
    yield f"\n{x.duplicates} examples were left out because the same stands here already.\n"
    yield "The licence is unknown: it depends on the prompts and on the terms of the models that wrote the answers."


def _numbers(x: Exported) -> Iterator[tuple[str, str]]:
    yield "examples", f"{x.train + x.test}: train {x.train}, test {x.test}"
    yield "rows of the run", f"{x.rows}; {x.used} of them gave examples"
    yield from ((f"mean {name}", f"{mean:.3f}") for name, mean in x.means.items())


def _made(x: Exported) -> Iterator[tuple[str, str]]:
    recipe = x.recipe
    yield "run", x.provenance.run
    yield "model", x.provenance.model or "unknown"
    yield from ((str(name), str(value)) for name, value in x.provenance.about.items())
    yield "format", f"{recipe.format}, {'plain text' if recipe.standard else 'messages'}"
    if recipe.format in {"preference", "unpaired"} and recipe.good is None:
        yield "pairs", f"{recipe.pairs}, margin at least {recipe.min_margin:g}"
    if recipe.good is not None:
        yield "good from", f"{recipe.good:g}"
    yield "prompts", "with the demands, as the writer was told them" if recipe.with_demands else "the user's own"
    if recipe.test_size:
        yield "test", f"{recipe.test_size:g} of the prompts, by a hash of their words (salt {recipe.salt!r}): one prompt, one side"


def _histograms(x: Exported) -> Iterable[str]:
    names = list(x.histograms)
    counts = zip(*x.histograms.values(), strict=True)
    steps = (f"{i / 10:.1f} to {(i + 1) / 10:.1f}" for i in range(10))
    return markdown_table(("", *names), ((step, *map(str, row)) for step, row in zip(steps, counts, strict=True)))
