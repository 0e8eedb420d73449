"""Rewards in the forms of training libraries. Each asks a `RewardFunction`; none imports its
library before it is called.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, cast

from ..errors import ConfigError, GradingError
from ..grading import GradeSettings
from ..loop.task import Task
from ..middleware import Budget
from .agreement import count, log
from .function import ResponseReward, RewardFunction, RewardSample

if TYPE_CHECKING:
    from openenv.core.rubrics import Rubric  # pyright: ignore[reportMissingImports]
    from verifiers.v1 import Judge  # pyright: ignore[reportMissingImports]

Unknown: TypeAlias = float | Literal["error"]
"""What a library gets that has no word for an unknown reward: an error, or a number you choose."""
ROLES = ("reference", "context", "tests", "requirements")  # columns that fill a task
OF_TRL = ("completion_ids", "trainer_state", "environments", "log_extra", "log_metric")
PROMPT_KEYS = ("prompt", "question", "raw_prompt", "messages")  # of verl's extra_info
OF_VERL = ("reward_router_address", "reward_model_tokenizer")
TrlReward: TypeAlias = Callable[..., Awaitable[list[float | None]]]


def trl(
    graders: Any = None,
    judge: Any = None,
    *,
    name: str = "redraft",
    columns: Mapping[str, str] | None = None,
    label: str | None = None,
    sync: bool = False,
    blank: float | None = 0.0,
    **settings: Unpack[GradeSettings],
) -> Callable[..., Any]:
    """Return a reward function for TRL's trainers, such as `GRPOTrainer(reward_funcs=...)`.

    TRL calls it with lists of prompts and completions, of texts or of chat messages, and of the
    data set's columns. It returns a list of rewards, as long as these: from 0 to 1, or None where
    one is unknown, which TRL leaves out of the group. Parts of rewards, the share of unknown ones
    and agreements are logged by `log_metric`, the parts of each completion by `log_extra`.

    Give all graders to one such function: of several, TRL takes the unknown reward of one for 0 as
    long as another is known.

    Args:
        graders: As in `RewardFunction`. With a grader that ranks, the completions of each prompt
            are ranked in one call.
        judge: As in `redraft.grade`.
        name: What TRL calls the reward in its logs.
        columns: The columns of the data set by what they are: "reference", "context", "tests" or
            "requirements". Default: the columns of these names. Others are the task's metadata.
        label: The column with scores of people, from 0 to 1, None where there is none. The judge's
            agreement with them is followed; no grader sees them.
        sync: Whether to return a function without async, for versions of TRL that take no other.
        blank: The reward of a blank completion, as in `RewardFunction`.
        **settings: As in `RewardFunction`.

    Raises:
        ConfigError: An argument is wrong. A wrong grader, or a column that does not exist, is
            reported by the first call.
    """
    function = RewardFunction(graders, judge, blank=blank, groups=True, **settings)
    names = _checked_columns(columns)

    def read(
        prompts: Sequence[Any], completions: Sequence[Any], given: Mapping[str, Any]
    ) -> list[RewardSample]:
        rows = _rows({k: v for k, v in given.items() if k not in OF_TRL}, len(completions))
        triples = zip(prompts, completions, rows, strict=True)
        return [_trl_sample(*each, names, label) for each in triples]

    def tell(rewards: list[ResponseReward], given: Mapping[str, Any]) -> list[float | None]:
        _log_to_trl(name, function, rewards, given)
        return [reward.value for reward in rewards]

    async def reward(
        prompts: Sequence[Any], completions: Sequence[Any], **given: Any
    ) -> list[float | None]:
        return tell(await function.rewards(read(prompts, completions, given)), given)

    def reward_sync(
        prompts: Sequence[Any], completions: Sequence[Any], **given: Any
    ) -> list[float | None]:
        return tell(function.rewards_sync(read(prompts, completions, given)), given)

    reward.__name__ = reward_sync.__name__ = name
    return reward_sync if sync else reward


def _checked_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    for role in columns or {}:
        if role not in ROLES:
            raise ConfigError(f"columns: {role!r} is none of {', '.join(ROLES)}")
    return {**{role: role for role in ROLES if not columns}, **(columns or {})}


def _rows(columns: Mapping[str, Any], n: int) -> list[dict[str, Any]]:
    """Return the values of each row, by column."""
    lists = {k: v for k, v in columns.items() if isinstance(v, Sequence) and len(v) == n}
    return [{name: values[i] for name, values in lists.items()} for i in range(n)]


def _trl_sample(
    prompt: Any,
    completion: Any,
    row: dict[str, Any],
    columns: Mapping[str, str],
    label: str | None,
) -> RewardSample:
    for role, name in columns.items():
        if role != name and name not in row:
            raise ConfigError(f"columns: the data set has no column {name!r} (of {role!r})")
    if label and label not in row:
        raise ConfigError(f"label: the data set has no column {label!r}")
    earlier, response = _split_completion(completion)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
    values = {role: row.pop(name, None) for role, name in columns.items()}
    score = row.pop(label, None) if label else None
    return RewardSample(_task([*messages, *earlier], response, values, row), score)


def _split_completion(completion: Any) -> tuple[list[Any], str]:
    """Return the messages before the last one of a completion, and the text of that one; of a text,
    the text.
    """
    if isinstance(completion, str):
        return [], completion
    *earlier, last = completion or [{}]
    return earlier, _text(last.get("content")) if last.get("role") == "assistant" else ""


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else ()
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _task(
    messages: Any, response: str, values: Mapping[str, Any], metadata: Mapping[str, Any]
) -> Task:
    """Return the task of a response; a reference that is no text is JSON."""
    return Task(
        messages,
        response,
        reference=_as_text(values.get("reference")),
        context=_as_text(values.get("context")),
        tests=values.get("tests"),
        requirements=values.get("requirements") or (),
        metadata=metadata,
    )


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, default=str)


def _log_to_trl(
    name: str, function: RewardFunction, rewards: Sequence[ResponseReward], given: Mapping[str, Any]
) -> None:
    agreement = function.agreement.latest()
    if log_metric := given.get("log_metric"):
        unknown = sum(reward.value is None for reward in rewards)
        log_metric(f"{name}/unknown", unknown / max(1, len(rewards)))
        for (judge, other), share in agreement.items():
            log_metric(f"{name}/agreement/{judge}/{other}", share)
    if log_extra := given.get("log_extra"):
        for part in dict.fromkeys(part for reward in rewards for part in reward.parts):
            log_extra(f"{name}/{part}", [reward.parts.get(part) for reward in rewards])


# ---- verl


def verl(
    graders: Any = None,
    judge: Any = None,
    *,
    unknown: Unknown = "error",
    prompt_key: str | None = None,
    label_key: str | None = None,
    sync: bool = False,
    blank: float | None = 0.0,
    **settings: Unpack[GradeSettings],
) -> Callable[..., Any]:
    """Return a `compute_score` for verl's `custom_reward_function`.

    verl calls it with each response and `extra_info`, the columns of the row. It returns
    `{"score": ..., "unknown": 0.0 or 1.0}`; verl keeps both with its metrics. The ground truth is
    the task's reference.

    Args:
        graders: As in `redraft.grade`. verl asks for one response at a time, so none may rank.
        judge: As in `redraft.grade`.
        unknown: verl has no unknown reward: "error" raises GradingError where one is unknown; a
            number takes its place, is logged as a warning and counted.
        prompt_key: The key of `extra_info` with the prompt, a text or chat messages. Default:
            prompt, question, raw_prompt or messages.
        label_key: The key of `extra_info` with scores of people, from 0 to 1, as in `trl`.
        sync: Whether to return a function without async, as `reward_manager.name=remote` needs.
        blank: The reward of a blank response, as in `RewardFunction`.
        **settings: As in `RewardFunction`.

    Raises:
        ConfigError: An argument is wrong.
    """
    function = RewardFunction(graders, judge, blank=blank, **settings)
    reward = VerlReward(function, _checked_unknown(unknown), prompt_key, label_key)
    return partial(_compute_sync if sync else _compute, reward)


@dataclass(frozen=True, slots=True)
class VerlReward:
    """A reward function, and the arguments of `verl` of these names. It can be pickled if its
    graders can.
    """

    function: RewardFunction
    unknown: Unknown
    prompt_key: str | None
    label_key: str | None

    def sample(
        self, response: str, ground_truth: Any, extra_info: Mapping[str, Any]
    ) -> RewardSample:
        """Return what verl asks about. Raises ConfigError."""
        keys = [self.prompt_key] if self.prompt_key else PROMPT_KEYS
        prompt = next((extra_info[key] for key in keys if extra_info.get(key) is not None), None)
        if prompt is None:
            raise ConfigError(
                f"extra_info has no {' or '.join(map(repr, keys))}, and verl gives a reward no "
                "other prompt: put it into the column extra_info of the data set, or name its key "
                f"as prompt_key; its keys are {', '.join(map(repr, list(extra_info)[:20])) or '-'}"
            )
        label = extra_info.get(self.label_key) if self.label_key else None
        prompt = prompt if isinstance(prompt, str) else list(prompt)
        values = {"reference": ground_truth, **{k: extra_info.get(k) for k in ROLES[1:]}}
        return RewardSample(_task(prompt, response, values, {}), label)

    def result(self, reward: ResponseReward) -> dict[str, float]:
        """Return what verl is told of a reward. Raises GradingError."""
        self.function.agreement.latest()
        score = number_of(reward, self.unknown)
        return {"score": score, "unknown": float(reward.value is None)}


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **given: Any,
) -> dict[str, float]:
    """The `compute_score` of `verl`, whose arguments are verl's `reward_kwargs`, for
    `custom_reward_function.path=pkg://redraft.rewards` and `name=compute_score`.
    """
    score = _verl_of(given, sync=False)
    result: dict[str, float] = await score(data_source, solution_str, ground_truth, extra_info)
    return result


def compute_score_sync(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **given: Any,
) -> dict[str, float]:
    """The same without async, for `name=compute_score_sync`."""
    score = _verl_of(given, sync=True)
    result: dict[str, float] = score(data_source, solution_str, ground_truth, extra_info)
    return result


def _verl_of(given: Mapping[str, Any], *, sync: bool) -> Callable[..., Any]:
    """Return the function for these arguments, the same one each time."""
    arguments = {name: value for name, value in given.items() if name not in OF_VERL}
    return _verl_of_json(json.dumps(arguments, sort_keys=True, default=_plain), sync)


@cache
def _verl_of_json(arguments: str, sync: bool) -> Callable[..., Any]:  # noqa: FBT001  (a cache key)
    given = json.loads(arguments)
    budget = given.pop("budget", None)
    return verl(**given, budget=Budget(**budget) if budget else None, sync=sync)


def _plain(value: Any) -> Any:
    """Return lists and mappings of OmegaConf as Python's. Raises ConfigError."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise ConfigError(f"reward_kwargs are text, numbers, lists and mappings, got {value!r:.80}")


