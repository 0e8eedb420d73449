"""Labels of people: whatever happens to the process, the file holds every label that was confirmed,
and other tools read them.
"""

import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from places import changed_at
from redraft.errors import ConfigError, StoreError
from redraft.validation import read_cases
from redraft.validation.label_file import (
    LABEL_FORMATS,
    Label,
    LabelFile,
    LabelItem,
    LabelQuestion,
    export_labels,
    import_labels,
    is_label_file,
    read_labels,
)

TEXT = st.text(max_size=20)
KINDS = st.sampled_from(
    [
        LabelQuestion("pair"),
        LabelQuestion("pass", "good?"),
        LabelQuestion("score", scale=(1, 5)),
        LabelQuestion("score", scale=(0, 3)),
    ]
)


def item_for(question, n, text="text"):
    responses = (f"{text} a", f"{text} b") if question.kind == "pair" else (f"{text} a",)
    return LabelItem(
        f"row {n}", f"prompt {n} {text}", responses, origins=("first", "best")[: len(responses)]
    )


@st.composite
def label_sets(draw):
    """A question and a history: labels by some annotators, labels taken back, some skipped."""
    question = draw(KINDS)
    moves = st.tuples(
        st.sampled_from(["ann", "bob", "Zoë Ω"]),
        st.integers(0, 5),
        st.sampled_from([None, *question.values]),
    )
    return (
        question,
        draw(st.lists(st.one_of(moves, st.sampled_from(["ann", "bob"])), max_size=14)),
        draw(TEXT),
    )


def replay(file, history, text, expected=None):
    """Carry out a history on a file and on a plain dictionary; return the latter."""
    expected = {} if expected is None else expected
    for move in history:
        if isinstance(move, str):
            own = [key for key in expected if key[1] == move]
            undone = file.undo(move)
            assert (undone.item if undone else None) == (own[-1][0] if own else None)
            if own:
                del expected[own[-1]]
        else:
            annotator, n, value = move
            item = item_for(file.labels.question, n, text)
            file.add(item, Label(item.id, annotator, value))
            expected.pop((item.id, annotator), None)
            expected[item.id, annotator] = value
    return expected


def values(labels):
    return [(key, label.value) for key, label in labels.labels.items()]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(label_sets())
def test_what_is_read_is_what_was_said(tmp_path_factory, history):
    """The last label of each annotator counts, in order, and a file that is opened again goes
    on.
    """
    question, moves, text = history
    path = tmp_path_factory.mktemp("labels") / "l.jsonl"
    half = len(moves) // 2
    with LabelFile(path, question) as file:
        expected = replay(file, moves[:half], text)
    assert values(read_labels(path)) == list(expected.items())
    with LabelFile(path, question) as file:
        assert values(file.labels) == list(expected.items())
        expected = replay(file, moves[half:], text, expected)
    assert values(read_labels(path)) == list(expected.items())
    assert is_label_file(path) and os.stat(path).st_mode & 0o077 == 0


@settings(max_examples=40, deadline=None)
@given(label_sets(), st.integers(1, 400))
def test_a_torn_file_keeps_every_whole_line(tmp_path_factory, history, cut):
    """Cut anywhere after its first line, the file is read without its torn last line, and can be
    continued.
    """
    question, moves, text = history
    path = tmp_path_factory.mktemp("labels") / "l.jsonl"
    with LabelFile(path, question) as file:
        replay(file, moves, text)
    data = path.read_bytes()
    first = data.index(b"\n") + 1
    kept = data[: max(first, len(data) - cut)]
    path.write_bytes(kept)
    whole = kept[: kept.rindex(b"\n") + 1]
    labels = read_labels(path)
    with LabelFile(path, question) as file:
        assert values(file.labels) == values(labels)
        item = item_for(question, 99)
        file.add(item, Label(item.id, "ann", question.values[0]))
    assert path.read_bytes().startswith(whole)
    assert ("row 99", "ann") in read_labels(path).labels


