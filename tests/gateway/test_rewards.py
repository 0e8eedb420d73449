"""Rewards over HTTP: in verl's form, many at once, and in NeMo Gym's, behind keys and budgets."""

import json
from contextlib import asynccontextmanager

import pytest

from redraft.gateway.keys import KeyLimits, KeyRing
from redraft.gateway.rewards import MAX_SAMPLES, REWARDS_PATH, VERIFY_PATH

from .clients.scripted_upstream import ScriptedUpstream
from .running import config_for, http_client, running, wait_until_recorded

CRITERIA = ("instructions", "correctness", "completeness", "clarity")
PROMPT = {"question": "What is 2 + 2?"}
VERIFY = {
    "responses_create_params": {"input": [{"role": "user", "content": "What is 2 + 2?"}]},
    "response": {
        "id": "resp_1",
        "output": [
            {"type": "reasoning", "summary": []},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "It is 4.", "annotations": []}],
            },
        ],
    },
    "expected_answer": "4",
}


def verdict(score):
    scores = {name: {"evidence": "", "change": "", "score": score} for name in CRITERIA}
    return json.dumps({"reason": "So.", "criteria": scores, "done": False})


@pytest.fixture
def judge():
    """A judge that fails on answers that hold "fail", and else gives 4 of 5."""
    upstream = ScriptedUpstream(
        lambda body: (503, "no", {}) if "fail" in json.dumps(body["messages"]) else verdict(4)
    )
    yield upstream
    upstream.close()


@asynccontextmanager
async def rewarding(tmp_path, judge, headers={}, **changes):
    """Serve a gateway with one profile; yields a client, and the gateway."""
    fields = {"graders": ["judge"], "settings": {"retries": 0}, "judge": None, **changes}
    config = config_for(tmp_path, judge.url, **fields)
    async with (
        running(config) as (url, gateway),
        http_client(url.removesuffix("/v1"), headers=headers) as client,
    ):
        yield client, gateway


def sample(text, **others):
    return {"data_source": "gsm8k", "solution_str": text, "extra_info": PROMPT, **others}


async def test_a_sample_and_many(tmp_path, judge):
    """A failed judge is null; a blank response is 0 and asks nobody. Nothing is written."""
    async with rewarding(tmp_path, judge) as (client, gateway):
        one = await client.post(REWARDS_PATH, json=sample("It is 4.", ground_truth=4))
        assert (one.status_code, one.json()["score"]) == (200, 0.8)
        assert one.json()["parts"] == {"judge": 0.8}
        texts = ["It is 4.", "fail", " ", "It is 5."]
        body = {"model": "refine/fast", "samples": [sample(text) for text in texts]}
        many = (await client.post(REWARDS_PATH, json=body)).json()["rewards"]
        assert [each["score"] for each in many] == [0.8, None, 0.0, 0.8]
        assert many[1]["reason"].startswith("judge: ")
        await wait_until_recorded(gateway)
        assert 'model="refine/fast",status="200",wire="rewards"} 2.0' in gateway.metrics.text()
    assert len(judge.bodies) == 4
    assert all("criteria" in json.dumps(body) for body in judge.bodies)
    assert "2 + 2" in json.dumps(judge.bodies[0]["messages"])


@pytest.mark.parametrize("text", ["", " \n", "\ufeff", "\u200b", "\0"])
async def test_a_response_without_a_visible_character_is_blank(tmp_path, judge, text):
    async with rewarding(tmp_path, judge) as (client, _):
        reply = await client.post(REWARDS_PATH, json=sample(text))
    assert reply.json() == {"score": 0.0, "parts": {}, "reason": ""}
    assert not judge.bodies


async def test_requirements_gate(tmp_path, judge):
    """A profile's conditions are those of rewards: 0 where one is not met."""
    async with rewarding(tmp_path, judge, required_graders=("words:3-",)) as (client, _):
        body = {"samples": [sample("It is 4."), sample("4")]}
        many = (await client.post(REWARDS_PATH, json=body)).json()["rewards"]
    assert [each["score"] for each in many] == [0.8, 0.0]


async def test_verify(tmp_path, judge):
    """NeMo Gym gets its request back with a reward; an unknown one is an error, or a number that
    the caller named, for a sample that is to be masked.
    """
    failing = json.loads(json.dumps(VERIFY).replace("It is 4.", "fail"))
    async with rewarding(tmp_path, judge) as (client, _):
        assert (await client.post(VERIFY_PATH, json=VERIFY)).json() == {**VERIFY, "reward": 0.8}
        reply = await client.post(VERIFY_PATH, json=failing)
        assert reply.status_code == 502
        assert reply.json()["error"]["code"] == "reward_unknown"
        named = (await client.post(f"{VERIFY_PATH}?unknown=0.25", json=failing)).json()
        assert (named["reward"], named["mask_sample"]) == (0.25, True)
        assert named["failure_reason"].startswith("judge: ")
        wrong = await client.post(f"{VERIFY_PATH}?unknown=nan", json=failing)
        assert (wrong.status_code, "must be a number" in wrong.text) == (400, True)


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (REWARDS_PATH, {}, "solution_str"),
        (REWARDS_PATH, {"samples": []}, "samples"),
        (REWARDS_PATH, {"samples": [sample("a")] * (MAX_SAMPLES + 1)}, "samples"),
        (REWARDS_PATH, {"samples": [sample("a"), {"solution_str": 3}]}, "samples.1.solution_str"),
        (REWARDS_PATH, sample("a", extra_info={"index": 1}), "extra_info"),
        (REWARDS_PATH, sample("a", extra_info={"prompt": [3, {"role": "user"}]}), "extra_info"),
        (REWARDS_PATH, sample("a", extra_info={"prompt": 3}), "extra_info"),
        (VERIFY_PATH, {}, "response"),
        (VERIFY_PATH, {"response": {"output": [3]}}, "extra_info"),
        (VERIFY_PATH, {**VERIFY, "responses_create_params": {"input": 3}}, "extra_info"),
    ],
)
async def test_mistakes_name_the_field(tmp_path, judge, path, body, field):
    async with rewarding(tmp_path, judge) as (client, _):
        reply = await client.post(path, json=body)
    if reply.status_code == 200:  # a blank response needs no prompt
        assert reply.json()["reward"] == 0
        return
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
    assert not judge.bodies


async def test_keys_and_budgets(tmp_path, judge):
    """Each sample counts; a key without money left is refused, and one without the profile."""
    with KeyRing(tmp_path) as ring:
        _, secret = ring.add("trainer", limits=KeyLimits(calls_per_day=0))
        _, other = ring.add("other", profiles=["pass/tiny"])
    async with rewarding(tmp_path, judge) as (client, _):
        for key, status in ((secret, 402), (other, 400), ("wrong", 401)):
            headers = {"authorization": f"Bearer {key}"}
            reply = await client.post(REWARDS_PATH, json=sample("It is 4."), headers=headers)
            assert reply.status_code == status, reply.text
    assert not judge.bodies


@pytest.mark.slow
async def test_a_whole_batch_waits_for_its_turn(tmp_path, judge):
    """As many samples as may be sent are graded, however many requests run at once."""
    async with rewarding(tmp_path, judge) as (client, _):
        body = {"samples": [sample(f"It is {n}.") for n in range(MAX_SAMPLES)]}
        reply = await client.post(REWARDS_PATH, json=body)
    assert reply.status_code == 200, reply.text
    assert [each["score"] for each in reply.json()["rewards"]] == [0.8] * MAX_SAMPLES
