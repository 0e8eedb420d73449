"""Prompts that a server cuts without an error: what it reports tells, and no text raises a false
alarm.
"""

import base64
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redraft
from redraft.errors import ContextLengthError, GradingError
from redraft.middleware import prompt_cuts
from redraft.middleware.prompt_cuts import is_cut, sent_texts
from redraft.models import Chat
from redraft.protocols import Request

from . import fault_server as fs

LONG = "Summarise the text.\n" + "word " * 20_000
PROSE = "The server reads as many tokens as its window has room for, and nobody is told that the rest of the text is gone. "
CHINESE = "机器学习是人工智能的一个分支，它使计算机能够从数据中学习。"
WINDOWS = (2048, 4096, 8192)

rng = random.Random(1)
TEXTS = {  # usual texts, and the worst repetitions of what has a token of its own
    "prose": PROSE * 900,
    "Chinese": CHINESE * 1200,
    "Thai": "กรุณาสรุปข้อความต่อไปนี้วันนี้อากาศดีมาก" * 700,
    "Russian": "Машинное обучение является разделом искусственного интеллекта. " * 800,
    "Finnish": "järjestelmällistyttämättömyydellänsäkäänköhän " * 1500,
    "one word": "word " * 20_000,
    "one letter": "a " * 20_000,
    "one number": "1 " * 20_000,
    "a phrase": "by the way in order to " * 4000,
    "a table": "| --- | --- | --- |\n" * 4000,
    "a log": "2026-01-01 00:00:00 INFO server started\n" * 2000,
    "code": "def add(a, b):\n    return a + b\n\n\n" * 2000,
    "comments": "}\n\n// a\n;\n//\n" * 5000,
    "nothing but comments": ".\n//\n" * 15_000,
    "JSON": json.dumps(
        [{"id": n, "name": "x", "value": n / 7} for n in range(2500)], separators=(",", ":")
    ),
    "indented JSON": json.dumps([{"id": n, "name": "x"} for n in range(2500)], indent=8),
    "base64": base64.b64encode(rng.randbytes(60_000)).decode(),
    "hex": rng.randbytes(40_000).hex(),
    "emoji": "😀 👍🏽 🎉 " * 5000,
    "punctuation": ". . . , , ; ; " * 5000,
    "a long name": "translatesAutoresizingMaskIntoConstraints " * 2000,
    "a long name without spaces": ".translatesAutoresizingMaskIntoConstraints" * 2000,
    "a long Thai word": "เปิดอภิปรายทั่วไป" * 2000,
    "a long Chinese slogan": "习近平新时代中国特色社会主义思想" * 2000,
    "boxes": "─────────┬────────┐\n" * 3000,
    **{
        f"runs of {char!r}": char * 100_000 for char in (" ", "\n", "\t", "a", "=", "-", "的", "😀")
    },
    "deep indents": (" " * 400 + "x\n") * 1000,
    "end marks": "<|im_end|>" * 4000,
}


@pytest.fixture(scope="module", params=["cl100k", "o200k"])
def count(request):
    """The number of tokens of a text, by a real tokenizer."""
    from bpe_openai import get_encoding

    encode = get_encoding(f"{request.param}_base").encode
    return lambda text: len(encode(text))


