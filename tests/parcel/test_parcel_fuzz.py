"""100,000 spoilt files: each is refused with our error, or is what it was; memory stays bounded.

Two kinds of spoiling. Blind damage (bits, cuts, splices) must never be accepted, since there is one
valid file for given members: what is accepted has to be one of the originals, byte for byte. Lies
have their checksums made right, so that they reach the inner readers; what is accepted then has to
be what plain `numpy.load` finds in the same file.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import random
import re
import struct
import tracemalloc
import zipfile
import zlib
from argparse import Namespace
from collections import Counter, OrderedDict
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postroom.errors import BadFileError
from postroom.parcel.container import Parcel, pack
from postroom.parcel.decode import decode
from postroom.parcel.encode import encode
from postroom.parcel.sheets import Failure, Outcome
from postroom.parcel.trailer import TRAILER_SIZE, Trailer

BLIND = 100_000
LIES = 30_000
MEMORY_BOUND = 8 << 20

Members = list[tuple[str, bytes]]


def parcel_of(values: list[Any], kind: str = "jobs", first: int = 0) -> bytes:
    tree, members = encode(values, first=first)
    text = json.dumps(tree).encode()
    trailer = Trailer(kind, first, len(values))
    return b"".join(pack(trailer, [("jobs.json", [text]), *members]))


ORIGINALS = [
    parcel_of([{"x": np.arange(4.0), "k": i} for i in range(3)]),
    parcel_of([{"x": np.arange(4.0) + 1, "k": i} for i in range(3)], first=3),
    parcel_of([np.arange(i, dtype="i4") for i in range(3)], kind="results", first=7),
    parcel_of([[{"a": (1, None, 2.5)}, b"bytes", "text", 2**70, np.float32(i)] for i in range(2)]),
    parcel_of(
        [
            {
                "s": np.zeros(2, [("a", "<f4"), ("b", "<U2", (2,))]),
                "f": np.ones((2, 3), order="F"),
                "d": np.array(["2020"], "M8[D]"),
                "b": b"blob" * 200,
                3: np.zeros((0, 2)),
            }
        ],
        kind="data",
    ),
    parcel_of(
        [
            {
                "o": OrderedDict(a=np.ones(2), b={1, 2}),
                "d": [datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC), Path("/a"), range(3)],
                "n": Namespace(x=Failure(Outcome.LOST, "k", "m"), t=Trailer("jobs", 0, i)),
                "f": [Fraction(1, 3), slice(1, None), bytearray(b"ab")],
            }
            for i in range(2)
        ]
    ),
]
with contextlib.suppress(ImportError):
    import torch

    TENSORS = [{"t": torch.ones(2, dtype=torch.bfloat16), "f": torch.zeros(())} for _ in range(2)]
    ORIGINALS.append(parcel_of(TENSORS, kind="results"))


def read(data: bytes) -> tuple[Parcel, list[Any]]:
    """Everything that can be read of a parcel, as its readers do it."""
    parcel = Parcel("p.npz", data)
    for name in parcel.names:
        parcel.member(name)
    tree = parcel.json("jobs.json")
    count = min(parcel.trailer.jobs, 100)
    return parcel, [decode(tree, parcel, position) for position in range(count)]


def memory_of_reading(data: bytes) -> int:
    """The peak of what was allocated while the file was read, and refused or not."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with contextlib.suppress(BadFileError):
        read(data)
    return tracemalloc.get_traced_memory()[1] - before


# Blind damage.


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def write_noise(rng: random.Random, data: bytes) -> bytes:
    at, size = rng.randrange(len(data)), rng.choice((1, 2, 4, 8, 64))
    noise = rng.choice((rng.randbytes(size), bytes(size), b"\xff" * size))
    return data[:at] + noise + data[at + size :]


