"""Values come back as they were, or are refused by name; what a file says is not believed."""

from __future__ import annotations

import io
import itertools
import json
import math
import mmap
import re
import struct
import subprocess
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from postroom.errors import BadFileError, PayloadError
from postroom.parcel.container import Parcel, pack
from postroom.parcel.decode import decode
from postroom.parcel.encode import MAX_DEPTH, encode, encode_text
from postroom.parcel.trailer import Trailer


def ship(values: Sequence[Any], *, first: int = 0, **options: Any) -> bytes:
    """The bytes of a parcel with these values."""
    tree, members = encode(values, first=first, **options)
    return wrap(tree, [(name, b"".join(buffers)) for name, buffers in members])


def wrap(tree: object, members: Sequence[tuple[str, bytes]]) -> bytes:
    """A parcel that is faultless as such, whatever its members say."""
    text = json.dumps(tree, allow_nan=False).encode()
    return b"".join(
        pack(
            Trailer("jobs", 0, 1),
            [("jobs.json", [text]), *((name, [raw]) for name, raw in members)],
        )
    )


def unwrap(data: bytes, **options: Any) -> list[Any]:
    """All values of a parcel."""
    parcel = Parcel("p.npz", data)
    tree: Any = parcel.json("jobs.json")
    return [decode(tree, parcel, position, **options) for position in range(tree["count"])]


def round_trip(value: Any, **options: Any) -> Any:
    (back,) = unwrap(ship([value], **options), **options)
    return back


def same(a: Any, b: Any) -> bool:
    """Equal in type, order, layout and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic) and not isinstance(a, str | bytes):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, slice):
        return same([a.start, a.stop, a.step], [b.start, b.stop, b.step])
    if isinstance(a, SimpleNamespace):
        return same(vars(a), vars(b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, float):
        return math.isnan(a) == math.isnan(b) and (
            a != a or struct.pack("d", a) == struct.pack("d", b)
        )
    if isinstance(a, complex):
        return same([a.real, a.imag], [b.real, b.imag])
    return bool(a == b)


def numpy_members(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """What plain `numpy.load` finds."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files if name != "jobs.json"}


any_text = st.text(st.characters(codec=None)) | st.text(st.sampled_from("a\ud83d\ude00\0$é"))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.complex_numbers()
    | any_text
    | st.binary()
    | st.binary(max_size=4).map(lambda raw: raw * 300)
)
keys = st.none() | st.booleans() | st.integers() | st.floats() | any_text
dtypes = (
    nps.scalar_dtypes()
    | nps.byte_string_dtypes()
    | nps.unicode_string_dtypes()
    | nps.array_dtypes(nps.scalar_dtypes() | nps.unicode_string_dtypes())
    | nps.nested_dtypes()
).filter(lambda dtype: dtype.itemsize > 0)
shapes = nps.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    array = draw(nps.arrays(draw(dtypes).base, draw(shapes), fill=st.nothing()))
    layout = draw(st.sampled_from("CFTS"))
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "T":
        return array.T
    return array[::-2] if layout == "S" and array.ndim else array


numpy_scalars = (
    nps.scalar_dtypes().flatmap(lambda dtype: nps.arrays(dtype, ())).map(lambda a: a[()])
)
leaves = scalars | arrays() | numpy_scalars
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(any_text, inner, max_size=4)
    ),
    max_leaves=8,
)
slow_to_draw = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@slow_to_draw
@given(st.lists(values, max_size=3), st.integers(0, 10**11))
def test_any_values_come_back_as_they_were(items: list[Any], first: int) -> None:
    data = ship(items, first=first)
    assert same(unwrap(data), items)
    parcel = Parcel("p.npz", data)
    assert len(numpy_members(data)) == len(parcel.names) - 1


@slow_to_draw
@given(values, st.integers(2, 4))
def test_values_that_are_alike_share_one_tree(value: Any, count: int) -> None:
    tree, _ = encode([value] * count)
    assert len(tree["trees"]) == 1  # type: ignore[index]
    assert same(unwrap(ship([value] * count)), [value] * count)