async def _compute(
    reward: VerlReward,
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **_: Any,
) -> dict[str, float]:
    sample = reward.sample(solution_str, ground_truth, extra_info or {})
    return reward.result((await reward.function.rewards([sample]))[0])


def _compute_sync(
    reward: VerlReward,
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **_: Any,
) -> dict[str, float]:
    sample = reward.sample(solution_str, ground_truth, extra_info or {})
    return reward.result(reward.function.rewards_sync([sample])[0])


def _checked_unknown(unknown: Any) -> Unknown:
    if unknown == "error" or (isinstance(unknown, int | float) and isfinite(unknown)):
        return cast("Unknown", unknown)
    raise ConfigError(f'unknown must be "error" or a number, got {unknown!r:.80}')


def number_of(reward: ResponseReward, unknown: Unknown) -> float:
    """Return a reward, or what stands for an unknown one, which is logged and counted in
    OpenTelemetry (`redraft.rewards.replaced`). Raises GradingError if that is an error.
    """
    if reward.value is not None:
        return reward.value
    if isinstance(unknown, str):
        raise GradingError(
            f"the reward is unknown ({reward.reason}); unknown=0.0, or another number, takes "
            "its place"
        )
    log.warning("an unknown reward becomes %s: %s", unknown, reward.reason)
    count("redraft.rewards.replaced", 1, {"reason": reward.reason[:100]})
    return float(unknown)


