"""A model that works with two tools: it asks for the weather of a city, then converts the degrees,
then answers.
"""

import json

from .scripted_upstream import tool_call

QUESTION = "How warm is it in Oslo, in Fahrenheit?"
DRAFT, FINAL = "It is 68.", "In Oslo it is 68 degrees Fahrenheit today."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The temperature in a city, in Celsius.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "to_fahrenheit",
            "description": "Convert degrees.",
            "parameters": {
                "type": "object",
                "properties": {"celsius": {"type": "number"}},
                "required": ["celsius"],
            },
        },
    },
]


def weather(city: str) -> str:
    """Return the temperature in a city, in Celsius."""
    return {"Oslo": "20"}[city]


def to_fahrenheit(celsius: float) -> str:
    """Convert degrees."""
    return str(round(celsius * 9 / 5 + 32))


FUNCTIONS = {"weather": weather, "to_fahrenheit": to_fahrenheit}


def agent_model(body):
    """Answer as a model that calls both tools. Its first text is too short for the profile `fast`;
    its second is not.
    """
    messages = body["messages"]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    if not results:
        return tool_call("weather", "call_a", city="Oslo")
    if len(results) == 1:
        return tool_call("to_fahrenheit", "call_b", celsius=float(text_of(results[0])))
    return FINAL if DRAFT in json.dumps(messages) else DRAFT


def text_of(content):
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def run_tool(name, arguments):
    return FUNCTIONS[name](**json.loads(arguments))
