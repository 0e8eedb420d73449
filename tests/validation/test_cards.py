"""Cards, the fingerprint that makes them stale, and the gate that reads them."""

import json
import os
import re
import subprocess
import sys
import threading
import warnings
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from functools import cache, partial
from pathlib import Path

import pytest

from redraft import Feedback, Judge, ScriptedModel, Task, refine, with_weight
from redraft.errors import ConfigError, StoreError
from redraft.graders import FunctionGrader, Gate, Jury, Minimum, Rubric
from redraft.graders.fingerprint import grader_fingerprint
from redraft.options import Options
from redraft.session import Session
from redraft.cards.card import Card, CardStore, data_dir, write_card_file
from redraft.cards.measure import Measure
from redraft.cards.trust import UntrustedGraderWarning

GOOD = Measure("preference", 0.9, 0.85, 0.94, 200, 0.5)
CHANCE = Measure("preference", 0.55, 0.48, 0.61, 200, 0.5)
VERDICT = json.dumps({"criteria": {"truth": {"evidence": "e", "change": "", "score": 5}}, "done": True})
JUDGE = Judge({"truth": "It is true."}, name="truthful")


def card(mark, headline=GOOD, **changes):
    made = Card("truthful", mark, "scripted", "2026-01-02", "pairs.jsonl", "0" * 64, "live", "pair", 200, 0, headline)
    return replace(made, **changes)


def filed(shelf, held):
    write_card_file(shelf.card_folder(held.grader, held.fingerprint, held.data, held.sha256) / "card.json", held.to_json())


def mark_of(judge=JUDGE, model=None):
    desk = Session(Options(), None, judge, model or ScriptedModel([VERDICT]))
    panel, cast = desk.resolve_panel(())
    return desk.fingerprint(cast, panel[0].name)


def test_a_card_survives_its_file():
    """What is written is what is read; anything else is refused with its place."""
    held = card("abc", groups=(GOOD,), parse_errors={"why": 2}, attacks={"measures": []})
    assert Card.from_json(held.to_json(), "x") == held
    for broken in ("", "[]", "{}", '{"redraft_card": 99}', held.to_json().replace('"headline"', '"other"')):
        with pytest.raises(StoreError, match="card.json"):
            Card.from_json(broken, "card.json")


@pytest.mark.parametrize(
    "changed",
    [
        replace(JUDGE, rubric=Rubric.from_data({"criteria": {"truth": "It is quite true."}}, "r", "r")),
        replace(JUDGE, temperature=0.7),
        replace(JUDGE, max_eval_chars=100),
        replace(JUDGE, template="{query} {response}"),
    ],
)
def test_what_changes_the_judging_changes_the_fingerprint(changed):
    """Rubric, prompt and settings."""
    assert mark_of(changed) != mark_of()


def test_the_model_is_part_of_the_fingerprint_and_the_name_of_a_grader_is_not():
    """Another model is another grader; a new name is none."""
    assert mark_of(model=ScriptedModel([VERDICT], name="other")) != mark_of()
    assert mark_of(replace(JUDGE, name="renamed")) == mark_of()


def test_the_words_of_the_prompt_are_part_of_it(monkeypatch):
    """A release that asks in other words makes cards stale."""
    before = mark_of()
    monkeypatch.setattr(Judge, "prompt_texts", ("something else",))
    assert mark_of() != before


def test_a_function_is_known_by_its_source():
    """Two functions of the same name are two graders."""

    def one():
        def f(text):
            return 1.0

        return f

    def two():
        def f(text):
            return 0.5

        return f

    marks = {grader_fingerprint(FunctionGrader(f), lambda _: None) for f in (one(), one(), two())}
    assert len(marks) == 2


def test_a_grader_of_your_own_is_known_by_its_code_and_its_data():
    """Its plain attributes count, its clients and locks do not."""

    class Own:
        name = "own"

        def __init__(self, prompt):
            self.prompt, self.client = prompt, object()

        async def grade(self, task, candidate, ask):
            return None

    marks = [grader_fingerprint(Own(prompt), lambda _: "m") for prompt in ("a", "a", "b")]
    assert marks[0] == marks[1] != marks[2]


def limit(most):
    return lambda text: len(text) <= most


def at_most(most, text, *, slack=0):
    return len(text) <= most + slack


def preset(most):
    def check(text, most=most):
        return len(text) <= most

    return check


class Most:
    """Callable, with a method that grades as well, and slots."""

    __slots__ = ("most", "note")

    def __init__(self, most, note=None):
        self.most, self.note = most, note

    def __call__(self, text):
        return len(text) <= self.most

    def check(self, text):
        return len(text) <= self.most