# ---- verifiers, OpenEnv


def verifiers_judge(
    graders: Any = None,
    judge: Any = None,
    *,
    name: str = "redraft",
    weight: float = 1.0,
    reference_field: str = "answer",
    blank: float | None = 0.0,
    **settings: Unpack[GradeSettings],
) -> Judge[float]:
    """Return a judge of verifiers (v1): its `score(task, trace)` is the reward of the last reply.

    Call it in a `@vf.reward` of a task, or return it from a task's `plugged_judges`. An unknown
    reward raises GradingError, which verifiers records as an error of the rollout and not as a
    number.

    Args:
        graders: As in `redraft.grade`.
        judge: As in `redraft.grade`.
        name: The name of the reward.
        weight: Its weight among the rewards of the task.
        reference_field: The field of the task's data with the reference, if it has one.
        blank: The reward of an empty reply, as in `RewardFunction`.
        **settings: As in `RewardFunction`.

    Raises:
        ConfigError: An argument is wrong.
    """
    from verifiers.v1 import Judge as VerifiersJudge  # pyright: ignore[reportMissingImports]
    from verifiers.v1 import JudgeConfig  # pyright: ignore[reportMissingImports]

    function = RewardFunction(graders, judge, blank=blank, **settings)

    class RedraftJudge(VerifiersJudge[float]):  # type: ignore[misc]
        async def score(self, task: Any, trace: Any) -> float:
            reference = getattr(task, reference_field, None)
            values = {"reference": reference}
            sample = RewardSample(_task(task.prompt_text, trace.last_reply, values, {}))
            reward = (await function.rewards([sample]))[0]
            function.agreement.latest()
            return number_of(reward, "error")

    return RedraftJudge(JudgeConfig(name=name, weight=weight))


