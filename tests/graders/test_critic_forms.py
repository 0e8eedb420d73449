"""Forms without a score are critics, and pydantic models are forms."""

import json
import subprocess
import sys
from dataclasses import replace
from enum import IntEnum
from threading import current_thread, main_thread
from typing import Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator

from redraft import Judge, ScriptedModel, Task, refine
from redraft.errors import BadResponseError, ConfigError, GradingError
from redraft.graders import Jury, Ranker, Rubric
from redraft.graders.fingerprint import grader_fingerprint
from redraft.graders.judging.stored_judge import judge_data, judge_from_data
from redraft.graders.judging.structured import UnreadableOutput
from redraft.graders.registry import as_grader
from redraft.loop.records import Candidate
from redraft.protocols import Reply
from redraft.session.perform import ModelClient, StepClient

TEMPLATE = 'What would make {response} better? JSON: {"actions": ["..."], "done": true or false}'
FORM = {"actions": "actions", "done": "done"}


class Critique(BaseModel):
    """What to change."""

    actions: list[str]
    done: bool


class Verdict(BaseModel):
    reason: str
    score: int = Field(ge=1, le=10)
    category: Literal["fact", "style"] = "fact"


CRITICS = {"keys": FORM, "model": Critique}
both = pytest.mark.parametrize("read", CRITICS.values(), ids=CRITICS)


def says(actions=(), done=None, **others):
    return json.dumps({"actions": list(actions), "done": done, **others})


async def verdict(judge, *replies, text="an answer"):
    model = ScriptedModel(list(replies))
    feedback = await judge.grade(
        Task("q"), Candidate(0, text), StepClient(ModelClient(model.name, model.complete))
    )
    return feedback, model.calls


# the replies to two critics and a judge -> the score, the actions, done; None: no quorum
JURIES = {
    "critics and a judge": (
        says(["A."], False),
        says(["B."], True),
        '{"score": 4}',
        (0.8, ("A.", "B."), False),
    ),
    "a judge that fails": (says(["A."], True), says(["B."]), "no", (None, ("A.", "B."), True)),
    "a critic that fails": (says(["A."], True), "no", '{"score": 4}', (0.8, ("A.",), True)),
    "critics that fail": ("no", "no", '{"score": 4}', None),
}


@pytest.mark.parametrize(("first", "second", "third", "expected"), JURIES.values(), ids=JURIES)
async def test_critics_vote_in_a_jury(first, second, third, expected):
    """What they say counts, and is no part of the score, which nothing but critics leaves
    unknown.
    """

    async def reply(request):
        prompt = request.messages[1]["content"]
        return Reply(
            next(
                text
                for word, text in (("First", first), ("Second", second), ("Rate", third))
                if word in prompt
            )
        )

    critics = [Judge(template=f"{word}: {TEMPLATE}", read=FORM) for word in ("First", "Second")]
    jury = Jury([*critics, Judge(template="Rate {response}.", scale=(0, 5), read="score")])
    work = jury.grade(Task("q"), Candidate(0, "an answer"), StepClient(ModelClient("m", reply)))
    if expected is None:
        with pytest.raises(GradingError, match="1 of 3 votes are valid, it needs 2"):
            await work
    else:
        feedback = await work
        assert (feedback.score, feedback.actions, feedback.done) == expected


async def test_a_jury_of_critics_is_a_critic():
    """It has the actions of all, and stops if all of them would."""
    feedback, _ = await verdict(
        Jury(Judge(template=TEMPLATE, read=FORM), repeats=3),
        *[says([f"{n}."], n > 0) for n in range(3)],
    )
    assert (feedback.score, feedback.actions, feedback.done, feedback.is_critique) == (
        None,
        ("0.", "1.", "2."),
        False,
        True,
    )
    assert len(feedback.votes) == 3 and feedback.vote_sd is None


# ---- critics


