"""Labelled data in any usual layout becomes cases; rows that cannot be understood are left out and
reported.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.errors import ConfigError
from redraft.validation.cases import (
    AmbiguousLabel,
    parse_number,
    parse_pass,
    parse_preference,
    ranks_from_order,
    zero_based_ranks,
)
from redraft.validation.labelled import read_cases
from redraft.validation.recorded import read_verdicts
from redraft.validation.recorded_formats import parse_output

FIRST, SECOND, TIE = (0, 1), (1, 0), (0, 0)


@pytest.fixture
def write_file(tmp_path):
    """Return a function that writes rows to a file and returns its path."""

    def write(*rows, name="t.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def pair(label, **more):
    return {"prompt": "q", "response_a": "x", "response_b": "yy", "label": label, **more}


def one(label, **more):
    return {"prompt": "q", "response": "x", "label": label, **more}


PAIRS = [
    *[
        (given_label, FIRST)
        for given_label in (
            "A>B",
            "[[A>>B]]",
            "b<a",
            "A",
            "a",
            "first",
            "First",
            "model_a",
            "response_1",
            1,
            "1",
            1.0,
            "1.0",
        )
    ],
    *[
        (given_label, SECOND)
        for given_label in ("B>A", "A<<B", "B", " b ", "second", "model_b", "output_2", 2, "2")
    ],
    *[
        (given_label, TIE)
        for given_label in ("A=B", "tie", "Tie", "tie (bothbad)", "same", "equal")
    ],
]


@pytest.mark.parametrize(("given_label", "places"), PAIRS)
def test_spellings_of_a_preference(write_file, given_label, places):
    """Letters, words, signs and numbers from 1 name the better response."""
    found = read_cases(write_file(pair(given_label)))
    assert (found.kind, [case.ranks for case in found.cases]) == ("pair", [places])


@pytest.mark.parametrize(
    "given_label",
    ["gpt-4", "C", 3, -1, 1.5, True, "A and B", ["A"], {"a": 1}, "4/5", "", None, "nan", "ⅰ", "١"],
)
def test_unclear_preference_is_left_out(write_file, given_label):
    """It is reported with its place and the reason, and the other rows are read."""
    found = read_cases(write_file(pair("A"), pair(given_label)), {"label": "label"}, kind="pair")
    assert len(found.cases) == 1
    assert found.skipped_rows[0].location.endswith("t.jsonl:2")
    assert found.skipped_rows[0].message


def test_zero_is_a_tie_only_if_two_occurs(write_file):
    """With 0 and 1 only, 0 may mean the first response, so the meaning must be stated."""
    assert [case.ranks for case in read_cases(write_file(pair(0), pair(2), pair(1))).cases] == [
        TIE,
        SECOND,
        FIRST,
    ]
    zeros = write_file(pair(0), pair(1))
    with pytest.raises(ConfigError, match="count from 0, or say tie; state what it means"):
        read_cases(zeros)
    found = read_cases(zeros, {"label:0": "first", "label:1": "second"})
    assert [case.ranks for case in found.cases] == [FIRST, SECOND]


def test_model_names_need_a_statement(write_file):
    """A model's name says by itself not which response it is."""
    rows = write_file(pair("gpt-4"), pair("vicuna"), pair("both"))
    found = read_cases(rows, {"label:gpt-4": "first", "label:vicuna": "second"})
    assert [case.ranks for case in found.cases] == [FIRST, SECOND, TIE]


PASSES = [(True, 1), (1, 1), ("1", 1), ("pass", 1), ("YES", 1), ("true", 1), ("correct", 1)]
FAILS = [(False, 0), (0, 0), ("0.0", 0), ("fail", 0), ("no", 0), ("False", 0), ("incorrect", 0)]


@pytest.mark.parametrize(("given_label", "label"), PASSES + FAILS)
def test_spellings_of_pass_and_fail(write_file, given_label, label):
    """A column with these values only holds passes and fails."""
    found = read_cases(write_file(one(given_label), one("pass")))
    assert (found.kind, found.cases[0].label) == ("pass", label)