class Settings:
    def __init__(self, held):
        self.held = held


@dataclass(frozen=True)
class Config:
    held: object


class Asker:
    """A grader of one's own, with whatever it holds."""

    name = "asker"

    def __init__(self, held):
        self.held, self.client, self.lock = held, Settings(threading.Lock()), threading.Lock()

    async def grade(self, task, candidate, ask):
        return None


def looped(most):
    own = Settings(most)
    own.me = [own]
    return Asker(own)


def made_in(text):
    """A function that no file holds."""
    space = {}
    exec(text, space)  # noqa: S102
    return space["f"]


def rubric(text):
    return Rubric.from_data({"criteria": {"truth": text}}, "r", "r")


def seen(grader):
    return grader_fingerprint(FunctionGrader(grader) if callable(grader) else grader, lambda _: "m")


CHANGES = {
    "closure": limit,
    "partial": lambda n: partial(at_most, n),
    "partial by name": lambda n: partial(at_most, 5, slack=n),
    "partial of a closure": lambda n: partial(limit(n)),
    "default": preset,
    "bound method": lambda n: Most(n).check,
    "callable object with slots": Most,
    "what a callable object holds": lambda n: Most(1, {"a": [n]}),
    "cached function": lambda n: cache(limit(n)),
    "closure in a closure": lambda n: limit(limit(n)),
    "set in a closure": lambda n: (lambda held: lambda text: text in held)({f"{n}", "a", "b", "c"}),
    "pattern": lambda n: re.compile("a" * n).search,
    "code without a file": lambda n: made_in(f"def f(text): return {n}.0"),
    "rubric": lambda n: Asker(rubric(f"It is true {n}.")),
    "name of a criterion": lambda n: Asker(Rubric.from_data({"criteria": {f"truth {n}": "t"}}, "r", "r")),
    "dataclass": lambda n: Asker(Config({"deep": (n,)})),
    "plain object": lambda n: Asker(Settings([n])),
    "other data": lambda n: Asker([Path(f"p{n}"), Decimal(n), date(2026, 1, n), b"%d" % n, {n}]),
    "function held": lambda n: Asker(limit(n)),
    "circle": looped,
    "attribute of a class": lambda n: type("Made", (Asker,), {"words": f"{n}"})(0),
    "part of a jury": lambda n: Jury([limit(n)]),
}


@pytest.mark.parametrize("make", CHANGES.values(), ids=CHANGES)
def test_what_a_grader_holds_is_part_of_its_fingerprint(make):
    """Made again alike, it is the same; with another value in it, however deep, it is another."""
    assert seen(make(1)) == seen(make(1)) != seen(make(2))


def test_two_lambdas_in_one_line_are_two_graders():
    """They share their source."""
    one, other = (lambda text: 1.0), (lambda text: 0.5)
    assert seen(one) != seen(other)


@pytest.mark.parametrize(
    "make", [limit, lambda held: partial(at_most, held), lambda held: limit(held).__call__, lambda held: limit(Settings(held))]
)
def test_a_function_that_holds_what_cannot_be_told_never_matches(make):
    """What it does may hang on a lock or a client, and nobody can say whether it is the same one."""
    held = make(threading.Lock())
    assert seen(held) != seen(held)


