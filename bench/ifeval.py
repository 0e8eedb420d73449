"""Measure how well requirements agree with IFEval's official verdicts, and what the editor repairs.

    python bench/ifeval.py FOLDER [--json FILE] [--limit N] [--show N]

FOLDER holds prompts.jsonl (key, prompt, instruction_id_list, kwargs), responses.jsonl.gz (key,
model, response) and verdicts.jsonl (key, model, strict, unstable: indexes whose official verdict is
random, left out here). Every official kind of constraint (Zhou et al., "Instruction-Following
Evaluation for Large Language Models", arXiv:2311.07911) is written as specs of Redraft. Edited
texts are checked by Redraft's requirements and, independently, by the official definitions,
re-implemented below for the kinds that need neither nltk nor langdetect.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import re
import statistics
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from rapidfuzz.distance import Levenshtein
from rich.console import Console
from rich.table import Table

import redraft
from redraft.answers.editor import FormEditor
from redraft.errors import ConfigError
from redraft.graders import Minimum
from redraft.protocols import Edit, Requirement
from redraft.requirements import parse

YES_NO = "My answer is yes.|My answer is no.|My answer is maybe."
KINDS = 25


def _count(relation, number):
    return f"<{number}" if relation == "less than" else f">={number}"


def _texts(texts):
    return ",".join(map(json.dumps, texts))


# Every official kind as specs of Redraft: kwargs -> specs.
SPECS = {
    "change_case:capital_word_frequency": lambda k: [
        f"capital_words:{_count(k['capital_relation'], k['capital_frequency'])}"
    ],
    "change_case:english_capital": lambda _: ["uppercase", _english()],
    "change_case:english_lowercase": lambda _: ["lowercase", _english()],
    "combination:repeat_prompt": lambda k: [f"starts_with:{json.dumps(k['prompt_to_repeat'])}"],
    "combination:two_responses": lambda _: ["parts:2:******"],
    "detectable_content:number_placeholders": lambda k: [f"placeholders:{k['num_placeholders']}-"],
    "detectable_content:postscript": lambda k: [f"postscript:{k['postscript_marker']}"],
    "detectable_format:constrained_response": lambda _: [f"one_of:{YES_NO}"],
    "detectable_format:json_format": lambda _: ["json"],
    "detectable_format:multiple_sections": lambda k: [
        f"numbered_sections:{json.dumps(k['section_spliter'])}>={k['num_sections']}"
    ],
    "detectable_format:number_bullet_lists": lambda k: [f"bullets:{k['num_bullets']}"],
    "detectable_format:number_highlighted_sections": lambda k: [
        f"highlights:{k['num_highlights']}-"
    ],
    "detectable_format:title": lambda _: ["title"],
    "keywords:existence": lambda k: [f"contains:{json.dumps(word)}" for word in k["keywords"]],
    "keywords:forbidden_words": lambda k: [f"contains_none:{_texts(k['forbidden_words'])}"],
    "keywords:frequency": lambda k: [
        f"contains:{json.dumps(k['keyword'])}{_count(k['relation'], k['frequency'])}"
    ],
    "keywords:letter_frequency": lambda k: [
        f"letters:{json.dumps(k['letter'])}{_count(k['let_relation'], k['let_frequency'])}"
    ],
    "language:response_language": lambda k: [f"language:{k['language']}"],
    "length_constraints:nth_paragraph_first_word": lambda k: [
        f"paragraphs:{k['num_paragraphs']}",
        f"nth_paragraph_starts:{k['nth_paragraph']}:{json.dumps(k['first_word'])}",
    ],
    "length_constraints:number_paragraphs": lambda k: [f"parts:{k['num_paragraphs']}:***"],
    "length_constraints:number_sentences": lambda k: [
        f"sentences_and_numbers:{_count(k['relation'], k['num_sentences'])}"
    ],
    "length_constraints:number_words": lambda k: [f"words:{_count(k['relation'], k['num_words'])}"],
    "punctuation:no_comma": lambda _: ["no_commas"],
    "startend:end_checker": lambda k: [f"ends_with:{json.dumps(k['end_phrase'])}"],
    "startend:quotation": lambda _: ["quoted"],
}


def _english():
    """Return a requirement for the language if it can be detected, else for the script."""
    try:
        return parse("language:en").spec
    except ConfigError:
        return "script:latin"


# --- the official definitions, independent of Redraft
# ----------------------------------------------------------------------------


def _compare(relation, found, number):
    return found < number if relation == "less than" else found >= number


def _official_parts(text, separator, number):
    parts = re.split(separator, text)
    if any(not part.strip() for part in parts[1:-1]):
        return None
    parts = [part.strip() for part in parts if part.strip()]
    return parts if len(parts) == number else None


def _official_two(text, _):
    parts = _official_parts(text, re.escape("******"), 2)
    return parts is not None and parts[0] != parts[1]


def _official_json(text, _):
    text = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except ValueError:
        return False
    return True


def _official_highlights(text, k):
    single = [h for h in re.findall(r"\*[^\n\*]*\*", text) if h.strip("*").strip()]
    double = [
        h
        for h in re.findall(r"\*\*[^\n\*]*\*\*", text)
        if h.removeprefix("**").removesuffix("**").strip()
    ]
    return len(single) + len(double) >= k["num_highlights"]


def _official_nth(text, k):
    parts = re.split(r"\n\n", text)
    nth = k["nth_paragraph"]
    present = sum(bool(part.strip()) for part in parts)
    if nth > present or not parts[nth - 1].strip():
        return False
    word = parts[nth - 1].strip().split()[0].lstrip("'").lstrip('"')
    return (
        present == k["num_paragraphs"]
        and re.split(r"[.,?!'\"]", word)[0].lower() == k["first_word"].lower()
    )


def _official_postscript(text, k):
    marker = k["postscript_marker"]
    patterns = {"P.P.S": r"\s*p\.\s?p\.\s?s.*$", "P.S.": r"\s*p\.\s?s\..*$"}
    return bool(
        re.search(
            patterns.get(marker, r"\s*" + re.escape(marker.lower()) + r".*$"),
            text.lower(),
            re.MULTILINE,
        )
    )


OFFICIAL = {
    "combination:repeat_prompt": lambda t, k: (
        t.strip().lower().startswith(k["prompt_to_repeat"].strip().lower())
    ),
    "combination:two_responses": _official_two,
    "detectable_content:number_placeholders": lambda t, k: (
        len(re.findall(r"\[.*?\]", t)) >= k["num_placeholders"]
    ),
    "detectable_content:postscript": _official_postscript,
    "detectable_format:constrained_response": lambda t, _: any(
        option in t.strip() for option in YES_NO.split("|")
    ),
    "detectable_format:json_format": _official_json,
    "detectable_format:multiple_sections": lambda t, k: (
        len(re.findall(rf"\s?{k['section_spliter']}\s?\d+\s?", t)) >= k["num_sections"]
    ),
    "detectable_format:number_bullet_lists": lambda t, k: (
        len(re.findall(r"^\s*\*[^\*].*$", t, re.MULTILINE))
        + len(re.findall(r"^\s*-.*$", t, re.MULTILINE))
        == k["num_bullets"]
    ),
    "detectable_format:number_highlighted_sections": _official_highlights,
    "detectable_format:title": lambda t, _: any(
        m.lstrip("<").rstrip(">").strip() for m in re.findall(r"<<[^\n]+>>", t)
    ),
    "keywords:existence": lambda t, k: all(
        re.search(word, t, re.IGNORECASE) for word in k["keywords"]
    ),
    "keywords:forbidden_words": lambda t, k: (
        not any(re.search(rf"\b{word}\b", t, re.IGNORECASE) for word in k["forbidden_words"])
    ),
    "keywords:frequency": lambda t, k: _compare(
        k["relation"], len(re.findall(k["keyword"], t, re.IGNORECASE)), k["frequency"]
    ),
    "keywords:letter_frequency": lambda t, k: _compare(
        k["let_relation"], t.lower().count(k["letter"].lower()), k["let_frequency"]
    ),
    "length_constraints:nth_paragraph_first_word": _official_nth,
    "length_constraints:number_paragraphs": lambda t, k: (
        _official_parts(t, r"\s?\*\*\*\s?", k["num_paragraphs"]) is not None
    ),
    "length_constraints:number_words": lambda t, k: _compare(
        k["relation"], len(re.findall(r"\w+", t)), k["num_words"]
    ),
    "punctuation:no_comma": lambda t, _: "," not in t,
    "startend:end_checker": lambda t, k: (
        t.strip().strip('"').lower().endswith(k["end_phrase"].strip().lower())
    ),
    "startend:quotation": lambda t, _: len(t.strip()) > 1 and t.strip()[0] == t.strip()[-1] == '"',
}


# --- the data
# ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Constraint:
    """One official constraint of one prompt, and the equivalent requirements (none: not
    covered).
    """

    kind: str
    kwargs: dict
    requirements: tuple[Requirement, ...]

    def holds(self, text):
        """Return Redraft's verdict. By the official definition, an empty answer follows nothing."""
        return bool(text.strip()) and all(
            requirement.check(text).ok for requirement in self.requirements
        )

    def holds_loosely(self, text):
        """Return Redraft's verdict on the variants of the official loose verdict: without first or
        last line, without asterisks.
        """
        return any(self.holds(variant) for variant in variants(text))

    def official(self, text):
        """Return the verdict by the official definition; None if it needs nltk or langdetect."""
        if self.kind not in OFFICIAL:
            return None
        return bool(text.strip()) and bool(OFFICIAL[self.kind](text, self.kwargs))


