"""Split what a model wrote into its reasoning and its answer, whole or as it arrives.

Servers take the reasoning out of a reply only if they know the model's format; others leave it in
the text. The formats of the model families are listed here and nowhere else. What counts is the
position and the pair: a block that begins a text, a line or a sentence and is closed, or the end of
a block that the chat template began. A text about such marks (in code, in quotation marks, in the
middle of a sentence) is left whole, and so is one that could be either.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

TAG_NAMES = ("think", "thinking", "thought", "thoughts", "seed:think")
# a story may have them: reasoning only before the answer
_ORDINARY_WORDS = frozenset(("<thinking>", "<thought>", "<thoughts>"))
_TOKEN_PAIRS = (
    ("[THINK]", "[/THINK]"),  # Mistral
    ("<|channel>thought", "<channel|>"),  # Gemma
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),  # Kimi
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)
_END_TOKENS = (
    r"<[|\uff5c](?:(?:im_|fim_)?end(?:[_\u2581]?of[_\u2581]?(?:text|turn|sentence|message|response)(?:_token)?|_response)?"
    r"|eot|eom|eot_id|eom_id|eos|return|user|observation)[|\uff5c]>|</s>|<end_of_turn>|<eos>|<turn\|>"
)
_END_TOKEN = re.compile(_END_TOKENS, re.IGNORECASE)
_LAST_TOKEN = re.compile(rf"(?:{_END_TOKENS})\Z", re.IGNORECASE)
_BEGIN_TOKEN = re.compile(
    r"<s>|<bos>|<start_of_turn>|\[INST\]|<\|(?:im_start|start_header_id|start|begin_of_text|turn|user|assistant|system)\|?>"
    r"|<\uff5c(?:Assistant|User)\uff5c>|<\|(?:channel\|?|START_RESPONSE\|)>"
)
_ANSWER_HEADER = re.compile(
    r"\s*(?:<s>|<bos>|<\|begin_of_text\|>)?\s{0,9}(?:<\|im_start\|>assistant\b|<\|start_header_id\|>assistant<\|end_header_id\|>"
    r"|<start_of_turn>model\b|<\|turn>model\b|<\|assistant\|>|<\uff5cAssistant\uff5c>|<\|START_RESPONSE\|>)\s*"
)
_HARMONY_HEADER = re.compile(
    r"(?:<\|(?:end|call|return)\|>\s{0,9})?(?:(?:<\|start\|>\s{0,9})?assistant(?:\s{1,9}to=[\w.]{1,99})?\s{0,9})?"
    r"<\|channel\|>\s{0,9}(?P<channel>analysis|commentary|final)\b[^<\n]{0,99}(?:<\|constrain\|>[^<\n]{0,99})?<\|message\|>"
)
_HARMONY_END = re.compile(r"(?:<\|(?:end|call|return)\|>\s{0,9}){1,9}\Z")
# without its markers, as in "analysisWe need"
_BARE_ANALYSIS = re.compile(r"\s*(?:assistant)?analysis(?=[^ \ta-z:.,;-])")
_BARE_FINAL = re.compile(r"(?<![\"'`\u201c])assistantfinal")
_HARMONY_STARTS = ("<|channel|>", "<|start|>", "assistant<|channel|>")
_BARE_STARTS = ("analysis", "assistantanalysis")
_SENTENCE_ENDS = frozenset(".!?\u2026\u3002\uff01\uff1f")
# a mark directly after one of these is quoted or listed
_OPENING = frozenset("'\u201c\u2018([{<>=:/|+\\,")
_LISTING = frozenset(":,;")  # and so is one directly before one of these
_AFTER_MENTION = frozenset(" \t.!?)")
_BLANKS = frozenset(" \t")
_QUOTES = frozenset("`'\"\u201c\u2018(")
_AFTER_QUOTED = frozenset("`'\"\u201d\u2019)\\")
_MENTION = re.compile(
    r",| (?:is|are|was|were|means?|marks?|opens?|closes?|begins?|starts?|ends?|denotes?|stands?|tells?|encloses?|surrounds?|wraps?"  # noqa: E501
    r"|tags?|tokens?|blocks?|headers?|and|or)\b"
)  # directly after a mark with which a text begins: it is about the mark
_MAYBE_MENTION = re.compile(r" ?[a-z]{0,9}\Z")
_ELLIPSES = frozenset(("...", "\u2026"))  # in place of reasoning
_NOT_SPACE = re.compile(r"\S")
_STOPS = frozenset(".!?)")
_TAG = re.compile(r"</?[A-Za-z][\w:-]{0,60}>")
_PATTERN_ENDS = (".*?", ".*)", "]*?", "]*)", "*?)")  # of a regular expression
_STRING_BEGINS = frozenset(" \t\n([{=,:+")  # what is before the quotation mark of a text in code
_LONGEST_STRING = 200


class SplitText(NamedTuple):
    """An answer, the reasoning, and how the text contained it (as `Candidate.reasoning_form`; None:
    it had none).
    """

    answer: str
    reasoning: str
    form: str | None


def split_reasoning(text: str, *more_tags: str) -> SplitText:
    """Return the answer and the reasoning in a text. Tokens that end a turn, at the end of the
    answer, belong to neither.

    `more_tags`: names of further tags for reasoning, besides the model families' own.
    """
    if not ("<" in text or "THINK]" in text or "\u25c1" in text or _BARE_ANALYSIS.match(text)):
        return SplitText(text, "", None)
    split = _split_harmony(text) or _TagSplitter(_without_header(text), more_tags).split()
    answer = _without_header(split.answer) if split.form else split.answer
    return split._replace(answer=_without_end_tokens(answer, may_be_empty=split.form is not None))


# ---- tags and other pairs


@lru_cache(maxsize=8)
def _marks(more_tags: tuple[str, ...]) -> tuple[re.Pattern[str], dict[str, tuple[str, bool]]]:
    """Return the pattern of all marks, and of each in lower case the name of its pair and whether
    it is the end.
    """
    names = [*TAG_NAMES, *more_tags]
    pairs = [(f"<{name}>", f"</{name}>") for name in names]
    tags, tokens = (
        "|".join(re.escape(mark) for pair in each for mark in pair)
        for each in (pairs, _TOKEN_PAIRS)
    )
    kinds = {
        mark.lower(): (pair[0], mark == pair[1])
        for pair in [*pairs, *_TOKEN_PAIRS]
        for mark in pair
    }
    return re.compile(f"(?i:{tags})|{tokens}"), kinds


class _Mark(NamedTuple):
    start: int
    end: int
    pair: str
    is_end: bool
    is_used: bool  # as the beginning or the end of a block, and not mentioned


def _find_marks(text: str, more_tags: tuple[str, ...]) -> list[_Mark]:
    pattern, kinds = _marks(more_tags)
    marks = []
    for match in pattern.finditer(text):
        start, end = match.span()
        pair, is_end = kinds[match[0].lower()]
        marks.append(
            _Mark(
                start,
                end,
                pair,
                is_end,
                (_is_used_end if is_end else _is_used_begin)(text, start, end),
            )
        )
    return marks


def _begins_block(text: str, start: int) -> bool:
    """Whether a mark within a text stands where a block begins, and not after the announcement of
    an example.
    """
    before = text[start - 1]
    if before in _SENTENCE_ENDS or before == ")" or (before.isascii() and before.isalnum()):
        return True
    return _begins_something(text, start) and not _is_announced(text, start)


def _is_announced(text: str, start: int) -> bool:
    """Whether an example follows, as after "for example:", also in bold, or after the beginning of
    a block in YAML.
    """
    return text[max(0, start - 9) : start].rstrip(" \t\r\n*_").endswith((":", "\uff1a", "|"))


def _is_in_string(text: str, start: int, end: int) -> bool:
    """Whether a mark is between single quotation marks as code has them, or after a regular
    expression.
    """
    opening, closing = (
        text.rfind("'", max(0, start - _LONGEST_STRING), start),
        text.find("'", end, end + _LONGEST_STRING),
    )
    if opening < 0 or closing < 0 or "\n" in text[opening:closing]:
        return text[max(0, start - 3) : start].endswith(_PATTERN_ENDS)
    before = text[max(0, opening - 3) : opening].rstrip("rbfuRBFU")
    return (not before or before[-1] in _STRING_BEGINS) and not text[
        closing + 1 : closing + 2
    ].isalnum()


def _is_mentioned(text: str, end: int) -> bool:
    """Whether a list or a sentence goes on after a mark, as in "<think> is"."""
    after = text[end : end + 2]
    return after[:1] in _LISTING or (after[:1] == " " and after[1:].islower())


def _is_used_end(text: str, start: int, end: int) -> bool:
    """Whether the end of a block is not mentioned: in quotation marks, in a list, or with words of
    a sentence on both sides.
    """
    before, after = text[start - 1 : start], text[end : end + 1]
    if after in _LISTING:
        return False
    if before in _QUOTES:
        return after not in _AFTER_QUOTED
    return before not in _BLANKS or after not in _AFTER_MENTION or _begins_something(text, start)


def _is_used_begin(text: str, start: int, end: int) -> bool:
    """Whether a mark within reasoning begins a block in it: text follows directly, and no quotation
    mark is before it.
    """
    after = text[end : end + 1]
    return (after == "\n" or after.isalnum()) and text[start - 1 : start] not in _QUOTES


def _is_ellipsis(block: str) -> bool:
    return "".join(block.split()) in _ELLIPSES


def _begins_something(text: str, at: int) -> bool:
    """Whether a position is at the beginning of a text or a line, or between two sentences."""
    before = text[max(0, at - 4) : at]
    return _begins_line(text, at) or (
        before[-1:] in _BLANKS and before.rstrip(" \t\"')*\u201d")[-1:] in _SENTENCE_ENDS
    )


def _begins_line(text: str, at: int) -> bool:
    """Whether at most three blanks are between the beginning of a line and a position."""
    line_start = text.rfind("\n", max(0, at - 4), at) + 1
    return (line_start > 0 or at < 4) and not text[line_start:at].strip()


class _TagSplitter:
    """Splits a text at the marks of reasoning, from one block to the next.

    `done`: up to where the text is sorted into `answer` and `blocks`; `text_start`: where visible
    text goes on from there.
    """

    def __init__(self, text: str, more_tags: tuple[str, ...]) -> None:
        self.text, self.names_are_certain = text, bool(more_tags)
        self.marks = _find_marks(text, more_tags)
        self.used_ends, self.any_ends = _ends_after(self.marks)
        self.answer: list[str] = []
        self.blocks: list[str] = []
        self.form = ""
        self.mentioned: set[int] = set()
        self._go_on_at(0)
        self.quotes = _QuoteTracker(text)

    def split(self) -> SplitText:
        n = 0
        while n < len(self.marks):
            mark = self.marks[n]
            if mark.is_end:
                self._end_block_of_template(n)
            elif self._begins_answer(mark) and _MENTION.match(self.text, mark.end):
                break
            elif end := self._end_of_block(n):
                if self._is_mention(mark, self.marks[end]):
                    break
                self._add_block(mark, self.marks[end])
                n = end
            elif self._begins_answer(mark) and not _is_mentioned(
                self.text, mark.end
            ):  # it never ends
                return SplitText("", _join([*self.blocks, self.text[mark.end :]]), "other")
            n += 1
        if not self.blocks:
            return SplitText(self.text, "", None)
        reasoning = _join(self.blocks)
        form = "empty" if self.form != "other" and not reasoning else self.form
        return SplitText("".join([*self.answer, self.text[self.done :]]).lstrip(), reasoning, form)

    def _go_on_at(self, position: int) -> None:
        self.done, self.text_start = position, _text_start(self.text, position)

    def _begins_answer(self, mark: _Mark) -> bool:
        """Whether nothing of the answer is before a mark."""
        return self.text_start >= mark.start and not self.answer

    def _end_block_of_template(self, n: int) -> None:
        """Take what is before an end without a beginning as reasoning, if the chat template began
        it.
        """
        mark = self.marks[n]
        if (
            self.blocks
            or n in self.mentioned
            or not _ends_template_block(self.text, mark, self.text_start, self.quotes)
        ):
            return
        self.blocks, self.form, self.answer = [self.text[: mark.start]], "end_tag", []
        self._go_on_at(mark.end)
        self.quotes = _QuoteTracker(self.text, mark.end)

    def _end_of_block(self, n: int) -> int | None:
        """Return the number of the mark that ends the block which a mark begins; None if it begins
        none.
        """
        mark, end = self.marks[n], self.any_ends[n]
        is_mentioned, is_quoted, is_block = _is_mentioned(self.text, mark.end), False, True
        if not self._begins_answer(mark):
            is_quoted = self.quotes.is_quoted_at(mark.start) or _is_in_string(
                self.text, mark.start, mark.end
            )
            is_block = not (is_quoted or is_mentioned) and self._may_begin_block(mark)
        if self.used_ends[n] is not None and is_block:
            return self.used_ends[n]
        if is_block and not is_mentioned:
            return end
        if end is not None and not is_quoted:
            self.mentioned.add(end)
        return None

    def _is_mention(self, begin: _Mark, end: _Mark) -> bool:
        """Whether a block is about its marks, or part of a sentence."""
        goes_on = not end.is_used and self.text.startswith(",", end.end)
        return goes_on or _is_ellipsis(self.text[begin.end : end.start])

    def _may_begin_block(self, mark: _Mark) -> bool:
        """Whether a mark within the answer stands where a block begins, and in no data."""
        is_in_data = self.quotes.may_be_data or self.quotes.strings % 2
        is_certain = self.names_are_certain or mark.pair not in _ORDINARY_WORDS
        return is_certain and not is_in_data and _begins_block(self.text, mark.start)

    def _add_block(self, begin: _Mark, end: _Mark) -> None:
        is_first = self._begins_answer(begin)
        self.form = "other" if self.form or not is_first else "block"
        if not is_first:
            self.answer.append(self.text[self.done : begin.start])
        self.blocks.append(self.text[begin.end : end.start])
        self._go_on_at(end.end)
        self.quotes.skip_to(end.end)


def _text_start(text: str, at: int) -> int:
    """Return the position of the first visible character from a position on."""
    match = _NOT_SPACE.search(text, at)
    return match.start() if match else len(text)


def _join(blocks: list[str]) -> str:
    return "\n".join(block.strip() for block in blocks)


def _ends_after(marks: list[_Mark]) -> tuple[list[int | None], list[int | None]]:
    """Return, for each mark, the number of the next end of its pair that is used, and of the next
    one at all.

    For a beginning that is balanced, its own end stands for the next one that is used.
    """
    used: list[int | None] = [None] * len(marks)
    any_: list[int | None] = [None] * len(marks)
    next_used: dict[str, int] = {}
    next_any: dict[str, int] = {}
    for n in range(len(marks) - 1, -1, -1):
        mark = marks[n]
        used[n], any_[n] = next_used.get(mark.pair), next_any.get(mark.pair)
        if mark.is_end:
            next_any[mark.pair] = n
            if mark.is_used:
                next_used[mark.pair] = n
    begun: dict[str, list[int]] = {mark.pair: [] for mark in marks}
    for n, mark in enumerate(marks):
        if not mark.is_end and (mark.is_used or not begun[mark.pair]):
            begun[mark.pair].append(n)
        elif mark.is_end and mark.is_used and begun[mark.pair]:
            used[begun[mark.pair].pop()] = n
    return used, any_


def _ends_template_block(text: str, mark: _Mark, text_start: int, quotes: _QuoteTracker) -> bool:
    """Whether an end without a beginning ends reasoning that the chat template began, in the
    prompt.
    """
    after = text[mark.end : mark.end + 1]
    if after in _LISTING or (
        after in _STOPS and (mark.end + 1 == len(text) or text[mark.end + 1].isspace())
    ):
        return False
    # nothing before it: it is the whole text, or a sentence about it
    if text_start >= mark.start:
        return _text_start(text, mark.end) < len(text) and not _is_mentioned(text, mark.end)
    is_quoted = quotes.is_quoted_at(mark.start) or quotes.depth > 0
    if _begins_line(text, mark.start):
        return not quotes.fences % 2
    before = text[mark.start - 1]
    is_attached = not before.isspace() and before not in _OPENING and after != "'"
    if before.isalnum() and not before.isascii():  # (in some scripts words are not separated)
        is_attached = after in {"\n", "\r"}
    is_end = not is_quoted and (is_attached or _begins_something(text, mark.start))
    return is_end and not _is_in_string(text, mark.start, mark.end)


class _QuoteTracker:
    """Tracks whether a position in a text is in a code fence, or in backticks or quotation marks on
    its line.

    What was there up to the position: `fences`, `strings` (triple quotation marks of Python), open
    braces (`depth`), and whether there was a brace or a tag, so that the text `may_be_data` (JSON
    or XML).
    """

    def __init__(self, text: str, at: int = 0) -> None:
        self._text, self._at = text, at
        self._ticks = self._quotes = self.strings = self.fences = self.depth = 0
        self.may_be_data = False

    def skip_to(self, at: int) -> None:
        """Leave out what is between here and a later position."""
        self._at = at

    def is_quoted_at(self, at: int) -> bool:
        """Whether a later position is in a code fence, in backticks or in quotation marks. Sets the
        attributes for it.
        """
        self._advance(at)
        return bool(self.fences % 2 or self._ticks % 2 or self._quotes % 2)

    def _advance(self, at: int) -> None:
        more, self._at = self._text[self._at : at], at
        opened = more.count("{")
        self.may_be_data = self.may_be_data or opened > 0 or _TAG.search(more) is not None
        self.depth += opened - more.count("}")
        self.fences += more.count("```") + more.count("~~~")
        self.strings += more.count('"""') + more.count("'''")
        _, is_new_line, line = more.rpartition("\n")
        self._ticks = line.count("`") - 3 * line.count("```") + (0 if is_new_line else self._ticks)
        self._quotes = line.count('"') + (0 if is_new_line else self._quotes)


