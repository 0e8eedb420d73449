"""inspect_ai: a task with tools, and one with a form."""

import tempfile

import cells
import inspect_ai
from cells import FINAL, KEY, QUESTION, main
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, ResponseSchema, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool
from inspect_ai.util import json_schema
from pydantic import BaseModel


class Report(BaseModel):
    city: str
    degrees: int


@tool
def weather():
    async def execute(city: str):
        """Return the temperature in a city, in Celsius.

        Args:
            city: its name.
        """
        return cells.weather(city)

    return execute


@tool
def to_fahrenheit():
    async def execute(celsius: float):
        """Convert degrees.

        Args:
            celsius: the degrees.
        """
        return cells.to_fahrenheit(celsius)

    return execute


def run(model, question, target, *solvers):
    task = inspect_ai.Task(
        [Sample(question, target=target)], solver=[*solvers, generate()], scorer=includes()
    )
    with tempfile.TemporaryDirectory() as folder:
        log = inspect_ai.eval(
            task, model=model, log_dir=folder, display="none", fail_on_error=True
        )[0]
        assert log.status == "success", log.error and log.error.message
        sample = log.samples[0]
        assert sample.scores["includes"].value == "C", sample.output.completion


def openai_model(server, **config):
    return get_model(
        f"openai/{server.model}",
        base_url=server.url,
        api_key=KEY,
        memoize=False,
        config=GenerateConfig(max_retries=0, **config),
        responses_api=False,
    )


def anthropic_model(server):
    return get_model(
        f"anthropic/any/{server.model}",  # what is before the first / is left out
        base_url=server.root,
        api_key=KEY,
        memoize=False,
        config=GenerateConfig(max_retries=0),
    )


def chat_tools(server):
    """tools, chat"""
    expected = FINAL if server.refines else "68"
    run(openai_model(server), QUESTION, expected, use_tools(weather(), to_fahrenheit()))


def messages_tools(server):
    """tools, messages"""
    expected = FINAL if server.refines else "68"
    run(anthropic_model(server), QUESTION, expected, use_tools(weather(), to_fahrenheit()))


def form(server):
    """structured answer, chat"""
    schema = ResponseSchema(name="report", json_schema=json_schema(Report))
    run(openai_model(server, response_schema=schema), "Report.", '"degrees"')


main("inspect-ai", chat_tools, messages_tools, form)