def variants(text):
    """Return the eight variants of a text; loosely, one of them must follow a constraint (Zhou et
    al., section 2.2).
    """
    lines = text.split("\n")
    cut = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(each.replace("*", "") for each in cut)]


@dataclass(frozen=True)
class Answer:
    """One model's answer, with the official verdict for each constraint (None: left out)."""

    key: int
    model: str
    text: str
    constraints: tuple[Constraint, ...]
    verdicts: tuple[bool | None, ...]
    loose: tuple[bool | None, ...]


def constraint(kind, kwargs):
    kwargs = {name: value for name, value in (kwargs or {}).items() if value is not None}
    try:
        return Constraint(
            kind, kwargs, tuple(map(parse, SPECS[kind](kwargs))) if kind in SPECS else ()
        )
    except (ConfigError, KeyError):
        return Constraint(kind, kwargs, ())


def load(folder, limit):
    """Read the answers that have verdicts."""
    constraints = {
        row["key"]: tuple(map(constraint, row["instruction_id_list"], row["kwargs"]))
        for row in rows(folder / "prompts.jsonl")
    }
    verdicts = {(row["key"], row["model"]): row for row in rows(folder / "verdicts.jsonl")}
    answers = []
    for row in rows(folder / "responses.jsonl.gz"):
        verdict = verdicts.get((row["key"], row["model"]))
        if verdict is None or row["key"] not in constraints:
            continue
        unstable = set(verdict.get("unstable") or ())
        strict, loose = (
            tuple(None if i in unstable else ok for i, ok in enumerate(verdict[how]))
            for how in ("strict", "loose")
        )
        answers.append(
            Answer(
                row["key"],
                row["model"],
                row["response"] or "",
                constraints[row["key"]],
                strict,
                loose,
            )
        )
    return answers[:limit]


