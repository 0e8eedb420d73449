"""The time and the memory that reading a document takes are bounded: counted in steps, not in
seconds.
"""

import gc
import json
import sys

import pytest
import yaml

from redraft.base.documents import check_yaml, parse_toml
from redraft.base.jsontext import MAX_DIGITS
from redraft.comparison import read_results
from redraft.errors import ConfigError
from redraft.gateway.config import load_config
from redraft.graders import Rubric
from redraft.graders.judging.checklist import MAX_QUESTIONS, as_questions
from redraft.tables.sources import open_source
from redraft.validation.attacks import read_attacks
from redraft.validation.labelled import read_cases


def toml_rows(n):
    return "".join(f'[[criteria]]\nname = "c{i}"\ndescription = "d"\n' for i in range(n))


def json_lines(n, **more):
    return "".join(
        json.dumps({"id": i, "prompt": f"p{i}", "response": "r", **more}) + "\n" for i in range(n)
    )


def rows_of(path):
    return list(open_source(str(path)).rows(None))


READERS = {  # name of the file, its reader, and its content with n entries
    "rubric.yaml": (
        Rubric.load,
        lambda n: (
            "criteria:\n" + "".join(f"  - name: c{i}\n    description: d\n" for i in range(n))
        ),
    ),
    "flow.yml": (
        Rubric.load,
        lambda n: "criteria: {" + ", ".join(f"c{i}: d" for i in range(n)) + "}",
    ),
    "rubric.toml": (Rubric.load, toml_rows),
    "rubric.json": (
        Rubric.load,
        lambda n: json.dumps({"criteria": {f"c{i}": "d" for i in range(n)}}),
    ),
    "rubric.md": (Rubric.load, lambda n: "".join(f"- c{i}: d\n" for i in range(n))),
    "checklist.yaml": (
        as_questions,
        lambda n: "questions:\n" + "".join(f"  - is it {i}?\n" for i in range(n)),
    ),
    "table.toml": (
        lambda path: parse_toml(path.read_text()),
        lambda n: "".join(f"k{i} = [{i}, 'x']\n" for i in range(n)),
    ),
    "gateway.toml": (
        lambda path: load_config(path, {}),
        lambda n: "".join(f'[models.m{i}]\nmodel = "http://127.0.0.1:1/v1#x"\n' for i in range(n)),
    ),
    "attacks.txt": (read_attacks, lambda n: "".join(f"attack {i}\n" for i in range(n))),
    "labels.jsonl": (read_cases, lambda n: json_lines(n, label="pass")),
    "labels.json": (
        read_cases,
        lambda n: json.dumps([json.loads(line) for line in json_lines(n, label=1).splitlines()]),
    ),
    "labels.csv": (
        read_cases,
        lambda n: "prompt,response,label\n" + "".join(f"p{i},r{i},1\n" for i in range(n)),
    ),
    "results.jsonl": (read_results, lambda n: json_lines(n, score=0.5)),
    "results.csv": (read_results, lambda n: "id,score\n" + "".join(f"{i},0.5\n" for i in range(n))),
    "rows.jsonl": (rows_of, json_lines),
    "rows.csv": (rows_of, lambda n: "prompt,x\n" + "".join(f"p{i},{i}\n" for i in range(n))),
}


def calls_of(action):
    """Return how many functions an action calls, those of C included."""
    count = 0

    def note(_frame, event, _value):
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    gc.collect()
    gc.disable()  # a collection calls what other tests left
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("name", READERS)
def test_twice_as_many_entries_take_twice_as_many_steps(tmp_path, name):
    """Every reader of documents and tables is linear: the steps of one entry do not grow with the
    number of entries.
    """
    read, content = READERS[name]
    counts = {}
    least = 10 if name.startswith("checklist") else 20
    for n in (least, least, 2 * least, 4 * least):  # the first time loads modules
        path = tmp_path / f"{n}" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content(n))
        counts[n] = calls_of(lambda path=path: read(path))
    once, twice, four_times = counts.values()
    assert four_times - twice <= 2.2 * (twice - once)


class Counted(str):
    """A text that counts how often it is hashed or compared."""

    steps = 0

    def __hash__(self):
        Counted.steps += 1
        return super().__hash__()

    def __eq__(self, other):
        Counted.steps += 1
        return super().__eq__(other)


