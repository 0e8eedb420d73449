"""Verdicts for every judge, valid and malformed, and an oracle for what was read from them.

The oracle knows nothing of the reader. It turns the parsed value into a pattern in which numbers,
true, false, null and keys have one spelling only, and searches the answer for it. If the pattern is
missing, the reader invented something.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loose_verdicts import loosened, written

from redraft import Candidate, Judge
from redraft.graders.judging import checklist, ranking
from redraft.graders.judging.structured import UnreadableOutput, read_object
from redraft.graders.rubric import DEFAULT_RUBRIC
from redraft.protocols import Reply
from redraft.validation import rubric_induction as induction
from redraft.validation.recorded_formats import parse_output as read_recorded

JUDGE = Judge({"truth": "It is true.", "style": "It's clear; naïve readers follow."})
QUESTIONS = tuple(
    checklist.Question(text) for text in ("Is it short?", "Is it kind?", "Does it greet?")
)
SHOWN = [Candidate(n, f"answer {n}") for n in range(3)]
WORDS = [
    "short quote", "", "It says so in line 2.", "5 of 5", "naïve café", "日本語の引用", "50 %, or 0.5", "a, b and c", "x < 5", "(see [1])",
    "don't", "He said so: yes", "score 5", "😀", "x = 3; y = 4", "true", "tab\there", "two\nlines", "a/b", r"\frac{1}{2}", 'said "no" twice',
]  # fmt: skip
REASONS = [word for word in WORDS if word]


@dataclass(frozen=True)
class Schema:
    """A kind of verdict: `make` writes one, `read` parses an answer, and `claims` compares the
    parsed values with the JSON.
    """

    name: str
    make: Callable[[Any], Any]
    read: Callable[[str], Any]
    claims: Callable[[Any, Any], bool] = lambda made, data: True


def _criterion(rng, **verdict):
    return {"evidence": rng.choice(WORDS), "change": rng.choice(WORDS), **verdict}


# What a verdict says, found without the reader: a key is known by its letters and digits, and
# stands once.


class NoClaim(Exception):
    """The answer does not say one thing."""


def letters(text):
    return "".join(c for c in text.lower() if c.isalnum())


def said(data, *path, optional=False):
    """Return the one value under keys with these letters."""
    for name in path:
        found = (
            [value for key, value in data.items() if letters(key) == letters(name)]
            if isinstance(data, dict)
            else []
        )
        if optional and not found:
            return None
        if len(found) != 1:
            raise NoClaim(name, data)
        data = found[0]
    return data


def number(value):
    """Return a number that is written plainly, in quotes or not."""
    if isinstance(value, bool) or not re.fullmatch(
        r"\s*-?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?\s*", str(value)
    ):
        raise NoClaim(value)
    if isinstance(value, str) and "e" in value:
        raise NoClaim(value)
    return float(value)


def done(data):
    """Return what is said of `done`."""
    value = said(data, "done", optional=True)
    words = {"true": True, "false": False, "none": None}
    word = str(value).strip(" \t\r\n*`_:").lower()
    if word not in words or (isinstance(value, int) and not isinstance(value, bool)):
        raise NoClaim(value)
    return words[word]


def criterion(data, name):
    """Return the score that a judge's answer states for a criterion."""
    rows = said(data, "criteria", optional=True)
    if rows is None:
        rows = data
    if isinstance(rows, list):
        pairs = [
            (said(r, "name", optional=True) or said(r, "criterion", optional=True) or [*r][0], r)
            for r in rows
        ]
        rows = [
            row if len(row) > 1 else [*row.values()][0]
            for key, row in pairs
            if letters(key) == letters(name)
        ]
        if len(rows) != 1:
            raise NoClaim(name)
        row = rows[0]
    else:
        row = said(rows, name)
    return number(said(row, "score") if isinstance(row, dict) else row)


def _judge_claims(made, data):
    rows = {c.name: round(c.score * 5, 9) for c in made.criteria}
    return rows == {name: criterion(data, name) for name in rows} and made.done is done(data)


def _checklist_claims(made, data):
    worth = {1.0: "yes", 0.5: "partial", 0.0: "no"}
    rows = [said(data, f"q{n}") for n in (1, 2, 3)]
    answers = [said(row, "answer") if isinstance(row, dict) else row for row in rows]
    return [worth[c.score] for c in made.criteria] == [letters(answer) for answer in answers]


