"""The tutorial that ends with a decision: its pictures show what a reader sees, and its commands
run.
"""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from in_process import run_in_process
from redraft.validation.label_file import Label, LabelFile, LabelItem, LabelQuestion

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def pictures():
    """The script that takes the pictures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        import pictures

        yield pictures
        del sys.modules["pictures"], sys.modules["examples"]


@pytest.fixture(scope="module")
def tutorial(pictures):
    return pictures.TUTORIAL.read_text()


@pytest.fixture(scope="module")
def runs(pictures, tutorial, tmp_path_factory):
    """A folder in which the commands of the tutorial have run."""
    folder = tmp_path_factory.mktemp("tutorial")
    (folder / "examples").symlink_to(SCRIPTS.parent / "examples")
    pictures.with_outputs(tutorial, folder, run_block)
    return folder


def run_block(language, code, folder):
    for line in code.splitlines():
        if line.startswith("redraft "):
            done = run_in_process(shlex.split(line)[1:], cwd=folder)
            assert done.returncode == 0, done.err
    return ""


def test_each_picture_is_small_and_on_the_page(pictures, tutorial):
    """The page shows every picture, says in words what it shows, and has no other; its command is
    on the page.
    """
    shown = re.findall(r"!\[([^\]]{20,})\]\(pictures/(\w+)\.webp\)", tutorial)
    assert sorted(name for _, name in shown) == sorted(
        picture.name for picture in pictures.PICTURES
    )
    assert sorted(path.stem for path in pictures.FOLDER.iterdir()) == sorted(
        name for _, name in shown
    )
    assert {picture.command for picture in pictures.PICTURES} <= set(
        pictures.console_commands(tutorial)
    )
    for path in pictures.FOLDER.iterdir():
        data = path.read_bytes()
        assert (data[:4], data[8:12]) == (b"RIFF", b"WEBP")
        assert len(data) < 120_000


def add_labels(folder):
    """Judge the answers of both runs, as a person who likes the second run does."""
    runs = [
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("old.jsonl", "new.jsonl")
    ]
    with LabelFile(folder / "old.jsonl.labels.jsonl", LabelQuestion("pair")) as file:
        for first, second in zip(*runs, strict=True):
            item = LabelItem(str(first["id"]), first["prompt"], (first["best"], second["best"]))
            file.add(item, Label(item.id, "ann", 2.0, sample="random"))


@pytest.mark.slow
def test_the_commands_with_a_model_run(pictures, tutorial, plain_server, tmp_path):
    """All of them, with few rows and a grader that computes; the answers of a model of random
    weights differ.
    """
    section = tutorial.partition("## Now with a model of yours")[2]
    lines = [line for line in pictures.console_commands(section) if line.startswith("redraft ")]
    pilot, old, new, view, label, compare = (shlex.split(line)[1:] for line in lines)
    (tmp_path / "tasks.jsonl").write_text(
        "".join(f'{{"id": {n}, "prompt": "Name {n} colours."}}\n' for n in range(5))
    )
    for words in (pilot, old, new):
        quick = [{"20": "3", "helpfulness": "words:2-3"}.get(word, word) for word in words]
        done = run_in_process(
            [*quick, "--max-tokens", "4"], cwd=tmp_path, env={"REDRAFT_MODEL": plain_server}
        )
        assert done.returncode in (0, 3), done.err
    for words in (view, label):
        with pictures.serving(shlex.join(["redraft", *words]), tmp_path) as url:
            assert url.startswith("http://127.0.0.1:")
    (tmp_path / "old.jsonl.labels.jsonl").unlink()
    add_labels(tmp_path)
    done = run_in_process(compare, cwd=tmp_path)
    assert done.returncode == 0, done.err
    assert "people" in done.out


@pytest.mark.slow
# the commands run before the browser has its event loop
def test_the_pictures_show_what_a_reader_sees(runs, browser, pictures):
    """The commands serve pages with all that the pictures of the tutorial and the README show,
    where they show it.
    """
    missing, chosen = {}, [*pictures.PICTURES, pictures.README_PICTURE]
    pictures.walk(
        runs,
        browser,
        lambda picture, page: missing.update({picture.name: pictures.missing_texts(picture, page)}),
        chosen,
    )
    assert missing == {picture.name: [] for picture in chosen}
