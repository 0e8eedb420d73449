"""Graders that ask a server for a number: a reward model, and a provider's moderation endpoint.

Their servers write no text, so plans treat them as graders that compute: exact, and never asked
twice about one answer. Their calls count in usage and budgets, and need validation like those of a
judge. A reward model can be fooled like any model: do not let it alone decide about untrusted
answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, isfinite, log, nan
from statistics import median, quantiles
from typing import Any, Self

from ..base import checks
from ..base.jsontext import strict_loads
from ..base.own_code import fingerprint_name
from ..errors import ConfigError, GradingError
from ..loop.records import Candidate, Feedback
from ..loop.task import Message, Task
from ..models.endpoint_url import redacted_model_name
from ..models.scoring import ScoringModel, ServerApi, connect_moderation, connect_scoring
from ..protocols import JudgeClient, Request
from .judging.prompt import without_control_tokens

EXAMPLE = "reward:http://127.0.0.1:8000/classify#MODEL"
MIN_SAMPLE = 20
"""The fewest raw scores from which a mapping is learned."""


@fingerprint_name("reward")
@dataclass(frozen=True, repr=False)
class Reward:
    """A reward model behind a server; `Feedback.metadata` has its raw score.

    `endpoint` is a URL with the name of the model, such as "http://127.0.0.1:8000/classify#MODEL".
    The last part of its path says which API it is: vLLM's /classify, /score, /rerank and /pooling,
    llama.cpp's /rerank, or /predict of Text Embeddings Inference (TEI); `api="tei_rerank"` is TEI's
    /rerank. /classify and /pooling receive the conversation as messages, to which the server
    applies the chat template; the others the task and the answer as two texts. Control tokens of
    chat templates are broken up. Keys are found as for chat models.

    A raw score x becomes a score in [0, 1] in one of three ways:

    - Without further arguments, the server is asked for a probability, which is the score.
    - `range=(low, high)`: (x - low) / (high - low), with the server's scores before any activation
      function.
    - `center` and `scale`: 1 / (1 + exp(-(x - center) / scale)), with the same scores; `fit` learns
      both from a sample.

    A raw score outside the range is an error, never clamped. `label` is the class that counts, if
    there are several: its number from 0 (/classify) or its name (/predict). Raises ConfigError for
    invalid arguments.
    """

    endpoint: str = field(compare=False)
    range: tuple[float, float] | None = None
    center: float | None = None
    scale: float | None = None
    label: str = ""
    api: ServerApi | None = None
    name: str = "reward"
    model: ScoringModel = field(init=False)

    model_free = True
    prompt_texts = ()

    def __post_init__(self) -> None:
        checks.text("endpoint", self.endpoint)
        checks.text("label", self.label, allow_blank=True)
        if self.range is not None:
            _check_range(self.range)
        if (self.center is None) != (self.scale is None) or (
            self.center is not None and self.range is not None
        ):
            raise ConfigError(
                "a raw score is mapped either by range=(LOW, HIGH), or by center and scale together"
            )
        if self.center is not None:
            _check_finite("center", self.center)
            checks.positive("scale", self.scale)
        raw = self.range is not None or self.center is not None
        model = connect_scoring(self.endpoint, api=self.api, raw=raw, label=self.label)
        object.__setattr__(self, "model", model)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({redacted_model_name(self.endpoint)!r})"

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the mapped score. Raises ModelError if the server fails, GradingError for a raw
        score outside the range.
        """
        if not candidate.text.strip():
            return Feedback(0.0, "the answer is empty")
        reply = await ask.complete(Request(scored_messages(task, candidate)))
        raw = float(strict_loads(reply.text)["score"])
        return Feedback(self.map(raw), f"reward {raw:.6g}", metadata={"raw": raw})

    def map(self, raw: float) -> float:
        """Return the score in [0, 1] of a raw score. Raises GradingError if it is outside the
        range.
        """
        if self.center is not None and self.scale is not None:
            return logistic((raw - self.center) / self.scale)
        low, high = self.range or (0.0, 1.0)
        if not low <= raw <= high:
            hint = (
                ""
                if self.range
                else (
                    "; declare it (range=LOW:HIGH), or learn a mapping: `redraft graders NAME "
                    "--learn FILE`"
                )
            )
            raise GradingError(
                f"the raw score {raw:g} is outside the range from {low:g} to {high:g}{hint}"
            )
        return min(1.0, (raw - low) / (high - low))  # (a quotient may exceed 1 by a rounding error)

    def fit(self, raw_scores: Sequence[float]) -> Self:
        """Return a grader with `center` and `scale` learned from the raw scores of a sample of
        answers.

        `center` is the median, `scale` the distance between the quartiles divided by 2 ln 3: the
        sample's quartiles get the scores 0.25 and 0.75 if it is symmetric, and outliers do not
        count. Raises ConfigError for fewer than 20 scores, or if the quartiles are equal.
        """
        center, scale = fit_logistic(raw_scores)
        return replace(self, range=None, center=center, scale=scale)

    @property
    def spec(self) -> str:
        """The grader as text, for the command line and configuration files; without the key and the
        query of the URL.
        """
        options = [
            f"range={self.range[0]:g}:{self.range[1]:g}" if self.range else "",
            f"center={self.center:.6g}" if self.center is not None else "",
            f"scale={self.scale:.6g}" if self.scale is not None else "",
            f"label={self.label}" if self.label else "",
            f"api={self.api}" if self.api else "",
        ]
        return ",".join([f"reward:{redacted_model_name(self.endpoint)}", *filter(None, options)])


