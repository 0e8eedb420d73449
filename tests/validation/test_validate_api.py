"""`redraft.validation.validate` from Python: cases and graders of every form, the result, and the
card.
"""

import json
import subprocess
import sys

import pytest

import redraft
from redraft import ScriptedModel, Task, with_weight
from redraft.cli import main
from redraft.errors import ConfigError, GradingError
from redraft.validation import (
    LabelledCase,
    ValidationResult,
    read_cases,
    validate,
    validate_sync,
)

ROWS = [
    {
        "prompt": "How many?",
        "response": f"There are {n}." if n % 2 else f"Unknown{'.' * n}",
        "label": n % 2,
    }
    for n in range(40)
]


CASES = [
    LabelledCase(str(n), "pass", Task("How many?"), (row["response"],), label=row["label"])
    for n, row in enumerate(ROWS)
]


def has_number(text):
    return any(c.isdigit() for c in text)


def as_file(folder):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder / "rows.jsonl"


def as_frame(folder):
    return pytest.importorskip("pandas", reason="no pandas").DataFrame(ROWS)


def as_cases(folder):
    return [
        LabelledCase(str(n), "pass", Task("q"), (row["response"],), label=row["label"])
        for n, row in enumerate(ROWS)
    ]


FORMS = [
    lambda _: ROWS,
    lambda _: iter(ROWS),
    as_file,
    lambda folder: str(as_file(folder)),
    as_frame,
    as_cases,
    lambda _: read_cases(ROWS),
]


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("form", FORMS)
async def test_cases_have_many_forms(tmp_path, form):
    """The measures are the same, and only `save_card` writes a card."""
    result = await validate(form(tmp_path), has_number, cards_dir=tmp_path / "cards")
    assert isinstance(result, ValidationResult)
    assert result.trusted and result.headline.value == 1 and result.measures["accuracy"].n == 40
    assert (result.stop_reason, result.skipped, result.usage.calls) == (None, (), 0)
    assert not list(tmp_path.glob("cards/*/card.json"))
    folder = result.save_card()
    assert (folder / "card.md").exists() and json.dumps(result.to_dict())
    assert "has_number" in repr(result) and "<table>" in result._repr_html_()


@pytest.mark.parametrize(
    ("grader", "name"),
    [
        ("contains:There", "contains:There"),
        ([has_number], "has_number"),
        ([has_number, with_weight("contains:There", 3)], "weighted"),
        (redraft.graders.Minimum([has_number]), "minimum"),
    ],
)
async def test_graders_have_many_forms(tmp_path, grader, name):
    """Several are measured as their weighted mean."""
    result = await validate(ROWS, grader, cards_dir=tmp_path)
    assert result.trusted and result.card.grader == name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"cases": []}, "cases: there is none to judge"),
        ({"cases": iter(())}, "cases: there is none to judge"),
        ({"cases": [*CASES, ROWS[0]]}, "cases must be a list of LabelledCases, or of rows"),
        ({"limit": 0, "cases": CASES}, "limit"),
        ({"graders": "exact"}, "unknown argument 'graders'; did you mean 'grader'"),
        ({"cases": [{"prompt": "q"}]}, "response"),
        ({"cases": 3}, "rows must be a file"),
        ({"grader": None}, "grader must be a grader"),
        ({"grader": []}, "grader must be a grader"),
        ({"restarts": True}, "unknown argument 'restarts'; did you mean 'restart'"),
        ({"grader": "helpfulness", "judge": False}, "asks a model"),
        ({"grader": [redraft.must("words:1-5"), has_number]}, r"\(must\) is not part of a mean"),
        ({"repeats": 0}, "repeats"),
        ({"threshold": 2}, "threshold"),
        ({"scale": (5, 1)}, "scale must be the lowest and the highest label"),
        ({"attacks": [3]}, "attacks must be"),
        ({"kind": "best"}, "kind='best'"),
        ({"patience": 3}, "unknown argument 'patience'; there are budget"),
        ({"retries": -1}, "retries"),
        ({"columns": {"label": "nothing"}}, "nothing"),
    ],
)
async def test_wrong_arguments_are_named(tmp_path, arguments, words):
    """Before any call."""
    with pytest.raises(ConfigError, match=words):
        await validate(**{"cases": ROWS, "grader": has_number, "cards_dir": tmp_path, **arguments})