@slow_to_draw
@given(arrays())
def test_an_array_keeps_its_layout_unless_it_is_scattered(array: np.ndarray[Any, Any]) -> None:
    back = round_trip(array)
    assert back.flags.f_contiguous or not array.flags.f_contiguous
    assert back.flags.c_contiguous or not array.flags.c_contiguous
    assert not back.flags.writeable


@pytest.mark.parametrize(
    "value",
    [
        np.float64(1.5),
        np.float16("nan"),
        np.bool_(True),
        np.int8(-1),
        np.uint64(2**64 - 1),
        np.complex64(1j),
        np.longdouble(1) / 3,
        np.datetime64("2020-02-03"),
        np.datetime64("NaT"),
        np.timedelta64(7, "ms"),
        np.str_("a\0"),
        np.str_("\ud800\udc00"),
        np.bytes_(b"a\0"),
        np.bytes_(b"b" * 1000),
        np.void(b"abc"),
        np.array([(1, 2.5)], [("a", "i4"), ("b", ">f8")])[0],
    ],
    ids=repr,
)
def test_a_numpy_scalar_keeps_its_type(value: np.generic) -> None:
    assert same(round_trip(value), value)
    assert same(unwrap(ship([value, value])), [value, value])


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 0, 3)),
        np.array(5),
        np.arange(3, dtype=">u2"),
        np.array(["a", "bcd", "ł\U0001f600"]),
        np.array([b"a", b"bcd"]),
        np.array(["2020", "NaT"], "M8[25s]"),
        np.zeros(2, "M8"),
        np.zeros(2, "V5"),
        np.ones(2, np.longdouble),
        np.zeros(3, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
        np.zeros(3, [("ł'\"\\\n", "f4", (2, 3)), ("é", [("x", "U3"), ("y", "M8[D]")])]),
        np.zeros(3, [(("title", "name"), "f4")]),
        np.zeros(2, [("\ud800", "i1")]),
        np.zeros(2, {"names": ["a"], "formats": ["i1"], "offsets": [1]}),
        np.zeros((1,) * 32),
        np.zeros((1,) * (64 if np.__version__ >= "2" else 32)),
        np.broadcast_to(np.float64(1), (3, 4)),
    ],
    ids=lambda array: str(array.dtype)[:40],
)
def test_an_array_of_any_plain_dtype_comes_back(array: np.ndarray[Any, Any]) -> None:
    assert same(round_trip(array), array)
    assert all(same(back, array) for back in unwrap(ship([array, array])))
    (loaded,) = numpy_members(ship([array])).values()
    assert repr(loaded.reshape(array.shape).tolist()) == repr(array.tolist())


def test_the_trees_of_numbers_that_only_seem_equal_stay_apart() -> None:
    for items in ([1, True], [1, 1.0], [0.0, -0.0], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]):
        assert same(unwrap(ship(items)), items)


def test_arrays_that_are_alike_are_stacked_and_others_bear_their_jobs_number() -> None:
    items = [{"x": np.full((2, 3), i), "y": np.zeros(i), "k": i} for i in range(4)]
    loaded = numpy_members(ship(items, first=7))
    assert loaded["x"].shape == (4, 2, 3)
    assert loaded["x"][:, 0, 0].tolist() == [0, 1, 2, 3]
    assert sorted(loaded) == [
        *(f"00000000{n}.y" for n in (7, 8)),
        "000000009.y",
        "000000010.y",
        "x",
    ]
    assert loaded["000000009.y"].shape == (2,)


def test_numbers_of_results_become_one_plain_array() -> None:
    assert numpy_members(ship([{"loss": np.float32(i)} for i in range(3)]))["loss"].tolist() == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize(
    "odd",
    [np.zeros(4), np.zeros(3, "f4"), np.zeros(3, ">f8"), np.zeros((3, 1)), None, [np.zeros(3)]],
    ids=["length", "dtype", "byte order", "shape", "missing", "structure"],
)
def test_one_array_that_is_not_alike_keeps_all_apart(odd: Any) -> None:
    items = [{"x": np.ones(3)}, {"x": odd}, {"x": np.zeros(3)}]
    data = ship(items)
    assert "000000002.x" in numpy_members(data)
    assert same(unwrap(data), items)


