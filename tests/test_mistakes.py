"""A newcomer's mistakes in Python: each error is a RedraftError and names the argument, its value
and what is allowed.
"""

import asyncio
import inspect
import re
from importlib import import_module
from itertools import count

import pytest

import redraft
from each_row import each_row
from redraft import (
    Budget,
    Judge,
    ScriptedModel,
    SelfRefine,
    Task,
    Trace,
    batch,
    connect,
    graders,
    must,
    refine,
    refine_many,
    with_weight,
)
from redraft.cli import main
from redraft.errors import ConfigError, RedraftError
from redraft.graders import Ranker
from redraft.models import CallableModel, Chat, find_model
from redraft.requirements import parse
from redraft.runs import BatchSettings
from redraft.settings import Settings
from redraft.validation.labelled import read_cases

ROWS = [{"id": 1, "question": "Say it", "text": "It."}]


def constant_model(messages):
    """A model."""
    return "An answer."


def constant_grader(text):
    """A grader."""
    return 1.0


def refine_with(task="q", model=constant_model, graders=constant_grader, judge=None, **settings):
    return refine(task, model, graders, judge, **settings)


def rows(**given):
    return batch(
        **{
            "source": ROWS,
            "output": "out.jsonl",
            "model": constant_model,
            "graders": constant_grader,
        }
        | given
    )


class Steps:
    """A grader that gives the number of its levels in place of the distance between them."""

    name = "steps"
    score_step = 5

    async def grade(self, task, candidate, client):
        return redraft.Feedback(1.0)


