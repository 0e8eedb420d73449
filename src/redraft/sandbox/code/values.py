"""Python values as JSON and back, by value: what crosses the border between a sandbox and the
process that judges.

`decode` returns objects of exact built-in types, whatever class they had on the other side: no
`__eq__`, `__hash__` or `__repr__` of a candidate ever runs where its verdict is made. It takes its
input for hostile: sizes are limited before anything is built, and a set or a dictionary whose keys
were chosen to have equal hashes is refused.

Texts, small numbers, booleans, None and lists stand for themselves; anything else is `{"t": tag,
"v": content}`. Arrays and scalars of NumPy have a tag, too; what they are on this side is up to the
caller, so that nothing here imports NumPy.

The file runs on both sides of the border, so it imports from the standard library alone, and of
that only what costs nothing: each program that is tested waits for it. A value can only be of a
class whose module is loaded already.
"""

from __future__ import annotations

import sys
from _collections_abc import Callable, Iterable, Iterator, KeysView, Mapping
from _collections_abc import Set as AbstractSet
from itertools import islice
from math import isfinite, prod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Encode: TypeAlias = Callable[["Encoder", Any, int], Any]
    Decode: TypeAlias = Callable[["Decoder", Any, int], Any]

MAX_DIMENSIONS = 32  # of an array
MAX_DEPTH = 60  # levels of nesting; a message may have 200, and a level of a dictionary takes three
MAX_ITEMS = 200_000  # values in one value
MAX_ITERATOR_ITEMS = 100_000  # of a generator that are taken
MAX_HEX_DIGITS = 1_000_000  # of an integer
MAX_FRACTION_DIGITS = (
    20_000  # hexadecimal, of a numerator or denominator: reducing a fraction takes quadratic time
)
MAX_DECIMAL_CHARS = 10_000
MAX_EQUAL_HASHES = 64  # keys of one set or dictionary
# the kinds of values that a function can change
CONTAINERS = ("list", "dict", "set", "bytearray", "deque", "array")
# the types of the items of arrays that are passed by value, and the classes of these items
ARRAY_TYPES = {
    **dict.fromkeys(("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"), (int,)),
    **dict.fromkeys(("f2", "f4", "f8", "f12", "f16"), (float, int)),
    **dict.fromkeys(("c8", "c16", "c24", "c32"), (complex, float, int)),
    "b1": (bool,),
    "U": (str,),
}
# modules of classes whose objects arrive as what they are, if they pass by value
CARRIED = ("builtins", "datetime", "decimal", "fractions", "itertools", "numpy")
SAFE_INTEGER = 2**53  # every reader of JSON reads smaller ones exactly


class ValueCodecError(ValueError):
    """The value cannot be passed by value: its class, its size or its depth."""


class ValueClassError(ValueCodecError):
    """Objects of this class cannot be passed by value."""


def _refusal(name: str) -> str:
    return f"an object of the class {name[:80]!r} cannot be passed by value"


# ---- encoding


class Encoder:
    """Encodes values. `refer(object)` may return what says that there is an object that cannot be
    passed by value; None refuses.

    `containers` are the lists, dictionaries, sets and arrays in the values, in the order in which a
    `Decoder` builds them. With `share`, one that comes a second time is encoded as its number in
    that order.
    """

    def __init__(self, refer: Callable[[Any], Any] | None = None, *, share: bool = False) -> None:
        self.items = 0
        self.refer = refer
        self.share = share
        self.containers: list[Any] = []
        self.numbers: dict[int, int] = {}  # of containers, by `id`

    def encode(self, value: Any, depth: int = 0) -> Any:
        """Return the value as JSON. Raises ValueCodecError."""
        number = self.numbers.get(id(value))
        return self._encode(value, depth) if number is None else _with_tag("container", number)

    def encode_contents(self, containers: list[Any]) -> list[Any]:
        """Return what is in each of the containers; one of them in another is encoded as its
        number.
        """
        self.numbers = {id(container): n for n, container in enumerate(containers)}
        return [self._encode(container, 0) for container in list(containers)]

    def _encode(self, value: Any, depth: int) -> Any:
        self.items += 1
        if depth > MAX_DEPTH:
            raise ValueCodecError(
                f"the value is nested deeper than {MAX_DEPTH} levels, or contains itself"
            )
        if self.items > MAX_ITEMS:
            raise ValueCodecError(f"the value has more than {MAX_ITEMS:,} parts")
        if value is None or value is True or value is False:
            return value
        encode = _encoder_of(value) or _encode_object
        encoded = encode(self, value, depth + 1)
        if _is_container(encoded):
            if self.share:
                self.numbers[id(value)] = len(self.containers)
            self.containers.append(value)
        return encoded

    def encode_all(self, values: Iterable[Any], depth: int) -> list[Any]:
        return [self.encode(value, depth) for value in values]


