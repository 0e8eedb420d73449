"""What every form of answer offers, and the error of an answer that is not of the form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ..protocols import Check, Edit

if TYPE_CHECKING:
    from ..loop.task import Task

T = TypeVar("T")
EXPECTED = (
    "a type such as a pydantic model, a JSON schema as a dict, or 'code:LANGUAGE', such as "
    "'code:python'"
)


class InvalidAnswer(ValueError):
    """An answer is not of the form. `errors` say what is wrong, one line each; `nearness` how near
    it comes, in [0, 1].
    """

    def __init__(self, errors: Sequence[str], count: int = 0, nearness: float = 0.0) -> None:
        more = max(count, len(errors)) - 1
        super().__init__(f"{errors[0]} (and {more} more)" if more > 0 else "".join(errors))
        self.errors, self.nearness = tuple(errors), nearness


class AnswerForm(ABC, Generic[T]):
    """The form that an answer must have, which is also a requirement of the editor. `read` returns
    its value.
    """

    is_json = False  # whether its answers are JSON
    in_process = True  # no worker can make a form from `spec`; it limits its own time

    @property
    @abstractmethod
    def name(self) -> str:
        """The form in words, for messages."""

    @property
    @abstractmethod
    def spec(self) -> str:
        """The name of the form among the requirements of an editor."""

    @property
    @abstractmethod
    def demand(self) -> str:
        """What the form demands, in words."""

    @property
    def instruction(self) -> str:
        """The demand with the schema, for the prompt."""
        return self.demand

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema for the endpoint; None if there is none."""
        return None

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """16 hex digits for everything that decides which answers are accepted, and as what."""

    @property
    def editable(self) -> bool:
        """Whether an editor can repair its answers."""
        return True

    def for_task(self, task: Task) -> Self:
        """Return the form of the answers to a task: of code, its tests say which part of an answer
        counts.
        """
        return self

    @abstractmethod
    def extract(self, text: str, *, given: bool = False) -> str:
        """Return what of a text is the answer; `given`: the user gave the text, and no model wrote
        it.
        """

    @abstractmethod
    def read(self, text: str) -> T:
        """Return the value of an answer. Raises InvalidAnswer."""

    @abstractmethod
    def repairs(self, text: str) -> Iterator[Edit]:
        """Yield the answer with its form repaired, if that can be done without changing a value."""

    @abstractmethod
    def to_data(self, value: Any, text: str) -> Any:
        """Return the value that `read` returned for a text as a JSON value, from which `read` makes
        the same value again.
        """

    @abstractmethod
    def accepts(self, annotation: Any) -> bool:
        """Return whether a function whose first parameter has this annotation receives the value
        instead of the text.
        """

    def check(self, text: str) -> Check:
        """Return whether the text is valid, as a requirement does."""
        try:
            self.read(text)
        except InvalidAnswer as invalid:
            return Check(ok=False, measurement=str(invalid), nearness=invalid.nearness)
        return Check(ok=True, measurement=f"valid as {self.name}")
