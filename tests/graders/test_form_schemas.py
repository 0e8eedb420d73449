"""Forms of one's own as JSON schemas: what a schema allows is read, and what a form allows follows
its schema.
"""

import json
from types import SimpleNamespace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from redraft import Judge, ScriptedModel, Task
from redraft.errors import ModelError
from redraft.graders import Pairwise, Ranker
from redraft.graders.judging import ranking
from redraft.graders.judging.own_form import WINNER_WORDS, form_schema
from redraft.graders.template import FORM_PARTS, Scale
from redraft.loop.records import Candidate
from redraft.protocols import FORMATS, Reply
from redraft.session.perform import ModelClient, StepClient
from sessions import make_session

SCALES = [(1, 10), (0.0, 1.0), (-5, 5), (0, 1000), (1, 5.0)]
PAIR = [Candidate(0, "x"), Candidate(1, "y")]
NAMES = st.sampled_from(
    [
        "score",
        "reason",
        "actions",
        "done",
        "verdict",
        "why",
        "Why not?",
        "note",
        "it's",
        "größe",
        "a b",
    ]
)
OTHER_KEYS = st.sampled_from(["tone", "confidence", "steps taken", "ID"])
# before a letter these are backslashes that were not doubled
CHARACTERS = st.characters(codec="utf-8", exclude_characters="\b\f")
PLAIN_TEXT = st.text(CHARACTERS, max_size=40)
OTHER_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.text(CHARACTERS, max_size=5),
    st.lists(st.integers(0, 9), max_size=2),
)


@st.composite
def forms(draw, kind="pointwise"):
    """Draw the paths of a form, none of which lies within another."""
    first, *others = FORM_PARTS[kind]
    verdicts = (
        [first]
        if kind != "pointwise"
        else draw(st.sampled_from([["score"], ["actions"], ["done"], ["actions", "done"]]))
    )
    parts = [*dict.fromkeys([*verdicts, *draw(st.lists(st.sampled_from(others), unique=True))])]
    parts = [part for part in parts if part != "ties"]
    form = {}
    for part in draw(st.permutations(parts)):
        path = draw(st.lists(NAMES, min_size=1, max_size=3).map(".".join))
        while any(
            f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")
            for other in form.values()
        ):
            path = f"x{path}"
        form[part] = path
    return form


def example(form, others=()):
    """Return JSON as a template writes it, with the keys of a form and with others."""
    root = {}
    for path in [*form.values(), *others]:
        *outer, last = path.split(".")
        holder = root
        for key in outer:
            holder = holder.setdefault(key, {})
        holder.setdefault(last, "...")
    return json.dumps(root, ensure_ascii=False)


@st.composite
def judges(draw):
    """Draw a judge or a critic with a form, which its template writes as JSON, with a field within,
    in words, or not at all.
    """
    form = draw(forms())
    shown = draw(
        st.sampled_from(
            [
                "",
                *form.values(),
                example(form),
                example(form, ["tone"]),
                f"{{'x': 1}} {example(form)}",
            ]
        )
    )
    scale = draw(st.sampled_from(SCALES)) if "score" in form else None
    return Judge(
        template="Rate {response}. " + shown.replace("}", "} ").strip(), scale=scale, read=form
    )