@both
async def test_a_critic_says_what_to_change_and_gives_no_score(read):
    """The score is unknown, not 0, also for a text that is no answer."""
    judge = Judge(template=TEMPLATE, read=read)
    feedback, calls = await verdict(judge, says(["Name the year."], False, tone="dry"))
    assert (feedback.score, feedback.actions, feedback.done, calls) == (
        None,
        ("Name the year.",),
        False,
        1,
    )
    assert feedback.metadata == {"tone": "dry"}
    assert feedback.is_critique
    empty, calls = await verdict(judge, text=" ")
    assert (empty.score, empty.done, calls) == (None, False, 0)
    assert judge.score_step is None


@both
async def test_a_critic_steers_and_stops_a_refinement(read):
    """The prompt has its wishes, and the text that it calls done is the best, without a score."""
    writer = ScriptedModel(["first draft", "second draft", "third draft"])
    critic = ScriptedModel([says(["Name the year."], False), says([], True)])
    result = await refine("When?", writer, Judge(template=TEMPLATE, read=read), judge=critic)
    assert (result.value, result.score, str(result.stop), result.converged) == (
        "second draft",
        None,
        "done",
        True,
    )
    assert "Name the year." in writer.messages[1][-1]["content"]


async def test_the_mean_does_not_miss_a_critic():
    """Beside a grader with scores it steers; the score is that of the other."""
    critic = Judge(
        template=TEMPLATE, read=FORM, model=ScriptedModel([says(["Be bold."], False)] * 9)
    )
    result = await refine(
        "q", ScriptedModel(["a b", "c d"]), [critic, lambda text: 0.6], max_iterations=1
    )
    assert (result.judge_score, result.score_history[0]) == (0.6, 0.6)


@pytest.mark.parametrize(
    ("read", "reply", "says"),
    [
        ({"actions": "todo", "done": "ok"}, {}, "'todo' and 'ok' must not be missing or null"),
        ({"actions": "todo", "done": "ok"}, {"todo": None, "ok": None}, "'todo' and 'ok'"),
        ({"done": "v.ok"}, {"v": {}}, "'v.ok' must not be missing"),
        ({"done": "ok"}, {"ok": "maybe"}, "'ok' must be true or false"),
        ({"actions": "todo"}, {"todo": [{"a": 1}]}, "'todo' must be a list of texts"),
    ],
)
async def test_a_reply_that_says_nothing_is_requested_again(read, reply, says):
    """The complaint names the keys of the template."""
    judge = Judge(template="{response}", read=read)
    with pytest.raises(UnreadableOutput, match=says):
        judge.parse_reply(Reply(json.dumps(reply)))
    with pytest.raises(BadResponseError, match="cannot be read"):
        await verdict(judge, json.dumps(reply), json.dumps(reply))


@pytest.mark.parametrize(
    "reply",
    [
        '{"todo": []}',
        '{"ok": false}',
        '{"todo": "one", "ok": null}',
        '{"TODO": ["x"], "ok": "true"}',
    ],
)
def test_one_of_its_parts_is_enough(reply):
    """A critic may say what to change, or whether to stop."""
    assert (
        Judge(template="{response}", read={"actions": "todo", "done": "ok"})
        .parse_reply(Reply(reply))
        .score
        is None
    )


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"read": {"reason": "r"}}, "must name the key of the score .or, for a critic, of actions or done."),
        ({"read": {}}, "must name the key of the score"),
        ({"read": FORM, "scale": (1, 10)}, "scale: read names no key of a score"),
        ({"read": Critique, "scale": (1, 10)}, "scale: read names no key of a score"),
        ({"read": FORM, "scoring": "expectation"}, "read names no score: scoring='expectation'"),
        ({"read": FORM, "criteria_mode": "separate", "rubric": {"a": "b", "c": "d"}}, "read names no score"),
        ({"read": {"score": "v", "reason": "v.why"}, "scale": (1, 2)}, "score is at 'v' and reason at 'v.why', and no reply can have both"),
        ({"read": {"score": "a.b", "done": "a.b"}, "scale": (1, 2)}, "score is at 'a.b' and done at 'a.b'"),
        ({"read": int}, "read must be the key of the score, or a mapping .* or a pydantic model"),
        ({"read": Verdict(reason="r", score=1)}, "read must be the key of the score"),
    ],
)  # fmt: skip
def test_forms_that_cannot_be_are_refused(settings, error):
    """The error names what is wrong and what is allowed."""
    with pytest.raises(ConfigError, match=error):
        Judge(template=TEMPLATE, **settings)
    with pytest.raises(ConfigError, match="read must be the key of the ranking"):
        Ranker(template="{responses}", read=Critique)


