"""Every command run in a process of its own does the same as inside the test process."""

import re

import pytest

from redraft.cli import COMMANDS

from .chat_server import writer_and_judge

TYPED = {
    "run": "run x --response answer.md --model none --require no_commas",
    "best": "best x --model SERVER -n 2 --grader words:1-5",
    "grade": "grade --response answer.md --grader words:1-5 --json",
    "batch": "batch rows.jsonl -o out.jsonl --model none --require no_commas",
    "runs": "runs",
    "export": "export nothing -o pairs.jsonl",
    "show": "show answer.md",
    "demo": "demo nowhere",
    "models": "models",
    "graders": "graders words",
    "view": "view nothing",
    "label": "label nothing",
    "compare": "compare rows.jsonl rows.jsonl --grader words:1-5",
    "gate": "gate rows.jsonl rows.jsonl --grader words:1-5 --junit gate.xml",
    "validate": "validate --formats",
    "rubric": "rubric --from rows.jsonl --model none",
    "priors": "priors",
    "serve": "serve --config nothing.toml",
    "keys": "keys list",
    "mcp": "mcp --allow-grader nothing --model none",
    "trust": "trust .",
}
# as many lines as the run takes time
PROGRESS = re.compile(r'^\{"event": "progress".*\n', re.MULTILINE)
FIGURE = re.compile(r'(?<="rows_per_s": )null|(?<="eta": )null|\d+(\.\d+)?')


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if n % 8 else ())
        for n, name in enumerate(COMMANDS)
    ],
)
def test_a_process_gives_the_same_output_and_files(redraft, serve, name):
    """The exit code, both streams except for figures and progress, and the files are equal."""
    server = serve(writer_and_judge(["Yes."], [5]))
    command = [word.replace("SERVER", server.model) for word in TYPED[name].split()]
    ended = []
    for folder, run in (("inside", redraft.inside), ("outside", redraft.process)):
        place = redraft.folder / folder / "work"
        place.mkdir(parents=True)
        (place / "answer.md").write_text("Well, yes.")
        (place / "rows.jsonl").write_text(
            '{"id": 1, "prompt": "Say it", "response": "Well, it is."}\n'
        )
        done = run(command, cwd=place, env={"REDRAFT_HOME": str(place.parent / "home")})
        out, err = (
            FIGURE.sub("#", PROGRESS.sub("", text).replace(folder, "FOLDER"))
            for text in (done.out, done.err)
        )
        # drafts that are written at the same time come in any order
        lines = sorted(err.splitlines())
        ended.append((done.returncode, out, lines, sorted(path.name for path in place.iterdir())))
    assert ended[0] == ended[1]
    assert "Traceback" not in done.err
