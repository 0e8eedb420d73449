"""Result files of every program that `read_results` knows, and hostile ones."""

import json
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from places import changed_at
from redraft.comparison import read_results, readers, results
from redraft.errors import ConfigError
from redraft.protocols import Reply

PROMPTFOO = {
    "evalId": "eval-1",
    "results": {
        "version": 3,
        "results": [
            {
                "promptIdx": 0,
                "testIdx": n,
                "provider": {"id": provider},
                "prompt": {"label": "p1", "raw": "Answer {{q}}"},
                "vars": {"q": f"question {n}", "topic": "x"},
                "testCase": {"vars": {"q": f"question {n}"}, "metadata": {"kind": "k"}},
                "response": {"output": f"answer {n}"},
                "success": score > 0.5,
                "score": score,
                "namedScores": {"tone": 0.25},
                "failureReason": 0,
            }
            for provider in ("openai:a", "openai:b")
            for n, score in enumerate((1, 0.5))
        ]
        + [
            {
                "testIdx": 2,
                "promptIdx": 0,
                "provider": {"id": "openai:b"},
                "prompt": {"label": "p1"},
                "vars": {"q": "question 2"},
                "error": "timeout",
                "failureReason": 2,
                "score": 0,
                "success": False,
            }
        ],
    },
}


def inspect_sample(id, value, epoch=1, **more):
    return {
        "id": id,
        "epoch": epoch,
        "input": f"question {id}",
        "output": {
            "choices": [
                {
                    "message": {
                        "role": "assistant",
                        "content": [{"type": "text", "text": f"answer {id}"}],
                    }
                }
            ]
        },
        "scores": {"match": {"value": value}, "detail": {"value": {"clear": 0.5, "short": 1}}},
        "metadata": {"level": "easy"},
        **more,
    }


INSPECT = {
    "version": 2,
    "status": "success",
    "eval": {"task": "t"},
    "samples": [
        inspect_sample(1, "C"),
        inspect_sample(1, "I", epoch=2),
        inspect_sample("x", "P"),
        inspect_sample("y", 0.3),
        inspect_sample("z", float("nan")),
        inspect_sample("e", "C", error={"message": "broken"}),
    ],
}


def write(folder, name, value):
    path = folder / name
    if isinstance(value, list) and name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in value))
    else:
        path.write_text(json.dumps(value))
    return str(path)


@pytest.mark.parametrize(
    ("name", "value", "part", "score", "form", "scores", "texts"),
    [
        ("r.json", PROMPTFOO, "#openai:a", "", "promptfoo", [1, 0.5], ["answer 0", "answer 1"]),
        (
            "r.json",
            PROMPTFOO,
            "#openai:b|p1",
            "",
            "promptfoo",
            [1, 0.5, None],
            ["answer 0", "answer 1", None],
        ),
        (
            "r.json",
            PROMPTFOO,
            "#openai:a",
            "tone",
            "promptfoo",
            [0.25, 0.25],
            ["answer 0", "answer 1"],
        ),
        (
            "r.json",
            INSPECT,
            "",
            "match",
            "inspect",
            [1, 0, 0.5, 0.3, None, None],
            ["answer 1", "answer 1", "answer x", "answer y", "answer z", "answer e"],
        ),
        ("r.json", INSPECT, "", "detail.clear", "inspect", [0.5] * 5 + [None], None),
        (
            "r.jsonl",
            PROMPTFOO["results"]["results"],
            "#openai:b",
            "",
            "promptfoo",
            [1, 0.5, None],
            ["answer 0", "answer 1", None],
        ),
        (
            "t.jsonl",
            [{"id": 1, "score": 0.5, "response": "x"}, {"id": 2, "score": None}],
            "",
            "",
            "table",
            [0.5, None],
            ["x", None],
        ),
        ("t.json", [{"id": 1, "grade": "3", "best": "x"}], "", "grade", "table", [3.0], ["x"]),
        ("t.json", {"rows": [{"id": 1, "score": True}]}, "", "", "table", [1.0], [None]),
    ],
)
def test_forms(tmp_path, name, value, part, score, form, scores, texts):
    """Each form is recognised by its content; a score of a failed call is unknown, not 0."""
    found = read_results(write(tmp_path, name, value) + part, score=score).with_tasks()
    assert found.form == form
    assert [row.score for row in found.rows] == scores
    if texts:
        assert [row.text for row in found.rows] == texts
    assert all(row.id is not None or row.task_hash for row in found.rows)