def make_reward(argument: str) -> Reward:
    """Return the grader for the text after "reward:": a URL and options, separated by commas.
    Raises ConfigError.
    """
    if not argument.strip():
        raise ConfigError(f"grader 'reward' needs a URL after the colon, such as {EXAMPLE!r}")
    endpoint, settings = _split_options(argument)
    parsers = {
        "range": _parse_range,
        "center": _parse_number,
        "scale": _parse_number,
        "label": _parse_text,
        "api": _parse_text,
    }
    known = "range=LOW:HIGH, center=NUMBER, scale=NUMBER, label=CLASS, api=NAME"
    arguments = _parse_options("reward", settings, parsers, known)
    grader = Reward(endpoint, **arguments)
    return replace(grader, name=grader.spec)


def scored_messages(task: Task, candidate: Candidate) -> tuple[Message, ...]:
    """Return the messages of a task with an answer, in which no text can imitate the end of a
    turn.
    """
    answer: Message = {"role": "assistant", "content": candidate.text}
    return tuple(map(_safe_message, (*task.messages, answer)))


def _safe_message(message: Message) -> Message:
    content = message.get("content")
    return (
        {**message, "content": without_control_tokens(content)}
        if isinstance(content, str)
        else message
    )


def logistic(x: float) -> float:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + exp(-x)) if x >= 0 else exp(x) / (1 + exp(x))


def fit_logistic(raw_scores: Sequence[float]) -> tuple[float, float]:
    """Return center and scale; see `Reward.fit`. Raises ConfigError."""
    if len(raw_scores) < MIN_SAMPLE:
        raise ConfigError(
            f"a mapping is learned from at least {MIN_SAMPLE} raw scores, got {len(raw_scores)}"
        )
    for raw in raw_scores:
        _check_finite("a raw score", raw)
    low, _, high = quantiles(raw_scores, n=4, method="inclusive")
    if not high > low:
        raise ConfigError(
            f"nothing can be learned from a sample whose quartiles are equal, got {low:g} for both"
        )
    return median(raw_scores), (high - low) / (2 * log(3))


def _check_range(value: Any) -> None:
    """Raise ConfigError unless the value is two finite numbers, the lower one first."""
    pair = isinstance(value, tuple | list) and len(value) == 2 and all(map(checks.is_number, value))
    if not pair or not value[0] < value[1]:
        raise checks.invalid_argument(
            "range", "two numbers (LOW, HIGH), the lower one first", value
        )


def _check_finite(name: str, value: Any) -> None:
    if not checks.is_number(value):
        raise checks.invalid_argument(name, "a finite number", value)


