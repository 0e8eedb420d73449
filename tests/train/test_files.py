"""Files of training: labels in every form that is read, and trained graders that something else
wrote.
"""

import csv
import json
import os
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from benchmark_rows import ROWS
from redraft.errors import ConfigError
from redraft.graders import as_grader
from redraft.loop.records import Candidate, Feedback, Outcome, StopReason
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.tables.export.formats import ExportConfig, Provenance
from redraft.tables.export.writer import export
from redraft.train import grader as trained
from redraft.train import load_grader, train
from redraft.train.head import Head
from redraft.validation import Label, LabelFile, LabelItem, LabelQuestion

GOOD, BAD = "Short words do.", "Notwithstanding considerations heretofore unmentioned, indubitably."
TASKS = range(24)


def answer(n, *, good):
    return f"{GOOD if good else BAD} {'So it is. ' * (n % 5)}"


def label_file(path):
    """What `redraft label` writes."""
    with LabelFile(path, LabelQuestion("pair")) as file:
        for n in TASKS:
            item = LabelItem(f"i{n}", f"Task {n}", (answer(n, good=True), answer(n, good=False)))
            file.add(item, Label(item.id, "ann", 1.0 if n % 2 else 2.0, sample="random"))


def exported(form):
    """What `redraft export` writes of a run."""

    def write(path):
        rows = []
        for n in TASKS:
            trace = Trace(Task(f"Task {n}"), (PanelGrader("specific"),))
            for id, (good, score) in enumerate(((False, 0.1), (True, 0.9))):
                trace += Candidate(id, answer(n, good=good), by="m", role="refine")
                trace += Feedback(score, candidate=id, grader="specific")
            rows.append((SimpleNamespace(id=str(n)), trace + Outcome(1, StopReason.DONE)))
        export(rows, path, ExportConfig(form), Provenance("r", "m"))

    return write


def table(path):
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["prompt", "response", "label"])
        rows.writerows(
            [f"Task {n}", answer(n, good=n % 2), "pass" if n % 2 else "fail"] for n in TASKS
        )


def benchmark(name):
    def write(path):
        rows = [ROWS[name](n) for n in TASKS]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        for word in ("worst", "worse", "bad"):
            text = text.replace(word, BAD)
        path.write_text(text.replace("good", GOOD))

    return write


PAIRS = {"RewardBench", "RMB pairs", "JudgeBench"}
FORMS = {
    "labels": (label_file, "pair"),
    "preference": (exported("preference"), "pair"),
    "unpaired": (exported("unpaired"), "pass"),
    "table": (table, "pass"),
    **{name: (benchmark(name), "pair" if name in PAIRS else "ranking") for name in ROWS},
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
async def test_labels_of_every_form_are_read(form, tmp_path):
    """Files of labels, exports, tables and published benchmarks make a grader with a card."""
    write, kind = FORMS[form]
    path = tmp_path / ("rows.csv" if form == "table" else "rows.jsonl")
    write(path)
    result = await train(
        path, ["readability", "characters:<70"], name=f"{tmp_path}/a", cards_dir=tmp_path / "cards"
    )
    card = result.validation.card
    assert card.kind == kind and result.fitted >= 10
    assert result.fitted + card.rows == (48 if form == "unpaired" else 24)
    if form in ROWS:
        assert card.headline.name == f"{form} score"


HEAD = Head(("readability",), (0.5,), (0.2,), (0.0,), (1.0,), (1.0,), 0.1, ((1.0, 0.1),))
FILE = {"redraft_trained": 1, "graders": ["readability"], "embeddings": None, "head": asdict(HEAD)}


def test_a_good_file(tmp_path):
    """The file that the others differ from is read."""
    (tmp_path / "grader.json").write_text(json.dumps(FILE))
    assert load_grader(f"{tmp_path}/").head == HEAD


def with_head(**changes):
    return json.dumps({**FILE, "head": {**asdict(HEAD), **changes}})


DAMAGED = {
    "nothing": "",
    "a list": "[]",
    "no keys": "{}",
    "no JSON": "x" * 99,
    "another schema": json.dumps({**FILE, "redraft_trained": 2}),
    "deep": "[" * 100_000,
    "no head": json.dumps({**FILE, "head": None}),
    "itself": json.dumps({**FILE, "graders": ["trained:./itself"]}),
    "a jury with itself": json.dumps({**FILE, "graders": ["jury:clarity, trained:./itself"]}),
    "code": json.dumps({**FILE, "graders": ["evil.py:grade"]}),
    "no names": json.dumps({**FILE, "graders": [3]}),
    "a name": json.dumps({**FILE, "graders": "readability"}),
    "many graders": json.dumps({**FILE, "graders": ["readability"] * 101}),
    "no model": json.dumps({**FILE, "embeddings": {"a": 1}}),
    "NaN": with_head(weights=(float("nan"),)),
    "infinite": with_head(intercept=float("inf")),
    "huge": with_head(center=(1e300,)),
    "no end": with_head(max_distance=float("nan")),
    "no spread": with_head(spread=(1e-300,)),
    "negative length": with_head(vector_length=-1),
    "a long vector": with_head(vector_length=10**15),
    "a number as text": with_head(weights=("1",)),
    "no sample": with_head(resamples=()),
    "an unknown key": with_head(pickle="gASVKAAAAAAA"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_of_something_else(name, tmp_path):
    """It is named, and so is what is wrong; nothing that it names is run."""
    (tmp_path / "grader.json").write_text(DAMAGED[name])
    with pytest.raises(ConfigError, match=r"grader\.json is not a trained grader: .{8}"):
        as_grader(f"trained:{tmp_path}/")


def test_a_large_file(tmp_path, monkeypatch):
    """No more is read than a grader can need."""
    monkeypatch.setattr(trained, "MAX_FILE", 99)
    (tmp_path / "grader.json").write_text(json.dumps(FILE))
    with pytest.raises(ConfigError, match="it holds more than 99 bytes"):
        load_grader(f"{tmp_path}/")


def test_no_file(tmp_path):
    """A pipe is not waited for, and a folder is no file."""
    os.mkfifo(tmp_path / "grader.json")
    with pytest.raises(ConfigError, match="it is a pipe or a device"):
        load_grader(f"{tmp_path}/")
    (tmp_path / "grader.json").unlink()
    (tmp_path / "grader.json").mkdir()
    with pytest.raises(ConfigError, match=r"grader\.json is not a trained grader"):
        load_grader(f"{tmp_path}/")


def test_a_file_with_no_grader_of_ours_says_which(tmp_path):
    """A grader that this release or machine does not have is named."""
    (tmp_path / "grader.json").write_text(json.dumps({**FILE, "graders": ["readabilty"]}))
    with pytest.raises(ConfigError, match="did you mean 'readability'"):
        load_grader(f"{tmp_path}/")
