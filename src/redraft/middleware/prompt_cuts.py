"""Notice a prompt that the server has cut: some answer with status 200, and report how many tokens
they have read.

Every token holds letters or digits of one word at most, because tokenizers split texts at white
space first. So a prompt has at least as many tokens as words, and a server that reports fewer has
not read all of it. For texts without white space the size after compression counts, which no
repetition makes large: a token stands for few bytes of it.

Measured with the tokenizers cl100k, o200k, Qwen, DeepSeek-V3, Claude 2, Mistral's first and two
Tekkens on 45 texts: prose in seven languages, code, tables, JSON, logs, base64, long runs of one
character, repetitions of what has a token of its own, and texts of tokens drawn from the longest of
each vocabulary. Words for each token: up to 0.6 in prose and code, 1.0 in "word word word" and in
tables, 2.0 in nothing but ".", line feeds and "//". Compressed bytes for each token: up to 1.2 in
prose, code and base64, 6.5 in the drawn tokens. (Bytes as they are say little: 5 in prose, 10 in
Thai, 1,000 in spaces.)
"""

from __future__ import annotations

import warnings
import zlib
from dataclasses import replace

from ..base.text import utf8_size
from ..errors import ContextLengthError
from ..loop.task import message_text
from ..protocols import Call, Reply, Request

WORDS, PACKED_BYTES = 2.0, 7.0  # for each token: no text has more
# no usual text has more; enough if the count is a window's
WORDS_AT_WINDOW, PACKED_BYTES_AT_WINDOW = (1.1, 3.5)
# windows, and halves of them (Ollama), are multiples; a count may be a few tokens off
WINDOW_STEP, WINDOW_SLACK = (512, 8)
# a lower count is no window's: some servers count what their cache did not hold, or
# nothing
ASCII_SPACES = b" \t\n\r\v\f\x1c\x1d\x1e\x1f"  # of which `str.split` takes each for white space
MIN_TOKENS = 128
CUT = "the server cut the prompt"
ADVICE = (
    "give the model a larger window (Ollama: OLLAMA_CONTEXT_LENGTH, or num_ctx in a Modelfile; "
    "llama.cpp: -c; LM Studio: the context length) or a shorter prompt"
)


_warned_of: set[str] = set()


def notice_cut_prompts(call: Call, endpoint: str) -> Call:
    """Warn of the first prompt in this process that the server of a model has cut. `endpoint` names
    both.

    An answer to the task gets a note. Another reply, as of a judge, which has not seen all that it
    was asked about, is a ContextLengthError.
    """

    async def call_noticing_cuts(request: Request) -> Reply:
        reply = await call(request)
        tokens = reply.usage.input_tokens
        if tokens is None or reply.usage.calls != 1:
            return reply
        texts = sent_texts(request)
        if not is_cut(texts, tokens + reply.cached_tokens + reply.cache_written_tokens):
            return reply
        what = f"{CUT}: it read {tokens:,} tokens of a prompt of {utf8_size(texts):,} bytes"
        if endpoint not in _warned_of:
            _warned_of.add(endpoint)
            warnings.warn(f"{endpoint}: {what}; {ADVICE}", stacklevel=2)
        if not request.is_generation:
            message = (
                f"{endpoint}: {what}, so the model has not seen all of the question; give it a "
                "larger window"
            )
            raise ContextLengthError(message, usage=reply.usage)
        return replace(reply, note="; ".join(filter(None, [reply.note, what])))

    return call_noticing_cuts


def sent_texts(request: Request) -> str:
    """Return the texts of a request that every chat template writes into the prompt."""
    messages = [
        message
        for message in request.messages
        if message["role"] in {"system", "developer", "user", "assistant"}
    ]
    # some leave reasoning out
    return "\n".join(message_text(message).rpartition("</think>")[2] for message in messages)


def is_cut(text: str, tokens: int) -> bool:
    """Whether a text must have more tokens than a server has counted."""
    if tokens < MIN_TOKENS or len(text) <= 2 * tokens:
        return False
    is_window = (tokens + WINDOW_SLACK) % WINDOW_STEP <= 2 * WINDOW_SLACK
    words, packed = (
        (WORDS_AT_WINDOW, PACKED_BYTES_AT_WINDOW) if is_window else (WORDS, PACKED_BYTES)
    )
    data = text.encode("utf-8", "surrogatepass")
    # between words is white space, which is counted in a tenth of the time
    spaces = len(data) - len(data.translate(None, ASCII_SPACES)) if text.isascii() else len(text)
    return (spaces + 1 > words * tokens and len(text.split()) > words * tokens) or (
        len(data) > packed * tokens and len(zlib.compress(data)) > packed * tokens
    )
