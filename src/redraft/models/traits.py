"""What a model says of itself.

A model has a name, an identity and a method `complete`; whatever else it says of itself is
optional. `traits_of_model` reads all of it, of Redraft's models and of users' objects alike, and
nothing else does; everyone else reads `ModelTraits`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from ..protocols import Format
from .endpoint_url import redacted_url


class ModelTraits(NamedTuple):
    """What a model says of itself. Most fields are the optional attribute of the same name.

    - `name` is for display; `identity` is everything besides the request that decides the answer.
    - `base_url`: the address of its server, `host` the host in it, and `provider` the name of its
      vendor; "" if it has none. `model_name`: its name there.
    - `formats`: the ways in which it can be held to a schema, strictest first; without the
      attribute, the schema is described in words.
    - `tools`, `tool_choice`: what its own parameters offer to requests with `is_generation`.
      `may_offer_tools`: it does not say what it offers, and may offer tools of its own.
    - `params`: parameters that it needs in every call. `parameters`: the parameters of
      OpenAI's chat protocol that it is known to take.
    - `takes_probes`: it is a chat model, with one prompt, to which a batch may send short requests
      to see whether its endpoint answers.
    - `writes_text`: its answers have tokens. `operation`: what its calls are in telemetry.
    - `price`: the `Price` that it states; None: that which is published for its name.
    - `timeout`: seconds after which it ends every call itself; None: unknown.
    - `close`: frees what it holds (the attribute `aclose`); None: nothing is to be freed.
    """

    name: str
    identity: str
    base_url: str
    host: str
    provider: str
    model_name: str
    formats: tuple[Format, ...]
    tools: tuple[Mapping[str, Any], ...]
    tool_choice: str | Mapping[str, Any] | None
    may_offer_tools: bool
    params: Mapping[str, Any] | None
    parameters: tuple[str, ...]
    takes_probes: bool
    writes_text: bool
    operation: str
    price: object
    timeout: float | None
    close: Callable[[], Awaitable[object]] | None

    @property
    def address(self) -> str:
        """What calls to the same server have in common."""
        return self.base_url or self.identity

    @property
    def endpoint(self) -> str:
        """Where it is served, for messages: its address, if it has one, and its name."""
        place = redacted_url(self.base_url)
        return f"{place} (model {self.name})" if place else f"model {self.name}"


def traits_of_model(model: Any) -> ModelTraits:
    """Return what a model says of itself: the one place that reads the optional attributes of
    models.
    """

    def attribute(name: str, default: Any = None) -> Any:
        return getattr(model, name, default)

    name = str(attribute("name", type(model).__name__))
    return ModelTraits(
        name=name,
        identity=attribute("identity", ""),
        base_url=str(attribute("base_url") or ""),
        host=str(attribute("host", name)),
        provider=attribute("provider") or "",
        model_name=attribute("model_name", name),
        formats=attribute("formats", ("text",)),
        tools=attribute("tools", ()),
        tool_choice=attribute("tool_choice"),
        may_offer_tools=not hasattr(model, "tools"),
        params=attribute("params"),
        parameters=attribute("parameters", ()),
        takes_probes=attribute("takes_probes", True),
        writes_text=attribute("writes_text", True),
        operation=attribute("operation", "chat"),
        price=attribute("price"),
        timeout=getattr(attribute("timeouts"), "total", None),
        close=attribute("aclose"),
    )
