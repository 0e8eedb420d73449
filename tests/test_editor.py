"""The editor: what it repairs, and that it never breaks a requirement that was met."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_row import each_row
from redraft.answers.editor import FormEditor, unmet_requirements
from redraft.protocols import Check, Edit
from redraft.requirements import KINDS, parse
from redraft.requirements import text_spans as texts

REPAIRED = [
    ("no_commas", "It cost 1,000, or so,yes `A`", "It cost 1000 or so yes `A`", False),
    ("words:-5", "One two three. Four five. Six seven.", "One two three. Four five.", True),
    ("sentences:1", "One two. Three.\n", "One two.\n", True),
    ("paragraphs:2", "One two. Three four.", "One two.\n\nThree four.", False),
    ("paragraphs:1", "One.\n\nTwo.", "One.\nTwo.", False),
    ("paragraphs:1", "One.\r\n\r\nTwo.", "One.\r\nTwo.", False),
    ("paragraphs:2", "One.\n  \nTwo.", "One.\n\nTwo.", False),
    ("nth_paragraph_starts:2:two", "One.\n\n\n\nTwo.", "One.\n\nTwo.", False),
    ("nth_paragraph_starts:2:two", "One.\n\n**Two**, three.", "One.\n\nTwo, three.", False),
    ("contains_none:very", "It is fine. It is very good. Bye now.", "It is fine. Bye now.", True),
    ("starts_with:Dear Ann", "thanks.", "Dear Ann thanks.", False),
    ("ends_with:Bye.", "Thanks for all of it. Bye. P", "Thanks for all of it. Bye.", True),
    ("lowercase", "Say Hi to `Code` ÉA", "say hi to `Code` éa", None),
    ("uppercase", "straße", "STRASSE", True),
    ("bullets:2", "Look:\n• a\n• b\n", "Look:\n- a\n- b\n", False),
    ("bullets:2", "- a\n- b\n- c", "- a\n- b; c", False),
    ("bullets:2", "1. a\n2. b", "- a\n- b", False),
    ("sections:Intro", "Intro:\ntext", "## Intro\ntext", False),
    ("headings:1-", "**Intro**\n\ntext", "## Intro\n\ntext", False),
    ("json", 'Here it is:\n```json\n{"a": 1}\n```\nEnjoy!', '{"a": 1}', True),
    ("json", "{'a': 1,}", '{"a": 1}', True),
    (
        'json_schema:{"properties":{"a":{"type":"integer"}},"additionalProperties":false}',
        '{"a": "5", "b": 1}',
        '{"a": 5}',
        True,
    ),
    ("no_duplicate_sentences", "It is so. Yes it is. It is so.", "It is so. Yes it is.", True),
    ("no_duplicate_sentences", "今日は天気がいい。今日は天気がいい。", "今日は天気がいい。", True),
    ("title", "# My day\n\nIt was good.", "<<My day>>\n\nIt was good.", False),
    ("quoted", "Hello.", '"Hello."', False),
    ("highlights:1-", "Note: it is so.", "**Note**: it is so.", False),
    ("capital_words:-1", "NASA and ESA met.", "NASA and esa met.", True),
    ("one_of:My answer is yes.", "my answer is Yes", "My answer is yes.", False),
    ("placeholders:1-", "Dear {name}", "Dear [name]", False),
    ("postscript:P.S.", "Bye.\n\nPS: Write!", "Bye.\n\nP.S. Write!", False),
    ("parts:2:******", "One.\n\n---\n\nTwo.", "One.\n\n******\n\nTwo.", False),
]


@each_row(("spec", "before", "after", "lossy"), REPAIRED)
def test_requirements_of_form_are_repaired(spec, before, after, lossy):
    """Each kind has the smallest edit and reports the loss; code and URLs stay."""
    edit = FormEditor().repair(before, [parse(spec)])
    if lossy is None:
        assert edit is None
        return
    assert edit is not None
    assert (edit.text, edit.lossy) == (after, lossy)
    assert edit.note


UNREPAIRABLE = [
    "words:500-",
    "contains:unicorn",
    "language:ko",
    "script:han",
    "reading_grade:-1",
    "regex:x{9}",
    "letters:z>=3",
]


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("spec", UNREPAIRABLE)
def test_the_editor_never_invents_text(spec):
    """A requirement that needs writing is left over with its measured value."""
    text = "A short and entirely reasonable explanation of photosynthesis."
    requirement = parse(spec)
    assert FormEditor().repair(text, [requirement]) is None
    assert [left for left, _ in unmet_requirements(text, [requirement])] == [requirement]


def test_a_demanded_ending_survives_shortening():
    """Shortening removes sentences that no other requirement needs."""
    wanted = [parse("ends_with:Yours, Ann"), parse("words:-8")]
    edit = FormEditor().repair("One two three four. Five six seven eight. Yours, Ann", wanted)
    assert edit.text == "Five six seven eight. Yours, Ann"


def test_several_demands_are_repaired_in_one_edit():
    """The note has each step and its requirement."""
    edit = FormEditor().repair("Well, yes.", [parse("no_commas"), parse("quoted")])
    assert edit.text == '"Well yes."'
    assert edit.note.startswith("removed 1 comma (no commas); put it in quotation marks")


def test_with_lossy_off_no_edit_loses_text():
    """A user may refuse every loss."""
    assert FormEditor(allow_lossy=False).repair("One two three. Four.", [parse("words:-3")]) is None


def test_an_edit_never_removes_most_of_a_text():
    """Losing more than half of a text is no repair."""
    assert (
        FormEditor().repair("Tea is best. Ten tents. The toast. No.", [parse("letters:t<1")])
        is None
    )


def test_nothing_to_do_is_no_edit():
    """There is no edit for a text that meets everything, nor for an empty list of requirements."""
    assert FormEditor().repair("Fine.", [parse("no_commas")]) is None
    assert FormEditor().repair("", []) is None


class RaisingRequirement:
    """A user's requirement with a bug."""

    spec = demand = "raises"

    def check(self, text: str) -> Check:
        raise ValueError(text)

    def repairs(self, text: str) -> list[Edit]:
        raise KeyError(text)