@pytest.mark.parametrize(
    ("given_label", "label"),
    [(4, 4), (0.25, 0.25), ("3.5", 3.5), (-2, -2), ("1e2", 100), (" 7 ", 7)],
)
def test_scores_keep_their_scale(write_file, given_label, label):
    """The scale is the one that people used."""
    found = read_cases(write_file(one(given_label), one(5)))
    assert (found.kind, found.cases[0].label, found.scale) == (
        "score",
        label,
        (min(label, 5), max(label, 5)),
    )


@pytest.mark.parametrize(
    "given_label",
    ["4/5", "four", "nan", "NaN", "inf", "1_000", "٣", "²", True, [[1]], "1e999", "9" * 400],
)
def test_non_number_is_no_score(write_file, given_label):
    """No score is derived from it."""
    found = read_cases(write_file(one(3), one(given_label)), {"label": "label"}, kind="score")
    assert [case.label for case in found.cases] == [3]
    assert len(found.skipped_rows) == 1


def test_several_ratings_become_one_label(write_file):
    """Scores are averaged and other ratings decided by majority; a missing rating stays unknown."""
    scores = read_cases(write_file({"prompt": "q", "response": "x", "ratings": [3, None, 4]}))
    assert (scores.cases[0].label, scores.cases[0].ratings, scores.scale) == (
        3.5,
        (3, None, 4),
        (3, 4),
    )
    passes = read_cases(
        write_file({"prompt": "q", "response": "x", "ratings": ["yes", "no", "yes"]})
    )
    assert (passes.kind, passes.cases[0].label, passes.cases[0].ratings) == ("pass", 1, (1, 0, 1))
    base = {"prompt": "q", "response_1": "x", "response_2": "y"}
    pairs = read_cases(
        write_file({**base, "annotators": [2, 2, 0]}, {**base, "annotators": [1, 2, 0]})
    )
    assert (pairs.cases[0].ranks, pairs.cases[0].ratings) == (SECOND, (2, 2, 0))
    assert "most frequent" in pairs.skipped_rows[0].message


def test_ratings_in_columns_of_their_own(write_file, tmp_path):
    """Commas join the column names; an empty CSV cell is a missing rating, and a cell may hold a
    list.
    """
    path = tmp_path / "t.csv"
    path.write_text('prompt,response,r1,r2,all\nq,x,3,,"[1, 2]"\n')
    assert read_cases(path, {"ratings": "r1,r2"}).cases[0].ratings == (3, None)
    assert read_cases(path, {"ratings": "all"}).cases[0].label == 1.5


RANKED = {"prompt": "q", "responses": ["x", "y", "z"]}


@pytest.mark.parametrize(
    ("ranking_fields", "places"),
    [
        ({"ranking": [2, 1, 3]}, (1, 0, 2)),
        ({"ranking": [1, 1, 3]}, (0, 0, 2)),
        ({"ranking": [1, 1, 2]}, (0, 0, 2)),
        ({"order": [2, 0, 1]}, (1, 2, 0)),
        ({"order": [3, 1, 2]}, (1, 2, 0)),
    ],
)
def test_rankings_are_ranks_or_orders(write_file, ranking_fields, places):
    """The name of the column says which."""
    found = read_cases(write_file({**RANKED, **ranking_fields}))
    assert (found.kind, found.cases[0].ranks) == ("ranking", places)


@pytest.mark.parametrize(
    "ranking_fields",
    [{"ranking": [0, 1, 2]}, {"ranking": [1, 2]}, {"order": [1, 1, 2]}, {"order": "xyz"}],
)
def test_invalid_ranking_is_left_out(write_file, ranking_fields):
    """A valid ranking gives each response a rank."""
    with pytest.raises(ConfigError, match="none of its rows can be understood"):
        read_cases(write_file({**RANKED, **ranking_fields}))


