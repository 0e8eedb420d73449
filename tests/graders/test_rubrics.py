"""Rubrics as data, the rubric gallery and templates: what is accepted, what the judge is shown,
what is rejected.
"""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from redraft import Candidate, Judge, ScriptedModel, Task, refine
from redraft.errors import ConfigError
from redraft.graders import Jury, Pairwise, Ranker, Rubric, as_grader, find_entry
from redraft.graders.catalog import JUDGES, gallery_entries
from redraft.graders.fingerprint import grader_fingerprint
from redraft.graders.judging.prompt import enclose
from redraft.graders.rubric import gallery_rubric
from redraft.graders.template import FIELDS, Template

GALLERY = sorted(e.name for e in gallery_entries())
NAMES = """action_safety brainstorming chat clarity classification closed_qa code_quality completeness conciseness consistency
context_memory correctness factuality focus goal_completion hallucination harmlessness helpfulness honesty instruction_drift
instruction_following math_reasoning misunderstanding_repair observation_use open_qa plan_quality reasoning relevance rewriting
role_play safety summary_coverage summary_faithfulness tone tool_arguments tool_call_success tool_selection trajectory_efficiency
translation writing""".split()
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
}
DIALOGUE = [
    {"role": "user", "content": "hello"},
    CALL,
    {"role": "tool", "content": "9"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "q"},
]

TOML = """
name = "letters"
about = "whether a letter is right"
needs = ["reference"]
uses = ["context"]

[[criteria]]
name = "facts"
description = "Dates and sums are right."
weight = 2
levels = { 0 = "All wrong.", 3 = "One is wrong.", 5 = "All right." }

[[criteria]]
name = "tone"
description = "Friendly."
levels = ["rude", "cold", "stiff", "civil", "warm", "just right"]

[[examples]]
task = "Tell Ann the sum."
answer = "You owe 12."
scores = { facts = 0, tone = 2 }
reason = "It is 21."

[[examples]]
answer = "You owe 21, dear Ann."
score = 5
"""
YAML = """
name: letters
about: whether a letter is right
needs: [reference]
uses: [context]
criteria:
  facts:
    description: Dates and sums are right.
    weight: 2
    levels: {0: All wrong., 3: One is wrong., 5: All right.}
  tone:
    description: Friendly.
    levels: [rude, cold, stiff, civil, warm, just right]
examples:
  - {task: Tell Ann the sum., answer: You owe 12., scores: {facts: 0, tone: 2}, reason: It is 21.}
  - {answer: "You owe 21, dear Ann.", score: 5}
"""


@pytest.fixture
def letters(tmp_path):
    (tmp_path / "letters.toml").write_text(TOML)
    return Rubric.load(tmp_path / "letters.toml")


def verdict(judge, score=4, change="more", **others):
    """Return a judge's answer that gives every criterion the same score."""
    rows = {
        c.name: {"evidence": "e", "change": change, "score": others.get(c.name, score)}
        for c in judge.criteria
    }
    return json.dumps({"reason": "It is so.", "criteria": rows, "done": False})


def prompt(judge, task=None, text="THE ANSWER"):
    nonce = "0a1b2c3d"
    texts = judge.input_texts(task or Task("THE TASK", reference="REF"), Candidate(0, text))
    return judge.prompt({name: enclose(name, shown, nonce) for name, shown in texts.items()}, nonce)


# ---- rubrics


def test_toml_yaml_and_json_are_equivalent(tmp_path, letters):
    """The rubric is the same in each format, also when it is written out again."""
    (tmp_path / "letters.yaml").write_text(YAML)
    assert Rubric.load(tmp_path / "letters.yaml") == letters
    (tmp_path / "l.json").write_text(json.dumps(letters.to_data()))
    assert Rubric.load(str(tmp_path / "l.json")) == letters
    assert letters.criteria[0].levels == (
        (0, "All wrong."),
        (3, "One is wrong."),
        (5, "All right."),
    )
    assert letters.task_fields == ("context", "reference")


