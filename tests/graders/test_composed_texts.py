"""Texts are equal whether Unicode's letters with accents are composed (NFC) or decomposed (NFD): in
every grader and requirement.
"""

import json
import unicodedata
from dataclasses import fields
from enum import StrEnum
from itertools import product
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import redraft
from each_row import each_row
from redraft import Candidate, Task
from redraft.answers.editor import FormEditor
from redraft.base.text import compose_nfc
from redraft.graders.catalog import catalog_entries
from redraft.graders.registry import grader_from_spec
from redraft.loop.records import ToolCall
from redraft.requirements import KINDS, parse

TEXT = "Élan à Orléans: «Le café est très bon à Nîmes.» P.É.S. Où? Tiếng Việt, Çağrı, 한국어, Å.\n\n# Été\nÉtape 1\nL'été, l'ÉTÉ."
OTHER = "Le café n'est pas bon à Nîmes; Tiếng Việt. L'hiver, l'été."
CODE = 'def f(é):\n    return "café" + é\n'
DATA = {"né": "café", "b": ["à", "Tiếng"]}
CALL = {"name": "chercher_café", "arguments": {"où": "Orléans"}}

COMPUTED_GRADERS = [entry for entry in catalog_entries() if entry.mode == "code"]

# Graders that compare no texts of the answer with others, or compare them as another program does;
# each with its reason.
EXEMPT_GRADERS = {
    "lint": "runs ruff on the code",
    "moderation": "sends the answer to an endpoint",
    "reward": "sends the answer to an endpoint",
    "security": "runs ruff on the code",
    "tests": "compares what a program prints as its official judge does",
    "types": "runs a type checker on the code",
}
SPECS = {  # of graders that need more than a name
    "length": "length:characters=5-60",
    "json_fields": "json_fields",
    "embedding": "embedding:http://127.0.0.1:9/v1#m",
}
PYTHON = ("syntax", "complexity", "code_similarity")
STRUCTURED = (
    "json_fields",
    "tool_calls",
    "tool_call_precision",
    "tool_call_recall",
    "tool_call_order",
)

# A spec of each kind of requirement that has a text with accents, if the kind has a text.
REQUIREMENT_SPECS = {
    "characters": ["characters:100-125", "characters:-118"],
    "contains": ["contains:café", "contains:é=6", "contains:e=0"],
    "contains_none": ["contains_none:café,bière", "contains_none:e,cafe"],
    "contains_word": ["contains_word:café", "contains_word:cafe", "contains_word:Tiếng Việt"],
    "ends_with": ["ends_with:l'ÉTÉ.", "ends_with:ete."],
    "json_schema": [
        'json_schema:{"properties":{"né":{"enum":["café"]},"b":{"items":{"pattern":"^(à|Tiếng)$"}}},"required":["né"]}',
        'json_schema:{"properties":{"né":{"maxLength":4,"const":"cafe"}}}',
    ],
    "letters": ["letters:é>=4", "letters:e<9"],
    "nth_paragraph_starts": ["nth_paragraph_starts:1:Élan", "nth_paragraph_starts:1:Elan"],
    "numbered_sections": ["numbered_sections:Étape>=1", "numbered_sections:Etape>=1"],
    "one_of": ["one_of:café|thé", "one_of:cafe|the"],
    "parts": ["parts:2:Où?", "parts:2:à Nîmes", "parts:2:ou"],
    "postscript": ["postscript:P.É.S.", "postscript:P.E.S."],
    "regex": [r"regex:\bcafé\b", "regex:caf.\\s", "regex:cafe", "regex:[à-ö]t[à-ö]"],
    "sections": ["sections:Été", "sections:Ete"],
    "starts_with": ["starts_with:Élan à", "starts_with:Elan"],
}


def forms(value):
    """Return a text, or the texts in a value, composed and decomposed."""
    return [
        json.loads(unicodedata.normalize(form, json.dumps(value, ensure_ascii=False)))
        for form in ("NFC", "NFD")
    ]


