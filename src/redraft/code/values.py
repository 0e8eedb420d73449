"""Python values as JSON and back, by value: what crosses the border between a sandbox and the process that judges.

`decode` returns objects of exact built-in types, whatever class they had on the other side: no `__eq__`, `__hash__` or `__repr__`
of a candidate ever runs where its verdict is made. It takes its input for hostile: sizes are limited before anything is built, and
a set or a dictionary whose keys were chosen to have equal hashes is refused.

Texts, small numbers, booleans, None and lists stand for themselves; anything else is `{"t": tag, "v": content}`.

The file runs on both sides of the border, so it imports from the standard library alone, and of that only what costs nothing: each
program that is tested waits for it. A value can only be of a class whose module is loaded already.
"""

from __future__ import annotations

import sys
from _collections_abc import Callable, Iterable, Iterator, KeysView, Mapping
from _collections_abc import Set as AbstractSet
from itertools import islice
from math import isfinite

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    from fractions import Fraction
    from typing import Any

MAX_DEPTH = 60  # levels of nesting; a message may have 200, and a level of a dictionary takes three
MAX_ITEMS = 200_000  # values in one value
MAX_ITERATOR_ITEMS = 100_000  # of a generator that are taken
MAX_HEX_DIGITS = 1_000_000  # of an integer
MAX_FRACTION_DIGITS = 20_000  # hexadecimal, of a numerator or denominator: reducing a fraction takes quadratic time
MAX_DECIMAL_CHARS = 10_000
MAX_EQUAL_HASHES = 64  # keys of one set or dictionary
SAFE_INTEGER = 2**53  # every reader of JSON reads smaller ones exactly


class ValueCodecError(ValueError):
    """The value cannot be passed by value: its class, its size or its depth."""


# ---- encoding


class Encoder:
    """Encodes one value. `refer(object)` may return what stands for an object that cannot be passed by value; None refuses."""

    def __init__(self, refer: Callable[[Any], Any] | None = None) -> None:
        self.items = 0
        self.refer = refer

    def encode(self, value: Any, depth: int = 0) -> Any:
        """Return the value as JSON. Raises ValueCodecError."""
        self.items += 1
        if depth > MAX_DEPTH:
            raise ValueCodecError(f"the value is nested deeper than {MAX_DEPTH} levels, or contains itself")
        if self.items > MAX_ITEMS:
            raise ValueCodecError(f"the value has more than {MAX_ITEMS:,} parts")
        if value is None or value is True or value is False:
            return value
        for kinds, encode in _ENCODERS:
            if isinstance(value, kinds):
                return encode(self, value, depth + 1)
        for module, name, encode in _LIBRARY_ENCODERS:
            kind = getattr(sys.modules.get(module), name, None)
            if isinstance(kind, type) and isinstance(value, kind):
                return encode(self, value, depth + 1)
        reference = self.refer(value) if self.refer else None
        if reference is None:
            raise ValueCodecError(f"an object of the class {type(value).__name__[:80]!r} cannot be passed by value")
        return reference

    def encode_all(self, values: Iterable[Any], depth: int) -> list[Any]:
        return [self.encode(value, depth) for value in values]


def encode(value: Any) -> Any:
    """Return a value as JSON. An object of a subclass is encoded as its base. Raises ValueCodecError."""
    return Encoder().encode(value)


def _with_tag(tag: str, content: Any) -> dict[str, Any]:
    return {"t": tag, "v": content}


def _encode_str(_encoder: Encoder, value: str, _depth: int) -> Any:
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return _with_tag("str", text.encode("utf-8", "surrogatepass").hex())
    return text


def _encode_int(_encoder: Encoder, value: Any, _depth: int) -> Any:
    number = int.__int__(value) if isinstance(value, int) else int(value)
    if abs(number) < SAFE_INTEGER:
        return number
    if number.bit_length() > 4 * MAX_HEX_DIGITS:
        raise ValueCodecError(f"an integer has more than {4 * MAX_HEX_DIGITS:,} bits")
    return _with_tag("int", hex(number))


def _encode_float(_encoder: Encoder, value: Any, _depth: int) -> Any:
    number = float.__float__(value) if isinstance(value, float) else float(value)
    return number if isfinite(number) else _with_tag("float", repr(number))


def _encode_list(encoder: Encoder, value: list[Any], depth: int) -> Any:
    return encoder.encode_all(list.__iter__(value), depth)


def _encode_dict(encoder: Encoder, value: Mapping[Any, Any], depth: int) -> Any:
    pairs = dict.items(value) if isinstance(value, dict) else value.items()
    return _with_tag("dict", [[encoder.encode(k, depth), encoder.encode(v, depth)] for k, v in pairs])