CALLS = {
    "a step of more than the scale": (
        lambda: refine_with(graders=Steps()),
        ["score_step of grader 'steps'", "[0, 1]", "got 5"],
    ),
    "a task that is a number": (
        lambda: refine_with(5),
        ["task", "a prompt or a list of messages", "got 5"],
    ),
    "an empty prompt": (lambda: refine_with("  "), ["task", "the prompt is empty"]),
    "no messages": (lambda: refine_with([]), ["task", "at least one message"]),
    "a message without a role": (
        lambda: refine_with([{"content": "a"}]),
        ["task", "message 1", '"role"', "{'content': 'a'}"],
    ),
    "texts for messages": (lambda: refine_with(["a", "b"]), ["task", "message 1", "'a'"]),
    "one task for many": (
        lambda: refine_many("q", constant_model, constant_grader),
        ["tasks", "a list", "'q'"],
    ),
    "a Task for many": (
        lambda: refine_many(Task("q"), constant_model, constant_grader),
        ["tasks", "a list"],
    ),
    "a number for many": (
        lambda: refine_many(3, constant_model, constant_grader),
        ["tasks", "a list", "3"],
    ),
    "a response that is none": (lambda: Task("q", 5), ["response", "text", "5"]),
    "a requirement for many": (
        lambda: Task("q", requirements="words:5"),
        ["requirements", "a list", "'words:5'"],
    ),
    "a requirement that is a number": (
        lambda: Task("q", requirements=[5]),
        ["requirements", "[5]"],
    ),
    "metadata as a list": (lambda: Task("q", metadata=[1]), ["metadata", "a mapping", "[1]"]),
    "an unknown requirement": (
        lambda: refine_with(graders="wrods:5"),
        ["'wrods:5'", "did you mean 'words'", "redraft graders"],
    ),
    "an unknown grader": (
        lambda: refine_with(graders="helpfulnes"),
        ["'helpfulnes'", "did you mean 'helpfulness'", "redraft graders"],
    ),
    "a grader's class": (lambda: refine_with(graders=Judge), ["write Judge(...)", "not the class"]),
    "a grader that is a number": (lambda: refine_with(graders=5), ["a grader is a name", "5"]),
    "no graders": (lambda: refine_with(graders=[]), ["nothing grades this task", "no grader"]),
    "a model's class": (
        lambda: refine_with(model=ScriptedModel),
        ["model", "write ScriptedModel(...)"],
    ),
    "a model that is empty": (lambda: refine_with(model=""), ["model", "''", "openai:gpt-4o-mini"]),
    "a model that is 0": (
        lambda: refine_with(model=0),
        ["model", "a name, a Model or a function", "0"],
    ),
    "a model that is refused": (lambda: refine_with(model=False), ["model=False", "`response`"]),
    "a slash for a colon": (
        lambda: refine_with(model="olama/llama3"),
        ["model", "did you mean 'ollama:llama3'"],
    ),
    "an empty list of models": (lambda: refine_with(model=[]), ["model", "[]", "one or more"]),
    "a model twice in a list": (
        lambda: refine_with(model=["ollama:x", "ollama/x"]),
        ["model", "'x' twice"],
    ),
    "several judges": (
        lambda: refine_with(judge=["ollama:x", "ollama:y"]),
        ["judge", "one model", "only the model that writes"],
    ),
    "litellm's name of open weights": (
        lambda: refine_with(model="openai/gpt-oss-20b"),
        ["model", "openai:gpt-oss-20b", "ollama:"],
    ),
    "a judge with a typo": (
        lambda: refine_with(judge="opnai:x"),
        ["judge", "did you mean 'openai:x'"],
    ),
    "a judge's class": (
        lambda: refine_with(judge=ScriptedModel),
        ["judge", "write ScriptedModel(...)"],
    ),
    "a setting with a typo": (
        lambda: refine_with(max_iteration=3),
        ["'max_iteration'", "did you mean 'max_iterations'"],
    ),
    "a setting of another": (
        lambda: refine_with(temprature=0.5),
        ["'temprature'", "did you mean 'temperature'"],
    ),
    "a target in percent": (lambda: refine_with(target_score=90), ["target_score", "[0, 1]", "90"]),
    "a target as text": (
        lambda: refine_with(target_score="0.9"),
        ["target_score", "[0, 1]", "'0.9'"],
    ),
    "iterations below 0": (
        lambda: refine_with(max_iterations=-1),
        ["max_iterations", ">= 0", "-1"],
    ),
    "half an iteration": (
        lambda: refine_with(max_iterations=1.5),
        ["max_iterations", "a whole number", "1.5"],
    ),
    "no patience": (lambda: refine_with(patience=0), ["patience", ">= 1", "0"]),
    "a million drafts": (
        lambda: refine_with(drafts=10**6),
        ["drafts", "from 1 to 1,000", "1000000"],
    ),
    "a number without end": (
        lambda: refine_with(min_delta=10**400),
        ["min_delta", "a number >= 0"],
    ),
    "a number that cannot be printed": (
        lambda: refine_with(retries=-(10**5000)),
        ["retries", "a whole number >= 0", "digits>"],
    ),
    "a plan's class": (lambda: refine_with(plan=SelfRefine), ["plan", "write SelfRefine(...)"]),
    "a budget as a number": (lambda: refine_with(budget=5), ["budget", "Budget(calls=10)", "5"]),
    "a budget below 0": (lambda: Budget(usd=-1), ["budget: usd", ">= 0", "-1"]),
    "half a call": (lambda: Budget(calls=0.5), ["budget: calls", "a whole number", "0.5"]),
    "one price for both": (
        lambda: refine_with(prices={"m": 0.15}),
        ["prices", "(0.1, 0.4)", "0.15 for 'm'"],
    ),
    "prices as a list": (lambda: refine_with(prices=[0.1, 0.4]), ["prices", "[0.1, 0.4]"]),
    "a price as text": (
        lambda: refine_with(prices={"m": ("0.1", "0.4")}),
        ["prices", "('0.1', '0.4') for 'm'"],
    ),
    "no time": (lambda: refine_with(timeout=0), ["timeout", "> 0", "None"]),
    "a deadline as text": (
        lambda: refine_with(deadline="1h"),
        ["deadline", "a number >= 0", "'1h'"],
    ),
    "a store as text": (
        lambda: refine_with(store="run.jsonl"),
        ["store", 'JsonlStore("run.jsonl")', "'run.jsonl'"],
    ),
    "a cache that is none": (
        lambda: refine_with(cache=True),
        ["cache", "a mutable mapping", "True"],
    ),
    "a unit that is none": (
        lambda: refine_with(cost_unit="dollars"),
        ["cost_unit", "usd", "'dollars'"],
    ),
    "priors that are none": (
        lambda: refine_with(priors="leanred"),
        ["priors", "'learned'", "'leanred'"],
    ),
    "trust that is none": (
        lambda: refine_with(require_validated=["warn"]),
        ["require_validated", "error", "['warn']"],
    ),
    "a weight below 0": (lambda: with_weight(constant_grader, -1), ["weight", "> 0", "-1"]),
    "no repeats": (
        lambda: with_weight(constant_grader, 1, repeats=0),
        ["repeats", "from 1 to 1,000", "0"],
    ),
    "a judge's tokens": (lambda: Judge(max_tokens=0), ["'judge'", "max_tokens", ">= 1", "0"]),
    "a judge's temperature": (
        lambda: Judge(temperature="hot"),
        ["'judge'", "temperature", "'hot'"],
    ),
    "a judge's model": (lambda: Judge(model=5), ["'judge'", "model", "5"]),
    "a judge's rubric": (lambda: Judge(5), ["a rubric is", "5"]),
    "a judge's template": (lambda: Judge(template=5), ["template", "5"]),
    "a judge's criteria": (lambda: Judge({"good": 5}), ["`description`", "5"]),
    "a template's field": (lambda: Judge(template="{answr}: {query}"), ["{answr}", "response"]),
    "a ranker of one": (lambda: Ranker(max_group_size=1), ["max_group_size", ">= 2", "1"]),
    "a jury's rule": (
        lambda: graders.Jury("judge", aggregation="average"),
        ["aggregation", "median", "'average'"],
    ),
    "a cascade's share": (
        lambda: graders.Cascade("words:5", "judge", reject_below=30),
        ["reject_below", "<= 1", "30"],
    ),
    "a checklist's number": (lambda: graders.Checklist(n=100), ["n must", "from 1 to 40", "100"]),
    "a grader without a reference": (
        lambda: refine_with(graders="numeric"),
        ["'numeric'", "reference", "Task(..., reference=...)"],
    ),
    "a reference without a number": (
        lambda: refine_with(Task("q", reference="none"), graders="numeric"),
        ["'numeric'", "'none'"],
    ),
    "an option of a grader": (
        lambda: refine_with(graders="exact:caes=false"),
        ["'caes=false'", "did you mean case"],
    ),
    "a function of three": (
        lambda: refine_with(graders=lambda a, b, c: 1.0),
        ["(text), (text, task) or (text, model)", "(a, b, c)"],
    ),
    "columns turned round": (
        lambda: rows(columns={"question": "prompt"}),
        ["columns", '{"prompt": "question"}', "reversed"],
    ),
    "a column's typo": (
        lambda: rows(columns={"promt": "question"}),
        ["columns", "'promt'", "did you mean 'prompt'"],
    ),
    "a column that is not there": (
        lambda: rows(columns={"prompt": "qestion"}),
        ["qestion", "'question'"],
    ),
    "columns as a list": (
        lambda: rows(columns=["question"]),
        ["columns", '{"prompt": "question"}', "['question']"],
    ),
    "a batch's mode": (lambda: rows(mode="refien"), ["mode", "refine", "'refien'"]),
    "a batch's option": (
        lambda: rows(max_iteration=3),
        ["'max_iteration'", "did you mean 'max_iterations'"],
    ),
    "a batch's output": (lambda: rows(output=5), ["output", "the path of a file", "5"]),
    "a batch's limits": (lambda: rows(limits=60), ["limits", "EndpointLimits(rpm=60)", "60"]),
    "refine's graders": (
        lambda: refine_with(grader="exact"),
        ["'grader'", "did you mean 'graders'"],
    ),
    "grade's judge": (
        lambda: redraft.grade(("q", "a"), constant_grader, juge="x"),
        ["'juge'", "did you mean 'judge'"],
    ),
    "grade's graders": (
        lambda: redraft.grade(("q", "a"), grader="exact"),
        ["'grader'", "did you mean 'graders'"],
    ),
    "a batch's judge": (lambda: rows(juge="x"), ["'juge'", "did you mean 'judge'"]),
    "a key that is no text": (
        lambda: connect("http://127.0.0.1:9/v1#m", key=5),
        ["key", "text or None", "int"],
    ),
    "answers that are none": (lambda: ScriptedModel(5), ["answers", "in a list", "5"]),
}


