"""Validation cards, the fingerprint that makes them stale, and the trust check that reads them."""

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
from redraft.graders.cards import (
    Card,
    CardStore,
    Measure,
    UntrustedGraderWarning,
    write_card_file,
)
from redraft.graders.fingerprint import grader_fingerprint
from redraft.session.models import Models
from redraft.session.options import Options
from redraft.session.session import Session
from redraft.storage.secure_files import data_dir

GOOD = Measure("preference", 0.9, 0.85, 0.94, 200, 0.5)
CHANCE = Measure("preference", 0.55, 0.48, 0.61, 200, 0.5)
VERDICT = json.dumps(
    {
        "reason": "It is so.",
        "criteria": {"truth": {"evidence": "e", "change": "", "score": 5}},
        "done": True,
    }
)
JUDGE = Judge({"truth": "It is true."}, name="truthful")


def card(mark, headline=GOOD, **changes):
    new_card = Card(
        "truthful",
        mark,
        "scripted",
        "2026-01-02",
        "pairs.jsonl",
        "0" * 64,
        "live",
        "pair",
        200,
        0,
        headline,
    )
    return replace(new_card, **changes)


def write_to_store(store, content):
    write_card_file(
        store.card_folder(content.grader, content.fingerprint, content.data, content.sha256)
        / "card.json",
        content.to_json(),
    )


def mark_of(judge=JUDGE, model=None):
    run_session = Session(
        Options(), Models(Options(), judge=model or ScriptedModel([VERDICT])), judge
    )
    panel, graders = run_session.resolve_panel(())
    return graders.fingerprint(panel[0].name)


def test_card_round_trips():
    """Any other content of the file is rejected with its place."""
    content = card("abc", groups=(GOOD,), parse_errors={"why": 2}, attacks={"measures": []})
    assert Card.from_json(content.to_json(), "x") == content
    for broken in (
        "",
        "[]",
        "{}",
        '{"redraft_card": 99}',
        content.to_json().replace('"headline"', '"other"'),
    ):
        with pytest.raises(StoreError, match="card.json"):
            Card.from_json(broken, "card.json")


@pytest.mark.parametrize(
    "changed",
    [
        replace(
            JUDGE, rubric=Rubric.from_data({"criteria": {"truth": "It is quite true."}}, "r", "r")
        ),
        replace(JUDGE, temperature=0.7),
        replace(JUDGE, max_eval_chars=100),
        replace(JUDGE, template="{query} {response}"),
    ],
)
def test_fingerprint_changes_with_the_judge(changed):
    """It covers rubric, prompt and settings."""
    assert mark_of(changed) != mark_of()


OTHER_RUBRIC = Rubric.from_data({"criteria": {"truth": "It is quite true."}}, "r", "r")


@pytest.mark.parametrize(
    ("judge", "model", "words"),
    [
        (replace(JUDGE, rubric=OTHER_RUBRIC), "scripted", "its rubric has"),
        (replace(JUDGE, temperature=0.7), "scripted", "its code, prompt or a setting has"),
        (JUDGE, "other", "its model has"),
        (replace(JUDGE, rubric=OTHER_RUBRIC), "other", "its rubric and its model have"),
        (
            replace(JUDGE, max_eval_chars=9),
            "other",
            "its code, prompt or a setting and its model have",
        ),
    ],
)
def test_a_stale_card_says_what_has_changed(tmp_path, judge, model, words):
    """The rubric, the code, prompt or a setting, or the model; a card of earlier releases cannot tell."""

    def identify(judge, model):
        models = Models(Options(), judge=ScriptedModel([VERDICT], name=model))
        panel, roles = Session(Options(), models, judge).resolve_panel(())
        return roles.identify(panel[0].name)

    fingerprint, parts = identify(JUDGE, "scripted")
    store = CardStore(tmp_path)
    write_to_store(store, card(fingerprint, parts=parts))
    assert store.trust_status("truthful", fingerprint, parts).status == "trusted"
    now = CardStore(tmp_path).trust_status("truthful", *identify(judge, model))
    assert (now.status, now.explanation.partition(", and ")[2]) == (
        "stale",
        f"{words} changed since",
    )
    write_to_store(store, card(fingerprint))
    earlier = CardStore(tmp_path).trust_status("truthful", *identify(judge, model))
    assert "its rubric, prompt, settings or model have changed" in earlier.explanation


def test_fingerprint_covers_the_model_but_not_the_name():
    """A new model makes another grader, and a new name does not."""
    assert mark_of(model=ScriptedModel([VERDICT], name="other")) != mark_of()
    assert mark_of(replace(JUDGE, name="renamed")) == mark_of()


def test_fingerprint_covers_the_prompt_text(monkeypatch):
    """A release with another prompt makes cards stale."""
    before = mark_of()
    monkeypatch.setattr(Judge, "prompt_texts", ("something else",))
    assert mark_of() != before


def test_fingerprint_of_a_function_covers_its_source():
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


def test_fingerprint_of_a_custom_grader_covers_code_and_data():
    """Plain attributes count; clients and locks do not."""

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


