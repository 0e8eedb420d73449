"""Further parameters of model calls: how they are written, and what none of them may choose."""

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from redraft import Judge
from redraft.base.parameters import (
    ROUTING_FIELDS,
    check_parameters,
    merge_parameters,
    parse_parameter,
)
from redraft.errors import ConfigError, ModelError
from redraft.graders import Checklist, Pairwise, Ranker, as_grader
from redraft.middleware.endpoint_errors import stated_max_tokens
from redraft.models import connect
from redraft.session.options import Options

WRITTEN = {
    "reasoning_effort=low": {"reasoning_effort": "low"},
    "max_tokens=8192": {"max_tokens": 8192},
    "top_p=0.9": {"top_p": 0.9},
    "chat_template_kwargs.enable_thinking=false": {
        "chat_template_kwargs": {"enable_thinking": False}
    },
    "thinking.type=enabled": {"thinking": {"type": "enabled"}},
    'stop=["a", "b"]': {"stop": ["a", "b"]},
    'user="7"': {"user": "7"},
    "seed=null": {"seed": None},
    "user=": {"user": ""},
    "note=a=b": {"note": "a=b"},
    "stop=[DONE]": {"stop": "[DONE]"},
    'x={"a": 1, "a": 2}': {"x": '{"a": 1, "a": 2}'},
    "x=NaN": {"x": "NaN"},
    "x=True": {"x": "True"},
}


@pytest.mark.parametrize(("text", "parameter"), WRITTEN.items())
def test_a_parameter_is_json_or_text(text, parameter):
    """Dots make nested objects; what is no JSON is a text."""
    assert parse_parameter(text) == parameter


@pytest.mark.parametrize(
    "text", ["", "a", "=1", ".a=1", "a.=1", "a..b=1", " =1", ".".join("a" * 30) + "=1"]
)
def test_what_is_no_parameter_is_named(text):
    """The error says how one is written."""
    with pytest.raises(ValueError, match="NAME=VALUE, such as reasoning_effort=low"):
        parse_parameter(text)


def spellings(name):
    return {name, name.upper(), name.replace("_", "-"), name.replace("_", "")}


@each_row("name", sorted({*ROUTING_FIELDS, "model", "mcp_servers", "authorization"}))
def test_no_parameter_chooses_a_model_a_host_a_key_or_a_header(name):
    """However it is spelled, and wherever it is given; the value is not shown."""
    for spelled in spellings(name):
        given = {spelled: "sk-secret-1234567890"}
        for give in (
            lambda: check_parameters("params", given),
            lambda: Options(model_params=given),
            lambda: Options(judge_params=given),
            lambda: connect("ollama:m", params=given),
            lambda: as_grader(f"judge:{spelled}=sk-secret-1234567890"),
        ):
            with pytest.raises(ConfigError, match="no parameter chooses") as caught:
                give()
            assert "sk-secret" not in str(caught.value)


REFUSED = {
    "messages": [
        {"messages": []},
        {"n": 2},
        {"stream": True},
        {"tools": []},
        {"response_format": {}},
        {"Top-Logprobs": 3},
    ],
    "write max_tokens": [{"max_completion_tokens": 9}, {"num_predict": 9}, {"maxOutputTokens": 9}],
    "holds no key": [
        {"extra": {"api_key": "abc"}},
        {"a": [{"Authorization": "Bearer abc"}]},
        {"x": {"access-key": "abc"}},
    ],
    "that JSON has": [
        {"x": float("nan")},
        {"x": float("inf")},
        {"x": object()},
        {"x": {1, 2}},
        {"x": b"a"},
    ],
    "at most": [{"x": "a" * 30_000}, {"x": json.loads("[" * 30 + "]" * 30)}],
    "parameters by name": [[], "a=1", 7, ["a"]],
    "name of a parameter": [{"": 1}, {" ": 1}, {7: 1}, {"a\n": 1}],
    "max_tokens must be": [
        {"max_tokens": 0},
        {"max_tokens": "9"},
        {"max_tokens": True},
        {"max_tokens": 1.5},
    ],
    "temperature must be": [{"temperature": "hot"}, {"temperature": -1}],
    "seed must be": [{"seed": -1}, {"seed": 0.5}],
}
NUMBERED = [f"{words}-{n}" for words, all_of in REFUSED.items() for n in range(len(all_of))]


@each_row(
    ("words", "given"),
    [(words, each) for words, all_of in REFUSED.items() for each in all_of],
    ids=NUMBERED,
)
def test_what_a_parameter_cannot_be_is_named(words, given):
    """What each call sets itself, keys at any depth, values that JSON lacks, and what would be
    huge.
    """
    with pytest.raises(
        ConfigError, match="it is set for each call" if words == "messages" else words
    ):
        check_parameters("params", given)


PARAMETERS = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda each: st.dictionaries(st.sampled_from("abc"), each),
    max_leaves=6,
)
TABLES = st.dictionaries(st.sampled_from("abc"), PARAMETERS)


@given(TABLES, TABLES, TABLES)
def test_the_nearest_wins_name_by_name(far, middle, near):
    """In whatever order they are merged, and nothing of the nearest is lost."""
    assert merge_parameters(far, middle, near) == merge_parameters(
        merge_parameters(far, middle), near
    )
    assert merge_parameters({}, near) == merge_parameters(near, near) == near
    assert merge_parameters(far, near).keys() == far.keys() | near.keys()


