"""What each requirement measures, and that it can measure anything."""

import json
import threading
from functools import cache, partial
from time import process_time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cpu_time import least_seconds
from each_row import each_row
from redraft.errors import ComputeLimitError
from redraft.requirements import KINDS, parse
from redraft.requirements import text_spans as texts
from redraft.requirements.spec import AT_ONCE, check_with_limit

TABLE = [
    ("words:3", "one two three", True, "3 words"),
    ("words:-2", "one two three", False, "3 words"),
    ("words:4", "中文 かな", True, "4 words"),
    ("words:2", "हिन्दी भाषा", True, "2 words"),
    ("sentences:2", "Dr. Lee paid 3.50 at e.g. noon. Fine!", True, "2 sentences"),
    ("sentences:2", "你好。再见！", True, "2 sentences"),
    ("sentences:2", "1. One thing.\n2. Another.", True, "2 sentences"),
    ("paragraphs:2", "a\n\nb\nc", True, "2 paragraphs"),
    ("paragraphs:2", "a\r\n\r\nb", True, "2 paragraphs"),
    ("paragraphs:1", "a\r\nb\r\nc", True, "1 paragraph"),
    ("paragraphs:1", "```\na\n\nb\n```", True, "1 paragraph"),
    ("characters:<5", " abcd ", True, "4 characters"),
    ("contains:war>=2", "War, wars.", True, "'war' occurs 2 times"),
    ("contains_word:war", "wars", False, "'war' occurs 0 times"),
    ("contains_word:中", "在中国", True, "'中' occurs 1 time"),
    ("contains_none:very,so", "A very sober man", False, "contains 'very'"),
    ("starts_with:dear", "  Dear Ann", True, None),
    ("ends_with:bye.", 'All right. Bye." ', True, None),
    ("lowercase", "abc 1", True, None),
    ("lowercase", "中文", False, "no letter with a case"),
    ("uppercase", "ABC d", False, "1 small letter"),
    ("capital_words:3", "I like NASA and AND/OR.", True, None),
    ("no_commas", "a、b", False, "1 comma"),
    ("bullets:2", "* a\n - b\n**c**", True, "2 bullet points"),
    ("headings:1", "# A\n```\n# no\n```\n", True, "1 heading"),
    ("sections:Intro,Method", "## 1. Intro\n\n## METHOD:\n", True, None),
    ("numbered_sections:Day>=2", "Day 1\nDay 2", True, None),
    ("parts:2:***", "a\n***\nb\n***", True, "2 parts"),
    ("parts:2:***", "a\n***\na", False, "the same part twice among 2"),
    ("nth_paragraph_starts:2:however", "A.\n\nHOWEVER, B.", True, None),
    ("nth_paragraph_starts:2:however", "A.\n\n'\"However's", True, None),
    (
        "nth_paragraph_starts:2:however",
        "A.\n\n**However**, B.",
        False,
        "it begins with '**However**'",
    ),
    ("nth_paragraph_starts:2:however", "A.\n\nHowever: B.", False, "it begins with 'However:'"),
    ("nth_paragraph_starts:2:however", "A.\n\n\n\nHowever, B.", False, "it is empty"),
    (
        "nth_paragraph_starts:3:however",
        "A.\n\n\n\nHowever, B.",
        False,
        "there are only 2 paragraphs",
    ),
    ("nth_paragraph_starts:2:however", "A.\n\n\nHowever, B.", True, None),
    ("nth_paragraph_starts:2:however", "A.\n \nHowever, B.", False, "there are only 1 paragraph"),
    ("nth_paragraph_starts:2:however", "A.\r\n\r\nHowever, B.", True, None),
    ("paragraphs:1", "a\n \nb", True, "1 paragraph"),
    ("paragraphs:2", "a\n\n \n\nb", True, "2 paragraphs"),
    ("json", '```json\n{"a": 1}\n```', True, "parses"),
    ("json", "[" * 100_000, False, None),
    ("json", "NaN", False, None),
    ("json", '{"a": 1, "a": 2}', True, None),
    ('json_schema:{"required":["a"]}', "{}", False, "$: 'a' is a required property"),
    ('json_schema:{"pattern":"(a+)+$"}', '"' + "a" * 50 + 'b"', False, None),
    ('json_schema:{"$ref":"#"}', "{}", False, None),
    ("script:cyrillic", "Привет, `code` мир", True, None),
    ("script:cjk", "日本語のテキスト", True, None),
    ("script:latin", "123", False, "no letters"),
    ("language:ko", "안녕하세요 세계", True, None),
    ("reading_grade:-8", "The cat sat on the mat. It was fat.", True, None),
    (
        "reading_grade:-8",
        "Привет мир",
        False,
        "cannot be measured: the text is not in Latin script",
    ),
    ("no_duplicate_sentences", "So it is. And so on. So it is!", False, "1 repeated sentence"),
    ("regex:^\\d+$", "12", True, "matches"),
    ("placeholders:2-", "[a] [b]", True, "2 placeholders"),
    ("highlights:2", "*a* and **b** and ** **", True, "2 highlighted passages"),
    ("title", "<<A>>\nb", True, None),
    ("title", "<<>>", False, None),
    ("postscript:P.P.S", "Bye\np. p. s. more", True, None),
    ("quoted", ' "a" ', True, None),
    ("quoted", '"', False, None),
    ("one_of:Yes.|No.", "I say Yes.", True, None),
    ("letters:e<2", "Eel", False, "'e' occurs 2 times"),
]