def test_an_archive_of_inspect(tmp_path):
    """Samples of both shapes are read; the other files in the archive are not."""
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", "{")
        archive.writestr("samples/1_epoch_1.json", json.dumps(inspect_sample(1, "C")))
        archive.writestr("samples/2_epoch_1/sample.json", json.dumps(inspect_sample(2, "I")))
        archive.writestr("samples/2_epoch_1/events/0.json", "[")
    found = read_results(path, score="match")
    assert [(row.id, row.score) for row in found.rows] == [("1", 1.0), ("2", 0.0)]
    assert found.rows[0].values == {"level": "easy"}


def test_texts_of_inspect_in_attachments(tmp_path):
    """A long text stands in the attachments; one that is elsewhere is unknown, and never the same
    as another.
    """
    key = "attachment://0123456789abcdef0123456789abcdef"
    sample = {**inspect_sample(1, "C"), "input": key, "output": {"completion": key}}
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "samples/1_epoch_1.json",
            json.dumps({**sample, "attachments": {key.removeprefix("attachment://"): "long"}}),
        )
        archive.writestr("samples/2_epoch_1/sample.json", json.dumps({**sample, "id": 2}))
    first, second = read_results(path, score="match").rows
    assert (first.text, first.task.prompt) == ("long", "long")
    assert (second.text, second.task, second.task_hash, second.score) == (None, None, "", 1.0)


# above 65,535, archives have another form
@pytest.mark.parametrize("files", [3, pytest.param(70_000, marks=pytest.mark.slow)])
def test_the_list_of_files_of_an_archive_is_bounded(tmp_path, monkeypatch, files):
    """Its size is read before the list, which takes more memory."""
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("samples/1_epoch_1.json", json.dumps(inspect_sample(1, "C")))
        for n in range(files):
            archive.writestr(f"other/{n}", b"")
        archive.comment = b"a comment"
    assert len(read_results(path, score="match").rows) == 1
    monkeypatch.setattr(readers, "MAX_DIRECTORY_BYTES", 30 * files)
    with pytest.raises(ConfigError, match="holds more files than a log of Inspect can have"):
        read_results(path, score="match")


def test_an_archive_with_zstandard(tmp_path):
    """As newer versions of Inspect write them."""
    library = pytest.importorskip("backports.zstd.zipfile", reason="no backports.zstd")
    path = tmp_path / "log.eval"
    with library.ZipFile(path, "w", library.ZIP_ZSTANDARD) as archive:
        archive.writestr("samples/1_epoch_1.json", json.dumps(inspect_sample(1, "C")))
    assert read_results(path, score="match").rows[0].score == 1.0


def test_outputs_and_journals_of_batches(tmp_path):
    """The same run in three forms has the same rows."""
    tasks = [{"id": str(n), "prompt": f"Task {n}", "topic": "t"} for n in range(4)]
    output = tmp_path / "out.jsonl"

    def grade(text: str) -> float:
        return len(text) / 10

    report = redraft.batch_sync(
        tasks,
        output,
        redraft.ScriptedModel([f"answer{n}"[: 4 + n] for n in range(4)] * 9),
        grade,
        max_iterations=0,
    )
    found = [
        read_results(source).with_tasks()
        for source in (report, output, f"{output}.journal", f"{output}.journal#{report.run}")
    ]
    for each in found:
        assert each.form == "redraft"
        assert [(row.id, row.score, row.task_hash) for row in each.rows] == [
            (row.id, row.score, row.task_hash) for row in found[0].rows
        ]
        assert sorted(row.score for row in each.rows) == [0.4, 0.5, 0.6, 0.7]
        assert all(row.text and row.task.prompt.startswith("Task") for row in each.rows)
    # a journal does not keep the other columns
    assert all(row.values["topic"] == "t" for row in found[1].rows)


