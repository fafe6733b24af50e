"""The container: any zip reader can read it, and ours only if it is exactly as we write it."""

from __future__ import annotations

import ctypes
import io
import itertools
import mmap
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import BadFileError, PayloadError
from postroom.parcel import container as parcel_module
from postroom.parcel.container import MAX_MEMBERS, Parcel, pack
from postroom.parcel.trailer import TRAILER_SIZE, Trailer, trailer_line, trailer_words

TRAILER = Trailer("results", first=100, jobs=2, flags="x")
WORDS = trailer_words(TRAILER.kind, TRAILER.jobs, TRAILER.flags)
MEMBERS = [("outcomes.json", [b'{"a": 1}']), ("x.npy", [b"01234567" * 9]), ("empty", [])]


def build(
    members: Sequence[tuple[str, Sequence[bytes]]] = MEMBERS, trailer: Trailer = TRAILER
) -> bytes:
    return b"".join(pack(trailer, members))


def contents(data: bytes) -> dict[str, bytes]:
    """Everything that a reader could ask of a parcel."""
    parcel = Parcel("p.npz", data)
    return {name: bytes(parcel.member(name)) for name in parcel.names}


def reseal(data: bytes, directory_at: int, directory_size: int) -> bytes:
    """The file with both checksums of its trailer made right: a lie that is consistent."""
    directory_crc = b"%08x" % crc32(data[directory_at : directory_at + directory_size])
    line = data[-TRAILER_SIZE:-18] + directory_crc + b" "
    return data[:-TRAILER_SIZE] + line + b"%08x\n" % crc32(line)


def forge(
    members: Sequence[tuple[bytes, bytes]],
    *,
    edit_local: Callable[[int, bytes], bytes] = lambda _, header: header,
    edit_central: Callable[[int, bytes], bytes] = lambda _, header: header,
    count: int | None = None,
) -> bytes:
    """A parcel with checksums all right, but with members and headers as only a liar has them."""
    body = directory = b""
    for index, (name, content) in enumerate(members):
        local, central = parcel_module._headers(name, len(content), crc32(content), len(body))
        body += edit_local(index, local) + content
        directory += edit_central(index, central)
    count = len(members) if count is None else count
    end = parcel_module._ending(count, len(directory), len(body))
    return body + directory + end + trailer_line(WORDS, TRAILER.first, crc32(directory))


def replaced(at: int, new: bytes) -> Callable[[int, bytes], bytes]:
    """An edit of the second member's header."""
    return lambda index, header: header[:at] + new + header[at + len(new) :] if index else header


PAIR = [(b"a.npy", b"A" * 70), (b"b.npy", b"B" * 70)]


def test_members_come_back_with_the_trailer() -> None:
    parcel = Parcel("p.npz", build())
    assert parcel.trailer == TRAILER
    assert parcel.names == ("outcomes.json", "x.npy", "empty")
    assert contents(build()) == {
        "outcomes.json": b'{"a": 1}',
        "x.npy": b"01234567" * 9,
        "empty": b"",
    }
    assert parcel.json("outcomes.json") == {"a": 1}


def test_a_forger_who_changes_nothing_makes_a_good_parcel() -> None:
    assert contents(forge(PAIR)) == {"a.npy": b"A" * 70, "b.npy": b"B" * 70}


def test_a_parcel_without_members_is_a_parcel() -> None:
    assert Parcel("p.npz", build([])).names == ()
    assert zipfile.ZipFile(io.BytesIO(build([]))).namelist() == []


names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", fullmatch=True)
chunks = st.binary(max_size=100) | st.binary(max_size=8).map(lambda b: b * (1 << 14))


@given(st.dictionaries(names, st.lists(chunks, max_size=3), max_size=5))
def test_any_zip_reader_finds_the_same_members_stored_and_aligned(
    members: dict[str, list[bytes]],
) -> None:
    data = build(list(members.items()))
    expected = {name: b"".join(buffers) for name, buffers in members.items()}
    assert contents(data) == expected
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == expected
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
        assert archive.comment == data[-TRAILER_SIZE:]
    parcel_module._last_moulds.clear()  # what is read the short way does not say where it lies
    parcel = Parcel("p.npz", data)
    assert list(parcel._members) == list(expected)
    assert all(start % 64 == 0 for start, _, _ in parcel._members.values())