@each_row(("spec", "text", "ok", "measured"), TABLE)
def test_checks(spec, text, ok, measured):
    """Each check passes or fails and states the measurement in words."""
    check = parse(spec).check(text)
    assert check.ok is ok, check
    assert measured is None or check.measurement == measured


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["(a+)+$", "(?:a+a+)+y"])
def test_slow_pattern_is_unknown(pattern):
    """A pattern that would run for years is stopped and neither matches nor fails."""
    with pytest.raises(
        ComputeLimitError,
        match=r"^regex:.* could not be checked within 0.5 s \(5,001 characters\)$",
    ):
        parse(f"regex:{pattern}").check("a" * 5000 + "b")


@pytest.mark.slow
def test_patterns_of_a_schema_share_one_time_limit():
    """A slow pattern costs its time limit once for a text, not once for each string."""
    slow = parse('json_schema:{"items":{"pattern":"(?:a+a+)+y"}}')
    begun = process_time()
    with pytest.raises(
        ComputeLimitError, match=r"^the patterns of json_schema.* could not be checked within 0.5 s"
    ):
        slow.check(json.dumps(["a" * 5000 + "b"] * 20))
    assert process_time() - begun < 5


MANY_PHRASES = ",".join(f"phrase {i}" for i in range(3000))


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("spec", "at_once"),
    [
        ("words:1-", True),
        ("contains_none:very,in conclusion", True),
        (f"contains_none:{MANY_PHRASES}", False),
        ("regex:(?:a|aa|aaa)+$", False),
        ('json_schema:{"pattern":"(?:a|aa|aaa)+$"}', False),
        ("language:en", False),
    ],
)
async def test_what_may_take_long_for_a_short_text_is_checked_in_a_thread(
    spec, at_once, monkeypatch
):
    """Every other check of a short text runs at once, and takes a few milliseconds."""
    requirement, threads = parse(spec), []
    check = type(requirement).check
    monkeypatch.setattr(
        type(requirement),
        "check",
        lambda *given: threads.append(threading.current_thread()) or check(*given),
    )
    await check_with_limit(requirement, "\u0316\u0301" * (AT_ONCE // 2))
    assert (threads == [threading.main_thread()]) is at_once


PRESENT = [
    kind.example
    for name, kind in KINDS.items()
    if ":<" not in kind.example and "<" not in kind.example
]
ABSENCE = {"contains_none", "no_commas", "reading_grade"}


@each_row("spec", [spec for spec in PRESENT if spec.partition(":")[0] not in ABSENCE])
@each_row("text", ["", " \n\t"])
def test_empty_text_fails_checks_that_need_content(spec, text):
    """An empty text fails every check that requires content."""
    assert not parse(spec).check(text).ok


ODD = (
    st.text()
    | st.text(st.sampled_from("aA. \n\r*-#`[]{}<>\"',:1\ud800\x00中é_~|"))
    | st.lists(
        st.sampled_from(
            [
                "One. ",
                "\n\n",
                "```\n",
                "`a, B`",
                "https://x.y/A,b",
                "- item\n",
                "# H\n",
                "中文。",
                "P.S. ",
                "***",
                '"',
                "\ud800",
                "\x00",
            ]
        )
    ).map("".join)
)


@cache
def all_requirements():
    """One of each kind, and some with other options. Some load what takes half a second."""
    more = (
        "words:-3", "sentences:1", "paragraphs:2", "characters:-9", "contains:a<2", "bullets:1", "headings:-0", "highlights:1",
        "capital_words:1", "capital_words:3-", "parts:1-2:***", "letters:a<1",
        'json_schema:{"properties":{"a":{"type":"integer"}},"additionalProperties":false}',
    )  # fmt: skip
    return [parse(spec) for spec in (*(kind.example for kind in KINDS.values()), *more)]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ODD)
def test_every_check_and_repair_accepts_any_text(text):
    """Any text can be measured, and each repair keeps code and URLs byte for byte and stays
    encodable.
    """
    protected = [text[start:end] for start, end in texts.protected_spans(text)]
    for requirement in all_requirements():
        assert requirement.check(text).measurement
        for edit in requirement.repairs(text):
            assert edit.note
            if not requirement.spec.startswith(("json", "starts_with", "ends_with", "quoted")):
                assert all(piece in edit.text for piece in protected), requirement.spec
            if _encodable(text):
                edit.text.encode()


def _encodable(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize(
    "seed", ["A, b c. ", "`", "[", "*", "<<\n", "\n ", "1. a\n", "!", "{", "_a", "p. ", "\ud800."]
)
@pytest.mark.slow
def test_long_hostile_texts_take_linear_time(seed):
    """100 kB take about half a second, whatever is repeated in them."""
    text = seed * (100_000 // len(seed))
    for requirement in all_requirements():
        assert least_seconds(partial(requirement.check, text), 1.5) < 1.5, requirement.spec