def test_judge_sees_levels_and_examples(letters):
    """Levels appear as described; the text of examples appears as data with the scores outside."""
    shown = prompt(Judge(letters))
    assert (
        "- facts: Dates and sums are right.\n  0 = All wrong.\n  3 = One is wrong.\n  5 = All right."
        in shown
    )
    assert (
        "<example-1-0a1b2c3d>\nTask: Tell Ann the sum.\nAnswer: You owe 12.\n</example-1-0a1b2c3d>"
        in shown
    )
    assert "Scores: facts 0, tone 2. It is 21." in shown
    assert "Scores: overall 5." in shown
    assert shown.index("data to be judged") < shown.index("<example-1") < shown.index("<answer-")
    assert "whether a letter" not in shown


def test_judge_sees_only_the_inputs_of_its_rubric(letters):
    """A rubric that does not list the tests hides them; one without a list shows everything."""
    task = Task("q", context="CONTEXT", reference="REFERENCE", tests="TESTS")
    assert Judge(letters).input_texts(task, Candidate(0, "a")).keys() == {
        "task",
        "context",
        "reference",
        "answer",
    }
    assert Judge().input_texts(task, Candidate(0, "a")).keys() == {
        "task",
        "context",
        "reference",
        "tests",
        "answer",
    }
    none = Rubric.from_data({"criteria": {"a": "b"}, "uses": []}, "r", "r")
    assert Judge(none).input_texts(task, Candidate(0, "a")).keys() == {"task", "answer"}


async def test_task_without_a_required_field_is_rejected(letters):
    """The error names the missing field, and no call is made."""
    model = ScriptedModel([])
    with pytest.raises(ConfigError, match="'post' needs a task with reference"):
        await Judge(letters, "post").grade(Task("q"), Candidate(0, "an answer"), model)
    with pytest.raises(ConfigError, match="needs a task with reference"):
        await refine(Task("q"), model, Jury([Judge(letters)]))
    assert model.calls == 0


BAD = [
    ('{"questions": ["Is it short?"]}', "questions make a checklist"),
    (
        '{"criteria": {"a": "b"}, "levels": []}',
        "unknown key 'levels'; there are name, criteria, about, needs",
    ),
    (
        '{"criteria": [{"name": "a", "description": "b", "levles": []}]}',
        "'a': unknown key 'levles'; did you mean 'levels'? there are name, description, weight",
    ),
    ('{"criteria": [{"name": "", "description": "b"}]}', "needs `name` and `description`"),
    ('{"criteria": [{"description": "b"}]}', "needs `name` and `description`"),
    ('{"criteria": {"a": 3}}', "needs `name` and `description`"),
    (
        '{"criteria": [{"name": "a", "description": "b"}, {"name": "a", "description": "c"}]}',
        "different names",
    ),
    ('{"criteria": {"a": {"description": "b", "weight": true}}}', "weight of 'a'"),
    (
        '{"criteria": {"a": {"description": "b", "levels": {"6": "x"}}}}',
        "level is a whole number from 0 to 5, got '6'",
    ),
    (
        '{"criteria": {"a": {"description": "b", "levels": {"3": 4}}}}',
        "'a': levels: 3 must be text",
    ),
    ('{"criteria": {"a": {"description": "b", "levels": {"3": ""}}}}', "each level has one text"),
    ('{"criteria": {"a": {"description": "b", "levels": ["x", "y"]}}}', "a list of 6"),
    (
        '{"criteria": {"a": "b"}, "needs": ["referense"]}',
        "needs must be a list out of context, reference, tests",
    ),
    ('{"criteria": {"a": "b"}, "uses": "context"}', "uses must be a list"),
    ('{"criteria": {"a": "b"}, "about": 3}', "about must be text"),
    ('{"criteria": {"a": "b"}, "examples": {}}', "examples must be a list"),
    ('{"criteria": {"a": "b"}, "examples": ["x"]}', "an example is a table"),
    (
        '{"criteria": {"a": "b"}, "examples": [{"answer": "x"}]}',
        "either `score` or a table `scores`",
    ),
    ('{"criteria": {"a": "b"}, "examples": [{"score": 3}]}', "needs `answer`"),
    (
        '{"criteria": {"a": "b"}, "examples": [{"answer": "x", "score": 3, "scores": {"a": 3}}]}',
        "either",
    ),
    (
        '{"criteria": {"a": "b"}, "examples": [{"answer": "x", "score": 3.5}]}',
        "a score is a whole number from 0 to 5, got 3.5",
    ),
    ('{"criteria": {"a": "b"}, "examples": [{"answer": "x", "score": true}]}', "got True"),
    (
        '{"criteria": {"a": "b"}, "examples": [{"answer": "x", "scores": {"c": 3}}]}',
        "scores 'c'; there are a, overall",
    ),
    (
        '{"criteria": {"a": "b"}, "examples": [{"answer": "x", "score": 3, "note": ""}]}',
        "unknown key 'note'",
    ),
    ('{"criteria": {"a": "b"}, "template": "{query}"}', "must show the answer"),
    ('{"criteria": {"a": "b"}, "template": ["{response}"]}', "template must be text"),
    ("[" * 100_000, "bad.json"),
]