# ---- channels of OpenAI's harmony


def _split_harmony(text: str) -> SplitText | None:
    """Return the parts of a text in harmony, with its markers or without them; None if it is in
    another format.
    """
    if _BARE_ANALYSIS.match(text):
        return _split_bare_harmony(text)
    headers = _harmony_headers(text) if "<|channel|>" in text else []
    if not headers or _is_about_header(text, headers):
        return None
    reasoning, answers = [text[: headers[0].start()]], list[str]()
    for n, header in enumerate(headers):
        part = text[header.end() : headers[n + 1].start() if n + 1 < len(headers) else len(text)]
        (answers if header["channel"] == "final" else reasoning).append(
            _HARMONY_END.sub("", part.rstrip()).strip()
        )
    thoughts = _join([part for part in reasoning if part.strip()])
    form = ("end_tag" if reasoning[0].strip() else "block") if answers else "other"
    return SplitText(
        "\n".join(filter(None, answers)), thoughts, form if thoughts or not answers else None
    )


def _is_about_header(text: str, headers: list[re.Match[str]]) -> bool:
    """Whether a text only mentions the header with which it begins."""
    is_ended = any(header[0].startswith(("<|end|>", "<|start|>")) for header in headers[1:])
    begins = not text[: headers[0].start()].strip()
    return begins and not is_ended and _MENTION.match(text, headers[0].end()) is not None