SCRIPT = """
import sys
from redraft.validation.label_file import *
question = LabelQuestion("pair")
with LabelFile(sys.argv[1], question) as file:
    for n in range(int(sys.argv[2]), 100000):
        item = LabelItem(f"row {n}", "prompt", ("a", "b"))
        file.add(item, Label(item.id, "ann", 1.0))
        print(n, flush=True)
"""


def test_kill_loses_no_label(tmp_path):
    """Every label that was confirmed before `kill -9` is in the file; at most the one in progress
    is there beside them.
    """
    path, count = tmp_path / "l.jsonl", 0
    for number in (200, 50):
        command = [sys.executable, "-c", SCRIPT, str(path), str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            confirmed = [process.stdout.readline() for _ in range(number)]
            os.kill(process.pid, signal.SIGKILL)
            confirmed += process.stdout.readlines()
        last = int([line for line in confirmed if line.endswith("\n")][-1])
        with LabelFile(path, LabelQuestion("pair")) as file:
            assert last + 1 <= len(file.labels.labels) <= last + 2
            count = len(file.labels.labels)


def test_two_processes_do_not_mix(tmp_path):
    """The file is locked, another kind of question is refused, and so is a file of something else,
    unchanged.
    """
    path = tmp_path / "l.jsonl"
    with (
        LabelFile(path, LabelQuestion("pair")),
        pytest.raises(StoreError, match="held by another process"),
    ):
        LabelFile(path, LabelQuestion("pair"))
    with pytest.raises(ConfigError, match="labels of kind pair: name another file"):
        LabelFile(path, LabelQuestion("pass"))
    other = tmp_path / "answers.jsonl"
    other.write_text('{"prompt": "q"}\n{"torn')
    with pytest.raises(StoreError, match="no file of labels"):
        LabelFile(other, LabelQuestion("pair"))
    assert other.read_text() == '{"prompt": "q"}\n{"torn'


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("[]", "line 2"),
        ('{"label": {"item": "x", "annotator": "ann", "value": 1}}', "no item before it"),
        (
            '{"item": {"id": "x", "prompt": "q", "responses": ["a", "b"]}}\n{"label": {"item": "x", "annotator": "a", "value": 7}}',
            "value must be one of .*, got 7",
        ),
        ('{"item": {"id": 5}}', "line 2"),
    ],
)
def test_a_damaged_file_names_the_line(tmp_path, line, named):
    """It is an error, and no label is guessed."""
    path = tmp_path / "l.jsonl"
    path.write_text('{"redraft_labels": 1, "question": {}}\n' + line + "\n")
    with pytest.raises(StoreError, match=named):
        read_labels(path)


@pytest.mark.parametrize("value", [3.0, 0.5, float("nan")])
def test_a_label_is_one_of_the_choices(tmp_path, value):
    """A number that is no answer to the question is refused, and nothing is written."""
    path = tmp_path / "l.jsonl"
    with LabelFile(path, LabelQuestion("pair")) as file:
        before = path.read_bytes()
        with pytest.raises(ConfigError, match="value must be"):
            file.add(item_for(file.labels.question, 1), Label("row 1", "ann", value))
        with pytest.raises(ConfigError, match="annotator"):
            file.add(item_for(file.labels.question, 1), Label("row 1", "\n", 1.0))
    assert path.read_bytes() == before


@settings(max_examples=60, deadline=None)
@given(history=label_sets(), format=st.sampled_from(LABEL_FORMATS))
def test_other_formats_keep_the_labels(tmp_path_factory, history, format):
    """What is exported and imported again has the same values by the same annotators, for the same
    texts.
    """
    question, moves, text = history
    with LabelFile(tmp_path_factory.mktemp("labels") / "l.jsonl", question) as file:
        replay(file, moves, text)
        labels = file.labels
    found = import_labels(export_labels(labels, format), format, question)
    known = {key: label.value for key, label in labels.labels.items() if label.value is not None}
    assert {
        key: label.value for key, label in found.labels.items() if label.value is not None
    } == known
    for id, _ in known:
        assert (found.items[id].prompt, found.items[id].responses) == (
            labels.items[id].prompt,
            labels.items[id].responses,
        )
    assert {label.sample for label in found.labels.values()} <= {"imported"}


