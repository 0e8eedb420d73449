"""Recorded judge outputs: what a format reads, what it rejects, and that no text makes it crash or
invent a value.
"""

import random
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from each_row import each_row
from redraft.errors import ConfigError
from redraft.graders.judging.structured import UnreadableOutput
from redraft.validation.recorded_formats import (
    OUTPUT_FORMATS,
    OutputFormat,
    ParsedOutput,
    find_format,
    parse_output,
)

WINNERS = [
    ("arena_hard", "... final verdict: [[A>>B]]", "first"),
    ("arena_hard", "[[B>A]] and again [[B>A]]", "second"),
    ("arena_hard", "[[A=B]]", "tie"),
    ("mt_bench_pair", "After all: [[C]]", "tie"),
    ("mt_bench_pair", "[[B]]", "second"),
    ("llmbar", "Output (b) is better. Output (a) is not.", "second"),
    # LLMBar looks for (a) first
    ("llmbar", "Assistant (b) says Output (b) is better. Yet Output (a) is better.", "first"),
    ("llmbar", "Output (b)", "second"),
    ("llmbar_line", "Output (b) is better.\n\nOutput (a) is too long", "first"),
    ("llmbar_sentence", "Therefore, Output (b) is better.", "second"),
    ("pandalm", "1\n\n### Reason: shorter", "first"),
    ("pandalm", "Tie", "tie"),
    ("prometheus_pair", "Feedback: fine. [RESULT] B", "second"),
    ("prometheus_pair", "[RESULT] Response A", "first"),
    ("json_pair", '```json\n{"winner": "tie"}\n```', "tie"),
    ("json_pair:verdict.better", '{"verdict": {"better": "B"}}', "second"),
    (r"regex:(?i)better: (\w+)", "Better: A", "first"),
]
SCORES = [
    ("mt_bench_score", "Rating: [[7]]", 7, 6 / 9),
    ("mt_bench_score@0-10", "[[7.5]] ... so [[7.5]]", 7.5, 0.75),
    ("score_of", "Score: 7/10", 7, 0.7),
    ("score_of", "It is fine.\n\n7 out of 10", 7, 0.7),
    ("score_of", "**Score:** 4 / 5", 4, 0.8),
    ("score_of", "### Overall rating: **8/10**\n\nClarity was 3/10.", 8, 0.8),
    ("score_of", "Score: 7/10 - good", 7, 0.7),
    ("score_of@1-10", "Final score: 10. Well done", 10, 1.0),
    ("score_of@1-10", "Rating: 3 of 10", 3, 2 / 9),
    ("score_of@1-10", "Rating: 3 points", 3, 2 / 9),
    ("score_of@1-10", "**Rating:** 3 points out of 10, because it is short", 3, 2 / 9),
    ("score_of@1-5", "Rating: 3 of 5 stars", 3, 0.5),
    ("score_of@1-5", "Rating: 3/5 stars", 3, 0.5),
    ("score_of", "Rating: 3 of 5", 3, 0.6),
    ("prometheus", "[RESULT] 3 of 5", 3, 0.5),
    ("bare_number", " 7\n", 7, 0.7),
    ("bare_number@0-1", "0.03338678454245273", 0.03338678454245273, 0.03338678454245273),
    ("prometheus", "Feedback: good. [RESULT] 4", 4, 0.75),
    ("prometheus", "[RESULT]: (4/5)", 4, 0.75),
    ("json", '{"score": 0.25, "reason": "x"}', 0.25, 0.25),
    ("json:score@1-5", 'Here: {"score": 4,\n "reason": "x",}', 4, 0.75),
    ("json:rubric.truth@1-5", '{"rubric": {"truth": 2}}', 2, 0.25),
    (r"regex:grade (\d+)@1-10", "grade 3, yes, grade 3", 3, 2 / 9),
    ("score_of", "<think>Score: 2/10</think>Score: 9/10", 9, 0.9),
    ("score_of", "Perhaps\nScore: 2/10\n</think>\nScore: 9/10", 9, 0.9),
]
LABELS = [
    ("label", "Because it is short.\nVerdict: **PASS**.", "pass"),
    ("label:yes/no", "I looked.\n\nno", "no"),
    ("label:A/B/C", "(c)", "C"),
    (
        "self_refine_sentiment",
        "It sounds sad. The sentiment is Negative. No: the sentiment is Very positive.",
        "very positive",
    ),
    ("self_refine_sentiment", "The sentiment of the rewritten review is neutral", "neutral"),
    ("json_label:pass", '{"pass": true}', "true"),
    ("json_label", '{"label": "Fully covered"}', "Fully covered"),
]
UNREADABLE = [
    ("arena_hard", "[[A>>B]] ... on reflection [[A>B]]", "several"),
    ("arena_hard", "[[A<B]]", "not a verdict"),
    ("arena_hard", "A>B", "no verdict"),
    ("arena_hard", "[[А>B]]", "no verdict"),  # a Cyrillic A
    ("mt_bench_pair", "[[A]] or [[B]]", "several"),
    ("mt_bench_score", "[[7]] then [[8]]", "several"),
    ("mt_bench_score", "[[17]]", "outside"),
    ("mt_bench_score", "[[-7]]", "plain number"),
    ("mt_bench_score", "[[7/10]]", "plain number"),
    ("mt_bench_score", "[[٧]]", "plain number"),
    ("mt_bench_score", "Rating: 7", "no rating"),
    ("llmbar", "Both are good.", "which one is better"),
    ("pandalm", "garbage", "first line"),
    ("pandalm", "1 is better", "first line"),
    ("prometheus", "[RESULT] 6", "outside"),
    ("prometheus", "[RESULT] four", "no score"),
    ("prometheus", "[RESULT] (an integer between 1 and 5)", "no score"),
    ("prometheus", "[RESULT] 2 ... [RESULT] 3", "several"),
    ("prometheus_pair", "[RESULT] C", "neither"),
    ("score_of", "-7/10", "no score"),
    ("score_of", "Score: -7/10", "no score"),
    ("score_of", "Score: −7/10", "no score"),
    ("score_of", "17/10", "outside"),
    ("score_of", "7/10/2024", "no score"),
    ("score_of", "Score: 7 / 10 / 2024", "no score"),
    ("score_of", "Score: NaN/10", "no score"),
    ("score_of", "Score: 7–8/10", "no score"),
    ("score_of", "Score: 7/10 or 8/10", "no score"),
    ("score_of", "Score: 7/10\nScore: 8/10", "several"),
    ("score_of", "Score: 7/10 (was 8/10)", "several"),
    ("score_of", "Score: 7/10\nScore: n/a", "no score"),
    ("score_of", "Score: 7²/10", "no score"),
    ("score_of", "Score: 7̸/10", "no score"),
    ("score_of", "Score: ٧/١٠", "no score"),
    ("score_of", "Score: 1 000/10", "no score"),
    ("score_of", "Score: 7", "out of how many"),
    ("score_of", "Score: 0/0", "out of how many"),
    ("score_of", "I cannot give this more than 3/10, though 7 out of 10 cats like it.", "no score"),
    ("score_of@1-10", "Score: 7/100", "not on the scale"),
    ("score_of@1-10", "Rating: 3 of 5", "not on the scale"),
    ("score_of@1-10", "Rating: 3 out of 5", "not on the scale"),
    ("score_of@1-10", "3 out of 5", "not on the scale"),
    ("score_of@1-10", "Rating: 3 points out of 5", "not on the scale"),
    *(
        ("score_of@1-10", f"Rating: {said}", "on a scale that is known")
        for said in (
            "3 stars",
            "**3** stars",
            "3 Sterne",
            "3 out  of 5",
            "3 out of five",
            "3 of the 5",
            "**3** of 5",
            "3 (out of 5)",
            "3 (of 5)",
            "3, of 5",
            "3 (scale: 1-5)",
            "3 on a scale of 1 to 5",
            "3 - on a scale of 5",
            "3 points on a scale of 5",
            "3 / five",
            "3 \u2605",
            "3. Out of 5.",
            "3 points (of 5)",
            "3 percent",
            "3 (stars)",
        )
    ),
    ("prometheus", "[RESULT] 3 of 10", "not on the scale"),
    ("score_of@1-10", "Score: 0/10", "outside"),
    ("score_of@1-10", "Score: 7%", "no score"),
    ("bare_number", "7.", "not a number alone"),
    ("bare_number", "7²", "not a number alone"),
    ("bare_number", "1e1", "not a number alone"),
    ("bare_number", "7\u200b", "not a number alone"),
    ("bare_number", "NaN", "not a number alone"),
    ("bare_number", "Infinity", "not a number alone"),
    ("bare_number", "11", "outside"),
    ("bare_number", "9" * 5000, "not a number alone"),
    ("json:score@1-5", '{"score": "4"}', "must be a number"),
    ("json:score@1-5", '{"score": true}', "must be a number"),
    ("json:score@1-5", '{"score": NaN}', "NaN"),
    ("json:score@1-5", '{"score": 6}', "outside"),
    ("json:score@1-5", '{"score": -1}', "plain number"),
    ("json:score@1-5", '{"score": 4⁵}', "plain"),
    ("json:score@1-5", '{"score": 4%}', "plain"),
    ("json:score@1-5", '{"score": 1, "score": 5}', "twice"),
    ("json:score@1-5", '{"score": 1}{"score": 5}', "object"),
    ("json:score@1-5", "The score is 4", "no JSON"),
    ("json:score@1-5", '{"other": 4}', "missing"),
    ("json:a.b@1-5", '{"a": 4}', "missing"),
    ("json_pair", '{"winner": "model_a"}', "must be one of"),
    ("json_label", '{"label": ["pass"]}', "must be a label"),
    ("json_ranking", '{"ranking": [1, 1, 2]}', "once"),
    ("json_ranking", '{"ranking": [1.0, 2.0]}', "whole numbers"),
    ("rank_gpt", "[2] > [2]", "once"),
    ("rank_gpt", "[1] > [3]", "once"),
    ("rank_gpt", "[2]", "no ranking"),
    ("label", "Not yes", "last line"),
    (
        "label",
        "yes\nbut then I thought about it for a long time and am no longer so sure of anything at all",
        "last line",
    ),
    ("label", "Answer: no\nAnswer: yes", "several"),
    ("self_refine_sentiment", "N/A", "sentiment"),
    (r"regex:(\d+)/10@1-10", "7/10 8/10", "several"),
    (r"regex:(\S+) points@1-10", "-7 points", "plain number"),
    (r"regex:winner (\w+)", "winner nobody", "none of"),
    (r"regex:(a|aa)+$@1-10", "a" * 5000 + "!", "took more than|no match"),
    *((name, "", "empty") for name in OUTPUT_FORMATS),
    *((name, "<think>Score: 7/10 [[7]] yes", "empty") for name in OUTPUT_FORMATS),
    *((name, "x" * 200_001, "characters long") for name in OUTPUT_FORMATS),
]