def test_numpy_load_reads_a_parcel() -> None:
    array = np.arange(6.0).reshape(2, 3)
    stream = io.BytesIO()
    np.save(stream, array)
    loaded = np.load(io.BytesIO(build([("x.npy", [stream.getvalue()])])))
    assert np.array_equal(loaded["x"], array)


def test_the_same_members_always_make_the_same_bytes() -> None:
    split = [("outcomes.json", [b'{"a"', b": 1}"]), MEMBERS[1], ("empty", [b""])]
    assert build() == build(split)


def test_large_buffers_are_not_copied_and_small_ones_are_joined() -> None:
    large = memoryview(bytearray(1 << 20))
    out = pack(TRAILER, [("a.npy", [b"head", large]), ("b.npy", [b"tail"] * 100)])
    assert len(out) == 3
    assert out[1].obj is large.obj  # type: ignore[union-attr]
    assert len(pack(TRAILER, [("a.npy", [b"1"] * 1000)])) == 1


def test_buffers_of_wider_items_are_counted_in_bytes() -> None:
    for size, chunks in ((10, 1), (1 << 13, 3), (1 << 16, 3)):
        array = np.arange(float(size))
        out = pack(TRAILER, [("x.npy", [memoryview(array)])])
        assert len(out) == chunks
        assert chunks == 1 or np.shares_memory(np.frombuffer(out[1], float), array)
        assert contents(b"".join(out))["x.npy"] == array.tobytes()


def address(buffer: memoryview) -> int:
    return np.frombuffer(buffer, np.uint8).ctypes.data


def test_a_memory_mapped_member_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    path.write_bytes(build([("x.npy", [bytes(100_000)])]))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        parcel = Parcel(str(path), mapped)
        view = parcel.member("x.npy")
        assert view.readonly
        assert address(view) == start + parcel._members["x.npy"][0]
        assert parcel.member("x.npy") is view
        del parcel, view


def test_asking_for_a_member_that_is_not_there_is_a_key_error_but_not_for_json() -> None:
    parcel = Parcel("p.npz", build())
    with pytest.raises(KeyError):
        parcel.member("y.npy")
    with pytest.raises(BadFileError, match=r"p\.npz: it has no member y\.json"):
        parcel.json("y.json")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 10_000, '"ü"'.encode("utf-16")]
)
def test_a_member_that_is_not_json_is_a_bad_file(text: bytes) -> None:
    with pytest.raises(BadFileError, match="is not the JSON"):
        Parcel("p.npz", build([("a.json", [text])])).json("a.json")