@pytest.mark.parametrize("format", LABEL_FORMATS)
@pytest.mark.parametrize(
    "text",
    ["{", "[1]", '[{"data": {}}]', '{"id": 1}', '[{"id": 1, "fields": {"response_a": 1, "response_b": "b"}}]', "[" * 5000,
     '{"id": "1", "response_a": "a", "response_b": "b", "ratings": [9]}',
     '[{"id": "1", "fields": {"response_a": "a", "response_b": "b"}, "responses": {"label": [{"value": "best", "user_id": "u"}]}}]',
     '[{"data": {"id": "1", "response_a": "a", "response_b": "b"}, "annotations": [{"result": [{"value": {"selected": "up"}}]}]}]'],
)  # fmt: skip
def test_foreign_files_are_refused_with_a_reason(format, text):
    """A value that is no answer, or a shape that is not the format's, is an error and never a
    label.
    """
    with pytest.raises(ConfigError) as caught:
        import_labels(text, format, LabelQuestion("pair"))
    assert len(str(caught.value)) < 500


LABEL_STUDIO = [
    {
        "id": 17,
        "data": {"prompt": "q", "response_a": "x", "response_b": "y"},
        "annotations": [
            {"completed_by": 3, "was_cancelled": False, "lead_time": 4.3,
             "result": [{"from_name": "pw", "to_name": "a,b", "type": "pairwise", "value": {"selected": "right"}}]},
            {"completed_by": {"id": 4, "email": "ann@example.org"}, "was_cancelled": True, "result": []},
        ],
        "predictions": [],
    }
]  # fmt: skip


def test_an_export_of_label_studio_is_read():
    """As Label Studio writes it: users by number or as objects, cancelled annotations, times."""
    found = import_labels(json.dumps(LABEL_STUDIO), "label-studio", LabelQuestion("pair"))
    assert [(x.item, x.annotator, x.value, x.seconds) for x in found.labels.values()] == [
        ("17", "3", 2.0, 4.3),
        ("17", "ann@example.org", None, None),
    ]


def test_validate_reads_the_file_as_it_is(tmp_path):
    """One rating for each annotator, the label by the majority, in every kind."""
    for question, given_values, label in [
        (LabelQuestion("pair"), [1.0, 1.0, 2.0], (0, 1)),
        (LabelQuestion("pass"), [1.0, 0.0, 0.0], 0.0),
        (LabelQuestion("score"), [1.0, 5.0, 3.0], 3.0),
    ]:
        path = tmp_path / f"{question.kind}.jsonl"
        with LabelFile(path, question) as file:
            for n in range(3):
                for annotator, value in zip(("ann", "bob", "cy"), given_values):
                    item = item_for(question, n)
                    file.add(item, Label(item.id, annotator, value if n else question.values[-1]))
        cases = read_cases(path)
        assert cases.kind == question.kind
        case = next(case for case in cases.cases if case.id == "row 1")
        assert (case.ranks if question.kind == "pair" else case.label) == label
        assert case.ratings == tuple(given_values)
        assert case.task.prompt == "prompt 1 text"


# ---- when something is wrong