@each_row(("form", "text", "winner"), WINNERS)
def test_winners(form, text, winner):
    """The format reads which of the two responses shown the judge prefers."""
    reading = parse_output(text, form)
    assert (reading.winner, reading.score, reading.ranking, reading.label) == (
        winner,
        None,
        None,
        None,
    )


@each_row(("form", "text", "score", "normalised"), SCORES)
def test_scores(form, text, score, normalised):
    """The format reads a score on the judge's own scale and its position on that scale."""
    reading = parse_output(text, form)
    assert (reading.score, reading.normalised_score) == (score, pytest.approx(normalised))
    assert reading.winner is reading.label is reading.ranking is None


@pytest.mark.parametrize(("form", "text", "label"), LABELS)
def test_labels(form, text, label):
    """The format reads a label in any case and with any punctuation around it."""
    assert parse_output(text, form).label == label


@pytest.mark.parametrize(
    "text", ["[2] > [1] > [3]", "Ranking: [2]>[1] > [3]\nThat is: [2]>[1] > [3]"]
)
def test_rankings(text):
    """The format reads a ranking, best first, in the numbers that the judge was shown."""
    assert parse_output(text, "rank_gpt").ranking == (2, 1, 3)
    assert parse_output('{"ranking": [2, 1, 3]}', "json_ranking").ranking == (2, 1, 3)