def _ranking_claims(*keys):
    def claims(made, data):
        return [n + 1 for n in made.ranking] == list(map(number, said(data, *keys))) and (
            made.done is None or made.done is done(data)
        )

    return claims


def _pair_claims(made, data):
    winner = letters(said(data, "winner"))
    return (
        (made.ranking == (1, 0)) == (winner == "second")
        and bool(made.ties) == (winner == "tie")
        and made.done is done(data)
    )


def _own_pair_claims(made, data):
    winner = letters(str(said(data, "verdict", "winner"))).removesuffix("0")
    words = {"second": ("second", "b", "2"), "tie": ("tie",), "first": ("first", "a", "1")}
    return winner in words["tie" if made.ties else "second" if made.ranking == (1, 0) else "first"]


def _score_claims(made, data):
    return made.score == data["score"]


OWN = Judge(template="{response}", scale=(1, 10), read={"score": "score", "reason": "reason"})
OWN_DECIMALS = Judge(
    template="{response}",
    scale=(0.0, 1.0),
    read={"score": "verdict.score", "actions": "todo", "done": "done"},
)
OWN_CRITERIA = Judge({"truth": "It is true."}, scale=(-2, 2))
PAIR_FORM = (("winner", "verdict.winner"), ("reason", "why"))
LIST_FORM = (("ranking", "order"), ("ties", "equal"), ("done", "done"))


def _scale_claims(scale, find):
    """Whether a score is the written number, which is on the scale, at its place between the
    ends.
    """

    def claims(made, data):
        written = find(data)
        low, high = scale
        return low <= written <= high and made.score == (written - low) / (high - low)

    return claims


SCHEMAS = [
    Schema(
        "own scale",
        lambda rng: {"reason": rng.choice(REASONS), "score": rng.randint(1, 10)},
        lambda text: OWN.parse_reply(Reply(text)),
        _scale_claims((1, 10), lambda data: number(said(data, "score"))),
    ),
    Schema(
        "own decimals",
        lambda rng: {
            "verdict": {"note": rng.choice(WORDS), "score": rng.choice([0, 1, 0.5, 0.25, 0.9])},
            "todo": [rng.choice(WORDS)],
            "done": rng.random() < 0.5,
        },
        lambda text: OWN_DECIMALS.parse_reply(Reply(text)),
        lambda made, data: (
            _scale_claims((0, 1), lambda data: number(said(data, "verdict", "score")))(made, data)
            and made.done is done(data)
        ),
    ),
    Schema(
        "criteria on a scale",
        lambda rng: {
            "reason": rng.choice(REASONS),
            "criteria": {"truth": _criterion(rng, score=rng.randint(-2, 2))},
            "done": rng.random() < 0.5,
        },
        lambda text: OWN_CRITERIA.parse_reply(Reply(text)),
        _scale_claims((-2, 2), lambda data: criterion(data, "truth")),
    ),
    Schema(
        "own pair",
        lambda rng: {
            "why": rng.choice(REASONS),
            "verdict": {"winner": rng.choice(["A", "B", "tie"])},
        },
        lambda text: ranking.parse_pair_reply(Reply(text), PAIR_FORM, *SHOWN[:2]),
        _own_pair_claims,
    ),
    Schema(
        "own ranking",
        lambda rng: {"order": rng.sample([1, 2, 3], 3), "equal": [], "done": rng.random() < 0.5},
        lambda text: ranking.parse_ranking(Reply(text), LIST_FORM, SHOWN),
        _ranking_claims("order"),
    ),
    Schema(
        "judge",
        lambda rng: {
            "reason": rng.choice(REASONS),
            "criteria": {
                name: _criterion(rng, score=rng.randint(0, 5)) for name in ("truth", "style")
            },
            "done": rng.random() < 0.5,
        },
        lambda text: JUDGE.parse_reply(Reply(text)),
        _judge_claims,
    ),
    Schema(
        "checklist",
        lambda rng: (
            {"reason": rng.choice(REASONS)}
            | {
                f"q{n}": _criterion(rng, answer=rng.choice(["yes", "partial", "no"]))
                for n in (1, 2, 3)
            }
        ),
        lambda text: checklist.parse_answers(Reply(text), QUESTIONS),
        _checklist_claims,
    ),
    Schema(
        "ranker",
        lambda rng: {
            "reason": rng.choice(REASONS),
            "change": rng.sample(WORDS, 2),
            "ranking": rng.sample([1, 2, 3], 3),
            "ties": [],
            "done": rng.random() < 0.5,
        },
        lambda text: ranking.parse_ranking(Reply(text), ranking.RANKING_PATHS, SHOWN),
        _ranking_claims("ranking"),
    ),
    Schema(
        "pairwise",
        lambda rng: {
            "reason": rng.choice(REASONS),
            "change": [rng.choice(WORDS)],
            "winner": rng.choice(ranking.WINNERS),
            "done": rng.random() < 0.5,
        },
        lambda text: ranking.parse_pair_reply(Reply(text), None, *SHOWN[:2]),
        _pair_claims,
    ),
    Schema(
        "induction",
        lambda rng: {
            "criteria": [
                {
                    "name": f"c{n}",
                    "description": rng.choice(WORDS) + ".",
                    "weight": rng.randint(1, 3),
                }
                for n in (1, 2)
            ]
        },
        lambda text: induction.parse_rubric(Reply(text), DEFAULT_RUBRIC),
        lambda made, data: (
            [c.weight for c in made.criteria] == [row.get("weight", 1) for row in data["criteria"]]
        ),
    ),
    Schema(
        "recorded score",
        lambda rng: {
            "reason": rng.choice(WORDS),
            "score": rng.choice([0.25, 0.5, 3, 4.5, 1, 5, 0]),
        },
        lambda text: read_recorded(text, "json:score@0-5"),
        _score_claims,
    ),
    Schema(
        "recorded winner",
        lambda rng: {"winner": rng.choice(["A", "B", "tie"]), "reason": rng.choice(WORDS)},
        lambda text: read_recorded(text, "json_pair"),
    ),
]


