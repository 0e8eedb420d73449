"""How a task is shown to a judge: the whole conversation as named texts, and its images beside them.

Everything here is data: tool calls and their results are written out, bounded, and nobody's words can pass for another's
turn. Images are numbered in the text and sent as they came after it. What the words are put in is no business of this
module (see `envelope`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.records import Candidate, Feedback, Message, Task, message_text
from ...middleware.messages import IMAGES_OMITTED_NOTE
from .prompt import truncate_middle

SYSTEM_ROLES = ("system", "developer")
ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool", "function")
MAX_ARGUMENTS_CHARS, MAX_RESULT_CHARS = 2_000, 8_000  # characters
MAX_IMAGES = 16
IMAGE_URL = re.compile(r"https?://|data:image/", re.IGNORECASE)
DATA_URL = re.compile(r"(data:[\w.+-]{1,40}/[\w.+-]{1,80}(?:;[\w=.-]{1,40})*;base64,)([A-Za-z0-9+/=_-]{64,})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A task in words, by name, and its images as content parts of the OpenAI protocol, in the order of their numbers.

    `texts` holds "task" (the last thing a user asked for) and where there are such, "system", "history" (what was said before
    it) and "steps" (what was done since: tool calls and their results).
    """

    texts: Mapping[str, str]
    images: tuple[Mapping[str, Any], ...] = ()


def build_transcript(task: Task) -> Transcript:
    """The transcript of a task's messages."""
    album = ImageCollector()
    told = [TranscriptTurn(m["role"], _message_to_text(m, album), tuple(_tool_call_lines(m))) for m in task.messages]
    turns = [turn for turn in told if turn.role not in SYSTEM_ROLES]
    last = max((n for n, turn in enumerate(turns) if turn.role == "user"), default=len(turns))
    heads = _header_pattern(turn.role for turn in turns)
    texts = {
        "system": "\n\n".join(turn.text for turn in told if turn.role in SYSTEM_ROLES),
        "history": "\n\n".join(turn.render(heads) for turn in turns[:last]),
        "task": turns[last].text if last < len(turns) else "",
        "steps": "\n\n".join(turn.render(heads) for turn in turns[last + 1 :]),
    }
    return Transcript({name: text for name, text in texts.items() if text or name == "task"}, tuple(album.parts))


def render_candidate(candidate: Candidate) -> str:
    """What a candidate says, in words, and its tool calls, each on a line."""
    if not candidate.tool_calls:
        return render_answer(candidate.text)
    calls = {"tool_calls": [call.as_message_part() for call in candidate.tool_calls]}
    return TranscriptTurn("assistant", without_data_urls(candidate.text), tuple(_tool_call_lines(calls))).body(_header_pattern(()))


def render_answer(text: str) -> str:
    """An answer in words: tool calls written as a chat message in JSON are shown as such, anything else as it stands."""
    if text.lstrip().startswith("{") and '"tool_calls"' in text:
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return without_data_urls(text)
        if isinstance(message.get("tool_calls"), list):
            return TranscriptTurn("assistant", _message_to_text(message, ImageCollector()), tuple(_tool_call_lines(message))).body(
                _header_pattern(())
            )
    return without_data_urls(text)


def without_data_urls(text: str) -> str:
    """The text with the bytes in data URLs replaced by how many characters they take."""
    return DATA_URL.sub(lambda m: f"{m[1]}[{len(m[2])} characters]", text)


def user_message(prompt: str, images: Iterable[Mapping[str, Any]], *, show: bool = True) -> Message:
    """The message that shows a judge a prompt, and after it the images; with `show` false it says that they are not shown."""
    parts = list(images)
    if not parts:
        return {"role": "user", "content": prompt}
    if not show:
        return {"role": "user", "content": f"{prompt}\n\n{IMAGES_OMITTED_NOTE}"}
    return {"role": "user", "content": [{"type": "text", "text": prompt}, *parts]}


@dataclass(frozen=True, slots=True)
class ShownTexts:
    """The texts that a judge is shown, and how many characters of each were left out."""

    texts: Mapping[str, str]
    omitted_chars: Mapping[str, int]

    def with_omission_note(self, feedback: Feedback) -> Feedback:
        """The feedback with what its judge did not see."""
        cut = [f"{n} characters of the {name} were left out" for name, n in self.omitted_chars.items() if n]
        return replace(feedback, reason="; ".join(filter(None, [feedback.reason, *cut]))) if cut else feedback


