"""The code in the docs runs, against a real llama.cpp server, and the docs list everything there
is.
"""

import asyncio
import dataclasses
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from xml.etree import ElementTree

import pytest

import redraft
from each_row import each_row
from in_process import CommandResult, run_code, run_in_process
from redraft.graders import entries
from redraft.graders.catalog import is_gallery_rubric
from redraft.requirements import KINDS

ROOT = Path(__file__).parent.parent


def script(name):
    """Import a module from scripts/, which is no package."""
    spec = spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


examples = script("examples")
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if page not in examples.PAGES
]
SITE = sorted((ROOT / "docs").rglob("*.md"))
# pages that the build makes of files elsewhere
OUTSIDE = {"benchmarks.md", "changelog.md", "contributing.md", "security.md"}
SLOW_BLOCKS = {"models.md-3", "batch.md-4", "batch.md-5", "validation.md-0"}
BLOCK = re.compile(
    r"^```(python|sh)\n(.*?)^```$(?:\n\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE
)


def blocks(language):
    """The blocks of the pages in a language, each with what the page shows directly below it as its
    output.
    """
    return [
        pytest.param(code, shown, id=id, marks=pytest.mark.slow if id in SLOW_BLOCKS else ())
        for page in PAGES
        for n, (kind, code, shown) in enumerate(BLOCK.findall(page.read_text()))
        for id in [f"{page.name}-{n}"]
        if kind == language
    ]


def assert_shows(shown, printed):
    """The page shows what is printed, or its first lines and "...". Durations may differ."""
    lines = "\n".join(line.rstrip() for line in printed.splitlines())
    shown, printed = (
        re.sub(r"\b\d+(\.\d+)? (s|milliseconds)$", "N s", text, flags=re.MULTILINE)
        for text in (shown.rstrip(), lines.rstrip())
    )
    assert (
        printed.startswith(shown.removesuffix("...")) if shown.endswith("...") else printed == shown
    )


@pytest.mark.parametrize(("code", "shown"), blocks("python"))
def test_python_in_the_docs_runs(code, shown, plain_server, tmp_path):
    """Each block is a program of its own, with a model to be found."""
    done = run_code(code, env={**examples.ENVIRONMENT, "REDRAFT_MODEL": plain_server}, cwd=tmp_path)
    assert done.returncode == 0, done.err
    if shown:
        assert_shows(shown, done.out)


@pytest.mark.parametrize(("code", "shown"), blocks("sh"))
def test_commands_in_the_docs_run(code, shown, plain_server, tmp_path):
    """They run one after the other; a model of random weights may leave demands unmet (3), but
    nothing may fail.
    """
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    ended = [
        run_line(line, tmp_path, {**examples.ENVIRONMENT, "REDRAFT_MODEL": plain_server})
        for line in code.splitlines()
    ]
    for done in ended:
        assert done.returncode in (0, 3), (done.args, done.err)
    if shown:
        assert_shows(shown, "".join(done.out for done in ended))


def run_line(line, folder, env):
    """Run a line of a shell: a `redraft` command, alone or with its output in a file, in this
    process, the rest in a shell.
    """
    tokens = shlex.shlex(line, posix=True, punctuation_chars=True)
    tokens.commenters, tokens.whitespace_split = "#", True
    words = list(tokens)
    *command, arrow, target = words if words[-2:-1] == [">"] else [*words, "", ""]
    plain = not set("$`~*?[!{\\") & set(line) and not any(
        set(word) <= set("();<>|&") for word in command if word
    )
    if command[:1] == ["redraft"] and plain:
        done = run_in_process(command[1:], env=env, cwd=folder)
        if arrow:
            (folder / target).write_bytes(done.stdout)
        return done
    bin = Path(sys.executable).parent
    environment = {**os.environ, **env, "PATH": f"{bin}:{os.environ['PATH']}"}
    done = subprocess.run(line, shell=True, env=environment, cwd=folder, capture_output=True)
    return CommandResult([line], done.returncode, done.stdout, done.stderr)