def test_sampling_may_be_given_as_parameters_once():
    """They become the settings of these names, so that budgets and plans know them; two values are
    an error.
    """
    options = Options(model_params={"max_tokens": 9, "temperature": 0, "top_p": 0.5})
    assert (options.max_tokens, options.temperature, options.seed) == (9, 0, None)
    assert Options(max_tokens=9, model_params={"max_tokens": 9}).max_tokens == 9
    with pytest.raises(ConfigError, match="max_tokens=8 and 9 in `model_params`: give it once"):
        Options(max_tokens=8, model_params={"max_tokens": 9})


STATED = {  # as OpenAI, Anthropic, DeepSeek, Qwen, Groq, vLLM, SGLang, TGI and OpenRouter say it
    "max_tokens is too large: 32768. This model supports at most 16,384 completion tokens, whereas you provided 32768.": 16384,
    "max_tokens: 32768 > 8192, which is the maximum allowed number of output tokens for claude-3-5": 8192,
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]": 8192,
    "Range of max_tokens should be [1, 8192]": 8192,
    "`max_tokens` must be less than or equal to `16384`": 16384,
    "'max_tokens' is too large: 32768. This model's maximum context length is 4096 tokens and your request has 902 input tokens": None,
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested 32876 tokens": None,
    "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 900 `inputs` tokens and 32768 `max_new_tokens`": None,
    "This endpoint's maximum context length is 8192 tokens. However, you requested about 33000 tokens": None,
    "max_tokens is too large": None,
}


@pytest.mark.parametrize(("message", "most"), STATED.items())
def test_the_maximum_that_a_server_states_is_read(message, most):
    """That of the answer; of a window the prompt has a part, so no limit is set."""
    assert (
        stated_max_tokens(ModelError(f"m at host: status 400: {message}", status=400), 32768)
        == most
    )


SPECS = {
    "judge:max_tokens=8192": ({"max_tokens": 8192}, None),
    "judge:helpfulness,reasoning_effort=low": ({}, {"reasoning_effort": "low"}),
    "helpfulness:temperature=1,chat_template_kwargs.enable_thinking=false": (
        {"temperature": 1},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ),
    "judge:max_eval_chars=6000,max_tokens=600": ({"max_eval_chars": 6000, "max_tokens": 600}, None),
    "judge:scoring=expectation,top_p=0.5": ({"scoring": "expectation"}, {"top_p": 0.5}),
    "ranker:helpfulness,max_tokens=9,top_k=1": ({"max_tokens": 9}, {"top_k": 1}),
    "pairwise:max_eval_chars=900,reasoning_effort=low": (
        {"max_eval_chars": 900},
        {"reasoning_effort": "low"},
    ),
    "checklist:max_tokens=9": ({"max_tokens": 9, "questions": None}, None),
}


@pytest.mark.parametrize(("spec", "expected"), SPECS.items())
def test_the_name_of_a_grader_has_its_parameters(spec, expected):
    """Settings of the judge's own, and what its endpoint takes."""
    grader = as_grader(spec)
    assert ({name: getattr(grader, name) for name in expected[0]}, grader.params) == expected
    assert grader.name == spec


def test_the_options_of_a_jury_are_those_of_its_members():
    """Of the judge that votes three times, and of each named grader."""
    alone, named = (
        as_grader("jury:max_tokens=9"),
        as_grader("jury:helpfulness,clarity,reasoning_effort=low"),
    )
    assert [(part.max_tokens, part.temperature) for part in alone.parts] == [(9, 0.7)]
    assert [(part.name, part.params) for part in named.parts] == [
        (f"{name}:reasoning_effort=low", {"reasoning_effort": "low"})
        for name in ("helpfulness", "clarity")
    ]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("judge:max_token=9", "did you mean max_tokens="),
        ("judge:images=false", "images is an argument in Python"),
        ("pairwise:max_group_size=2", "max_group_size is an argument in Python"),
        ("judge:temprature=1", "did you mean temperature="),
        ("ranker:max_eval_char=1", "did you mean max_eval_chars="),
        ("pairwise:scoring=expectation", "for judges that score one answer"),
        ("judge:max_tokens=many", "max_tokens must be a whole number"),
        ("judge:n=2", "it is set for each call"),
        ("judge:a..b=1", "'a..b"),
        ("rouge:max_tokens=9", "is not an option"),
    ],
)
def test_a_slip_is_no_parameter(spec, words):
    """A name that is almost that of an option is not sent to the server."""
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        as_grader(spec)


@pytest.mark.parametrize(
    ("spec", "cls"),
    [("judge", Judge), ("ranker", Ranker), ("pairwise", Pairwise), ("checklist", Checklist)],
)
def test_no_argument_of_a_judge_is_sent_as_a_parameter(spec, cls):
    """Each is an option of a spec, or refused there."""
    for each in (field for field in fields(cls) if field.init):
        try:
            judge = as_grader(f"{spec}:{each.name}=1")
        except ConfigError:
            continue
        assert not judge.params, each.name