@pytest.mark.parametrize("mistake", CALLS)
def test_a_mistake_is_named_with_its_value_and_what_is_allowed(mistake, tmp_path, monkeypatch):
    """A short ConfigError has all three."""
    monkeypatch.chdir(tmp_path)
    call, words = CALLS[mistake]
    with pytest.raises(ConfigError) as caught:
        finish(call())
    said = str(caught.value)
    assert [word for word in words if word not in said] == [], said
    assert len(said) < 1200


def finish(made):
    """Return a value; await or iterate one that needs it."""
    if inspect.isasyncgen(made):

        async def all_of():
            return [each async for each in made]

        return asyncio.run(asyncio.wait_for(all_of(), 60))
    return asyncio.run(asyncio.wait_for(made, 60)) if inspect.iscoroutine(made) else made


def test_a_long_value_is_cut():
    """The message has the length of a whole document instead of its text."""
    with pytest.raises(ConfigError) as caught:
        Task([{"role": "user", "text": "x" * 10_000}])
    assert len(str(caught.value)) < 400
    with pytest.raises(ConfigError, match=r"10,000 characters"):
        finish(refine_with(priors="x" * 10_000))


def test_a_value_without_a_repr_is_named_by_its_type():
    """Its `__repr__` raises."""

    class Odd:
        def __repr__(self):
            raise ValueError("no")

    with pytest.raises(ConfigError, match="budget must be a Budget.*<Odd>"):
        finish(refine_with(budget=Odd()))