class AtMost:
    """A callable with slots and with a method that grades."""

    __slots__ = ("most", "note")

    def __init__(self, most, note=None):
        self.most, self.note = most, note

    def __call__(self, text):
        return len(text) <= self.most

    def check(self, text):
        return len(text) <= self.most


class Settings:
    def __init__(self, content):
        self.held = content


@dataclass(frozen=True)
class Config:
    content: object


class CustomGrader:
    """A custom grader with any attributes."""

    name = "asker"

    def __init__(self, content):
        self.held, self.client, self.lock = content, Settings(threading.Lock()), threading.Lock()

    async def grade(self, task, candidate, ask):
        return None


def recursive_function(most):
    own = Settings(most)
    own.me = [own]
    return CustomGrader(own)


def function_from_text(text):
    """Return a function that no file holds."""
    space = {}
    exec(text, space)
    return space["f"]


def rubric(text):
    return Rubric.from_data({"criteria": {"truth": text}}, "r", "r")


def fingerprint_of(grader):
    return grader_fingerprint(FunctionGrader(grader) if callable(grader) else grader, lambda _: "m")


CHANGES = {
    "closure": limit,
    "partial": lambda n: partial(at_most, n),
    "partial by name": lambda n: partial(at_most, 5, slack=n),
    "partial of a closure": lambda n: partial(limit(n)),
    "default": preset,
    "bound method": lambda n: AtMost(n).check,
    "callable object with slots": AtMost,
    "what a callable object holds": lambda n: AtMost(1, {"a": [n]}),
    "cached function": lambda n: cache(limit(n)),
    "closure in a closure": lambda n: limit(limit(n)),
    "set in a closure": lambda n: (lambda content: lambda text: text in content)(
        {f"{n}", "a", "b", "c"}
    ),
    "pattern": lambda n: re.compile("a" * n).search,
    "code without a file": lambda n: function_from_text(f"def f(text): return {n}.0"),
    "rubric": lambda n: CustomGrader(rubric(f"It is true {n}.")),
    "name of a criterion": lambda n: CustomGrader(
        Rubric.from_data({"criteria": {f"truth {n}": "t"}}, "r", "r")
    ),
    "dataclass": lambda n: CustomGrader(Config({"deep": (n,)})),
    "plain object": lambda n: CustomGrader(Settings([n])),
    "other data": lambda n: CustomGrader(
        [Path(f"p{n}"), Decimal(n), date(2026, 1, n), b"%d" % n, {n}]
    ),
    "function held": lambda n: CustomGrader(limit(n)),
    "circle": recursive_function,
    "attribute of a class": lambda n: type("Made", (CustomGrader,), {"words": f"{n}"})(0),
    "part of a jury": lambda n: Jury([limit(n)]),
}


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("make", CHANGES.values(), ids=CHANGES)
def test_fingerprint_covers_attributes(make):
    """An equal grader has the same fingerprint, and another value at any depth changes it."""
    assert fingerprint_of(make(1)) == fingerprint_of(make(1)) != fingerprint_of(make(2))


def test_two_lambdas_in_one_line_are_two_graders():
    """Two lambdas that share a source line have different fingerprints."""
    one, other = (lambda text: 1.0), (lambda text: 0.5)
    assert fingerprint_of(one) != fingerprint_of(other)


@pytest.mark.parametrize(
    "make",
    [
        limit,
        lambda content: partial(at_most, content),
        lambda content: limit(content).__call__,
        lambda content: limit(Settings(content)),
    ],
)
def test_unhashable_state_never_matches(make):
    """A lock or a client may change what the function does, so its fingerprint equals no other."""
    content = make(threading.Lock())
    assert fingerprint_of(content) != fingerprint_of(content)


@pytest.mark.slow
def test_fingerprint_is_the_same_in_every_process():
    """It contains no address and no order of a set."""
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; from test_cards import CHANGES, fingerprint_of; "
        "print([fingerprint_of(make(1)) for make in CHANGES.values()])"
    )
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


async def run(store, trust, graders=JUDGE):
    model = ScriptedModel([VERDICT])
    return await refine(
        Task("q", "a"),
        model,
        graders,
        require_validated=trust,
        cards_dir=store.folder,
        max_iterations=0,
    )


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (None, "none"),
        (lambda: card(mark_of(), CHANCE), "chance"),
        (lambda: card("0" * 16), "stale"),
        (lambda: card(mark_of(), Measure("preference", None, None, None, 0, 0.5)), "chance"),
    ],
)
async def test_untrusted_grader_gives_a_warning_or_an_error(tmp_path, content, status):
    """No card, a stale card and an interval that includes chance count as untrusted, before any
    call.
    """
    store = CardStore(tmp_path)
    if content:
        write_to_store(store, content())
    with pytest.warns(UntrustedGraderWarning, match="truthful.*redraft validate"):
        result = await run(store, "warn")
    assert result.validation["truthful"]["status"] == status
    with pytest.raises(ConfigError, match="truthful"):
        await run(store, "error")