@pytest.mark.skipif(os.name == "nt", reason="not POSIX")
@pytest.mark.parametrize("room", [0, 1, 40, 90])
def test_a_write_that_fails_tears_nothing(tmp_path, room):
    """When the disk is full, the label is refused; when there is room again, the file goes on, and
    all of it is read.
    """
    import resource

    path = tmp_path / "l.jsonl"
    question = LabelQuestion("pair")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with LabelFile(path, question) as file:
        file.add(item_for(question, 0), Label("row 0", "ann", 1.0))
        before = path.read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
        try:
            with pytest.raises(StoreError, match="cannot be written: .*; 1 labels are in it"):
                file.add(item_for(question, 1), Label("row 1", "ann", 2.0))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.read_bytes() == before
        file.add(item_for(question, 2), Label("row 2", "ann", 0.0))
        assert (
            values(read_labels(path))
            == values(file.labels)
            == [(("row 0", "ann"), 1.0), (("row 2", "ann"), 0.0)]
        )


def test_a_file_of_which_only_the_start_was_written_is_begun_again(tmp_path):
    """A power failure may leave the first line torn."""
    path = tmp_path / "l.jsonl"
    LabelFile(path, LabelQuestion("pass")).close()
    path.write_bytes(path.read_bytes()[:-9])
    with LabelFile(path, LabelQuestion("pass")) as file:
        file.add(LabelItem("x", "q", ("a",)), Label("x", "ann", 1.0))
    assert values(read_labels(path)) == [(("x", "ann"), 1.0)]


def test_a_label_keeps_the_responses_that_were_judged(tmp_path):
    """An item is not replaced by another one of the same ID, such as the same pair in the other
    order.
    """
    path = tmp_path / "l.jsonl"
    with LabelFile(path, LabelQuestion("pair")) as file:
        file.add(LabelItem("x", "q", ("a", "b"), origins=("first", "best")), Label("x", "ann", 1.0))
        before = path.read_bytes()
        swapped = [
            (LabelItem("y", "q", ("a", "b")), Label("y", "bob", 1.0)),
            (LabelItem("x", "q", ("b", "a")), Label("x", "bob", 2.0)),
        ]
        with pytest.raises(ConfigError, match="item 'x' has other responses"):
            file.extend(swapped)
        assert path.read_bytes() == before and "y" not in file.labels.items
        file.add(LabelItem("x", "", ("a", "b")), Label("x", "bob", 2.0))
        assert file.labels.items["x"].origins == ("first", "best")
    assert read_labels(path).items == file.labels.items


def test_the_random_share_is_chosen_once(tmp_path):
    """Another share would sample from the items that were not chosen for what they teach; such a
    sample is biased.
    """
    path = tmp_path / "l.jsonl"
    with LabelFile(path, LabelQuestion("pair")) as file:
        assert file.choose_random_share(None, 0.25) == 0.25
    with LabelFile(path, LabelQuestion("pair")) as file:
        assert file.choose_random_share(None, 0.9) == file.choose_random_share(0.25, 0.9) == 0.25
        with pytest.raises(ConfigError, match="begun with 0.25"):
            file.choose_random_share(0.5, 0.25)
    with (
        LabelFile(tmp_path / "other.jsonl", LabelQuestion("pair")) as file,
        pytest.raises(ConfigError, match="random_share"),
    ):
        file.choose_random_share(float("nan"), 0.25)


def test_an_item_of_the_random_share_stays_one(tmp_path):
    """Also if somebody else's label of it was imported."""
    question = LabelQuestion("pass")
    with LabelFile(tmp_path / "l.jsonl", question) as file:
        for n, samples in enumerate(
            [("imported", "random"), ("random", "imported"), ("chosen", "imported")]
        ):
            for annotator, sample in zip(("ann", "bob"), samples):
                file.add(item_for(question, n), Label(f"row {n}", annotator, 1.0, sample=sample))
        assert [row["sample"] for row in file.labels.rows()] == ["random", "random", "chosen"]


ODD = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1,
        2,
        5,
        4.5,
        10**400,
        float("inf"),
        float("nan"),
        "",
        "first",
        "left",
        "good",
        "x" * 90,
        "\ud800",
        [],
        {},
    ]
)