def test_list_of_two_labelled_responses_is_a_pair(write_file):
    """A row with three responses is left out, and without a label nothing is known."""
    path = write_file(
        {"responses": ["x", "y"], "label": "B"}, {"responses": ["x", "y", "z"], "label": "A"}
    )
    found = read_cases(path)
    assert (found.kind, found.cases[0].ranks, len(found.skipped_rows)) == ("pair", SECOND, 1)
    with pytest.raises(ConfigError, match="ranking=COLUMN"):
        read_cases(path, kind="ranking")


@given(st.permutations(range(5)))
def test_orders_and_ranks_are_equivalent(order):
    """Both may count from 0 or from 1."""
    ranks = [order.index(i) + 1 for i in range(5)]
    expected = zero_based_ranks(ranks, 5)
    assert ranks_from_order(order, 5) == ranks_from_order([i + 1 for i in order], 5) == expected


def test_chosen_response_is_in_either_position(write_file):
    """The position depends only on the texts, so it gives nothing away and is the same on every
    read.
    """
    path = write_file(
        *({"prompt": f"q{n}", "chosen": f"good {n}", "rejected": f"bad {n}"} for n in range(200))
    )
    found = read_cases(path)
    assert all("good" in case.responses[case.ranks.index(0)] for case in found.cases)
    assert 60 < sum(case.ranks == FIRST for case in found.cases) < 140
    assert found == read_cases(path)
    swapped = write_file(
        *({"prompt": f"q{n}", "chosen": f"bad {n}", "rejected": f"good {n}"} for n in range(200))
    )
    assert [case.responses for case in read_cases(swapped).cases] == [
        case.responses for case in found.cases
    ]
    assert any("depends on their texts only" in line for line in found.column_notes)


def test_chosen_and_rejected_chats(write_file):
    """The last message is the response, and the messages before it are the prompt."""
    before = {"role": "user", "content": "q"}
    chats = {
        name: [before, {"role": "assistant", "content": name}] for name in ("chosen", "rejected")
    }
    case = read_cases(write_file(chats)).cases[0]
    assert (case.task.prompt, sorted(case.responses)) == ("q", ["chosen", "rejected"])


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"instruction": "do", "input": "this"}, "do\n\nthis"),
        ({"instruction": "do", "input": ""}, "do"),
        ({"question": "why"}, "why"),
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}, "u"),
        ({"prompt": [{"role": "user", "content": "u"}]}, "u"),
        ({}, ""),
    ],
)
def test_prompt_columns(write_file, row, prompt):
    """The prompt is a prompt, an instruction with input, or messages; a missing one is reported."""
    found = read_cases(write_file({**row, "answer": "x", "score": 3}))
    assert found.cases[0].task.prompt == prompt
    assert any(
        "nothing" in line or "no column holds the task" in line for line in found.column_notes
    ) is (not row)


def test_columns_can_be_stated(write_file):
    """Any name works, within objects too, and other text columns reach the task."""
    row = {
        "who": 7,
        "ask": "q",
        "text": {"out": "x"},
        "human": {"overall": 4},
        "src": "s",
        "gold": "g",
        "set": "easy",
    }
    stated = dict(
        prompt="ask",
        response="text.out",
        label="human.overall",
        context="src",
        reference="gold",
        group="set",
        id="who",
    )
    found = read_cases(write_file(row), stated)
    case = found.cases[0]
    assert (case.id, case.group, case.label, case.responses) == ("7", "easy", 4, ("x",))
    assert (case.task.prompt, case.task.context, case.task.reference) == ("q", "s", "g")
    assert "label: column 'human.overall'" in found.column_notes


ERRORS = {
    "a column that is not there": (
        {"label": "scores.foo"},
        {},
        "no column 'scores.foo'; there are 'prompt', 'response', 'label'",
    ),
    "a role that is none": (
        {"prmpt": "prompt"},
        {},
        "unknown role 'prmpt=prompt'; did you mean 'prompt'",
    ),
    "half a pair": ({"response_a": "response"}, {}, "response_b"),
    "a kind that is none": ({}, {"kind": "stars"}, "kind='stars'"),
    "a kind that the columns do not have": ({}, {"kind": "ranking"}, "responses"),
}