# ---- moderation


@fingerprint_name("moderation")
@dataclass(frozen=True)
class Moderation:
    """A provider's moderation endpoint (OpenAI's /v1/moderations): 1 minus the highest category
    score.

    `flagged=True`: 0 if the endpoint flags the answer, else 1. The actions name the flagged
    categories; `Feedback.metadata` has "flagged", "categories" (those flagged) and
    "category_scores". `endpoint` names the model like a chat model: "openai:NAME" or
    "http://host:port/v1#NAME". The endpoint sees the answer only. Raises ConfigError for an
    endpoint of another kind.
    """

    endpoint: str = field(default="openai:omni-moderation-latest", compare=False, repr=False)
    flagged: bool = False
    name: str = "moderation"
    model: ScoringModel = field(init=False)

    model_free = True
    prompt_texts = ()

    def __post_init__(self) -> None:
        checks.text("endpoint", self.endpoint)
        checks.flag("flagged", self.flagged)
        object.__setattr__(self, "model", connect_moderation(self.endpoint))

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the score, and which categories are flagged. Raises ModelError if the endpoint
        fails.
        """
        if not candidate.text.strip():
            return Feedback(1.0, "the answer is empty")
        reply = await ask.complete(Request(({"role": "user", "content": candidate.text},)))
        result = strict_loads(reply.text)
        scores: dict[str, float] = result["category_scores"]
        highest = max(scores, key=lambda category: scores[category])
        categories = [
            category for category, is_flagged in result["categories"].items() if is_flagged
        ]
        score = float(not result["flagged"]) if self.flagged else 1 - scores[highest]
        reason = (
            f"{'flagged' if result['flagged'] else 'not flagged'}; highest: {highest} "
            f"{scores[highest]:.3f}"
        )
        return Feedback(
            score,
            reason,
            tuple(
                f"Remove what the moderation endpoint flags as {category}."
                for category in categories
            ),
            done=False if result["flagged"] else None,
            metadata={
                "flagged": result["flagged"],
                "categories": categories,
                "category_scores": scores,
            },
        )


def make_moderation(argument: str) -> Moderation:
    """Return the grader for the text after "moderation:": a model, and optionally ",flagged=true".
    Raises ConfigError.
    """
    endpoint, settings = _split_options(argument)
    arguments = _parse_options(
        "moderation", settings, {"flagged": _parse_flag}, "flagged=true|false"
    )
    if not endpoint:
        return Moderation(**arguments)
    return Moderation(endpoint, **arguments, name=f"moderation:{redacted_model_name(endpoint)}")


# ---- options after a URL


def _split_options(argument: str) -> tuple[str, list[str]]:
    """Return the endpoint, and the options after it. Commas in front of the name of the model
    belong to the URL.
    """
    head, hash_sign, tail = argument.strip().partition("#")
    first, *settings = (tail if hash_sign else head).split(",")
    return f"{head}#{first.strip()}" if hash_sign else first.strip(), settings


def _parse_options(
    grader: str, settings: Sequence[str], parsers: Any, known: str
) -> dict[str, Any]:
    """Return the values of options such as "range=-10:10". Raises ConfigError naming what is
    allowed.
    """
    values = {}
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or key not in parsers:
            raise ConfigError(
                f"grader {grader!r}: {checks.format_value(setting.strip())} is not an option; "
                f"there are: {known}"
            )
        values[key] = parsers[key](key, text)
    return values


def _parse_text(key: str, text: str) -> str:
    return text


def _parse_flag(key: str, text: str) -> bool:
    if text not in {"true", "false"}:
        raise ConfigError(f"{key} must be true or false, got {text!r}")
    return text == "true"


def _parse_number(key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not isfinite(number):
        raise ConfigError(f"{key} must be a finite number, got {text!r}")
    return number


def _parse_range(key: str, text: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    if not colon:
        raise ConfigError(f"{key} must be LOW:HIGH, such as -10:10, got {text!r}")
    return _parse_number(key, low), _parse_number(key, high)