def test_a_requirement_that_raises_is_reported_as_left_over():
    """The others are repaired all the same."""
    edit = FormEditor().repair("a, b", [RaisingRequirement(), parse("no_commas")])
    assert edit.text == "a b"
    assert [
        check.measurement for _, check in unmet_requirements("a b", [RaisingRequirement()])
    ] == ["cannot be measured: ValueError"]


PIECES = [
    "One, two. ",
    "It is VERY good! ",
    "\n\n",
    "\r\n",
    "```\ncode, A.\n```\n",
    "`x, Y`",
    " https://e.org/A,b ",
    "- item\n",
    "# Head\n",
    "中文，你好。",
    "P.S. So. ",
]
EDITABLE = [
    *(kind.example for kind in KINDS.values()),
    "words:-6",
    "bullets:2",
    "sentences:-2",
    "paragraphs:2",
    "contains_none:good",
    "lowercase",
    "highlights:1-",
]
AROUND = ("json", "json_schema")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12).map("".join),
    st.lists(
        st.sampled_from([s for s in EDITABLE if not s.startswith(AROUND)]).map(parse),
        min_size=1,
        max_size=4,
    ),
)
def test_an_edit_breaks_no_requirement_and_repairs_at_least_one(text, requirements):
    """Protected text stays (except cuts and wraps at its edges), and a text that could be encoded
    still can.
    """
    edit = FormEditor().repair(text, requirements)
    if edit is None:
        return
    before = {r.spec for r in requirements if r.check(text).ok}
    after = {r.spec for r in requirements if r.check(edit.text).ok}
    assert before < after
    if not any(r.spec.startswith(("starts_with", "ends_with", "quoted")) for r in requirements):
        assert all(text[slice(*span)] in edit.text for span in texts.protected_spans(text))
    edit.text.encode()


@pytest.mark.slow
def test_a_long_text_is_repaired_in_bounded_time():
    """For 200 kB with several requirements fewer edits are tried, but the repair is found."""
    text = "The quick brown fox, it jumps over 1,000 lazy dogs. " * 4000
    edit = FormEditor().repair(text, [parse("no_commas"), parse("words:-20000"), parse("quoted")])
    assert "," not in edit.text


def test_one_edit_that_serves_two_demands_is_preferred_to_two():
    """Removing the repetition alone meets both, without another loss."""
    text = "This is a short text. Do you follow? Yes! This is a short text."
    edit = FormEditor().repair(text, [parse("sentences:2-3"), parse("no_duplicate_sentences")])
    assert edit.text == "This is a short text. Do you follow? Yes!"