def test_large_arrays_are_not_copied_on_the_way_out() -> None:
    items = [{"x": np.full(1 << 15, i, "M8[s]")} for i in range(3)]
    _, members = encode(items)
    tree_free = [buffer for name, buffers in members for buffer in buffers]
    assert len(tree_free) == 4
    for item, buffer in zip(items, tree_free[1:], strict=True):
        assert np.shares_memory(np.frombuffer(buffer, np.uint8), item["x"])
    turned = np.zeros((1 << 10, 1 << 7)).T
    ((_, (_, buffer)),) = encode([turned])[1]
    assert np.shares_memory(np.frombuffer(buffer, np.uint8), turned)


def test_arrays_are_read_only_views_of_a_memory_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    items = [{"x": np.arange(10_000.0), "y": np.ones((3, i + 1))} for i in range(2)]
    path.write_bytes(ship(items))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    parcel = Parcel(str(path), mapped)
    for position in range(2):
        for array in decode(parcel.json("jobs.json"), parcel, position).values():
            assert start <= array.ctypes.data < start + len(mapped)
            assert np.shares_memory(array, np.frombuffer(mapped, np.uint8))
            assert not array.flags.writeable
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.flags.writeable = True
    del parcel
    with pytest.raises(BufferError):  # else the array would read memory that is gone
        mapped.close()


def test_a_memory_mapped_array_travels_without_a_copy(tmp_path: Path) -> None:
    array = np.memmap(tmp_path / "x", "f8", "w+", shape=(3, 1 << 14))
    array[:] = 1.5
    ((_, (_, buffer)),) = encode([array])[1]
    assert np.shares_memory(np.frombuffer(buffer, np.uint8), array)
    assert same(round_trip(array), np.asarray(array))


def test_every_members_data_is_aligned(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    path.write_bytes(
        ship([{"x": np.arange(9e3), "y": np.arange(5, dtype="i1"), "z" * 99: np.ones(2)}])
    )
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    parcel = Parcel(str(path), mapped)
    for array in decode(parcel.json("jobs.json"), parcel, 0).values():
        assert array.ctypes.data % 64 == 0


def test_a_value_that_is_spoilt_by_its_owner_does_not_spoil_what_is_read_again() -> None:
    for items in ([np.zeros(3)], [np.zeros(3), np.zeros(4)]):
        parcel = Parcel("p.npz", ship(items))
        tree = parcel.json("jobs.json")
        decode(tree, parcel, 0).dtype = np.dtype("i8")
        assert same(decode(tree, parcel, 0), items[0])


@given(st.dictionaries(any_text | st.integers(), st.just(np.ones(2)), min_size=1, max_size=8))
@settings(deadline=None)
def test_keys_of_any_kind_make_names_that_are_safe_and_unique(value: dict[Any, Any]) -> None:
    data = ship([value])
    assert len(numpy_members(data)) == len(value)
    assert same(unwrap(data), [value])


def test_keys_that_look_like_paths_or_like_members_do_no_harm() -> None:
    names = ["../../x", "/etc/x", "......x", "_/etc/x", "", ".", "x\0\n", "000000000.x", "x", "x-2"]
    value = {name: np.full(2, n) for n, name in enumerate(names)}
    value |= {"nested": {"000000000": {"x": np.zeros(3)}}, 10**5000: np.zeros(4)}
    for items in ([value], [value, {"x": np.zeros(9)}]):
        assert same(unwrap(ship(items)), items)
    names = list(numpy_members(ship([value])))
    assert "______x" in names
    assert "______x-2" in names
    assert not any("/" in name or name.startswith(".") for name in names)


class Foo:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Foo)

    __hash__ = None  # type: ignore[assignment]


class Sub(np.ndarray[Any, Any]):
    pass


