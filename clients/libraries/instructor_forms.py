"""instructor: structured answers in its modes."""

import anthropic
import instructor
import openai
from cells import KEY, main
from pydantic import BaseModel

TALK = [{"role": "user", "content": "Report as JSON."}]


class Report(BaseModel):
    city: str
    degrees: int


def over_openai(server, mode):
    sdk = openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0)
    client = instructor.from_openai(sdk, mode=mode)
    made = client.chat.completions.create(
        model=server.model, messages=TALK, response_model=Report, max_retries=0
    )
    assert isinstance(made, Report)


def tools(server):
    """forced tool, chat"""
    over_openai(server, instructor.Mode.TOOLS)


def schema(server):
    """structured answer, chat"""
    over_openai(server, instructor.Mode.JSON_SCHEMA)


def json_object(server):
    """JSON object, chat"""
    over_openai(server, instructor.Mode.JSON)


def over_anthropic(server):
    """forced tool, messages"""
    sdk = anthropic.Anthropic(base_url=server.root, api_key=KEY, max_retries=0)
    client = instructor.from_anthropic(sdk)
    made = client.messages.create(
        model=server.model, messages=TALK, response_model=Report, max_tokens=500, max_retries=0
    )
    assert isinstance(made, Report)


main("instructor", tools, schema, json_object, over_anthropic)
