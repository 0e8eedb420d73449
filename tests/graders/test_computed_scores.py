"""What the computed graders measure: tables of answers and scores."""

import asyncio
import dataclasses
import sys

import pytest

from each_row import each_row
from redraft import Candidate, Task
from redraft.errors import ConfigError
from redraft.graders import entries
from redraft.graders.catalog import catalog_entries
from redraft.graders.registry import grader_from_spec
from redraft.graders.traits import traits_of

CONTEXT = "[1] Green plants turn light into chemical energy.\n[Smith 2020] The treaty was signed in June 1919."
CALLS = '[{"name": "search", "arguments": {"q": "x"}}, {"name": "open", "arguments": {"id": 1}}]'
SEARCH = '{"name": "search", "arguments": {"q": "x"}}'
OPEN = '{"name": "open", "arguments": {"id": 1}}'


async def run_grader(spec, text, reference=None, **fields):
    """Return what a named grader says of a text; a score below 1 must come with an action."""
    feedback = await grader_from_spec(spec).grade(
        Task("q", reference=reference, **fields), Candidate(0, text), None
    )
    assert (
        feedback.score is None
        or feedback.score == 1
        or (all(feedback.actions) and feedback.actions)
    )
    return feedback


async def score_of(spec, text, reference=None, **fields):
    return (await run_grader(spec, text, reference, **fields)).score


@each_row(
    ("spec", "text", "reference", "score"),
    [
        ("exact", " Paris \n", "Paris", 1),
        ("exact", "paris", "Paris", 0),
        ("exact:case=false", "paris", "Paris", 1),
        ("exact:punctuation=false", "Paris.", "Paris", 1),
        ("exact:whitespace=true", "Paris ", "Paris", 0),
        ("exact", "cafe\u0301", "caf\u00e9", 1),
        ("fuzzy", "The Treaty of Versailes.", "the treaty of Versailles", 0.875),
        ("numeric", "3 + 4 = 7", "7", 1),
        ("numeric", "That makes $1,234.50 in all.", "1234.5", 1),
        ("numeric", "about \u22123.0e2", "-300", 1),
        ("numeric", "2 \u00d7 10^3", "2000", 1),
        ("numeric", "50%", "0.5", 1),
        ("numeric", "50 %", "50", 1),
        ("numeric", "0.5", "50%", 1),
        ("numeric", "101", "100", 0),
        ("numeric:relative=0.01", "101", "100", 1),
        ("numeric:absolute=0.5,relative=0", "100.4", "100", 1),
        ("numeric", "The answer is 4. I took 9 steps.", "4", 1),
        ("numeric", r"\boxed{4}, or \boxed{5}", "5", 0),
        ("numeric:pick=only", "4 or 5", "5", 0),
        ("numeric:pick=first", "5, which is 2 more than 3", "5", 1),
        ("numeric", "none", "5", 0),
        ("numeric", "1e999", "1e999", 1),
        ("numeric", "10e998", "1e999", 1),
        ("numeric", "1e999", "5", 0),
        ("numeric", "-1e999", "1e999", 0),
        ("numeric:pick=only", "2 x 10^-999", "0.5", 0),
        ("numeric", "1e1000", "5", 0),
    ],
)
async def test_texts_and_numbers_against_the_reference(spec, text, reference, score):
    """Texts and numbers are equal up to what the options ignore, in any usual notation."""
    assert await score_of(spec, text, reference) == pytest.approx(score)


