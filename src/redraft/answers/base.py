"""What every form of answer offers, and the error of an answer that is not of the form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ..protocols import Edit

T_co = TypeVar("T_co", covariant=True)
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


class AnswerForm(Protocol[T_co]):
    """The form that an answer must have. `read` returns its value.

    - `name`: the form in words, for messages. `demand`: what it demands, in words. `instruction`:
      the same with the schema, for the prompt.
    - `schema`: the JSON schema for the endpoint; None if there is none.
    - `fingerprint`: 16 hex digits for everything that decides which answers are accepted, and as
      what.
    - `editable`: whether an editor can repair its answers. `is_json`: whether its answers are JSON.
    """

    @property
    def name(self) -> str: ...
    @property
    def demand(self) -> str: ...
    @property
    def instruction(self) -> str: ...
    @property
    def schema(self) -> Mapping[str, Any] | None: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def editable(self) -> bool: ...
    @property
    def is_json(self) -> bool: ...

    def extract(self, text: str, *, given: bool = False) -> str:
        """Return what of a text is the answer; `given`: the user gave the text, and no model wrote
        it.
        """
        ...

    def read(self, text: str) -> T_co:
        """Return the value of an answer. Raises InvalidAnswer."""
        ...

    def repairs(self, text: str) -> Iterator[Edit]:
        """Yield the answer with its form repaired, if that can be done without changing a value."""
        ...

    def to_data(self, value: Any, text: str) -> Any:
        """Return the value that `read` returned for a text as a JSON value, from which `read` makes
        the same value again.
        """
        ...

    def accepts(self, annotation: Any) -> bool:
        """Return whether a function whose first parameter has this annotation receives the value
        instead of the text.
        """
        ...