@pytest.mark.parametrize("wrong", [False, True])
def test_examples_do_not_look_at_all_criteria(wrong):
    """A rubric with many criteria and many examples takes time in their sum, and an error names a
    few of them.
    """
    steps = {}
    for n in (50, 100):
        names = [Counted(f"criterion {i}") for i in range(n)]
        scores = [{names[i]: 1} for i in range(n)] + wrong * [{"another": 1}]
        data = {
            "criteria": [{"name": name, "description": "d"} for name in names],
            "examples": [{"answer": "a", "scores": each} for each in scores],
        }
        Counted.steps = 0
        if wrong:
            with pytest.raises(
                ConfigError,
                match="an example scores 'another'; there are criterion 0, .* and 89 more|there are .* and 39 more",
            ) as error:
                Rubric.from_data(data, "r", "r")
            assert len(str(error.value)) < 400
        else:
            Rubric.from_data(data, "r", "r")
        steps[n] = Counted.steps
    assert steps[100] <= 2.2 * steps[50]


class Events:
    """The module `yaml` with the events of its parser counted, and without anything that loads."""

    def __init__(self):
        self.count = 0

    def __getattr__(self, name):
        if name in {"safe_load", "load"}:
            raise AssertionError("loaded before it was checked")
        return getattr(yaml, name)

    def parse(self, text, loader):
        for event in yaml.parse(text, loader):
            self.count += 1
            yield event


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("form", ["rows", "table", "flow", "lists"])
def test_a_yaml_with_too_many_entries_is_refused_before_it_is_loaded(tmp_path, monkeypatch, form):
    """Loading takes longer than looking at it, and most of the entries are not even looked at."""
    monkeypatch.setattr("redraft.base.documents.MAX_VALUES", 1000)
    monkeypatch.setattr("redraft.graders.rubric.MAX_VALUES", 1000)
    text = {
        "rows": "criteria:\n" + "- name: c\n  description: d\n" * 5000,
        "table": "criteria:\n" + "".join(f"  c{i}: d\n" for i in range(5000)),
        "flow": "criteria: [" + "a," * 5000 + "]",
        "lists": "criteria: [" + "[a]," * 5000 + "]",
    }[form]
    events = Events()
    with pytest.raises(ValueError, match="it holds more than 1,000 values"):
        check_yaml(events, text)
    assert events.count <= 2 * 1000 + 2000  # nodes, and ends of collections
    (tmp_path / "rubric.yaml").write_text(text)
    monkeypatch.setattr(yaml, "safe_load", lambda _: pytest.fail("loaded before it was checked"))
    with pytest.raises(ConfigError, match=r"rubric.yaml.*it holds more than 1,000 values"):
        Rubric.load(tmp_path / "rubric.yaml")


@pytest.mark.parametrize(("entries", "fits"), [(999, True), (1000, False)])
def test_the_bound_is_of_values(tmp_path, monkeypatch, entries, fits):
    """A thousand values fit, as in JSON, whatever their keys; one more does not."""
    monkeypatch.setattr("redraft.base.documents.MAX_VALUES", 1000)
    monkeypatch.setattr("redraft.graders.rubric.MAX_VALUES", 1000)
    data = {"criteria": {f"c{i}": "d" for i in range(entries)}}
    for name, text in (("r.yaml", yaml.safe_dump(data)), ("r.json", json.dumps(data))):
        (tmp_path / name).write_text(text)
        if fits:
            assert len(Rubric.load(tmp_path / name).criteria) == entries
        else:
            with pytest.raises(ConfigError, match="it holds more than 1,000 values"):
                Rubric.load(tmp_path / name)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1" + ":1" * MAX_DIGITS, "a whole number in it has more than 4300 digits"),
        ("!!int '1" + ":1" * MAX_DIGITS + "'", "a whole number in it has more than 4300 digits"),
        ("1" + ":1" * 400 + ".5", "OverflowError"),
        ("'" + "1" * 5000 + "'", ""),
        ("word " * 2000, ""),
    ],
)
def test_long_numbers_of_yaml(tmp_path, monkeypatch, value, message):
    """A number in base 60, which takes time in the square of its length, is not even loaded; a text
    may be long.
    """
    path = tmp_path / "r.yaml"
    if "digits" in message:
        monkeypatch.setattr(
            yaml, "safe_load", lambda _: pytest.fail("loaded before it was checked")
        )
    path.write_text(f"criteria:\n  c: {value}\n")
    if message:
        with pytest.raises(ConfigError, match=rf"r\.yaml.*{message}"):
            Rubric.load(path)
    else:
        assert Rubric.load(path).criteria[0].name == "c"


@pytest.mark.parametrize("questions", [["q"] * (MAX_QUESTIONS + 5000), [["q"] * 9000]])
def test_what_a_message_shows_is_short(questions):
    """However long the list in a file is."""
    with pytest.raises(ConfigError) as error:
        as_questions(questions)
    assert len(str(error.value)) < 1000
