"""--model-param and --judge-param, and the tables of files with the same names: what is sent, saved
and refused.
"""

import json
import os
from contextlib import aclosing

import pytest

from redraft.cli.commands.serve import read_config
from redraft.errors import ConfigError
from redraft.gateway.config import parse_config
from redraft.gateway.profile_models import ConnectedModels
from redraft.gateway.protocols.chat_requests import read_request
from redraft.gateway.refining import ProfileRefiner, answer_request

from .chat_server import is_judging, writer_and_judge

OWN = ("model", "messages", "response_format", "stream", "temperature")
LOW = {"reasoning_effort": "low"}
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture
def server(serve):
    return serve(writer_and_judge(["Hello there."], [5]))


def sent(server):
    """Return what the writer and the judge were sent besides the usual fields, each kind of request
    once.
    """
    kinds = {}
    for body in server.bodies:
        further = {name: value for name, value in body.items() if name not in OWN}
        kinds.setdefault("judge" if is_judging(body["messages"]) else "writer", []).append(further)
    assert all(each == all_of[0] for all_of in kinds.values() for each in all_of)
    server.bodies.clear()
    return {kind: all_of[0] for kind, all_of in kinds.items()}


def files(redraft, folder="", user="", **more):
    """Write the configuration of the folder and of the user, and further files."""
    for path, text in {
        redraft.folder / "redraft.toml": folder,
        f"{os.environ['REDRAFT_HOME']}/config.toml": user,
        **{redraft.folder / name.replace("_", "."): text for name, text in more.items()},
    }.items():
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


MODEL = ("--model-param", "chat_template_kwargs.enable_thinking=false")
JUDGE = ("--judge-param", "reasoning_effort=low", "--judge-param", "max_tokens=8192")
COMMANDS = {
    "run": ["run", "Q", "--model", "M"],
    "best": ["best", "Q", "-n", "2", "--model", "M", "--grader", "judge"],
    "batch": ["batch", "in.jsonl", "-o", "out.jsonl", "--model", "M", "--no-calibrate"],
    "grade": ["grade", "Q", "--response", "a.txt", "--model", "M"],
    "validate": ["validate", "labels.jsonl", "--grader", "judge", "--model", "M"],
}


@pytest.mark.parametrize(
    "command", [*list(COMMANDS)[:-1], pytest.param("validate", marks=pytest.mark.slow)]
)
def test_every_command_sends_what_it_is_given(redraft, server, command):
    """The judge is the model that writes, and has its parameters, too."""
    labels = "".join(
        json.dumps({"prompt": f"q{n}", "response": f"a{n}", "label": n % 2}) + "\n"
        for n in range(2)
    )
    files(redraft, in_jsonl='{"prompt": "a"}\n', a_txt="Hello there.", labels_jsonl=labels)
    done = redraft(
        *(server.model if word == "M" else word for word in COMMANDS[command]), *MODEL, *JUDGE
    )
    assert done.returncode in {0, 3}, done.err
    writer = {} if command in {"grade", "validate"} else {"writer": NO_THINKING}
    assert sent(server) == {**writer, "judge": {**NO_THINKING, **LOW, "max_tokens": 8192}}


def test_the_nearest_wins_name_by_name(redraft, server):
    """The grader before the command line, that before the file of the folder, and that before the
    user's own.
    """
    files(
        redraft,
        "[judge-param]\na = 2\nb = 2\nc = 2\n[model-param]\ntop_p = 0.5",
        f'[judge-param]\na = 1\nz = 1\n[models."{server.model}".params]\nenable_thinking = false\ntop_p = 0.1',
    )
    done = redraft(
        "run",
        "Q",
        "--model",
        server.model,
        "--judge-param",
        "b=3",
        "--judge-param",
        "c=3",
        "--grader",
        "judge:c=4,top_k=1",
    )
    assert done.returncode == 0, done.err
    declared = {"enable_thinking": False, "top_p": 0.5}
    assert sent(server) == {
        "writer": declared,
        "judge": {**declared, "a": 2, "z": 1, "b": 3, "c": 4, "top_k": 1},
    }


def test_what_a_model_needs_is_declared_in_a_file(redraft, server, serve):
    """By the name that it is given, for each of several models, and for no other."""
    down = serve(lambda messages, n: 401)
    files(redraft, f'[models."{server.model}".params]\nenable_thinking = false\n')
    done = redraft("grade", "Q", "--response", "-", "--judge", server.model, input="Hello there.")
    assert done.returncode == 0, done.err
    assert sent(server) == {"judge": {"enable_thinking": False}}
    redraft("run", "Q", "--model", down.model, "--require", "words:1-9")
    assert "enable_thinking" not in down.bodies[0]