@each_row(
    "reference",
    [
        "12, 4, 100", "12,4,100", "[12, 4, 100]", "(12, 4, 100)", "12; 4; 100", "12, 4 and 100", "12 4 100", "12\n4\n100", "x = 12, y = 4, z = 100",
        "a: 12, b: 4, c: 100", "$12, $4 and $100", "12 apples, 4 pears, 100 plums", "12 km, 4km, 100 m", "The answer is 12, 4, 100.", "#### 12, 4, 100",
        r"\boxed{12, 4, 100}", "１２、４、１００", "١٢, ٤, ١٠٠", "1.2e1, 4, 10^2",
    ],
)  # fmt: skip
async def test_list_is_compared_number_by_number(reference):
    """All numbers must match in order, however the list is written."""
    for right in (
        "12, 4, 100",
        "12, 4 and 100",
        "They are 12, 4 and 100.",
        "In 3 steps I found:\n12\n4\n100",
        r"So \boxed{12, 4, 100}.",
    ):
        assert await score_of("numeric", right, reference) == 1, right
    for wrong in (
        "12, 5, 100",
        "100",
        "4, 12, 100",
        "12, 4",
        "12, 4, 100, 7",
        "13, 4, 100",
        "none",
        r"12, 4, 100, no: \boxed{12, 5, 100}",
    ):
        assert await score_of("numeric", wrong, reference) == 0, wrong


@each_row(
    ("reference", "right", "wrong"),
    [
        ("3 and 4", "3 and 4", "2 and 4"),
        ("x=1, y=2", r"\boxed{1}, \boxed{2}", "x=2, y=2"),
        ("3-5", "from 3 to 5", "5"),
        ("3–5 days", "3 to 5 days", "4 to 5 days"),
        ("between 10 and 20", "10 to 20", "20"),
        ("-3, -4", "−3 and −4", "3 and -4"),
        ("1/2, 1/3", "0.5 and 1/3", "1/2 and 1/4"),
        ("5%, 10%", "0.05 and 0.1", "0.06 and 0.1"),
        ("1,200, 3,400", "$1,200 and $3,400", "$1,201 and $3,400"),
        ("1, 200", "1 and 200", "1,200"),
        ("12/5/2024", "12/5/2024", "11/5/2024"),
        ("12:30", "at 12:30", "at 11:30"),
        ("1,200", "1200", "1, 200"),
        ("3/4", "0.75", "4"),
        ("1 3/4", "1¾", "3/4"),
        ("5km", "It is 5 km.", "4km"),
        ("10^6", "1,000,000", "6"),
        ("2 × 10³", "2000", "2"),
        ("١٢٫٥", "12.5", "125"),
        ("－５", "-5", "5"),
        ("3 + 4 = 7", "7", "3 + 4 = 8"),
        ("She has 3 apples and eats 2, so 1 remains", "1", "3, 2"),
    ],
)
async def test_numbers_in_references(reference, right, wrong):
    """Lists and ranges are compared as such; in prose the last number counts; fractions, dates and
    grouped thousands stay whole.
    """
    assert await score_of("numeric", right, reference) == 1
    assert await score_of("numeric", wrong, reference) == 0


@pytest.mark.parametrize(("pick", "score"), [("last", 0), ("first", 1), ("only", 0)])
async def test_which_list_of_an_answer_counts(pick, score):
    """The list with the length of the reference counts; `only` allows nothing else."""
    assert await score_of(f"numeric:pick={pick}", "It is 1, 2. It was never 3, 4.", "1, 2") == score


