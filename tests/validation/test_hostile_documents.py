"""Small hostile files: rubrics, templates, cards, attacks, schemas and labelled rows. Every error
names the file.
"""

import json
import os
import warnings
from dataclasses import fields
from pathlib import Path

import pytest

from redraft.errors import ConfigError, RedraftError, StoreError
from redraft.graders import Judge, Rubric
from redraft.graders.cards import Card, CardStore, Measure, calibration_for
from redraft.graders.judging.checklist import Checklist
from redraft.plans.quality.calibration import Calibration
from redraft.requirements import parse
from redraft.validation.attacks import read_attacks
from redraft.validation.labelled import read_cases
from redraft.validation.recorded import read_verdicts
from redraft.validation.recorded_formats import parse_output

DEEP = "[" * 100_000
DIGITS = "9" * 5000
HEX = "0x" + "f" * 5000
FILES = {
    "deep.json": '{"criteria": ' + DEEP,
    "digits.json": f'{{"criteria": {DIGITS}}}',
    "twice.json": '{"criteria": 1, "criteria": 2}',
    "list.json": "[]",
    "names.json": '{"criteria": [{"name": ["x"], "description": "d"}]}',
    "uses.json": '{"criteria": {"a": "b"}, "uses": [["x"]]}',
    "levels.json": '{"criteria": [{"name": "a", "description": "d", "levels": [[], [], [], [], [], []]}]}',
    "deep.toml": f"criteria = {DEEP}",
    "digits.toml": f"criteria = {DIGITS}",
    "hex.toml": f"[criteria.a]\ndescription = 'd'\nweight = {HEX}",
    "key.toml": f"{'a.' * 500_000}a = 1",
    "date.toml": "criteria = 2020-01-01",
    "deep.yaml": f"criteria: {DEEP}",
    "digits.yaml": f"criteria: {DIGITS}",
    "hex.yaml": f"criteria: {HEX}",
    "itself.yaml": "criteria: &a [*a]",
    "laughs.yaml": "a: &a [x, x, x]\n"
    + "".join(f"a{n}: &a{n} [*a{n - 1 or ''}, *a{n - 1 or ''}]\n" for n in range(1, 40)),
    "merges.yaml": "a0: &a0 {x: 1}\n"
    + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40)),
    "tag.yaml": "criteria: !!int ''",
    "word.yaml": "criteria: !!bool x",
    "python.yaml": "criteria: !!python/object/apply:os.system [x]",
    "key.yaml": "criteria: {[a]: b}",
    "day.yaml": "criteria: 2020-13-45",
    "large.toml": "# " + "x" * 9_000_000,
    "latin.toml": b"a = '\xe9'",
}
NO_FILES = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "device": lambda path: os.symlink("/dev/zero", path),
}


def raises_naming(path):
    return pytest.raises(ConfigError, match=Path(path).name)


@pytest.mark.slow(but_each=10)
@pytest.mark.parametrize("load", [Rubric.load, Checklist], ids=["rubric", "checklist"])
@pytest.mark.parametrize("name", FILES)
def test_hostile_rubric_is_an_error_that_names_it(tmp_path, name, load):
    """The message is short, whatever the file contains."""
    path = tmp_path / name
    content = FILES[name]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with raises_naming(path) as error:
        load(path)
    assert len(str(error.value)) < 3000


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize(
    "load",
    [
        Rubric.load,
        Checklist,
        lambda path: Judge(template=path),
        read_attacks,
        lambda path: parse(f"json_schema:{path}"),
    ],
    ids=["rubric", "checklist", "template", "attacks", "schema"],
)
def test_special_files_are_not_waited_for(tmp_path, kind, load):
    """It holds for a pipe without a writer and for an endless device."""
    path = tmp_path / "t.toml"
    NO_FILES[kind](path)
    with raises_naming(path):
        load(path)


@pytest.mark.parametrize(
    "line",
    ['{"text": ' + DEEP, f'{{"text": {DIGITS}}}', '{"text": ["x"]}', "{}"],
    ids=["deep", "digits", "list", "none"],
)
def test_hostile_attacks_name_the_line(tmp_path, line):
    """The error for a hostile attack file names the line like any other error in it."""
    (tmp_path / "attacks.txt").write_text(f"fine\n{line}\n")
    with pytest.raises(ConfigError, match=r"attacks.txt:2: "):
        read_attacks(tmp_path / "attacks.txt")


