"""A run has one name for people: that of its output."""

import pytest

NAMES = {
    "output": "good.jsonl",
    "run": "good-jsonl",  # what the journal calls it; commands take it, too
}


@pytest.fixture
def runs(redraft):
    """Two runs in this folder, and the folder with the page of one."""
    (redraft.folder / "in.jsonl").write_text(
        "".join(f'{{"id": "{n}", "prompt": "p {n}", "response": "a, b {n}"}}\n' for n in range(9))
    )
    for output, editor in (("good.jsonl", "--editor"), ("bad.jsonl", "--no-editor")):
        redraft(
            "batch", "in.jsonl", "-o", output, "--model", "none", "--require", "no_commas", editor
        )
    return redraft


COMMANDS = {
    "list": ("runs",),
    "show": ("runs", "show", "{run}"),
    "show a row": ("runs", "show", "{run}", "0"),
    "no such row": ("runs", "show", "{run}", "77"),
    "export of traces": ("runs", "export", "{run}", "-o", "traces.jsonl"),
    "export": ("export", "{run}", "-o", "pairs", "--format", "preference"),
    "page": ("view", "{run}", "--html", "page.html"),
    "compare": ("compare", "{run}", "bad.jsonl"),
    "gate": ("gate", "bad.jsonl", "{run}"),
    "label": ("label", "{run}", "{run}", "--kind", "pair", "--labels", "labels.jsonl"),
    "unknown": ("runs", "show", "nothing"),
    "prune": ("runs", "prune", "{run}"),
    "prune for good": ("runs", "prune", "{run}", "--yes"),
}


@pytest.mark.slow(but_each=16)
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_a_run_by_its_output_and_calls_it_so(runs, name, kind):
    """The name in the journal is an alias that no command shows; the output itself may be gone."""
    if kind == "run":
        (runs.folder / "good.jsonl").unlink()
    done = runs(*(part.format(run=NAMES[kind]) for part in COMMANDS[name]))
    expected = {"no such row": 2, "unknown": 2, "prune": 2, "label": 2}.get(name, 0)
    assert done.returncode == expected, done.err
    page = "".join(
        path.read_text() for path in runs.folder.glob("p*/README.md") if name == "export"
    )
    page += (runs.folder / "page.html").read_text() if name == "page" else ""
    said = done.out + done.err + page
    assert (
        NAMES["run"] not in said.replace("'good-jsonl' and 'good-jsonl'", "")
        and "bad-jsonl" not in said
    ), said
    assert "good.jsonl" in said or name in {
        "export of traces",
        "export",
        "show a row",
        "compare",
        "gate",
        "label",
        "page",
    }


def test_a_run_with_a_name_of_its_own_keeps_it(redraft):
    """`--name` is the name that a person chose."""
    (redraft.folder / "in.jsonl").write_text('{"prompt": "p", "response": "a, b"}\n')
    redraft(
        "batch",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        "none",
        "--require",
        "no_commas",
        "--name",
        "mine",
    )
    assert "mine" in redraft("runs").out and redraft("runs", "show", "mine").out.startswith(
        "mine\n"
    )
    assert redraft("runs", "show", "out.jsonl").out.startswith("mine\n")


BATCH = ("--model", "none", "--require", "no_commas")


@pytest.mark.parametrize(
    "spelling", ["./out.jsonl", "../there/out.jsonl", "{folder}/there/out.jsonl", "out.jsonl"]
)
def test_an_output_is_the_same_however_it_is_spelled(redraft, spelling):
    """The run resumes, also after its folder has been moved; nothing is done twice."""
    (redraft.folder / "in.jsonl").write_text('{"prompt": "p", "response": "a, b"}\n')
    (redraft.folder / "here").mkdir()
    redraft("batch", "in.jsonl", "-o", "here/out.jsonl", *BATCH)
    (redraft.folder / "here").rename(redraft.folder / "there")
    output = spelling.format(folder=redraft.folder)
    done = redraft("batch", "../in.jsonl", "-o", output, *BATCH, cwd=redraft.folder / "there")
    assert (done.returncode, "1 of them before" in done.err or "nothing was done" in done.err) == (
        0,
        True,
    ), done.err


@pytest.mark.parametrize("command", ["runs show", "runs prune", "export"])
@pytest.mark.parametrize("path", ["moved/out.jsonl", "nowhere/out.jsonl"])
def test_a_path_never_means_the_run_of_another_file_of_that_name(redraft, command, path):
    """Nothing is deleted, exported or shown in its place."""
    (redraft.folder / "in.jsonl").write_text('{"prompt": "p", "response": "a, b"}\n')
    redraft("batch", "in.jsonl", "-o", "out.jsonl", *BATCH)
    (redraft.folder / "moved").mkdir()
    (redraft.folder / "moved/out.jsonl").write_bytes((redraft.folder / "out.jsonl").read_bytes())
    more = {
        "runs prune": ("--yes",),
        "export": ("-o", "pairs.jsonl", "--format", "preference"),
    }.get(command, ())
    done = redraft(*command.split(), path, *more)
    assert (done.returncode, "there is no run" in done.err) == (2, True), done.out + done.err
    assert redraft("runs", "show", "./out.jsonl").out.startswith("out.jsonl\n")
