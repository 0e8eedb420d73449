"""The gateway that the clients are tried with, a scripted model of both kinds behind it, and a
scripted judge.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from .gateway_process import GatewayProcess, serving
from .library_model import ClientsModel, judge
from .scripted_model import ScriptedModel

KINDS = {"gpt": "openai", "claude": "anthropic", "gpt-5.5": "openai", "gpt-6.2-sol": "openai"}
ROUTES = {
    "`pass/`, OpenAI": "pass/gpt",
    "`pass/`, Anthropic": "pass/claude",
    "`refine/`, OpenAI": "refine/gpt",
    "`refine/`, Anthropic": "refine/claude",
}
DOWN = "-no-judge"  # ends the name of a profile whose judge is down
MODEL = """
[models."{name}"]
url = {url}
kind = "{kind}"
model = "{model}"
prices = [1, 1]
"""
PROFILE = """
[profiles."{name}{end}"]
model = "{name}"
judge = "{judge}"
graders = ["judge"]
max-iterations = 1
retries = 0
"""


@dataclass
class Stand:
    """What all clients are tried with."""

    gateway: GatewayProcess
    model: ScriptedModel
    judge: ScriptedModel


def refuse(talk: Any) -> Any:
    raise web.HTTPInternalServerError(text="the judge is down")


def model_table(name: str, url: str, kind: str) -> str:
    return MODEL.format(name=name, url=json.dumps(url), kind=kind, model=name)


@contextmanager
def stand(
    before_model: Callable[[ScriptedModel], AbstractContextManager[str]] | None = None,
) -> Iterator[Stand]:
    """Run the gateway, the model and the judge for the duration of the block. `before_model` runs
    a proxy before the model and gives its address.
    """
    model, working, down = (
        ScriptedModel(ClientsModel()),
        ScriptedModel(judge),
        ScriptedModel(refuse),
    )
    judges = {"judge": working.url, "judge-down": down.url}
    profiles = [
        PROFILE.format(name=name, end=end, judge=judge_name)
        for name in KINDS
        for end, judge_name in (("", "judge"), (DOWN, "judge-down"))
    ]
    address = before_model(model) if before_model else nullcontext(model.url)
    with tempfile.TemporaryDirectory(prefix="clients-") as folder, address as url:
        models = [model_table(name, url, kind) for name, kind in KINDS.items()]
        models += [model_table(name, each, "openai") for name, each in judges.items()]
        with serving(Path(folder), "".join(models), "".join(profiles)) as gateway:
            yield Stand(gateway, model, working)
    for server in (model, working, down):
        server.close()
