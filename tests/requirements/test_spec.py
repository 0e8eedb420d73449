"""Spec strings: their meaning, their round trip, and which ones are rejected."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from redraft.errors import ConfigError
from redraft.protocols import Requirement
from redraft.requirements import KINDS, parse

CANONICAL = {
    "words:80-200": "words:80-200",
    "words:80-": "words:80-",
    "words:-200": "words:-200",
    "words:100": "words:100",
    "words:<300": "words:-299",
    "words:<=300": "words:-300",
    "words:>80": "words:81-",
    "words: >=80 ": "words:80-",
    "words:=5": "words:5",
    "contains:war": "contains:war",
    "contains:war>=8": "contains:war>=8",
    "contains:war<3": "contains:war<=2",
    "contains:war=2-4": "contains:war=2-4",
    'contains:"a>=8"': 'contains:"a>=8"',
    'contains:"a>=8">=2': 'contains:"a>=8">=2',
    'contains:"hello"': "contains:hello",
    'contains_none:a, "b, c",a': 'contains_none:a,"b, c"',
    "one_of:Yes.|No.": "one_of:Yes.|No.",
    "parts:2:******": "parts:2:******",
    "nth_paragraph_starts:2:word": "nth_paragraph_starts:2:word",
    'json_schema:{"type": "object", "required": []}': 'json_schema:{"required":[],"type":"object"}',
    "script:Latin": "script:latin",
}

REFUSED = [
    "words:abc",
    "words:200-80",
    "words:-5--1",
    "words:",
    "words",
    "words:0-",
    "words:<0",
    "words:1234567890",
    "words:\u0663",
    "contains:",
    "contains:  ",
    'contains:"x',
    'contains:"x" y',
    "contains:>=3",
    "contains_none:a,,b",
    "one_of:a|",
    "letters:ab>3",
    "lowercase:x",
    "json:yes",
    "json_schema:",
    "json_schema:/no/such/file.json",
    "json_schema:{",
    'json_schema:{"type": "nonsense"}',
    'json_schema:{"patternProperties": {"(a+)+$": {}}}',
    "script:latn",
    "language:klingon",
    "regex:(",
    "regex:" + "a" * 1001,
    "parts:2:",
    "parts:x:***",
    "nth_paragraph_starts:0:a",
    "nth_paragraph_starts:1-2:a",
    "nth_paragraph_starts:2:two words",
    "wrods:3",
    "",
    ":",
    "words\ud800:3",
]


@each_row(("spec", "canonical"), CANONICAL.items())
def test_canonical_form(spec, canonical):
    """Every spelling of a requirement has the same canonical spec."""
    assert parse(spec).spec == canonical
    assert parse(canonical) == parse(spec)


@each_row("spec", REFUSED)
def test_invalid_spec_is_rejected(spec):
    """The error shows the given value."""
    with pytest.raises(ConfigError) as error:
        parse(spec)
    assert repr(spec)[:100] in str(error.value)


def test_unknown_kind_lists_the_nearest():
    """The error suggests the nearest kind first and then says how to list all."""
    with pytest.raises(
        ConfigError,
        match=r"^unknown requirement 'wrods:3'; did you mean 'words'.*`redraft graders` lists all",
    ):
        parse("wrods:3")


@each_row("name", KINDS)
def test_every_kind_has_help_and_an_example_that_works(name):
    """The docs and --help are generated from the registry."""
    kind = KINDS[name]
    requirement = parse(kind.example)
    assert kind.example.partition(":")[0] == name
    assert kind.help
    assert requirement.demand
    assert isinstance(requirement, Requirement)
    assert parse(requirement.spec) == requirement


def test_schema_file_is_inlined(tmp_path):
    """Later changes of the file have no effect, and the canonical spec is inline."""
    file = tmp_path / "schema.json"
    file.write_text('{"type": "array"}')
    requirement = parse(f"json_schema:{file}")
    file.unlink()
    assert requirement.spec == 'json_schema:{"type":"array"}'
    assert requirement.check("[]").ok


def test_files_can_be_forbidden(tmp_path):
    """With files off, a schema must be inline."""
    with pytest.raises(ConfigError, match="read a file"):
        parse(f"json_schema:{tmp_path}", files=False)
    assert parse('json_schema:{"type":"array"}', files=False)


ANY = st.text(min_size=1, max_size=20).filter(str.strip) | st.sampled_from(
    ['"a"', "a>=3", "x=2-3", "a,b", "a|b", " a ", "\ud800", "\\"]
)


@given(
    ANY, st.sampled_from(["contains", "contains_word", "starts_with", "ends_with", "postscript"])
)
def test_any_text_round_trips(text, kind):
    """Any quoted text in a spec round trips, also through the canonical form."""
    requirement = parse(f"{kind}:{json.dumps(text)}")
    assert parse(requirement.spec) == requirement
    requirement.spec.encode()


@given(
    st.lists(ANY, min_size=1, max_size=4),
    st.sampled_from(["contains_none,", "one_of|", "sections,"]),
)
def test_any_list_round_trips(items, kind):
    """Any list of texts round trips."""
    requirement = parse(f"{kind[:-1]}:{kind[-1].join(map(json.dumps, items))}")
    assert parse(requirement.spec) == requirement


@given(
    st.text(max_size=40)
    | st.sampled_from(sorted(KINDS)).flatmap(
        lambda k: st.text(max_size=20).map(lambda t: f"{k}:{t}")
    )
)
def test_any_string_is_a_requirement_or_a_config_error(spec):
    """A spec raises nothing but ConfigError, and a valid one round trips."""
    try:
        requirement = parse(spec, files=False)
    except ConfigError:
        return
    assert parse(requirement.spec) == requirement
