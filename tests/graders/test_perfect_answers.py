"""A perfect answer scores 1 by every name: those of other libraries, and our own graders and
requirements.
"""

import json

import pytest

import redraft
from redraft import Task
from redraft.errors import ConfigError
from redraft.graders import as_grader, entries
from redraft.graders.aliases import ALIASES
from redraft.graders.registry import resolve_spec
from redraft.protocols import Comparer, Reply

pytestmark = pytest.mark.usefixtures("sandbox")

PROSE = "Plants turn light into energy. They take in water and carbon dioxide, and they give off oxygen to the air around them."
CODE = 'import sys\n\n\ndef double(n: int) -> int:\n    """Return twice n."""\n    return 2 * n\n\n\nprint(double(2), file=sys.stderr)\n'
CALLS = (
    '[{"name": "search", "arguments": {"q": "plants"}}, {"name": "open", "arguments": {"id": 1}}]'
)
STEPS = [
    {"role": "user", "content": "What do plants do?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"q": "plants"}'}},
        {"id": "2", "type": "function", "function": {"name": "open", "arguments": '{"id": 1}'}},
    ]},
    {"role": "tool", "tool_call_id": "1", "content": "page 1"},
    {"role": "tool", "tool_call_id": "2", "content": PROSE},
]  # fmt: skip
TOOLS = [
    {"function": {"name": name, "description": name, "parameters": {"type": "object"}}}
    for name in ("search", "open")
]


def prose(response=PROSE, **fields):
    return Task(
        "What do plants do?",
        response,
        **{"reference": PROSE, "context": PROSE, "tools": TOOLS, **fields},
    )


def code(**fields):
    task = "Write a function `double` in Python."
    return Task(
        task,
        f"```python\n{CODE}```",
        reference=CODE,
        tests="assert double(2) == 4\nassert double(-1) == -2",
        **fields,
    )


def conversation():
    return Task(
        [
            *STEPS[:1],
            {"role": "assistant", "content": "They grow."},
            {"role": "user", "content": "And how?"},
        ],
        PROSE,
    )


def trajectory():
    return Task(STEPS, PROSE, reference=CALLS, tools=TOOLS)


SAMPLES = {
    **dict.fromkeys(
        ["code_similarity", "complexity", "lint", "security", "syntax", "tests", "types"], code
    ),
    **dict.fromkeys(["tool_call_order", "tool_call_precision", "tool_call_recall"], trajectory),
    "tool_calls": lambda: Task("Search.", CALLS, reference=CALLS),
    "citations": lambda: prose(
        'It says that "plants turn light into energy. They take in water". [1]'
    ),
    "json_fields": lambda: prose(
        '{"items": [1, 2], "name": "Ann"}', reference='{"name": "Ann", "items": [1, 2]}'
    ),
    **dict.fromkeys(
        ["math", "numeric", "number_accuracy"], lambda: prose("The answer is 42.", reference="42")
    ),
    "reasoning_format": lambda: prose("<think>2 + 2</think><answer>4</answer>"),
    "length": lambda: prose("word " * 100),
    "readability": lambda: prose("The cat sat on the mat. It was a warm day."),
    **dict.fromkeys(
        ["context_memory", "instruction_drift", "misunderstanding_repair"], conversation
    ),
    **dict.fromkeys(
        ["tool_selection", "tool_arguments", "tool_call_success", "trajectory_efficiency"],
        trajectory,
    ),
}
REQUIREMENTS = {
    "words:80-200": "word " * 100,
    "sentences:3-5": "One. Two. Three.",
    "sentences_and_numbers:<10": "One is 1. Two is 2.",
    "paragraphs:4": "a\n\nb\n\nc\n\nd",
    "characters:<280": PROSE,
    "reading_grade:-8": "The cat sat on the mat. It was fat.",
    "contains:war>=8": "war " * 8,
    "contains_word:peace=2-4": "peace and peace",
    "contains_none:very,in conclusion": PROSE,
    "starts_with:Dear Ms. Lee": "Dear Ms. Lee, hello",
    "ends_with:Yours, Ann": "Hello.\nYours, Ann",
    "one_of:Yes.|No.|Maybe.": "Yes.",
    "letters:e<10": "A cat",
    "no_duplicate_sentences": PROSE,
    r"regex:\d{4}-\d{2}-\d{2}": "2024-05-01",
    "json": "{}",
    'json_schema:{"type":"object"}': "{}",
    "script:cyrillic": "Привет",
    "language:ko": "안녕하세요 세계",
    "bullets:3": "- a\n- b\n- c",
    "headings:2-": "# A\n\ntext\n\n# B\n\ntext",
    "sections:Introduction,Method,Results": "# Introduction\na\n# Method\nb\n# Results\nc",
    "numbered_sections:Section>=3": "Section 1\na\nSection 2\nb\nSection 3\nc",
    "parts:2:******": "a\n******\nb",
    "nth_paragraph_starts:2:However": "a\n\nHowever, b",
    "lowercase": "abc",
    "uppercase": "ABC",
    "capital_words:<10": "NASA",
    "no_commas": "abc",
    "quoted": '"abc"',
    "placeholders:3-": "[a] [b] [c]",
    "highlights:2-": "*a* *b*",
    "title": "<<A>>\nb",
    "postscript:P.S.": "Bye\nP.S. more",
}
# three ask a server of their own, one is a file on disk, and what most drafts say is not judged
LEFT_OUT = {"embedding", "moderation", "reward", "trained", "consensus"}