CONTAINERS = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "generator": lambda items: (item for item in items),
}


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
@pytest.mark.parametrize("items", [ROWS, CASES], ids=["rows", "cases"])
async def test_cases_come_in_any_iterable(tmp_path, items, container):
    """None is lost, and `limit` holds for each."""
    result = await validate(container(items), has_number, cards_dir=tmp_path, limit=30)
    assert (result.card.rows, result.card.headline.value) == (30, 1)


async def test_verdicts_of_a_judge_are_saved_and_reused(tmp_path):
    """The same call makes no further call; `restart` does."""

    def reply(messages):
        score = 5 if "There are" in str(messages) else 0
        names = ("instructions", "correctness", "completeness", "clarity")
        criteria = {n: {"evidence": "", "change": "", "score": score} for n in names}
        return json.dumps({"reason": "It is so.", "criteria": criteria, "done": True})

    calls = []
    judge = redraft.models.CallableModel(
        lambda messages: calls.append(1) or reply(messages), name="tiny"
    )
    for expected in (40, 40, 80):
        result = await validate(ROWS, "judge", judge, cards_dir=tmp_path, restart=expected == 80)
        assert result.trusted and len(calls) == expected


async def test_a_function_is_run_again(tmp_path):
    """What it calls is no part of its fingerprint, so its verdicts are not reused."""
    calls = []

    def grader(text):
        seen(text)
        return has_number(text)

    global seen  # noqa: PLW0603
    seen = calls.append
    for n in (1, 2):
        await validate(ROWS, grader, cards_dir=tmp_path)
        assert len(calls) == 40 * n


async def test_attacks_and_skipped_rows_are_in_the_result(tmp_path):
    """Attacks are texts; rows that cannot be understood are listed with their place."""
    rows = [*ROWS, {"prompt": "q", "response": "a", "label": "perhaps"}]
    result = await validate(
        rows, has_number, attacks=["There are 7.", "Please."], kind="pass", cards_dir=tmp_path
    )
    assert result.attacks["all attacks"].value == 0.5
    assert len(result.skipped) == 1 and "perhaps" in result.skipped[0]


async def test_without_any_verdict_there_is_an_error(tmp_path):
    """An outage is no verdict."""
    with pytest.raises(GradingError, match="nothing could be judged"):
        await validate(
            ROWS[:12],
            "judge",
            ScriptedModel([redraft.errors.ModelTimeoutError("slow")] * 50),
            retries=0,
            cards_dir=tmp_path,
        )


def test_the_card_of_the_command_and_of_python_is_the_same(tmp_path, monkeypatch):
    """Equal data, read in the same way, have one folder."""
    monkeypatch.chdir(tmp_path)
    as_file(tmp_path)
    assert (
        main(
            [
                "validate",
                "rows.jsonl",
                "--grader",
                "contains:There",
                "--cards-dir",
                "cards",
                "--model",
                "http://127.0.0.1:9/v1#x",
            ]
        )
        == 0
    )
    result = validate_sync("rows.jsonl", "contains:There", cards_dir="cards")
    assert result.save_card() == next((tmp_path / "cards").glob("*/card.json")).parent.relative_to(
        tmp_path
    )


@pytest.mark.slow
def test_the_package_needs_no_import_of_its_own():
    """Importing redraft loads nothing of it."""
    script = "import sys, redraft; assert 'redraft.validation' not in sys.modules; print(redraft.validation.validate.__name__)"
    assert (
        subprocess.run(
            [sys.executable, "-c", script], check=True, capture_output=True, text=True
        ).stdout
        == "validate\n"
    )


@pytest.mark.parametrize(
    ("grader", "needed"),
    [
        ("context_memory", "earlier turns"),
        ("tool_selection", "a trajectory"),
        ("correctness", "-c reference=COLUMN"),
    ],
)
async def test_rows_without_what_a_rubric_needs_are_an_error_that_says_how_to_give_it(
    tmp_path, grader, needed
):
    """Turns and trajectories are in the messages: no column of their own is asked for."""
    with pytest.raises(ConfigError, match=f"no row of 40 rows has .*{needed}") as caught:
        await validate(ROWS, grader, ScriptedModel([]), cards_dir=tmp_path)
    assert ("'messages'" in str(caught.value)) == (grader != "correctness")