CRITIC_FILE = f"template = '''{TEMPLATE}'''\nread = {{ actions = \"actions\", done = \"done\" }}\n"


def test_a_file_may_hold_the_form_of_a_critic(tmp_path):
    """It is read and written back as any rubric with a template."""
    file = tmp_path / "critic.toml"
    file.write_text(CRITIC_FILE)
    judge = as_grader(f"judge:{file}")
    assert judge.parse_reply(Reply(says(["x"], False))).is_critique
    assert judge == Judge(
        Rubric.from_data(judge.rubric.to_data(), "critic", "critic"), f"judge:{file}"
    )
    assert Judge(rubric=judge.rubric) == Judge(rubric=judge.rubric, read=FORM)
    file.write_text(CRITIC_FILE + "scale = [1, 10]\n")
    with pytest.raises(
        ConfigError, match="critic.toml: rubric: scale: read names no key of a score"
    ):
        as_grader(f"judge:{file}")


# ---- pydantic models


def test_the_schema_is_that_of_the_model():
    """With the bounds that it states; other texts are bounded, so that a model that rambles reaches
    the score.
    """
    schema = Judge(template="{response}", read=Verdict).answer_schema()
    assert list(schema["properties"]) == schema["required"] == ["reason", "score", "category"]
    assert schema["properties"]["score"] == {"type": "integer", "minimum": 1, "maximum": 10}
    assert schema["properties"]["reason"] == {"type": "string", "maxLength": 1000}
    actions = Judge(template="{response}", read=Critique).answer_schema()["properties"]["actions"]
    assert actions == {
        "type": "array",
        "items": {"type": "string", "maxLength": 300},
        "maxItems": 8,
    }


async def test_a_model_with_a_score_is_a_judge():
    """Its bounds are the scale; its other fields, and keys beyond it, are metadata."""
    judge = Judge(template="{response}", read=Verdict)
    feedback, calls = await verdict(
        judge, '{"reason": "It is so.", "score": 10, "category": "style", "tone": "dry"}'
    )
    assert (feedback.score, feedback.reason, calls) == (1.0, "It is so.", 1)
    assert feedback.metadata == {"category": "style", "tone": "dry"}
    feedback, _ = await verdict(judge, '{"Reason": "r", "**score**": "4"}')
    assert feedback.score == pytest.approx(1 / 3)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    score: float = Field(ge=0, le=1)
    reason: str = Field(min_length=3)

    @field_validator("reason")
    @classmethod
    def names_a_place(cls, reason):
        if "line" not in reason:
            raise ValueError("name the line")
        return reason.strip()