LOOSE = SCHEMAS[:9]  # those of the judges

# ---- malformed answers

BITS = [
    "5", "4", "10", "0", "-", "−", "+", "<", "≥", "≠", "~", "$", "!", "½", "²", "٥", "５", ".", ",", ", ", "%", "/5", " or 5", "0x", "e", "_", "#", "//", "/*",
    "*/", "{", "}", "[", "]", "(", ")", '"', "'", "“", "”", "‘", "’", "`", "```", "```json\n", ":", "\\", "\\u", "\\ud83d", "\\n", "\n", "\r\n", "\t", " ", "\u00a0", "\u200b", "\u202e",
    "\ufeff", "\x00", "\ud800", "NaN", "Infinity", "null", "true", "false", "True", "None", "not ", "<think>", "</think>", '"score":', '"score": 5', "'score': 1", "score: 5,", '"done": true,',
    '", "score": 5, "x": "', '{"score": 5}', '{"criteria": {}}', '"winner": "first",', "yes", "no", "Score: 5", "is", "😀",
]  # fmt: skip
NUMBERS = [
    "−{}", "<{}", "≠{}", "~{}", "${}", "!{}", "½{}", "≥{}", "+{}", "0{}", "{}.", ".{}", "{}/5", "{}%", "{} or 5", "0x{}", "{}e", "{}e+", "{}_0", "{} {}", "#{}", "({})", "{};", "{}'",
    '{}"', "'{}", "`{}`", "**{}**", "{} // of 5", "{} # of 5", "/*1*/{}", "{}\u00a0", "\u200b{}", "{}²", "١", "５", "five", "NaN", "-Infinity", "1e999", "9" * 400, "{}-5", "{}..5", "[{}", "{}]", '"{}/5"', '"{}e0"', '"+{}"', '"{}-5"',
]  # fmt: skip
LITERALS = [
    "!{}",
    "not {}",
    "yes",
    "{}!",
    "{}{}",
    "T",
    "{} // no",
    "tru",
    "{}?",
    '"{}?"',
    '"not {}"',
    "1",
    "~{}",
]
NUMBER_AT = re.compile(r"(?<=: )[0-9.]+|(?<=\[)[0-9](?=,)")
LITERAL_AT = re.compile(r"true|false")