@pytest.mark.parametrize(("columns", "options", "complaint"), ERRORS.values(), ids=ERRORS)
def test_invalid_columns_are_rejected(write_file, columns, options, complaint):
    """The error lists the columns of the data."""
    with pytest.raises(ConfigError, match=complaint):
        read_cases(write_file(one(3)), columns, **options)


def test_an_unknown_role_is_named_although_no_row_fits(write_file):
    """The role is the mistake, and not the rows."""
    with pytest.raises(ConfigError, match="unknown role 'nope=x'"):
        read_cases(write_file(one(3)), {"nope": "x", "where:label": "none"})


def test_two_columns_that_could_be_the_label_are_an_error(write_file):
    """One may hold human labels and the other a model's."""
    path = write_file({"prompt": "q", "response": "x", "score": 3, "rating": 4})
    with pytest.raises(ConfigError, match="'score', 'rating' may be the label"):
        read_cases(path)
    assert read_cases(path, {"label": "rating"}).cases[0].label == 4


@pytest.mark.parametrize(
    "rows", [[], [{"prompt": "q", "label": 3}], [{"prompt": "q", "response": "x"}]]
)
def test_data_without_responses_or_labels_are_an_error(write_file, rows):
    """An empty file is an error, too."""
    with pytest.raises(ConfigError):
        read_cases(write_file(*rows))


def test_unique_ids_are_used(write_file):
    """Otherwise file and line identify a row; a stated ID column must be unique."""
    path = write_file(one(3, id="a"), one(4, id="a"))
    assert [case.id for case in read_cases(path).cases] == ["t.jsonl:1", "t.jsonl:2"]
    found = read_cases(path, {"id": "id"})
    assert [case.id for case in found.cases] == ["a"]
    assert "is also that of" in found.skipped_rows[0].message


def test_broken_rows_are_count_phrases(tmp_path):
    """A line that is no JSON is left out like a row without a label."""
    path = tmp_path / "t.jsonl"
    path.write_text(f"{json.dumps(one(3))}\nbroken\n{json.dumps({**one(4), 'response': None})}\n")
    found = read_cases(path)
    assert [bad.location.rpartition(":")[2] for bad in found.skipped_rows] == ["2", "3"]


def test_rows_can_be_filtered_and_limited(write_file):
    """A column's value filters and then the limit applies; a missing column selects nothing and is
    reported.
    """
    path = write_file(*(one(n, subset="even" if n % 2 == 0 else "odd") for n in range(2, 10)))
    found = read_cases(path, {"where:subset": "odd", "where:judge": "x"}, limit=2)
    assert [case.label for case in found.cases] == [3, 5]
    assert found.ignored_filters == ("judge",)


def test_recognised_columns_are_reported(write_file):
    """The report names every column and the kind of labels."""
    rows = [
        {"id": n, "subset": "s", "input": "q", "output_1": "x", "output_2": "y", "label": n % 2 + 1}
        for n in range(3)
    ]
    assert list(read_cases(write_file(*rows)).column_notes) == [
        "3 cases of kind pair: which of two responses is better",
        "prompt: column 'input'",
        "response_a: column 'output_1'",
        "response_b: column 'output_2'",
        "label: column 'label'",
        "group: column 'subset'",
        "id: column 'id'",
        "label '1': the first is better (2 rows)",
        "label '2': the second is better (1 rows)",
    ]


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)
NAMES = [
    "id",
    "prompt",
    "messages",
    "response",
    "response_a",
    "response_b",
    "responses",
    "label",
    "ratings",
    "ranking",
    "chosen",
]
TABLES = [
    [{"id": n, "prompt": f"q{n}", "response": f"a{n}", "label": n} for n in range(3)],
    [{"prompt": f"q{n}", "response": f"a{n}", "label": n > 0} for n in range(3)],
    [
        {"prompt": f"q{n}", "response_a": "x", "response_b": "y", "label": "AB"[n % 2]}
        for n in range(3)
    ],
    [{"prompt": f"q{n}", "chosen": "x", "rejected": f"y{n}", "group": "g"} for n in range(3)],
    [{"prompt": f"q{n}", "responses": ["x", "y", f"z{n}"], "ranking": [2, 1, 3]} for n in range(3)],
]