def test_a_name_is_suggested_whatever_its_case():
    """A name is also suggested for its beginning."""
    for typed, meant in {"Words:5": "'words'", "conc": "'conciseness'"}.items():
        with pytest.raises(ConfigError, match=f"^unknown .*did you mean .*{meant}"):
            finish(refine_with(graders=typed))


NAMES = {
    "olama/llama3": "ollama:llama3",
    "opnai/gpt-4o": "openai:gpt-4o",
    "antropic/claude-sonnet-4-5": "anthropic:claude-sonnet-4-5",
    "OpenAI:gpt-4o": "openai:gpt-4o",
    "gpt-4o": "openai:gpt-4o",
    "o3-mini": "openai:o3-mini",
    "claude-sonnet-4-5": "anthropic:claude-sonnet-4-5",
    "gemini-2.5-flash": "google:gemini-2.5-flash",
    "llama3.2": "ollama:llama3.2",
    "opnai:gpt-4o": "openai:gpt-4o",
    " openai: ": "openai:NAME",
    "ollama:": "ollama:NAME",
    "http//127.0.0.1:8080": "http://127.0.0.1:8080/v1#NAME",
    "http:/box:8080/v1": "http://box:8080/v1#NAME",
    "htp://box/v1": "http://box/v1#NAME",
    "https:box.example.com": "https://box.example.com/v1#NAME",
    "localhost": "http://localhost/v1#NAME",
    "localhost:8080": "http://localhost:8080/v1#NAME",
    "127.0.0.1:8000/v1": "http://127.0.0.1:8000/v1#NAME",
    "api.openai.com": "https://api.openai.com/v1#NAME",
    "ollama": "ollama:NAME",
    "local": "local:NAME",
    "llama3:8b": "ollama:llama3:8b",
    "claude:opus": "anthropic:opus",
    "127.0.0.1:8000/v1#tiny": "http://127.0.0.1:8000/v1#tiny",
    "htp://box/v1#tiny": "http://box/v1#tiny",
    "models/tiny.gguf": "local:models/tiny.gguf",
    "/models/tiny.gguf": "local:/models/tiny.gguf",
}