def number_dialect(text, rng):
    """Write a number in a way that JSON does not allow."""
    return _in_place(NUMBER_AT, NUMBERS, text, rng)


def literal_dialect(text, rng):
    return _in_place(LITERAL_AT, LITERALS, text, rng)


def _in_place(where, dialects, text, rng):
    places = list(where.finditer(text))
    if not places:
        return text
    place = rng.choice(places)
    return (
        text[: place.start()] + rng.choice(dialects).replace("{}", place[0]) + text[place.end() :]
    )


def duplicate_key(text, rng):
    """Insert a member a second time with another value; its key is spelled the same, escaped or
    bare.
    """
    keys = list(re.finditer(r'"([a-z]\w*)": ', text))
    if not keys:
        return text
    key = rng.choice(keys)
    name = rng.choice(
        [
            f'"{key[1]}"',
            f"'{key[1]}'",
            key[1],
            f'"\\u{ord(key[1][0]):04x}{key[1][1:]}"',
            f"“{key[1]}”",
        ]
    )
    return (
        text[: key.start()]
        + f"{name}: {rng.choice(['5', '1', 'true', chr(34) + 'no' + chr(34)])}, "
        + text[key.start() :]
    )


def insert_piece(text, rng):
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice(BITS) + text[at:]


def cut(text, rng):
    at, to = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    return rng.choice([text[:to], text[:at] + text[to:], text[at:]])


def repeat_part(text, rng):
    at, to = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    return text[:to] + text[at:]


def swap_characters(text, rng):
    at = rng.randrange(max(1, len(text) - 1))
    return text[:at] + text[at : at + 2][::-1] + text[at + 2 :]


def change_quotes(text, rng):
    pair = rng.choice(["''", "“”", "‘’", '""', "``", "„“", "«»", '"”'])
    at = rng.random() if rng.random() < 0.5 else 0
    return re.sub(
        r'"([^"\\]*)"', lambda m: f"{pair[0]}{m[1]}{pair[1]}" if rng.random() >= at else m[0], text
    )


def embed(text, rng):
    """Put the text inside something else, or beside another verdict."""
    form = rng.choice(
        [
            "[{}]",
            '"{}"',
            "[{}, 5]",
            "{{{}}}",
            "print({})",
            'He said "{}".',
            "{} {}",
            "For example {}",
            "{}}}",
            "```json\n```json\n{}\n```\n```",
            "```\n{}\n```\n```\n{}\n```",
            "<think>{}",
            "{}</think>",
            "<think>{}</think>",
            "<think>{}</think>{}",
            '{{"answer": {}}}',
            "{}, 5",
            "x, {}",
            '"score": 5, {}',
            "{{score: 5}} {}",
            "‘{}’",
            "{}\n\nFinal: 5",
        ]
    )
    return (
        form.replace("{{", "\0")
        .replace("}}", "\1")
        .replace("{}", text)
        .replace("\0", "{")
        .replace("\1", "}")
    )


HOSTILE = [
    number_dialect,
    literal_dialect,
    duplicate_key,
    insert_piece,
    insert_piece,
    insert_piece,
    cut,
    repeat_part,
    swap_characters,
    change_quotes,
    embed,
]


def malformed_verdict(rng):
    """Return a schema and an answer to it with one to four changes; half of them have a form error
    first, a third are loose.
    """
    schema = rng.choice(SCHEMAS)
    verdict = schema.make(rng)
    if rng.random() < 0.3 and schema in LOOSE:
        text = written(loosened(verdict, rng)[0], rng)
    else:
        text = json.dumps(
            verdict, ensure_ascii=rng.random() < 0.2, indent=rng.choice([None, None, 2])
        )
    if rng.random() < 0.5:
        text = FORMS[rng.choice(list(FORMS))](text, rng)
    for _ in range(rng.randint(1, 4)):
        text = rng.choice(HOSTILE)(text, rng)
    return schema, text[:4000]


# ---- wrong in form only: numbers, words and keys are unchanged

TEXT_AT = re.compile(r'(?<=: ")([^"\\]*)(?="[,}\]])')


def _within_text(text, rng, piece):
    places = [
        m
        for m in TEXT_AT.finditer(text)
        if m[1] not in {"yes", "no", "partial", "first", "second", "tie", "A", "B", "c1", "c2"}
    ]
    if not places:
        return text
    at = rng.choice(places).end()
    return text[:at] + piece + text[at:]


