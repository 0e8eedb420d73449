"""Each quirk of a provider or a server gets what is right, through every face: `quirks/*.toml`,
whose form CONTRIBUTING.md describes.

No test waits: retries and limiters get a clock that advances when they sleep, and the server notes
the time of each request.
"""

import asyncio
import json
import logging
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import httpx2
import pytest
import pytest_asyncio

import redraft
from redraft.errors import GradingError, ModelError
from redraft.gateway.app import Gateway
from redraft.gateway.config import GatewayConfig, Profile, ServedModel
from redraft.middleware import concurrency, endpoint_limiter
from redraft.middleware import retry as retry_module
from redraft.models import Chat

from . import fault_server as fs
from .quirk_files import FACES, TEXT, Play, QuirkError, has_field, load_quirk, load_quirks

QUIRKS = load_quirks()
JUDGE = redraft.Judge({"truth": "It is true."})
QUESTION = "What is a qubit?"
TASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
SAMPLING = {"temperature": 0.0, "max_tokens": 500, "seed": 7}
NO_SPACES = str.maketrans(" '", "--")
ONCE = {"max_iterations": 0, "noise_aware": False}
GRADERS = "words:1-50"
STOPS = {  # why a batch stops, and the errors that may stop it; others fail their row
    "fatal": {"AuthenticationError", "ModelUnavailableError"},
    "outage": {"BadResponseError", "ModelUnavailableError", "ModelTimeoutError"},
}
MORE_WAIT = 1.0  # seconds by which a wait may be longer than what was asked for
MAX_LEFT_OUT = 0.25  # of all plays: a quirk that most faces cannot play says little


class Clock:
    """A time that advances when something sleeps, and then at once."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        until = self.now + seconds
        await asyncio.sleep(0)
        self.now = max(self.now, until)


class SleepingOn:
    """The module asyncio, with the time and the `sleep` of a clock."""

    def __init__(self, clock):
        self.time, self.sleep = clock, clock.sleep

    def get_running_loop(self):
        return self

    def __getattr__(self, name):
        return getattr(asyncio, name)


def address_key(quirk, face):
    return f"{quirk.name}/{face.name.translate(NO_SPACES)}"


@dataclass
class Stage:
    """One server for all plays, a gateway before it, and the clock."""

    clock: Clock
    url: str = ""
    gateway: httpx2.AsyncClient | None = None
    plays: dict[str, Play] = field(default_factory=dict)

    def address(self, key):
        return f"{self.url}/{key}/v1"

    def begin(self, quirk, face):
        """Return the play of a quirk before a face, and the key of its address."""
        key = address_key(quirk, face)
        self.plays[key] = play = Play(quirk, face.role, self.clock)
        return play, key

    async def serve(self, reader, writer):
        """Answer requests as the play of their address says; at other addresses a writer
        answers.
        """
        try:
            while request := await fs._read(reader):
                play = self.plays.get(request.path.removeprefix("/").partition("/v1")[0])
                if request.method != "POST":
                    raw = fs.models("m")
                else:
                    raw = play.answer(request.body) if play else fs.good(TEXT)
                writer.write(raw)
                await writer.drain()
                head, _, body = raw.partition(b"\r\n\r\n")
                if len(body) < int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0]):
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(tmp_path_factory, request):
    """The server of all plays, and the gateway of those that run."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(retry_module.retry.__kwdefaults__, "sleep", clock.sleep)
        patch.setitem(retry_module.retry.__kwdefaults__, "jitter", lambda: 0.1)
        patch.setitem(
            endpoint_limiter.EndpointLimiter.__init__.__kwdefaults__, "sleep", clock.sleep
        )
        patch.setitem(endpoint_limiter.EndpointLimiter.__init__.__kwdefaults__, "clock", clock)
        patch.setattr(concurrency, "asyncio", SleepingOn(clock))
        stage = Stage(clock)
        server = await asyncio.start_server(stage.serve, "127.0.0.1", 0)
        stage.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = config_of(stage, tmp_path_factory.mktemp("gateway"), gateway_plays(request))
        async with AsyncExitStack() as stack:
            stack.callback(server.close)
            gateway = await stack.enter_async_context(Gateway(config, {}))
            transport = httpx2.ASGITransport(gateway.app)
            stage.gateway = await stack.enter_async_context(
                httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1/v1")
            )
            yield stage


def gateway_plays(request):
    """The quirks and faces of the tests of this session that go through the gateway."""
    plays = [
        (item.callspec.params["quirk"], item.callspec.params["face"])
        for item in request.session.items
        if item.path == request.path and "quirk" in item.fixturenames
    ]
    return [(quirk, face) for quirk, face in plays if face.through == "gateway"]