def total_chars(task: Task, *answers: str) -> int:
    """How many characters there are to be shown, about."""
    told = sum(len(message_text(message)) for message in task.messages)
    return told + len(task.context or "") + len(task.reference or "") + sum(map(len, answers))


def input_texts(task: Task, candidate: Candidate, fields: tuple[str, ...]) -> dict[str, str]:
    """The conversation, those of the task's fields that are read, and the answer, by name."""
    given = {name: getattr(task, name) for name in fields}
    return {**build_transcript(task).texts, **{k: v for k, v in given.items() if v}, "answer": render_candidate(candidate)}


def truncate_texts(texts: Mapping[str, str], max_chars: int) -> ShownTexts:
    """Texts of at most `most` characters each."""
    cut = {name: truncate_middle(text, max_chars) for name, text in texts.items()}
    return ShownTexts({name: text for name, (text, _) in cut.items()}, {name: n for name, (_, n) in cut.items()})


@dataclass(frozen=True, slots=True)
class TranscriptTurn:
    """What one message says, and the tool calls in it, each on a line."""

    role: str
    text: str
    calls: tuple[str, ...] = ()

    def render(self, header_pattern: re.Pattern[str]) -> str:
        """The turn under its head."""
        return f"[{_safe_word(self.role)}]\n{self.body(header_pattern)}"

    def body(self, header_pattern: re.Pattern[str]) -> str:
        """A line that looks like a head (`heads`) gets a space in front: nobody speaks for another."""
        return "\n".join(filter(None, [header_pattern.sub(" [", self.text), *self.calls]))


@dataclass
class ImageCollector:
    """The images met so far; `add` says what stands in the text in place of one."""

    parts: list[Mapping[str, Any]] = field(default_factory=list)
    count: int = 0

    def add(self, part: Mapping[str, Any]) -> str:
        """Images that are neither on the web nor in the message, and those beyond the sixteenth, are not sent on."""
        self.count += 1
        held = part.get("image_url")
        url = held.get("url") if isinstance(held, Mapping) else held
        if not isinstance(url, str) or not IMAGE_URL.match(url) or len(self.parts) >= MAX_IMAGES:
            return f"[image {self.count}, not shown]"
        self.parts.append({"type": "image_url", "image_url": dict(held) if isinstance(held, Mapping) else {"url": url}})
        return f"[image {self.count}]"


def _message_to_text(message: Message, images: ImageCollector) -> str:
    """The text of a message, with marks where something else stood."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else content if isinstance(content, list | tuple) else []
    text = "\n".join(_part_text(part, images) for part in parts)
    if message.get("role") in {"tool", "function"}:
        return truncate_middle(text, MAX_RESULT_CHARS)[0]
    return text


def _part_text(part: Any, images: ImageCollector) -> str:
    if isinstance(part, str):
        return without_data_urls(part)
    if not isinstance(part, Mapping):
        return ""
    if part.get("type") == "image_url":
        return images.add(part)
    return without_data_urls(str(part["text"])) if "text" in part else f"[{_safe_word(part.get('type', 'part'))}, not shown]"


def _tool_call_lines(message: Message) -> Iterator[str]:
    calls = message.get("tool_calls")
    old = message.get("function_call")
    for call in [*(calls if isinstance(calls, list | tuple) else ()), *([{"function": old}] if old else ())]:
        made = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(made, Mapping):
            yield f"[tool call: {_safe_word(made.get('name', '?'))}] {_arguments_text(made.get('arguments'))}"


def _arguments_text(arguments: Any) -> str:
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=repr)
    except (ValueError, RecursionError):
        text = "(arguments that cannot be shown)"
    return truncate_middle(without_data_urls(text), MAX_ARGUMENTS_CHARS)[0]


def _header_pattern(roles: Iterable[str]) -> re.Pattern[str]:
    """The bracket of what looks like the head of a turn or a tool call, at the beginning of a line.

    It comes first in the pattern, so that only brackets are looked at, not every place in a text.
    """
    known = "|".join(re.escape(word) for word in sorted({*ROLES, *map(_safe_word, roles)}))
    return re.compile(rf"\[(?:(?<=\A\[)|(?<=[\n\r\x0b\x0c\x85\u2028\u2029]\[))(?=tool call:|(?:{known})\])", re.IGNORECASE)


def _safe_word(value: Any) -> str:
    return re.sub(r"[^\w.-]+", "_", str(value)[:1000])[:64]