@given(label_sets(), st.sampled_from(LABEL_FORMATS), st.integers(0, 200), ODD)
def test_what_is_imported_can_be_read(tmp_path_factory, history, format, n, value):
    """A file in which one value is another is refused as a whole, or all of it is in the file of
    labels, which stays readable.
    """
    question, moves, text = history
    folder = tmp_path_factory.mktemp("labels")
    with LabelFile(folder / "l.jsonl", question) as file:
        replay(file, moves, text)
        exported = export_labels(file.labels, format)
    is_lines = format == "jsonl"
    records = changed_at(
        [*map(json.loads, exported.splitlines())] if is_lines else json.loads(exported), n, value
    )
    try:
        found = import_labels(
            "\n".join(map(json.dumps, records)) if is_lines else json.dumps(records),
            format,
            question,
        )
    except ConfigError:
        return
    with LabelFile(folder / "imported.jsonl", question) as file:
        file.extend((found.items[label.item], label) for label in found.labels.values())
    assert read_labels(folder / "imported.jsonl").labels == file.labels.labels
    values = {key: label.value for key, label in found.labels.items()}
    assert {key: label.value for key, label in file.labels.labels.items()} == values
    assert len([*file.labels.rows()]) == len(
        {item for (item, _), value in values.items() if value is not None}
    )


def test_rows_without_an_id_are_different_items():
    """And JSON Lines are split at line ends alone: other tools write U+2028 and U+0085 as they
    are.
    """
    text = '{"response": "a\u2028\x85b", "ratings": [1]}\n{"response": "c", "ratings": [0]}\n'
    found = import_labels(text, "jsonl", LabelQuestion("pass"))
    assert [(item.id, item.responses) for item in found.items.values()] == [
        ("1", ("a\u2028\x85b",)),
        ("2", ("c",)),
    ]
    twice = text.replace('{"response"', '{"id": 7, "response"')
    with pytest.raises(ConfigError, match="two different items have the ID '7'"):
        import_labels(twice, "jsonl", LabelQuestion("pass"))


ANSWERS = [  # what a tool says, and what it means in each kind of question
    ("first", {"pair": 1.0}),
    ("left", {"pair": 1.0}),
    ("right", {"pair": 2.0}),
    ("tie", {"pair": 0.0}),
    ("good", {"pass": 1.0}),
    ("bad", {"pass": 0.0}),
    ("chosen", {}),
    (1, {"pair": 1.0, "pass": 1.0, "score": 1.0}),
    (5, {"score": 5.0}),
    (True, {}),
]


@pytest.mark.parametrize("kind", ["pair", "pass", "score"])
@pytest.mark.parametrize(("said", "meanings"), ANSWERS)
def test_a_word_is_a_label_of_its_own_kind_of_question_alone(kind, said, meanings):
    """In every format; the error names the item, the word and what is allowed."""
    texts = {"response_a": "a", "response_b": "b"} if kind == "pair" else {"response": "a"}
    is_word = isinstance(said, str)
    result = {"value": {"choices": [said]} if is_word else {"rating": said}}
    texts_by_format = {
        "jsonl": json.dumps({"id": "x", **texts, "ratings": [said]}),
        "argilla": json.dumps(
            [{"id": "x", "fields": texts, "responses": {"q": [{"value": said}]}}]
        ),
        "label-studio": json.dumps(
            [{"data": {"id": "x", **texts}, "annotations": [{"result": [result]}]}]
        ),
    }
    for format, text in texts_by_format.items():
        if format == "label-studio" and said is True:
            continue
        if kind in meanings:
            (label,) = import_labels(text, format, LabelQuestion(kind)).labels.values()
            assert label.value == meanings[kind]
        else:
            allowed = (
                "1, 2, 3, 4, 5" if kind == "score" else "first.*tie" if kind == "pair" else "good"
            )
            with pytest.raises(ConfigError, match=f"item 'x': a label cannot be .*{allowed}"):
                import_labels(text, format, LabelQuestion(kind))
