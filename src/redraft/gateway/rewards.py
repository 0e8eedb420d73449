"""Rewards for a training run: each response that a client sends is graded by a profile, and nothing
is refined.

`POST /v1/rewards` takes one sample by the names of verl's `compute_score`, or many as `samples`.
`POST /verify` takes a response in the form of NeMo Gym's resources servers. Each sample is a
request of its own in the budgets of the key and in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from math import isfinite
from typing import Annotated, Any
from urllib.parse import parse_qs

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..base.jsontext import dumps
from ..base.threads import run_in_thread_if_large
from ..errors import ConfigError
from ..graders.base import gather_or_cancel
from ..loop.task import Task
from ..rewards import ResponseReward, reward_of
from ..rewards.libraries import PROMPT_KEYS
from ..session.refinement import make_refinement
from .client_exchange import JSON
from .exchange import GatewayError, invalid_request
from .guardrail import (
    JUDGE_ERRORS,
    GuardrailExchange,
    conversation_of,
    find_profile,
    gateway_log,
    grade_only,
)
from .prepared_requests import PreparedRequest
from .refining import ProfileRefiner
from .routing import REFINE

REWARDS_PATH, VERIFY_PATH = "/v1/rewards", "/verify"
MAX_SAMPLES = 256
SAMPLES_AT_ONCE = 32  # of a request, which leave room for others
REFERENCE_KEYS = ("expected_answer", "ground_truth", "reference")  # of a row of NeMo Gym
LENIENT = ConfigDict(extra="ignore", strict=True)


class RewardRequestSample(BaseModel):
    """A response to be rewarded, by the names of verl; `extra_info` has the prompt, a text or chat
    messages, as prompt, question, raw_prompt or messages.
    """

    model_config = LENIENT

    solution_str: str
    ground_truth: Any = None
    extra_info: dict[str, Any] = {}


class RewardRequest(BaseModel):
    """Several samples. `model`: the profile that grades, such as "refine/NAME"; None: the only one,
    or the one that is called "default".
    """

    model_config = LENIENT

    model: str | None = None
    samples: Annotated[list[RewardRequestSample], Field(min_length=1, max_length=MAX_SAMPLES)]


class RewardReply(BaseModel):
    """A reward from 0 to 1, null if it is unknown, the parts of each grader, and why it is unknown;
    "" if it is known.
    """

    score: float | None
    parts: dict[str, float | None] = {}
    reason: str = ""


class RewardExchange(GuardrailExchange):
    """One request for rewards, and the reply."""

    @property
    def label(self) -> str:
        return "rewards"

    async def answer(self, body: Mapping[str, Any]) -> None:
        """Answer a request with this body. Raises GatewayError as long as nothing is sent."""
        is_verify = self.scope["path"] == VERIFY_PATH
        is_batch = not is_verify and "samples" in body
        unknown = self._unknown() if is_verify else None
        sample = _sample_of_response(body) if is_verify else body
        model = None if is_verify else body.get("model")
        given = body if is_batch else {"model": model, "samples": [sample]}
        request = read_reward_request(given, "" if is_batch else "samples.0.")
        assert self.caller
        target = find_profile(self.routing, self.caller, request.model)
        self.model = REFINE + target.profile.name
        turns = asyncio.Semaphore(SAMPLES_AT_ONCE)
        rewards = await gather_or_cancel(
            [self._reward_apart(target, sample, turns) for sample in request.samples]
        )
        replies = [reply_of(reward) for reward in rewards]
        if is_verify:
            content = verify_reply(body, rewards[0], unknown)
        else:
            content = {"rewards": replies} if is_batch else replies[0]
        await self._send_whole(200, [(b"content-type", JSON)], dumps(content))

    def _unknown(self) -> float | None:
        """Return the number for an unknown reward in the query. Raises GatewayError 400."""
        text = parse_qs(self.scope["query_string"].decode("latin-1")).get("unknown", [""])[0]
        if not text:
            return None
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not isfinite(number):
            raise invalid_request("unknown", f"unknown must be a number, got {text[:40]!r}")
        return number

    async def _reward_apart(
        self, target: ProfileRefiner, sample: RewardRequestSample, turns: asyncio.Semaphore
    ) -> ResponseReward:
        """Return the reward of a sample, which is a request of its own, once it is its turn."""
        part = RewardExchange(self.gateway, self.protocol, self.scope, self._receive, self._send)
        part.caller, part.model = self.caller, self.model
        part.raw = dumps(sample.model_dump())
        try:
            async with turns:
                return await part.reward(target, sample)
        finally:
            if self.caller and part._held:
                self.gateway.answers.free(self.caller.id, part._held)
            if part.facts:  # a blank response has none
                self.facts = part.facts
                self._add_facts()

    async def reward(self, target: ProfileRefiner, sample: RewardRequestSample) -> ResponseReward:
        """Return the reward of a sample. Raises GatewayError if it may not be graded."""
        if not sample.solution_str.strip():
            return ResponseReward(0.0)
        prepared = await run_in_thread_if_large(len(self.raw), self._prepare_sample, target, sample)
        reason = ""
        try:
            async with aclosing(self._refined_items(target, prepared)) as items:
                async for _ in items:
                    pass
        except GatewayError as error:
            if not (error.code.startswith("upstream_") or error.code in JUDGE_ERRORS):
                raise
            reason = error.code
        trace = prepared.log.trace
        reward = (
            reward_of(trace, 0)
            if trace and trace.candidates
            else ResponseReward(None, reason=reason)
        )
        if reward.value is None:
            gateway_log.warning("request %s: unknown reward: %s", self.trace_id, reward.reason)
        return reward

    def _prepare_sample(
        self, target: ProfileRefiner, sample: RewardRequestSample
    ) -> PreparedRequest:
        """Return the refinement that only grades a sample. Raises GatewayError 400."""
        prompt = next((p for key in PROMPT_KEYS if (p := sample.extra_info.get(key))), None)
        messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        conversation = conversation_of(messages)
        if not conversation:
            raise invalid_request(
                "extra_info",
                f"extra_info must have the prompt as one of {', '.join(PROMPT_KEYS)}: a text, or "
                "messages of which one is the user's",
            )
        options = {"max_iterations": 0}
        body = {"model": self.model, "messages": list(conversation), "redraft": options}
        prepared = target.prepare(self.protocol.read_request(body), self.trace_id)
        session, of_profile = prepared.refinement.session, prepared.refinement.trace.task
        truth = sample.ground_truth
        reference = truth if truth is None or isinstance(truth, str) else dumps(truth).decode()
        task = Task(
            of_profile.messages,
            sample.solution_str,
            reference=reference,
            requirements=of_profile.requirements,
        )
        try:
            made = make_refinement(task, session, session.options.deadline_at, model_searched=False)
        except ConfigError as error:
            raise invalid_request("samples", str(error)) from None
        refinement = replace(made, next_steps=grade_only(made.next_steps))
        return replace(prepared, refinement=refinement)


def read_reward_request(body: Mapping[str, Any], prefix: str = "") -> RewardRequest:
    """Read a request. Raises GatewayError 400 that names the field at fault, without the prefix."""
    try:
        return RewardRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(map(str, first["loc"])).removeprefix(prefix)
        raise invalid_request(path, f"{path}: {first['msg']}") from None


def reply_of(reward: ResponseReward) -> dict[str, Any]:
    """Return a reward as a client reads it."""
    reply = RewardReply(score=reward.value, parts=dict(reward.parts), reason=reward.reason)
    return reply.model_dump()


def verify_reply(
    body: Mapping[str, Any], reward: ResponseReward, unknown: float | None
) -> dict[str, Any]:
    """Return the reply to /verify: the request with its reward. Raises GatewayError 502 for an
    unknown reward, unless the request names a number for it; then the sample is to be masked.
    """
    if reward.value is not None:
        return {**body, "reward": reward.value}
    if unknown is None:
        raise GatewayError(
            502,
            "reward_unknown",
            f"the reward is unknown ({reward.reason}); /verify?unknown=0 takes another number, and "
            "masks the sample",
        )
    return {**body, "reward": unknown, "mask_sample": True, "failure_reason": reward.reason}


def _sample_of_response(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sample in a request of NeMo Gym: the model's last text, and what was asked."""
    asked = body.get("responses_create_params")
    asked_for = asked.get("input") if isinstance(asked, Mapping) else None
    response = body.get("response")
    output = response.get("output") if isinstance(response, Mapping) else None
    if not isinstance(output, list):
        raise invalid_request("response", "response.output must be a list of items")
    texts = [
        _text_of_parts(item.get("content"))
        for item in output
        if isinstance(item, Mapping) and item.get("type", "message") == "message"
    ]
    messages = [
        {"role": item.get("role"), "content": _text_of_parts(item.get("content"))}
        for item in (asked_for if isinstance(asked_for, list) else ())
        if isinstance(item, Mapping)
    ]
    return {
        "solution_str": texts[-1] if texts else "",
        "ground_truth": next((body[key] for key in REFERENCE_KEYS if key in body), None),
        "extra_info": {"prompt": asked_for if isinstance(asked_for, str) else messages},
    }


def _text_of_parts(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return "".join(text for text in texts if isinstance(text, str))