@given(
    st.sampled_from(TABLES),
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([*NAMES, "rejected", "group"]), ANY),
        max_size=2,
    ),
)
def test_any_rows_are_cases_or_left_out(tmp_path_factory, table, changes):
    """No value in a row raises, and every label of a case lies on its scale."""
    path, rows = tmp_path_factory.getbasetemp() / "any.jsonl", [dict(row) for row in table]
    for n, name, value in changes:
        rows[n][name] = value
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        found = read_cases(path)
    except ConfigError:
        assert changes
        return
    assert changes or len(found.cases) == 3
    assert len(found.cases) + len(found.skipped_rows) + found.repeated_rows == len(rows)
    for case in found.cases:
        assert (case.ranks is None) is (case.kind in {"score", "pass"})
        assert (
            case.label is None
            or found.scale is None
            or found.scale[0] <= case.label <= found.scale[1]
        )


@given(st.sampled_from(["yes", "No", "A", "b", "tie", "4.5", "1", "-1", "1e999", "9" * 400]) | ANY)
def test_value_has_one_meaning_or_none(value):
    """It never becomes a number out of range, and only AmbiguousLabel is raised."""
    for reading, allowed in (
        (parse_pass, {0.0, 1.0}),
        (parse_preference, {FIRST, SECOND, TIE}),
        (parse_number, None),
    ):
        try:
            found = reading(value)
        except AmbiguousLabel as error:
            assert len(str(error)) < 500
        else:
            assert allowed is None or found in allowed


# --- recorded outputs ---

BOTH = [pair("A", id="p1"), pair("B", id="p2")]


def llmbar(text):
    return parse_output(text, "llmbar")


def test_outputs_in_a_separate_file(write_file):
    """In swapped order the first output belongs to the second response; rows of other cases are
    left out.
    """
    cases = read_cases(write_file(*BOTH)).cases
    outputs = write_file(
        {"id": "p1", "order": "AB", "completion": "Output (a) is better."},
        {"id": "p1", "order": "BA", "completion": "Output (a) is better."},
        {"id": "p2", "order": "BA", "completion": "I cannot say."},
        {"id": "p9", "order": "AB", "completion": "Output (a) is better."},
        name="outputs.jsonl",
    )
    one, two, three = read_verdicts(outputs, cases, {}, llmbar)
    assert (one.case, one.ranks, one.presentation_order) == ("p1", FIRST, (0, 1))
    assert (two.ranks, two.presentation_order) == (SECOND, (1, 0))
    assert (three.case, three.readable, three.presentation_order) == ("p2", False, (1, 0))
    assert three.reason


@pytest.mark.parametrize(
    ("given_label", "shown"), [(True, (1, 0)), ("false", (0, 1)), (1, (1, 0)), ("0", (0, 1))]
)
def test_column_can_mark_swapped_responses(write_file, given_label, shown):
    """Its values are true and false."""
    cases = read_cases(write_file(*BOTH)).cases
    outputs = write_file(
        {"id": "p1", "swapped": given_label, "output": "Output (a) is better."},
        name="outputs.jsonl",
    )
    assert read_verdicts(outputs, cases, {}, llmbar)[0].presentation_order == shown