def rows(path):
    with (gzip.open if path.suffix == ".gz" else Path.open)(path, "rt", encoding="utf-8") as file:
        yield from (json.loads(line) for line in file if line.strip())


# --- the figures
# ----------------------------------------------------------------------------


@dataclass
class Figures:
    """Counts by kind of constraint, and in total."""

    seen: Counter = field(default_factory=Counter)
    n: Counter = field(default_factory=Counter)
    agree: Counter = field(default_factory=Counter)
    agree_loosely: Counter = field(default_factory=Counter)
    replays: Counter = field(default_factory=Counter)
    failing: Counter = field(default_factory=Counter)
    repaired: Counter = field(default_factory=Counter)
    confirmed: Counter = field(default_factory=Counter)
    refuted: Counter = field(default_factory=Counter)
    answers: Counter = field(default_factory=Counter)
    similarities: list = field(default_factory=list)
    examples: list = field(default_factory=list)
    disagreements: list = field(default_factory=list)


def measure(answers):
    figures = Figures()
    for answer in answers:
        _agreement(answer, figures)
        _repair(answer, figures)
    asyncio.run(_replay_all(answers, figures))
    return figures


async def _replay_all(answers, figures):
    """Use the recorded answers to each prompt, in turn, as the drafts and refinements of a model in
    the loop.
    """
    by_prompt = defaultdict(list)
    for answer in answers:
        by_prompt[answer.key].append(answer)
    for attempts in by_prompt.values():
        stable = [
            i
            for i, ok in enumerate(attempts[0].verdicts)
            if all(a.verdicts[i] is not None for a in attempts)
        ]
        if (
            len(attempts) > 1
            and stable
            and all(attempts[0].constraints[i].requirements for i in stable)
        ):
            await _replay(attempts, stable, figures)