SLOW_PAGES = {
    "trust-a-judge.md",
    "few-labels.md",
    "many-machines.md",
    "mcp.md",
    "rubrics.md",
    "compare.md",
    "own-judge.md",
    "running-code.md",
    "limit-a-gateway.md",
    "opentelemetry.md",
    "from-a-batch-to-a-decision.md",
}
SANDBOXED_PAGES = {"running-code.md", "code-graders.md", "code.md", "sandbox.md"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.name in SLOW_PAGES else ())
        for page in examples.PAGES
    ],
    ids=lambda page: page.relative_to(ROOT / "docs").as_posix(),
)
def test_a_page_shows_what_its_examples_print(page, tmp_path, request):
    """The blocks of a page run in order in one folder; `python scripts/examples.py` updates the
    outputs.
    """
    if page.name in SANDBOXED_PAGES:
        request.getfixturevalue("sandbox")
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
    """They are at least compiled."""
    blocks = [
        code
        for page in examples.PAGES
        for kind, _, code in examples.BLOCK.findall(page.read_text())
        if kind == "python"
    ]
    others = [code for code in blocks if examples.needs_package(code)]
    assert len(others) == 4
    for code in others:
        compile(code, "<documentation>", "exec")


def test_the_fastapi_service_answers():
    """Both endpoints of the how-to guide answer ASGI requests."""
    pytest.importorskip("fastapi", reason="no fastapi")
    blocks = examples.BLOCK.findall((ROOT / "docs" / "how-to" / "fastapi.md").read_text())
    code = next(code for _, title, code in blocks if title == "service.py")
    module = type(sys)("service")
    sys.modules["service"] = module  # pydantic looks the annotations up
    try:
        exec(compile(code, "service.py", "exec"), vars(module))
        status, body = asyncio.run(
            post(module.app, "/refine", {"prompt": "Which colour is the sky?"})
        )
        answer = json.loads(body)
        assert (status, answer["answer"], answer["score"], answer["stop"]) == (
            200,
            "It is blue.",
            1.0,
            "target",
        )
        status, body = asyncio.run(
            post(module.app, "/stream", {"prompt": "Which colour is the sky?"})
        )
        events = [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line]
        assert (status, events[-1]) == (
            200,
            {"kind": "Outcome", "score": 1.0, "best": "It is blue."},
        )
        status, _ = asyncio.run(post(module.app, "/refine", {"prompt": ""}))
        assert status == 422
        module.SETTINGS = {
            **module.SETTINGS,
            "graders": "judge",
            "judge": lambda messages: "I like it.",
        }
        status, body = asyncio.run(
            post(module.app, "/refine", {"prompt": "Which colour is the sky?"})
        )
        answer = json.loads(body)
        assert (status, answer["answer"], answer["score"], "cannot be read" in answer["note"]) == (
            200,
            "It is blue.",
            None,
            True,
        )
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
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
    }
    await app(
        {**scope, "raw_path": path.encode(), "query_string": b"", "headers": headers}, receive, send
    )
    ended.set()
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]).decode()


