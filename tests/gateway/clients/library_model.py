"""A scripted model for libraries: two tools, an answer in a form, an image, a plain text; and the
judge of what it writes.
"""

import json
import re

from .agents import DRAFT, FINAL, QUESTION
from .coding_model import DONE, THINKING, coding_turn
from .coding_model import DRAFT as CODING_DRAFT
from .conversations import Call, Conversation, Said
from .instances import instance_of

HELLO = "Say hello."
GREETING, BETTER_GREETING = "Hello.", "Hello to you, and welcome to these tests."
DRAFTS = (DRAFT, GREETING, CODING_DRAFT)
FINALS = (FINAL, BETTER_GREETING, DONE)
REPORT_AS_JSON = "Report as JSON."
REPORT = {"city": "Oslo", "degrees": 68}
FIELD = re.compile(r"\[\[ ## (\w+) ## \]\]")
FINISH = ("submit", "finish")


class ClientsModel:
    """Answers every client: agents that work in `folder`, and libraries."""

    def __init__(self, folder="/nowhere"):
        self.folder = folder

    def __call__(self, talk: Conversation):
        turn = coding_turn(talk, self.folder) or weather_turn(talk) or fields_turn(talk)
        return turn or plain_turn(talk)


def weather_turn(talk: Conversation):
    """Ask for the weather of two cities at once, then convert a temperature; then None."""
    made = [call.name for call in talk.calls]
    if "weather" not in talk.tools:
        return None
    thought = THINKING if talk.thinks else ""
    if "weather" not in made:
        cities = (Call("weather", {"city": city}, f"call_{city}") for city in ("Oslo", "Rome"))
        return Said("", tuple(cities), thought)
    if "to_fahrenheit" in talk.tools and "to_fahrenheit" not in made:
        degrees = float(re.search(r"\d+", talk.results["call_Oslo"])[0])
        return Said("", (Call("to_fahrenheit", {"celsius": degrees}, "call_degrees"),), thought)
    return None


def fields_turn(talk: Conversation):
    """Answer in the form of DSPy's prompts, field by field, if the last one asks for it."""
    asked = talk.prompt.rpartition("Respond with the corresponding output fields")[2]
    names = FIELD.findall(asked)
    if not names or asked == talk.prompt:
        return None
    looked = "observation_0" in talk.prompt
    known = {
        "next_tool_name": "finish" if looked else "weather",
        "next_tool_args": "{}" if looked else '{"city": "Oslo"}',
        "degrees": "68",
        "completed": "",
    }
    parts = [f"[[ ## {name} ## ]]\n{known.get(name, FINAL)}" for name in names]
    return Said("\n\n".join(parts))


def plain_turn(talk: Conversation):
    """Call the tool that ends a task or is forced, or answer in the form asked for, or as text."""
    ending = talk.forced or next((name for name in FINISH if name in talk.tools), None)
    if ending in ("weather", "to_fahrenheit"):
        ending = next((n for n in talk.tools if n not in ("weather", "to_fahrenheit")), None)
    if ending:
        made = json.loads(instance_of(talk.tools[ending].schema)) or REPORT
        return Said("", (Call(ending, made, f"call_end_{len(talk.calls)}"),))
    if talk.schema and talk.schema.get("properties"):
        return Said(instance_of(talk.schema))
    if talk.schema is not None or asks_for_json(talk):
        is_report = any(asked in talk.prompt for asked in (QUESTION, REPORT_AS_JSON))
        return Said(json.dumps(REPORT if is_report else {"said": "hello"}))
    if talk.images:
        return Said(f"I see {talk.images} picture, and nothing else at all.")
    said = talk.prompt + talk.answers
    if QUESTION in talk.prompt or "weather" in talk.tools:
        return Said(FINAL if DRAFT in said else DRAFT)
    return Said(BETTER_GREETING if GREETING in said else GREETING)


def asks_for_json(talk: Conversation):
    if "json" not in talk.prompt.lower():
        return False
    return "degrees" in talk.prompt or not (talk.tools or QUESTION in talk.prompt)


def judge(talk: Conversation):
    """Give drafts a low score, everything else the highest that the form allows."""
    is_draft = any(draft in talk.prompt for draft in DRAFTS)
    is_draft = is_draft and not any(final in talk.prompt for final in FINALS)
    schema = talk.schema if talk.schema is not None else talk.tools[talk.forced].schema
    said = instance_of(schema, low=is_draft)
    if talk.schema is not None:
        return Said(said)
    return Said("", (Call(talk.forced, json.loads(said), "call_verdict"),))
