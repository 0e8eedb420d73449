"""The word diff, in any script."""

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.base.word_diff import tokens, word_diff
from redraft.cli.terminal import render_diff

TEXTS = st.text(alphabet=st.sampled_from("ab c\n.é日本語です कि่ม🙂‍️"), max_size=60)


@given(TEXTS, TEXTS)
def test_pieces_make_both_texts(before, after):
    """Kept and removed pieces make the old text, kept and added pieces the new one."""
    found = word_diff(before, after)
    assert "".join(p.text for p in found if p.kind != "added") == before
    assert "".join(p.text for p in found if p.kind != "removed") == after


@given(st.text())
def test_tokens_add_up_to_the_text(text):
    """Tokenizing loses no character."""
    assert "".join(tokens(text)) == text


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("The cat sat.", "The dog sat.", "The [-cat-]{+dog+} sat."),
        ("今日は雨です。", "今日は雪です。", "今日は[-雨-]{+雪+}です。"),
        ("मैं किताब पढ़ता हूँ", "मैं किताबें पढ़ता हूँ", "मैं [-किताब-]{+किताबें+} पढ़ता हूँ"),
        ("قرأت كتابا", "قرأت كتابين", "قرأت [-كتابا-]{+كتابين+}"),
        ("one two three four", "one 2 3 four", "one [-two three-]{+2 3+} four"),
        ("a\n\nb", "a\nb", "a\n[-↵-]b"),
    ],
)
def test_words_of_every_script_change_as_a_whole(before, after, shown):
    """A word with its marks is one token; in scripts without spaces a character is."""
    assert render_diff(before, after, colour=False).plain == shown


def test_a_diff_of_a_long_text_shows_changes_with_their_context():
    """Unchanged parts are left out, unless the whole text is requested."""
    before = "word " * 200 + "old " + "word " * 200
    after = before.replace("old", "added")
    assert len(render_diff(before, after, colour=False).plain) < 150
    assert len(render_diff(before, after, colour=False, full=True).plain) > len(before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a " * 2_900, "a " * 2_800),
        (
            " ".join(str(i % 50) for i in range(2_900)),
            " ".join(str(i * 7 % 50) for i in range(2_900)),
        ),
        ("\n" * 9_000, "\n" * 9_001),
        ("x y\n" * 200_000, "x z\n" * 200_000),
        ("x" * 3_000_000, "y" * 3_000_000),
    ],
    ids=["one word", "few words", "empty lines", "many lines", "one line"],
)
def test_long_texts_take_a_bounded_time(before, after):
    """Whatever is repeated in them: a minute before, a second now."""
    start = perf_counter()
    found = word_diff(before, after)
    assert perf_counter() - start < 10
    assert "".join(p.text for p in found if p.kind != "added") == before
    assert "".join(p.text for p in found if p.kind != "removed") == after