@pytest.mark.parametrize(("text", "says"), BAD)
def test_invalid_rubric_names_file_and_field(tmp_path, text, says):
    """Nothing is guessed or ignored."""
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        Judge(tmp_path / "bad.json")
    assert "bad.json" in str(caught.value)


words = (
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(str.strip).map(str.strip)
)


@given(
    names=st.lists(words, min_size=1, max_size=4, unique=True),
    texts=st.lists(words, min_size=1, max_size=6),
    levels=st.sets(st.integers(0, 5)),
    weight=st.floats(0.1, 9),
)
def test_rubric_round_trips(names, texts, levels, weight):
    """`to_data` and `of` are inverse to each other, through JSON."""
    row = {
        "description": texts[0],
        "weight": weight,
        "levels": {str(n): texts[n % len(texts)] for n in levels},
    }
    data = {
        "name": "r",
        "criteria": [{"name": n, **row} for n in names],
        "examples": [{"answer": texts[-1], "score": 3}],
    }
    rubric = Rubric.from_data(data, "r", "here")
    assert Rubric.from_data(json.loads(json.dumps(rubric.to_data())), "r", "here") == rubric


def test_fingerprint_depends_on_the_prompt(letters, monkeypatch):
    """Levels, examples, names of criteria and prompt text count; the rubric's name and subject do
    not.
    """

    def fingerprint_of(**changes):
        return grader_fingerprint(
            Judge(Rubric.from_data({**letters.to_data(), **changes}, "r", "r")), str
        )

    first = fingerprint_of()
    assert fingerprint_of(about="something else", name="other") == first
    assert fingerprint_of(examples=[]) != first
    assert fingerprint_of(uses=["tests"]) != first
    renamed = [{**letters.to_data()["criteria"][0], "name": "data"}]
    assert fingerprint_of(criteria=renamed, examples=[]) != fingerprint_of(
        criteria=[{**renamed[0], "name": "sums"}], examples=[]
    )
    monkeypatch.setattr(Judge, "prompt_texts", (*Judge.prompt_texts, "another sentence"))
    assert fingerprint_of() != first


async def test_only_criteria_below_five_say_what_to_change(letters):
    """Advice on a met criterion is dropped, and an unmet criterion without advice is itself the
    advice.
    """
    task = Task("q", reference="r")
    judge = Judge(letters)
    both = await judge.grade(
        task, Candidate(0, "an answer"), client(verdict(judge, 3, "None.", tone=5))
    )
    assert both.actions == ("Make this hold: Dates and sums are right.",)
    assert [c.action for c in both.criteria] == ["Make this hold: Dates and sums are right.", ""]
    assert (
        await judge.grade(task, Candidate(0, "an answer"), client(verdict(judge, 5, "add a bow")))
    ).actions == ()