def test_outputs_beside_the_labels(write_file):
    """One row may hold both orders, and rows without IDs match cases by position."""
    path = write_file(
        pair("A", said="Output (a) is better.", other="Output (b) is better."),
        pair("B", said="", other=None),
    )
    cases = read_cases(path, {"output": "said", "output_ba": "other"}).cases
    found = read_verdicts(path, cases, {"output": "said", "output_ba": "other"}, llmbar)
    assert [(v.case, v.ranks, v.presentation_order) for v in found[:2]] == [
        ("t.jsonl:1", FIRST, (0, 1)),
        ("t.jsonl:1", FIRST, (1, 0)),
    ]
    assert [v.reason for v in found[2:]] == ["no output was recorded"] * 2


def test_repeats_are_separate(write_file):
    """A column numbers them, they follow each other, or a list holds several."""
    cases = read_cases(write_file(one(3, id="a"), one(5, id="b"))).cases
    outputs = write_file(
        {"id": "a", "output": ["4", "5"]},
        {"id": "a", "output": 2},
        {"id": "b", "output": "x"},
        name="o.jsonl",
    )
    found = read_verdicts(outputs, cases, {}, lambda text: parse_output(text, "bare_number@1-5"))
    assert [(v.case, v.scores, v.repeat) for v in found] == [
        ("a", (0.75,), 0),
        ("a", (1.0,), 1),
        ("a", (0.25,), 2),
        ("b", (), 0),
    ]
    stated = write_file({"id": "a", "output": "4", "sample": 7}, name="o.jsonl")
    assert (
        read_verdicts(stated, cases, {}, lambda text: parse_output(text, "bare_number@1-5"))[
            0
        ].repeat
        == 7
    )


def test_pair_scored_separately(write_file):
    """Two outputs make one verdict, and an unreadable one leaves its score unknown."""
    cases = read_cases(write_file(*BOTH)).cases
    outputs = write_file(
        {"id": "p1", "s1": "7", "s2": 6}, {"id": "p2", "s1": "seven", "s2": 6}, name="o.jsonl"
    )
    found = read_verdicts(
        outputs,
        cases,
        {"score_1": "s1", "score_2": "s2"},
        lambda text: parse_output(text, "bare_number@0-10"),
    )
    assert [v.scores for v in found] == [(0.7, 0.6), (None, 0.6)]
    assert found[1].reason.startswith("response 1: ")


def test_labels_and_rankings(write_file):
    """Labels are read like human labels, and rankings number the responses as they were shown."""
    cases = read_cases(write_file(one("pass", id="a"), one("fail", id="b"))).cases
    outputs = write_file(
        {"id": "a", "output": "It holds.\nyes"}, {"id": "b", "output": "no"}, name="o.jsonl"
    )
    assert [
        v.passed
        for v in read_verdicts(outputs, cases, {}, lambda text: parse_output(text, "label:yes/no"))
    ] == [True, False]
    cases = read_cases(write_file({**RANKED, "ranking": [1, 2, 3], "id": "a"})).cases
    outputs = write_file(
        {"id": "a", "output": "3,1,2"}, {"id": "a", "output": "1,2"}, name="o.jsonl"
    )

    def ranking(text):
        from redraft.validation.recorded_formats import ParsedOutput

        return ParsedOutput(ranking=tuple(map(int, text.split(","))))

    good, bad = read_verdicts(outputs, cases, {}, ranking)
    assert good.ranks == (1, 2, 0)
    assert (bad.readable, "each number once" in bad.reason) == (False, True)


def test_letters_and_rankings_say_which_of_two_is_better(write_file):
    """They refer to the order shown; any other letter and a ranking of three are unreadable."""
    from redraft.validation.recorded_formats import ParsedOutput

    cases = read_cases(write_file(*BOTH)).cases
    outputs = write_file(
        *(
            {"id": "p1", "order": "BA", "output": given_label}
            for given_label in ("A", "Z", "2,1", "1,2,3")
        ),
        name="o.jsonl",
    )

    def letters(text):
        return (
            ParsedOutput(label=text)
            if text.isalpha()
            else ParsedOutput(ranking=tuple(map(int, text.split(","))))
        )

    found = read_verdicts(outputs, cases, {}, letters)
    assert [v.ranks for v in found] == [SECOND, None, FIRST, None]
    assert all(v.reason for v in found if not v.readable)