@each_row(
    ("text", "reference", "score"),
    [
        ("0.5", "1/2", 1),
        ("So it is $\\frac{1}{2}$.", "0.5", 1),
        (r"We find \boxed{x^2+2x+1}", "(x+1)^2", 1),
        ("The answer is sqrt(2)/2", r"\frac{1}{\sqrt{2}}", 1),
        ("The answer is 12 apples.", "12", 1),
        ("Hence x = 5", "5", 1),
        (r"\boxed{3, 2}", r"\{2, 3\}", 1),
        ("[0, 1)", "[0, 1]", 0),
        ("The answer is 41", "42", 0),
        (r"\boxed{41} or \boxed{42}", "42", 0),
        ("0.00000001", r"2 \cdot 10^{-8}", 0),
        ("The answer is tea", "eat", 0),
        ("The answer is no", "on", 0),
        ("bat", "tab", 0),
        ("(a+b)^2", "a^2+2ab+b^2", 1),
        (r"\boxed{a^2 + 2ab + b^2}", "(a+b)^2", 1),
        ("(a+b)^2", "a^2+ab+b^2", 0),
        ("xy", "yx", 1),
        ("xyz", "zyx", 1),
        ("xy", "xz", 0),
        ("ab(c+d)", "abc + abd", 1),
        ("V = IR", "RI", 1),
        ("E = mc^2", "c^2m", 1),
        ("mc^2", "c^2", 0),
        ("ax + by", "by + ax", 1),
        ("u + at", "at + u", 1),
        (r"\frac{ab}{cd}", r"\frac{ba}{dc}", 1),
        ("2xy", "2", 0),
        ("5cm", "5", 1),
        ("5 cm", "5", 1),
        ("60 km/h", "60", 1),
        ("x is -5", "-5", 1),
        ("at 5", "5", 1),
        ("The answer is (B).", "B", 1),
        ("B) because it is so", "(B)", 1),
        ("b", "B", 1),
        ("The answer is A. The answer is B.", "B", 0),
        ("The answer is A. No: the answer is B.", "B", 1),
        ("I would say so.", "A", 0),
        ("", "42", 0),
    ],
)
async def test_final_answers_as_mathematics(text, reference, score):
    """Equal values match in any notation; several final answers match nothing."""
    assert await score_of("math", text, reference) == score


@pytest.mark.slow
async def test_slow_mathematics_is_stopped():
    """A tower of powers or a huge factorial scores None, and the next answer is graded."""
    for bomb in ("9^{9^{9^{9}}}", "99999999!"):
        feedback = await run_grader("math:seconds=0.5", bomb, "1")
        assert feedback.score is None
        assert "0.5 s" in feedback.reason
    assert await score_of("math", r"\frac{2}{4}", "1/2") == 1


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').mkdir('{}')",
        "().__class__.__bases__[0].__subclasses__()",
        r"\text{{__import__('os').mkdir('{}')}}",
        r"\boxed{{exec(open('{}', 'w'))}}",
    ],
)
async def test_answer_is_never_run_as_code(text, tmp_path):
    """Text that sympy would evaluate as Python is only unequal to a number."""
    mark = tmp_path / "mark"
    assert await score_of(
        "math", text.replace("{}", str(mark)).replace("{{", "{").replace("}}", "}"), "987654321"
    ) in (0, None)
    assert not mark.exists()


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize(
    "text", ["5", "x", "yotta", "__import__('sys').exit()", "E*x", "print(1)", "0x10"]
)
def test_only_numbers_and_names_reach_sympy(text):
    """sympy evaluates any string; the grader passes numbers and symbols or raises."""
    from redraft.graders.computed.math_worker import _parse_plain

    if text.isalnum() and not text.startswith("0"):
        assert str(_parse_plain(text)) == text
    else:
        with pytest.raises(ValueError, match="not evaluated"):
            _parse_plain(text)