@pytest.mark.parametrize(
    ("read", "reply", "says"),
    [
        (Verdict, {"reason": "r", "score": 11}, "'score' must be a whole number from 1 to 10, got 11"),
        *((Verdict, {"reason": "r", "score": score}, "'score' must be") for score in (True, "4e0", "7/10", 7.5, None, [7])),
        (Verdict, {"score": 4}, "reason: Field required"),
        (Verdict, {"reason": 3, "score": 4}, "reason: Input should be a valid string, got 3"),
        (Verdict, {"reason": "r", "score": 4, "category": "tone"}, "category: Input should be 'fact' or 'style'"),
        (Strict, {"reason": "line 3", "score": 0.5, "tone": "dry"}, "tone: Extra inputs are not permitted"),
        (Strict, {"reason": "no", "score": 0.5}, "reason: String should have at least 3"),
        (Strict, {"reason": "here", "score": 0.5}, "reason: Value error, name the line"),
        (Critique, {"actions": ["x", 3], "done": False}, r"actions\[1\]: Input should be a valid string"),
        (Critique, {"done": False}, "actions: Field required"),
    ],
)  # fmt: skip
async def test_replies_are_validated_by_the_model(read, reply, says):
    """The complaint names the field; the reply is asked for once more."""
    judge = Judge(template="{response}", read=read)
    with pytest.raises(UnreadableOutput, match=says):
        judge.parse_reply(Reply(json.dumps(reply)))
    _, calls = await verdict(judge, json.dumps(reply), GOOD[read])
    assert calls == 2


GOOD = {
    Verdict: '{"reason": "r", "score": 4}',
    Strict: '{"reason": " line 3 ", "score": 0.5}',
    Critique: says([], True),
}


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    ("fields", "settings", "scale"),
    [
        ({"score": (int, Field(ge=1, le=10))}, {}, (1, 10)),
        ({"score": (int, Field(ge=1, le=10))}, {"scale": (1, 10)}, (1, 10)),
        ({"score": (float, Field(ge=0, le=1))}, {}, (0.0, 1.0)),
        ({"score": (Literal[1, 3, 5], ...)}, {}, (1, 5)),
        ({"score": (IntEnum("Level", {"LOW": 1, "HIGH": 5}), ...)}, {}, (1, 5)),
        ({"score": (int | float, ...)}, {"scale": (0.0, 1.0)}, (0.0, 1.0)),
        ({"score": (int, ...)}, {"scale": (1, 5)}, (1, 5)),
        ({"score": (float, ...)}, {"scale": (1, 5)}, (1, 5)),
        ({"score": (int, ...)}, {"scale": (1.0, 5.0)}, (1.0, 5.0)),
        ({"score": (int, Field(ge=1))}, {"scale": (1, 2000)}, (1, 2000)),
        ({"score": (float, ...), "actions": (str, "")}, {"scale": (-1.0, 1.0)}, (-1.0, 1.0)),
        ({"actions": (list[str], Field(max_length=2)), "done": (bool | None, None)}, {}, None),
        ({"done": (bool | None, ...)}, {}, None),
        (
            {"done": (bool, ...), "reason": (str, Field(max_length=5)), "note": (list[int], [])},
            {},
            None,
        ),
    ],
)
@given(st.data())
def test_what_the_schema_of_a_model_allows_is_read(fields, settings, scale, data):
    """At the first ask, whatever bounds are those of the model and which those of the judge."""
    model = create_model("Form", **fields)
    judge = Judge(template="{response}", read=model, **settings)
    assert judge.scale == scale
    schema = judge.answer_schema()
    reply = data.draw(instances(schema))
    jsonschema.validate(reply, schema)
    assert (judge.parse_reply(Reply(json.dumps(reply))).score is None) == (scale is None)


def texts(max_size):
    """Return a strategy of texts. A backspace or a form feed before a letter is read as a backslash
    that was not doubled.
    """
    return st.text(st.characters(codec="utf-8", exclude_characters="\b\f"), max_size=max_size)


