"""A newcomer's mistakes on the command line: each message names the argument, its value and what to
do next.

Most run in this process, since only the message matters. Tests of a stream or of the end of a
process start one.
"""

import asyncio
import json
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys

import pytest
import trustme

from redraft.cli import main
from redraft.cli.errors import report_error
from redraft.cli.exit_codes import exit_code_of

FILES = {
    "ok.txt": b"hello there",
    "latin.txt": b"caf\xe9 na\xefve",
    "binary.dat": bytes(range(256)),
    "empty.txt": b"",
    "foreign.jsonl": b'{"a": 1}\n',
    "labelled.csv": b"question,answer,score\nWhat is 2+2?,4,5\nWhat is 3+3?,7,1\nWhat is 3+4?,7,5\n",
    "unknown_key.toml": b"targte-score = 0.5\n",
    "wrong.toml": b'criterai = ["a"]\n',
    "no_number.txt": b"no number",
    "broken.toml": b"[criteria\n",
    "schema.json": b"{",
}
NONE = "--model none"

# Arguments: the exit code, and what the message contains: the argument, the value, what to do next.
TYPED = {
    # commands and options
    "shwo proof.jsonl": (2, ["command 'shwo'", "did you mean 'show'?", "redraft --help"]),
    "valdate x": (2, ["command 'valdate'", "did you mean 'validate'?"]),
    "zzz": (2, ["command 'zzz'", "there are run, best, grade"]),
    "run hi --modle x": (2, ["--modle", "--model", "redraft run --help"]),
    "--verzion": (2, ["--verzion", "--version"]),
    "priors shwo": (2, ["shwo", "show", "redraft priors --help"]),
    "run": (2, ["a prompt is missing", 'redraft run "']),
    "best": (2, ["a prompt is missing", 'redraft best "']),
    "grade": (2, ["--response", "redraft grade --help"]),
    "show": (2, ["TRACE", "redraft show --help"]),
    "validate": (2, ["DATA", "redraft validate --help"]),
    "rubric": (2, ["a file with labelled answers, or a description", "redraft rubric --help"]),
    "priors learn": (2, ["TRACE", "redraft priors learn --help"]),
    "models openai": (2, ["URL", "'openai'", "http(s)://host:port/v1", "redraft models --help"]),
    "models http://h:0/v1": (2, ["URL", "its port '0'", "redraft models --help"]),
    "run hi --model http://127.0.0.1:9/v1#m": (
        1,
        ["m at 127.0.0.1:9: cannot be reached", "redraft models URL"],
    ),
    "demo --cases x": (2, ["--cases", "redraft demo --help"]),
    # values
    "run hi --max-iterations three": (
        2,
        ["--max-iterations", "'three' is not a whole number in the range x>=0"],
    ),
    "run hi --max-iterations -1": (2, ["--max-iterations", "-1", "x>=0"]),
    "run hi --target-score 2": (2, ["--target-score", "2.0", "0<=x<=1"]),
    "run hi --target-score high": (
        2,
        ["--target-score", "'high' is not a number in the range 0<=x<=1"],
    ),
    "run hi --drafts many": (2, ["--drafts", "'many'"]),
    "run hi --price tiny=0.15": (2, ["--price", "'tiny=0.15'", "MODEL=IN,OUT"]),
    "run hi --price 0.1,0.2": (2, ["--price", "'0.1,0.2'", "MODEL=IN,OUT"]),
    "run hi --price tiny=a,b": (2, ["--price", "'tiny=a,b'", "MODEL=IN,OUT"]),
    "run hi --require-validated yes": (2, ["--require-validated", "'yes'", "'warn'"]),
    "best x --response ok.txt": (2, ["--response at least twice"]),
    "best x -n 3 --response ok.txt --response ok.txt": (2, ["-n", "--response", "leave out one"]),
    "rnu hi": (2, ["command 'rnu'", "did you mean 'run'?"]),
    "run hi --debgu": (2, ["--debgu", "--debug"]),
    "run hi --config unknown_key.toml": (2, ["'targte-score'", "did you mean 'target-score'?"]),
    f"run --response ok.txt --require words:1-9 {NONE} --trace ok.txt": (
        2,
        ["'ok.txt' exists already", "--resume ok.txt -o FILE"],
    ),
    "run hi": (2, ["Name one with --model", "a --response and requirements"]),
    f"run --response ok.txt --grader helpfulness {NONE} --require-validated error": (
        2,
        ["give --model"],
    ),
    f"batch labelled.csv -o o.jsonl {NONE} --answer str": (2, ["--answer"]),
    # models and keys
    "run hi --model openai/gpt-oss-20b": (
        2,
        ["'openai/gpt-oss-20b'", "openai:gpt-oss-20b", "ollama:gpt-oss:20b"],
    ),
    "run hi --model gpt-4o": (2, ["'gpt-4o'", "did you mean 'openai:gpt-4o'?"]),
    "run hi --model localhost:8080": (
        2,
        ["'localhost:8080'", "did you mean 'http://localhost:8080/v1#NAME'?"],
    ),
    "run hi --model weights.gguf": (2, ["'weights.gguf'", "did you mean 'local:weights.gguf'?"]),
    "run hi --model local:weights.gguf": (2, ["no model file 'weights.gguf'"]),
    "run hi --model openai:": (2, ["'openai:'", "no model after the colon", "'openai:NAME'"]),
    "run hi --model openai:gpt-4o": (2, ["openai:gpt-4o", "set OPENAI_API_KEY"]),
    "run hi --model http://127.0.0.1:9/v1": (
        2,
        ["http://127.0.0.1:9/v1#NAME", "`redraft models http://127.0.0.1:9/v1` lists"],
    ),
    "run hi --model None": (2, ["'None'", "--model none"]),
    "run hi --model http://127.0.0.1:9/v1#m --judge opnai:x": (
        2,
        ["judge:", "'opnai:x'", "did you mean 'openai:x'?"],
    ),
    f"run hi {NONE}": (2, ["--model none", "--response FILE"]),
    f"grade --response ok.txt {NONE}": (2, ["nothing to grade with", "--require SPEC"]),
    "rubric --from labelled.csv": (2, ["a model must propose", "--model", "redraft models"]),
    # names of graders and requirements
    f"run --response ok.txt --require wrods:5 {NONE}": (
        2,
        ["'wrods:5'", "did you mean 'words'?", "redraft graders"],
    ),
    f"run --response ok.txt --require words {NONE}": (
        2,
        ["'words'", "is not a range", "words:80-200"],
    ),
    f"run --response ok.txt --require words:a-b {NONE}": (2, ["'words:a-b'", "words:80-200"]),
    f"run --response ok.txt --grader helpfulnes {NONE}": (
        2,
        ["'helpfulnes'", "did you mean 'helpfulness'?", "redraft graders"],
    ),
    "graders helpfulnes": (2, ["'helpfulnes'", "did you mean 'helpfulness'?", "redraft graders"]),
    "graders help": (2, ["'help'", "did you mean 'helpfulness'"]),
    "graders zzz": (2, ["'zzz'", "there are judge, checklist", "redraft graders"]),
    f"grade --response ok.txt --grader exact:caes=false --reference ok.txt {NONE}": (
        2,
        ["'caes=false'", "did you mean case="],
    ),
    f"grade --response ok.txt --grader numeric:pick=best --reference ok.txt {NONE}": (
        2,
        ["pick", "'best'", "last or first or only"],
    ),
    f"grade --response ok.txt --grader helpfulness {NONE}": (
        2,
        ["no judge is wanted", "'helpfulness' asks one"],
    ),
    # what a grader needs
    f"grade --response ok.txt --grader numeric {NONE}": (
        2,
        ["'numeric'", "reference", "--reference FILE"],
    ),
    f"grade --response ok.txt --grader numeric --reference no_number.txt {NONE}": (
        2,
        ["'numeric'", "one number", "'no number'"],
    ),
    f"grade --response ok.txt --grader citations {NONE}": (
        2,
        ["'citations'", "context", "--context FILE"],
    ),
    "validate labelled.csv --grader exact": (
        2,
        ["'exact' needs a reference", "-c reference=COLUMN", "'question', 'answer', 'score'"],
    ),
    f"batch labelled.csv -o o.jsonl --grader numeric {NONE}": (
        2,
        ["'numeric' needs a reference", "labelled.csv", "--column reference=NAME"],
    ),
    "compare labelled.csv labelled.csv --score scor": (
        2,
        ["--score 'scor'", "did you mean 'score'"],
    ),
    "batch https://x.example/a.jsonl -o o.jsonl": (
        2,
        ["'https://x.example/a.jsonl'", "download it first"],
    ),
    "validate labelled.csv --grader correctness --judge http://127.0.0.1:9/v1#m": (
        2,
        [
            "'correctness' needs a reference",
            "labelled.csv",
            "-c reference=COLUMN",
            "'question', 'answer', 'score'",
        ],
    ),
    # columns and labels
    "validate labelled.csv --grader exact -c promt=question": (
        2,
        ["'promt=question'", "did you mean 'prompt'?"],
    ),
    "validate labelled.csv --grader exact -c prompt=qestion": (
        2,
        ["prompt=qestion", "did you mean 'question'?", "'score'"],
    ),
    "validate labelled.csv --grader exact -c prompt": (
        2,
        ["-c prompt", "OURS=THEIRS", "prompt=question"],
    ),
    "validate foreign.jsonl --grader answered": (2, ["the response", "response=COLUMN", "'a'"]),
    "validate labelled.csv": (2, ["--grader NAME", "--rubric FILE"]),
    "validate labelled.csv --grader jduge": (
        2,
        ["'jduge'", "did you mean 'judge'?", "redraft graders"],
    ),
    "validate labelled.csv --grader exact --kind stars": (2, ["--kind", "'stars'", "'score'"]),
    "validate labelled.csv --grader answered --scale 5": (2, ["--scale 5", "LOW-HIGH", "1-5"]),
    "validate labelled.csv --recorded mt_bench_paris": (
        2,
        ["'mt_bench_paris'", "did you mean 'mt_bench_pair'"],
    ),
    # files that are missing, unreadable, or of another kind
    "show nowhere.jsonl": (2, ["TRACE", "'nowhere.jsonl'", "does not exist"]),
    "show folder": (2, ["TRACE", "'folder'", "is a directory"]),
    "show empty.txt": (1, ["'empty.txt' is empty", "redraft run --trace"]),
    "show binary.dat": (1, ["'binary.dat'", "not JSON", "redraft run --trace"]),
    "show foreign.jsonl": (1, ["'foreign.jsonl'", "redraft run --trace"]),
    "show labelled.csv": (1, ["'labelled.csv'", "not JSON", "redraft run --trace"]),
    "run --resume empty.txt": (1, ["'empty.txt' is empty", "redraft run --trace"]),
    "run --resume foreign.jsonl": (1, ["'foreign.jsonl'", "redraft run --trace"]),
    "run hi --response nowhere.txt": (2, ["--response", "'nowhere.txt'", "does not exist"]),
    f"run --response latin.txt --require words:5 {NONE}": (
        2,
        ["--response", "latin.txt", "byte 0xe9 at 3", "UTF-8"],
    ),
    "best x --response ok.txt --response latin.txt --require words:3": (
        2,
        ["latin.txt", "byte 0xe9 at 3", "UTF-8"],
    ),
    "grade --response folder --require words:3": (2, ["--response", "'folder'", "is a directory"]),
    "grade --response ok.txt --rubric wrong.toml": (
        2,
        ["wrong.toml", "'criterai'", "did you mean 'criteria'?"],
    ),
    "grade --response ok.txt --rubric broken.toml": (2, ["broken.toml", "line 1"]),
    "grade --response ok.txt --rubric binary.dat": (2, ["'binary.dat'", "not UTF-8"]),
    "grade --response ok.txt --grader judge:nowhere.toml": (2, ["'nowhere.toml'", "No such file"]),
    "grade --response ok.txt --require json_schema:nowhere.json": (
        2,
        ["'nowhere.json'", "No such file"],
    ),
    "grade --response ok.txt --require json_schema:schema.json": (2, ["schema.json"]),
    "graders --cards-dir ok.txt": (2, ["--cards-dir", "'ok.txt'", "is a file"]),
    "demo nowhere": (2, ["'nowhere'", "does not exist"]),
    "demo folder": (2, ["folder", "no cases (*.toml)", "redraft demo --help"]),
    "validate nowhere.csv --grader exact": (2, ["DATA", "'nowhere.csv'", "does not exist"]),
    "validate binary.dat --grader exact": (2, ["'binary.dat'", ".jsonl"]),
    "rubric --from labelled.csv --start wrong.toml --model http://127.0.0.1:9/v1#m": (
        2,
        ["wrong.toml", "'criterai'"],
    ),
    "priors learn binary.dat": (1, ["'binary.dat'", "not JSON"]),
    "priors learn foreign.jsonl": (1, ["'foreign.jsonl'", "redraft run --trace"]),
    "priors show nobody": (2, ["'nobody'", "redraft priors"]),
    "priors forget nobody": (2, ["'nobody'", "redraft priors"]),
    "priors forget shipped": (2, ["shipped", "cannot be deleted"]),
    # outputs, and repeated commands
    f"run --response ok.txt --require words:2 {NONE} -o nowhere/out.txt": (
        2,
        ["--output", "nowhere/out.txt", "a folder that exists"],
    ),
    f"run --response ok.txt --require words:2 {NONE} -o folder": (
        2,
        ["--output", "folder", "it is a folder", "folder/OUT"],
    ),
    f"run --response ok.txt --require words:2 {NONE} --trace nowhere/t.jsonl": (
        2,
        ["'nowhere/t.jsonl'", "No such file"],
    ),
    f"run --response ok.txt --require words:2 {NONE} --trace foreign.jsonl": (
        2,
        ["'foreign.jsonl'", "--resume", "another file"],
    ),
    f"run - --response - --require words:2 {NONE}": (2, ["PROMPT and --response", "stdin"]),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with files of every wrong kind as the current one."""
    for name, held in FILES.items():
        (tmp_path / name).write_bytes(held)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("typed", TYPED)
def test_a_mistake_is_named_with_its_value_and_what_to_do(folder, capfd, typed):
    """The exit code tells usage errors from failures, the message has all three parts, and there is
    no traceback.
    """
    code, words = TYPED[typed]
    assert main(shlex.split(typed)) == code
    said = " ".join(capfd.readouterr().err.split())
    assert "Traceback" not in said and "should not happen" not in said
    assert [word for word in words if word not in said] == [], said
    assert not re.search(
        r"=(True|False|None)\b|`[a-z_]+`(?! lists)|^redraft: [a-z]+_[a-z_]+( must|:)|from Python",
        said,
    ), said
    assert not re.search(r"\b(\w+?)s? \(--\1\)", said) and len(
        set(hints := re.findall("`redraft[^`]*`", said))
    ) == len(hints), said


def test_the_suggestion_comes_before_the_list(folder, capfd):
    """The list is short, with the command that shows all of it."""
    main(["graders", "helpfulnes"])
    said = capfd.readouterr().err
    assert said.index("did you mean 'helpfulness'") < 60
    assert len(said) < 400


def test_an_empty_file_given_to_resume_is_kept(folder):
    """An empty file cannot be resumed, and is not removed."""
    assert main(["run", "--resume", "empty.txt"]) == 1
    assert (folder / "empty.txt").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="run as root")
@pytest.mark.parametrize(
    "typed",
    ["show secret.txt", "grade --response secret.txt --require words:2", "validate secret.txt"],
)
def test_an_unreadable_file_is_named(folder, capfd, typed):
    """The message has its path."""
    (folder / "secret.txt").write_text("x")
    (folder / "secret.txt").chmod(0)
    assert main(shlex.split(typed)) in {1, 2}
    assert "secret.txt" in capfd.readouterr().err


def test_an_interrupted_command_with_json_prints_only_json(folder, capfd, monkeypatch):
    """Not even the line end that follows a terminal's ^C is printed."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("redraft.runs.BatchRun.from_arguments", interrupt)
    args = [
        "batch",
        "labelled.csv",
        "-o",
        "o.jsonl",
        "--model",
        "none",
        "--require",
        "words:1-",
        "--log-format",
        "json",
    ]
    assert main(args) == 130
    assert [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()] == ["error"]


def test_a_folder_without_write_permission_is_named(capfd):
    """The message says what to do."""

    def refuse():
        raise PermissionError(13, "Permission denied", "/srv/t.jsonl")

    assert exit_code_of(refuse, report_error) == 1
    assert "in a folder where you may write" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("command", ["graders", f"run --response ok.txt --require words:2 {NONE}"])
def test_a_full_disk_behind_stdout_is_one_error(folder, command):
    """The message names the stream and the reason, and nothing else is printed."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "redraft", *shlex.split(command)],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    said = done.stderr.decode()
    assert done.returncode == 1 and "stdout cannot be written: No space left on device" in said
    assert "Traceback" not in said and "Exception ignored" not in said


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_an_answer_goes_to_stdout_when_its_file_is_full(folder, capfd):
    """The message names the path, and the answer that was paid for is printed."""
    assert (
        main(
            [
                "run",
                "--response",
                "ok.txt",
                "--require",
                "words:2",
                "--model",
                "none",
                "-o",
                "/dev/full",
            ]
        )
        == 1
    )
    seen = capfd.readouterr()
    assert seen.out == "hello there\n"
    assert (
        "/dev/full" in seen.err and "No space left" in seen.err and "on stdout instead" in seen.err
    )


@pytest.mark.slow
def test_a_closed_pipe_ends_the_program_quietly(folder):
    """Nothing is printed to stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", "redraft", "graders"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 1 and said == b""


CALLING = {  # commands that wait for a model
    "run": ["Say it", "--trace", "t.json"],
    "best": ["Say it", "-n", "2"],
    "grade": ["Say it", "--response", "answer.txt", "--grader", "judge"],
    "validate": ["labelled.csv", "--grader", "judge"],
    "rubric": ["answers to questions"],
    "batch": ["rows.jsonl", "-o", "out.jsonl"],
}


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize("command", CALLING)
def test_a_signal_ends_a_command_with_a_message(command, sent, redraft, serve):
    """Exit code 130 and no traceback, while a call waits for its reply."""
    server = serve(lambda messages, n: "hello")
    arrived = server.hold(0)
    for name, content in {
        **FILES,
        "answer.txt": b"It.",
        "rows.jsonl": b'{"prompt": "a"}\n',
    }.items():
        (redraft.folder / name).write_bytes(content)
    process = redraft.start(command, *CALLING[command], "--model", server.model)
    assert arrived.wait(60)
    process.send_signal(sent)
    if command == "batch":  # the first waits for calls in flight
        server.release()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"interrupted" in said and b"Traceback" not in said


@pytest.mark.parametrize(
    "sent",
    [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM],
    ids=["ctrl-c", "sigterm"],
)
def test_sigterm_during_validation_says_how_to_resume(redraft, serve, sent):
    """The message says what is saved and how to resume."""
    server = serve(lambda messages, n: "no verdict")
    arrived = server.hold(0)
    (redraft.folder / "labelled.csv").write_bytes(FILES["labelled.csv"])
    process = redraft.start(
        "validate",
        "labelled.csv",
        "--grader",
        "judge",
        "--judge",
        server.model,
        "--max-in-flight",
        "1",
    )
    assert arrived.wait(60)
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        b"interrupted; finished answers are saved" in said
        and b"without --restart to resume" in said
        and b"Traceback" not in said
    )


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", ["asked for /v1/chat/completions", "404"]),
        ("/api", ["404", "asked for /api/chat/completions", "/api/v1"]),
        ("/v2", ["404", "asked for /v2/chat/completions"]),
    ],
)
def test_a_404_names_the_url_and_suggests_the_versioned_one(folder, serve, capfd, path, words):
    """The message has the requested URL and, where the address has no version, the address to
    try.
    """
    server = serve(lambda messages, n: 404)
    address = f"http://127.0.0.1:{server.port}{path}"
    assert main(["run", "hi", "--model", f"{address}#tiny", "--require", "words:2"]) == 1
    said = capfd.readouterr().err
    assert [word for word in words if word not in said] == [], said
    assert (f"try {address}/v1" in said) is (path == "/api")


