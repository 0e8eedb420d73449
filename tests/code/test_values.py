"""Values cross the border of the sandbox by value: what comes back is of exact built-in types, and
hostile input is refused.
"""

import datetime as dt
import json
import math
import time
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from each_row import each_row
from redraft.sandbox.code.values import (
    MAX_DEPTH,
    Decoder,
    Encoder,
    ValueCodecError,
    decode,
    encode,
    named_tuple_maker,
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**60, 2**300)
    | st.floats(allow_nan=False)
    | st.text()
    | st.text(st.characters(categories=["Cs", "L"]))
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.sampled_from([None, dt.UTC]))
    | st.dates()
    | st.times()
    | st.timedeltas()
)
hashables = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(hashables, inner, max_size=3)
        | st.sets(hashables, max_size=3)
        | st.builds(bytearray, st.binary())
        | st.builds(deque, st.lists(inner, max_size=3))
    ),
    max_leaves=10,
)
TAGS = (
    "str int float tuple dict set frozenset bytes bytearray complex fraction decimal datetime date time timedelta range deque".split()
    + [
        "iterator",
        "object",
    ]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.fixed_dictionaries({"t": st.sampled_from(TAGS), "v": inner})
    ),
    max_leaves=12,
)
BUILT_IN = (
    *(
        type(None),
        bool,
        int,
        float,
        str,
        bytes,
        bytearray,
        complex,
        list,
        tuple,
        dict,
        set,
        frozenset,
        range,
        deque,
    ),
    *(Decimal, Fraction, dt.datetime, dt.date, dt.time, dt.timedelta, type(iter([]))),
)


def exact(value):
    """Whether a value and everything in it is of an exact built-in type."""
    if isinstance(value, dict):
        return type(value) is dict and all(exact(k) and exact(v) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return type(value) in BUILT_IN and all(map(exact, value))
    return type(value) in BUILT_IN


def through_json(value):
    return json.loads(json.dumps(encode(value)))


@given(values)
@example(
    [
        None,
        True,
        2**300,
        -(2**63),
        -0.0,
        math.inf,
        5e-324,
        "",
        "\0",
        "\ud800",
        "\U0001f600",
        b"\xff",
        bytearray(b"\0"),
        1j,
    ]
)
@example(
    (
        (),
        {},
        set(),
        frozenset({(1, frozenset())}),
        deque([deque()]),
        {(1, "a"): {None: [()]}, 1.5: {2}},
    )
)
@example(
    [
        Fraction(-1, 3),
        Decimal("-0.10"),
        Decimal("Infinity"),
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.date.max,
        dt.time.max,
        dt.timedelta(-1, 1),
    ]
)
def test_values_come_back_equal_and_of_the_same_type(value):
    """Every value that can be sent comes back as it was."""
    back = decode(through_json(value))
    assert back == value
    assert type(back) is type(value)
    assert exact(back)


@pytest.mark.parametrize(
    "value", [None, True, -1, 1.5, "", "1", [], [[]], {}, [1, 2, 3], "9" * 5000, 10**40]
)
def test_what_each_tag_may_hold(value):
    """The value of another kind is refused, or read; nothing else is raised."""
    for tag in TAGS:
        try:
            assert exact(decode({"t": tag, "v": value}))
        except ValueCodecError:
            continue


@given(json_values)
def test_whatever_json_is_decoded_nothing_else_is_raised(data):
    """A hostile message is a value of built-in types, or refused by the one error."""
    try:
        value = decode(data)
    except ValueCodecError:
        return
    assert exact(value)


class Liar:
    def __eq__(self, other):
        return True

    __hash__ = None


class LyingInt(int):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


LyingStr = type(
    "LyingStr",
    (str,),
    {"__eq__": lambda s, o: True, "__hash__": str.__hash__, "__str__": lambda s: "lie"},
)
LyingList = type(
    "LyingList", (list,), {"__eq__": lambda s, o: True, "__iter__": lambda s: iter([42])}
)
LyingDict = type("LyingDict", (dict,), {"__eq__": lambda s, o: True, "items": lambda s: [(42, 42)]})
LyingFloat = type(
    "LyingFloat", (float,), {"__eq__": lambda s, o: True, "__float__": lambda s: 42.0}
)
Point = namedtuple("Point", "x y")
Color = IntEnum("Color", "RED")


@pytest.mark.parametrize(
    ("value", "base"),
    [
        (LyingInt(3), 3),
        (LyingStr("a"), "a"),
        (LyingList([1]), [1]),
        (LyingDict({1: 2}), {1: 2}),
        (LyingFloat(1.5), 1.5),
        (Point(1, 2), (1, 2)),
        (Color.RED, 1),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(int, {1: 2}), {1: 2}),
        (Counter("aab"), {"a": 2, "b": 1}),
        ({1: 2}.keys(), {1}),
    ],
)
def test_a_subclass_is_its_base(value, base):
    """Nothing of a class that overrides comparison, iteration or conversion survives."""
    back = decode(through_json(value))
    assert back == base
    assert exact(back)