async def _replay(attempts, stable, figures):
    graders = [
        Minimum([r.spec for r in attempts[0].constraints[i].requirements], name=str(i))
        for i in stable
    ]
    model = redraft.ScriptedModel([a.text or " " for a in attempts])
    last = len(attempts) - 1
    result = await redraft.refine(
        "?",
        model,
        graders,
        max_iterations=last,
        patience=len(attempts),
        target_score=1.0,
        editor=False,
    )
    shares = [sum(a.verdicts[i] for i in stable) for a in attempts]
    best = next(n for n, a in enumerate(attempts) if (a.text or " ") == result.value)
    figures.replays["prompts"] += 1
    figures.replays["differ"] += len(set(shares)) > 1
    figures.replays["best"] += shares[best] == max(shares)
    figures.replays["last"] += shares[-1] == max(shares)


def _agreement(answer, figures):
    for each, official, loose in zip(
        answer.constraints, answer.verdicts, answer.loose, strict=True
    ):
        figures.seen[each.kind] += 1
        if each.requirements and official is not None:
            figures.n[each.kind] += 1
            figures.agree[each.kind] += (ours := each.holds(answer.text)) == official
            figures.agree_loosely[each.kind] += each.holds_loosely(answer.text) == loose
            if ours != official:
                figures.disagreements.append((each.kind, answer.key, answer.model, ours))


def _repair(answer, figures):
    covered = [each for each in answer.constraints if each.requirements]
    failing = [each for each in covered if not each.holds(answer.text)]
    if not failing or not answer.text.strip():
        return
    figures.answers["failing"] += 1
    figures.failing.update(each.kind for each in failing)
    requirements = [requirement for each in covered for requirement in each.requirements]
    edit = FormEditor().repair(answer.text, requirements)
    if edit:
        _count_edit(answer, covered, failing, edit, figures)


def _count_edit(answer, covered, failing, edit: Edit, figures):
    mended = [each for each in failing if each.holds(edit.text)]
    broken = [each for each in covered if each not in failing and not each.holds(edit.text)]
    broken_officially = [
        each for each in covered if each.official(answer.text) and each.official(edit.text) is False
    ]
    figures.answers["edited"] += 1
    figures.answers["full"] += len(mended) == len(failing)
    figures.answers["part"] += 0 < len(mended) < len(failing)
    figures.answers["nearer"] += not mended
    figures.answers["broken"] += bool(broken)
    figures.answers["broken officially"] += bool(broken_officially)
    figures.answers["lossy"] += edit.lossy
    figures.repaired.update(each.kind for each in mended)
    figures.confirmed.update(each.kind for each in mended if each.official(edit.text))
    figures.refuted.update(each.kind for each in mended if each.official(edit.text) is False)
    figures.similarities.append(Levenshtein.normalized_similarity(answer.text, edit.text))
    figures.examples.append((answer, edit, mended))