@pytest.mark.slow(but_each=18)
@pytest.mark.parametrize("name", TEXTS)
def test_no_text_is_taken_for_cut(count, name):
    """Whole, and at every length whose count is that of a window."""
    text = TEXTS[name]
    total = count(text)
    assert not is_cut(text, total)
    if name == "nothing but comments":  # two words a token: at a window it looks cut
        return
    for window in WINDOWS:
        part = text[: len(text) * window // total]
        for tokens in {count(part), window}:
            assert not is_cut(part, tokens)


@settings(max_examples=4 * settings.default.max_examples)
@given(
    st.lists(
        st.sampled_from([*"aZ1 \n\t.,/;{}|_-=的ä😀\u0301", "word ", "// ", "\r\n"]),
        min_size=1,
        max_size=8,
    ),
    st.integers(20, 3000),
)
def test_no_repetition_is_taken_for_cut(count, parts, times):
    """Whatever is repeated, the tokenizer's own count is believed."""
    text = "".join(parts) * times
    assert not is_cut(text, count(text)) or set(text) <= set(".,/;{}|_-=\r\n\t ")  # (at a window)


CUT = {
    "one word": LONG,
    "prose": PROSE * 900,
    "Chinese": "".join(chr(rng.randrange(0x4E00, 0x5600)) for _ in range(33_000)),
    "JSON": json.dumps(
        [{"id": n, "value": rng.random()} for n in range(4000)], separators=(",", ":")
    ),
    "base64": base64.b64encode(rng.randbytes(75_000)).decode(),
}


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("tokens", [2048, 2051, 2044, 4096, 4098])
def test_a_cut_text_is_noticed(name, tokens):
    """What is left is a window of two or four thousand tokens."""
    assert is_cut(CUT[name], tokens)


@pytest.mark.parametrize("tokens", [130, 1500, 3000, 5000, 9000])
def test_a_count_that_no_text_has_needs_no_window(tokens):
    """As when a server leaves out whole messages; a very low count is no count of the prompt."""
    assert is_cut(LONG, tokens)
    for other in (0, 1, 7, 127):
        assert not is_cut(LONG, other)


def test_only_what_every_template_sends_counts():
    """Reasoning of earlier turns, results of tools and images may be left out or counted
    otherwise.
    """
    thought = {"role": "assistant", "content": f"<think>{LONG}</think>yes"}
    tool = {"role": "tool", "content": LONG, "tool_call_id": "1"}
    image = {
        "role": "user",
        "content": [
            {"type": "text", "text": "see"},
            {"type": "image_url", "image_url": {"url": "data:" + "A" * 10**6}},
        ],
    }
    assert sent_texts(Request((thought, tool, image))) == "yes\nsee"


# ---- through the faces


@pytest.fixture(autouse=True)
def _nothing_said_before(monkeypatch):
    """A warning comes once in a process."""
    monkeypatch.setattr(prompt_cuts, "_warned_of", set())


ANSWER = "The text breaks off."
VERDICT = '{"reason": "It is so.", "criteria": {"truth": {"evidence": "e", "change": "c", "score": 4}}, "done": false}'
CUT_WORDS = r"the server cut the prompt: it read 2,051 tokens of a prompt of 100,0\d\d bytes"


def reply(text=ANSWER, tokens=2051, **usage):
    """Return a reply that reports so many tokens of the prompt."""
    return fs.http(
        fs.completion(text) | {"usage": {"prompt_tokens": tokens, "completion_tokens": 3, **usage}}
    )


def streamed(text=ANSWER, tokens=2051, **usage):
    counted = {"choices": [], "usage": {"prompt_tokens": tokens, "completion_tokens": 3, **usage}}
    return fs.send_and_close(fs.sse(fs.chunk(text), fs.chunk(finish="stop"), counted))


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_answer_to_a_cut_prompt_has_a_note_and_a_warning(faults, is_stream):
    """One warning for a model, which says what to do; the note is in the summary."""
    faults.says((streamed if is_stream else reply)())
    with pytest.warns(UserWarning, match=f"{CUT_WORDS}.*num_ctx") as caught:
        result = await redraft.refine(
            LONG, Chat("m", faults.url, stream=is_stream), "words:1-50", drafts=3, max_iterations=0
        )
    assert [str(each.message).partition(";")[0] for each in caught] == [
        f"{faults.url} (model m): the server cut the prompt: it read 2,051 tokens of a prompt of 100,020 bytes"
    ]
    assert all(
        "the server cut the prompt" in candidate.note for candidate in result.trace.candidates
    )
    assert "the server cut the prompt" in result.summary()
    assert (result.value, result.score) == (ANSWER, 1.0)


async def test_the_grade_of_a_judge_that_did_not_see_all_is_unknown(faults):
    """The answer comes back without a score, and the note says why; `grade` raises. Its tokens are
    counted.
    """
    judge = redraft.Judge({"truth": "It is true."})
    faults.says(reply(VERDICT))
    # a judge is shown no more
    with pytest.warns(UserWarning, match=r"it read 2,051 tokens of a prompt of 33,\d{3} bytes"):
        result = await redraft.refine(
            "q", redraft.ScriptedModel([LONG]), judge, Chat("m", faults.url), max_iterations=0
        )
    assert (result.value.strip(), result.score) == (LONG.strip(), None)
    assert "the server cut the prompt" in result.stop_note
    assert len(faults.requests) == 1
    with pytest.raises(GradingError, match="has not seen all of the question") as caught:
        await redraft.grade(("q", LONG), judge, Chat("m", faults.url))
    assert isinstance(caught.value.__cause__, ContextLengthError)
    assert caught.value.usage.input_tokens == 2051


async def test_one_warning_for_an_endpoint_and_a_model(faults):
    """Whatever runs there are in the process."""
    faults.says(reply())
    with pytest.warns(UserWarning, match="cut") as caught:
        for name in ("m", "m", "m", "other"):
            await redraft.refine(LONG, Chat(name, faults.url), "words:1-50", max_iterations=0)
    assert ["(model other)" in str(each.message) for each in caught] == [False, True]


async def test_a_function_that_asks_a_model_is_told_too(faults):
    """A grader of one's own gets the error."""
    faults.says(reply("0.5"))

    class Own:
        name = "own"

        async def grade(self, task, candidate, ask):
            return redraft.Feedback(float(await ask(candidate.text)))

    with pytest.warns(UserWarning, match="cut"):
        result = await redraft.refine(
            "q", redraft.ScriptedModel([LONG]), Own(), Chat("m", faults.url), max_iterations=0
        )
    assert result.score is None


async def test_a_row_has_the_note(faults, tmp_path):
    """And the report counts these rows; there is one warning for all."""
    faults.says(reply(), reply(), reply(tokens=20_010))
    out = tmp_path / "out.jsonl"
    with pytest.warns(UserWarning, match="cut") as caught:
        report = await redraft.batch(
            [{"prompt": LONG + str(n)} for n in range(3)],
            out,
            Chat("m", faults.url),
            "words:1-50",
            max_iterations=0,
        )
    assert len(caught) == 1
    notes = [json.loads(line)["note"] for line in out.read_text().splitlines()]
    assert (
        sorted(note or "" for note in notes)[0] == ""
        and sum("the server cut the prompt: it read" in (n or "") for n in notes) == 2
    )
    assert report.rows.cut_prompts == report.as_data()["rows"]["cut_prompts"] == 2
    assert "prompts cut by the server: 2 rows" in report.summary()


WHOLE = {  # usage that says that the prompt was read whole, or does not say what was read
    "all": {"tokens": 20_010},
    "nothing": {"tokens": 0},
    "what was not cached": {"tokens": 3},
    "as Anthropic": {
        "tokens": 2048,
        "cache_read_input_tokens": 18_000,
        "cache_creation_input_tokens": 0,
    },
    "first as Anthropic": {"tokens": 2048, "cache_creation_input_tokens": 18_000},
    "with details": {"tokens": 2048, "prompt_tokens_details": {"cached_tokens": 18_000}},
    "most of it from a cache": {
        "tokens": 9000,
        "prompt_tokens_details": {"cached_tokens": 8000},
    },
    "half of it from a cache": {"tokens": 6000, "prompt_tokens_details": {"cached_tokens": 5000}},
    "as DeepSeek": {
        "tokens": 20_010,
        "prompt_cache_hit_tokens": 19_968,
        "prompt_cache_miss_tokens": 42,
    },
    "unknown": {"tokens": None},
    "negative": {"tokens": -2048},
    "odd": {"tokens": "2048", "prompt_tokens_details": [], "cached_tokens": {}},
}


@pytest.mark.parametrize("make", [reply, streamed])
@pytest.mark.parametrize("name", WHOLE)
async def test_other_counts_raise_no_alarm(faults, name, make):
    """Tokens from a cache may be counted apart."""
    faults.says(make(**WHOLE[name]))
    result = await redraft.refine(
        LONG, Chat("m", faults.url, stream=make is streamed), "words:1-50", max_iterations=0
    )
    assert [candidate.note for candidate in result.trace.candidates] == [""]


async def test_a_cut_prompt_whose_beginning_was_cached_is_noticed(faults):
    """The cached tokens are some of those that were read."""
    faults.says(reply(tokens=2048, prompt_tokens_details={"cached_tokens": 512}))
    with pytest.warns(UserWarning, match="cut"):
        await redraft.refine(LONG, Chat("m", faults.url), "words:1-50", max_iterations=0)


@pytest.mark.parametrize("space", [" ", "\n", "\x1f", "\xa0", "\u2028", "\u3000"], ids=ascii)
def test_words_are_separated_by_any_white_space(space):
    """450 words are more than 200 tokens, whatever is between them."""
    assert is_cut(f"a{space}" * 450, 200)
    assert not is_cut(f"a{space}" * 450, 2_000)