def _without_a_comma(text, rng):
    commas = [m.start() for m in re.finditer(r',(?=\s*"\w+": )', text)]
    at = rng.choice(commas or [len(text)])
    return text[:at] + text[at + 1 :]


def _single(text, rng):
    return re.sub(
        r'"((?:[^"\\]|\\.)*)"',
        lambda m: "'" + m[1].replace('\\"', '"').replace("'", "\\'") + "'",
        text,
    )


FORMS = {
    "as it should be": lambda text, rng: text,
    "trailing comma": lambda text, rng: re.sub(r"(?=\s*\}$)", ",", text, count=1),
    "trailing commas": lambda text, rng: re.sub(r"(?<=[0-9\"])\}", ",}", text),
    "missing comma": _without_a_comma,
    "doubled comma": lambda text, rng: re.sub(r",(?=\s*\"\w+\": )", ",,", text, count=1),
    "single quotes": _single,
    "typographic quotes": lambda text, rng: (
        re.sub(r'"([^"\\”]*)"', r"“\1”", text) if "\\" not in text else text
    ),
    "typographic quotes, one pair": lambda text, rng: re.sub(
        r'"(\w+)"(?=: )', r"“\1”", text, count=1
    ),
    "json fence": lambda text, rng: f"```json\n{text}\n```",
    "fence": lambda text, rng: f"```\n{text}\n```",
    "fence and prose": lambda text, rng: (
        f"Here is my verdict:\n\n```json\n{text}\n```\n\nI hope that this helps!"
    ),
    "prose around": lambda text, rng: (
        f"Sure, I compared them (see 1. and 2.):\n{text}\nThat is all."
    ),
    "thinking first": lambda text, rng: f"<think>perhaps {{1}}, or 5?</think>\n{text}",
    "line break in a text": lambda text, rng: _within_text(text, rng, "\nand so on"),
    "quotes in a text": lambda text, rng: _within_text(text, rng, ' says "so" there'),
    "backslash in a text": lambda text, rng: _within_text(text, rng, r" \(x\)"),
}


# ---- the oracle

TAG = "(?:think(?:ing)?|thought|reasoning)>"
THOUGHT = re.compile(rf"<{TAG}.*?(?:</{TAG}|\Z)", re.IGNORECASE | re.DOTALL)
# the prompt may have begun the thought
BEGUN_BEFORE = re.compile(rf".*</{TAG}", re.IGNORECASE | re.DOTALL)
PLAIN = re.compile(
    r"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)(?=[\s,}\]/])"
)
WORD = re.compile(r"(true|false|null|none)(?=[\s,}\]/])", re.IGNORECASE)
COMMENT = re.compile(r"(?://|#).*|/\*[^*]*\*/")  # holds nothing that may be another verdict:
COMMENT_WITH_VALUES = re.compile(r"[0-9{}\[\]\"]")
PAIRS = {'"': '"', "'": "'", "“": "”", "‘": "’"}
ESCAPED = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    '"': '"',
    "'": "'",
    "/": "/",
    "\\": "\\",
}


class NotHere(Exception):
    """The value is not spelled at this place."""


def occurs_in(text, data):
    """Return whether the answer spells the parsed value as its one object, with every number, word
    and key unchanged.
    """
    for start in (at for at, c in enumerate(text) if c == "{"):
        try:
            end = _after(text, start, data)
        except NotHere:
            continue
        before = THOUGHT.sub("", BEGUN_BEFORE.sub("", text[:start]))
        if not re.search("[{}]", before + THOUGHT.sub("", text[end:])):
            return True
    return False


