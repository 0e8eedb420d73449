"""A judge that fails on a third of the calls, in every way that a server can fail, never produces a
number that nobody chose: in trainers, over HTTP, on the command line, and in each adapter.

The hosts that are not installed are skipped; verifiers and OpenEnv have stand-ins here, and tests
of their own in tests/trainers.
"""

import asyncio
import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from chat_server import ChatServer, verdict

from redraft import rewards
from redraft.errors import GradingError

FAILURES = {
    "unavailable": 503,
    "broken": 500,
    "busy": 429,
    "not found": 404,
    "refused": (400, "no"),
    "a page": b"<html>",
    "an empty object": b"{}",
    "no choices": b'{"choices": []}',
    "no JSON": b"...",
    "prose": "I like it.",
    "nothing": "",
    "no content": {"content": None},
    "cut off": {"content": verdict(4)[:40], "finish_reason": "length"},
    "filtered": {"content": "", "finish_reason": "content_filter"},
    "no verdict": "{}",
    "no criteria": '{"reason": "So.", "criteria": {}, "done": false}',
    "too high": verdict(9),
    "negative": verdict(-1),
    "null": verdict(3).replace("3", "null"),
    "not a number": verdict(math.nan),
    "infinite": verdict(math.inf),
    "a word": verdict(3).replace("3", '"good"'),
}
KNOWN = {"good": (4, 0.8), "poor": (2, 0.4)}  # what the judge says, and the score
NAMED = -7.0  # the number that a user names for what is unknown
QUESTIONS = {
    f"Question {n}: {kind}?": f"An answer, {kind}."
    for n, failure in enumerate(FAILURES)
    for kind in (*KNOWN, failure)
}
QUICK = {"retries": 0}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def judge():
    """A server that fails on each third answer, in another way each time."""
    replies = {**FAILURES, **{kind: verdict(score) for kind, (score, _) in KNOWN.items()}}
    kinds = {f"An answer, {kind}.": reply for kind, reply in replies.items()}

    def reply(messages, n):
        asked = messages[-1]["content"]
        return next(reply for answer, reply in kinds.items() if answer in asked)

    server = ChatServer(reply)
    yield server.model
    server.close()


async def each(reward):
    """Return what a function of a question and an answer returns for each, or its error."""
    found = []
    for question, answer in QUESTIONS.items():
        try:
            found.append(await reward(question, answer))
        except GradingError as error:
            found.append(type(error))
    return found


def in_thread(function):
    """Return the same function with await, in a thread without an event loop."""

    async def call(*arguments):
        return await asyncio.to_thread(function, *arguments)

    return call


# ---- trainers


async def trl(judge):
    reward = rewards.trl("judge", judge, **QUICK)
    return await reward(prompts=[*QUESTIONS], completions=[*QUESTIONS.values()])


async def trl_sync(judge):
    reward = rewards.trl("judge", judge, sync=True, **QUICK)
    return await asyncio.to_thread(reward, [*QUESTIONS], [*QUESTIONS.values()])


def verl_call(question, answer):
    return {
        "data_source": "d",
        "solution_str": answer,
        "ground_truth": None,
        "extra_info": {"prompt": question},
    }


async def verl(judge, **settings):
    score = rewards.verl("judge", judge, **QUICK, **settings)

    async def reward(question, answer):
        return (await score(**verl_call(question, answer)))["score"]

    return await each(reward)


async def verl_named(judge):
    return await verl(judge, unknown=NAMED)


async def verl_sync(judge):
    score = rewards.verl("judge", judge, sync=True, **QUICK)
    return await each(in_thread(lambda *pair: score(**verl_call(*pair))["score"]))


async def compute_score(judge):
    given = {"graders": ["judge"], "judge": judge, **QUICK}

    async def reward(*pair):
        return (await rewards.compute_score(**verl_call(*pair), **given))["score"]

    return await each(reward)


async def compute_score_sync(judge):
    given = {"graders": ["judge"], "judge": judge, "unknown": NAMED, **QUICK}
    score = rewards.compute_score_sync
    return await each(in_thread(lambda *pair: score(**verl_call(*pair), **given)["score"]))


async def verifiers_judge(judge):
    verifier = rewards.verifiers_judge("judge", judge, **QUICK)

    async def reward(question, answer):
        task, trace = SimpleNamespace(prompt_text=question), SimpleNamespace(last_reply=answer)
        return await verifier.score(task, trace)

    return await each(reward)