@each_row("typed", NAMES)
def test_the_right_spelling_of_a_model_comes_first(typed):
    """The message begins with it."""
    with pytest.raises(ConfigError) as caught:
        connect(typed, env={})
    assert re.search(r"did you mean '([^']*)'", str(caught.value))[1] == NAMES[typed]
    assert str(caught.value).index("did you mean") < 40 + 2 * len(typed.strip()) + 40


@pytest.mark.parametrize(
    "typed", ["foo:bar", "/some/where", "some-lab/some-model", "#tiny", "None"]
)
def test_no_unlike_name_is_suggested(typed):
    """The message shows examples of names instead."""
    with pytest.raises(
        ConfigError, match="Examples are openai:gpt-4o-mini, ollama:llama3.2"
    ) as caught:
        connect(typed, env={})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "typed", ["http://h:99999/v1#m", "http://h:80x/v1#m", "http://h:0/v1#m", "http://[::1]:0/v1#m"]
)
def test_an_invalid_port_is_named(typed):
    """Also port 0, which no server has; with an @ in the address it is not, since it may be a part
    of a password.
    """
    with pytest.raises(
        ConfigError, match="its port '(99999|80x|0)' must be a number from 1 to 65535"
    ):
        connect(typed, env={})
    with pytest.raises(ConfigError, match="this one cannot be read"):
        connect(typed.replace("://", "://u:pa?55w@"), env={})


@pytest.mark.parametrize(
    "host", ["::1", "::1:8182", "[::1", "[::1:8182", "fe80::1", "2001:db8::7:80", "::"]
)
def test_an_ipv6_address_stands_in_brackets(host):
    """An address without them says so; with an @ in the address it does not, since it may be a part
    of a password.
    """
    with pytest.raises(
        ConfigError,
        match=r"an IPv6 address stands in brackets, as in http://\[::1\]:8080/v1, got '",
    ) as caught:
        connect(f"http://{host}/v1#m", env={})
    assert repr(host) in str(caught.value)
    with pytest.raises(ConfigError, match="this one cannot be read"):
        connect(f"http://u:pw@{host}/v1#m", env={})


URL_VARIABLES = {
    "OPENAI_BASE_URL": ("openai:m", ["not-a-url", "http://h:0/v1", "http://::1/v1", "ftp://h"]),
    "OLLAMA_HOST": ("ollama:m", ["h:port", "h:0", "http://[::1", "ftp://h", "a b"]),
}


@pytest.mark.parametrize(
    "name, value",
    [(name, value) for name, (_, values) in URL_VARIABLES.items() for value in values],
)
def test_an_invalid_address_in_the_environment_names_its_variable(capsys, monkeypatch, name, value):
    """Where its model is named, and where models are searched; a list of models shows the others,
    too.
    """
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        connect(URL_VARIABLES[name][0])
    with pytest.raises(ConfigError, match=name):
        asyncio.run(find_model())
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert name in shown
    assert "LM Studio" in shown
    connect("http://127.0.0.1:8080/v1#m", env={name: value, "OPENAI_API_KEY": "sk-1"})