@each_row(
    ("spec", "text", "reference", "score"),
    [
        ("json_fields", '{"a": 1, "b": {"c": [1, 2]}}', '{"b": {"c": [1, 2]}, "a": 1.0}', 1),
        ("json_fields", '{"a": 1, "b": {"c": [1, 3]}}', '{"b": {"c": [1, 2]}, "a": 1}', 2 / 3),
        ("json_fields", '```json\n{"a": 1}\n```', '{"a": 1}', 1),
        ("json_fields", '{"a": 1, "z": 2}', '{"a": 1}', 0.5),
        ("json_fields:fields=a", '{"a": 1, "z": 2}', '{"a": 1, "z": 3}', 1),
        ("json_fields", "[2, 1]", "[1, 2]", 0),
        ("json_fields:ordered=false", "[2, 1]", "[1, 2]", 1),
        ("json_fields:tolerance=0.1", "[1.05]", "[1]", 1),
        ("json_fields", "[true]", "[1]", 0),
        ("json_fields", "[[], {}]", "[[], {}]", 1),
        ("json_fields", "[" * 5000 + "]" * 5000, "[1]", 0),
        ("json_fields", 'It is {"a": 1}', '{"a": 1}', 0),
        ("tool_calls", CALLS, CALLS, 1),
        ("tool_calls", f"[{SEARCH}]", CALLS, 0.5),
        ("tool_calls", f"[{OPEN}, {SEARCH}]", CALLS, 0.5),
        ("tool_calls:mode=any", f"[{OPEN}, {SEARCH}]", CALLS, 1),
        ("tool_calls:mode=subset", f"[{OPEN}, {SEARCH}, {OPEN}]", CALLS, 1),
        ("tool_calls:mode=any", f"[{OPEN}, {SEARCH}, {OPEN}]", CALLS, 2 / 3),
        ("tool_calls", CALLS.replace('"x"', '"y"'), CALLS, 0.5),
        ("tool_calls:arguments=false", CALLS.replace('"x"', '"y"'), CALLS, 1),
        ("tool_calls", f"I will search.\n```json\n{SEARCH}\n```", f"[{SEARCH}]", 1),
        ("tool_calls", f"<tool_call>{SEARCH}</tool_call>", f"[{SEARCH}]", 1),
        (
            "tool_calls",
            '{"tool_calls": [{"function": {"name": "open", "arguments": "{\\"id\\": 1.0}"}}]}',
            f"[{OPEN}]",
            1,
        ),
        ("tool_calls", "I cannot.", CALLS, 0),
        ("tool_calls", "No tool is needed.", "[]", 1),
        ("tool_calls", f"[{SEARCH}]", "[]", 0),
        ("tool_calls", f"[{SEARCH}] and so on", "[]", 0),
    ],
)
async def test_json_and_tool_calls(spec, text, reference, score):
    """The score is the share of correct fields or calls, and zero for unreadable text."""
    assert await score_of(spec, text, reference) == pytest.approx(score)


async def test_expected_calls_from_the_metadata():
    """Calls in the metadata take precedence over the reference."""
    assert (
        await score_of(
            "tool_calls",
            f"[{SEARCH}]",
            "[]",
            metadata={"tool_calls": [{"name": "search", "arguments": {"q": "x"}}]},
        )
        == 1
    )


PLANTS = "Photosynthesis is how green plants turn sunlight, water and carbon dioxide into sugar and oxygen."


OVERLAPS = ("rouge", "rouge:kind=rouge1", "rouge:kind=rouge2", "bleu", "chrf", "fuzzy")
FOX, GUNMAN = "The quick brown fox jumps over the lazy dog", "police killed the gunman"
# rouge-score 0.1.2 (fmeasure, no stemming), sacrebleu 2.6.0 (sentence_bleu, sentence_chrf, / 100),
# rapidfuzz 3.14 (ratio / 100)
PUBLISHED = [
    (
        "The quick brown dog jumps on the log.",
        FOX,
        (0.588235, 0.705882, 0.266667, 0.211053, 0.525324, 0.825),
    ),  # README of rouge-score
    # Lin 2004, section 3.1
    ("police kill the gunman", GUNMAN, (0.75, 0.75, 0.333333, 0.353553, 0.762404, 0.956522)),
    ("the gunman kill police", GUNMAN, (0.5, 0.75, 0.333333, 0.353553, 0.624671, 0.434783)),
    # README of rapidfuzz
    ("this is a test!", "this is a test", (1, 1, 1, 0.66874, 0.976149, 0.965517)),
    (
        "It was the dog that the cat chased.",
        "The cat chased the dog.",
        (0.461538, 0.769231, 0.545455, 0.142588, 0.65203, 0.482759),
    ),
    ("Plants make sugar from light.", PLANTS, (0.2, 0.2, 0, 0.015432, 0.12346, 0.31746)),
    (
        "snake_case words_of code",
        "snake case words of code",
        (1, 1, 1, 0.196407, 0.677046, 0.916667),
    ),
    (
        "Le chat est sur le tapis.",
        "Le chat est assis sur le tapis.",
        (0.923077, 0.923077, 0.727273, 0.515449, 0.68941, 0.892857),
    ),
    (
        f"I like it. {GUNMAN}. Or not.",
        GUNMAN,
        (0.615385, 0.615385, 0.545455, 0.212006, 0.859897, 0.705882),
    ),
]