def answers_for(name):
    """Return texts that the grader can read: one that equals its reference, and another."""
    if name in PYTHON:
        return CODE, CODE.replace("café", "thé")
    if name.startswith("tool_call"):
        return json.dumps([CALL], ensure_ascii=False), json.dumps(
            [{**CALL, "name": "thé"}], ensure_ascii=False
        )
    if name in STRUCTURED:
        return json.dumps(DATA, ensure_ascii=False), json.dumps(
            {**DATA, "né": "cafe"}, ensure_ascii=False
        )
    if name in {"numeric", "math", "number_accuracy"}:
        return r"L'été: \boxed{5 \text{ Å}}", r"été \boxed{6}"
    return TEXT, OTHER


class Vectors:
    """A judge that gives the two texts of an embedding back as a score: 1 if they are the same
    text.
    """

    async def complete(self, request):
        first, second = (message["content"] for message in request.messages)

        class Reply:
            text = json.dumps({"score": float(first == second)})

        return Reply()


async def scores(name, answer, reference):
    spec = SPECS.get(name, name)
    grader = grader_from_spec(spec)
    task = Task("Écris sur l'été.", reference=reference, context=f"[1] {reference}")
    feedback = await grader.grade(task, Candidate(0, answer), Vectors())
    return feedback.score


@each_row(
    "entry",
    [e for e in COMPUTED_GRADERS if e.name not in EXEMPT_GRADERS],
    ids=lambda entry: entry.name,
)
async def test_every_computed_grader_sees_no_difference(entry):
    """The score is the same in all four combinations of forms; a grader without a stated reason
    cannot be left out.
    """
    same, other = answers_for(entry.name)
    for answer in (same, other):
        found = {(await scores(entry.name, a, r)) for a, r in product(forms(answer), forms(same))}
        assert len(found) == 1, (answer, found)
    if "reference" in entry.task_fields:
        assert await scores(entry.name, unicodedata.normalize("NFD", same), same) == pytest.approx(
            1
        )


def test_exemptions_are_graders():
    """No reason stays for a grader that is gone."""
    assert set(EXEMPT_GRADERS) | set(SPECS) | set(PYTHON) | set(STRUCTURED) <= {
        entry.name for entry in COMPUTED_GRADERS
    }


@pytest.mark.slow
@each_row("name", KINDS)
def test_every_requirement_sees_no_difference(name):
    """Check, measurement and repairs are the same for all forms of the text and of the spec."""
    specs = REQUIREMENT_SPECS.get(name, [KINDS[name].example])
    texts = [TEXT, TEXT.lower(), TEXT.upper(), json.dumps(DATA, ensure_ascii=False)]
    results = set()
    for spec, text in product(specs, texts):
        checks = [parse(s).check(t) for s, t in product(forms(spec), forms(text))]
        assert all(check == checks[0] for check in checks), (spec, text, checks)
        repairs = [
            [edit.text for edit in parse(s).repairs(t)]
            for s, t in product(forms(spec), forms(text))
        ]
        assert all(each == repairs[0] for each in repairs), (spec, text)
        results.add(checks[0].ok)
    if name in REQUIREMENT_SPECS:
        assert results == {True, False}


def test_every_kind_with_a_text_is_in_the_table():
    """A kind whose example has a text of the user needs specs with accents here."""
    with_texts = {
        name
        for name, kind in KINDS.items()
        if any(
            isinstance(getattr(parse(kind.example), field.name), str | tuple)
            for field in fields(parse(kind.example))
        )
    }
    assert with_texts - {"language", "script"} == set(REQUIREMENT_SPECS) - {"characters"}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("café", "cafe"),
        ("Café", "café"),
        ("café", "café\u200b"),
        ("a b", "a\u00a0b"),
        ("１２", "12"),
        ("ﬁn", "fin"),
        ("“x”", '"x"'),
        ("x²", "x2"),
        ("…", "..."),
        ("Å", "A"),
    ],
)
async def test_nothing_else_is_normalised(a, b):
    """Accents, case, invisible and full-width characters, ligatures, quotation marks and spaces are
    differences for `exact`.
    """
    assert await scores("exact:whitespace=true", a, b) == 0
    assert not parse(f"regex:^{b}$").check(a).ok or b == "..."


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("\u212b", "Å"),
        ("\u2126", "Ω"),
        ("한국", unicodedata.normalize("NFD", "한국")),
        ("e\u0323\u0302", "e\u0302\u0323"),
    ],
)
async def test_canonical_forms_are_equal(a, b):
    """Signs that Unicode defines as another letter, syllables of Hangul, and marks in another
    order.
    """
    assert await scores("exact", a, b) == 1
    assert parse(f"contains:{a}").check(f"x {b} x").ok