async def openenv(judge, **settings):
    rubric = rewards.openenv(
        "judge",
        judge,
        prompt=lambda action, observation: observation,
        response=lambda action, observation: action,
        **QUICK,
        **settings,
    )

    async def reward(question, answer):
        return await rubric(answer, question)

    return await each(reward)


async def openenv_named(judge):
    return await openenv(judge, unknown=NAMED)


# ---- over HTTP, and on the command line


async def over_http(judge, folder, call):
    """Return what a function of a client of a gateway and of a question and an answer returns."""
    for package in ("uvicorn", "httpx2", "prometheus_client"):
        pytest.importorskip(package, reason=f"no {package}")
    from gateway.running import config_for, http_client, running

    config = config_for(folder, judge, settings=QUICK)
    async with (
        running(config) as (url, _),
        http_client(url.removesuffix("/v1")) as client,
    ):
        return await call(client)


async def v1_rewards(judge, folder):
    async def post(client):
        async def reward(*pair):
            return (await client.post("/v1/rewards", json=verl_call(*pair))).json()["score"]

        return await each(reward)

    return await over_http(judge, folder, post)


async def v1_rewards_at_once(judge, folder):
    async def post(client):
        body = {"samples": [verl_call(*pair) for pair in QUESTIONS.items()]}
        found = (await client.post("/v1/rewards", json=body)).json()["rewards"]
        return [sample["score"] for sample in found]

    return await over_http(judge, folder, post)


def verify_call(question, answer):
    message = {"type": "message", "role": "assistant", "content": answer}
    asked = {"input": [{"role": "user", "content": question}]}
    return {"responses_create_params": asked, "response": {"output": [message]}}


async def verify(judge, folder):
    async def post(client):
        async def reward(*pair):
            reply = await client.post("/verify", json=verify_call(*pair))
            return reply.json()["reward"] if reply.status_code == 200 else reply.status_code

        return await each(reward)

    return await over_http(judge, folder, post)


async def verify_named(judge, folder):
    async def post(client):
        async def reward(*pair):
            reply = await client.post(f"/verify?unknown={NAMED}", json=verify_call(*pair))
            assert reply.json().get("mask_sample", False) == (reply.json()["reward"] == NAMED)
            return reply.json()["reward"]

        return await each(reward)

    return await over_http(judge, folder, post)


async def as_rewards(judge, folder):
    from in_process import run_in_process

    rows = [json.dumps({"input": q, "output": a}) for q, a in QUESTIONS.items()]
    (folder / "rollouts.jsonl").write_text("\n".join(rows))
    command = ["grade", "rollouts.jsonl", "--as-rewards", "--grader", "judge", "--judge", judge]
    done = await asyncio.to_thread(run_in_process, command, cwd=folder)
    assert done.returncode == 1
    return [json.loads(line)["reward"] for line in done.out.splitlines()]


# ---- adapters


async def datasets(judge):
    data = pytest.importorskip("datasets", reason="no datasets")
    from redraft.adapters.datasets import add_scores

    data.disable_progress_bars()
    rows = data.Dataset.from_dict({"prompt": [*QUESTIONS], "response": [*QUESTIONS.values()]})
    scored = await asyncio.to_thread(add_scores, rows, "judge", judge, **QUICK)
    return scored["redraft_score"][:]


async def dspy(judge):
    package = pytest.importorskip("dspy", reason="no dspy")
    from redraft.adapters.dspy import feedback_metric, metric

    plain, with_feedback = (
        make("judge", judge, unknown=NAMED, **QUICK) for make in (metric, feedback_metric)
    )

    def score(question, answer):
        gold = package.Example(question=question).with_inputs("question")
        pred = package.Prediction(answer=answer)
        assert plain(gold, pred) == with_feedback(gold, pred).score
        return plain(gold, pred)

    return await each(in_thread(score))


async def gepa(judge, **settings):
    from redraft.adapters.gepa import evaluator

    evaluate = evaluator("judge", judge, prompt="Write.", **QUICK, **settings)
    return await each(in_thread(lambda question, answer: evaluate(answer)[0]))


async def gepa_named(judge):
    return await gepa(judge, unknown=NAMED)


async def inspect_ai(judge):
    pytest.importorskip("inspect_ai", reason="no inspect-ai")
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser
    from inspect_ai.scorer import Target

    from redraft.adapters.inspect_ai import redraft_scorer

    scorer = redraft_scorer("judge", judge, **QUICK)

    async def score(question, answer):
        said = [ChatMessageUser(content=question), ChatMessageAssistant(content=answer)]
        state = SimpleNamespace(messages=said, output=SimpleNamespace(completion=answer))
        found = await scorer(state, Target(""))
        return None if math.isnan(found.value) else found.value

    return await each(score)


