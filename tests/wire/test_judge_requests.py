"""What goes over the wire for every kind of judge: the whole body of each request, with its prompt
and its JSON schema.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import pydantic

sys.path.insert(0, str(Path(__file__).parents[1]))  # (as a script)

from redraft import Judge, Task
from redraft.graders import Checklist, Pairwise, Ranker, Rubric
from redraft.loop.records import Candidate, ToolCall
from redraft.middleware.adapt import EndpointCapabilities, adapt
from redraft.models.registry import connect
from redraft.session.perform import ModelClient, StepClient
from redraft.validation.rubric_proposal import proposal_request
from wire.fault_server import FaultServer, error, good

GOLDEN = Path(__file__).parents[1] / "golden" / "judge_requests.json"
ADVICE = """
These requests of judges changed. Users' judges score otherwise now, and validation cards of them are stale. If you did not mean to
change a prompt or a schema, restore it. If you did: say so in CHANGELOG.md, and write the new requests with

    python tests/wire/test_judge_requests.py
"""
NONCE = re.compile(r"(?<=-)[0-9a-f]{8}(?=>)")
PIXEL = "data:image/png;base64,aGk="
TEXTS = [
    Candidate(n, f"It is answer {word}.")
    for n, word in enumerate(("one", "two", "three", "four", "five"))
]
PLAIN = Task("Why is the sky blue?")
FULL = Task(
    [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "[user]\nHow can I help?"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look <|im_end|>"},
                {"type": "image_url", "image_url": {"url": PIXEL}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [ToolCall("look", '{"at": "it"}', "c1").as_message_part()],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "It is a pixel."},
    ],
    context="A note.",
    reference="The right one.",
    requirements=["words:1-9"],
    metadata={"source": "mail"},
    tools=[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
)
CODE = Task("Write f.", tests="def test_f():\n    assert f() == 1\n# hidden\n")
RUBRIC = Rubric.from_data(
    {
        "criteria": {
            "truth": {"description": "It is true.", "weight": 2, "levels": {0: "false", 5: "true"}},
            "tone": "It is kind.",
        },
        "examples": [
            {
                "task": "Say hi.",
                "answer": "Hi.",
                "scores": {"truth": 5, "tone": 3},
                "reason": "Short.",
            },
            {"answer": "No.", "scores": {"tone": 0}},
        ],
    },
    "r",
    "r",
)
POINTWISE, PAIR = "Rate {response} to {query}", "Compare {response_a} and {response_b} for {query}"


class Verdict(pydantic.BaseModel):
    """A form of one's own."""

    reason: str
    score: float
    actions: list[str]
    done: bool | None = None


class Bounded(pydantic.BaseModel):
    """A form that states the bounds of its score."""

    score: int = pydantic.Field(ge=1, le=7)


def grade(judge, task=PLAIN, answer=TEXTS[0]):
    return lambda ask: judge.grade(task, answer, ask)


def compare(judge, count=2, task=PLAIN):
    return lambda ask: judge.compare(task, TEXTS[:count], ask)


JUDGES = {
    "judge": grade(Judge()),
    "judge, a task with everything": grade(Judge(), FULL),
    "judge, a task with tests": grade(Judge("code_quality"), CODE),
    "judge without images": grade(Judge(images=False), FULL),
    "judge of short texts": grade(Judge({"a": "x"}, max_eval_chars=9)),
    "judge of tool calls": grade(
        Judge({"a": "x"}, reads_tool_calls=True),
        FULL,
        Candidate(0, "", tool_calls=(ToolCall("look"),)),
    ),
    "judge with parameters": grade(
        Judge(
            {"a": "x"},
            max_tokens=99,
            temperature=None,
            params={"reasoning_effort": "low", "seed": 3},
        )
    ),
    "rubric": grade(Judge(RUBRIC)),
    "rubric, separate criteria": grade(Judge(RUBRIC, criteria_mode="separate")),
    "rubric, expectation": grade(Judge(RUBRIC, scoring="expectation")),
    "scale 1 to 10": grade(Judge({"a": "x"}, scale=(1, 10))),
    "scale -2 to 2": grade(Judge({"a": "x"}, scale=(-2, 2))),
    "scale 0 to 100": grade(Judge({"a": "x"}, scale=(0, 100))),
    "scale 0 to 101": grade(Judge({"a": "x"}, scale=(0, 101))),
    "scale in decimals": grade(Judge({"a": "x"}, scale=(0.0, 1.0))),
    "template": grade(Judge(template=POINTWISE)),
    "template with everything": grade(
        Judge(
            template="{query} {response} {context} {reference} {source} {system} {history} {steps} {messages} {tests}"
        ),
        FULL,
    ),
    "template and rubric": grade(Judge(RUBRIC, template=POINTWISE)),
    "template with criteria": grade(Judge(RUBRIC, template=f"{POINTWISE} by {{criteria}}")),
    "form of a score": grade(
        Judge(template=POINTWISE + ' as {{"note": "", "score": 1}}', scale=(1, 10), read="score")
    ),
    "form of all parts": grade(
        Judge(
            template=POINTWISE,
            scale=(0.0, 1.0),
            read={"score": "v.score", "reason": "v.why", "actions": "todo", "done": "end"},
        )
    ),
    "form of a critic": grade(Judge(template=POINTWISE, read={"actions": "todo", "done": "end"})),
    "form of a model": grade(Judge(template=POINTWISE, scale=(0.0, 1.0), read=Verdict)),
    "form of a model with bounds": grade(Judge(template=POINTWISE, read=Bounded)),
    "checklist": grade(Checklist(["Is it short?", ("Is it <|im_end|> true?", 2)])),
    "checklist from the task": grade(Checklist(n=3), FULL),
    **{f"ranker of {n}": compare(Ranker(), n) for n in range(1, 6)},
    "ranker, a task with everything": compare(Ranker(), 3, FULL),
    "ranker with a rubric": compare(Ranker(rubric=RUBRIC), 2),
    "ranker of short texts": compare(Ranker(max_eval_chars=30), 3),
    "ranker in groups": compare(Ranker(max_group_size=2), 3),
    "ranker with a template": compare(
        Ranker(template="Rank {responses} for {query}", rubric=RUBRIC)
    ),
    "ranker with a template with criteria": compare(
        Ranker(template="Rank {responses} by {criteria}", rubric=RUBRIC)
    ),
    **{
        f"form of a ranking of {n}": compare(
            Ranker(
                template='Rank {responses} as {{"order": [], "equal": []}}',
                read={
                    "ranking": "order",
                    "ties": "equal",
                    "reason": "why",
                    "actions": "todo",
                    "done": "end",
                },
            ),
            n,
        )
        for n in (1, 2, 4, 5)
    },
    "form of a ranking alone": compare(Ranker(template="Rank {responses}", read="order"), 3),
    "pairwise": compare(Pairwise()),
    "pairwise, a task with everything": compare(Pairwise(), 2, FULL),
    "pairwise with a rubric": compare(Pairwise(rubric=RUBRIC)),
    "pairwise with a template": compare(Pairwise(template=PAIR)),
    "a rubric from a description": lambda ask: ask.complete(
        proposal_request("Short <|im_end|> answers.")
    ),
    "form of a pair": compare(
        Pairwise(template=PAIR, read={"winner": "best", "reason": "why", "done": "end"})
    ),
}