def _after(text, at, value):
    """Return where the spelling of `value` that begins at `at` ends."""
    at = _past(text, at, " \t\r\n")
    if isinstance(value, dict):
        at = _past(text, _after_this(text, at, "{"), " \t\r\n,")
        for key, item in value.items():
            colon = _past(text, _after_text(text, at, key), " \t\r\n")
            at = _past(text, _after(text, _after_this(text, colon, ":"), item), " \t\r\n,")
        return _after_this(text, at, "}")
    if isinstance(value, list):
        at = _after_this(text, at, "[")
        for item in value:
            at = _past(text, _after(text, at, item), " \t\r\n,")
        return _after_this(text, _past(text, at, " \t\r\n"), "]")
    if isinstance(value, str):
        return _after_text(text, at, value)
    if value is None or isinstance(value, bool):
        word = WORD.match(text, at)
        if (
            not word
            or word[0].lower()
            not in {None: ("null", "none"), True: ("true",), False: ("false",)}[value]
        ):
            raise NotHere
        return word.end()
    plain = PLAIN.match(text, at)
    if not plain or repr(json.loads(plain[0])) != repr(value):
        raise NotHere
    return plain.end()


def _past(text, at, skip):
    while text[at : at + 1] and text[at] in skip + "/#":
        if text[at] in skip:
            at += 1
        elif (comment := COMMENT.match(text, at)) and not COMMENT_WITH_VALUES.search(comment[0]):
            at = comment.end()
        else:
            return at
    return at


def _after_this(text, at, this):
    if not text.startswith(this, at):
        raise NotHere
    return at + len(this)


def _after_text(text, at, value):
    closing = PAIRS.get(text[at : at + 1])
    if closing is None:
        raise NotHere
    at += 1
    for unit in _units(value):
        at = _after_unit(text, at, unit)
    return _after_this(text, at, closing)


def _after_unit(text, at, unit):
    if text.startswith("\\", at):
        if text.startswith("u", at + 1) and re.fullmatch("[0-9a-fA-F]{4}", text[at + 2 : at + 6]):
            if chr(int(text[at + 2 : at + 6], 16)) != unit:
                raise NotHere
            return at + 6
        # the writer did not double it
        is_single = text[at + 1 : at + 2] in {"b", "f"} and text[at + 2 : at + 3].isalpha()
        if (item := ESCAPED.get(text[at + 1 : at + 2])) is not None and not is_single:
            if item != unit:
                raise NotHere
            return at + 2
    return _after_this(text, at, unit)


def _units(text):
    """Return the characters of a text, with those beyond 16 bits as two surrogates."""
    raw = text.encode("utf-16-be", "surrogatepass")
    return [raw[i : i + 2].decode("utf-16-be", "surrogatepass") for i in range(0, len(raw), 2)]


def examine(schema, text):
    """Return None for an unreadable answer, else whether everything in the parsed value occurs in
    the answer.
    """
    try:
        made = schema.read(text)
    except UnreadableOutput:
        return None
    data = read_object(text)
    try:
        return occurs_in("".join(_units(text)), data) and schema.claims(made, data)
    except NoClaim:
        return False