async def test_trusted_grader_passes(tmp_path):
    """The result holds the card's headline, data and date."""
    store = CardStore(tmp_path)
    write_to_store(store, card(mark_of()))
    write_to_store(store, card("0" * 16, CHANCE, date="2025-01-01"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = await run(store, "error")
    known = result.validation["truthful"]
    assert known["status"] == "trusted"
    assert known["headline"]["value"] == 0.9
    assert "pairs.jsonl, 2026-01-02" in known["explanation"]
    assert type(result.trace).from_json(result.trace.to_json()).panel[0].card == known


def short(text):
    return len(text) < 80


@pytest.mark.parametrize(
    "grader",
    [
        "words:1-5",
        "readability",
        Gate("words:1-5", "readability"),
        Jury(["answered", Minimum(["repetition"])]),
    ],
)
async def test_deterministic_graders_need_no_card(tmp_path, grader):
    """It holds for requirements, computed graders and combinations of them."""
    result = await run(CardStore(tmp_path), "error", grader)
    assert {s["status"] for s in result.validation.values()} == {"deterministic"}


class ModelFree:
    """A grader that declares that it calls no model."""

    name, model_free = "short", True

    async def grade(self, task, candidate, ask):
        return Feedback(1.0)


@pytest.mark.parametrize("grader", [short, ModelFree(), Jury([short, "words:1-5"], name="short")])
async def test_custom_code_needs_a_card(tmp_path, grader):
    """The error says how to get a card, and with one the grader passes."""
    with pytest.raises(
        ConfigError, match=r"'short'.*never validated.*redraft\.validation\.validate.*FILE\.py:NAME"
    ):
        await run(CardStore(tmp_path), "error", grader)
    run_session = Session(Options(), Models(Options()), grader)
    _panel, graders = run_session.resolve_panel(())
    write_to_store(CardStore(tmp_path), card(graders.fingerprint("short"), grader="short"))
    result = await run(CardStore(tmp_path), "error", grader)
    assert result.validation["short"]["status"] == "trusted"


async def test_card_of_recordings_does_not_count_for_a_live_grader(tmp_path):
    """It has no fingerprint, so it makes a grader of that name neither trusted nor stale."""
    write_to_store(CardStore(tmp_path), card("recorded", source="arena_hard"))
    assert CardStore(tmp_path).trust_status("truthful", mark_of()).status == "none"
    assert CardStore(tmp_path).trust_status("truthful", "recorded").status == "none"


async def test_weight_and_repeats_do_not_enter_the_fingerprint(tmp_path):
    """They belong to the panel and not to the grader."""
    write_to_store(CardStore(tmp_path), card(mark_of()))
    result = await run(CardStore(tmp_path), "error", with_weight(JUDGE, 2))
    assert result.validation["truthful"]["status"] == "trusted"


async def test_without_a_trust_check_no_card_is_read(tmp_path):
    """No file is read, and no warning is given."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "card.json").write_text("not a card")
    result = await run(CardStore(tmp_path), "off")
    assert result.validation == {}
    with (
        pytest.warns(UntrustedGraderWarning),
        pytest.warns(UserWarning, match="a card is left out.*not a validation card"),
    ):
        await run(CardStore(tmp_path), "warn")


def test_unreadable_cards_give_one_warning(tmp_path):
    """It counts them; a question about one grader concerns the cards of that grader only."""
    store = CardStore(tmp_path)
    write_to_store(store, card("f" * 16))
    for name in ("truthful-0", "old_one-1", "old_one-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "card.json").write_text('{"redraft_card": 1}')
    for question, count in (
        (lambda: store.cards, 3),
        (lambda: store.cards_of("truthful"), 1),
        (lambda: store.cards_of("exact"), 0),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = question()
        assert [str(w.message).partition(" left out")[0] for w in caught] == {
            3: ["3 cards are"],
            1: ["a card is"],
            0: [],
        }[count]
        assert [c.grader for c in found] == (["truthful"] if count else [])


async def test_card_with_the_most_rows_decides(tmp_path):
    """A small validation on other data changes nothing, and neither do recorded outputs."""
    store = CardStore(tmp_path)
    write_to_store(store, card(mark_of()))
    write_to_store(store, card(mark_of(), CHANCE, data="few.jsonl", rows=20))
    write_to_store(store, card("recorded", CHANCE, data="old.jsonl", rows=9000))
    result = await run(store, "error")
    assert result.validation["truthful"]["status"] == "trusted"


async def test_invalid_trust_setting_is_rejected():
    """The error lists the allowed values."""
    with pytest.raises(ConfigError, match="'maybe'"):
        await refine("q", ScriptedModel(["a"]), JUDGE, require_validated="maybe")


def test_cards_folder(monkeypatch, tmp_path):
    """REDRAFT_HOME comes first, then the system's data folder."""
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path))
    assert data_dir() == tmp_path
    monkeypatch.delenv("REDRAFT_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert data_dir() == tmp_path / "data" / "redraft"