@pytest.mark.parametrize("host", ["a b", "a|b", "a..b", ".a", "a" * 64, "[zz]"])
@pytest.mark.parametrize("port", ["", ":80"])
def test_an_invalid_host_is_named(host, port):
    """When the model is named, not when it is asked; with an @ in the address it is not, since it
    may be a part of a password.
    """
    with pytest.raises(ConfigError, match=r"its host '.*' cannot be read") as caught:
        connect(f"http://{host}{port}/v1#m", env={})
    assert host in str(caught.value)
    with pytest.raises(ConfigError, match="this one cannot be read") as caught:
        connect(f"http://u:pw@{host}{port}/v1#m", env={})
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("host", ["straße.de", "ς.gr", "a\u200db.com"])
def test_a_host_with_two_meanings_is_refused(host):
    """IDNA 2003 and 2008 differ, so another program might send the key elsewhere."""
    with pytest.raises(
        ConfigError, match=r"means different hosts to different programs: write it as xn--"
    ):
        connect(f"http://u:pw@{host}/v1#m", env={})
    connect("http://bücher.example/v1#m", env={})


async def test_a_failing_computed_grader_gives_no_hint_about_the_judge(
    capfd, tmp_path, monkeypatch
):
    """The hint of the command line says what the grader needs."""
    from redraft.cli.errors import exit_code, warn_if_ungraded

    result = await refine(Task("q", "text", reference="{"), False, "json_fields", max_iterations=0)
    warn_if_ungraded(result)
    assert exit_code(result) == 3
    said = capfd.readouterr().err
    assert "--judge" not in said and "`redraft graders json_fields` shows what it needs" in said


# ---- every public callable, every parameter, objects of every wrong kind


class Thing:
    """An object of no known type."""


BAD = {
    "a whole number": 5,
    "a fraction": 0.5,
    "below 0": -1,
    "no number": float("nan"),
    "without end": float("inf"),
    "too large": 10**400,
    "true": True,
    "a text": "zzz",
    "an empty text": "",
    "a zero byte": "a\0b",
    "bytes": b"x",
    "a list": [1],
    "an empty list": [],
    "a list of lists": [[[]]],
    "a mapping": {"a": 1},
    "a list of mappings": [{"a": 1}],
    "a set": {1},
    "an object": Thing(),
    "a class": Thing,
}
NEEDED = {  # the required arguments of a callable
    "task": lambda: "q",
    "tasks": lambda: ["q"],
    "model": lambda: constant_model,
    "messages": lambda: "q",
    "graders": lambda: "words:5",
    "source": lambda: [{"id": 1, "prompt": "q"}],
    "output": lambda: "out.jsonl",
    "answers": lambda: ["a"],
    "grader": lambda: "words:5",
    "weight": lambda: 1,
    "gate": lambda: "words:5",
    "first": lambda: "words:5",
    "then": lambda: "words:5",
    "weights": lambda: [("words:5", 1)],
    "jurors": lambda: ["judge"],
    "comparers": lambda: ["ranker"],
    "function": lambda: constant_grader,
    "fn": lambda: constant_model,
    "requirement": lambda: parse("words:5"),
    "criteria": lambda: (graders.Criterion("a", "b"),),
    "name": lambda: "exact",
    "value": lambda: "words:5",
    "base_url": lambda: "http://127.0.0.1:9/v1",
    "id": lambda: 0,
    "text": lambda: "a",
    "ranking": lambda: (0, 1),
    "score": lambda: 1.0,
    "step_slot": lambda: ("candidate", 0),
    "role": lambda: "generate",
    "error": lambda: "ModelError",
    "best": lambda: 0,
    "reason": lambda: "target",
    "trace": lambda: Trace(Task("q")),
    "generator": lambda: lambda task: iter(()),
    "path": lambda: "labelled.csv",
    "spec": lambda: "words:5",
    "sample": lambda: ("q", "a"),
    "samples": lambda: [("q", "a")],
    "cases": lambda: "labelled.csv",
    "rows": lambda: "labelled.csv",
    "columns": dict,
    "endpoint": lambda: "http://127.0.0.1:9/classify#m",
    "by": lambda: "metadata.kind",
    "answer": lambda: {"type": "object"},
}
# raise ValueError, as they say
RECORDS = {"Candidate", "Comparison", "CriterionScore", "Failure", "Feedback", "Outcome", "Usage"}
# a class may be called, too, and may raise its own exceptions
THEIRS = {"on_record", "on_step", "on_progress", "on_case", "say"}
SKIPPED = {
    (name, parameter, "a text")
    for name, parameter in [("batch", "source"), ("read_cases", "rows"), ("validate", "cases")]
}
"""The name of a data set, which would be looked up."""


