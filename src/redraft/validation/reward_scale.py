"""Learning how the raw scores of a reward model become scores in [0, 1], from a sample of answers
without labels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import ConfigError, GradingError
from ..graders import Reward
from ..loop.records import Candidate, Failure, Feedback
from ..loop.steps import Grade
from ..loop.task import Task
from ..requirements.spec import check_foreign_spec
from ..session.options import Options
from ..session.perform import make_performer
from ..session.session import Session
from ..tables import BadRow, infer_columns, iter_rows

MAX_SAMPLE = 2000
"""The most answers that are scored: more change the quartiles by little."""


async def learn_scale(
    reward: Reward, samples: Sequence[Task], options: Options | None = None
) -> Reward:
    """Return the grader with `center` and `scale` learned from the raw scores of answers; see
    `Reward.fit`.

    `samples` are tasks with a response, as they occur in use; the first 2000 are scored, each with
    one call. Raises GradingError if the server fails, and ConfigError for a task without a response
    or for fewer than 20 raw scores.
    """
    if without := next((task for task in samples if not (task.response or "").strip()), None):
        raise ConfigError(f"a sample is a task with a response, got {without!r:.100}")
    unmapped = replace(reward, range=None, center=0.0, scale=1.0)
    session = Session(options or Options(), None, unmapped)
    panel, roles = session.resolve_panel(())
    perform = make_performer(roles)
    steps = [
        Grade(panel[0].name, task, Candidate(0, task.response or ""))
        for task in samples[:MAX_SAMPLE]
    ]
    try:
        records = await asyncio.gather(*map(perform, steps))
    finally:
        await session.close()
    if failure := next((record for record in records if isinstance(record, Failure)), None):
        raise GradingError(f"{failure.error}: {failure.message}")
    return reward.fit(
        [float(record.metadata["raw"]) for record in records if isinstance(record, Feedback)]
    )


def read_samples(path: str | Path) -> list[Task]:
    """Read tasks with responses from a file, in any format of `tables.iter_rows`, up to 2000 of
    them. Raises ConfigError.
    """
    bad_rows: list[BadRow] = []
    rows = list(iter_rows(path, bad_rows.append))[: 2 * MAX_SAMPLE]
    mapping = infer_columns(
        [row.values for row in rows[:100]], check_requirement=check_foreign_spec
    )
    tasks = []
    for row in rows:
        try:
            tasks.append(mapping.task(row.values))
        except ValueError as error:
            bad_rows.append(BadRow(row.location, str(error)))
    answered = [task for task in tasks if (task.response or "").strip()]
    if not answered:
        reason = f": {bad_rows[0].location}: {bad_rows[0].message}" if bad_rows else ""
        raise ConfigError(f"{str(path)!r} has no row with a task and a response{reason}")
    return answered[:MAX_SAMPLE]