def test_one_judge_of_several(write_file):
    """The value of a column selects the judge."""
    cases = read_cases(write_file(*BOTH)).cases
    rows = [{"id": "p1", "judge": judge, "output": "Output (a) is better."} for judge in ("x", "y")]
    assert (
        len(read_verdicts(write_file(*rows, name="o.jsonl"), cases, {"where:judge": "y"}, llmbar))
        == 1
    )


BAD_OUTPUTS = {
    "an order that is none": (
        {"id": "p1", "order": "first", "output": "x"},
        {},
        llmbar,
        "must say AB or BA",
    ),
    "rows about nothing": (
        {"id": "p9", "output": "x"},
        {},
        llmbar,
        "no row is about any of the 2 cases",
    ),
    "no outputs": ({"id": "p1", "said": "x"}, {}, llmbar, "output=COLUMN"),
    "one score of two": ({"id": "p1", "s": "7"}, {"score_1": "s"}, llmbar, "score_2"),
    "scores for a pair": (
        {"id": "p1", "output": "7"},
        {},
        lambda text: parse_output(text, "bare_number@0-10"),
        "score_1 and score_2",
    ),
    "a repeat that is no number": (
        {"id": "p1", "output": "x", "repeat": "a"},
        {},
        llmbar,
        "is not a number",
    ),
}


@pytest.mark.parametrize(
    ("row", "columns", "reader", "complaint"), BAD_OUTPUTS.values(), ids=BAD_OUTPUTS
)
def test_incomplete_output_row_is_an_error(write_file, row, columns, reader, complaint):
    """The data and not the judge is at fault."""
    cases = read_cases(write_file(*BOTH)).cases
    with pytest.raises(ConfigError, match=complaint):
        read_verdicts(write_file(row, name="o.jsonl"), cases, columns, reader)


def test_broken_output_file_is_an_error(write_file, tmp_path):
    """Otherwise half of the verdicts would be measured as if they were all."""
    cases = read_cases(write_file(*BOTH)).cases
    path = tmp_path / "o.jsonl"
    path.write_text('{"id": "p1", "output": "Output (a) is better."}\n{"id"')
    with pytest.raises(ConfigError, match="o.jsonl:2: not JSON"):
        read_verdicts(path, cases, {}, llmbar)


def test_conversations_with_speakers_are_messages(write_file):
    """The ShareGPT form is read as in a batch, also in a column `conversations`."""
    chat = [
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Yo"},
        {"from": "human", "value": "Bye"},
    ]
    (case,) = read_cases(
        write_file({"conversations": chat, "generation": "See you", "score": 3})
    ).cases
    assert [m["role"] for m in case.task.messages] == ["user", "assistant", "user"]
    assert case.responses == ("See you",)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0,8", 0.8),
        ("4,5", 4.5),
        ("-0,125", -0.125),
        ("12,75", 12.75),
        ("3,3333333", 3.3333333),
        ("0,", None),
        (",5", None),
    ]
    + [("1,234", None), ("12,345", None), ("1.234,5", None), ("1,2,3", None), ("4,5/5", None)],
)
def test_decimal_comma(text, number):
    """A comma before three digits may be that of a thousand, so it is no number."""
    if number is None:
        with pytest.raises(AmbiguousLabel, match="is not a number"):
            parse_number(text)
    else:
        assert parse_number(text) == number


def test_labels_of_a_semicolon_file(tmp_path):
    """As Excel writes it where a comma is the decimal sign."""
    (tmp_path / "t.csv").write_bytes(
        "prompt;response;score\r\nFrage;ä;0,8\r\nFrage;ö;0,25\r\n".encode("cp1252")
    )
    labelled = read_cases(tmp_path / "t.csv")
    assert [(case.responses, case.label) for case in labelled.cases] == [
        (("ä",), 0.8),
        (("ö",), 0.25),
    ]