@pytest.mark.parametrize(
    "value", [Liar(), object(), print, type, Exception("e"), [Liar()], {"a": Liar()}, lambda: 1]
)
def test_an_object_is_refused_unless_it_may_be_referred_to(value):
    """Objects of other classes are never taken for values."""
    with pytest.raises(ValueCodecError, match="cannot be passed by value"):
        encode(value)
    with pytest.raises(ValueCodecError, match="cannot be passed by value"):
        decode(Encoder(lambda _: {"t": "object", "v": ["Liar", None, False]}).encode(value))


def test_what_stands_for_an_object_is_up_to_the_one_who_reads():
    """The name of its class, and its number if it is awaited."""
    decoder = Decoder(lambda *content: content)
    assert decoder.decode([{"t": "object", "v": ["Stack", None, True]}]) == [("Stack", None)]


ARRAYS = {
    "i8": ([2, 2], [1, 2, 3, 4], [[1, 2], [3, 4]]),
    "f4": ([1, 2, 1], [0.5, 2.0], [[[0.5], [2.0]]]),
    "b1": ([], [True], True),
    "U": (None, ["a"], "a"),
    "c8": ([2, 0], [], [[], []]),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_become_lists_one_in_the_other(kind):
    """Without NumPy on this side; without dimensions they are their only item."""
    shape, items, lists = ARRAYS[kind]
    content = {"t": "array", "v": [kind, shape, encode(items)]}
    assert decode(content) == lists
    assert Decoder(array=lambda *parts: parts).decode(content) == (kind, shape, items)


@pytest.mark.parametrize(
    "content",
    [
        ["O", [1], [1]],
        ["i8", [1], ["a"]],
        ["i8", [2], [1]],
        ["i8", [-1, -1], [1]],
        ["i8", [0, 10**12], []],
        ["i8", [1] * 40, [1]],
        ["f8", [1.0], [1.0]],
        ["i8", "1", [1]],
        ["i8", None, []],
        [],
        None,
    ],
)
def test_what_is_no_array_is_refused(content):
    """Its type, its shape and each item are checked before anything is made of it."""
    with pytest.raises(ValueCodecError):
        decode({"t": "array", "v": content})


@given(values)
def test_containers_have_the_same_numbers_on_both_sides(value):
    """So that one side can say what the other's lists, dictionaries and sets contain now."""
    encoder, decoder = Encoder(), Decoder()
    decoder.decode(json.loads(json.dumps(encoder.encode(value))))
    assert decoder.containers == encoder.containers
    contents = Encoder().encode_contents(encoder.containers)
    again = Decoder(container=encoder.containers.__getitem__)
    assert [again.decode(json.loads(json.dumps(each))) for each in contents] == encoder.containers


def test_a_container_that_is_shared_stays_one():
    """Two rows of a table may be the same list."""
    row = [0]
    decoder = Decoder(container=lambda number: decoder.containers[number])
    table = decoder.decode(Encoder(share=True).encode([row, row, [0]]))
    assert table[0] is table[1] is not table[2] and table == [[0], [0], [0]]


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf, -0.0])
def test_special_floats_pass(special):
    """nan, infinities and the sign of zero survive, also through JSON that knows none of them."""
    back = decode(json.loads(json.dumps(encode(special), allow_nan=False)))
    assert repr(back) == repr(special)