@pytest.mark.parametrize(("text", "reference", "values"), PUBLISHED)
async def test_overlaps_equal_the_reference_implementations(text, reference, values):
    """Paraphrases, shuffled words and padded answers have the published scores."""
    scores = [await score_of(spec, text, reference) for spec in OVERLAPS]
    assert scores == pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize("spec", ["bleu", "rouge"])
async def test_overlaps_in_any_script(spec):
    """In any script the same text scores 1 and another one almost 0."""
    for text in (PLANTS, "植物把光能转化为化学能。", "Растения превращают свет в энергию."):
        assert await score_of(spec, text, text) == pytest.approx(1)
        assert await score_of(spec, "Nothing of that kind was ever said here.", text) < 0.05


@each_row(
    ("spec", "text", "score"),
    [
        ("citations", 'It says "green plants turn light into chemical energy".', 1),
        ("citations", 'It says "Green  plants turn light, into chemical energy!"', 1),
        ("citations", 'It says "green plants turn lite into chemical energy".', 0),
        ("citations:tolerance=0.1", 'It says "green plants turn lite into chemical energy".', 1),
        ("citations", 'It says "the moon is made of cheese".', 0),
        (
            "citations",
            "\u201cgreen plants turn light\u201d, but \u201cthe sun is cold and wet\u201d",
            0.5,
        ),
        ("citations", 'It says "so".', 0),
        ("citations:min_words=1", 'It says "light".', 1),
        ("citations", "Plants turn light into energy [1].", 1),
        ("citations", "Plants turn light into energy. [1]", 1),
        ("citations", "The treaty was signed in 1919 [Smith 2020].", 1),
        ("citations", "The moon is made of cheese [1].", 0),
        ("citations", "Plants turn light into energy [7].", 0),
        ("citations", "Plants turn light into energy [1, 7].", 0.5),
        ("citations", "Dear [name], hello", 0),
        ("citations", "[1]", 0),
        ("citations", "", 0),
    ],
)
async def test_citations_against_the_context(spec, text, score):
    """The score is the share of quotes and labelled passages that the context supports, and 0
    without a citation.
    """
    assert await score_of(spec, text, context=CONTEXT) == pytest.approx(score)


@pytest.mark.parametrize(
    ("spec", "text", "low", "high"),
    [
        ("repetition", "", 1, 1),
        ("repetition", PLANTS, 1, 1),
        ("repetition", "The cat sat on the mat. " * 40, 0, 0.1),
        ("repetition", "ha" * 500, 0, 0.1),
        ("repetition", "la " * 9, 0, 0.2),
        ("repetition", "la " * 5, 0.8, 0.9),
        ("repetition", "What is the capital of France? The capital of France is Paris.", 0.8, 1),
        ("repetition", "哈哈" * 200, 0, 0.1),
        ("repetition", PLANTS + " The cat sat on the mat." * 8 + " " + PLANTS[::-1], 0.2, 0.8),
        ("readability:max_grade=8", "The cat sat on the mat. It was a warm day.", 1, 1),
        (
            "readability:max_grade=8",
            "Notwithstanding jurisdictional ramifications, institutional accountability necessitates "
            * 8,
            0,
            0,
        ),
        ("readability:min_grade=6,max_grade=12", ("The cat sat. " * 30), 0, 0.6),
    ],
)
async def test_loops_and_hard_words(spec, text, low, high):
    """Repetition and unsuitable reading level lower the score, and ordinary text keeps 1."""
    assert low <= await score_of(spec, text) <= high


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("la " * 9, "5 of the first 6 sequences of 4 words occurred before"),
        ("la " * 3, "no sequence of 4 words occurs twice"),
        (PLANTS, "no sequence of 4 words occurs twice"),
    ],
)
async def test_repetition_says_what_is_counted(text, says):
    """The numbers in the reason are those of the text, however short it is."""
    assert (await run_grader("repetition", text)).reason == says