def instances(schema):
    """Return a strategy of what follows a schema, with further keys."""
    if "anyOf" in schema:
        return st.one_of(*map(instances, schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "object":
            known = st.fixed_dictionaries(
                {name: instances(value) for name, value in schema["properties"].items()}
            )
            return st.builds(
                lambda others, own: others | own,
                st.dictionaries(OTHER_KEYS, OTHER_VALUES, max_size=2),
                known,
            )
        case "array":
            sizes = {"min_size": schema.get("minItems", 0), "max_size": min(4, schema["maxItems"])}
            return st.lists(instances(schema["items"]), **sizes)
        case "string":
            return st.one_of(PLAIN_TEXT, st.just("x" * schema["maxLength"]))
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema["minimum"], schema["maximum"])
        case "number":
            return st.one_of(
                st.floats(schema["minimum"], schema["maximum"]), st.just(schema["maximum"])
            )
    return OTHER_VALUES


def value_at(data, path):
    for key in path.split("."):
        data = data[key]
    return data


@pytest.mark.slow
@given(st.data())
def test_what_the_schema_of_a_form_allows_is_read(data):
    """At the first ask: by no form is the reader stricter than the schema that was sent."""
    judge = data.draw(judges())
    reply = data.draw(instances(judge.answer_schema()))
    feedback = judge.parse_reply(Reply(json.dumps(reply)))
    form = dict(judge.read)
    expected = (
        Scale(*judge.scale).share(value_at(reply, form["score"])) if "score" in form else None
    )
    assert feedback.score == (None if expected is None else pytest.approx(expected))
    assert feedback.done == (value_at(reply, form["done"]) if "done" in form else None)


@given(st.data())
def test_what_a_form_allows_follows_its_schema(data):
    """Any score of the scale, changes as a text or a list, and further keys in every object."""
    judge = data.draw(judges())
    schema = judge.answer_schema()
    low, high = judge.scale or (0, 1)
    whole = isinstance(low, int) and isinstance(high, int)
    values = {
        "score": st.integers(low, high)
        if whole
        else st.one_of(st.sampled_from([low, high]), st.floats(low, high)),
        "reason": PLAIN_TEXT,
        "actions": st.one_of(PLAIN_TEXT, st.lists(PLAIN_TEXT, max_size=5)),
        "done": st.booleans(),
    }
    reply = {"tone": "dry"}
    for part, path in dict(judge.read).items():
        holder = reply
        for key in path.split(".")[:-1]:
            holder = holder.setdefault(
                key, data.draw(st.dictionaries(OTHER_KEYS, OTHER_VALUES, max_size=1))
            )
        holder[path.split(".")[-1]] = data.draw(values[part])
    jsonschema.validate(reply, schema)
    judge.parse_reply(Reply(json.dumps(reply)))


@pytest.mark.slow
@given(st.data())
def test_the_schema_of_a_comparison_names_every_winner_that_is_read(data):
    """Each instance is read, and each word for the winner is one."""
    form = data.draw(forms("pairwise"))
    schema = form_schema(tuple(form.items()), example(form))
    reply = data.draw(instances(schema))
    ranking.parse_pair_reply(Reply(json.dumps(reply)), tuple(form.items()), *PAIR)
    word = data.draw(st.sampled_from([*WINNER_WORDS, "A", "B", "Answer A", "Response B", 1, 2]))
    holder = reply
    for key in form["winner"].split(".")[:-1]:
        holder = holder[key]
    holder[form["winner"].split(".")[-1]] = word
    jsonschema.validate(reply, schema)


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize(
    "read", ["order", {"ranking": "verdict.order", "ties": "verdict.same", "reason": "why"}]
)
def test_the_schema_of_a_ranking_has_the_numbers_of_the_answers(n, read):
    """As many as there are, each from 1 on; of few answers, none twice."""
    judge = Ranker(template="Order {responses}", read=read)
    schema = form_schema(
        judge.read, "", ranking=ranking.order_schema(n), ties=ranking.ties_schema(n)
    )
    reply = {
        "order": [*range(n, 0, -1)],
        "verdict": {"order": [*range(1, n + 1)], "same": []},
        "why": "",
    }
    jsonschema.validate(reply, schema)
    ranking.parse_ranking(
        Reply(json.dumps(reply)), judge.read, [Candidate(i, str(i)) for i in range(n)]
    )
    tied = ranking.ties_schema(n)["items"]
    assert tied["minItems"] <= tied["maxItems"]
    for wrong in (
        [*range(1, n)],
        [*range(2, n + 2)],
        [*range(n + 1)],
        *([[1] * n] if 1 < n < 5 else []),
    ):
        assert not jsonschema.Draft202012Validator(schema).is_valid(
            {"order": wrong, "verdict": {"order": wrong, "same": []}, "why": ""}
        )


# ---- the keys and their order

ORDERS = [
    ('{"score": 1-10, "reason": "..."}', {"reason": "reason", "score": "score"}, ["score", "reason"]),
    ('{"reason": "...", "score": 1-10}', {"score": "score", "reason": "reason"}, ["reason", "score"]),
    ("{'reason': '...', 'score': 1-10}", {"score": "score", "reason": "reason"}, ["reason", "score"]),
    ('{{"reason": "...", "score": 1-10}}', {"score": "score", "reason": "reason"}, ["reason", "score"]),
    ("JSON with score and reason", {"score": "score", "reason": "reason"}, ["reason", "score"]),
    ('{"thoughts": "...", "score": 1-10}', {"score": "score"}, ["thoughts", "score"]),
    ('{"thoughts": "...", "result": {"why": "...", "score": 5}, "sure": 0-1}', {"score": "result.score"},
     ["thoughts", ["why", "score"], "sure"]),
    ('Input: {"id": 1, "text": "..."} Output: {"score": 3}', {"score": "score"}, ["score"]),
    ('{"score": 3, "old": 1} then {"why": "", "score": 4}', {"score": "score"}, ["why", "score"]),
    # written in another case: nothing is known of it
    ('{"Score": 3, "why": ""}', {"score": "score"}, ["score"]),
    ('{"a": [{"b": 1}], "score": 3}', {"score": "score"}, ["a", "score"]),
    # a reply with both would not be read
    ('{"SCORE": 3, "score": 4}', {"score": "score"}, ["score"]),
    ('{"score": 3', {"score": "score"}, ["score"]),
    ('}{"x": {"y": {}}} {', {"score": "verdict.score", "reason": "verdict.why"}, [["why", "score"]]),
]  # fmt: skip


def names_in(schema):
    return [
        names_in(value) if "properties" in value else name
        for name, value in schema["properties"].items()
    ]


@pytest.mark.parametrize(("written", "read", "names"), ORDERS)
def test_the_keys_are_asked_for_as_the_template_writes_them(written, read, names):
    """In its order, with those that it writes beside them; without JSON in it, the reason is
    first.
    """
    schema = Judge(template="Rate {response}. " + written, scale=(1, 10), read=read).answer_schema()
    assert names_in(schema) == names
    assert schema["required"] == list(schema["properties"])


def test_texts_beside_the_form_are_bounded():
    """A model that rambles in them reaches the score."""
    judge = Judge(
        template='{response} {"a": "...", "b": 1, "score": 3}', scale=(1, 3), read="score"
    )
    properties = judge.answer_schema()["properties"]
    assert (properties["a"]["maxLength"], properties["b"], properties["score"]) == (
        1000,
        {},
        {"type": "integer", "enum": [1, 2, 3]},
    )


# ---- what is sent


class Endpoint:
    """A model that takes some formats, and answers all requests with one reply."""

    name, identity, formats = "m", "m", FORMATS

    def __init__(self, reply, refused=()):
        self.reply, self.refused, self.asked = reply, refused, []

    async def complete(self, request):
        self.asked.append(request)
        if request.format in self.refused:
            raise ModelError("status 400: response_format is not supported", status=400)
        return Reply(self.reply)


GRADERS = {
    "score": (
        lambda: Judge(template="{response}", scale=(1, 10), read="result.score"),
        '{"result": {"score": 10}}',
    ),
    "critic": (lambda: Judge(template="{response}", read={"actions": "do"}), '{"do": ["x"]}'),
    "pairwise": (lambda: Pairwise(template="{response_a} {response_b}", read="w"), '{"w": "A"}'),
    "ranker": (lambda: Ranker(template="{responses}", read="order"), '{"order": [1, 2]}'),
}


@pytest.mark.parametrize("refused", [(), ("json_schema",), ("json_schema", "json_object")])
@pytest.mark.parametrize(("make", "reply"), GRADERS.values(), ids=GRADERS)
async def test_a_form_is_sent_as_a_schema_where_the_endpoint_takes_one(make, reply, refused):
    """Where it refuses, the next format is tried, as with the judges' own form; what works is known
    for the next call.
    """
    judge = Endpoint(reply, refused)
    writer = ScriptedModel(["one", "two"])
    result = await redraft.refine("q", writer, make(), judge=judge, plan=redraft.BestOfN(2))
    assert str(result.stop) != "failed", result
    formats = [request.format for request in judge.asked]
    assert formats[: len(refused) + 1] == list(FORMATS[: len(refused) + 1])
    assert set(formats[len(refused) :]) == {FORMATS[len(refused)]}
    assert all(request.schema["type"] == "object" for request in judge.asked)


def client(model):
    return StepClient(ModelClient(model.name, model.complete))


READY = SimpleNamespace(
    task=Task("Name a colour.", metadata={"audience": "children"}),
    score='Rate {response} for {query}, for {audience}. {"thoughts": "...", "result": {"why": "...", "score": 1}, "done": true}',
)
REAL = {
    "whole": Judge(
        template=READY.score,
        scale=(1, 10),
        read={"score": "result.score", "reason": "result.why", "done": "done"},
    ),
    "of long scale": Judge(template=READY.score, scale=(0, 1000), read="result.score"),
    "alone": Judge(template="Rate {response}.", scale=(1, 5), read="score"),
    "critic": Judge(
        template="What is wrong with {response}?",
        read={"actions": "changes", "done": "final", "reason": "why"},
    ),
    "critic in a list": Judge(
        template='{response} {"changes": ["..."]}', read={"actions": "changes"}
    ),
}


@pytest.mark.parametrize("name", REAL)
async def test_a_small_model_of_a_real_server_answers_in_a_form(plain_server, name):
    """Random words make valid verdicts, each at the first ask: llama.cpp holds the model to the
    schema.
    """
    session = make_session(redraft.session.options.Options(retries=0), None, REAL[name])
    connected = session.models.client_for(redraft.models.connect(plain_server))
    try:
        for text in ("Red.", "A colour is blue, and another one is green."):
            feedback = await REAL[name].grade(
                READY.task, Candidate(0, text), ask := StepClient(connected)
            )
            assert (feedback.score is None) == ("critic" in name)
            assert feedback.is_critique or feedback.score is not None or feedback.actions == ()
            assert ask.usage.calls == 1
    finally:
        await session.close()


@pytest.mark.parametrize("grader", ["pairwise", "ranker"])
async def test_a_small_model_of_a_real_server_compares_in_a_form(plain_server, grader):
    """Both kinds of comparison reach a result."""
    result = await redraft.refine(
        "q",
        ScriptedModel(["one", "two"]),
        GRADERS[grader][0](),
        plain_server,
        plan=redraft.BestOfN(2),
    )
    assert result.trace.comparisons, result