async def test_escapes_in_json_are_composed():
    """JSON may spell an accent as an escape."""
    escaped = json.dumps(forms(DATA)[1])
    assert r"\u0301" in escaped
    assert await scores("json_fields", escaped, json.dumps(DATA)) == 1
    assert parse(REQUIREMENT_SPECS["json_schema"][0]).check(escaped).ok


async def test_schema_of_an_answer_is_composed():
    """A value of an enum may come decomposed; what the program gets is as the model wrote it."""
    composed, decomposed = forms("café")
    for allowed, written in product((composed, decomposed), repeat=2):
        model = redraft.ScriptedModel([json.dumps({"a": written}), json.dumps({"a": allowed})])
        result = await redraft.refine(
            "q",
            model,
            lambda text: 1.0,
            answer={"properties": {"a": {"enum": [allowed]}}, "required": ["a"]},
        )
        assert result.parsed == {"a": written}


@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_word_of_a_type_is_composed(ascii_only):
    """A Literal and an Enum; the answer itself stays as it was written."""
    composed, decomposed = forms("café")

    class Drink(BaseModel):
        a: Literal[composed]
        b: StrEnum("Kind", {"ONE": composed})

    text = json.dumps({"a": decomposed, "b": decomposed}, ensure_ascii=ascii_only)
    result = redraft.refine_sync("q", redraft.ScriptedModel([text]), answer=Drink, max_iterations=0)
    assert (result.parsed.a, result.parsed.b, result.value) == (composed, composed, text)


async def test_tool_calls_of_the_candidate_are_composed():
    """Names and arguments, whether they are in the metadata or in the call."""
    composed, decomposed = forms(CALL)
    for expected, made in product((composed, decomposed), repeat=2):
        call = ToolCall(id="1", name=made["name"], arguments=json.dumps(made["arguments"]))
        for name in ("tool_calls", "tool_call_recall"):
            task = Task("q", metadata={"tool_calls": [expected]})
            assert (
                await grader_from_spec(name).grade(task, Candidate(0, "", tool_calls=(call,)), None)
            ).score == 1


def test_a_repair_keeps_code_as_it_is():
    """The editor changes no letter of a code block, and repairs what is decomposed elsewhere."""
    decomposed = unicodedata.normalize("NFD", "Le thé. Le café est bon. Il est tard.")
    assert "café" not in FormEditor().repair(decomposed, [parse("contains_none:café")]).text
    block = unicodedata.normalize(
        "NFD", "Le café est bon. Il est tard, et le soleil est bas.\n\n```\né\n```\n"
    )
    edit = FormEditor().repair(block, [parse("contains_none:café")])
    assert edit is None or unicodedata.normalize("NFD", "é") in edit.text


@given(st.text())
def test_composing_is_that_of_unicode(text):
    """It is idempotent, and equal to the standard library's."""
    assert compose_nfc(text) == unicodedata.normalize("NFC", text)
    assert compose_nfc(unicodedata.normalize("NFD", text)) == compose_nfc(text)


@given(st.text("é\u0301\u0316a", max_size=200))
def test_composing_long_runs_of_marks_is_that_of_unicode(text):
    """A run of marks that is sorted in linear time comes out as the standard library sorts it."""
    assert compose_nfc(text) == unicodedata.normalize("NFC", text)
