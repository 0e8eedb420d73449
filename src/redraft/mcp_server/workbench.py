"""What all tool calls share: the models that they may use, the limits of each call, and the graders
that calls may name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from ..base import checks
from ..errors import ConfigError
from ..gateway.admission import Admission
from ..gateway.config import GatewayLimits
from ..graders import Judge
from ..graders.registry import foreign_grader
from ..models import connect
from ..models.model_names import split_names
from ..models.traits import traits_of_model
from ..protocols import Model
from ..settings import Settings
from ..storage import JsonlStore
from ..storage.secure_files import make_folder

MAX_WAITING, MAX_WAITING_SECONDS = 64, 600.0  # calls that wait for others
NO_MODEL = (
    "there is no model: whoever starts the server names one with `redraft mcp --model NAME` or "
    "REDRAFT_MODEL. Without one, a draft can be repaired by requirements, and answers can be "
    "graded by requirements and by graders that only compute"
)


@dataclass(frozen=True)
class CallLimits:
    """What tool calls may use: `settings` holds the budget, the deadline and others of each call;
    `max_calls` work at a time.
    """

    settings: Settings = field(default_factory=Settings)
    max_calls: int = 8


class Workbench:
    """The models and graders of a server, and the `admission` of its calls. `close` closes the
    models.

    `models`: the names that a call may choose from, the first by default; each may be several,
    separated by commas. Empty: one is looked for when it is needed. False: there is none. `judge`:
    the model that judges; False: none does. `graders`: those that calls may name besides those that
    `foreign_grader` allows. `traces`: the folder in which the traces of refinements are stored.
    `connect` returns the model with a name.
    """

    def __init__(
        self,
        models: Collection[str] | Literal[False] = (),
        judge: str | Literal[False] | None = None,
        limits: CallLimits = CallLimits(),
        *,
        graders: Mapping[str, Any] = {},
        traces: Path | None = None,
        connect: Callable[[str], Any] = connect,
    ) -> None:
        self.model_names: tuple[str, ...] = tuple(models or ())
        self.limits = limits
        self.traces = traces
        self._searches = models is not False and not self.model_names
        self._judge_name, self._graders = judge, dict(graders)
        self._models: dict[str, Any] = {}
        self._connect_model = connect
        self._closing = AsyncExitStack()
        self.admission = Admission(
            GatewayLimits(
                max_concurrent=limits.max_calls,
                max_queue=MAX_WAITING,
                queue_seconds=MAX_WAITING_SECONDS,
            )
        )
        for name in self.model_names:
            self._connect(name)
        if judge:
            self._connect(judge)

    async def model(self, name: str | None) -> Any:
        """Return the model of this name, the default, or one that is found; None if there is none.
        Raises ConfigError.
        """
        if name is not None and name not in self.model_names:
            allowed = ", ".join(map(repr, self.model_names)) or "none by name"
            raise ConfigError(
                f"model: {checks.format_value(name)} is not one that may be used; there are: "
                f"{allowed}"
            )
        if self._searches:
            return await self._find()
        chosen = name or next(iter(self.model_names), None)
        return self._models[chosen] if chosen else None

    @property
    def named_judge(self) -> Any:
        """The model that whoever starts the server names as the judge; False for none, None if
        nothing is said.
        """
        return (
            self._models[self._judge_name]
            if isinstance(self._judge_name, str)
            else self._judge_name
        )

    async def judge(self, name: str | None) -> Any:
        """Return the model that graders ask: the named judge, else the (first) model of a call;
        None if there is none.
        """
        model = self.named_judge or await self.model(name)
        return model[0] if isinstance(model, list) else model

    def grader(self, spec: str) -> Any:
        """Return the grader that a call names. Raises ConfigError."""
        return self._graders[spec] if spec in self._graders else foreign_grader(spec)

    def graders(self, specs: Iterable[str], rubric: Mapping[str, str]) -> list[Any] | None:
        """Return the graders that a call names, and a judge by its rubric; None if it names none.
        Raises ConfigError.
        """
        judges = [Judge(rubric, "rubric")] if rubric else []
        return [*map(self.grader, specs), *judges] or None

    def open_trace(self, closing: AsyncExitStack) -> tuple[JsonlStore | None, str | None]:
        """Return the store of a new trace and its name; None for both if traces are not stored.
        Raises StoreError.
        """
        if self.traces is None:
            return None, None
        name = uuid4().hex
        make_folder(self.traces)
        return closing.enter_context(JsonlStore(self.traces / f"{name}.jsonl")), name

    async def close(self) -> None:
        """Close the models."""
        await self._closing.aclose()

    def _connect(self, name: str) -> None:
        """Connect the model, or the several models, of a name. Raises ConfigError."""
        models = [self._connect_model(each) for each in split_names(name)]
        for model in models:
            self._close_later(model)
        self._models[name] = models if len(models) > 1 else models[0]

    async def _find(self) -> Any:
        """Return a model that is found, and keep it; None if none is found, which the next call
        tries again.
        """
        if "" not in self._models:
            from ..models import find_model

            model = (await find_model()).model
            if model is None:
                return None
            if "" not in self._models:  # another call may have been faster
                self._models[""] = model
                self._close_later(model)
        return self._models[""]

    def _close_later(self, model: Model) -> None:
        if closes := traits_of_model(model).close:
            self._closing.push_async_callback(closes)