ELSEWHERE = {  # public callables that are not at the top level
    "redraft.answers": ["as_answer_form"],
    "redraft.loop.records": ["Comparison", "Failure", "Outcome"],
    "redraft.grading": ["grade_many"],
    "redraft.plans": ["best_of", "plan_from_generator"],
    "redraft.plans.quality.priors": ["Priors"],
    "redraft.validation": ["validate"],
}


def signature(function, more=()):
    named = inspect.signature(function).parameters.values()
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    needed = [p.name for p in named if p.default is p.empty and p.kind not in variable]
    return needed, [p.name for p in named if p.kind not in variable] + list(more)


def callables():
    """The public callables by name: the function, its required arguments, and all its
    parameters.
    """
    settings = list(Settings.__annotations__)
    only_batch = [name for name in BatchSettings.__annotations__ if name not in settings]
    for name in redraft.__all__:
        if name in {"refine_sync", "batch_sync", "StopReason"}:  # thin wrappers; an enumeration
            continue
        more = {"refine": settings, "batch": only_batch}.get(name, ())
        yield name, getattr(redraft, name), *signature(getattr(redraft, name), more)
    for module, names in ELSEWHERE.items():
        yield from (
            (
                name,
                getattr(import_module(module), name),
                *signature(getattr(import_module(module), name)),
            )
            for name in names
        )
    for name in graders.__all__:
        if name not in {
            "Criterion",
            "GraderEntry",
            "entries",
            "must",
            "with_weight",
            "Judge",
            "Ranker",
        }:
            yield f"graders.{name}", getattr(graders, name), *signature(getattr(graders, name))
    for function in (Chat, CallableModel, read_cases, parse):
        yield function.__name__, function, *signature(function)


EVERY = {
    f"{name}-{parameter}": (name, function, needed, parameter)
    for name, function, needed, all in callables()
    for parameter in all
}
FILES = count()


@pytest.mark.filterwarnings("ignore:.* is now :FutureWarning")  # former names of settings
@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("which", EVERY)
def test_any_argument_gives_success_or_a_redraft_error(which, tmp_path, monkeypatch):
    """No AttributeError, TypeError or KeyError comes from inside."""
    name, function, needed, parameter = EVERY[which]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labelled.csv").write_text("question,answer,score\na,4,5\nb,7,1\n")
    allowed = (RedraftError, ValueError) if name in RECORDS else RedraftError
    base = {one: NEEDED[one]() for one in needed}
    if name in {"refine", "refine_many", "stream", "batch"}:
        base |= {"model": constant_model, "graders": constant_grader}
    if name in {"graders.Router", "graders.router"}:
        base["graders"] = {"a": "words:5"}
    positional = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.POSITIONAL_ONLY
    ]
    wrong = []
    for kind, value in BAD.items():
        if (name, parameter, kind) in SKIPPED or (parameter in THEIRS and kind == "a class"):
            continue
        if name == "batch":
            base["output"] = f"out{next(FILES)}.jsonl"
        try:
            arguments = base | {parameter: value}
            finish(function(*[arguments.pop(one) for one in positional], **arguments))
        except allowed:
            pass
        except Exception as error:
            wrong.append(f"{kind}: {type(error).__name__}: {error}"[:200])
    assert wrong == []


def test_must_takes_every_kind_of_grader():
    """Anything else is an error when work begins."""
    with pytest.raises(ConfigError, match="a grader is a name"):
        finish(refine_with(graders=must(5)))