def test_the_reference_has_every_public_name():
    """Every name of the package and every error has an entry."""
    entries = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    listed = set(re.findall(r"^::: redraft\.(\w+)$", entries, re.MULTILINE))
    assert listed == {*redraft.__all__, "errors"}
    moved = {f"redraft.{module}.{name}" for name, module in redraft._MOVED_NAMES.items()}
    assert moved <= set(re.findall(r"^::: (redraft\.[\w.]+)$", entries, re.MULTILINE))
    errors = {
        name
        for name, kind in vars(redraft.errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert set(re.findall(r"^        - (\w+Error)$", entries, re.MULTILINE)) == errors


@each_row("name", redraft.__all__)
def test_public_docstrings_describe_every_parameter(name):
    """Each is named in a section `Args` or `Attributes`; keyword arguments of settings have a table
    of their own.
    """
    value = getattr(redraft, name)
    parameters = (
        inspect.signature(value).parameters.values() if not issubclass_of_enum(value) else ()
    )
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
    """The navigation has no other page."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"(?:: |- )([\w/-]+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(
        [*OUTSIDE, *(page.relative_to(ROOT / "docs").as_posix() for page in SITE)]
    )


@pytest.mark.slow
def test_the_figures_are_up_to_date():
    """A script draws them."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "figures.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_generated_parts_are_up_to_date():
    """Every command, grader and requirement is listed in its present form."""
    # click keeps what other tests saw of a command
    script = [sys.executable, str(ROOT / "scripts" / "docs.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pages_count_what_there_is():
    """Where the first page and the changelog give a number of graders, it is theirs."""
    rubrics = [entry for entry in entries() if is_gallery_rubric(entry.name)]
    numbers = {"kinds of\\s+requirements": len(KINDS), "rubrics|judges by rubric": len(rubrics)}
    for page in (ROOT / "docs" / "index.md", ROOT / "CHANGELOG.md"):
        for noun, number in numbers.items():
            assert re.findall(rf"(\d+) (?:{noun})\b", page.read_text()) == [str(number)], (
                page.name,
                noun,
            )


def test_the_readme_is_short():
    """It has at most 700 words, with those of code and tables."""
    assert (
        sum(any(map(str.isalnum, word)) for word in (ROOT / "README.md").read_text().split()) <= 700
    )


def test_the_readme_shows_a_recorded_run():
    """Its code has the prompt and the graders of the recorded run, and `redraft show` prints each
    part of its shortened text.
    """
    readme, recorded = (
        (ROOT / "README.md").read_text(),
        ROOT / "examples" / "recorded" / "library.jsonl",
    )
    head = json.loads(recorded.read_text().partition("\n")[0])
    code = re.search(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)[1]
    told = [head["task"]["messages"][0]["content"], *(grader["name"] for grader in head["panel"])]
    assert re.findall(r'"(.+?)"', code) == told
    printed = " ".join(
        run_in_process(["show", str(recorded)], env=examples.ENVIRONMENT).out.split()
    )
    block = re.search(r"^````text\n(.*?)^````", readme, re.DOTALL | re.MULTILINE)[1]
    parts = [" ".join(part.split()) for part in re.split(r"…|─+|\n", block)]
    assert [part for part in parts if part not in printed] == []


def test_the_readme_has_the_measured_figures():
    """Its table of IFEval is a part of that on the page of the benchmarks."""
    lines = re.search(
        r"^```text\n( +constraints kept.*?)^```",
        (ROOT / "README.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )[1]
    assert set(lines.splitlines()) <= set((ROOT / "bench" / "README.md").read_text().splitlines())


def test_the_first_page_links_every_guide():
    """Each how-to guide and tutorial is named there."""
    page = (ROOT / "docs" / "index.md").read_text()
    guides = [
        guide
        for folder in ("how-to", "tutorials")
        for guide in sorted((ROOT / "docs" / folder).glob("*.md"))
    ]
    assert [
        guide.name for guide in guides if f"]({guide.parent.name}/{guide.name})" not in page
    ] == []


def test_links_have_targets():
    """A relative link names a file, and after # a heading of it or a name that the page
    documents.
    """
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *SITE]:
        for target, anchor in re.findall(
            r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", page.read_text()
        ):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors_of(file), f"{page.name}: {target}#{anchor}"


def anchors_of(page):
    """The anchors of a page on the site: its headings, and the names that `:::` documents."""
    text = page.read_text()
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    slugs = {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
        for heading in headings
    }
    return slugs | set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_architecture_names_files_that_exist():
    """Those in the text; `scripts/docs.py` imports the packages in the table."""
    source = ROOT / "src" / "redraft"
    named = re.findall(r"`([\w/]+(?:\.(?:py|md)|/))`", ARCHITECTURE)
    assert len(named) > 60
    assert [
        name for name in named if not (source / name).exists() and not (ROOT / name).exists()
    ] == []


def test_the_architecture_finds_names_where_they_are():
    """A name that it puts into a file, as "`NAME` in `FILE`" or "`NAME` (`FILE`)", is in that
    file.
    """
    found = re.findall(r"`(\w+)` (?:in |\()`([\w/]+\.py)`", ARCHITECTURE)
    assert len(found) > 15
    assert [
        (name, file)
        for name, file in found
        if not re.search(rf"\b{name}\b", (ROOT / "src" / "redraft" / file).read_text())
    ] == []


def layers():
    """The layers that import-linter enforces, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    found = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    return [layer.split(" | ") for layer in found]


def test_the_architecture_lists_the_layers():
    """The table has a line for each package, and the picture a row for each layer, in which the
    packages stand side by side: both in the order that import-linter enforces.
    """
    table = ARCHITECTURE.partition("<!-- packages -->")[2].partition("<!-- end -->")[0]
    listed = re.findall(r"^\| `(\w+)` \| \S", table, re.MULTILINE)
    assert listed == [name for layer in layers() for name in layer]
    picture = ElementTree.fromstring((ROOT / "docs" / "layers.svg").read_text())
    drawn = defaultdict(list)
    for text in picture.iterfind(".//{*}text[@class='head']"):
        drawn[float(text.get("y"))].append((float(text.get("x")), text.text))
    _title, *rows = [[name for _, name in sorted(row)] for _, row in sorted(drawn.items())]
    assert rows == layers()


def test_pages_install_from_the_clone():
    """As the README does: no package index has Redraft, so a name there would be somebody
    else's.
    """
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    assert [
        page.name
        for page in pages
        if re.search(r"pip install[^\n]*['\" ]redraft\b", page.read_text())
    ] == []