def config_of(stage, folder, plays):
    """Return a gateway with a profile for each play: the model writes, or it judges what another
    one writes.
    """
    models = {"plain": ServedModel("plain", stage.address("plain"), "m")}
    profiles = {}
    for quirk, face in plays:
        name = address_key(quirk, face).replace("/", "_")
        models[name] = ServedModel(name, stage.address(address_key(quirk, face)), "m")
        writer, graders, judge = (
            (name, GRADERS, None) if face.role == "writer" else ("plain", [JUDGE], name)
        )
        profiles[name] = Profile(name, writer, judge, graders, ONCE)
    return GatewayConfig(folder, models, profiles, port=0)


# ---- the faces


@dataclass(frozen=True)
class Outcome:
    """What came out: an answer, a score, or an error with its words. What a face does not show is
    None.
    """

    answer: str | None = None
    score: float | None = None
    failed: bool = False
    error: str | None = None
    words: str = ""
    finish: str | None = None
    reasoning: str | None = None
    usage: dict | None = None


def model_of(stage, key, quirk, face):
    return Chat("m", stage.address(key), stream=face.streamed, extra_body=quirk.params)


def counted(usage):
    return {"input": usage.input_tokens, "output": usage.output_tokens}


async def refine(stage, key, quirk, face):
    try:
        result = await redraft.refine(
            TASK, model_of(stage, key, quirk, face), GRADERS, **ONCE, **SAMPLING
        )
    except ModelError as error:
        return Outcome(failed=True, error=type(error).__name__, words=str(error))
    best = result.trace.best
    finish = "length" if best.truncated else "stop"
    return Outcome(
        best.text, finish=finish, reasoning=best.reasoning or "", usage=counted(best.usage)
    )


async def grade(stage, key, quirk, face):
    try:
        report = await redraft.grade((QUESTION, "A bit."), JUDGE, model_of(stage, key, quirk, face))
    except (ModelError, GradingError) as error:
        return Outcome(failed=True, words=str(error))
    return Outcome(score=report.score, usage=counted(report.usage))


async def batch(stage, key, quirk, face, folder):
    model, output = model_of(stage, key, quirk, face), folder / "out.jsonl"
    if face.role == "writer":
        report = await redraft.batch(
            [{"messages": TASK}], output, model, GRADERS, **ONCE, **SAMPLING
        )
    else:
        report = await redraft.batch(
            [{"prompt": QUESTION, "response": "A bit."}], output, False, JUDGE, model, **ONCE
        )
    (row,) = map(json.loads, output.read_text().splitlines())
    if report.rows.done != 1:
        return Outcome(
            failed=True, error=next(iter(report.rows.errors), report.stop), words=row["error"]
        )
    if face.role == "judge":
        return Outcome(score=row["best_score"], usage=counted(report.spending.usage))
    return Outcome(row["best"], usage=counted(report.spending.usage))


async def ask_gateway(stage, quirk, face):
    streams = face.name == "gateway to a stream"
    name = address_key(quirk, face).replace("/", "_")
    body = {
        "model": f"refine/{name}",
        "messages": TASK,
        "stream": streams,
        **SAMPLING,
        **quirk.params,
    }
    reply = await stage.gateway.post("/chat/completions", json=body)
    if reply.status_code != 200:
        return Outcome(failed=True, words=reply.json()["error"]["message"])
    if streams:
        chunks = [
            json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")
        ]
        if "error" in chunks[-1]:
            return Outcome(failed=True, words=chunks[-1]["error"]["message"])
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
        said = {
            part: "".join(each["delta"].get(part) or "" for each in choices)
            for part in ("content", "refusal")
        }
        if refusal := said["refusal"]:
            return Outcome(failed=True, words=f"the model refused: {refusal}")
        return Outcome(said["content"], finish=choices[-1]["finish_reason"])
    whole = reply.json()
    if face.role == "judge":
        score = whole["redraft"]["score"]
        return Outcome(score=score, failed=score is None, words=whole["redraft"]["reason"])
    used = whole["usage"] or {}
    usage = {"input": used.get("prompt_tokens"), "output": used.get("completion_tokens")}
    (choice,) = whole["choices"]
    if refusal := choice["message"]["refusal"]:
        return Outcome(failed=True, words=f"the model refused: {refusal}")
    return Outcome(choice["message"]["content"], finish=choice["finish_reason"], usage=usage)


async def perform(stage, quirk, face, folder):
    """Play a quirk before a face; return what came out, and what the server received."""
    play, key = stage.begin(quirk, face)
    match face.through:
        case "refine":
            outcome = await refine(stage, key, quirk, face)
        case "grade":
            outcome = await grade(stage, key, quirk, face)
        case "batch":
            outcome = await batch(stage, key, quirk, face, folder)
        case _:
            outcome = await ask_gateway(stage, quirk, face)
    return outcome, play