class Answers:
    """Answers with the prompt, unless that says how it fails."""

    name, identity, formats = "m", "m", ("text",)

    async def complete(self, request):
        prompt = request.messages[-1]["content"]
        if prompt == "raise":
            raise ValueError("no answer")
        return Reply({"blank": "", "spaces": "  "}.get(prompt, prompt))


def grade_unless_told(text: str) -> float:
    if text == "no grade":
        raise ValueError("no grade")
    return 0.5


ASKED = {"answer": "answer", "no grade": "no grade", "raise": None, "blank": None, "spaces": None}
GIVEN = {"answer": "answer", "no grade": "no grade", "": "", "  ": "", None: ""}


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
@pytest.mark.parametrize("is_given", [False, True])
def test_texts_of_rows_with_errors(tmp_path, is_given, ending):
    """Of an answer that could not be graded it is the answer, of a blank response that was given it
    is "", of an answer that was not written None. The report, the output and the journal say the
    same.
    """
    if is_given:
        rows = [{"prompt": "q", "response": response} for response in GIVEN]
    else:
        rows = [{"prompt": prompt} for prompt in ASKED]
    output = tmp_path / f"out.{ending}"
    report = redraft.batch_sync(
        rows,
        output,
        None if is_given else Answers(),
        grade_unless_told,
        **({"mode": "grade"} if is_given else {"max_iterations": 0}),
    )
    for source in (report, output, f"{output}.journal"):
        found = read_results(source)
        assert [(row.text, row.score) for row in found.rows] == [
            (text, 0.5 if text == "answer" else None)
            for text in (GIVEN if is_given else ASKED).values()
        ]


OWN_ROW = {"id": "1", "initial_score": None, "best_score": None, "stop": "failed"}
OWN_TEXTS = [  # the answer and the error in a row of an output, and the text that is read of it
    ("an answer", None, "an answer"),
    ("an answer", "", "an answer"),
    ("an answer", "ValueError: no grade", "an answer"),
    ("", None, ""),
    (None, None, None),
    ("", "ValueError: no answer", None),
    (None, "ValueError: no answer", None),
    ("", "NoResponseError: blank", ""),
    (None, "NoResponseError: blank", ""),
]


@pytest.mark.parametrize(("best", "error", "text"), OWN_TEXTS)
def test_the_text_of_a_row_follows_from_its_answer_and_its_error(best, error, text):
    """Only an error says that an answer is missing; only that of a given response, that it is
    blank.
    """
    (row,) = read_results([{**OWN_ROW, "best": best, "error": error}]).rows
    assert row.text == text


@pytest.mark.parametrize(
    ("name", "content", "arguments", "message"),
    [
        (
            "r.json",
            PROMPTFOO,
            {},
            r"several runs: name one as FILE#NAME; there are 'openai:a\|p1', 'openai:b\|p1'",
        ),
        ("r.json#other", PROMPTFOO, {}, "no provider.prompt 'other'"),
        (
            "r.json",
            INSPECT,
            {},
            "several scores: 'match', 'detail.clear', 'detail.short'; name one",
        ),
        (
            "r.json",
            INSPECT,
            {"score": "other"},
            "has no score 'other'; there are 'match', 'detail.clear', 'detail.short'",
        ),
        (
            "t.jsonl",
            [{"id": 1, "note": "x"}],
            {},
            "no column is known to be the score; name it. There are 'id', 'note'",
        ),
        (
            "t.jsonl",
            [{"id": 1, "score": 1}],
            {"score": "scor"},
            "there is no column 'scor'; did you mean 'score'",
        ),
        ("t.jsonl", [{"id": 1, "score": 1}], {"columns": {"text": "x"}}, "unknown role 'text'"),
        (
            "t.jsonl#x",
            [{"id": 1, "score": 1}],
            {},
            "is a table, which holds one run: leave out '#x'",
        ),
        ("t.jsonl", [], {}, "has no row"),
        ("r.json", "{", {}, "is not JSON"),
        ("r.json", "[" * 5000, {}, "JSON"),
        ("r.json", '{"a": 1, "a": 2}', {}, "the key 'a' occurs twice"),
        ("log.eval", "no archive", {}, "is not a log of Inspect that can be read"),
        ("x.journal", "no journal", {}, "journal"),
    ],
)
def test_errors_say_what_to_do(tmp_path, name, content, arguments, message):
    """They name the file, and what there is."""
    file, sign, part = name.partition("#")
    path = tmp_path / file
    if isinstance(content, str):
        path.write_text(content)
    else:
        write(tmp_path, file, content)
    with pytest.raises(redraft.errors.RedraftError, match=message):
        read_results(f"{path}{sign}{part}", **arguments)