def nested(depth, value=None):
    for _ in range(depth):
        value = [value]
    return value


def cyclic():
    value = []
    value.append(value)
    return value


def laughs():
    value = "ha"
    for _ in range(12):
        value = [value] * 10
    return value


@pytest.mark.parametrize(
    "value",
    [
        nested(MAX_DEPTH + 2),
        nested(900),
        cyclic(),
        laughs(),
        (n for n in iter(int, 1)),
        1 << 5_000_000,
    ],
    ids=["deep", "deeper", "cyclic", "billion laughs", "endless", "huge integer"],
)
def test_values_beyond_the_limits_are_refused_quickly(value):
    """Depth, size and endlessness are errors and no crash."""
    started = time.thread_time()
    with pytest.raises(ValueCodecError):
        encode(value)
    assert time.thread_time() - started < 5


MODULUS = 2**61 - 1  # hash(n * MODULUS) == 0


@each_row(
    "data",
    [
        {"t": "set", "v": [{"t": "int", "v": hex(n * MODULUS)} for n in range(20_000)]},
        {"t": "dict", "v": [[{"t": "int", "v": hex(n * MODULUS)}, 0] for n in range(20_000)]},
        {"t": "int", "v": "0x" + "f" * 2_000_000},
        {"t": "decimal", "v": "9" * 100_000},
        {"t": "fraction", "v": ["0x" + "f" * 100_000, "0x" + "e" * 100_000]},
        {"t": "fraction", "v": ["0x1", "0x0"]},
        {"t": "set", "v": [[1]]},
        {"t": "range", "v": ["0x0", "0x1", "0x0"]},
        {"t": "float", "v": "1_0"},
        {"t": "bytes", "v": "zz"},
        {"t": "object", "v": ["X", None, False]},
        {"t": "container", "v": 0},
        {"t": "nothing", "v": 1},
        {"t": "int"},
        {"t": 1, "v": 1},
        {"t": "dict", "v": [[1]]},
        {"t": "dict", "v": [[[1], 2]]},
        nested(MAX_DEPTH + 2),
    ],
    ids=lambda data: str(data)[:40],
)
def test_hostile_messages_are_refused_quickly(data):
    """Keys of one hash, oversized numbers and malformed values take no time and raise the one
    error.
    """
    started = time.thread_time()
    with pytest.raises(ValueCodecError):
        decode(data)
    assert time.thread_time() - started < 2


def test_named_tuples_keep_their_fields_where_they_are_wanted():
    """Beside the program they are named tuples again; where verdicts are made, tuples."""
    kind = namedtuple("Point", "x y")
    data = Encoder(lambda _: None).encode([kind(1, [2])])
    assert data == [{"t": "named tuple", "v": ["Point", ["x", "y"], [1, [2]]]}]
    assert type(decode(data)[0]) is tuple
    [again] = Decoder(named=named_tuple_maker).decode(data)
    assert (again.x, again.y, again._asdict()) == (1, [2], {"x": 1, "y": [2]})
    assert encode(kind(1, 2)) == {"t": "tuple", "v": [1, 2]}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("P", ["x=1", "y"]),
        ("P", ["class", "y"]),
        ("P", ["_x", "y"]),
        ("P", ["x", "x"]),
        ("P(object", ["x", "y"]),
        ("", ["x", "y"]),
    ],
)
def test_names_that_nothing_can_have_make_a_tuple(name, fields):
    """Names come from the other side of the border."""
    assert type(named_tuple_maker(name, fields)([1, 2])) is tuple


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        ["P", ["x"], []],
        ["P", "x", [1]],
        ["P", [1], [1]],
        [1, ["x"], [1]],
        ["P", ["x" * 81], [1]],
        ["P", ["x"], 1],
    ],
)
def test_what_is_no_named_tuple_is_refused(content):
    """Rather than made into something else."""
    with pytest.raises(ValueCodecError):
        Decoder(named=named_tuple_maker).decode({"t": "named tuple", "v": content})
