"""Files that release 0.2 wrote: each is read with the right figures by everything that reads it
today. `tests/golden/release-0.2/write.py` says how they were written.
"""

import json
import re
import shutil
from pathlib import Path

import pytest

from redraft import ScriptedModel, batch_sync, refine_sync
from redraft.comparison import compare_sync
from redraft.gateway.keys import KeyRing
from redraft.gateway.request_store import find_stored_requests
from redraft.graders.cards import Card, CardStore
from redraft.storage import Journal, JsonlStore, read_trace, salvage
from redraft.storage.priors_store import PriorsStore, read_priors
from redraft.validation import read_cases, validate_sync
from redraft.validation.label_file import read_labels

FOLDER = Path(__file__).parents[1] / "golden" / "release-0.2"
COLOURS = ("red", "green", "blue", "black")
CARD = "cards/clarity-d7541a8f-labels_jsonl-d975f9ab"
ANSWERS = {f"q{n}": "\n".join(COLOURS[:n]) for n in range(1, 5)}
WORDS = {"graders": "words:1-4", "editor": False}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A copy of the folder, which is also where the user's files are."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path))
    return tmp_path


def writer():
    """The model that wrote the answers; today it counts the calls that are left to make."""

    def answer(messages):
        number = int(re.search(r"Name (\d)", str(messages))[1])
        is_first = all(message["role"] != "assistant" for message in messages)
        return "\n".join([*COLOURS[:number], *["white"] * 5 * is_first])

    return ScriptedModel([answer] * 100)


def rows_of(path):
    """The status, score, calls and answer of each row of a journal, and its number of records."""
    with Journal(path, read_only=True) as journal:
        (run,) = journal.runs()
        return {
            info.id: (
                info.status,
                info.facts.score,
                info.facts.calls,
                info.facts.answer,
                len(trace.records),
            )
            for info, trace in journal.traces(run.name)
        }


def check_rows(redraft, files):
    """The rows are a data set, whose batch is found finished: no call is made."""
    report = batch_sync("questions.jsonl", "finished.jsonl", ScriptedModel([]), **WORDS)
    assert (report.rows.in_output, report.rows.reused, report.spending.calls) == (4, 4, 0)


def check_finished_output(redraft, files):
    """Its columns have the answers and scores, and the score is what a comparison reads."""
    rows = [json.loads(line) for line in Path("finished.jsonl").read_text().splitlines()]
    assert {row["id"]: row["best"] for row in rows} == ANSWERS
    done = redraft("compare", "unfinished.jsonl", "finished.jsonl")
    assert "best_score: 0.667 to 1.000, +0.333" in done.out, done.err


def check_finished_journal(redraft, files):
    """The list of runs, a page, an export and what a salvage recovers have the four rows."""
    path = "finished.jsonl.journal"
    assert rows_of(path) == {id: ("done", 1.0, 2, text, 5) for id, text in ANSWERS.items()}
    assert "finished.jsonl\t4\t0\t0" in redraft("runs", "--journal", path).out
    done = redraft("view", path, "--html", "page.html")
    assert done.returncode == 0, done.err
    assert "Name 4 colours" in Path("page.html").read_text()
    done = redraft("export", "finished-jsonl", "--journal", path, "-o", "pairs.jsonl")
    assert done.returncode == 0, done.err
    pairs = [json.loads(line) for line in Path("pairs.jsonl").read_text().splitlines()]
    assert [pair["chosen"][0]["content"] for pair in pairs] == list(ANSWERS.values())
    assert salvage(path, "saved.jsonl") == {"runs": 1, "rows": 4, "lines": 24, "calls": 8}


def check_unfinished_output(redraft, files):
    """Rows without a score are left out of a comparison, and the others have theirs."""
    comparison = compare_sync("unfinished.jsonl", "finished.jsonl")
    assert comparison.score_name == "best_score"
    assert (comparison.unscored_a, comparison.unscored_b) == (1, 0)
    found = comparison.difference
    assert (found.rows, round(found.mean_a, 3), found.mean_b) == (3, 0.667, 1.0)
    assert (found.wins, found.ties, found.losses) == (1, 2, 0)


def check_unfinished_journal(redraft, files):
    """The same command goes on: only the calls of the rows without an end are made."""
    path, long = "unfinished.jsonl.journal", "\n".join([*COLOURS[:3], *["white"] * 5])
    before = rows_of(path)
    assert before["q2"] == ("done", 1.0, 2, ANSWERS["q2"], 5)
    assert before["q3"] == ("open", 0.0, 1, long, 3)
    assert before["q4"] == ("open", None, 0, None, 1)
    report = batch_sync("questions.jsonl", "unfinished.jsonl", writer(), **WORDS)
    assert (report.rows.done, report.rows.reused, report.spending.calls) == (4, 2, 3)
    rows = [json.loads(line) for line in Path("unfinished.jsonl").read_text().splitlines()]
    assert {row["id"]: row["best"] for row in rows} == ANSWERS


def resumed(path):
    """The result of a resumed trace, and the calls that were made for it now."""
    model, trace = writer(), read_trace(path)
    with JsonlStore(path, resume=True) as store:
        result = refine_sync(trace, model, store=store, **WORDS)
    assert read_trace(path).records == result.trace.records
    return result, len(model.requests)


def check_trace(redraft, files):
    """It is shown and resumed, which makes no call."""
    done = redraft("show", "trace.jsonl")
    assert "refined 0 by scripted · score 1.00 (+1.00)" in done.out, done.err
    result, calls = resumed("trace.jsonl")
    assert (result.value, result.score, result.stop) == (ANSWERS["q2"], 1.0, "target")
    assert (len(result.trace.records), calls) == (5, 0)