def client(*answers):
    """Return a grader's client of a scripted model."""
    from redraft.session.perform import ModelClient, StepClient

    model = ScriptedModel(list(answers))
    client = StepClient(ModelClient(model.name, model.complete))
    client.model = model
    return client


@pytest.mark.parametrize(
    "text", ["", "  \n", "Thought process:", ":", "Let's solve this problem step by step."]
)
async def test_text_that_is_no_answer_scores_zero_without_a_call(text):
    """Such texts are known to fool judges (arXiv:2507.08794)."""
    asked = client()
    feedback = await Judge().grade(Task("What is 2 + 2?"), Candidate(0, text), asked)
    assert (feedback.score, feedback.actions, feedback.done) == (
        0.0,
        ("Give an actual answer.",),
        False,
    )
    assert asked.model.calls == 0


def test_rubric_of_another_type_is_rejected():
    """The error names the allowed types."""
    with pytest.raises(
        ConfigError,
        match="a rubric is a Rubric, a name in the gallery, a file name, or a mapping .* got 3",
    ):
        Judge(3)


# ---- the gallery


def test_gallery_is_complete():
    """Each rubric has one file and one name."""
    assert GALLERY == NAMES


@each_row("name", GALLERY)
def test_every_rubric_scores_compares_and_ranks(name):
    """The prefix chooses the mode; the rubric is the same."""
    rubric = gallery_rubric(name)
    for spec, kind in (
        (name, Judge),
        (f"judge:{name}", Judge),
        (f"pairwise:{name}", Pairwise),
        (f"ranker:{name}", Ranker),
    ):
        grader = as_grader(spec)
        assert (type(grader), grader.name, grader.rubric) == (kind, spec, rubric)


def test_a_ranker_takes_a_file(tmp_path, letters):
    """As a judge does; a name that is neither a rubric nor a file is an error with the nearest
    names.
    """
    assert as_grader(f"ranker:{tmp_path / 'letters.toml'}").rubric == letters
    for spec in ("ranker:helpfulnes", "pairwise:helpfulnes", "judge:helpfulnes"):
        with pytest.raises(
            ConfigError, match="unknown rubric 'helpfulnes'; did you mean 'helpfulness'"
        ):
            as_grader(spec)
    with pytest.raises(ConfigError, match=r"missing\.toml.*cannot be read"):
        as_grader(f"pairwise:{tmp_path / 'missing.toml'}")
    with pytest.raises(ConfigError, match="use the grader 'clarity'"):
        as_grader("checklist:clarity")


@each_row("name", GALLERY)
def test_gallery_rubric_suits_a_small_model(name):
    """It has few criteria, describes both ends and the middle, and its examples use valid
    scores.
    """
    content, entry = gallery_rubric(name), find_entry(name)
    assert 1 <= len(content.criteria) <= 4
    assert 1 <= len(content.examples) <= 2
    for criterion in content.criteria:
        levels = dict(criterion.levels)
        assert {0, 3, 5} <= levels.keys()
        assert len(set(levels.values())) == len(levels)
        assert len(criterion.description) < 300
    assert all(example.reason and example.task for example in content.examples)
    assert entry.about == content.about
    assert 10 < len(entry.about) < 130
    assert entry.task_fields == ("messages", *content.task_fields)
    assert (entry.mode, entry.calls_model, entry.example) == ("pointwise", True, name)
    assert len(prompt(entry.make(""))) < 8_000


@each_row("name", GALLERY)
async def test_every_gallery_judge_grades(name):
    """Each grades under its own name by its own criteria."""
    judge = find_entry(name).make("")
    task = Task(DIALOGUE, "an answer", reference="r")
    result = await refine(task, ScriptedModel([verdict(judge, 4)]), judge, max_iterations=0)
    assert result.judge_score == pytest.approx(0.8)
    assert result.trace.feedback[0][0].grader == name