def _harmony_headers(text: str) -> list[re.Match[str]]:
    """Return the headers of the messages, if the first begins the text, or follows a message that
    the prompt began.
    """
    headers: list[re.Match[str]] = []
    quotes, text_start = _QuoteTracker(text), _text_start(text, 0)
    for header in _HARMONY_HEADER.finditer(text):
        may_be_quoted = (
            headers[-1]["channel"] == "final" if headers else text_start < header.start()
        )
        is_whole = header[0].startswith(("<|end|>", "<|return|>", "<|call|>", "<|start|>"))
        is_announced = (
            not headers
            and header[0].startswith("<|start|>")
            and _is_announced(text, header.start())
        )
        if may_be_quoted and (not is_whole or is_announced or quotes.is_quoted_at(header.start())):
            continue
        headers.append(header)
        quotes.skip_to(header.end())
    return headers


def _split_bare_harmony(text: str) -> SplitText | None:
    if final := _BARE_FINAL.search(text):
        thoughts = text[_bare_start(text) : final.start()].strip()
        return SplitText(text[final.end() :].lstrip(), thoughts, "block" if thoughts else "empty")
    if "assistantcommentary to=" in text:  # a call of a tool, and no answer
        return SplitText("", text[_bare_start(text) :].strip(), "other")
    return None


