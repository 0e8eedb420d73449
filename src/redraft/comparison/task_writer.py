"""Tasks that a model writes from a description, for a comparison before there are tasks of people.

They go to a file that one can read and edit, one JSON object a line: its ID, the prompt, and the
model that wrote it. What is in the file stays, also what people change while tasks are written, so
that an interrupted start goes on, and a second one takes no call. Ten tasks are asked for at a
time, with some of the earlier ones as what not to repeat, chosen with a seed. A task is left out if
its words are nearly those of an earlier one (Jaccard index of the sets of words).

Tasks of a model are what it imagines, not what people ask. A comparison on them is about such tasks
only, however narrow its intervals are, and a model that is compared on its own tasks may have an
advantage.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count as counter
from math import ceil
from pathlib import Path
from typing import Any, Unpack

from ..base import checks
from ..base.sync import async_to_sync
from ..base.text import pluralize, strip_control_sequences
from ..errors import BadResponseError, ConfigError, RedraftError
from ..graders.judging.prompt import data_notice, enclose, fresh_nonce
from ..graders.judging.structured import (
    ask_for_json,
    object_schema,
    read_object,
    text_schema,
    texts_at,
)
from ..middleware.timeout import enforce_deadline
from ..protocols import Request
from ..session.models import Models
from ..session.options import Options
from ..session.perform import StepClient
from ..session.refinement import resolve_model
from ..session.session import Session
from ..settings import Settings
from ..storage import write_atomic
from ..tables.sources import open_source
from ..usage import NO_USAGE, Usage

WRITER_COLUMN = "written_by"
MAX_TASKS = 1000
BATCH = 10  # tasks that are asked for at a time
SHOWN = 30  # earlier tasks that are shown
MAX_TASK_CHARS = 2000
MAX_OVERLAP = 0.8  # of the words of two tasks; with more, one is left out
MAX_USELESS = 3  # replies in a row without a new task
TEMPERATURE = 1.0
PROMPT = (
    "Write tasks with which models will be compared, for what is described below: requests as its "
    "users would type them. Each task is complete in itself and can be answered without a file or "
    "a tool. Vary the topic, the length, the difficulty and the wording, as users do; include some "
    "that are unusual. Repeat none of the earlier tasks, also not in other words."
)
FORMAT = 'Answer with one JSON object only: {"tasks": ["the text of a task", ...]}'


async def write_tasks(
    description: str,
    path: str | Path,
    count: int = 50,
    model: Any = None,
    *,
    say: Callable[[str], object] = lambda _: None,
    **settings: Unpack[Settings],
) -> Path:
    """Write tasks from a description to a file, unless they are there, and return its path.

    Args:
        description: What the tasks are about, and who has them.
        path: A file of JSON lines. The tasks in it count, whoever wrote them.
        count: How many tasks there shall be, at most 1,000.
        model: The model that writes them, as in `refine`. None means one that is found.
        say: Is called with what will be done, and how many calls it takes, before the first one;
            and when the tasks can be edited.
        **settings: `budget`, `timeout`, `retries` and the other settings of `refine` that concern
            calls. `seed` (0 by default) chooses which earlier tasks are shown, and is sent to
            models that support one.

    Raises:
        ConfigError: An argument is wrong, the file cannot be read, or there is no model.
        BadResponseError: A reply could not be read twice, or the model has no more tasks that
            differ from those before.

    The `usage` of each error that a call caused or followed is that of all calls.
    """
    await add_tasks(description, file := Path(path), count, model, say=say, **settings)
    return file


write_tasks_sync = async_to_sync(write_tasks)
"""Call `write_tasks` without await. It also works where an event loop is running."""


async def add_tasks(
    description: str,
    file: Path,
    count: int,
    model: Any = None,
    *,
    say: Callable[[str], object],
    **settings: Unpack[Settings],
) -> Usage:
    """Do what `write_tasks` does, and return what it took."""
    checks.text("description", description)
    checks.whole_number("count", count, 1, MAX_TASKS)
    if file.suffix != ".jsonl":
        raise ConfigError(
            f"path: tasks are written as JSON lines, to NAME.jsonl, got {str(file)!r}"
        )
    missing = count - (present := len(_rows_in(file)))
    if missing <= 0:
        say(f"{file} has {pluralize(present, 'task')}, and none is written")
        return NO_USAGE
    options = Options.from_settings(settings)
    async with Session(options, Models(options, await resolve_model(model))) as session:
        client = session.models.writing_client
        if client is None:
            raise ConfigError("a model must write the tasks, and there is none: give `model`")
        say(
            f"{client.name} writes {pluralize(missing, 'task')} to {file}, in about "
            f"{pluralize(ceil(missing / BATCH), 'call')}"
        )
        step, seed = StepClient(client), options.seed or 0
        try:
            await _fill(file, count, description, step, seed=seed, deadline_at=options.deadline_at)
        except RedraftError as error:
            error.usage = step.usage
            raise
    say(f"{file} has {pluralize(count, 'task')}: read and edit them")
    return step.usage


async def _fill(
    file: Path,
    count: int,
    description: str,
    step: StepClient,
    *,
    seed: int,
    deadline_at: float | None,
) -> None:
    """Ask for tasks until the file has enough. It is read again after each reply, because people
    may have changed it meanwhile. Raises BadResponseError if the model repeats itself.
    """
    assert step.client is not None
    writer, chance, useless = step.client.name, random.Random(seed), 0
    ask = partial(
        ask_for_json,
        step,
        parse=lambda reply: texts_at(read_object(reply.text), "tasks"),
        subject="the tasks",
        params="model_params",
    )
    rows = _rows_in(file)
    while len(rows) < count and useless < MAX_USELESS:
        shown = chance.sample([row["prompt"] for row in rows], min(SHOWN, len(rows)))
        request = _request(description, shown, min(BATCH, count - len(rows)), len(rows) + seed)
        texts = await enforce_deadline(ask, deadline_at)(request)
        rows = _rows_in(file)
        before = len(rows)
        _add(rows, texts[: max(0, count - before)], writer)
        useless = 0 if len(rows) > before else useless + 1
        write_atomic(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    if len(rows) < count:
        raise BadResponseError(
            f"{writer} repeats itself: {file} has {len(rows)} of {count} tasks; describe more, or "
            "ask for fewer"
        )


def _rows_in(file: Path) -> list[dict[str, Any]]:
    """Return the tasks in a file, in which people may have changed anything but the column
    "prompt". Raises ConfigError for a row without one.
    """
    if not file.exists() or not file.read_bytes().strip():
        return []
    rows = [dict(row.values) for row in open_source(file).rows()]
    if any(not isinstance(row.get("prompt"), str) for row in rows):
        raise ConfigError(f"{str(file)!r} has a row without a text 'prompt'")
    return rows


def _add(rows: list[dict[str, Any]], texts: Sequence[str], writer: str) -> None:
    """Add the texts that differ from all tasks so far, with free numbers as IDs."""
    known = [_words(row["prompt"]) for row in rows]
    taken = {str(row.get("id")) for row in rows}
    for text in texts:
        prompt = strip_control_sequences(text)[:MAX_TASK_CHARS].strip()
        words = _words(prompt)
        if prompt and all(len(words & w) <= MAX_OVERLAP * len(words | w) for w in known):
            number = next(n for n in counter(1) if str(n) not in taken)
            rows.append({"id": str(number), "prompt": prompt, WRITER_COLUMN: writer})
            known.append(words)
            taken.add(str(number))


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold())) or frozenset({text})


def _request(description: str, shown: Sequence[str], count: int, seed: int) -> Request:
    """Return the request for tasks: the instructions, the description and earlier tasks as data."""
    earlier = "\n".join(json.dumps(text, ensure_ascii=False) for text in shown)
    nonce = fresh_nonce([description, earlier])
    parts = [
        f"{PROMPT} Write {count}.",
        data_notice(nonce),
        enclose("description", description, nonce),
        enclose("earlier-tasks", earlier, nonce) if shown else "",
        FORMAT,
    ]
    text = {"type": "array", "minItems": 1, "maxItems": count, "items": text_schema(MAX_TASK_CHARS)}
    return Request(
        ({"role": "user", "content": "\n\n".join(filter(None, parts))},),
        TEMPERATURE,
        seed=seed,
        schema=object_schema(tasks=text),
        nonce=nonce,
    )
