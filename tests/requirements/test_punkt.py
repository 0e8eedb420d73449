"""Sentences as NLTK counts them: the rules of Punkt without its trained data."""

from each_row import each_row
from redraft.requirements import parse

COUNTED = [  # by NLTK 3.10.4, punkt_tab, English
    ("One.", 1),
    ("One. Two! Three? Four", 4),
    ("One.Two. Three", 2),
    ("1. One thing.\n2. Another.", 4),
    ("1. one thing", 1),
    ("It is 3. of five. Six.", 2),
    ("Mr. Lee met Dr. Wu at 5 p.m. in the U.S. yesterday.", 1),
    ("He left the U.S. The rest stayed.", 2),
    ("Inc. is none. Co. is one.", 2),
    ("Apples, pears, etc. are fruit. So it is.", 3),
    ("See e.g. this one. Fine.", 3),
    ("Option A. Then we go on.", 2),
    ("The answer is B.\n\nTherefore it ends.", 2),
    ("Wait... The end.", 2),
    ("Wait... what?", 1),
    ("Wait... Peter said so.", 1),
    ('She said "Go." He went.', 2),
    ('"Is it?" he asked.', 2),
    ("He went (at last.) Then he slept.", 2),
    ("**Done.** Next.", 2),
    ("**Done.**", 2),
    ("*It is over.*\n\nAnd so on.", 2),
    ("Title\n\nFirst line\nSecond line", 1),
    ("# Heading\n\nText here. More text.", 2),
    ("- one.\n- two.\n- three.", 3),
    ("What?! Really!! Yes.", 3),
    ("Version 3.5 is out. Get it at www.example.com. Now.", 3),
    ("P.S. I love you. P.P.S. Me too.", 4),
    ("\u201cGo.\u201d He went.", 2),
    ("It\u2019s Kellogg's. Fine.", 2),
    ("St. Mary's, Jan. 5, at 3 p.m. It rained.", 2),
    ("\u4f60\u597d\u3002\u518d\u89c1\uff01", 1),
    ("Dots . . . and more. End.", 5),
    ("a.)b. c", 2),
    ("  Leading. Trailing.  ", 2),
    ('Ends with a quote."', 1),
    ("One.\n\n\n\nTwo.\n", 2),
    ("in vs. out. Done", 2),
]


@each_row(("text", "count"), COUNTED)
def test_sentences_are_counted_as_nltk_counts_them(text, count):
    """List numbers, closing quotes, emphasis and initials after a full stop follow the rules of
    Punkt.
    """
    check = parse(f"sentences_and_numbers:{count}").check(text)
    assert check.ok, check.measurement