def encode(value: Any) -> Any:
    """Return a value as JSON. An object of a subclass is encoded as its base. Raises
    ValueCodecError.
    """
    return Encoder().encode(value)


def _encoder_of(value: object) -> Encode | None:
    """Return what encodes a value of this class; None if nothing does."""
    for kinds, encode in _ENCODERS:
        if isinstance(value, kinds):
            return encode
    for module, name, encode in _LIBRARY_ENCODERS:
        if _is_of(value, module, name):
            return encode
    return None


def _is_of(value: object, module: str, name: str) -> bool:
    """Return whether a value is of a class of a module, which may not be loaded."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _is_container(encoded: object) -> bool:
    """Return whether what was encoded, or is decoded, is a value that a function can change."""
    if type(encoded) is not dict:
        return type(encoded) is list
    tag, content = encoded["t"], encoded["v"]
    return tag in CONTAINERS and not (tag == "array" and content[1] is None)


def _encode_object(encoder: Encoder, value: Any, _depth: int) -> Any:
    reference = encoder.refer(value) if encoder.refer else None
    if reference is None:
        raise ValueClassError(_refusal(type(value).__name__))
    return reference


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
    if type(value) is not float and _is_of(value, "numpy", "generic"):
        return _encode_array(_encoder, value, _depth)
    number = float.__float__(value) if isinstance(value, float) else float(value)
    return number if isfinite(number) else _with_tag("float", repr(number))


def _encode_list(encoder: Encoder, value: list[Any], depth: int) -> Any:
    return encoder.encode_all(list.__iter__(value), depth)


def _encode_dict(encoder: Encoder, value: Mapping[Any, Any], depth: int) -> Any:
    pairs = dict.items(value) if isinstance(value, dict) else value.items()
    return _with_tag(
        "dict", [[encoder.encode(k, depth), encoder.encode(v, depth)] for k, v in pairs]
    )


def _sequence(tag: str) -> Encode:
    return lambda encoder, value, depth: _with_tag(tag, encoder.encode_all(value, depth))


def _encode_tuple(encoder: Encoder, value: Any, depth: int) -> Any:
    items, kind = encoder.encode_all(tuple.__iter__(value), depth), type(value)
    fields = getattr(kind, "_fields", None) if kind is not tuple else None
    if (
        encoder.refer
        and type(fields) is tuple
        and len(fields) == len(items)
        and all(type(name) is str for name in fields)
    ):
        return _with_tag("named tuple", [kind.__name__[:80], list(fields), items])
    return _with_tag("tuple", items)


def _text(tag: str, to_text: Callable[[Any], str]) -> Encode:
    return lambda _encoder, value, _depth: _with_tag(tag, to_text(value))


def _attributes(tag: str, to_text: Callable[[Any], str], *names: str) -> Encode:
    """Return what encodes numbers that make up a value."""
    return lambda _encoder, value, _depth: _with_tag(
        tag, [to_text(getattr(value, name)) for name in names]
    )


def _encode_array(encoder: Encoder, value: Any, depth: int) -> Any:
    """Encode an array or a scalar of NumPy, whose shape is None: its type, its shape, and its items
    in a flat list.
    """
    kind = str(value.dtype.str)[1:] if value.dtype.kind != "U" else "U"
    if kind not in ARRAY_TYPES:
        raise ValueClassError(
            f"{_refusal(type(value).__name__)}: its items are of the type {str(value.dtype)[:40]!r}"
        )
    is_array = _is_of(value, "numpy", "ndarray")
    if is_array and value.size > MAX_ITEMS:
        raise ValueCodecError(f"the value has more than {MAX_ITEMS:,} parts")
    items = encoder.encode_all(
        value.ravel().tolist() if is_array else [_python_number(value)], depth
    )
    return _with_tag("array", [kind, list(value.shape) if is_array else None, items])


def _python_number(value: Any) -> Any:
    """Return the number of a scalar of NumPy; those that are more exact than Python's become float
    or complex.
    """
    item = value.item()
    return (
        item
        if item is not value and type(item) is not type(value)
        else (complex if value.dtype.kind == "c" else float)(value)
    )


def _encode_iterator(encoder: Encoder, value: Iterator[Any], depth: int) -> Any:
    # it is awaited, such as the next item of an async generator
    if encoder.refer and hasattr(type(value), "__await__"):
        return encoder.refer(value)
    items = list(islice(value, MAX_ITERATOR_ITEMS + 1))
    if len(items) > MAX_ITERATOR_ITEMS:
        raise ValueClassError(f"an iterator yields more than {MAX_ITERATOR_ITEMS:,} values")
    return _with_tag("iterator", encoder.encode_all(items, depth))


_ENCODERS: tuple[tuple[Any, Encode], ...] = (
    (str, _encode_str),
    (int, _encode_int),
    (float, _encode_float),
    (list, _encode_list),
    (tuple, _encode_tuple),
    (dict, _encode_dict),
    (frozenset, _sequence("frozenset")),
    ((set, KeysView), _sequence("set")),
    (bytes, _text("bytes", bytes.hex)),
    (bytearray, _text("bytearray", bytearray.hex)),
    (complex, _attributes("complex", float.hex, "real", "imag")),
    (range, _attributes("range", hex, "start", "stop", "step")),
    (Iterator, _encode_iterator),
    (AbstractSet, _sequence("set")),
    (Mapping, _encode_dict),
)
_LIBRARY_ENCODERS: tuple[tuple[str, str, Encode], ...] = (
    ("fractions", "Fraction", _attributes("fraction", hex, "numerator", "denominator")),
    ("decimal", "Decimal", _text("decimal", str)),
    ("datetime", "datetime", _text("datetime", lambda value: value.isoformat())),
    ("datetime", "date", _text("date", lambda value: value.isoformat())),
    ("datetime", "time", _text("time", lambda value: value.isoformat())),
    ("datetime", "timedelta", _attributes("timedelta", hex, "days", "seconds", "microseconds")),
    ("collections", "deque", _sequence("deque")),
    ("numpy", "generic", _encode_array),
    ("numpy", "ndarray", _encode_array),
    ("numbers", "Integral", _encode_int),  # such as those of gmpy2
    ("numbers", "Real", _encode_float),
)


# ---- decoding


class Decoder:
    """Decodes values.

    - `resolve(class name, number)` returns what stands for an object that did not pass; one that
      is awaited has a number. Without it, the tag "object" is refused.
    - `container(number)` returns what stands for a container that was encoded before; without it,
      that is refused.
    - `named(class name, names)` returns what makes a named tuple of its items; without it, they
      become a tuple.
    - `array(type, shape, items)` makes an array of NumPy; shape None: a scalar. Without it, arrays
      become lists, one inside the other, and scalars the number that they are. `array` may raise
      ValueCodecError.

    `containers` are the lists, dictionaries, sets and arrays that were built, the inner ones first.
    """

    def __init__(
        self,
        resolve: Callable[[str, int | None], Any] | None = None,
        container: Callable[[int], Any] | None = None,
        array: Callable[[str, list[int] | None, list[Any]], Any] | None = None,
        named: Callable[[str, list[str]], Callable[[list[Any]], Any]] | None = None,
    ) -> None:
        self.items = 0
        self.resolve = resolve
        self.container = container
        self.array = array or nested_lists
        self.named = named or _tuple_maker
        self.makers: dict[
            tuple[str, ...], Callable[[list[Any]], Any]
        ] = {}  # of named tuples, by their names
        self.containers: list[Any] = []

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
            value: Any = self.decode_list(data, depth + 1)
        elif type(data) is dict and set(data) == {"t", "v"} and isinstance(data["t"], str):
            value = self._decode_tagged(data["t"], data["v"], depth + 1)
        else:
            raise ValueCodecError("it is no encoded value")
        if _is_container(data):
            self.containers.append(value)
        return value

    def _decode_tagged(self, tag: str, content: Any, depth: int) -> Any:
        if tag == "object":
            return self._decode_object(content)
        if tag == "container":
            return self._decode_container(content)
        decode = _DECODERS.get(tag)
        if decode is None:
            raise ValueCodecError(f"there is no kind of value {tag[:40]!r}")
        try:
            return decode(self, content, depth)
        except ValueCodecError:
            raise
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ValueCodecError(f"it is no {tag} ({type(error).__name__})") from None

    def _decode_object(self, content: object) -> Any:
        match content:
            case [str() as name, (int() | None) as number, bool()] if self.resolve:
                return self.resolve(name[:80], number)
            case [str() as name, _, _]:
                raise ValueClassError(_refusal(name))
        raise ValueCodecError("it is no object")

    def _decode_container(self, number: object) -> Any:
        if self.container is None or type(number) is not int or number < 0:
            raise ValueCodecError("it is no container that is known")
        try:
            return self.container(number)
        except IndexError:
            raise ValueCodecError("it is no container that is known") from None

    def decode_list(self, content: object, depth: int) -> list[Any]:
        if type(content) is not list:
            raise ValueCodecError("it is no list of values")
        return [self.decode(item, depth) for item in content]


def decode(data: Any) -> Any:
    """Return the value of exact built-in types that `encode` made JSON of. Raises ValueCodecError
    for anything else.
    """
    return Decoder().decode(data)


def _checked_text(content: object, limit: int) -> str:
    if type(content) is not str or len(content) > limit:
        raise ValueCodecError(f"it is no text of at most {limit:,} characters")
    return content


def _hex_number(content: object, limit: int = MAX_HEX_DIGITS) -> int:
    return int(_checked_text(content, limit + 3), 16)


def _hex_float(content: object) -> float:
    return float.fromhex(_checked_text(content, 40))


def _checked_keys(keys: list[Any]) -> list[Any]:
    """Return the keys. Raises ValueCodecError if many have one hash: a set or dictionary of them
    takes quadratic time.
    """
    counts: dict[int, int] = {}
    for key in keys:
        counts[hash(key)] = counts.get(hash(key), 0) + 1
    if counts and max(counts.values()) > MAX_EQUAL_HASHES:
        raise ValueCodecError("too many keys of a set or dictionary have the same hash")
    return keys


def _decode_dict(decoder: Decoder, content: object, depth: int) -> dict[Any, Any]:
    if type(content) is not list or not all(
        type(pair) is list and len(pair) == 2 for pair in content
    ):
        raise ValueCodecError("it is no list of pairs")
    keys = _checked_keys([decoder.decode(key, depth) for key, _ in content])
    return dict(zip(keys, (decoder.decode(value, depth) for _, value in content), strict=True))


def _tuple_maker(_name: str, _fields: list[str]) -> Callable[[list[Any]], Any]:
    return tuple


def _decode_named_tuple(decoder: Decoder, content: object, depth: int) -> Any:
    match content:
        case [str() as name, list() as fields, list() as items] if len(fields) == len(items):
            names = [_checked_text(field, 80) for field in fields]
            values = decoder.decode_list(items, depth)
            key = (name[:80], *names)
            if key not in decoder.makers:
                decoder.makers[key] = decoder.named(name[:80], names)
            return decoder.makers[key](values)
    raise ValueCodecError("it is no named tuple")


def _decode_array(decoder: Decoder, content: object, depth: int) -> Any:
    match content:
        case [str() as kind, (list() | None) as shape, list() as items] if kind in ARRAY_TYPES:
            values = decoder.decode_list(items, depth)
            if _has_shape(values, [1] if shape is None else shape) and all(
                type(value) in ARRAY_TYPES[kind] for value in values
            ):
                return decoder.array(kind, shape, values)
    raise ValueCodecError("it is no array, or not of this shape")


def _has_shape(items: list[Any], sizes: list[Any]) -> bool:
    return (
        len(sizes) <= MAX_DIMENSIONS
        and all(type(size) is int and 0 <= size <= MAX_ITEMS for size in sizes)
        and prod(sizes) == len(items)
        and prod(size or 1 for size in sizes) <= MAX_ITEMS
    )


def nested_lists(kind: str, shape: list[int] | None, items: list[Any]) -> Any:
    """Return the items of an array as lists, one inside the other; of a scalar or an array without
    dimensions, its only item.
    """
    if not shape:
        return items[0]
    first, *others = shape
    size = prod(others)
    return [nested_lists(kind, others, items[n * size : (n + 1) * size]) for n in range(first)]


def make_array(kind: str, shape: list[int] | None, items: list[Any]) -> Any:
    """Return an array of NumPy, or a scalar of it. Only for a process in a sandbox, where NumPy was
    asked for.
    """
    import numpy as np

    array = np.array(items, kind)
    return array[0] if shape is None else array.reshape(shape)


def named_tuple_class(name: str, fields: list[str]) -> Any:
    """Return the class of named tuples; `tuple` if these are no names that one can have. Only for a
    process in a sandbox.
    """
    from collections import namedtuple

    try:
        return namedtuple(name, fields)  # noqa: PYI024
    except ValueError:
        return tuple


def named_tuple_maker(name: str, fields: list[str]) -> Callable[[list[Any]], Any]:
    """Return what makes a named tuple of its items."""
    kind = named_tuple_class(name, fields)
    return tuple if kind is tuple else lambda items: kind(*items)


def _decode_float(_decoder: Decoder, content: Any, _depth: int) -> float:
    if content not in ("nan", "inf", "-inf"):
        raise ValueCodecError("it is no float")
    return float(content)


def _library(module: str, name: str) -> Callable[..., Any]:
    """Return a function that calls a class of the standard library, which is imported when it is
    needed.
    """

    def make(*content: Any) -> Any:
        kind = getattr(__import__(module), name)
        return getattr(kind, "fromisoformat", kind)(*content)

    return make


def _from_text(make: Callable[[str], Any], limit: int) -> Decode:
    return lambda _decoder, content, _depth: make(_checked_text(content, limit))


def _from_attributes(make: Callable[..., Any], read: Callable[[Any], Any], count: int) -> Decode:
    def decode(_decoder: Any, content: Any, _depth: int) -> Any:
        if not isinstance(content, list) or len(content) != count:
            raise ValueError(f"it has not {count} parts")
        return make(*map(read, content))

    return decode


def _from_list(make: Callable[[list[Any]], Any]) -> Decode:
    return lambda decoder, content, depth: make(decoder.decode_list(content, depth))


_DECODERS: dict[str, Decode] = {
    "str": _from_text(lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"), 2**26),
    "int": lambda _decoder, content, _depth: _hex_number(content),
    "float": _decode_float,
    "tuple": _from_list(tuple),
    "named tuple": _decode_named_tuple,
    "dict": _decode_dict,
    "set": _from_list(lambda items: set(_checked_keys(items))),
    "frozenset": _from_list(lambda items: frozenset(_checked_keys(items))),
    "bytes": _from_text(bytes.fromhex, 2**26),
    "bytearray": _from_text(bytearray.fromhex, 2**26),
    "complex": _from_attributes(complex, _hex_float, 2),
    "fraction": _from_attributes(
        _library("fractions", "Fraction"), lambda part: _hex_number(part, MAX_FRACTION_DIGITS), 2
    ),
    "decimal": _from_text(_library("decimal", "Decimal"), MAX_DECIMAL_CHARS),
    "datetime": _from_text(_library("datetime", "datetime"), 64),
    "date": _from_text(_library("datetime", "date"), 64),
    "time": _from_text(_library("datetime", "time"), 64),
    "timedelta": _from_attributes(_library("datetime", "timedelta"), _hex_number, 3),
    "range": _from_attributes(range, _hex_number, 3),
    "deque": _from_list(_library("collections", "deque")),
    "iterator": _from_list(iter),
    "array": _decode_array,
}