def openenv(
    graders: Any = None,
    judge: Any = None,
    *,
    prompt: Callable[[Any, Any], str],
    response: Callable[[Any, Any], str],
    unknown: Unknown = "error",
    blank: float | None = 0.0,
    **settings: Unpack[GradeSettings],
) -> Rubric:
    """Return a rubric of OpenEnv, `await rubric(action, observation)`, alone or in its containers.

    Args:
        graders: As in `redraft.grade`.
        judge: As in `redraft.grade`.
        prompt: Returns what was asked, from an action and an observation of your environment.
        response: Returns the text to be rewarded, from the same.
        unknown: OpenEnv has no unknown reward: "error" raises GradingError where one is unknown; a
            number takes its place, is logged as a warning and counted.
        blank: The reward of a blank response, as in `RewardFunction`.
        **settings: As in `RewardFunction`.

    Raises:
        ConfigError: An argument is wrong.
    """
    from openenv.core.rubrics import Rubric as OpenEnvRubric  # pyright: ignore[reportMissingImports]

    function = RewardFunction(graders, judge, blank=blank, **settings)
    unknown = _checked_unknown(unknown)

    class RedraftRubric(OpenEnvRubric):  # type: ignore[misc]
        async def forward(self, action: Any, observation: Any) -> float:
            text = response(action, observation)
            sample = RewardSample(Task(prompt(action, observation), text))
            reward = (await function.rewards([sample]))[0]
            function.agreement.latest()
            return number_of(reward, unknown)

    return RedraftRubric()