def test_a_resumed_trace_keeps_its_parameters(redraft, server):
    """They are saved with the trace; those that are typed win, name by name."""
    trace = redraft.folder / "t.jsonl"
    run = (
        "run",
        "Q",
        "--model",
        server.model,
        *MODEL,
        *JUDGE,
        "--trace",
        trace,
        "--budget-calls",
        "1",
    )
    assert redraft(*run).returncode in {0, 1, 3}
    header = json.loads(trace.read_text().splitlines()[0])["settings"]
    assert (header["model-param"], header["judge-param"]) == (
        NO_THINKING,
        {**LOW, "max_tokens": 8192},
    )
    server.bodies.clear()
    done = redraft(
        "run", "--resume", trace, "--budget-calls", "9", "--judge-param", "max_tokens=99"
    )
    assert done.returncode == 0, done.err
    assert sent(server)["judge"] == {**NO_THINKING, **LOW, "max_tokens": 99}


def test_rows_are_done_again_if_a_parameter_changes(redraft, server):
    """A row of a batch is finished for its parameters only."""
    files(redraft, in_jsonl='{"prompt": "a"}\n')
    run = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", server.model, "--no-calibrate")
    for params, calls in (
        ((), 2),
        ((), 2),
        (("--judge-param", "top_k=1"), 3),
        (("--model-param", "top_k=1"), 4),
    ):
        assert redraft(*run, *params).returncode == 0
        assert server.calls == calls


MISTAKES = {
    "[model-param]\nbase_url = 'http://evil'": "redraft.toml: model-param: 'base_url': no parameter chooses a model, a host, a key",
    "[judge-param]\nheaders = {a = 'b'}": "redraft.toml: judge-param: 'headers': no parameter chooses",
    "[judge-param]\nx = {api_key = 'sk-secret'}": "redraft.toml: judge-param: a parameter holds no key",
    "[judge-param]\nsince = 2026-01-01": "redraft.toml: judge-param: the value of a parameter is one that JSON has",
    "model-param = ['top_p=1']": "redraft.toml: model-param must be parameters by name",
    "models = 'm'": 'redraft.toml: models must be tables such as [models."ollama:qwen3".params]',
    "[models.'ollama:m']\nparam = {}": 'a model has one table, [models."ollama:m".params]',
    "[models.'http://me:pw@host/v1#m'.params]\na = 1": "an address in a file must not contain a user or a key",
    "[models.'ollama:m'.params]\nstream = true": "ollama:m: 'stream': it is set for each call and is no parameter",
}


@pytest.mark.parametrize(("text", "says"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_mistakes_in_a_file_are_named(redraft, text, says):
    """With the file and the key, and no secret."""
    files(redraft, text)
    done = redraft("run", "Q", "--model", "ollama:m")
    assert (done.returncode, says in done.err) == (2, True), done.err
    assert "sk-secret" not in done.err and "pw@" not in done.err


@pytest.mark.parametrize("option", ["--model-param", "--judge-param"])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            "api_key=sk-secret-123",
            "'api_key': no parameter chooses a model, a host, a key or a header",
        ),
        (
            "max_completion_tokens=9",
            "write max_tokens, which is sent under the name that the endpoint takes",
        ),
        ("low", "'low' is not NAME=VALUE, such as reasoning_effort=low"),
    ],
)
def test_mistakes_on_the_command_line_are_named(redraft, option, given, says):
    """With the option."""
    done = redraft("run", "Q", "--model", "ollama:m", option, given)
    assert (done.returncode, option in done.err, says in done.err, "secret" in done.err) == (
        2,
        True,
        True,
        False,
    )


def test_an_error_advises_an_option_that_exists(redraft, serve):
    """A verdict that is cut off twice, and a parameter that the endpoint refuses, in the words of
    the command line.
    """
    cut = {
        "id": "x",
        "choices": [
            {
                "index": 0,
                "finish_reason": "length",
                "message": {"content": "", "reasoning_content": "Hm"},
            }
        ],
    }
    thinking = serve(
        lambda messages, n: json.dumps(
            {**cut, "usage": {"prompt_tokens": 9, "completion_tokens": 2048}}
        ).encode()
    )
    done = redraft("grade", "Q", "--response", "-", "--judge", thinking.model, input="A.")
    assert "give it more by --judge-param max_tokens=32768, or let it reason less" in done.err
    assert [body.get("max_tokens") for body in thinking.bodies] == [None, 8192]
    done = redraft("run", "Q", "--model", thinking.model, "--require", "words:1-9")
    assert "(raise --max-tokens)" in done.err
    refusing = serve(
        lambda messages, n: (400, "Unrecognized request argument supplied: reasoning_effort")
    )
    done = redraft(
        "run",
        "Q",
        "--model",
        refusing.model,
        "--require",
        "words:1-9",
        "--model-param",
        "reasoning_effort=low",
    )
    assert "'reasoning_effort' is a parameter that is given by --model-param" in done.err