# ---- what is right


def mistakes(right, face, outcome, play, log):
    """Yield what is not as it should be."""
    if outcome.failed != bool(right.error):
        yield f"it {'failed' if outcome.failed else 'did not fail'}: {outcome}"
        return
    if right.error:
        if right.error not in STOPS.get(outcome.error, {outcome.error or right.error}):
            yield f"the error is {outcome.error}: {outcome.words}"
        yield from (
            f"the error does not say {words!r}: {outcome.words}"
            for words in right.says
            if (words in outcome.words) is (face.through == "gateway" and "://" in words)
        )
    elif face.role == "writer":
        if outcome.answer != right.answer:
            yield f"the answer is {outcome.answer!r}"
        if outcome.finish not in {None, right.finish}:
            yield f"it finished with {outcome.finish!r}"
        if right.reasoning is not None and outcome.reasoning not in {None, right.reasoning}:
            yield f"the reasoning is {outcome.reasoning!r}"
    elif outcome.score != right.score:
        yield f"the score is {outcome.score}"
    if right.usage and outcome.usage:
        wanted = {
            name: None if count == "unknown" else count for name, count in right.usage.items()
        }
        if found := {
            name: count
            for name, count in outcome.usage.items()
            if name in wanted and count != wanted[name]
        }:
            yield f"the usage has {found}"
    yield from wrong_calls(right, face, play)
    yield from (f"nothing logged says {words!r}: {log}" for words in right.logs if words not in log)
    last = play.requests[-1]
    yield from (
        f"the last request has no {path}" for path in right.sends if not has_field(last, path)
    )
    yield from (f"the last request has {path}" for path in right.omits if has_field(last, path))


def wrong_calls(right, face, play):
    """Yield what is wrong with the calls. A batch goes on asking an endpoint that seems to be down,
    and probes one that refuses.
    """
    made = len(play.requests)
    goes_on = face.through == "batch" and right.error
    if not (
        right.calls <= made and (right.calls > 1 or made <= 2) if goes_on else made == right.calls
    ):
        yield f"it took {made} calls, not {right.calls}"
    for least, wait in zip(right.waits, play.waits, strict=False):
        if not least <= wait <= least + MORE_WAIT:
            yield f"it waited {wait:.2f} s, not {least}"
    if len(play.waits) < len(right.waits):
        yield f"it waited {len(play.waits)} times"


PLAYS = [(quirk, face) for quirk in QUIRKS for face in FACES.values() if quirk.is_played(face)]


def plays(*, in_batches):
    chosen = [(quirk, face) for quirk, face in PLAYS if (face.through == "batch") == in_batches]
    return pytest.mark.parametrize(
        ("quirk", "face"), chosen, ids=[f"{quirk.name}-{face.name}" for quirk, face in chosen]
    )


async def check(stage, caplog, quirk, face, folder=None):
    with caplog.at_level(logging.INFO, "redraft"):
        outcome, play = await perform(stage, quirk, face, folder)
    log = "\n".join(record.getMessage() for record in caplog.records)
    assert [*mistakes(quirk.right[face.role], face, outcome, play, log)] == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.slow(but_each=7)
@plays(in_batches=False)
async def test_quirk(stage, caplog, quirk, face):
    """What comes out is right."""
    await check(stage, caplog, quirk, face)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.slow(but_each=9)
@plays(in_batches=True)
async def test_quirk_in_a_batch(stage, tmp_path, caplog, quirk, face):
    """So it is for a row of a batch."""
    await check(stage, caplog, quirk, face, tmp_path)


# ---- the runner itself


def test_few_quirks_leave_faces_out():
    """Or the library would say little."""
    assert len(PLAYS) >= (1 - MAX_LEFT_OUT) * len(QUIRKS) * len(FACES)


def test_no_two_files_are_the_same():
    """What two servers do in the same way is one file."""
    assert len({repr((quirk.replies, quirk.params)) for quirk in QUIRKS}) == len(QUIRKS)