def test_every_run_of_a_program_finds_the_same_fingerprint():
    """No address and no order of a set, which change from run to run."""
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; from tests_cards import CHANGES, seen; "
        "print([seen(make(1)) for make in CHANGES.values()])"
    ).replace("tests_cards", Path(__file__).stem)
    told = {
        subprocess.run(
            [sys.executable, "-c", program, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


async def run(shelf, trust, graders=JUDGE):
    model = ScriptedModel([VERDICT])
    return await refine(Task("q", "a"), model, graders, require_validated=trust, cards_dir=shelf.folder, max_iterations=0)


@pytest.mark.parametrize(
    ("held", "status"),
    [
        (None, "none"),
        (lambda: card(mark_of(), CHANCE), "chance"),
        (lambda: card("0" * 16), "stale"),
        (lambda: card(mark_of(), Measure("preference", None, None, None, 0, 0.5)), "chance"),
    ],
)
async def test_an_untrusted_grader_is_warned_of_or_refused(tmp_path, held, status):
    """No card, a stale one, or an interval that includes chance; before anything is asked."""
    shelf = CardStore(tmp_path)
    if held:
        filed(shelf, held())
    with pytest.warns(UntrustedGraderWarning, match="truthful.*redraft validate"):
        result = await run(shelf, "warn")
    assert result.metadata["validation"]["truthful"]["status"] == status
    with pytest.raises(ConfigError, match="truthful"):
        await run(shelf, "error")


async def test_a_trusted_grader_passes_and_the_result_says_what_its_card_says(tmp_path):
    """The headline, the data and the day."""
    shelf = CardStore(tmp_path)
    filed(shelf, card(mark_of()))
    filed(shelf, card("0" * 16, CHANCE, date="2025-01-01"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = await run(shelf, "error")
    known = result.metadata["validation"]["truthful"]
    assert known["status"] == "trusted"
    assert known["headline"]["value"] == 0.9
    assert "pairs.jsonl, 2026-01-02" in known["explanation"]
    assert type(result.trace).from_json(result.trace.to_json()).panel[0].card == known


def short(text):
    return len(text) < 80


@pytest.mark.parametrize(
    "grader", ["words:1-5", "readability", Gate("words:1-5", "readability"), Jury(["answered", Minimum(["repetition"])])]
)
async def test_what_computes_needs_no_card(tmp_path, grader):
    """Requirements, our graders that compute, and what is made of them measure what they say."""
    result = await run(CardStore(tmp_path), "error", grader)
    assert {s["status"] for s in result.metadata["validation"].values()} == {"deterministic"}


class Free:
    """Says of itself that it asks no model."""

    name, model_free = "short", True

    async def grade(self, task, candidate, ask):
        return Feedback(1.0)


@pytest.mark.parametrize("grader", [short, Free(), Jury([short, "words:1-5"], name="short")])
async def test_code_of_your_own_needs_a_card(tmp_path, grader):
    """It may measure the wrong thing; the error says how to get a card for it. With one it passes."""
    with pytest.raises(ConfigError, match=r"'short'.*never validated.*from Python.*validation\.run\.validate.*docs/validation\.md"):
        await run(CardStore(tmp_path), "error", grader)
    desk = Session(Options(), None, grader)
    panel, cast = desk.resolve_panel(())
    filed(CardStore(tmp_path), card(desk.fingerprint(cast, "short"), grader="short"))
    result = await run(CardStore(tmp_path), "error", grader)
    assert result.metadata["validation"]["short"]["status"] == "trusted"


async def test_recorded_outputs_vouch_for_no_live_grader(tmp_path):
    """A card of recordings has no fingerprint: it makes a grader of that name neither trusted nor stale."""
    filed(CardStore(tmp_path), card("recorded", source="arena_hard"))
    assert CardStore(tmp_path).trust_status("truthful", mark_of()).status == "none"
    assert CardStore(tmp_path).trust_status("truthful", "recorded").status == "none"


async def test_a_seat_with_a_weight_is_known_by_its_grader(tmp_path):
    """Weights and looks are the panel's, not the grader's."""
    filed(CardStore(tmp_path), card(mark_of()))
    result = await run(CardStore(tmp_path), "error", with_weight(JUDGE, 2))
    assert result.metadata["validation"]["truthful"]["status"] == "trusted"


async def test_without_trust_no_card_is_looked_at(tmp_path):
    """Nothing is read, nothing is said."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "card.json").write_text("not a card")
    result = await run(CardStore(tmp_path), "off")
    assert result.metadata["validation"] == {}
    with pytest.warns(UntrustedGraderWarning), pytest.warns(UserWarning, match="a card is left out.*not a validation card"):
        await run(CardStore(tmp_path), "warn")


async def test_of_several_cards_that_of_the_most_rows_decides(tmp_path):
    """A short look at other data neither makes nor breaks a grader; recorded outputs vouch for nobody."""
    shelf = CardStore(tmp_path)
    filed(shelf, card(mark_of()))
    filed(shelf, card(mark_of(), CHANCE, data="few.jsonl", rows=20))
    filed(shelf, card("recorded", CHANCE, data="old.jsonl", rows=9000))
    result = await run(shelf, "error")
    assert result.metadata["validation"]["truthful"]["status"] == "trusted"


async def test_trust_is_checked():
    """A word that is none is refused with those there are."""
    with pytest.raises(ConfigError, match="'maybe'"):
        await refine("q", ScriptedModel(["a"]), JUDGE, require_validated="maybe")


def test_where_cards_are_kept(monkeypatch, tmp_path):
    """REDRAFT_HOME, then the system's folder for data."""
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path))
    assert data_dir() == tmp_path
    monkeypatch.delenv("REDRAFT_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert data_dir() == tmp_path / "data" / "redraft"