VALUES = [None, True, 7, -1.5, "x", [], ["x"], {}, {"x": {"y": 1}}, [[1]], 10**4000]
GOOD = Card(
    "g",
    "f",
    "m",
    "2026-01-01",
    "d",
    "s",
    "live",
    "pair",
    3,
    0,
    Measure("preference", 0.5, 0.4, 0.6, 300, 0.5, clusters=100),
    repeated_rows=2,
    measures=(Measure("a", 1),),
    calibration=Calibration(
        100, 50, ((0.0, 0.1), (1.0, 0.9)), (-0.1, 0.1), 0.5, 0.5, 0.2, 0.0, 0.1, 0.1
    ),
    parts={"rubric": "a", "judge": "b", "model": "c"},
)


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("part", ["card", "headline", "measures", "calibration"])
def test_hostile_card_is_ignored(tmp_path, part):
    """It makes no grader trusted and stops no run."""
    written = json.loads(GOOD.to_json())
    target = (
        written
        if part == "card"
        else written["measures"][0]
        if part == "measures"
        else written[part]
    )
    files = [json.dumps({**target, name: value}) for name in target for value in VALUES]
    place = tmp_path / "one"
    place.mkdir()
    for text in [*files, DEEP, f"[{DIGITS}]", "null", ""]:
        whole = json.loads(text) if text in files else None
        if whole is not None and part != "card":
            whole = {**written, part: [whole] if part == "measures" else whole}
        (place / "card.json").write_text(text if whole is None else json.dumps(whole))
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            store = CardStore(tmp_path)
            standing = store.trust_status("g", "f")
        assert standing.explanation
        assert json.dumps(standing.to_data())
        calibration = calibration_for(standing.card)
        assert calibration is None or 0 <= calibration.predict(0.5, 0.1).mean <= 1


LABELLED = {
    "pair": {
        "prompt": "q",
        "response_a": "x",
        "response_b": "y",
        "label": "A",
        "id": "1",
        "group": "g",
        "context": "c",
        "reference": "r",
    },
    "one": {"prompt": "q", "response": "x", "label": "pass", "ratings": [1, 1], "id": "1"},
    "ranking": {"prompt": "q", "responses": ["x", "y"], "ranking": [1, 2], "id": "1"},
    "chosen": {
        "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x"}],
        "rejected": "y",
        "id": "1",
    },
}
WRONG = [
    *VALUES,
    "\ud800",
    "a\0b",
    [{"role": ["x"], "content": {}}],
    {"content": [7]},
    [None],
    float("nan"),
    "[" * 1000,
    f"[{DIGITS}]",
    "1e999",
]


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("shape", LABELLED)
def test_only_hostile_labelled_rows_are_left_out(tmp_path, shape):
    """They are reported with place and reason, and data without a readable row is a Redraft
    error.
    """
    good = LABELLED[shape]
    path = tmp_path / "labelled.jsonl"
    for name in good:
        for value in WRONG:
            lines = [{**good, "id": "a"}, {**good, "id": "b", name: value}, {**good, "id": "c"}]
            path.write_text("".join(json.dumps(row) + "\n" for row in lines))
            try:
                found = read_cases(path)
            except ConfigError:
                continue
            assert len(found.cases) + len(found.skipped_rows) == 3
            assert all(bad.location and bad.message for bad in found.skipped_rows)


def test_hostile_recorded_outputs_are_no_verdicts(tmp_path):
    """An unreadable output is an empty verdict with a complaint, or a Redraft error."""
    cases_file, outputs = tmp_path / "cases.jsonl", tmp_path / "outputs.jsonl"
    good = {"prompt": "q", "response_a": "x", "response_b": "y", "label": "A"}
    cases_file.write_text("".join(json.dumps({**good, "id": str(n)}) + "\n" for n in range(3)))
    cases = read_cases(cases_file).cases
    for name in ("case", "output", "shown", "repeat"):
        for value in [*WRONG, '{"winner": ' + DEEP, f'{{"winner": {DIGITS}}}']:
            row = {
                "case": "1",
                "output": '{"winner": "A"}',
                "shown": "AB",
                "repeat": 0,
                name: value,
            }
            outputs.write_text(
                json.dumps({"case": "0", "output": '{"winner": "A"}', "shown": "AB", "repeat": 0})
                + "\n"
                + json.dumps(row)
                + "\n"
            )
            try:
                verdicts = read_verdicts(
                    outputs, cases, {}, lambda text: parse_output(text, "json_pair:winner")
                )
            except RedraftError as error:
                assert "outputs.jsonl" in str(error)
                continue
            assert verdicts[0].case == "0"


@pytest.mark.parametrize("name", [field.name for field in fields(Card)])
def test_every_field_of_a_card_is_checked(name):
    """A field that is added later is checked, too."""
    data = json.loads(GOOD.to_json())
    assert name in data
    with pytest.raises(StoreError, match="not a validation card"):
        Card.from_json(json.dumps(data | {name: [[1]]}), "card.json")