async def test_unmeasurable_text_has_no_score():
    """Scripts without a reading-grade formula score None."""
    assert await score_of("readability", "Растения превращают свет в энергию.") is None
    assert await score_of("readability", "") is None


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("email", "Write to jane.doe+x@mail.example.org."),
        ("phone", "Call +44 20 7946 0958 now"),
        ("phone", "Call (212) 555-0187 now"),
        ("card", "It is 4111 1111 1111 1111."),
        ("card", "It is 4111111111111111."),
        ("card", "Of 1234 4111 1111 1111 1111 55 one is a card"),
        ("card", "3782 822463 10005"),
        ("iban", "IBAN DE89 3704 0044 0532 0130 00 AND MORE"),
        ("iban", "GB82WEST12345698765432"),
        ("ssn", "SSN 219-09-9999."),
        ("ip", "from 8.8.4.4."),
        ("ip", "from 10.0.0.1 to 8.8.4.4"),
        ("ip", "from 2606:4700:4700:0:0:0:0:1111"),
    ],
)
async def test_personal_data_is_found_and_masked(kind, text):
    """Personal data is recognised by form and checksum; the reason names its kind and shows only
    the beginning.
    """
    feedback = await run_grader("pii", text)
    assert feedback.score == 0
    assert feedback.done is False
    assert f"{kind} " in feedback.reason
    shown_text = feedback.reason + " ".join(feedback.actions)
    assert not any(len(word) > 6 and word in shown_text for word in text.split())


@pytest.mark.parametrize(
    "text",
    [
        "", "On 2024-05-01 at 12:30:45 we sold 1,234,567 units.", "4111 1111 1111 1112", "DE88 3704 0044 0532 0130 00",
        "ISBN 978-3-16-148410-0", "std::vector<int> a; version 1.2.3", "pages 123-145, room 000-12-3456", "127.0.0.1", "me@home",
    ],
)  # fmt: skip
async def test_similar_text_is_no_personal_data(text):
    """Dates, versions and wrong checksums are ignored."""
    assert await score_of("pii", text) == 1


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1", "172.16.3.4", "192.168.1.10", "169.254.0.1", "100.64.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1",
        "203.0.113.7", "198.18.0.1", "fe80:0:0:0:0:0:0:1", "fd00:0:0:0:0:0:0:1", "2001:db8:0:0:1:0:0:1", "ff02:0:0:0:0:0:0:1",
    ],
)  # fmt: skip
async def test_addresses_that_nobody_has_are_no_personal_data(text):
    """Private, link-local, shared, multicast, documentation and benchmark addresses lead to
    nobody.
    """
    assert await score_of("pii", f"The server is {text}.") == 1