@pytest.mark.parametrize("name", ["helpfulness", "correctness"])
async def test_gallery_judges_with_a_real_server(name, plain_server):
    """llama.cpp accepts the schema, and its answer is readable."""
    result = await refine(
        Task("What is the?", "the answer is good", reference="good"),
        plain_server,
        name,
        max_iterations=0,
    )
    assert 0 <= result.judge_score <= 1
    assert len(result.trace.feedback[0][0].criteria) == len(gallery_rubric(name).criteria)


def test_named_judges_take_a_file(tmp_path, letters):
    """`judge:FILE` is the judge with that rubric, and a name that takes no argument says so."""
    file = tmp_path / "letters.toml"
    judge = find_entry("judge").make(str(file))
    assert (judge.rubric, judge.name) == (letters, f"judge:{file}")
    with pytest.raises(ConfigError, match="takes nothing"):
        find_entry("tone").make("x")
    assert {e.name for e in JUDGES} >= {"judge", "checklist", "ranker", "pairwise", "jury"}


# ---- templates


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{query}: {response}", "T: A"),
        (
            '{response} {"a": {"b": 1}} { "score": 1 } {x: 1} {0} {} { context }',
            'A {"a": {"b": 1}} { "score": 1 } {x: 1} {0} {} { context }',
        ),
        ('{response} {answer: "x"}', 'A {answer: "x"}'),
        ("{response} {{score}}", "A {score}"),
        ("{response} {{response}}", "A {response}"),
        (
            r"{response} \frac{a}{b} x^{n} x_{i} ${HOME} \text{so}",
            r"A \frac{a}{b} x^{n} x_{i} ${HOME} \text{so}",
        ),
        ("{response} ${{ secrets.X }}", "A ${{ secrets.X }}"),
        ('{response} {{"score": {{"x": 1}}}}', 'A {"score": {"x": 1}}'),
        ('{{"a": "{response}"}}', '{"a": "A"}'),
        ('{{\n  "a": 1\n}} {response}', '{\n  "a": 1\n} A'),
        ('{response} {{"a": {1}}}', 'A {{"a": {1}}}'),
        ('{response} {{"a": 1} }', 'A {{"a": 1} }'),
        ("{response} { unbalanced }} {", "A { unbalanced }} {"),
        ("{response}{context}", "A(none)"),
    ],
)
def test_braces_in_templates(template, shown):
    """Fields are filled; JSON, LaTeX and code stay; doubled braces become single where they can
    only be an escape.
    """
    assert Template(template).fill({"task": "T", "answer": "A"}) == shown


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{response} {response_a}", "must show one answer"),
        ("{query} {response_a}", "must show one answer"),
        ("{response} {responses}", "must show one answer"),
        ("{response} {response.__class__.__init__}", "a field is a bare name, {response}"),
        ("{response} {context[0]}", "a field is a bare name"),
        ("{response} {query!r}", "a field is a bare name"),
        ("{response} {query:>99999999}", "a field is a bare name"),
        ("{query}", "must show the answer"),
        ("{{response}}", "must show the answer"),
    ],
)
def test_unknown_field_is_rejected(template, says):
    """The error names the fields and how to write the bare word."""
    with pytest.raises(ConfigError, match=re.escape(says)):
        Template(template)


json_values = st.recursive(
    st.integers() | st.booleans() | st.text(st.sampled_from('ab: ,\\"\n'), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab c", max_size=4), inner, max_size=3)
    ),
)
plain = st.text(st.characters(exclude_characters="{}"), max_size=30)


@given(
    before=plain, value=json_values, between=plain, after=plain, indent=st.sampled_from([None, 2])
)
def test_filling_alters_no_other_text(before, value, between, after, indent):
    """The text around a field is unchanged, JSON included."""
    content = json.dumps(value, indent=indent)
    filled = Template(f"{before} {content}{between}{{response}}{after}").fill({"answer": "ANSWER"})
    assert filled == f"{before} {content}{between}ANSWER{after}"


