"""HTML of untrusted text: it is shown, whatever it holds, and never obeyed."""

import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.base.html import Templates, html_text, visible_text


class Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tags, self.text, self.attributes = [], "", []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("templates")
    (folder / "page.html").write_text('<p title="{{ text }}">{{ text }}</p>')
    return Templates(folder)


HOSTILE = st.text(
    alphabet=st.one_of(st.sampled_from("<>&\"'/= \n{}%"), st.characters()), max_size=60
)


@given(text=HOSTILE)
def test_text_stays_text(templates, text):
    """A browser would see one paragraph, and in it exactly the visible form of the text."""
    reader = Reader()
    reader.feed(templates.render("page.html", text=text))
    reader.close()
    assert reader.tags == ["p"]
    assert reader.text == visible_text(text)
    assert reader.attributes == [("title", visible_text(text))]


@given(st.text())
def test_nothing_invisible_is_left(text):
    """No control character, direction mark or lone surrogate remains, except tabs, line ends,
    joiners and variation selectors.
    """
    left = {
        c
        for c in visible_text(text)
        if unicodedata.category(c) in {"Cc", "Cs"}
        or unicodedata.bidirectional(c)
        in {"RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI"}
    }
    assert left <= {"\n", "\t"}
    assert visible_text(visible_text(text)) == visible_text(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x00b", "a␀b"),
        ("\x1b[31mred", "␛[31mred"),
        ("a\r\nb\rc", "a\nb␍c"),
        ("x\u202ey", "x⟨U+202E⟩y"),
        ("zero\u200bwidth", "zero⟨U+200B⟩width"),
        ("\x7f\x85", "␡⟨U+0085⟩"),
        ("\ud800", "\ufffd"),
        ("नमस्\u200dते 👩\u200d💻", "नमस्\u200dते 👩\u200d💻"),
    ],
)
def test_invisible_characters_are_shown(text, shown):
    """Control characters as their pictures, others by their code; joiners of scripts and emoji
    stay.
    """
    assert visible_text(text) == shown


def test_html_that_we_made_is_not_escaped_again():
    """Markup is of ours; a value that only looks like it is text."""
    from markupsafe import Markup

    assert html_text(Markup("<b>")) == "<b>"
    assert html_text("<b>") == "&lt;b&gt;"