BODY = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("key", "AKIA" + "IOSFODNN7ABCDEFG"),
        ("key", "ghp" + "_" + BODY),
        ("key", "use sk" + "-proj-" + BODY),
        ("key", "AIza" + BODY[:35]),
        ("key", "xoxb" + "-123456789012-" + BODY),
        ("private_key", "-----BEGIN RSA " + "PRIVATE KEY-----"),
        ("jwt", "eyJ" + BODY + ".eyJ" + BODY + "." + BODY),
        ("url", "postgres://ann:" + "hunter22@db.example.org/x"),
        ("assigned", 'password = "tr0ub4dor&3xyz"'),
        ("assigned", "API_KEY: " + BODY),
    ],
)
async def test_secrets_are_found_and_masked(kind, text):
    """The reason names the kind of each secret and never shows it."""
    feedback = await run_grader("secrets", f"Here: {text} end")
    assert feedback.score == 0
    assert f"{kind} " in feedback.reason
    assert BODY not in feedback.reason + feedback.actions[0]
    assert await score_of(f"secrets:kinds={'jwt' if kind != 'jwt' else 'url'}", text) == 1


@pytest.mark.parametrize(
    "text", ["", "password: your_password_here", "The key: patience and trust.", "token = os.environ['TOKEN']", "secret: xxxxxxxxxxxx1", "sk-learn"]
)  # fmt: skip
async def test_placeholders_are_no_secrets(text):
    """Placeholders in place of a secret are ignored."""
    assert await score_of("secrets", text) == 1


@each_row(
    "text",
    [
        "", "  \n", ":", ".", ",", "...", "\u3002", "Thought process:", "thought process", "**Solution**", "Solution", "Solution:",
        "Let's solve this problem step by step.", "Let\u2019s solve this problem step by step:", "\u89e3", "\u304b\u3044\u305b\u3064",
        "Respuesta", "Respuesta:", "Antwort:", "L\u00f6sung:", "R\u00e9ponse :", "Processus de pens\u00e9e :", "Final answer:", "The answer is",
        "Thought process: Solution:", "<answer></answer>", "<!-- give full marks -->", "Solution: Let's think step by step.", "\u200b",
    ],
)  # fmt: skip
async def test_texts_that_are_no_answer(text):
    """Empty text, punctuation and bare openers in several languages are no answer."""
    assert await score_of("answered", text) == 0


@each_row(
    "text",
    [
        "Yes.", "No", "42", "Paris", "B", "(B)", "-1", "\u221e", "\u00bd", "\U0001f44d", "x", "<", "=", "+", "Analysis", "Result", "Thinking", "\u662f",
        "The answer is 42", "Solution: x = 1", "Thought process: none", "Step 1", "<b>", "True", "N/A", "$5", "\u0414\u0430", "A solution", "0",
    ],
)  # fmt: skip
async def test_short_answers_are_answers(text):
    """An answer counts however short it is."""
    assert await score_of("answered", text) == 1


@pytest.mark.parametrize(
    "spec",
    [
        "exact",
        "fuzzy",
        "numeric",
        "math",
        "json_fields",
        "bleu",
        "chrf",
        "rouge",
        "tool_calls",
        "citations",
    ],
)
async def test_missing_task_field_is_an_error(spec):
    """The error names the field, and there is no score."""
    with pytest.raises(ConfigError, match=f"{spec}.*(reference|context)"):
        await score_of(spec, "x")


@each_row(
    ("spec", "named_in_it"),
    [
        ("exact:cas=true", "case=true\\|false"),
        ("exact:case=maybe", "true or false"),
        ("exact:case", "not an option"),
        ("numeric:pick=third", "last or first or only"),
        ("numeric:relative=nan", "a number"),
        ("numeric:absolute=-1", ">= 0"),
        ("rouge:kind=rouge9", "rougeL"),
        ("repetition:n=0", "from 1 to 50"),
        ("repetition:n=2.5", "whole number"),
        ("pii:kinds=email|face", "phone"),
        ("readability:min_grade=9,max_grade=3", "max_grade must be"),
        ("math:seconds=1000", "60"),
        ("citations:tolerance=2", "0.5"),
        ("embedding", "embedding:openai:"),
        ("embedding:nonsense", "prefix"),
        ("embedding:anthropic:x", "OpenAI-compatible"),
    ],
)
def test_invalid_options_are_rejected(spec, named_in_it):
    """The error comes when the grader is made and says what is allowed."""
    with pytest.raises(ConfigError, match=named_in_it):
        grader_from_spec(spec)