pieces = st.lists(
    st.sampled_from(
        ["{", "}", "{{", "}}", "response", "x", "{response}", "{y}", " ", '"', "\\", ":"]
    )
).map("".join)


@given(
    st.dictionaries(st.sampled_from(sorted(set(FIELDS.values()) - {"task"})), pieces, min_size=1)
)
def test_filled_values_are_not_expanded_again(texts):
    """A value may hold braces and names of fields, known or unknown."""
    names = sorted({"response", *texts} & FIELDS.keys() - {"answer", "answers", "messages"})
    filled = Template("|".join(f"{{{name}}}" for name in names)).fill(texts)
    assert filled == "|".join(texts.get(FIELDS[name], "(none)") for name in names)


@given(pieces)
def test_any_template_is_accepted_or_rejected(text):
    """No template crashes, and one that is accepted shows the answer."""
    try:
        filled = Template(text + "{response}").fill({"answer": "A"})
    except ConfigError:
        assert {*"{}"} & {*text}
    else:
        assert filled.endswith("A")


def test_template_from_a_file(tmp_path):
    """A template is a file of its own or a key of a rubric, whose criteria follow unless the
    template places them.
    """
    (tmp_path / "t.txt").write_text("MINE {query} / {response}")
    judge = Judge(template=tmp_path / "t.txt")
    assert "MINE <task-0a1b2c3d>\nTHE TASK" in prompt(judge)
    assert [c.name for c in judge.criteria] == ["overall"]
    (tmp_path / "r.toml").write_text(
        'template = "SEE {response}"\n[criteria]\ntruth = "It is true."\n'
    )
    assert prompt(Judge(tmp_path / "r.toml")).index("SEE") < prompt(
        Judge(tmp_path / "r.toml")
    ).index("- truth: It is true.")
    placed = prompt(Judge({"truth": "It is true."}, template="{criteria} for {response}"))
    assert placed.count("- truth: It is true.") == 1
    assert placed.index("- truth") < placed.index("<answer-")
    with pytest.raises(ConfigError, match="nowhere.txt"):
        Judge(template=tmp_path / "nowhere.txt")


def test_template_shows_the_whole_conversation():
    """A part with a field appears there, and all others appear with the task."""
    task = Task([{"role": "system", "content": "SYS"}, {"role": "user", "content": "ONE"}, {"role": "assistant", "content": "TWO"}, {"role": "user", "content": "THREE"}])  # fmt: skip
    whole = prompt(Judge(template="{query} :: {response}"), task)
    assert (
        whole.index("SYS")
        < whole.index("ONE")
        < whole.index("TWO")
        < whole.index("THREE")
        < whole.index("::")
    )
    with_history = prompt(Judge(template="{query} :: {system} :: {history} :: {response}"), task)
    assert with_history.index("THREE") < with_history.index("SYS") < with_history.index("ONE")
    assert with_history.count("SYS") == 1


@pytest.mark.parametrize(
    "settings", [{}, {"criteria_mode": "separate"}, {"scoring": "expectation"}, {"name": "mine"}]
)
def test_a_judge_of_your_own_settings_takes_a_rubric_of_the_gallery_by_name(settings):
    """What a name such as "clarity" cannot say, the arguments of the judge do."""
    judge = Judge("clarity", **settings)
    assert judge.rubric == gallery_rubric("clarity")
    assert all(getattr(judge, name) == value for name, value in settings.items())


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    "make",
    [Judge, lambda name: as_grader(f"judge:{name}"), lambda name: as_grader(f"ranker:{name}")],
)
def test_a_mistyped_name_of_a_rubric_names_the_one_that_was_meant(make):
    """It is not taken for a file."""
    with pytest.raises(ConfigError, match="unknown rubric 'clartiy'; did you mean 'clarity'"):
        make("clartiy")