@pytest.mark.parametrize(
    "name", ["", "/a", "../a", "a/b", "a\\b", ".a", "-a", "a b", "ä", "a\n", "a\0", "x" * 201]
)
def test_a_name_that_could_lead_out_of_a_folder_is_neither_written_nor_read(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name"):
        build([(name, [b""])])
    with pytest.raises(BadFileError):
        Parcel("p.npz", forge([(name.encode(), b"")]))


def test_a_member_is_neither_written_nor_read_twice() -> None:
    with pytest.raises(ValueError, match="cannot be the name"):
        build([("a", [b"1"]), ("a", [b"2"])])
    with pytest.raises(BadFileError, match="the same name"):
        Parcel("p.npz", forge([(b"a", b"1"), (b"a", b"2")]))


def test_more_members_than_allowed_are_neither_written_nor_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = build()
    monkeypatch.setattr(parcel_module, "MAX_MEMBERS", 2)
    monkeypatch.setattr(parcel_module, "_last_moulds", {})
    with pytest.raises(PayloadError, match="these are 3: stack them"):
        build()
    with pytest.raises(BadFileError, match="directory is not where"):
        Parcel("p.npz", data)


def flips(data: bytes) -> Iterator[bytes]:
    for at, bit in itertools.product(range(len(data)), range(8)):
        yield data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def test_every_single_flipped_bit_is_refused() -> None:
    for bad in flips(build()):
        with pytest.raises(BadFileError):
            contents(bad)


def test_every_truncation_is_refused_and_so_is_anything_added() -> None:
    good = build()
    for at in range(len(good)):
        with pytest.raises(BadFileError):
            Parcel("p.npz", good[:at])
    for bad in (good + b"\n", good + good, b"\0" + good, bytes(64) + good):
        with pytest.raises(BadFileError):
            Parcel("p.npz", bad)


def test_a_trailer_of_another_parcel_is_refused() -> None:
    other = build([("outcomes.json", [b'{"a": 2}']), *MEMBERS[1:]])
    assert len(other) == len(build())
    with pytest.raises(BadFileError, match="directory does not match"):
        Parcel("p.npz", build()[:-TRAILER_SIZE] + other[-TRAILER_SIZE:])


def test_a_flipped_bit_in_a_members_data_spoils_that_member_only() -> None:
    data = build()
    at = data.index(b"01234567")
    parcel = Parcel("p.npz", data[:at] + b"8" + data[at + 1 :])
    with pytest.raises(BadFileError, match=r"member x\.npy does not match its checksum"):
        parcel.member("x.npy")
    assert parcel.member("outcomes.json") == b'{"a": 1}'


# Offsets of fields in the two headers, by the zip format's own definition.
LOCAL_FIELDS = {4: "version", 6: "flags", 8: "method", 10: "time", 12: "date", 14: "crc"}
LOCAL_FIELDS |= {18: "stored size", 22: "size", 26: "name length", 28: "extra length", 30: "name"}
CENTRAL_FIELDS = {4: "made by", 6: "version", 8: "flags", 10: "method", 12: "time", 14: "date"}
CENTRAL_FIELDS |= {16: "crc", 20: "stored size", 24: "size", 28: "name length", 30: "extra length"}
CENTRAL_FIELDS |= {32: "comment length", 34: "disk", 36: "attributes", 38: "mode", 42: "offset"}


@pytest.mark.parametrize("new", [b"\0\0", b"\1\0", b"\x08\0", b"\xff\xff"])
@pytest.mark.parametrize("at", LOCAL_FIELDS)
def test_a_lying_local_header_is_refused(at: int, new: bytes) -> None:
    bad = forge(PAIR, edit_local=replaced(at, new))
    if bad != forge(PAIR):
        with pytest.raises(BadFileError):
            Parcel("p.npz", bad)


@pytest.mark.parametrize("new", [b"\0\0", b"\1\0", b"\x08\0", b"\xff\xff"])
@pytest.mark.parametrize("at", CENTRAL_FIELDS)
def test_a_lying_central_header_is_refused(at: int, new: bytes) -> None:
    bad = forge(PAIR, edit_central=replaced(at, new))
    if bad != forge(PAIR):
        with pytest.raises(BadFileError):
            Parcel("p.npz", bad)


def test_padding_that_hides_something_is_refused() -> None:
    with pytest.raises(BadFileError, match="headers of member b"):
        Parcel("p.npz", forge(PAIR, edit_local=lambda i, h: h[:-1] + b"!" if i else h))


def test_a_gap_between_members_is_refused() -> None:
    with pytest.raises(BadFileError, match="headers of member b"):
        Parcel("p.npz", forge(PAIR, edit_local=lambda i, h: bytes(64) + h if i else h))
    with pytest.raises(BadFileError, match="between its members and its directory"):
        Parcel("p.npz", forge(PAIR, edit_central=lambda i, h: b"" if i else h, count=1))


def test_anything_behind_the_last_entry_of_the_directory_is_refused() -> None:
    for extra in (b"\0", bytes(46), parcel_module._headers(b"c.npy", 0, 0, 0)[1]):
        with pytest.raises(BadFileError, match="between its members and its directory"):
            Parcel("p.npz", forge(PAIR, edit_central=lambda i, h, e=extra: h + e if i else h))


def test_overlapping_members_are_refused() -> None:
    """Many entries for one member's data are how a small zip unpacks to a huge one."""
    content = b"A" * 70
    local, central = parcel_module._headers(b"a.npy", 70, crc32(content), 0)
    body = local + content
    directory = central + central.replace(b"a.npy", b"b.npy")
    end = parcel_module._ending(2, len(directory), len(body))
    data = body + directory + end + trailer_line(WORDS, TRAILER.first, crc32(directory))
    assert zipfile.ZipFile(io.BytesIO(data)).namelist() == ["a.npy", "b.npy"]
    with pytest.raises(BadFileError):
        Parcel("p.npz", data)


def test_a_zip_bomb_is_refused() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(1 << 24))
    plain = stream.getvalue()
    at, size = archive.start_dir, len(plain) - 22 - archive.start_dir
    data = plain[:-2] + struct.pack("<H", TRAILER_SIZE) + build()[-TRAILER_SIZE:]
    assert len(data) < 20_000
    with pytest.raises(BadFileError, match="headers of member"):
        Parcel("p.npz", reseal(data, at, size))