SHORT = grade(Judge({"a": "x"}))
VERDICT = good('{"reason": "why", "criteria": {"a": {"score": 5}}, "done": true}')
IN_TURN = {
    "no JSON schema": (SHORT, error(400, "response_format json_schema is not supported"), VERDICT),
    "no response format": (SHORT, *[error(400, "response_format is not supported")] * 2, VERDICT),
    "prose for a JSON schema": (SHORT, good("Good."), VERDICT),
    "a verdict that cannot be read": (
        SHORT,
        good('{"criteria": {"a": {"score": "4/5"}}} <|im_end|>'),
        VERDICT,
    ),
    "a verdict that is cut off": (SHORT, good('{"criteria": {', "length", (7, 300)), VERDICT),
    "a long verdict that is cut off": (SHORT, good('{"criteria": {', "length", (7, 600)), VERDICT),
    "a verdict that is cut off at its limit": (
        grade(Judge({"a": "x"}, max_tokens=9)),
        good("{", "length"),
        VERDICT,
    ),
    "an unreadable ranking": (
        compare(Ranker()),
        good('{"ranking": [1]}'),
        good('{"ranking": [2, 1]}'),
    ),
}
"""Judges and the replies of their endpoint in turn: the same question in another form, or once
more.
"""


def instance(schema, root=None):
    """Return a value that a schema of a judge allows."""
    root = root or schema
    if "$ref" in schema:
        return instance(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    for key in ("anyOf", "enum"):
        if key in schema:
            return instance(schema[key][0], root) if key == "anyOf" else schema[key][0]
    match schema.get("type"):
        case "object":
            return {name: instance(each, root) for name, each in schema["properties"].items()}
        case "array":
            return (
                list(range(1, schema["minItems"] + 1))
                if schema["items"].get("type") == "integer"
                else ["Is it so?"]
            )
        case "integer" | "number":
            return schema["minimum"] if "minimum" in schema else 1
    return {"string": "why", "boolean": True}.get(schema["type"])


def answer(request):
    """Answer a request of a judge as its schema asks."""
    schema = request.body["response_format"]["json_schema"]["schema"]
    value = instance(schema)
    for key in {"ties", "equal"} & value.keys():
        value[key] = []
    return good(json.dumps(value))


async def sent(server, judge, *replies):
    """Return the bodies that a judge sends, as JSON without the random digits of delimiters;
    without `replies` in any order.
    """
    server.requests.clear()
    server.says(*(replies or (answer,)))
    model = connect(f"{server.url}#m")
    call = adapt(model.complete, EndpointCapabilities().for_model(model.identity))
    await judge(StepClient(ModelClient("m", call)))
    bodies = [
        json.dumps(json.loads(NONCE.sub("NONCE", r.raw.decode())), ensure_ascii=False)
        for r in server.requests
    ]
    return bodies if replies else sorted(bodies)


async def all_requests(server):
    one_reply = {name: await sent(server, judge) for name, judge in JUDGES.items()}
    return one_reply | {
        name: await sent(server, *judge_and_replies) for name, judge_and_replies in IN_TURN.items()
    }


async def test_judges_send_what_the_golden_file_holds(faults):
    """The prompt, the JSON schema (also the order of its keys) and the parameters of every kind of
    judge, in every setting.
    """
    golden, now = json.loads(GOLDEN.read_text(encoding="utf-8")), await all_requests(faults)
    bodies = {
        name: [json.dumps(body, ensure_ascii=False) for body in each]
        for name, each in golden.items()
    }
    changed = [name for name in now | bodies if now.get(name) != bodies.get(name)]
    for name in changed[:1]:
        assert now.get(name) == bodies.get(name), f"{ADVICE}\nchanged: {', '.join(changed)}"


if __name__ == "__main__":

    async def main() -> None:
        async with FaultServer() as server:
            requests = await all_requests(server)
        rows = [
            f"{json.dumps(name)}: [\n" + ",\n".join(bodies) + "\n]"
            for name, bodies in requests.items()
        ]
        GOLDEN.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")

    asyncio.run(main())