def check_unfinished_trace(redraft, files):
    """Its torn line is ignored, and the one call that is missing is made."""
    assert len(read_trace("unfinished-trace.jsonl").records) == 2
    result, calls = resumed("unfinished-trace.jsonl")
    assert (result.value, result.score, result.stop) == (ANSWERS["q2"], 1.0, "target")
    assert (result.usage.calls, calls) == (2, 1)


def check_labels(redraft, files):
    """A label that was taken back does not count, and the cases have the mean of the labels."""
    labels = read_labels("labels.jsonl")
    assert (labels.question.kind, labels.question.text) == ("pass", "Is it short?")
    assert (len(labels.items), labels.annotators) == (12, ["ann", "bob"])
    assert [len(labels.of(name)) for name in labels.annotators] == [12, 11]
    assert [label.value for label in labels.of("bob")].count(1.0) == 7
    assert len(read_cases("labels.jsonl").cases) == 11  # of one the labels differ


def check_card(redraft, files):
    """The list of graders and the store of cards show the measure."""
    card = Card.from_json((files / CARD / "card.json").read_text(), "card.json")
    assert (card.grader, card.rows, card.headline.name) == ("clarity", 11, "balanced accuracy")
    assert (card.headline.value, card.headline.n) == (1.0, 11)
    assert [each.grader for each in CardStore.in_folder("cards").cards] == ["clarity"]
    assert "balanced accuracy 1.00 [0.59, 1.00] of 11 rows" in redraft("graders", "clarity").out


def check_verdicts(redraft, files):
    """The grader is validated from the saved verdicts: no call is made."""
    judge = ScriptedModel([])
    result = validate_sync("labels.jsonl", "clarity", judge, cards_dir="cards")
    assert (result.card.headline.value, result.card.headline.n) == (1.0, 11)
    assert (result.stop_reason, judge.requests) == (None, [])


def check_requests(redraft, files):
    """Each request is found with what its level kept."""
    requests = [find_stored_requests(files / "gateway", f"request-{n}")[0] for n in range(3)]
    assert [(each.facts.key_name, each.facts.status, each.facts.score) for each in requests] == [
        ("alice", 200, 0.95),
        ("alice", 200, 0.95),
        ("alice", 200, None),
    ]
    assert [each.trace and each.trace.best.text for each in requests[:2]] == ["three", None]
    facts = [json.loads(redraft("show", f"request-{n}", "--json").out)["request"] for n in range(3)]
    assert [(each["schema"], each["stop"], each["score"]) for each in facts] == [
        (2, "target", 0.95),
        (2, "target", 0.95),
        (2, "", None),
    ]
    assert [each["usage"]["calls"] for each in facts] == [each.facts.calls for each in requests]


def check_request_texts(redraft, files):
    """The journal of the gateway shows the texts of the requests that were kept in full."""
    for id, text in (("request-0", "three"), ("request-2", "choices")):
        done = redraft("show", id)
        assert done.returncode == 0, done.err
        assert text in done.out
    done = redraft("view", "gateway/gateway.journal", "--html", "page.html")
    assert done.returncode == 0, done.err
    assert "Count." in Path("page.html").read_text()


def check_keys(redraft, files):
    """The key is listed with its limits, and admits whom it admitted."""
    (key,) = json.loads(redraft("keys", "list", "--json").out)
    assert (key["name"], key["state"], key["profiles"]) == ("anna", "active", ["pass/*"])
    assert key["limits"]["usd_per_day"] == 5.0
    with KeyRing(files / "gateway") as keys:
        assert [each.may_use("pass/m") for each in keys.stored_keys()] == [True]


def check_priors(redraft, files):
    """They are found in the folder of the user, and a path to them is a value of `priors`."""
    [(path, stored)] = PriorsStore.in_folder().entries()
    assert (stored.priors_key.model, stored.priors_key.graders) == ("scripted", ("clarity",))
    assert (stored.priors.tasks, round(stored.priors.draft_mean, 3)) == (20, 0.206)
    assert read_priors(str(path)) == stored.priors
    assert "scripted\tclarity\t20\t0.21" in redraft("priors").out


READERS = {
    "questions.jsonl": check_rows,
    "finished.jsonl": check_finished_output,
    "finished.jsonl.journal": check_finished_journal,
    "unfinished.jsonl": check_unfinished_output,
    "unfinished.jsonl.journal": check_unfinished_journal,
    "trace.jsonl": check_trace,
    "unfinished-trace.jsonl": check_unfinished_trace,
    "labels.jsonl": check_labels,
    f"{CARD}/card.json": check_card,
    f"{CARD}/verdicts.jsonl": check_verdicts,
    "gateway/requests.db": check_requests,
    "gateway/gateway.journal": check_request_texts,
    "gateway/gateway.db": check_keys,
    "priors/fa5b01d7df1f058e.json": check_priors,
}
"""What reads each file today, and the figures that it must find."""


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("name", READERS)
def test_a_file_of_an_earlier_release_is_read_with_the_right_figures(redraft, files, name):
    """Whatever reads it today finds what was written."""
    READERS[name](redraft, files)


def test_every_file_of_an_earlier_release_has_a_reader():
    """A file that is added to the folder needs an expectation."""
    files = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert {name for name in files if not name.endswith(".py")} == READERS.keys()