def summary(figures, answers, seconds):
    """Return the figures as plain data."""
    kinds = {
        kind: dict(
            n=figures.n[kind],
            agreement=figures.agree[kind] / figures.n[kind] if figures.n[kind] else None,
            loosely=figures.agree_loosely[kind] / figures.n[kind] if figures.n[kind] else None,
            failing=figures.failing[kind],
            repaired=figures.repaired[kind],
            confirmed=figures.confirmed[kind] if kind in OFFICIAL else None,
            refuted=figures.refuted[kind] if kind in OFFICIAL else None,
        )
        for kind in sorted(figures.seen)
    }
    n, similarities = sum(figures.n.values()), sorted(figures.similarities)
    return dict(
        answers=len(answers),
        constraints=n,
        kinds=kinds,
        kinds_covered=sum(bool(row["n"]) for row in kinds.values()),
        kinds_of=KINDS,
        agreement=sum(figures.agree.values()) / n if n else None,
        loosely=sum(figures.agree_loosely.values()) / n if n else None,
        replay=dict(figures.replays),
        editor=dict(
            failing_answers=figures.answers["failing"],
            edited=figures.answers["edited"],
            repaired_fully=figures.answers["full"],
            repaired_partly=figures.answers["part"],
            brought_nearer=figures.answers["nearer"],
            broke_what_held=figures.answers["broken"],
            broke_what_held_officially=figures.answers["broken officially"],
            lossy_share=figures.answers["lossy"] / len(similarities) if similarities else None,
            similarity_median=statistics.median(similarities) if similarities else None,
            similarity_p10=similarities[len(similarities) // 10] if similarities else None,
        ),
        disagreements=[
            dict(zip(("kind", "key", "model", "ours"), row, strict=True))
            for row in figures.disagreements
        ],
        seconds=round(seconds, 2),
    )


def report(console, found):
    table = Table(
        title="IFEval: our verdicts beside the official ones, and what the editor repairs"
    )
    for name in ("kind", "n", "strict", "loose", "failing", "repaired", "confirmed", "refuted"):
        table.add_column(name, justify="left" if name == "kind" else "right", no_wrap=True)
    for kind, row in found["kinds"].items():
        confirmed = [
            "-" if row[name] is None else str(row[name]) for name in ("confirmed", "refuted")
        ]
        table.add_row(
            kind,
            str(row["n"]),
            _share(row["agreement"]),
            _share(row["loosely"]),
            str(row["failing"]),
            str(row["repaired"]),
            *confirmed,
        )
    console.print(table)
    console.print(f"kinds covered: {found['kinds_covered']} of {found['kinds_of']}")
    agreed = f"{_share(found['agreement'])} strict, {_share(found['loosely'])} loose"
    console.print(
        f"agreement: {agreed}, of {found['constraints']} constraints in {found['answers']} answers"
    )
    console.print(_replay_line(**found["replay"]))
    for name, value in found["editor"].items():
        console.print(
            f"{name.replace('_', ' ')}: {_share(value) if isinstance(value, float) else value}"
        )
    console.print(f"seconds: {found['seconds']}")


def _replay_line(prompts=0, differ=0, best=0, last=0):
    best_share = _share(best / prompts if prompts else None)
    return (
        f"replay: {prompts} prompts with all their answers in turn, {differ} of them with answers "
        f"of different merit: the loop kept one with the highest official share in {best_share}; "
        f"the last is one in {last}"
    )


def _share(value):
    return "-" if value is None else f"{value:.2%}"


def show(console, examples, number):
    """Print some texts before and after editing."""
    for answer, edit, mended in examples[:: max(1, len(examples) // number)][:number]:
        table = Table(title=f"{answer.key} {answer.model}: {edit.note[:200]}", show_lines=True)
        table.add_column("before")
        table.add_column("after: " + ", ".join(each.kind for each in mended))
        table.add_row(_ends(answer.text), _ends(edit.text))
        console.print(table, markup=False)


def _ends(text):
    return text if len(text) <= 700 else f"{text[:350]}\n[...]\n{text[-350:]}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--limit", type=int, help="only the first LIMIT answers")
    parser.add_argument("--show", type=int, default=0, help="number of examples to show")
    given = parser.parse_args()
    console, start = Console(width=None if sys.stdout.isatty() else 120), time.perf_counter()
    answers = load(given.folder, given.limit)
    figures = measure(answers)
    found = summary(figures, answers, time.perf_counter() - start)
    report(console, found)
    if given.show:
        show(console, figures.examples, given.show)
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
