"""Learns the mapping of a reward model's raw scores from a sample, and prints the grader as it is
written elsewhere.
"""

from __future__ import annotations

import asyncio
import json

import click

from ...base.text import pluralize
from ...errors import ConfigError
from ...graders import Reward, as_grader
from ...validation.reward_scale import learn_scale, read_samples
from ..output import notice


def learn(spec: str | None, path: str, *, as_json: bool) -> None:
    """Print the spec of a reward grader with `center` and `scale` learned from the answers in a
    file. Raises ConfigError.
    """
    reward = as_grader(spec) if spec else None
    if not isinstance(reward, Reward):
        raise ConfigError(
            "--learn needs a reward model, such as reward:http://127.0.0.1:8000/classify#MODEL, "
            f"got {spec!r}"
        )
    samples = read_samples(path)
    fitted = asyncio.run(learn_scale(reward, samples))
    notice(f"center and scale learned from {pluralize(len(samples), 'answer')}")
    click.echo(
        json.dumps({"grader": fitted.spec, "center": fitted.center, "scale": fitted.scale})
        if as_json
        else fitted.spec
    )