def instances(schema, root=None):
    """Return a strategy of what follows the schema of a model."""
    root = root or schema
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return st.one_of([instances(each, root) for each in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = {
        "null": st.none,
        "boolean": st.booleans,
        "string": lambda: texts(schema.get("maxLength", 9)),
    }
    match schema["type"]:
        case "object":
            return st.fixed_dictionaries(
                {name: instances(each, root) for name, each in schema["properties"].items()}
            )
        case "array":
            return st.lists(instances(schema["items"], root), max_size=schema.get("maxItems", 3))
        case "integer" if "minimum" in schema:
            return st.integers(int(schema["minimum"]), int(schema["maximum"]))
        case "number":
            return st.floats(schema["minimum"], schema["maximum"])
        case "integer":
            return st.integers(-9, 9)
    return kinds[schema["type"]]()


@pytest.mark.parametrize(
    ("fields", "settings", "error"),
    [
        (
            {"text": (str, ...)},
            {},
            "read: Form needs a field score or, for a critic, actions or done; its fields are: text",
        ),
        ({"reason": (str, ...)}, {}, "needs a field score"),
        ({}, {}, "its fields are: none"),
        ({"score": (int, ...)}, {}, "read needs a scale"),
        ({"score": (int, Field(ge=1))}, {}, "read needs a scale"),
        (
            {"score": (int, Field(ge=1, le=5))},
            {"scale": (1, 10)},
            r"scale must be \(1, 5\), the bounds of the score of Form",
        ),
        (
            {"score": (str, ...)},
            {"scale": (1, 10)},
            "the field 'score' of Form must hold a number, int or float, got string",
        ),
        (
            {"score": (float | None, ...)},
            {"scale": (1, 10)},
            "the field 'score' of Form must hold a number, int or float, got null",
        ),
        (
            {"actions": (list[Critique], ...)},
            {},
            "the field 'actions' of Form must hold a list of texts.* got list of object",
        ),
        ({"done": (str, ...)}, {}, "the field 'done' of Form must hold a bool, got string"),
        (
            {"done": (bool, ...), "reason": (dict[str, str], ...)},
            {},
            "the field 'reason' of Form must hold text, str, got object",
        ),
    ],
)
def test_models_that_are_no_form_are_refused(fields, settings, error):
    """The error names the field, what it holds, and what it must hold."""
    with pytest.raises(ConfigError, match=error):
        Judge(template="{response}", read=create_model("Form", **fields), **settings)


async def test_validators_hold_up_nothing_else():
    """They may take any time, so they run beside the event loop."""
    threads = []

    class Slow(Critique):
        @field_validator("done")
        @classmethod
        def look_it_up(cls, done):
            threads.append(current_thread())
            return done

    await verdict(Judge(template=TEMPLATE, read=Slow), says(["Name the year."], False))
    assert threads and main_thread() not in threads


def test_validators_are_part_of_the_fingerprint():
    """Two models with one schema that validate differently are two graders; the prompts of both are
    the same.
    """
    plain = create_model("Critique", actions=(list[str], ...), done=(bool, ...))
    checked = create_model(
        "Critique",
        __validators__={"v": field_validator("actions")(lambda cls, v: v[:1])},
        actions=(list[str], ...),
        done=(bool, ...),
    )
    judges = [Judge(template=TEMPLATE, read=read) for read in (plain, checked, FORM)]
    assert len({grader_fingerprint(judge, str) for judge in judges}) == 3
    assert len({judge_data(judge)["digest"] for judge in judges}) == 1
    assert judge_from_data(judge_data(judges[0])).template == TEMPLATE
    assert replace(judges[0], name="other").read == judges[0].read


def test_pydantic_is_not_imported_for_other_forms():
    """Who has no model needs no pydantic."""
    code = "import sys, redraft; redraft.Judge(template='{response}', read={'done': 'done'}); print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


async def test_a_small_model_of_a_real_server_fills_in_a_model(plain_server):
    """llama.cpp holds it to the schema, so that it is read at the first ask."""
    for read in (Critique, Verdict):
        judge = Judge(template="Rate {response}.", read=read)
        result = await refine(
            Task("q", "an answer"), None, judge, judge=plain_server, max_iterations=0
        )
        assert str(result.stop) != "failed"
        assert result.usage.calls == 1