async def langsmith(judge):
    from redraft.adapters.langsmith import evaluator

    evaluate = evaluator("judge", judge, **QUICK)

    async def score(question, answer):
        return (await evaluate({"question": question}, {"answer": answer}, {}))["score"]

    return await each(score)


async def llama_index(judge):
    pytest.importorskip("llama_index.core", reason="no llama-index-core")
    from redraft.adapters.llama_index import RedraftResponseEvaluator

    evaluator = RedraftResponseEvaluator("judge", judge, **QUICK)

    async def score(question, answer):
        found = await evaluator.aevaluate(question, answer)
        assert found.invalid_result == (found.score is None)
        return found.score

    return await each(score)


async def promptfoo(judge):
    from redraft.adapters.promptfoo import assertion

    check = assertion("judge", judge, unknown=NAMED, **QUICK)
    return await each(in_thread(lambda asked, answer: check(answer, {"prompt": asked})["score"]))


async def pydantic_ai(judge):
    """The validator tells no score: an answer passes, is sent back, or is an error."""
    package = pytest.importorskip("pydantic_ai", reason="no pydantic-ai")
    from redraft.adapters.pydantic_ai import output_validator

    validate = output_validator("judge", judge, target_score=0.6, **QUICK)

    async def score(question, answer):
        context = SimpleNamespace(partial_output=False, prompt=question, retry=0, max_retries=1)
        try:
            assert await validate(context, answer) == answer
        except package.ModelRetry:
            return 0.4
        return 0.8

    return await each(score)


async def pydantic_evals(judge):
    pytest.importorskip("pydantic_evals", reason="no pydantic-evals")
    from redraft.adapters.pydantic_evals import RedraftEvaluator

    evaluator = RedraftEvaluator("judge", judge, settings=QUICK)

    async def score(question, answer):
        context = SimpleNamespace(inputs=question, output=answer, expected_output=None)
        return (await evaluator.evaluate(context)).value

    return await each(score)


HOSTS = {  # what each makes of an unknown reward
    trl: None,
    trl_sync: None,
    verl: GradingError,
    verl_named: NAMED,
    verl_sync: GradingError,
    compute_score: GradingError,
    compute_score_sync: NAMED,
    verifiers_judge: GradingError,
    openenv: GradingError,
    openenv_named: NAMED,
    v1_rewards: None,
    v1_rewards_at_once: None,
    verify: 502,
    verify_named: NAMED,
    as_rewards: None,
    datasets: None,
    dspy: NAMED,
    gepa: GradingError,
    gepa_named: NAMED,
    inspect_ai: None,
    langsmith: None,
    llama_index: None,
    promptfoo: NAMED,
    pydantic_ai: GradingError,
    pydantic_evals: GradingError,
}


@pytest.fixture
def stand_ins(monkeypatch):
    """Stand-ins for the classes of verifiers and OpenEnv, where these are not installed."""

    class Judge:
        def __class_getitem__(cls, _):
            return cls

        def __init__(self, config):
            pass

    class Rubric:
        def __call__(self, *arguments):
            return self.forward(*arguments)

    for name, parts in {
        "verifiers": {"Judge": Judge, "JudgeConfig": dict},
        "verifiers.v1": {"Judge": Judge, "JudgeConfig": dict},
        "openenv": {},
        "openenv.core": {},
        "openenv.core.rubrics": {"Rubric": Rubric},
    }.items():
        module = ModuleType(name)
        vars(module).update(parts)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__)
async def test_no_number_that_nobody_chose(host, judge, tmp_path, stand_ins):
    found = await (host(judge) if host.__code__.co_argcount == 1 else host(judge, tmp_path))
    expected = [KNOWN[kind][1] for kind in KNOWN] + [HOSTS[host]]
    names = [question.partition(": ")[2] for question in QUESTIONS]
    assert [*zip(names, found, strict=True)] == [
        (name, score if not isinstance(score, float) else pytest.approx(score))
        for name, score in zip(names, expected * len(FAILURES), strict=True)
    ]


def test_every_host_is_in_the_table():
    adapters = {path.stem for path in (ROOT / "src/redraft/adapters").glob("*.py")}
    functions = {name for name in rewards.__all__ if hasattr(rewards, name)} - {
        "Agreement",
        "AgreementTracker",
        "ResponseReward",
        "RewardFunction",
        "RewardSample",
        "agreement_of",
        "reward_of",
    }
    hosts = {host.__name__ for host in HOSTS}
    assert (adapters - {"__init__", "grades"}) | functions <= hosts