class GenerousJudge:
    """A judge that gives full marks in any form that it is asked for, and prefers the answer
    without the word BAD.
    """

    name = identity = "generous"

    async def complete(self, request):
        prompt = request.messages[-1]["content"]
        return Reply(json.dumps(self.value(request.schema, prompt)))

    def value(self, schema, prompt, key=""):
        if key == "winner":
            return "second" if prompt.index("BAD") < prompt.index("</first-") else "first"
        if key == "ranking":
            return [2, 1] if prompt.index("BAD") < prompt.index("</answer-1-") else [1, 2]
        match schema:
            case {"enum": choices}:
                return "yes" if "yes" in choices else choices[-1]
            case {"type": "object"}:
                return {
                    name: self.value(inner, prompt, name)
                    for name, inner in schema["properties"].items()
                }
            case {"type": "array", "minItems": 1}:
                return [self.value(schema["items"], prompt)]
            case {"type": "array"}:
                return []
            case {"type": "boolean"}:
                return True
            case {"type": "integer" | "number"}:
                return schema["maximum"]
        return "" if key == "change" else "because"


async def score_of(spec, name):
    """Return the score of the sample for the grader of that name; of a comparer, 1 if it puts the
    sample before a bad one.
    """
    grader = as_grader(spec)
    task = Task("q", REQUIREMENTS[name]) if name in REQUIREMENTS else SAMPLES.get(name, prose)()
    judge = GenerousJudge()
    if isinstance(grader, Comparer):
        both = Task(
            task.messages,
            responses=("BAD", task.response),
            reference=task.reference,
            context=task.context,
        )
        result = await redraft.refine(both, False, grader, judge, max_iterations=0, editor=False)
        return float(result.value == task.response)
    report = await redraft.grade(task, grader, judge)
    assert report.score == 1 or report.score is None, (
        report.feedback[0].reason,
        report.feedback[0].actions,
    )
    return report.score


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("alias", ALIASES, ids=lambda alias: f"{alias.origin}-{alias.name}")
async def test_a_perfect_answer_scores_1_by_the_names_of_other_libraries(alias):
    """In the spelling of the library; where there is no such grader, by the nearest one."""
    if not alias.spec:
        with pytest.raises(ConfigError, match="is not here"):
            as_grader(alias.name)
    name = resolve_spec(alias.spec or alias.nearest)[0].name
    assert await score_of(alias.name if alias.spec else alias.nearest, name) == 1


OWN = {e.name: e for e in entries() if e.mode != "requirement" and e.name not in LEFT_OUT}


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize(
    "spec", sorted({spec for e in OWN.values() for spec in (e.name, e.example)} - {"length"})
)
async def test_a_perfect_answer_scores_1_by_our_own_graders(spec):
    """By the name alone, and as the catalog's example writes it."""
    assert await score_of(spec, resolve_spec(spec)[0].name) == 1


def test_every_requirement_has_a_sample():
    """The table has the example of each kind."""
    assert list(REQUIREMENTS) == [e.example for e in entries() if e.mode == "requirement"]


@pytest.mark.parametrize("spec", REQUIREMENTS)
async def test_a_perfect_answer_scores_1_by_our_own_requirements(spec):
    """As the catalog's example writes them."""
    assert await score_of(spec, spec) == 1