def _sequence(tag: str) -> Callable[[Encoder, Any, int], Any]:
    return lambda encoder, value, depth: _with_tag(tag, encoder.encode_all(value, depth))


def _text(tag: str, to_text: Callable[[Any], str]) -> Callable[[Encoder, Any, int], Any]:
    return lambda _encoder, value, _depth: _with_tag(tag, to_text(value))


def _encode_iterator(encoder: Encoder, value: Iterator[Any], depth: int) -> Any:
    items = list(islice(value, MAX_ITERATOR_ITEMS + 1))
    if len(items) > MAX_ITERATOR_ITEMS:
        raise ValueCodecError(f"an iterator yields more than {MAX_ITERATOR_ITEMS:,} values")
    return _with_tag("iterator", encoder.encode_all(items, depth))


def _encode_fraction(_encoder: Encoder, value: Fraction, _depth: int) -> Any:
    return _with_tag("fraction", [hex(value.numerator), hex(value.denominator)])


def _encode_complex(_encoder: Encoder, value: complex, _depth: int) -> Any:
    return _with_tag("complex", [repr(float(value.real)), repr(float(value.imag))])


def _encode_timedelta(_encoder: Encoder, value: dt.timedelta, _depth: int) -> Any:
    return _with_tag("timedelta", [value.days, value.seconds, value.microseconds])


def _encode_range(_encoder: Encoder, value: range, _depth: int) -> Any:
    return _with_tag("range", [hex(value.start), hex(value.stop), hex(value.step)])


_ENCODERS: tuple[tuple[Any, Callable[[Encoder, Any, int], Any]], ...] = (
    (str, _encode_str),
    (int, _encode_int),
    (float, _encode_float),
    (list, _encode_list),
    (tuple, _sequence("tuple")),
    (dict, _encode_dict),
    (frozenset, _sequence("frozenset")),
    ((set, KeysView), _sequence("set")),
    (bytes, _text("bytes", bytes.hex)),
    (bytearray, _text("bytearray", bytearray.hex)),
    (complex, _encode_complex),
    (range, _encode_range),
    (Iterator, _encode_iterator),
    (AbstractSet, _sequence("set")),
    (Mapping, _encode_dict),
)
_LIBRARY_ENCODERS: tuple[tuple[str, str, Callable[[Encoder, Any, int], Any]], ...] = (
    ("fractions", "Fraction", _encode_fraction),
    ("decimal", "Decimal", _text("decimal", str)),
    ("datetime", "datetime", _text("datetime", lambda value: value.isoformat())),
    ("datetime", "date", _text("date", lambda value: value.isoformat())),
    ("datetime", "time", _text("time", lambda value: value.isoformat())),
    ("datetime", "timedelta", _encode_timedelta),
    ("collections", "deque", _sequence("deque")),
    ("numbers", "Integral", _encode_int),  # such as those of numpy
    ("numbers", "Real", _encode_float),
)


# ---- decoding


class Decoder:
    """Decodes one value. `resolve(content)` returns what the tag "object" stands for; without it, that tag is refused."""

    def __init__(self, resolve: Callable[[Any], Any] | None = None) -> None:
        self.items = 0
        self.resolve = resolve

    def decode(self, data: Any, depth: int = 0) -> Any:
        """Return the value of exact built-in types. Raises ValueCodecError."""
        self.items += 1
        if depth > MAX_DEPTH:
            raise ValueCodecError(f"the value is nested deeper than {MAX_DEPTH} levels")
        if self.items > MAX_ITEMS:
            raise ValueCodecError(f"the value has more than {MAX_ITEMS:,} parts")
        if data is None or type(data) in (bool, int, float, str):
            return data
        if type(data) is list:
            return [self.decode(item, depth + 1) for item in data]
        if type(data) is not dict or set(data) != {"t", "v"} or not isinstance(data["t"], str):
            raise ValueCodecError("it is no encoded value")
        return self._decode_tagged(data["t"], data["v"], depth + 1)

    def _decode_tagged(self, tag: str, content: Any, depth: int) -> Any:
        if tag == "object":
            return self._decode_object(content)
        decode = _DECODERS.get(tag)
        if decode is None:
            raise ValueCodecError(f"there is no kind of value {tag[:40]!r}")
        try:
            return decode(self, content, depth)
        except ValueCodecError:
            raise
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ValueCodecError(f"it is no {tag} ({type(error).__name__})") from None

    def _decode_object(self, content: Any) -> Any:
        match content:
            case [int() as number, str() as name] if self.resolve:
                return self.resolve([number, name[:80]])
            case [int(), str() as name]:
                raise ValueCodecError(f"an object of the class {name[:80]!r} cannot be passed by value")
        raise ValueCodecError("it is no object")

    def decode_list(self, content: Any, depth: int) -> list[Any]:
        if type(content) is not list:
            raise ValueCodecError("it is no list of values")
        return [self.decode(item, depth) for item in content]