def test_sizes_are_bounded(tmp_path, monkeypatch):
    """A large document, a sample that unpacks to more than it says, and too many rows are
    errors.
    """
    monkeypatch.setattr(readers, "MAX_DOCUMENT_BYTES", 2000)
    monkeypatch.setattr(readers, "MAX_SAMPLE_BYTES", 500)
    monkeypatch.setattr(results, "MAX_RESULTS", 3)
    with pytest.raises(ConfigError, match="is larger than 0 MiB"):
        read_results(write(tmp_path, "r.json", {"x": "y" * 3000}))
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples/1_epoch_1.json", json.dumps(inspect_sample(1, "C", x="y" * 600)))
    with pytest.raises(ConfigError, match="is larger than"):
        read_results(path, score="match")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples/1_epoch_1.json", "x" * 3000)
    with pytest.raises(ConfigError, match="which is too much"):
        read_results(path)
    with pytest.raises(ConfigError, match="more than 3 rows"):
        read_results([{"id": n, "score": 0} for n in range(4)])


def test_what_is_no_number_is_reported(tmp_path):
    """A text in the column of scores is no score, and no 0."""
    found = read_results(
        [{"id": 1, "score": "0.5"}, {"id": 2, "score": "4 or 5"}, {"id": 3, "score": ""}]
    )
    assert [row.score for row in found.rows] == [0.5, None]
    assert len(found.skipped) == 1
    assert "'4 or 5' is not a number" in found.skipped[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "results testIdx testCase vars provider prompt label id response output score scores value samples eval input metricsData "
                "metrics_data testCases test_results name error doc_id resps filtered_resps filter metrics choices message content".split()
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=30,
)


DOCUMENTS = [
    (PROMPTFOO, "openai:a", "", 2),
    (PROMPTFOO["results"]["results"], "openai:b", "tone", 3),
    (INSPECT, "", "match", 6),
    (INSPECT, "", "detail.clear", 6),
]


@given(st.sampled_from(DOCUMENTS), st.none() | st.tuples(st.integers(0, 10**4), JSON))
def test_any_document_is_read_or_refused(given_document, change):
    """No document, whatever one of its values is, raises anything but ConfigError; every score is a
    finite number or None.
    """
    document, part, score, count = given_document
    if change:
        document = changed_at(document, *change)
    choice = readers.ResultChoice("file", part, score)
    if isinstance(document, list):  # the rows of a table
        document = {"results": document}
    found = [check(*form, document, choice) for form in readers.FORMS]
    assert change or sorted(found)[-2:] == [0, count]


def check(fits, read, document, choice):
    """Check what one form reads of a document; return how many rows that are."""
    try:
        found = read(document, choice).rows if fits(document) else ()
    except ConfigError:
        return 0
    assert all(row.score is None or -1e308 <= row.score <= 1e308 for row in found)
    assert all(row.text is None or isinstance(row.text, str) for row in found)
    return len(found)