def test_a_zip_of_somebody_else_is_refused_even_with_our_trailer() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", b"1")
    plain = stream.getvalue()
    at, size = archive.start_dir, len(plain) - 22 - archive.start_dir
    data = plain[:-2] + struct.pack("<H", TRAILER_SIZE) + build()[-TRAILER_SIZE:]
    with pytest.raises(BadFileError, match="headers of member"):
        Parcel("p.npz", reseal(data, at, size))


@pytest.mark.parametrize("count", [0, 1, 3, MAX_MEMBERS, MAX_MEMBERS + 1, 1 << 60])
def test_a_count_of_members_that_is_not_theirs_is_refused(count: int) -> None:
    with pytest.raises(BadFileError):
        Parcel("p.npz", forge(PAIR, count=count))


@pytest.mark.parametrize("field", [8, 10, 12, 16, 20])
@pytest.mark.parametrize("new", [b"\0\0", b"\1\0", b"\xff\xff", b"\xff\xff\xff\xff"])
def test_a_lying_end_record_is_refused(field: int, new: bytes) -> None:
    good = build()
    at = len(good) - TRAILER_SIZE - 22 + field
    with pytest.raises(BadFileError):
        Parcel("p.npz", good[:at] + new + good[at + len(new) :])


def test_wide_fields_are_written_where_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is lowered here, so that a few bytes are large; any zip reader must agree."""
    monkeypatch.setattr(parcel_module, "_WIDE_FROM", 100)
    monkeypatch.setattr(parcel_module, "_mould", parcel_module.Mould)
    monkeypatch.setattr(parcel_module, "_last_moulds", {})
    members = [("a", [b"1"]), ("b", [b"2" * 100]), ("c", [b"3"]), ("d", [b"4" * 200])]
    data = build(members)
    expected = {name: b"".join(buffers) for name, buffers in members}
    assert contents(data) == expected
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == expected
    for bad in flips(data):
        with pytest.raises(BadFileError):
            contents(bad)


@pytest.mark.parametrize("members", [MEMBERS, [], [("a", [b"1"] * 3), ("b", [b""])]])
def test_a_parcel_that_is_cast_is_what_it_is_without_a_mould(
    members: list[tuple[str, list[bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cast = build(members)
    monkeypatch.setattr(parcel_module, "_MOULD_BYTES", -1)
    assert build(members) == cast


def test_the_mould_of_the_last_parcel_lets_nothing_pass_that_differs() -> None:
    """Parcels of one size share a mould: what was learned of one must not vouch for another."""
    one = build([("a", [b"1" * 20]), ("b", [b"2" * 20])])
    like_it = build([("a", [b"3" * 20]), ("b", [b"4" * 20])])
    other = build([("a", [b"1" * 19]), ("b", [b"2" * 21])])
    assert len(one) == len(like_it)
    for data, expected in ((one, b"1"), (like_it, b"3"), (other, b"1"), (one, b"1")):
        assert Parcel("p.npz", data).member("a")[:1] == expected
        for bad in flips(data):
            with pytest.raises(BadFileError):
                contents(bad)


def test_a_parcel_of_more_than_65535_members_is_read_back() -> None:
    data = build([(f"{n:09d}.npy", [b"x"]) for n in range(70_000)])
    assert len(Parcel("p.npz", data).names) == 70_000
    assert len(zipfile.ZipFile(io.BytesIO(data)).namelist()) == 70_000


def test_members_and_offsets_beyond_4_gib_are_read_back(tmp_path: Path) -> None:
    """A sparse file: zeros are skipped instead of written."""
    huge = memoryview(np.zeros(1 << 32, np.uint8))
    path = tmp_path / "p.npz"
    with path.open("w+b") as file:
        for chunk in pack(TRAILER, [("a.npy", [huge, b"end"]), ("b.npy", [b"behind"])]):
            if len(chunk) == len(huge):
                file.seek(len(huge), io.SEEK_CUR)
            else:
                file.write(chunk)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    parcel = Parcel(str(path), mapped)
    assert parcel.member("b.npy") == b"behind"
    start, size, _ = parcel._members["a.npy"]
    assert size == (1 << 32) + 3
    assert mapped[start + size - 3 : start + size] == b"end"
    with zipfile.ZipFile(path) as archive:
        assert archive.read("b.npy") == b"behind"
        assert archive.getinfo("a.npy").file_size == size