def _bare_start(text: str) -> int:
    match = _BARE_ANALYSIS.match(text)
    return match.end() if match else 0


# ---- tokens around the answer


def _without_header(text: str) -> str:
    header = _ANSWER_HEADER.match(text)
    return text[header.end() :] if header else text


def _without_end_tokens(text: str, *, may_be_empty: bool) -> str:
    """Return a text without the tokens after its end. A text about tokens, or of nothing else, is
    left whole.
    """
    end = start = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        token = _LAST_TOKEN.search(text, max(0, end - 64), end)
        if token is None:
            break
        start = end = token.start()
    if start == len(text):
        return text
    before = text[:start]
    if not before.strip():
        return "" if may_be_empty else text
    is_mentioned = before[-1] in _BLANKS and not _begins_something(text, start)
    return (
        text
        if is_mentioned or _QuoteTracker(text).is_quoted_at(start) or _BEGIN_TOKEN.search(before)
        else before.rstrip()
    )


# ---- text that arrives in parts

_PARTIAL_MARK = re.compile(r"[<\[\u25c1][^\s<>\[\]\u25c1\u25b7]{0,30}\Z")
_LONGEST_MARK = 32
_LONGEST_HEADER = 512


class VisibleText:
    """Filters a text that arrives in parts: what is shown is the answer, as `split_reasoning` finds
    it in the whole.

    Reasoning is held back, and so is text after a mark that may be one, until it is clear what it
    is; at the latest `flush` returns it. Only reasoning before an end without a beginning has been
    shown by then: `flush` then returns the whole answer.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._shown: list[str] = []
        self._space: list[str] = []
        self._new = ""
        self._pending = (
            ""  # what has arrived and is not decided; while text is dropped, its last characters
        )
        self._step = self._start
        self._pair = ""
        self._depth = 0
        self._dropped = ""
        self._has_dropped = False

    @property
    def has_shown(self) -> bool:
        """Whether any text was shown before the end."""
        return bool(self._shown)

    def add(self, text: str) -> str:
        """Add text, and return what may be shown."""
        self._parts.append(text)
        self._new = text
        self._pending += text
        shown: list[str] = []
        step = None
        while step != self._step:
            step = self._step
            shown.append(step())
        visible = "".join(shown)
        if visible:
            self._shown.append(visible)
        return visible

    def flush(self) -> str:
        """Return what was held back at the end of the stream and is answer."""
        answer, shown = split_reasoning("".join(self._parts)).answer, "".join(self._shown)
        if answer.startswith(shown):
            return answer[len(shown) :]
        return "" if shown.startswith(answer) and not shown[len(answer) :].strip() else answer

    def _start(self) -> str:
        """Find out how the text begins."""
        start = self._pending.lstrip()
        self._space.append(self._pending[: len(self._pending) - len(start)])
        self._pending = start
        low = start.lower()
        pattern, kinds = _marks(())
        mark = pattern.match(start)
        begin = mark if mark and not kinds[mark[0].lower()][1] else _HARMONY_HEADER.match(start)
        if begin and _MAYBE_MENTION.match(start, begin.end()):
            return ""
        if begin and _MENTION.match(start, begin.end()):
            self._step = self._hold
        elif mark and begin is mark:
            self._pair, self._step, self._has_dropped = (
                kinds[mark[0].lower()][0],
                self._in_block,
                True,
            )
            self._pending, self._depth, self._dropped = start[mark.end() - 1 :], 1, ""
        elif begin:
            self._step, self._has_dropped = self._in_harmony, True
        elif start.startswith(_HARMONY_STARTS):
            if len(start) > _LONGEST_HEADER:
                self._step, self._has_dropped = self._in_harmony, True
        elif _BARE_ANALYSIS.match(start):
            self._step, self._has_dropped = self._in_bare_harmony, True
        elif (
            not any(name.startswith(low) for name in (*kinds, *_HARMONY_STARTS, *_BARE_STARTS))
            and low not in _BARE_STARTS
        ):
            if not self._has_dropped:
                self._pending = "".join([*self._space, start])
            self._step = self._in_answer
        return ""

    def _in_block(self) -> str:
        """Drop a block up to its end. An end that may only be mentioned in it is decided by what
        follows, up to the last part.
        """
        pattern, kinds = _marks(())
        after = 0
        for mark in pattern.finditer(self._pending):
            pair, is_end = kinds[mark[0].lower()]
            if pair != self._pair:
                continue
            if mark.end() == len(self._pending):
                self._drop(after)
                return ""
            if is_end and not _is_used_end(self._pending, *mark.span()):
                self._step = self._hold
                return ""
            self._depth += -1 if is_end else _is_used_begin(self._pending, *mark.span())
            if not self._depth:
                self._step = self._start
                if _is_ellipsis((self._dropped + self._pending[: mark.start()])[1:]):
                    self._step = self._hold
                self._pending = self._pending[mark.end() :]
                return ""
            after = mark.end() - 1
        self._drop(max(after, len(self._pending) - _LONGEST_MARK))
        return ""

    def _drop(self, end: int) -> None:
        """Drop what is pending up to a position, but for its first characters that are not
        blank.
        """
        self._dropped = "".join((self._dropped + self._pending[:end]).split())[:5]
        self._pending = self._pending[end:]

    def _in_harmony(self) -> str:
        for header in _HARMONY_HEADER.finditer(self._pending) if ">" in self._new else ():
            if header["channel"] == "final":
                self._pending, self._step = self._pending[header.end() :], self._in_answer
                return ""
        self._pending = self._pending[-_LONGEST_HEADER:]
        return ""

    def _in_bare_harmony(self) -> str:
        if final := _BARE_FINAL.search(self._pending):
            self._pending, self._step = self._pending[final.end() :], self._in_answer
        else:
            self._pending = self._pending[-_LONGEST_MARK:]
        return ""

    def _in_answer(self) -> str:
        """Show what is certainly answer: everything before the next mark."""
        if self._has_dropped and not self._shown:
            self._pending = self._pending.lstrip()
        marks = (
            pattern.search(self._pending)
            for pattern in (_marks(())[0], _END_TOKEN, _BEGIN_TOKEN, _PARTIAL_MARK)
        )
        found = [mark.start() for mark in marks if mark]
        end = min(found, default=len(self._pending))
        shown, self._pending = self._pending[:end], self._pending[end:]
        if found and not (len(found) == 1 and _PARTIAL_MARK.match(self._pending)):
            self._step = self._hold
        return shown

    def _hold(self) -> str:
        """Show nothing more before the end."""
        self._pending = ""
        return ""
