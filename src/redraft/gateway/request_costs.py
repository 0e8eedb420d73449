"""What a request names instead of sending it, and what that costs. The names are in `field_tables`.

- Fields that choose the model, the host or the credentials are the gateway's own: a 400, for every
  key and on every path.
- Of keys with a limit in USD, what costs money without a known price is a 400 that names it, unless
  the operator prices it: fields (`PRICED_FIELDS`), and files and conversations that the provider
  has stored.
- Tools that the provider runs itself are left out of the requests of such keys, with a notice:
  coding agents send them unasked.
- An image that such a key names is reserved at the most tokens that it may have, and what has no
  such maximum (a file, a video) at the context window of the model. Without one it is a 400.

Whatever is not in the tables costs what its text costs. Only requests of keys with a limit in USD
are searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..base.checks import format_value
from ..base.parameters import ROUTING_FIELDS, plain_name, plain_names
from .config import ServedModel
from .exchange import GatewayError, invalid_request
from .field_tables import (
    ANSWER_COUNTS,
    AUDIO_PARTS,
    CLIENT_TOOLS,
    CLIENT_TOOLS_WITH_DATE,
    CONVERSATIONS,
    COUNTED_NAMES,
    GROUPED,
    IMAGE_PARTS,
    MEDIA_FIELDS,
    NO_IMAGE_FIELDS,
    OUTPUT_FIELDS,
    PART_NAMES,
    PLAIN_PARTS,
    PRICED_FIELDS,
    SHELL_OUTPUT,
    STORED_PARTS,
    TEXT_PARTS,
    TEXT_SOURCES,
    TOOL_LISTS,
    WORD_FIELDS,
    WORDS,
    is_usual,
)
from .neutral import ProtocolName
from .request_fields import DENIED_PARAMETERS, MAX_NAME_CHARS, NOTHING, is_set
from .stream_usage import LONG_CACHE_SURCHARGE, SHORT_CACHE_SURCHARGE

# tools, or messages and parts that are more than a text, in one request of a key with a limit in
# USD
MAX_PARTS = 20_000
MAX_SHOWN = 8  # types of tools in one notice
MAX_TYPE_CHARS = 40
NUMBERS = frozenset((*ANSWER_COUNTS, *OUTPUT_FIELDS))
# of a tool, which need none
OPEN_CHOICES = (None, "auto", "none", {"type": "auto"}, {"type": "none"})
Place: TypeAlias = tuple[Any, str | int]
"""A place in a request: the place that holds it (None: the request), and its name or its number
there.
"""
NO_MESSAGE_FIELDS = MEDIA_FIELDS - {"audio"}
MESSAGE_LISTS: tuple[Place, ...] = ((None, "messages"), (None, "input"))
_ROUTING_NAMES = plain_names((*ROUTING_FIELDS, "model"))
_COUNTED_NAMES = plain_names(COUNTED_NAMES)
_PART_NAMES = plain_names(PART_NAMES)
_DATE = re.compile(r"_(?:\d{8}|\d{4}_\d{2}_\d{2})$", re.ASCII)
_NOT_PRINTED = re.compile(r"[^\w.:-]", re.ASCII)


@dataclass(frozen=True, slots=True)
class MeteredRequest:
    """A request of a key with a limit in USD: `body` is what may be sent of it.

    - `images`: how many it has; `image_bytes`: those of their data that are in the request, which
      are no text.
    - `unbounded`: the place of something whose tokens have no maximum but the context window, or
      "".
    - `cache_factor`: what a token of the prompt costs at most if the provider writes it into its
      cache, by the price of one.
    - `usd`: what its fields and tools may cost in one call by the operator's prices, besides
      tokens.
    - `left_out`: the types of the tools that were left out.
    """

    body: Mapping[str, Any]
    images: int = 0
    image_bytes: int = 0
    unbounded: str = ""
    cache_factor: float = 1.0
    usd: float = 0.0
    left_out: tuple[str, ...] = ()

    @property
    def notice(self) -> str:
        """What the client is told of the tools that were left out; "" if none was."""
        if not self.left_out:
            return ""
        kinds = list(
            dict.fromkeys(_NOT_PRINTED.sub("?", kind)[:MAX_TYPE_CHARS] for kind in self.left_out)
        )
        more = f" and {len(kinds) - MAX_SHOWN} more" if len(kinds) > MAX_SHOWN else ""
        return (
            "left out tools that the provider runs, whose price is unknown: "
            f"{', '.join(kinds[:MAX_SHOWN])}{more}"
        )


def refuse_routing(body: Mapping[str, Any]) -> None:
    """Raise GatewayError 400 for a field that chooses the model, the host or the credentials, in
    whichever case.
    """
    for name in sorted(ROUTING_FIELDS.intersection(body)):
        if is_set(body[name], NOTHING):
            raise invalid_request(name, f"{name} is not supported: {DENIED_PARAMETERS[name]}")
    if not is_usual("".join(body)):
        _refuse_other_case(body, _ROUTING_NAMES)


def _refuse_other_case(body: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise GatewayError 400 for a field that a server may take for one of the names, since it does
    not regard the case.
    """
    for name in body:
        if not is_usual(name) and (meant := names.get(plain_name(name), name)) != name:
            raise invalid_request(
                name[:MAX_NAME_CHARS],
                f"{name[:MAX_NAME_CHARS]} is not supported: some servers read it as {meant}",
            )


