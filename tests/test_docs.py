"""Docs execute, against a real llama.cpp server, and list what there is."""

import asyncio
import dataclasses
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import redraft
from in_process import Ended, run_code, run_in_process

ROOT = Path(__file__).parent.parent


def script(name):
    """A module in scripts/, which is no package."""
    spec = spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


examples = script("examples")
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if page not in examples.PAGES]
SITE = sorted((ROOT / "docs").rglob("*.md"))
OUTSIDE = {"benchmarks.md", "changelog.md", "contributing.md", "security.md"}  # pages that the build makes of files elsewhere
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(language):
    return [
        pytest.param(code, id=f"{page.name}-{n}")
        for page in PAGES
        for n, (kind, code) in enumerate(BLOCK.findall(page.read_text()))
        if kind == language
    ]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_in_the_docs_runs(code, plain_server, tmp_path):
    """Each block is a program of its own, with a model to be found."""
    done = run_code(code, env={"REDRAFT_MODEL": plain_server}, cwd=tmp_path)
    assert done.returncode == 0, done.err


@pytest.mark.parametrize("code", blocks("sh"))
def test_commands_in_the_docs_run(code, plain_server, tmp_path):
    """Typed one after the other; a model of random weights may leave demands unmet (3), but nothing may fail."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for line in code.splitlines():
        done = run_line(line, tmp_path, {"REDRAFT_MODEL": plain_server})
        assert done.returncode in (0, 3), (line, done.err)


def run_line(line, folder, env):
    """A line of a shell: a command of ours alone, or with its output in a file, runs in this process; the rest in a shell."""
    tokens = shlex.shlex(line, posix=True, punctuation_chars=True)
    tokens.commenters, tokens.whitespace_split = "#", True
    words = list(tokens)
    *command, arrow, target = words if words[-2:-1] == [">"] else [*words, "", ""]
    plain = not set("$`~*?[!{\\") & set(line) and not any(set(word) <= set("();<>|&") for word in command if word)
    if command[:1] == ["redraft"] and plain:
        done = run_in_process(command[1:], env=env, cwd=folder)
        if arrow:
            (folder / target).write_bytes(done.stdout)
        return done
    bin = Path(sys.executable).parent
    environment = {**os.environ, **env, "PATH": f"{bin}:{os.environ['PATH']}"}
    done = subprocess.run(line, shell=True, env=environment, cwd=folder, capture_output=True)
    return Ended([line], done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("page", examples.PAGES, ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_a_page_shows_what_its_examples_print(page, tmp_path):
    """The blocks of a page run in order in one folder; `python scripts/examples.py` writes the outputs anew."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert examples.with_outputs(page.read_text(), tmp_path, run_block) == page.read_text()


def run_block(language, code, folder):
    if language == "python":
        done = run_code(code, env=examples.ENVIRONMENT, cwd=folder)
        assert done.returncode == 0, (code, done.err)
        return done.out
    ended = [run_line(line, folder, examples.ENVIRONMENT) for line in code.splitlines()]
    for done in ended:
        assert done.returncode in (0, 3), (done.args, done.err)
    return "".join(done.out for done in ended)


def test_blocks_that_need_another_package_are_python():
    """They are compiled at least."""
    blocks = [code for page in examples.PAGES for kind, _, code in examples.BLOCK.findall(page.read_text()) if kind == "python"]
    others = [code for code in blocks if examples.needs_package(code)]
    assert len(others) == 2
    for code in others:
        compile(code, "<documentation>", "exec")


def test_the_fastapi_service_answers():
    """Both endpoints of the how-to guide, asked as an ASGI server asks them."""
    pytest.importorskip("fastapi", reason="the guide needs FastAPI, which is an extra of the tests")
    blocks = examples.BLOCK.findall((ROOT / "docs" / "how-to" / "fastapi.md").read_text())
    code = next(code for _, title, code in blocks if title == "service.py")
    module = type(sys)("service")
    sys.modules["service"] = module  # pydantic looks the annotations up
    try:
        exec(compile(code, "service.py", "exec"), vars(module))
        status, body = asyncio.run(post(module.app, "/refine", {"prompt": "Which colour is the sky?"}))
        answer = json.loads(body)
        assert (status, answer["answer"], answer["score"], answer["stop"]) == (200, "It is blue.", 1.0, "target")
        status, body = asyncio.run(post(module.app, "/stream", {"prompt": "Which colour is the sky?"}))
        events = [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line]
        assert (status, events[-1]) == (200, {"kind": "Outcome", "score": 1.0, "best": "It is blue."})
        status, _ = asyncio.run(post(module.app, "/refine", {"prompt": ""}))
        assert status == 422
    finally:
        del sys.modules["service"]


async def post(app, path, data):
    """Post JSON to an ASGI application."""
    sent, ended = [], asyncio.Event()
    requests = [{"type": "http.request", "body": json.dumps(data).encode(), "more_body": False}]

    async def receive():
        if not requests:
            await ended.wait()
            return {"type": "http.disconnect"}
        return requests.pop()

    async def send(message):
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http", "path": path}
    await app({**scope, "raw_path": path.encode(), "query_string": b"", "headers": headers}, receive, send)
    ended.set()
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]).decode()


def test_the_reference_holds_every_public_name():
    """Every name of the package and every error has its entry."""
    entries = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    listed = set(re.findall(r"^::: redraft\.(\w+)$", entries, re.MULTILINE))
    assert listed == {*redraft.__all__, "errors"}
    errors = {name for name, kind in vars(redraft.errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert set(re.findall(r"^        - (\w+Error)$", entries, re.MULTILINE)) == errors


@pytest.mark.parametrize("name", redraft.__all__)
def test_public_docstrings_describe_every_parameter(name):
    """By its name, in a section `Args` or `Attributes`; keyword arguments of the settings have a table of their own."""
    value = getattr(redraft, name)
    parameters = inspect.signature(value).parameters.values() if not issubclass_of_enum(value) else ()
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    if dataclasses.is_dataclass(value):
        names = [f.name for f in dataclasses.fields(value) if not f.name.startswith("_")]
    text = inspect.getdoc(value)
    missing = [each for each in names if not re.search(rf"^    {each}: \S", text, re.MULTILINE)]
    assert missing == []


def issubclass_of_enum(value):
    from enum import Enum

    return isinstance(value, type) and issubclass(value, Enum)


def test_every_page_is_in_the_navigation():
    """And nothing else is."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"(?:: |- )([\w/-]+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted([*OUTSIDE, *(page.relative_to(ROOT / "docs").as_posix() for page in SITE)])


def test_the_figures_are_fresh():
    """They are drawn by a script."""
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "figures.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_generated_parts_are_fresh():
    """Every command, grader and requirement is listed, as it is now."""
    script = [sys.executable, str(ROOT / "scripts" / "docs.py"), "--check"]  # (click keeps what other tests saw of a command)
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_lead_somewhere():
    """A relative link names a file that is there."""
    for page in [ROOT / "README.md", *SITE]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