@pytest.mark.slow
@each_row(("form", "text", "complaint"), UNREADABLE)
def test_unreadable(form, text, complaint):
    """A missing or ambiguous verdict is unreadable, and the complaint says why."""
    with pytest.raises(UnreadableOutput, match=complaint):
        parse_output(text, form)


@pytest.mark.parametrize("text", [None, 7, b"[[A]]", ["[[A]]"]])
def test_missing_output_is_unreadable(text):
    """A missing output is unreadable like any other."""
    with pytest.raises(UnreadableOutput, match="not text"):
        parse_output(text, "mt_bench_pair")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("arena", "did you mean 'arena_hard'"),
        ("", "unknown format"),
        ("arena_hard:x", "written 'arena_hard'"),
        ("arena_hard@1-10", "gives no scores"),
        ("label:yes", "yes/no"),
        ("json:", "json:KEY"),
        ("json:score@5-1", "low to high"),
        ("bare_number@1-", "not understood"),
        ("regex:(", "not a pattern"),
        ("regex:" + "a" * 1001, "1000"),
    ],
)
def test_unknown_format_is_rejected(spec, message):
    """The error names the format and the allowed ones."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        find_format(spec)


@each_row("form", OUTPUT_FORMATS.values(), ids=OUTPUT_FORMATS)
def test_every_format_reads_its_example(form):
    """Each example in the list of formats is readable and has the kind and scale that the list
    states.
    """
    reading = parse_output(form.example, form)
    assert {
        "pair": reading.winner,
        "score": reading.score,
        "ranking": reading.ranking,
        "label": reading.label,
    }[form.kind] is not None
    assert reading.scale == form.scale or form.name == "score_of"
    assert form.about
    assert parse_output(form.example, form.name) == reading


def test_custom_format():
    """A function that returns a reading is a format."""
    form = OutputFormat(
        "loud",
        "label",
        "capitals",
        "YES",
        lambda text, _: ParsedOutput(label=text.lower(), excerpt=text),
    )
    assert parse_output("<think>no</think>YES", form).label == "yes"


# --- hostile outputs
# ----------------------------------------------------------------------------

SPECS = [
    *OUTPUT_FORMATS,
    "score_of@1-10",
    "bare_number@0-100",
    "json:score@1-5",
    "label:yes/no",
    r"regex:(?i)score\D{0,5}(\d+)@1-10",
    r"regex:(?:[a-z]+ ?)+: ([AB])$",
]
SEEDS = [text for _, text, *_ in (*WINNERS, *SCORES, *LABELS, *UNREADABLE) if len(text) < 200] + [
    *(form.example for form in OUTPUT_FORMATS.values()),
    '{"score": 3, "winner": "A", "label": "pass", "ranking": [2, 1]}',
    "```json\n{'score': 3, 'winner': 'B',}\n```",
    "Score: 7/10\nRating: [[7]]\n[RESULT] 4\n[[A>B]]\n[2] > [1]\nOutput (a) is better.\nVerdict: yes",
]
BITS = [
    "7", "10", "/", "-", "−", ".", ",", "%", "[[", "]]", "[", "]", "{", "}", '"', "'", ":", "\\", "\n", "\r\n", "\t", " ", "\u00a0",
    "\u200b", "\u202e", "\x00", "\ud800", "²", "½", "٧", "७", "Ⅶ", "７", "\u0338", "⁄", "e5", "NaN", "Infinity", "null", "true",
    "Score:", "score", " out of ", " of ", " points", " stars", "[RESULT]", "[[A]]", "[[B>A]]", "A", "B", "Tie", "yes", "no", "<think>", "</think>", "```", "**",
    '{"score":', "Output (a) is better.", "> [1]", "is", "😀", "９" * 3, "1" * 20,
]  # fmt: skip


def mutate(rng):
    """Return a seed with characters cut, doubled, swapped or inserted, or two seeds joined."""
    text = rng.choice(SEEDS)
    for _ in range(rng.randint(1, 4)):
        at, to = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        how = rng.randrange(6)
        if how == 0:
            text = text[:at] + text[to:]
        elif how == 1:
            text = text[:to] + text[at:]
        elif how < 5:
            text = text[:at] + rng.choice(BITS) + text[at:]
        else:
            text = text[:at] + rng.choice(SEEDS) + text[to:]
    return text[:400]


def check(text, spec):
    """Assert that reading neither crashes nor invents a value; return whether the text was
    readable.
    """
    try:
        reading = parse_output(text, spec)
    except UnreadableOutput as complaint:
        assert str(complaint)
        return False
    assert (
        sum(
            each is not None
            for each in (reading.winner, reading.score, reading.ranking, reading.label)
        )
        == 1
    ), (text, spec)
    assert reading.excerpt, (text, spec)
    assert reading.ranking or reading.excerpt in text, (text, spec)
    if reading.score is not None:
        low, high = reading.scale
        digits = re.match(r"[0-9]+(\.[0-9]+)?", reading.excerpt)
        assert low <= reading.score <= high, (text, spec)
        assert 0 <= reading.normalised_score <= 1, (text, spec)
        assert float(digits[0]) == reading.score, (text, spec)
        alone = rf"(?<![\d.\-−]){re.escape(reading.excerpt)}(?!\d|\.\d)"
        assert spec.startswith("regex") or re.search(alone, text), (text, spec)
    if reading.ranking:
        assert [int(n) for n in re.findall("[0-9]+", reading.excerpt)] == list(reading.ranking), (
            text,
            spec,
        )
    return True


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_malformed_outputs(count):
    """Each format reads hundreds or thousands of malformed outputs."""
    rng = random.Random(20)
    readable = sum(check(mutate(rng), SPECS[n % len(SPECS)]) for n in range(count))
    assert 0 < readable < count


@pytest.mark.slow
def test_every_format_reads_the_same_outputs():
    """An output that is hostile to one format is tried on all."""
    rng = random.Random(21)
    for text in (mutate(rng) for _ in range(4000)):
        for spec in SPECS:
            check(text, spec)


@given(st.text(max_size=200), st.sampled_from(SPECS))
def test_any_text(text, spec):
    """Any Unicode text is read or unreadable."""
    check(text, spec)


DIGITS = st.from_regex("[0-9]{1,7}", fullmatch=True)


@given(st.sampled_from(["", "", "", "-", "+", "−", "~", ".", "٧"]), DIGITS, DIGITS)
@example("", "7", "10")
@example("", "999999", "999999")
@example("", "1000000", "1000000")
@example("", "0", "0")
@example("", "6", "5")
def test_score_is_read_as_written(before, score, most):
    """A number of up to six digits out of another that is no smaller is read as it is written, and
    nothing of any other text.
    """
    text = f"Score: {before}{score}/{most}"
    is_readable = not before and max(len(score), len(most)) <= 6 and 0 < int(most) >= int(score)
    assert check(text, "score_of") is is_readable
    if is_readable:
        reading = parse_output(text, "score_of")
        assert (reading.score, reading.scale, reading.excerpt) == (
            int(score),
            (0, int(most)),
            f"{score}/{most}",
        )


@pytest.mark.slow(but_each=10)
@pytest.mark.parametrize("spec", SPECS)
def test_long_outputs_take_bounded_time(spec):
    """200,000 characters of the worst case for the patterns take a bounded time."""
    for bit in [
        "Score: ",
        "7/10\n",
        "[[",
        "[1]>",
        "1",
        "{",
        '{"a": ',
        "<think>",
        "yes\n",
        "[RESULT] ",
        " ",
        "*",
        '"',
        "a ",
        "#",
    ]:
        start = time.process_time()
        check((bit * 200_000)[:200_000], spec)
        assert time.process_time() - start < 10
