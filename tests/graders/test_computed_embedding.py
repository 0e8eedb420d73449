"""The embedding grader with llama.cpp's server, and with invalid answers of a server."""

import subprocess
import sys

import pytest
from aiohttp import web

import redraft
from redraft import Budget, Candidate, Task
from redraft.errors import (
    BadResponseError,
    ConfigError,
    ModelError,
    ModelUnavailableError,
)
from redraft.graders.computed.embedding import Embedding
from redraft.grading import grade_many
from redraft.models.scoring import cosine_similarity
from redraft.session.options import Options
from redraft.session.perform import StepClient
from redraft.session.session import Session

SERVE = """
import sys, time, xllamacpp
wanted = xllamacpp.CommonParams()
wanted.model.path, wanted.hostnames, wanted.port = sys.argv[1], ["127.0.0.1"], 0
wanted.embedding, wanted.pooling_type = True, xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
wanted.n_ctx, wanted.n_parallel, wanted.cpuparams.n_threads, wanted.verbosity = 8192, 1, 1, -1
server = xllamacpp.Server(wanted)
print(server.listening_address, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def embedding_server(gguf_file):
    """Return the name of an embedding model on a real llama.cpp server."""
    command = [sys.executable, "-c", SERVE, str(gguf_file)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield f"{process.stdout.readline().strip()}/v1#tiny"
        finally:
            process.kill()


async def run_grader(named, text, reference="the answer is clear and short"):
    """Return the feedback, or raise the error, of one grade with the call of a session."""
    grader = Embedding(named)
    session = Session(Options(retries=0), None, grader)
    try:
        return await grader.grade(
            Task("q", reference=reference),
            Candidate(0, text),
            StepClient(session.clients.client_for(grader.model)),
        )
    finally:
        await session.close()


async def test_real_server_compares_two_texts(embedding_server):
    """The same text scores 1, another one less, and the reason gives the cosine."""
    same = await run_grader(embedding_server, "the answer is clear and short")
    other = await run_grader(embedding_server, "model text reason")
    assert same.score == pytest.approx(1, abs=1e-6)
    assert 0 <= other.score < 1
    assert "cosine" in other.reason
    assert other.actions
    assert (await run_grader(embedding_server, " ")).score == 0


async def test_real_server_counts_its_tokens(embedding_server):
    """The usage of a grade is what the server reports; of a second one with a cache, nothing."""
    sample, grader, cache = (
        Task("q", "model text reason", reference="the answer is clear"),
        Embedding(embedding_server),
        {},
    )
    usages = [(await redraft.grade(sample, grader, cache=cache)).usage for _ in range(2)]
    assert [usage.calls for usage in usages] == [1, 0]
    assert usages[0].input_tokens >= 7 and usages[0].output_tokens == 0 and usages[0].cost is None
    priced = await redraft.grade(
        sample, grader, prices={"tiny": (1.0, 1.0)}, budget=Budget(usd=0.01)
    )
    assert priced.usage.cost == pytest.approx(usages[0].input_tokens / 1e6)


@pytest.fixture
async def replies():
    """Start a server that gives the answers of a script and records its requests."""
    message, asked = {}, []

    async def answer(request):
        asked.append((request.path, dict(request.headers), await request.json()))
        return web.json_response(message["body"], status=message.get("status", 200))

    app = web.Application()
    app.router.add_post("/v1/embeddings", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield message, asked, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


def rows(*vectors):
    return {"data": [{"index": i, "embedding": v} for i, v in enumerate(vectors)]}


async def test_one_call_embeds_both_texts(replies):
    """Rows are matched by their index, and the request names the model."""
    message, asked, url = replies
    message["body"] = {"data": list(reversed(rows([3.0, 4.0], [4.0, 3.0])["data"]))}
    feedback = await run_grader(f"{url}#m", "x", "y")
    assert feedback.score == pytest.approx(0.96)
    assert [(path, body["model"], body["input"]) for path, _, body in asked] == [
        ("/v1/embeddings", "m", ["x", "y"])
    ]


async def test_negative_cosine_scores_zero(replies):
    """The reason gives the negative value."""
    message, _, url = replies
    message["body"] = rows([1.0, 0.0], [-1.0, 0.0])
    feedback = await run_grader(f"{url}#m", "x", "y")
    assert feedback.score == 0
    assert "-1.000" in feedback.reason
    assert "negative" in feedback.reason


async def test_key_is_sent_to_its_own_host_only(replies, monkeypatch):
    """OPENAI_API_KEY goes to OPENAI_BASE_URL, a key in a URL to that URL, and neither is shown."""
    message, asked, url = replies
    message["body"] = rows([1.0], [1.0])
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-1")
    await run_grader(f"{url}#m", "x")
    secret = url.replace("http://", "http://:sk-canary-2@")
    await run_grader(f"{secret}#m", "x")
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    await run_grader("openai:m", "x")
    assert [headers.get("Authorization") for _, headers, _ in asked] == [
        None,
        "Bearer sk-canary-2",
        "Bearer sk-canary-1",
    ]
    assert "canary" not in repr(Embedding(f"{secret}#m"))


@pytest.mark.parametrize(
    "body",
    [
        None, [], {}, {"data": []}, rows([1.0]), rows([1.0], [1.0, 2.0]), rows([], []), rows([0.0], [1.0]), rows(["1"], [1.0]),
        rows([True], [1.0]), {"data": [{"embedding": [1.0]}, {"embedding": [1.0]}]}, {"data": [1, 2]}, rows([1.7e308, 1.7e308], [1.0, 1.0]),
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]},
    ],
)  # fmt: skip
async def test_invalid_vectors_are_an_error(replies, body):
    """An answer that is no list of vectors never becomes a score."""
    message, _, url = replies
    message["body"] = body
    with pytest.raises(BadResponseError):
        await run_grader(f"{url}#m", "x", "y")


async def test_errors_name_the_model_and_the_host(replies):
    """Errors are worded like those of a chat model."""
    message, _, url = replies
    message |= {"status": 404, "body": {"error": {"message": "no such model"}}}
    with pytest.raises(ModelUnavailableError, match="m at 127.0.0.1.*no such model"):
        await run_grader(f"{url}#m", "x", "y")
    with pytest.raises(ModelError):
        await run_grader("http://127.0.0.1:1/v1#m", "x", "y")


async def test_calls_are_those_of_the_session(replies):
    """They are counted, retried, cached, and limited by the budget, as all calls are."""
    message, asked, url = replies
    message["body"] = {
        **rows([3.0, 4.0], [4.0, 3.0]),
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    cache, sample, grader = {}, Task("q", "x", reference="y"), Embedding(f"{url}#m")
    first = await redraft.grade(sample, grader, cache=cache)
    again = await redraft.grade(sample, grader, cache=cache)
    assert first.score == again.score == pytest.approx(0.96)
    assert (first.usage.calls, first.usage.input_tokens, again.usage.calls, len(asked)) == (
        1,
        7,
        0,
        1,
    )
    two = await grade_many(
        [Task("q", text, reference="y") for text in "ab"], grader, budget=Budget(calls=1)
    )
    assert sorted(report.error is None for report in two) == [False, True] and len(asked) == 2
    message["status"] = 503
    with pytest.raises(redraft.errors.RedraftError):
        await redraft.grade(sample, grader, retries=1)
    assert len(asked) == 4


async def test_missing_reference_is_an_error(replies):
    """The error comes before any request."""
    _, asked, url = replies
    with pytest.raises(ConfigError, match="reference"):
        await run_grader(f"{url}#m", "x", None)
    assert asked == []


@pytest.mark.parametrize(
    ("a", "b", "value"), [([1, 0], [0, 1], 0), ([1e-200], [1e-200], 1), ([2, 2], [-1, -1], -1)]
)
def test_cosine(a, b, value):
    """The cosine is right for vectors of any size."""
    assert cosine_similarity(a, b) == pytest.approx(value)