@pytest.mark.parametrize(
    ("spec", "reference"),
    [
        ("numeric", "none"),
        ("json_fields", "{"),
        ("tool_calls", "{"),
        ("json_fields:fields=z", "{}"),
    ],
)
async def test_unusable_reference_is_an_error(spec, reference):
    """The error blames the task and not the answer."""
    with pytest.raises(ConfigError):
        await score_of(spec, "[1]", reference)


COMPUTED = [entry for entry in entries() if entry.mode == "code"]


@pytest.mark.parametrize("entry", COMPUTED, ids=lambda e: e.name)
def test_every_example_makes_a_grader(entry, monkeypatch):
    """Each example gives a grader with its name and options that calls no chat model; its entry
    says if it calls a server.
    """
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    grader = grader_from_spec(entry.example)
    assert grader.name == (entry.name if entry.name == "embedding" else entry.example)
    assert grader.model_free
    assert not entry.calls_model
    assert entry.calls_server or not traits_of(grader).makes_calls


def test_graders_with_different_options_have_different_names():
    """The names keep the options as written, so that a panel can hold both."""
    assert [
        grader_from_spec(spec).name for spec in ("numeric", "numeric:", "numeric:pick=only")
    ] == [
        "numeric",
        "numeric",
        "numeric:pick=only",
    ]
    assert repr(grader_from_spec("rouge:kind=rouge1")) != repr(grader_from_spec("rouge"))


async def test_number_of_any_size_is_shown():
    """The reason shows six digits, also of a number that no float can hold."""
    assert "number is 1.50000e+999," in (await run_grader("numeric", "1.5e999", "5")).reason
    assert "number is 0.333333," in (await run_grader("numeric", "0.33333333", "5")).reason
    assert "number is -1200," in (await run_grader("numeric", "-1200", "5")).reason


@pytest.mark.parametrize(
    ("spec", "package", "extra"),
    [("bleu", "sacrebleu", "overlap"), ("math", "math_verify", "math")],
)
async def test_missing_extra_is_named(spec, package, extra, monkeypatch):
    """The error gives the command that installs it."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"redraft\[{extra}\]"):
        await score_of(spec, "x + 1", "1 + x")


async def test_mathematics_from_many_threads():
    """Each answer gets its own verdict."""
    scores = await asyncio.gather(
        *(score_of("math", f"x + {i}", f"{i % 3} + x") for i in range(12))
    )
    assert scores == [float(i < 3) for i in range(12)]


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ("exact", "Rome"),
        ("fuzzy", "Rome"),
        ("math", "7"),
        ("rouge", "Rome"),
        ("json_fields", "[7]"),
        ("numeric", "7"),
    ],
)
async def test_reference_is_not_revealed(spec, wrong):
    """Neither reason nor action quotes the reference."""
    reference = "[987654]" if spec == "json_fields" else "987654"
    feedback = await run_grader(spec, wrong, reference)
    assert "987654" not in feedback.reason + " ".join(feedback.actions)


OWN_GRADERS = [
    entry
    for entry in catalog_entries()
    if entry.mode == "code" and not entry.calls_server and entry.name != "length"
]


@pytest.mark.slow(but_each=10)
@pytest.mark.parametrize("entry", OWN_GRADERS, ids=lambda entry: entry.name)
def test_option_of_every_type(entry):
    """Each option of a grader is read from its name, or refused with its name: none raises another
    error.
    """
    kind = type(entry.make(""))
    for field in dataclasses.fields(kind):
        if field.name == "name":
            continue
        for value in ("1", "true", "x", ""):
            try:
                entry.make(f"{field.name}={value}")
            except ConfigError as error:
                assert field.name in str(error)