# ---- servers


@pytest.mark.parametrize("way", ["the command", "a file"])
async def test_a_profile_of_the_gateway_has_them(server, way, tmp_path):
    """What the request chooses is nearer; a judge has nothing of a request."""
    if way == "the command":
        config = read_config(
            None,
            {
                "model": server.model,
                "model_param": {"top_p": 0.5, "max_tokens": 50, **NO_THINKING},
                "judge_param": LOW,
                "folder": str(tmp_path),
            },
        )
    else:
        profile = {
            "model-param": {"top_p": 0.5, "max_tokens": 50, **NO_THINKING},
            "judge_param": LOW,
        }
        url, _, model = server.model.partition("#")
        config = parse_config(
            {"models": {"m": {"url": url, "model": model}}, "profiles": {"default": profile}},
            tmp_path,
            {},
        )
    refiner = ProfileRefiner(config.profiles["default"], ConnectedModels(config.models, {}))
    for fields, top_p, most in (({}, 0.5, 50), ({"top_p": 0.9, "max_tokens": 20}, 0.9, 20)):
        request = read_request(
            {"model": "refine/default", "messages": [{"role": "user", "content": "Q"}], **fields}
        )
        async with aclosing(answer_request(refiner.prepare(request, "t1"))) as items:
            assert [item async for item in items][-1].reply.text == "Hello there."
        written = {"top_p": top_p, "max_tokens": most, **NO_THINKING}
        assert sent(server) == {"writer": written, "judge": {"top_p": 0.5, **NO_THINKING, **LOW}}


@pytest.mark.parametrize(
    "command",
    [
        ("run", "Q", "--require", "words:1-9"),
        ("run", "Q", "--grader", "answered", "--trace", "t.jsonl"),
        ("best", "Q", "--grader", "answered"),
        ("batch", "in.jsonl", "-o", "out.jsonl", "--grader", "answered"),
        ("grade", "Q", "--response", "in.jsonl", "--require", "words:1-9"),
    ],
    ids=" ".join,
)
def test_parameters_of_a_judge_that_nobody_asks_are_refused(redraft, server, command):
    """On the command line; in a file they are for the commands with a judge."""
    files(redraft, "[judge-param]\ntop_p = 0.5\n", in_jsonl='{"prompt": "a"}\n')
    run = (*command, "--model", server.model)
    done = redraft(*run, *JUDGE)
    assert (
        done.returncode == 2 and "--judge-param: none of the graders asks the judge" in done.err
    ), done.err
    assert (
        server.calls,
        (redraft.folder / "t.jsonl").exists(),
        (redraft.folder / "out.jsonl").exists(),
    ) == (0, False, False)
    assert redraft(*run).returncode in {0, 3}


async def test_a_model_of_the_gateway_has_what_it_needs(server, tmp_path):
    """As writer and as judge, beneath the parameters of the profile; mistakes name the table."""
    url, _, name = server.model.partition("#")
    table = {"url": url, "model": name, "params": {"top_p": 0.1, **NO_THINKING}}
    tables = {"models": {"m": table}, "profiles": {"default": {"judge-param": {"top_p": 0.7}}}}
    config = parse_config(tables, tmp_path, {})
    refiner = ProfileRefiner(config.profiles["default"], ConnectedModels(config.models, {}))
    request = read_request(
        {"model": "refine/default", "messages": [{"role": "user", "content": "Q"}], "top_p": 0.9}
    )
    async with aclosing(answer_request(refiner.prepare(request, "t1"))) as items:
        assert [item async for item in items][-1].reply.text == "Hello there."
    assert sent(server) == {
        "writer": {"top_p": 0.9, **NO_THINKING},
        "judge": {"top_p": 0.7, **NO_THINKING},
    }
    with pytest.raises(
        ConfigError, match="models.m.params: 'base_url': no parameter chooses a model, a host"
    ):
        parse_config(
            {"models": {"m": {**table, "params": {"base_url": "http://evil"}}}}, tmp_path, {}
        )