SAMPLE = """
server = "none"
situation = "a sample"
source = "https://example.org"
[[replies]]
status = 429
headers = { retry-after = "2" }
body = { error = { message = "slow down" } }
[[replies]]
text = "<think>hm</think>{answer}"
[right]
calls = 2
waits = [2.0]
finish = "stop"
reasoning = "hm"
usage = { input = 20, output = 10 }
logs = ["retry 1 of"]
sends = ["messages.role=user"]
omits = ["no_such_field"]
"""
WRONG = {
    "answer": "A bit.",
    "score": 0.6,
    "error": "RateLimitError",
    "calls": 1,
    "waits": [1.0],
    "finish": "length",
    "reasoning": "",
    "usage": {"input": "unknown"},
    "logs": ["something else"],
    "sends": ["no_such_field"],
    "omits": ["messages"],
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("face", ["refine", "refine streamed", "batch", "grade", "grade streamed"])
async def test_a_wrong_expectation_is_noticed(stage, tmp_path, caplog, face):
    """Each of what a file may expect, if the face shows it; else the library would prove
    nothing.
    """
    face, path = FACES[face], tmp_path / "sample.toml"
    path.write_text(SAMPLE)
    quirk = load_quirk(path)
    with caplog.at_level(logging.INFO, "redraft"):
        outcome, play = await perform(stage, quirk, face, tmp_path)
    right, log = quirk.right[face.role], "\n".join(record.getMessage() for record in caplog.records)
    assert not [*mistakes(right, face, outcome, play, log)]
    shown = {"answer", "finish", "reasoning"} if face.role == "writer" else {"score"}
    hidden = {"finish", "reasoning"} if face.through == "batch" else set()
    for name in (WRONG.keys() - {"answer", "finish", "reasoning", "score"} | shown) - hidden:
        assert [*mistakes(replace(right, **{name: WRONG[name]}), face, outcome, play, log)], name


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("face", ["refine", "batch", "grade", "batch of grades"])
async def test_a_wrong_error_is_noticed(stage, tmp_path, face):
    """Its kind where the face shows it, its words, and an answer where an error should be."""
    face, path = FACES[face], tmp_path / "refused.toml"
    path.write_text(
        SAMPLE.partition("[[replies]]")[0]
        + '[[replies]]\nstatus = 400\nbody = { error = { message = "no, thanks", code = "content_filter" } }\n'
    )
    quirk = load_quirk(path)
    outcome, play = await perform(stage, quirk, face, tmp_path)
    right = replace(quirk.right[face.role], error="ContentFilterError", says=["no, thanks"])
    assert not [*mistakes(right, face, outcome, play, "")]
    assert [*mistakes(replace(right, says=["no, please"]), face, outcome, play, "")]
    assert [*mistakes(replace(right, error="", says=[]), face, outcome, play, "")]
    assert outcome.error is None or [
        *mistakes(replace(right, error="RateLimitError"), face, outcome, play, "")
    ]


MALFORMED = {  # what is added to the sample, or replaces a part of it, and words of the error
    "an unknown key": (('server = "none"', 'server = "none"\nfoo = 1'), "unknown keys ['foo']"),
    "an unknown key of a reply": (
        ("status = 429", "statsu = 429"),
        "unknown keys ['statsu'] in replies",
    ),
    "an unknown key of what is right": (
        ("calls = 2", "call = 2"),
        "unknown keys ['call'] in right",
    ),
    "an unknown key of a role": (("calls = 2", "judge.call = 2"), "unknown keys ['call'] in right"),
    "no server": (('server = "none"', ""), "server is missing"),
    "no source": (("https://example.org", "a thread"), "source must be an https address"),
    "no reply": (("[[replies]]", "[[params.x]]"), "replies is missing"),
    "no form of a reply": (('text = "', 'unless = "'), "a reply has one of"),
    "two forms of a reply": (('text = "', 'raw = "x"\ntext = "'), "a reply has one of"),
    "an unknown face": (
        ('server = "none"', 'server = "none"\nleft_out = ["jduge"]\nwhy = "x"'),
        "unknown words ['jduge']",
    ),
    "no reason": (('server = "none"', 'server = "none"\nleft_out = ["judge"]'), "go together"),
    "no face": (
        ('server = "none"', 'server = "none"\nleft_out = ["judge", "writer"]\nwhy = "x"'),
        "leaves no face",
    ),
    "an error and an answer": (
        ("calls = 2", 'error = "ModelError"\nanswer = "x"'),
        "an error and an answer",
    ),
    "words of no error": (("calls = 2", 'says = ["x"]'), "right.says is about the error"),
    "an unknown error": (
        ("calls = 2", 'error = "ModellError"'),
        "no error is called 'ModellError'",
    ),
    "no TOML": (("[right]", "[right"), "bad.toml: "),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_named(tmp_path, name):
    """And what is wrong with it."""
    (old, new), words = MALFORMED[name]
    (tmp_path / "bad.toml").write_text(SAMPLE.replace(old, new))
    with pytest.raises(
        QuirkError, match=rf"^bad\.toml: .*{re.escape(words) if words != 'bad.toml: ' else ''}"
    ):
        load_quirks(tmp_path)