def test_models_suggests_the_versioned_base_url(folder, serve, monkeypatch, capfd):
    """`redraft models` says which address to try."""
    server = serve(lambda messages, n: "hi")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.port}")
    main(["models", "--json"])
    assert f"try http://127.0.0.1:{server.port}/v1" in capfd.readouterr().out


@pytest.mark.slow
async def test_an_untrusted_certificate_gives_one_advice(redraft, monkeypatch):
    """The message says what to set, and no hint sends the user elsewhere."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    async with await asyncio.start_server(
        lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context
    ) as server:
        address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1#m"
        done = await asyncio.to_thread(redraft.process, ["run", "hi", "--model", address])
    assert done.returncode == 1
    assert "set SSL_CERT_FILE" in done.err
    assert "redraft models" not in done.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_behind_the_errors_file_is_named(folder, capfd):
    """Not stdout is to blame, and a device is not read to show what was listed in it."""
    (folder / "in.jsonl").write_text('{"prompt":"a","response":"b"}\n{"prompt":""}\n')
    command = [
        "batch",
        "in.jsonl",
        "-o",
        "o.jsonl",
        "--model",
        "none",
        "--require",
        "words:1-9",
        "--errors",
        "/dev/full",
    ]
    assert main(command) == 1
    seen = capfd.readouterr()
    assert "errors file '/dev/full' cannot be written: No space left on device" in seen.err
    assert "stdout" not in seen.err and "Traceback" not in seen.err