def without_texts(value):
    """Return a value without its texts, except texts that are verdicts: numbers, words and keys
    remain.
    """
    if isinstance(value, dict):
        return {
            key: item if key in {"answer", "winner", "name"} else without_texts(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [without_texts(item) for item in value]
    return "" if isinstance(value, str) else value


AROUND = [
    form
    for form in FORMS
    if form not in {"line break in a text", "quotes in a text", "backslash in a text"}
]


def valid_verdict(rng):
    """Return a schema, an answer in loose forms that can mean one thing only, the verdict, and what
    it says of `done`.
    """
    schema = rng.choice(LOOSE)
    verdict = schema.make(rng)
    loose, is_done = loosened(verdict, rng)
    return schema, FORMS[rng.choice(AROUND)](written(loose, rng), rng), verdict, is_done


def of_valid(rng):
    """Return the kind of a valid verdict, and whether it is read; None if it is read as another
    one.
    """
    schema, text, verdict, is_done = valid_verdict(rng)
    try:
        made = schema.read(text)
    except UnreadableOutput:
        return schema.name, False
    plain = schema.read(json.dumps(verdict))
    same = [
        getattr(made, key, None) == getattr(plain, key, None)
        for key in ("score", "ranking", "ties")
    ]
    scores = [(c.name, c.score) for c in getattr(made, "criteria", ())] == [
        (c.name, c.score) for c in getattr(plain, "criteria", ())
    ]
    right = all(same) and scores and (schema.name == "checklist" or made.done is is_done)
    return schema.name, True if right else None


def of_form(form, rng):
    """Return whether a verdict that is wrong in form only can be read, or None if it was read as
    another verdict.
    """
    schema = rng.choice(SCHEMAS)
    verdict = schema.make(rng)
    text = FORMS[form](json.dumps(verdict, ensure_ascii=False, indent=rng.choice([None, 2])), rng)
    try:
        schema.read(text)
        return True if without_texts(read_object(text)) == without_texts(verdict) else None
    except UnreadableOutput:
        return False


# ---- answers that are slow to read: the beginning, the repeated part and the end

WORST = {
    "a fence and line breaks": ("```\n", "\n", "x"),
    "fences": ("", "```\n", '{"a": 1}'),
    "braces": ("", "{", ""),
    "objects in objects": ("", '{"a":', ""),
    "lists in lists": ('{"a":', "[", ""),
    "objects": ('{"a": [', "{},", "]}"),
    "numbers and a comma": ('{"a": [', "1,", "]}"),
    "numbers and a stranger": ('{"a": [', "1 ,", "x]}"),
    "fractions": ('{"a": [', "0.125,", "x]}"),
    "words": ("{'a': [", "true,", "]}"),
    "commas": ("{'a': 1", ",", "}"),
    "members": ("{", "'a':1,", "}"),
    "texts": ('{"a": [', '"",', "]}"),
    "texts in single quotes": ('{"a": [', "'',", "]}"),
    "quotes in a text": ('{"a": "', '"', '"}'),
    "quotes and words in a text": ('{"a": "', 'x"y', '"}'),
    "quotes and spaces in a text": ("{'a': '", "' \"", "'}"),
    "keys in a text": ("{'a': '", "'x' y:", "'}"),
    "apostrophes": ("{'a': '", "a'b", "'}"),
    "backslashes": ("{'a': '", "\\", "'}"),
    "escapes": ("{'a': '", "\\d\\u12", "'}"),
    "escaped quotes": ('{"', '\\"', "' :1}"),
    "half pairs": ("{'a': '", "\\ud83d", "'}"),
    "a key without an end": ("{", "'", '"'),
    "digits": ('{"a": ', "9", "}"),
    "digits of a fraction": ('{"a": 0.', "9", "}"),
    "spaces": ("{'a'", " ", ":1}"),
    "line breaks in a text": ('{"a": "', "\n", '"x}'),
    "boxes": ("", r"\boxed{1}", ""),
    "refusals before": ("", "ich I can not, ", '{"a": 1}'),
    "prose before": ("", "bewerten es so ", '{"a": 1}'),
    "openings before": ("", "in the I am not ", '{"a": 1}'),
    "lines before": ("", "so\n", '{"a": 1}'),
    "courtesies after": ('{"a": 1}', "Thanks a lot. ", ""),
    "one courtesy after": ('{"a": 1}', "thanks ", "!"),
    "signs after": ('{"a": 1}', "<_ ", "x"),
    "exclamations before": ("", "! ", '{"a": 1}'),
    "thoughts": ("", "<think></think>", '{"a": 1}'),
    "thoughts without an end": ("", "<think>", ""),
    "ends of thoughts": ("", "</think>", '{"a": 1}'),
    "angles": ("", "<", '{"a": 1}'),
    "quotes": ("", '"', '{"a": 1}'),
    "comments": ('{"a": 1', " // x\n", "}"),
    "comments after quotes": ('{"a": "', '" // x\n', '"}'),
    "quotes in comments": ("{'a': '", "'// '\n", "'}"),
    "quotes in one comment": ("{'a': '", "'// ", "'}"),
    "quotes in comments in a list": ("{'a': ['", "'/*'*/", "']}"),
    "comments without an end": ("{'a': 1", "/*", "}"),
    "denials": ("", "I cannot grade higher ", '{"a": 1}'),
    "denials without an object": ("", "I can't rate it and ", '\n{"a": 1}'),
    "examples": ("", "example ", '{"a": 1}'),
    "verdicts": ("", "Score: 5/5 [[A]] [1] > [2] [RESULT] ", ""),
}


def hostile_answer(name, size):
    """Return a hostile answer of about `size` characters."""
    if name == "different keys":
        return "{" + ",".join(f"'k{n}':1" for n in range(size // 11)) + ",'k0':1}"
    start, again, end = WORST[name]
    return start + again * ((size - len(start) - len(end)) // len(again)) + end


NAMES = [*WORST, "different keys"]