def cut(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return rng.choice((data[:at], data[at:]))


def delete(rng: random.Random, data: bytes) -> bytes:
    at, size = rng.randrange(len(data)), rng.choice((1, 2, 30, 46, 64, 128))
    return data[:at] + data[at + size :]


def duplicate(rng: random.Random, data: bytes) -> bytes:
    at, size = rng.randrange(len(data)), rng.choice((1, 2, 30, 46, 64, 128))
    to = rng.choice((at, rng.randrange(len(data))))
    return data[:to] + data[at : at + size] + data[to:]


def splice(rng: random.Random, data: bytes) -> bytes:
    other = rng.choice(ORIGINALS)
    at = rng.randrange(min(len(data), len(other)))
    if rng.random() < 0.5:
        return data[:at] + other[at:]
    return data[: len(data) - at] + other[len(other) - at :]


def edit_field(rng: random.Random, data: bytes) -> bytes:
    """A field of some zip header gets a value that programs stumble over."""
    places = [match.start() for match in HEADER.finditer(data)] or [0]
    at = rng.choice(places) + rng.randrange(4, 46)
    value = rng.choice((0, 1, 8, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFE, 0xFFFF_FFFF, len(data)))
    raw = struct.pack("<I", value)[: rng.choice((2, 4))]
    return data[:at] + raw + data[at + len(raw) :]


HEADER = re.compile(rb"PK\x01\x02|PK\x03\x04|PK\x05\x06")
DAMAGE = [flip_bits, write_noise, cut, delete, duplicate, splice, edit_field]


def test_blind_damage_is_never_accepted() -> None:
    rng = random.Random(20240301)
    refused = 0
    for number in range(BLIND):
        data = rng.choice(ORIGINALS)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            data = rng.choice(DAMAGE)(rng, data) or b"\0"
        try:
            read(data)
        except BadFileError:
            refused += 1
        else:
            assert data in ORIGINALS, f"file {number} was accepted"
    assert refused > 0.9 * BLIND


# Lies.


def members_of(data: bytes) -> Members:
    parcel = Parcel("p.npz", data)
    return [(name, bytes(parcel.member(name))) for name in parcel.names]


def repack(data: bytes, members: Members) -> bytes:
    """A faultless parcel around members that may be anything; or the original, if it cannot be."""
    try:
        trailer = Parcel("p.npz", data).trailer
        return b"".join(pack(trailer, [(name, [raw]) for name, raw in members]))
    except ValueError:
        return data


WORDS = [
    *(
        "-1",
        "0",
        "1",
        "2",
        "3",
        "9223372036854775807",
        "18446744073709551616",
        "1e400",
        "NaN",
        "9" * 5000,
    ),
    *(
        "True",
        "None",
        "null",
        "true",
        "[]",
        "{}",
        "()",
        '"x"',
        "'x'",
        ", ",
        "'|O'",
        "'<f4'",
        "'<i8'",
    ),
    *("'<f8'", "'|S8'", "'<U999999999'", "'|V4294967296'", "[('a', '|O')]", "[('a', '<f8', (9,))]"),
    *(
        '{"$array": "x"}',
        '{"$tuple": []}',
        '{"$bytes": {"$array": "x"}}',
        '{"$pickle": "gAROLg=="}',
        '{"$tensor": ["float64", {"$array": "x"}]}',
        '{"$dataclass": ["subprocess:Popen", {"args": "true"}]}',
    ),
    *("[" * 70, "[" * 3000, "(" * 300, "\\ud800", "\0", "\xff", "000000000", "..", "/", "$"),
]


def edit_text(rng: random.Random, text: bytes) -> bytes:
    """A word or number of a header or tree becomes another."""
    out = text.decode("latin1")
    starts = [at for at, c in enumerate(out) if c in "'\"[({:, 0123456789"]
    if not starts:
        return text
    at = rng.choice(starts)
    end = min(len(out), at + rng.choice((0, 1, 1, 2, 3, 5, 8)))
    return (out[:at] + rng.choice(WORDS) + out[end:]).encode("latin1")


def lie_in_text(rng: random.Random, data: bytes) -> bytes:
    members = members_of(data)
    at = rng.randrange(len(members))
    name, raw = members[at]
    if not name.endswith(".npy"):
        return repack(data, [*members[:at], (name, edit_text(rng, raw)), *members[at + 1 :]])
    size = 10 + struct.unpack_from("<H", raw, 8)[0]
    text = edit_text(rng, raw[10:size].rstrip())
    if rng.random() < 0.9:
        text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    length = len(text) if rng.random() < 0.95 else rng.choice((0, 1, 0xFFFF, len(raw)))
    version = rng.choice((b"\1\0", b"\1\0", b"\1\0", b"\2\0", b"\3\0"))
    raw = raw[:6] + version + struct.pack("<H", length & 0xFFFF) + text + raw[size:]
    return repack(data, [*members[:at], (name, raw), *members[at + 1 :]])


def lie_in_json(rng: random.Random, data: bytes) -> bytes:
    """The tree keeps its grammar, and one of its nodes becomes something else."""
    members = members_of(data)
    tree = json.loads(members[0][1])
    nodes: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            nodes.append((node, key))
            if isinstance(node[key], dict | list):
                collect(node[key])

    collect(tree)
    (owner, key), (giver, given) = rng.choice(nodes), rng.choice(nodes)
    odd = (
        None,
        True,
        -1,
        2**64,
        1.5,
        "x",
        "$",
        [],
        {},
        {"$array": "x"},
        {"$tuple": 0},
        {"$int": "0x"},
        {"$set": [[]]},
        {"$dataclass": ["os:system", {}]},
        {"$tensor": ["quint8", {"$array": "t"}]},
    )
    owner[key] = rng.choice((*odd, json.loads(json.dumps(giver[given]))))
    if isinstance(owner, dict) and rng.random() < 0.3:
        owner[rng.choice(("$array", "$scalar", "$bytes", "$dict", "$date", "$ordered", "more"))] = (
            owner.pop(key)
        )
    return repack(data, [("jobs.json", json.dumps(tree).encode()), *members[1:]])


def lie_in_members(rng: random.Random, data: bytes) -> bytes:
    """Members are left out, renamed, exchanged, cut or lengthened."""
    members = members_of(data)
    at, other = rng.randrange(len(members)), rng.randrange(len(members))
    (name, raw), (other_name, other_raw) = members[at], members[other]
    change = rng.randrange(5)
    if change == 0:
        del members[at]
    elif change == 1:
        members[at] = (rng.choice((name + "x", "x.npy", "000000000.x.npy", other_name)), raw)
    elif change == 2:
        members[at] = (name, other_raw)
    elif change == 3:
        members[at] = (name, raw[: rng.randrange(len(raw) + 1)])
    else:
        members[at] = (name, raw + rng.randbytes(rng.choice((1, 8, 64))))
    return repack(data, members)


def reseal(data: bytes, directory_at: int, directory_size: int) -> bytes:
    """The file with both checksums of its trailer made right."""
    directory_crc = b"%08x" % zlib.crc32(data[directory_at : directory_at + directory_size])
    line = data[-TRAILER_SIZE:-18] + directory_crc + b" "
    return data[:-TRAILER_SIZE] + line + b"%08x\n" % zlib.crc32(line)


def lie_in_trailer(rng: random.Random, data: bytes) -> bytes:
    members = [(name, [raw]) for name, raw in members_of(data)]
    kind = rng.choice(("jobs", "results", "data"))
    first, count = rng.choice((0, 1, 3, 10**12 - 1)), rng.choice((0, 1, 4, 10**7 - 1))
    return b"".join(pack(Trailer(kind, first, count), members))


def lie_in_headers(rng: random.Random, data: bytes) -> bytes:
    """Zip headers are changed, at times both of a member in the same way, and sealed again."""
    size, at = struct.unpack_from("<II", data, len(data) - TRAILER_SIZE - 10)
    out = bytearray(data)
    value = rng.choice((0, 1, 8, 64, 0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFE, rng.getrandbits(32)))
    raw = struct.pack("<I", value)[: rng.choice((1, 2, 4))]
    entries = [p for p in range(at, at + size) if data[p : p + 4] == b"PK\1\2"]
    entry = rng.choice(entries)
    field = rng.randrange(4, 46)
    out[entry + field : entry + field + len(raw)] = raw
    if 6 <= field < 32 and rng.random() < 0.7:
        local = struct.unpack_from("<I", data, entry + 42)[0] + field - 2
        out[local : local + len(raw)] = raw
    if rng.random() < 0.2:
        end = len(data) - TRAILER_SIZE - 22 + rng.randrange(4, 22)
        out[end : end + len(raw)] = raw
    return reseal(bytes(out[: len(data)]), at, size)


LYING: list[Callable[[random.Random, bytes], bytes]] = [
    *(lie_in_text, lie_in_json, lie_in_text, lie_in_json, lie_in_text, lie_in_json),
    *(lie_in_members, lie_in_headers, lie_in_headers, lie_in_trailer),
]


def check_against_numpy(data: bytes, parcel: Parcel) -> None:
    """What was accepted is what anyone's reader finds, and the file is the only one to say it."""
    members = [(name, [bytes(parcel.member(name))]) for name in parcel.names]
    assert b"".join(pack(parcel.trailer, members)) == data
    opened = {name: array for name, array in parcel.opened.items() if name.endswith(".npy")}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name, array in opened.items():
            loaded = np.load(io.BytesIO(archive.read(name)), allow_pickle=False)
            assert loaded.dtype == array.dtype
            assert loaded.shape == array.shape
            assert loaded.tobytes() == array.tobytes()


@pytest.fixture
def traced() -> Any:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def test_lies_are_refused_or_are_the_truth() -> None:
    rng = random.Random(20240302)
    accepted = 0
    reasons = Counter[str]()
    for _ in range(LIES):
        data = rng.choice(LYING)(rng, rng.choice(ORIGINALS))
        try:
            parcel, _ = read(data)
        except BadFileError as error:
            assert str(error).isprintable()
            reasons[PARTICULARS.sub("", error.reason)] += 1
        else:
            if data not in ORIGINALS:
                check_against_numpy(data, parcel)
                accepted += 1
    # Proof that the lies are good enough to reach every reader, and that some are believed.
    assert reasons.total() > LIES // 2
    assert len(reasons) > 50
    assert accepted > 1000


PARTICULARS = re.compile(r"[0-9]+|member \S+|array \S+|0x\S+|'.*'")


def test_no_spoilt_file_makes_its_reader_allocate_much(traced: None) -> None:
    rng = random.Random(20240303)
    for _ in range(5_000):
        spoil = rng.choice((*DAMAGE, *LYING, *LYING))
        data = spoil(rng, rng.choice(ORIGINALS)) or b"\0"
        assert memory_of_reading(data) < MEMORY_BOUND