PICKLED: list[tuple[Any, str]] = [
    (Foo(), "is of type Foo"),
    (deque([1, 2]), "is of type deque"),
    (Counter("aab"), "is of type Counter: send dict(...)"),
    (np.array([None]), "is an array of dtype object"),
    (np.zeros(2, [("a", "O")]), "is an array of dtype"),
    (np.zeros(2).view(Sub), "is of type Sub"),
    (np.ma.masked_array([1, 2], [True, False]), "is of type MaskedArray"),
    (np.rec.array([(1,)], [("a", "i4")])[0], "is of type record"),
    (np.zeros(2, "V0"), "is an array of dtype"),
    (np.zeros(2, [(f"{n:08d}", "i1") for n in range(3000)]), "is an array of dtype"),
    (
        np.zeros(2, {"names": "ab", "formats": ["i1"] * 2, "offsets": [1, 0]}),
        "is an array of dtype",
    ),
    (np.zeros(2, ("<i4", [("low", "<i2"), ("high", "<i2")])), "is an array of dtype"),
    ({(1, 2): 3}, "has a key of type tuple"),
    ({np.int64(1): 3}, "has a key of type int64"),
]


@pytest.mark.parametrize(("value", "what"), PICKLED, ids=[what for _, what in PICKLED])
def test_what_only_pickle_could_carry_is_named_and_refused_unless_allowed(
    value: Any, what: str
) -> None:
    item = {"model": [0, "a", value], "k": 1}
    with pytest.raises(PayloadError) as refusal:
        encode([{}, item], label="a")
    assert str(refusal.value).startswith(f"a['model'][2] {what}")
    assert "or set pickle=True for the job" in str(refusal.value)
    assert isinstance(refusal.value, TypeError)
    data = ship([item], pickle=True)
    assert repr(unwrap(data, pickle=True)[0]["model"]) == repr(item["model"]) or "Foo" in what
    with pytest.raises(BadFileError, match="pickle is off"):
        unwrap(data)


def test_a_large_pickle_becomes_a_member() -> None:
    value = {"s": deque(range(1000))}
    data = ship([value], pickle=True)
    assert list(numpy_members(data)) == ["s"]
    assert unwrap(data, pickle=True) == [value]


def test_what_not_even_pickle_can_carry_is_named() -> None:
    with pytest.raises(
        PayloadError, match=r"^value\['f'\] is of type function, which pickle cannot carry"
    ):
        encode([{"f": lambda: 0}], pickle=True)


def test_a_pickle_that_cannot_be_read_is_a_bad_file() -> None:
    tree = {"first": 0, "count": 1, "arrays": {}, "trees": [{"$pickle": "AAAA"}]}
    with pytest.raises(BadFileError, match="cannot be read"):
        unwrap(wrap(tree, []), pickle=True)


def test_an_argument_is_named_by_its_job_and_its_path() -> None:
    def job(position: int) -> str:
        return f"job {10 + position}:"

    for value, name in [
        ({"x": Foo()}, "x"),
        ({"config": {"lr": [1, 2, Foo()]}}, "config['lr'][2]"),
        ({"config": SimpleNamespace(lr=(Foo(),))}, "config.lr[0]"),
        ({"no name\n": Foo()}, r"'no name\n'"),
        ({"*": (1, {"a": Foo()})}, "positional argument 1['a']"),
    ]:
        with pytest.raises(PayloadError, match=f"^job 12: {re.escape(name)} is of type Foo: turn"):
            encode([{}, {}, value], label=job)


def test_a_value_whose_own_code_fails_is_refused_too() -> None:
    class Liar:
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            raise RuntimeError("boom")

    with pytest.raises(PayloadError, match=r"^value cannot be stored: RuntimeError: 'boom'"):
        encode([[Liar()]])


def test_a_long_or_strange_key_is_shown_in_brief() -> None:
    for key in ("\x1b[2J" * 100, 10**5000):
        with pytest.raises(PayloadError) as refusal:
            encode([{key: Foo()}])
        assert str(refusal.value).isprintable()
        assert len(str(refusal.value)) < 300


def nested(depth: int, wrap_up: Callable[[Any], Any], core: Any) -> Any:
    for _ in range(depth):
        core = wrap_up(core)
    return core


