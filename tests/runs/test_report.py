"""The report of a run: its form as JSON values, the one of version 1, and what it counts if a run is
interrupted.
"""

import asyncio
import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.errors import BadResponseError, StoreError
from redraft.protocols import Reply
from redraft.runs import BatchReport, BatchRun
from redraft.runs.report import PARTS, VERSION_1
from redraft.usage import unknown_usage

GOLDEN = Path(__file__).parents[1] / "golden"
sys.path.insert(0, str(GOLDEN))
import write as golden  # noqa: E402

# of version 1: what it had beside the figures of the parts, or in another form
OTHER_NAMES = {
    "rows": "rows.in_output",
    "reasons": "rows.error_examples: message",
    "error_rows": "rows.error_examples: row",
    "resumable": "resumable",
}


def value_at(data, path):
    """The value in nested data at a path such as "rows.done"."""
    path, _, name = path.partition(": ")
    for part in path.split("."):
        data = data[part]
    return {kind: each[name] for kind, each in data.items() if each[name]} if name else data


def paths_by_old_name():
    """Where each name of version 1 is in version 2, generated from the classes."""
    names = [*(f"{part}.{f.name}" for part, cls in PARTS.items() for f in fields(cls))]
    names += [f.name for f in fields(BatchReport) if f.name not in PARTS]
    return {VERSION_1.get(path, path.rpartition(".")[2]): path for path in names} | OTHER_NAMES


def reports_of_version_1():
    """The reports in the journals that 0.2 wrote, and one with a value in every field."""
    for path in sorted((GOLDEN / "release-0.2").glob("*.journal")):
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as journal:
            ((metadata,),) = journal.execute("SELECT metadata FROM runs")
        yield json.loads(metadata)["report"]
    example = golden.example_report().as_data()
    own = {"rows", "input_tokens", "output_tokens", "answer_tokens", "answer_cost"}
    yield {
        old: value_at(example, path)
        for old, path in paths_by_old_name().items()
        if old not in own or path == "rows.in_output"
    }


def test_a_report_is_read_back_equal():
    """Of the golden file, which has a value in every field."""
    report, text = golden.example_report(), (golden.HERE / "report.json").read_text()
    assert BatchReport.from_data(json.loads(text)) == report
    unset = [
        f"{part}.{f.name}"
        for part in PARTS
        for f in fields(PARTS[part])
        if not getattr(getattr(report, part), f.name)
    ]
    assert unset == [], "a field without a value is not tested"
    assert BatchReport.from_data(json.loads(json.dumps(BatchReport().as_data()))) == BatchReport()


@pytest.mark.parametrize("old", [*reports_of_version_1()], ids=("finished", "unfinished", "all"))
def test_version_1_is_read_with_the_same_figures(old):
    """Each of its names, as 0.2 wrote it, has its value at its new place; what it lacks is
    unknown or empty.
    """
    report = BatchReport.from_data(json.loads(json.dumps(old)))
    data = json.loads(json.dumps(report.as_data()))
    paths = paths_by_old_name()
    assert old.keys() <= paths.keys()
    for name, value in old.items():
        assert value_at(data, paths[name]) == json.loads(json.dumps(value)), name
    assert BatchReport.from_data(data) == report
    assert report.spending.input_tokens is report.spending.answer_cost is None


def test_the_documentation_names_figures_that_exist():
    """Its table of the parts."""
    text = (Path(__file__).parents[2] / "docs" / "batch.md").read_text()
    table = text.partition("| part | figures |")[2].partition("\n\n")[0]
    named = {line.split("`")[1]: line.split("`")[3::2] for line in table.splitlines()[2:]}
    assert named.keys() == PARTS.keys()
    for part, names in named.items():
        assert {*names} <= {f.name for f in fields(PARTS[part])}, part


WRONG = {
    "another version": (lambda d: d.update(schema=3), "a report of schema 3; this release reads"),
    "no part": (lambda d: d.pop("scores"), "'scores'"),
    "a text for a number": (lambda d: d["rows"].update(done="3"), "done cannot be '3'"),
    "an endless cost": (lambda d: d["spending"].update(cost=float("inf")), "cost cannot be inf"),
    "half an interval": (
        lambda d: d["scores"].update(uplift_interval=[0.5]),
        "uplift_interval cannot be [0.5]",
    ),
    "an example without a text": (
        lambda d: d["rows"]["error_examples"].update(ModelError={"message": None}),
        "message cannot be None",
    ),
    "a list": (lambda d: d["rows"].update(stops=[]), "stops cannot be []"),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_what_is_no_report_is_refused_by_name(change, said):
    data = json.loads((golden.HERE / "report.json").read_text())
    change(data)
    with pytest.raises(StoreError) as refusal:
        BatchReport.from_data(data)
    assert said in str(refusal.value)


ROWS = [{"id": f"r{n}", "prompt": f"{n}"} for n in range(6)]


class Writer:
    """Answers every prompt but one, and stops the run after some calls."""

    name = identity = "writer"

    def __init__(self, stops):
        self.stops, self.calls, self.answers, self.stop = stops, 0, 0, None

    async def complete(self, request):
        """Return a longer answer in each iteration."""
        self.calls += 1
        if self.calls in self.stops:
            self.stop()
        if self.is_hopeless(request.messages):
            raise BadResponseError("no answer to this", usage=unknown_usage())
        self.answers += 1
        number = int(request.messages[0]["content"][-1])
        return Reply("word " * (2 + len(request.messages) + number % 2))

    def is_hopeless(self, messages):
        """Whether these are of the fifth row."""
        return messages[0]["content"].endswith("4")


def share_of_words(text):
    return min(1.0, len(text.split()) / 6)


def run(folder, stops):
    """Run the batch; `stops` has the numbers of calls after which it is stopped and started again.
    Return the report of each start, and the model.
    """
    reports, model, source = [], Writer(stops), folder / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    while not reports or reports[-1].stop == "interrupted":
        batch = BatchRun.from_arguments(
            source, folder / "out.jsonl", model, share_of_words, max_iterations=3, retries=0
        )
        model.stop = batch.stop
        reports.append(asyncio.run(batch.go()))
    return reports, model


def comparable(report):
    """What must not depend on interruptions, with rounded means: they depend on the order of sums."""
    rows, scores = asdict(replace(report.rows, reused=0)), asdict(report.scores)
    return json.loads(json.dumps([rows, scores]), parse_float=lambda text: round(float(text), 9))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(stops=st.sets(st.integers(1, 16), max_size=3))
def test_interruptions_do_not_change_what_a_report_says(tmp_path_factory, stops):
    """The last report has the rows and scores of an undisturbed run. All starts together say what
    was called, no answer was asked for twice, and each says whether the run can be resumed. A start
    that finds the run complete says the same.
    """
    (whole,), undisturbed = run(tmp_path_factory.mktemp("whole"), set())
    folder = tmp_path_factory.mktemp("stopped")
    reports, model = run(folder, stops)
    assert comparable(reports[-1]) == comparable(whole)
    assert model.answers == undisturbed.answers
    assert sum(report.spending.calls for report in reports) == model.calls
    assert [report.resumable for report in reports] == [*[True] * (len(reports) - 1), False]
    (again,), idle = run(folder, set())
    assert (comparable(again), idle.calls) == (comparable(whole), 0)
    for before, after in zip(reports, reports[1:], strict=False):
        assert after.rows.reused >= before.rows.done