def meter_request(
    body: Mapping[str, Any], wire: ProtocolName, model: ServedModel | None
) -> MeteredRequest:
    """Return a request of a key with a limit in USD, by the prices of the model's table (None: it
    has none).

    Raises GatewayError 400 for what costs money without a known price.
    """
    prices = _Prices(model)
    for name, value in body.items():
        if name in PRICED_FIELDS and _has_price(name, value):
            prices.add(name, name)
        if name in NUMBERS and not (value is None or type(value) in (int, float)):
            raise invalid_request(name, f"{name} must be a number, got {format_value(value, 80)}")
    _refuse_other_case(body, _COUNTED_NAMES)
    sent, left_out = _without_tools(body, wire, prices)
    images, image_bytes, unbounded = 0, 0, ""
    factor = max((_cache_factor(each) for each in (body, *_tools(body))), default=1.0)
    for place, part in _parts(body):
        match _kind_of(place, part, prices):
            case "image":
                images += 1
                image_bytes += _data_size(part)
            case "unbounded":
                unbounded = unbounded or _path(place)
        if "cache_control" in part:
            factor = max(factor, _cache_factor(part))
    return MeteredRequest(sent, images, image_bytes, unbounded, factor, prices.usd, left_out)


def _tools(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tools, but for what is none. Raises GatewayError 400 for more than can be
    searched.
    """
    tools = body.get("tools")
    if not isinstance(tools, list):
        return []
    _check_count((None, "tools"), len(tools))
    return [tool for tool in tools if isinstance(tool, dict)]


def _check_count(place: Place, count: int) -> None:
    if count > MAX_PARTS:
        where = _path(place)
        raise invalid_request(
            where,
            f"{where}: more than {MAX_PARTS:,} tools or parts, and the key has a limit in USD",
        )


def _type_in(value: Mapping[str, Any]) -> str:
    """Return the type of a tool or a part; "" if it has none."""
    kind = value.get("type")
    return kind if isinstance(kind, str) else ""


def _cache_factor(part: Mapping[str, Any]) -> float:
    """Return the price of a token that Anthropic writes into its cache, for five minutes or longer,
    by that of another one.
    """
    control = part.get("cache_control")
    if control is None:
        return 1.0
    is_short = not isinstance(control, Mapping) or control.get("ttl") in (None, "5m")
    return 1 + (SHORT_CACHE_SURCHARGE if is_short else LONG_CACHE_SURCHARGE)


class _Prices:
    """The operator's prices of fields and tools, and their sum for what a request has of them."""

    def __init__(self, model: ServedModel | None) -> None:
        self._where = f"[models.{model.name}]" if model else "the model's table"
        self._fields: Mapping[str, float] = model.field_prices if model else {}
        self._tools: Mapping[str, float] = model.tool_prices if model else {}
        self.include_audio = (
            model is not None
            and model.prices is not None
            and "input_audio" not in model.field_prices
        )
        self.usd = 0.0

    def add(self, name: str, where: str) -> None:
        """Add the price of a field. Raises GatewayError 400 that names its place."""
        if name not in self._fields:
            message = (
                f"{where} costs money without a known price, and the key has a limit in USD: "
                "leave it out"
            )
            allowed = f"the operator may price {name!r} in field-prices of {self._where}"
            raise invalid_request(where, f"{message}; {allowed}")
        self.usd += self._fields[name]

    def add_tool(self, kind: str) -> bool:
        """Add the price of a tool, by its type or its type without the date. Return whether it has
        one.
        """
        price = self._tools.get(kind, self._tools.get(_DATE.sub("", kind)))
        self.usd += price or 0.0
        return price is not None

    def covers_call(self, kind: str) -> bool:
        """Whether the tool has a price that made an earlier call, an item of this type."""
        return any(name.startswith(kind.removesuffix("_call")) for name in self._tools)


def _has_price(name: str, value: Any) -> bool:
    """Whether a field asks for what costs more than tokens."""
    if name == "context_management" and isinstance(value, Mapping):
        edits = value.get("edits") or ()
        kinds = (
            [edit.get("type") if isinstance(edit, Mapping) else None for edit in edits]
            if isinstance(edits, list)
            else [None]
        )
        return not all(isinstance(kind, str) and kind.startswith("clear_") for kind in kinds)
    return is_set(value, PRICED_FIELDS[name])


# ---- tools


def _without_tools(
    body: Mapping[str, Any], wire: ProtocolName, prices: _Prices
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the body without the tools that the provider runs and that have no price, and their
    types.
    """
    tools = _tools(body)
    left_out = [
        tool
        for tool in tools
        if not (is_run_by_client(tool, wire) or prices.add_tool(_name_of(tool)))
    ]
    if not left_out:
        return body, ()
    ids = set(map(id, left_out))
    kept = [tool for tool in body["tools"] if id(tool) not in ids]
    return _with_tools(body, kept, left_out), tuple(map(_name_of, left_out))


def is_run_by_client(tool: Mapping[str, Any], wire: ProtocolName) -> bool:
    """Whether the client runs a tool of a request, and not the provider of the model."""
    if _has_other_case(tool):
        return False
    if tool.get("type") is None:
        return {"chat": "function", "messages": "name"}.get(wire) in tool
    match kind := _type_in(tool):
        case "tool_search":
            return tool.get("execution") == "client"
        case "shell":
            return (
                isinstance(tool.get("environment"), Mapping)
                and tool["environment"].get("type") == "local"
            )
        case "namespace":
            inner = tool.get("tools")
            return isinstance(inner, list) and all(
                isinstance(each, Mapping) and _type_in(each) in GROUPED for each in inner
            )
    return kind in CLIENT_TOOLS or bool(CLIENT_TOOLS_WITH_DATE.fullmatch(kind))


def _name_of(tool: Mapping[str, Any]) -> str:
    """Return the type of a tool; of one without a type, its first key, which names it for some
    providers.
    """
    return str(tool.get("type") or next(iter(tool), "unnamed"))


def _with_tools(
    body: Mapping[str, Any], kept: list[Any], left_out: list[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the body with the tools that are kept. Raises GatewayError 400 if the client insists
    on another one.
    """
    choice = body.get("tool_choice")
    names = {
        name
        for tool in left_out
        for name in (_name_of(tool), tool.get("name"))
        if isinstance(name, str)
    }
    changed = {**body, "tools": kept}
    # of type "allowed_tools"
    if isinstance(choice, Mapping) and isinstance(choice.get("tools"), list):
        allowed = [
            tool
            for tool in choice["tools"]
            if not (isinstance(tool, Mapping) and _type_in(tool) in names)
        ]
        changed["tool_choice"] = {**choice, "tools": allowed}
        is_demanded = not allowed
    else:
        is_demanded = isinstance(choice, Mapping) and not names.isdisjoint(
            map(str, (choice.get("type"), choice.get("name")))
        )
    if is_demanded or (not kept and choice not in OPEN_CHOICES):
        message = (
            "tool_choice asks for a tool that the provider runs, whose price is unknown, and the "
            "key has a limit in USD"
        )
        raise invalid_request("tool_choice", f"{message}: {format_value(sorted(names), 200)}")
    if not kept:
        for name in ("tools", "tool_choice", "parallel_tool_calls"):
            changed.pop(name, None)
    return changed


# ---- images, files and other parts of contents


def _path(place: Place) -> str:
    """Return the name of a place in a request, such as "messages[0].content[1]"; of a long one its
    end.
    """
    steps: list[str] = []
    outer: Any = place
    while outer is not None:
        outer, step = outer
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step}" if outer else step)
    return "".join(reversed(steps))[-MAX_NAME_CHARS:]


def _has_other_case(part: Mapping[str, Any]) -> bool:
    """Whether a server may find something else in a part or a tool than is searched, since it does
    not regard the case of names.
    """
    return not is_usual("".join(part)) and any(
        not is_usual(name) and plain_name(name) in _PART_NAMES for name in part
    )


def _parts(body: Mapping[str, Any]) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Yield the messages, items and parts of the conversation with their places, but for those that
    are a text and no more.

    The arguments of tools are not searched. Raises GatewayError 400 for more than can be searched.
    """
    stack: list[tuple[Place, Any]] = [
        ((None, name), body[name]) for name in CONVERSATIONS if name in body
    ]
    count = 0
    while stack:
        place, value = stack.pop()
        if isinstance(value, list):
            parts = [
                (n, each)
                for n, each in enumerate(value)
                if isinstance(each, dict | list) and not _is_plain(each)
            ]
            count += len(parts)
            _check_count(place, count)
            stack.extend(((place, n), each) for n, each in parts)
        elif isinstance(value, dict):
            yield place, value
            stack.extend(
                ((place, name), value[name])
                for name in ("content", "output", "outputs")
                if name in value
            )
            if isinstance(source := value.get("source"), dict) and source.get("type") == "content":
                stack.append(((place, "source.content"), source.get("content")))


def _is_plain(part: Mapping[str, Any] | list[Any]) -> bool:
    """Whether a message or a part is a text and no more, as most are."""
    if len(part) != 2 or isinstance(part, list):
        return False
    return (
        part.get("type") in PLAIN_PARTS
        if "text" in part
        else "role" in part and isinstance(part.get("content"), str)
    )


def _kind_of(place: Place, part: Mapping[str, Any], prices: _Prices) -> str:
    """Return what a part costs besides its text: "image", "unbounded", or "". Raises GatewayError
    400 for an unknown price.
    """
    kind = _type_in(part)
    if _has_other_case(part):
        return "unbounded"
    if kind in TOOL_LISTS:
        _check_added_tools(place, part)
    if holder := _stored_file(part, kind):
        prices.add("file_id", _path((place, holder)))
    elif not kind and isinstance(part.get("role"), str) and place[0] in MESSAGE_LISTS:
        return _kind_of_message(place, part, prices)
    elif kind == "item_reference":
        prices.add("item_reference", _path(place))
    elif kind in AUDIO_PARTS and not prices.include_audio:
        prices.add("input_audio", _path(place))
    elif kind in IMAGE_PARTS:
        return "image" if _is_image(part) else "unbounded"
    elif not (_is_in_request(part, kind) or (kind in STORED_PARTS and prices.covers_call(kind))):
        return "unbounded"
    return ""


def _kind_of_message(place: Place, message: Mapping[str, Any], prices: _Prices) -> str:
    if message.get("audio") is not None:  # (an earlier answer, which the provider has stored)
        prices.add("audio", _path((place, "audio")))
    return "" if NO_MESSAGE_FIELDS.isdisjoint(message) else "unbounded"


def _is_image(part: Mapping[str, Any]) -> bool:
    """Whether a part of a type for images is one, as far as its fields and the data in the request
    say.
    """
    source = part.get("source")
    kind = source.get("media_type") if isinstance(source, dict) else None
    url = source.get("url") if isinstance(source, dict) else _url_of(part)
    is_other_data = (
        isinstance(url, str) and url[:5].lower() == "data:" and url[5:11].lower() != "image/"
    )
    is_other = is_other_data or (isinstance(kind, str) and not kind.lower().startswith("image/"))
    return not is_other and NO_IMAGE_FIELDS.isdisjoint(part)


def _url_of(image: Mapping[str, Any]) -> Any:
    url = image.get("image_url")
    return url.get("url") if isinstance(url, dict) else url


def _data_size(image: Mapping[str, Any]) -> int:
    """Return the size of an image that is in the request as base64."""
    url, source = _url_of(image), image.get("source")
    data = (
        source.get("data")
        if isinstance(source, dict)
        else url
        if isinstance(url, str) and url.startswith("data:")
        else None
    )
    return len(data) if isinstance(data, str) else 0


def _is_in_request(part: Mapping[str, Any], kind: str) -> bool:
    """Whether the text of a part is all that it costs."""
    if kind in STORED_PARTS:
        return part.get("id") is None or part.get(STORED_PARTS[kind]) is not None
    if kind in WORDS:
        return WORD_FIELDS.issuperset(part)
    if kind == "document":
        return isinstance(source := part.get("source"), dict) and _type_in(source) in TEXT_SOURCES
    if not kind and SHELL_OUTPUT.issuperset(part):
        return "stdout" in part
    return kind in TEXT_PARTS and MEDIA_FIELDS.isdisjoint(part)


def _stored_file(part: Mapping[str, Any], kind: str) -> str:
    """Return the place of the ID of a stored file in a part, or in an object in it; "" if there is
    none.
    """
    if part.get("file_id") is not None:
        return "file_id"
    if kind in TEXT_PARTS:
        return ""
    inner = (
        name
        for name, value in part.items()
        if isinstance(value, dict) and value.get("file_id") is not None
    )
    return next((f"{name}.file_id" for name in inner), "")


def _check_added_tools(place: Place, item: Mapping[str, Any]) -> None:
    """Raise GatewayError 400 for an item that adds tools which the provider runs."""
    for tool in _tools(item) + _tools({"tools": [item.get("tool")]}):
        if not is_run_by_client(tool, "messages"):
            where = _path(place)
            raise invalid_request(
                where, f"{where} adds tools that the provider runs, and the key has a limit in USD"
            )


def unbounded_error(where: str, model: str, *, is_configured: bool) -> GatewayError:
    """Return the error for a part that has no stated maximum, before a model whose context window
    is not known.
    """
    message = f"{where}: how many tokens it has is unknown, and the key has a limit in USD"
    allowed = (
        f"set context-window in [models.{model}]"
        if is_configured
        else f"name {model} as a model of the configuration"
    )
    return invalid_request(
        where,
        f"{message}: the operator may "
        f"{allowed}{'' if is_configured else ', with its context-window'}",
    )