WRAPPERS: list[Callable[[Any], Any]] = [
    lambda v: [v],
    lambda v: (v,),
    lambda v: {"a": v},
    lambda v: {1: v},
    lambda v: OrderedDict({1: v}),
    lambda v: SimpleNamespace(a=v),
    lambda v: slice(v),
]
CORES = [0, 1j, math.nan * 1j, b"x", b"x" * 999, "\ud800", np.int8(1), np.bytes_(b"x" * 999), 2**99]


@pytest.mark.parametrize("wrap_up", WRAPPERS)
def test_nesting_is_bounded_on_both_sides_and_the_deepest_value_comes_back(
    wrap_up: Callable[[Any], Any],
) -> None:
    for core in CORES:
        deepest = nested(MAX_DEPTH, wrap_up, core)
        assert same(round_trip(deepest), deepest)
    with pytest.raises(PayloadError, match="nested more than"):
        encode([nested(MAX_DEPTH + 1, wrap_up, 0)])


@pytest.mark.parametrize("make", [list, dict])
def test_a_container_that_contains_itself_is_refused(make: Callable[[], Any]) -> None:
    loop = make()
    inner = (loop, loop)
    if isinstance(loop, list):
        loop += [inner, inner]
    else:
        loop.update(a=inner, b=inner)
    with pytest.raises(PayloadError, match="does it contain itself"):
        encode([loop])