def decode(data: Any) -> Any:
    """Return the value of exact built-in types that `encode` made JSON of. Raises ValueCodecError for anything else."""
    return Decoder().decode(data)


def _checked_text(content: Any, limit: int) -> str:
    if type(content) is not str or len(content) > limit:
        raise ValueCodecError(f"it is no text of at most {limit:,} characters")
    return content


def _hex_number(content: Any, limit: int = MAX_HEX_DIGITS) -> int:
    return int(_checked_text(content, limit + 3), 16)


def _checked_keys(keys: list[Any]) -> list[Any]:
    """Return the keys. Raises ValueCodecError if many have one hash: a set or dictionary of them takes quadratic time."""
    counts: dict[int, int] = {}
    for key in keys:
        counts[hash(key)] = counts.get(hash(key), 0) + 1
    if counts and max(counts.values()) > MAX_EQUAL_HASHES:
        raise ValueCodecError("too many keys of a set or dictionary have the same hash")
    return keys


def _decode_dict(decoder: Decoder, content: Any, depth: int) -> dict[Any, Any]:
    if type(content) is not list or not all(type(pair) is list and len(pair) == 2 for pair in content):
        raise ValueCodecError("it is no list of pairs")
    keys = _checked_keys([decoder.decode(key, depth) for key, _ in content])
    return dict(zip(keys, (decoder.decode(value, depth) for _, value in content), strict=True))


def _decode_fraction(_decoder: Decoder, content: Any, _depth: int) -> Fraction:
    from fractions import Fraction

    numerator, denominator = (_hex_number(part, MAX_FRACTION_DIGITS) for part in content)
    return Fraction(numerator, denominator)


def _decode_float(_decoder: Decoder, content: Any, _depth: int) -> float:
    if content not in ("nan", "inf", "-inf"):
        raise ValueCodecError("it is no float")
    return float(content)


def _decode_complex(_decoder: Decoder, content: Any, _depth: int) -> complex:
    real, imaginary = (float(_checked_text(part, 40)) for part in content)
    return complex(real, imaginary)


def _decode_timedelta(_decoder: Decoder, content: Any, _depth: int) -> dt.timedelta:
    from datetime import timedelta

    days, seconds, microseconds = content
    return timedelta(days, seconds, microseconds)


def _decode_range(_decoder: Decoder, content: Any, _depth: int) -> range:
    start, stop, step = map(_hex_number, content)
    return range(start, stop, step)


def _library(module: str, name: str) -> Callable[[Any], Any]:
    """Return a function that calls a class of the standard library, which is imported when it is needed."""

    def make(content: Any) -> Any:
        kind = getattr(__import__(module), name)
        return getattr(kind, "fromisoformat", kind)(content)

    return make


def _from_text(make: Callable[[str], Any], limit: int) -> Callable[[Decoder, Any, int], Any]:
    return lambda _decoder, content, _depth: make(_checked_text(content, limit))


def _from_list(make: Callable[[list[Any]], Any]) -> Callable[[Decoder, Any, int], Any]:
    return lambda decoder, content, depth: make(decoder.decode_list(content, depth))


_DECODERS: dict[str, Callable[[Decoder, Any, int], Any]] = {
    "str": _from_text(lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"), 2**26),
    "int": lambda _decoder, content, _depth: _hex_number(content),
    "float": _decode_float,
    "tuple": _from_list(tuple),
    "dict": _decode_dict,
    "set": _from_list(lambda items: set(_checked_keys(items))),
    "frozenset": _from_list(lambda items: frozenset(_checked_keys(items))),
    "bytes": _from_text(bytes.fromhex, 2**26),
    "bytearray": _from_text(bytearray.fromhex, 2**26),
    "complex": _decode_complex,
    "fraction": _decode_fraction,
    "decimal": _from_text(_library("decimal", "Decimal"), MAX_DECIMAL_CHARS),
    "datetime": _from_text(_library("datetime", "datetime"), 64),
    "date": _from_text(_library("datetime", "date"), 64),
    "time": _from_text(_library("datetime", "time"), 64),
    "timedelta": _decode_timedelta,
    "range": _decode_range,
    "deque": _from_list(_library("collections", "deque")),
    "iterator": _from_list(iter),
}