def printed_by(program: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


def test_torch_is_never_imported() -> None:
    program = """
import sys
from postroom.parcel.encode import PayloadError, encode
try:
    encode([object()])
except PayloadError:
    print("torch" in sys.modules)
"""
    assert printed_by(program) == "False"


def test_the_container_does_without_numpy() -> None:
    assert printed_by("import sys, postroom.parcel; print('numpy' in sys.modules)") == "False"


# From here on, files that lie.


def npy(header: str, data: bytes = bytes(24), version: bytes = b"\1\0") -> bytes:
    """A member with a header of one's own, padded as it should be."""
    length = 2 if version == b"\1\0" else 4
    body = header.encode("latin1")
    body += b" " * (-(8 + length + len(body) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + version + len(body).to_bytes(length, "little") + body + data


TREE = {"first": 0, "count": 1, "arrays": {"x": False}, "trees": [{"$array": "x"}]}
GOOD = "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }"


def read_member(member: bytes) -> Any:
    (value,) = unwrap(wrap(TREE, [("000000000.x.npy", member)]))
    return value


def test_a_liar_who_tells_the_truth_is_believed() -> None:
    assert same(read_member(npy(GOOD)), np.zeros(3))
    structured = GOOD.replace("'<f8'", "[('a', '<f4'), ('b', '<i4')]")
    assert read_member(npy(structured)).dtype.names == ("a", "b")


BAD_HEADERS = {
    "negative shape": GOOD.replace("3", "-3"),
    "huge shape": GOOD.replace("3,", "9223372036854775807,"),
    "overflowing shape": GOOD.replace("3,", "4294967296, 4294967296, 3"),
    "overflowing empty shape": GOOD.replace("3,", "0, 4611686018427387904, 4"),
    "very long number": GOOD.replace("3", "3" * 5000),
    "too many dimensions": GOOD.replace("3,", "3" + ", 1" * 64),
    "other shape": GOOD.replace("3", "2"),
    "larger shape": GOOD.replace("3", "4"),
    "shape of bools": GOOD.replace("3", "True"),
    "shape of a float": GOOD.replace("3", "3.0"),
    "shape in other digits": GOOD.replace("3", "03"),
    "shape as a list": GOOD.replace("(3,)", "[3]"),
    "no comma": GOOD.replace("3,", "3"),
    "objects": GOOD.replace("<f8", "|O"),
    "objects of eight": GOOD.replace("<f8", "|O8"),
    "objects in a structure": GOOD.replace("'<f8'", "[('a', '|O')]"),
    "objects in a nested structure": GOOD.replace("'<f8'", "[('a', [('b', '|O')])]"),
    "variable strings": GOOD.replace("<f8", "|T16"),
    "no such size": GOOD.replace("<f8", "<f7"),
    "no items": GOOD.replace("<f8", "|V0"),
    "empty structure": GOOD.replace("'<f8'", "[]"),
    "huge items": GOOD.replace("<f8", "|V9999999999"),
    "huge unit": GOOD.replace("<f8", "<M8[9999999999s]"),
    "a unit of nothing": GOOD.replace("<f8", "<M8[0s]"),
    "no such unit": GOOD.replace("<f8", "<M8[x]"),
    "native order": GOOD.replace("<f8", "=f8"),
    "no order": GOOD.replace("<f8", "f8"),
    "a list of dtypes": GOOD.replace("<f8", "<f8,<f8"),
    "a dtype by name": GOOD.replace("<f8", "float64"),
    "a field without a type": GOOD.replace("'<f8'", "[('a',)]"),
    "a field that is a number": GOOD.replace("'<f8'", "[8]"),
    "a name that is a number": GOOD.replace("'<f8'", "[(8, '<f8')]"),
    "a field twice": GOOD.replace("'<f8'", "[('a', '<f4'), ('a', '<f4')]"),
    "a negative field": GOOD.replace("'<f8'", "[('a', '<f8', (-1,))]"),
    "a huge field": GOOD.replace("'<f8'", "[('a', '<f8', (999999999999999999999,))]"),
    "a field as a dict": GOOD.replace("'<f8'", "[('a', {'names': []})]"),
    "a call": GOOD.replace("'<f8'", "[('a', exit())]"),
    "many signs": GOOD.replace("'<f8'", f"[{'-' * 5000}1]"),
    "very many signs": GOOD.replace("'<f8'", f"[{'-' * 50_000}1]"),
    "deep nesting": GOOD.replace("'<f8'", "[" * 30_000 + "]" * 30_000),
    "nesting of fields": GOOD.replace("'<f8'", "[('a', " * 150 + "'<f8'" + ")]" * 150),
    "unbalanced": GOOD.replace("'<f8'", "[(]"),
    "zero byte": GOOD.replace("'<f8'", "['\0']"),
    "unknown key": GOOD.replace(", }", ", 'more': 1, }"),
    "missing key": "{'descr': '<f8', 'shape': (3,), }",
    "other order of keys": "{'fortran_order': False, 'descr': '<f8', 'shape': (3,), }",
    "odd fortran order": GOOD.replace("False", "0"),
    "no braces": GOOD[1:],
    "more space": GOOD.replace(": ", ":  "),
    "more padding": GOOD + " " * 64,
    "nothing": "",
}


@pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_lying_header_of_an_array_is_refused(header: str) -> None:
    with pytest.raises(BadFileError, match=r"^p\.npz: member 000000000\.x\.npy"):
        read_member(npy(header))


@pytest.mark.parametrize(
    "member",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\1\0",
        b"\x93NUMPY\3\0\1\0\0",
        npy(GOOD)[:40],
        npy(GOOD, bytes(23)),
        npy(GOOD, bytes(25)),
        npy(GOOD, b""),
        npy(GOOD, version=b"\2\0"),
        npy(GOOD, version=b"\3\0"),
        npy(GOOD).replace(b"NUMPY", b"NUMPX"),
        npy(GOOD)[:8] + b"\xff\xff" + npy(GOOD)[10:],
        npy(GOOD)[:8] + b"\0\0" + npy(GOOD)[10:],
        b"\x93NUMPY\3\0\xff\xff\xff\xff" + bytes(200),
        npy(GOOD).replace(b" \n", b"\n\n"),
        npy(GOOD + " " * 70_000, version=b"\3\0"),
    ],
    ids=range(16),
)
def test_a_member_that_is_not_an_array_of_its_size_is_refused(member: bytes) -> None:
    with pytest.raises(BadFileError, match=r"^p\.npz: member 000000000\.x\.npy"):
        read_member(member)


@pytest.mark.parametrize("shape", ["9223372036854775807,", "0, 9999999999999999999"])
def test_a_huge_shape_and_a_long_header_are_refused_before_numpy_sees_them(shape: str) -> None:
    with pytest.raises(BadFileError, match="larger than any memory"):
        read_member(npy(GOOD.replace("3,", shape)))
    with pytest.raises(BadFileError, match="header is too long"):
        read_member(npy(GOOD + " " * 70_000, version=b"\3\0"))


BAD_NODES: dict[str, Any] = {
    "missing member": {"$array": "y"},
    "path": {"$array": "../x"},
    "control characters": {"$array": "\x1b[2J\n\ud800"},
    "control characters in a tag": {"$\x1b[2J\n\ud800": 1},
    "name that is none": {"$array": 5},
    "array that is none": {"$array": None},
    "unknown tag": {"$eval": "1"},
    "empty tag": {"$": 1},
    "stray tag": {"a": 1, "$array": "x"},
    "two tags": {"$tuple": [], "$dict": []},
    "array twice": [{"$array": "x"}, {"$array": "x"}],
    "tuple of no list": {"$tuple": {"a": 1}},
    "dict of no list": {"$dict": {"a": 1}},
    "dict of no pairs": {"$dict": [[1]]},
    "dict of texts": {"$dict": ["ab"]},
    "dict of unhashable keys": {"$dict": [[[1], 1]]},
    "dict of array keys": {"$dict": [[{"$array": "x"}, 1]]},
    "integer in decimal": {"$int": "12"},
    "integer that is none": {"$int": 12},
    "integer with underscores": {"$int": "0x1_0"},
    "float that is finite": {"$float": "1.5"},
    "float that is none": {"$float": []},
    "complex of one": {"$complex": [1.0]},
    "complex of integers": {"$complex": [1, 2]},
    "complex of texts": {"$complex": "ab"},
    "text that is not base64": {"$str": "?"},
    "text that is not text": {"$str": "/w=="},
    "text that is none": {"$str": 1},
    "bytes that are not base64": {"$bytes": "a"},
    "bytes with noise between": {"$bytes": "QU?I="},
    "bytes beyond ascii": {"$bytes": "é"},
    "bytes that are none": {"$bytes": None},
    "bytes of floats": {"$bytes": {"$array": "x"}},
    "bytes of a dict": {"$bytes": {"a": 1}},
    "numpy text that is a number": {"$numpy": 1},
    "scalar that is an array": {"$scalar": {"$array": "x"}},
    "scalar that is plain": {"$scalar": 1},
    "pickle": {"$pickle": "gASVAAAAAAAAAA=="},
    "deep lists": nested(600, lambda v: [v], 0),
    "deep dicts": nested(600, lambda v: {"a": v}, 0),
    "deep tuples": nested(300, lambda v: {"$tuple": [v]}, 0),
    "deep complex": nested(300, lambda v: {"$complex": [v]}, 0),
    "deep scalars": nested(600, lambda v: {"$scalar": v}, 0),
    "deep bytes": nested(600, lambda v: {"$bytes": v}, {}),
    "deep numpy": nested(600, lambda v: {"$numpy": v}, 0),
    "deep keys": nested(200, lambda v: {"$dict": [[v, 0]]}, 0),
}


@pytest.mark.parametrize("node", BAD_NODES.values(), ids=BAD_NODES)
def test_a_lying_node_is_refused(node: Any) -> None:
    with pytest.raises(
        BadFileError, match=r"^p\.npz: (it|was written by another version)"
    ) as refusal:
        unwrap(wrap(TREE | {"trees": [node]}, [("000000000.x.npy", npy(GOOD))]))
    assert str(refusal.value).isprintable()


BAD_TREES: dict[str, Any] = {
    "list": [],
    "none": None,
    "missing key": {key: TREE[key] for key in ("first", "count", "arrays")},
    "unknown key": TREE | {"more": 1},
    "negative first": TREE | {"first": -1},
    "very long first": TREE | {"first": 10**4000},
    "first that is false": TREE | {"first": False},
    "first that is a float": TREE | {"first": 0.0},
    "no values": TREE | {"count": 0},
    "negative count": TREE | {"count": -1},
    "count as text": TREE | {"count": "1"},
    "huge count": TREE | {"count": 10**30},
    "no trees": TREE | {"trees": []},
    "too many trees": TREE | {"trees": [0, 0]},
    "trees that are none": TREE | {"trees": {"0": 0}},
    "arrays that are none": TREE | {"arrays": ["x"]},
    "a stack that is none": TREE | {"arrays": {"x": True}},
}


@pytest.mark.parametrize("tree", BAD_TREES.values(), ids=BAD_TREES)
def test_a_lying_tree_is_refused(tree: object) -> None:
    parcel = Parcel("p.npz", wrap(tree, [("000000000.x.npy", npy(GOOD)), ("y.npy", npy(GOOD))]))
    with pytest.raises(BadFileError, match=r"^p\.npz: it"):
        decode(parcel.json("jobs.json"), parcel, 0)


@pytest.mark.parametrize("shape", ["2,", "4,", "", "1, 3"])
def test_a_stack_of_another_length_is_refused(shape: str) -> None:
    header = GOOD.replace("3,", shape)
    size = 8 * math.prod(int(n) for n in shape.split(",") if n)
    tree = {"first": 0, "count": 3, "arrays": {"x": True}, "trees": [{"$array": "x"}]}
    with pytest.raises(BadFileError, match="not a stack of 3"):
        unwrap(wrap(tree, [("x.npy", npy(header, bytes(size)))]))


def test_bytes_of_two_dimensions_are_refused() -> None:
    tree, members = encode([np.zeros((2, 3), np.uint8)])
    tree["trees"] = [{"$bytes": tree["trees"][0]}]  # type: ignore[index]
    with pytest.raises(BadFileError, match="bytes that are none"):
        unwrap(wrap(tree, [(name, b"".join(buffers)) for name, buffers in members]))


@pytest.mark.parametrize("position", [-1, 2, 10**9])
def test_a_value_that_is_not_there_is_refused(position: int) -> None:
    parcel = Parcel("p.npz", ship([1, 2]))
    with pytest.raises(BadFileError, match="none at position"):
        decode(parcel.json("jobs.json"), parcel, position)


def test_every_single_flipped_bit_of_a_parcel_of_values_is_refused() -> None:
    data = ship([{"x": np.arange(3.0), "k": i} for i in range(2)])
    for at, bit in itertools.product(range(len(data)), range(8)):
        bad = bytearray(data)
        bad[at] ^= 1 << bit
        with pytest.raises(BadFileError):
            unwrap(bytes(bad))


@pytest.mark.parametrize(
    "values",
    [
        [np.arange(3.0)],
        [np.arange(3.0), np.arange(3.0) + 1],
        [np.arange(3.0), np.arange(4.0)],
        [np.arange(3.0), np.arange(3)],
        [{"x": np.arange(6).reshape(2, 3)[:, ::2], "y": np.float64(2) * np.ones(())}] * 2,
        [{"x": np.ones((2, 2), order="F")}],
        [{"x": np.zeros((0, 3))}, {"x": np.zeros((0, 3))}],
        [{"x": np.arange(2), "y": np.arange(2)}, {"y": np.arange(2), "x": np.arange(2)}],
        [{"x": np.arange(2)}, {"x": [1]}],
        [{"x": np.arange(2)}, np.arange(2)],
        [{"x": np.arange(2)}, {}],
        [{"$x": np.arange(2)}],
        [{"x y": np.arange(2)}],
        [{}],
        [],
    ],
    ids=repr,
)
def test_arrays_alike_are_packed_as_all_values_are(values: list[Any]) -> None:
    """The short way for the usual case makes the same bytes as the long way for all cases."""
    text, short = encode_text(values, first=7)
    tree, members = encode(values, first=7)
    assert text == json.dumps(tree, separators=(",", ":"))
    joined = [(name, b"".join(map(bytes, buffers))) for name, buffers in members]
    assert [(name, b"".join(map(bytes, buffers))) for name, buffers in short] == joined


def test_arrays_of_one_name_and_size_keep_their_own_types() -> None:
    """Their parcels are of one mould, and differ in a header within."""
    floats, numbers = np.arange(3.0), np.arange(3)
    for array in (floats, numbers, floats.reshape(3, 1), numbers, floats):
        assert same(round_trip({"x": array})["x"], array)
