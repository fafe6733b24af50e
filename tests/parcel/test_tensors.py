"""A tensor comes back as a tensor of the same dtype, or is refused with what to send instead."""

from __future__ import annotations

import json
import math
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.errors import BadFileError, PayloadError
from postroom.parcel.container import Parcel
from postroom.parcel.decode import decode
from postroom.parcel.encode import encode
from postroom.parcel.jsonable import weight
from postroom.parcel.sheets import pack_data, unpack_data
from tests.parcel.test_encode import numpy_members, round_trip, same, ship, unwrap, wrap

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")

PLAIN = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64"
BITS = "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu complex32"
DTYPES = [*PLAIN.split(), "complex64", "complex128", *BITS.split()]


def bits(tensor: Any) -> Any:
    """What a tensor holds, whatever its dtype."""
    whole = tensor.detach().resolve_conj().resolve_neg()
    flat = whole.clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).tolist() if flat.numel() else []


def same_tensor(a: Any, b: Any) -> bool:
    return (
        type(a) is type(b) is torch.Tensor
        and (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
        and bits(a) == bits(b)
    )


def made(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    """A tensor of random bits."""
    kind = getattr(torch, dtype)
    raw = np.random.default_rng(seed).integers(0, 256, (99, kind.itemsize), np.uint8)
    if dtype == "bool":
        raw &= 1
    many = torch.from_numpy(raw).view(kind).flatten()
    return many[: math.prod(shape)].reshape(shape)


@settings(deadline=None)
@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=4).map(tuple),
    st.sampled_from(["whole", "turned", "sliced"]),
    st.integers(0, 99),
)
def test_a_tensor_comes_back_as_it_was(
    dtype: str, shape: tuple[int, ...], layout: str, seed: int
) -> None:
    tensor = made(dtype, shape, seed)
    if shape and layout == "turned":
        tensor = tensor.movedim(0, -1)
    if shape and layout == "sliced":
        tensor = tensor[::2]
    back = round_trip({"x": [tensor]})["x"][0]
    assert same_tensor(back, tensor)
    assert all(same_tensor(one, tensor) for one in unwrap(ship([tensor, tensor, tensor])))


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_reads_it_under_its_name(dtype: str) -> None:
    tensor = made(dtype, (2, 3), 7)
    (array,) = numpy_members(ship([{"x": tensor}]))["x"]
    assert array.tobytes() == bytes(bits(tensor))
    assert array.shape == (2, 3)
    assert array.dtype == (dtype if hasattr(np, dtype) else f"u{tensor.itemsize}")


def test_what_comes_back_can_be_changed_and_is_not_shared() -> None:
    parcel = Parcel("p.npz", ship([torch.zeros(3)]))
    tree: Any = parcel.json("jobs.json")
    one, other = decode(tree, parcel, 0), decode(tree, parcel, 0)
    one += 1
    assert other.tolist() == [0, 0, 0]


def test_gradients_and_views_stay_behind() -> None:
    tensor = torch.arange(6.0, requires_grad=True)
    for value in (tensor, tensor * 1, torch.nn.Parameter(tensor.detach())):
        back = round_trip(value)
        assert not back.requires_grad
        assert same_tensor(back, tensor.detach())
    turned = torch.tensor([1 + 2j]).conj()
    assert same_tensor(round_trip(turned), turned)
    assert same_tensor(round_trip(turned.imag), turned.imag)


def test_a_state_dict_comes_back_with_its_versions() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    state = model.state_dict()
    back = round_trip(state)
    assert type(back) is OrderedDict
    assert list(back) == list(state)
    assert back._metadata == state._metadata
    torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).load_state_dict(back)
    assert same(round_trip(torch.ones(2, 3).shape), torch.Size([2, 3]))


class Odd(torch.Tensor):  # type: ignore[misc]
    pass


REFUSED = [
    (lambda: torch.eye(2).to_sparse(), r"is a sparse tensor \(torch.sparse_coo\): send .to_dense"),
    (lambda: torch.eye(2).to_sparse_csr(), r"is a sparse tensor \(torch.sparse_csr\)"),
    (lambda: torch.empty(2, device="meta"), "on the meta device"),
    (lambda: torch.zeros(2).as_subclass(Odd), r"Odd, not a plain tensor: send .as_subclass"),
    (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "is a nested tensor"),
    (lambda: torch.nn.Linear(1, 1), r"is of type Linear: send its state_dict"),
    (lambda: torch.float32, "is of type dtype: send its name"),
    (lambda: torch.ones(2, 2).max(dim=0), r"is of type max: send tuple\(...\)"),
]


@pytest.mark.parametrize(("make", "what"), REFUSED, ids=[what for _, what in REFUSED])
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_plain_tensor_is_named_and_refused(make: Any, what: str) -> None:
    with pytest.raises(PayloadError, match=rf"^a\['t'\] .*{what}"):
        encode([{"t": make()}], label="a")
    assert weight({"t": make()}) > 0


def test_shared_data_is_named_and_is_not_offered_pickle() -> None:
    with pytest.raises(PayloadError, match=r"^shared\['w'\] is a sparse tensor") as refusal:
        pack_data({"w": torch.eye(2).to_sparse()})
    assert "pickle" not in str(refusal.value)


@pytest.mark.parametrize(
    "lie",
    ["float64", "quint8", "Tensor", "no such", 3, None, ["float32"]],
    ids=repr,
)
def test_a_tensor_of_a_dtype_that_it_is_not_is_a_bad_file(lie: Any) -> None:
    parcel = Parcel("p.npz", ship([torch.zeros(3)]))
    tree: Any = parcel.json("jobs.json")
    tree["trees"][0]["$tensor"][0] = lie
    members = [(name, bytes(parcel.member(name))) for name in parcel.names if name != "jobs.json"]
    with pytest.raises(BadFileError, match="odd"):
        unwrap(wrap(json.loads(json.dumps(tree)), members))


def test_a_reader_without_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ship([torch.zeros(3)])
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BadFileError, match=r"it holds a tensor, and torch .*numpy\.load"):
        unwrap(data)


def test_tensors_of_earlier_versions_are_read_for_ever() -> None:
    frozen = Path(__file__).parents[1] / "data" / "tensors-2.npz"
    back = unpack_data("tensors", frozen.read_bytes())
    assert same_tensor(back["bf"], torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    assert same_tensor(back["f8"], torch.tensor(0.5, dtype=torch.float8_e4m3fn))
    assert same_tensor(back["i"], torch.arange(3))
    assert same(back["size"], torch.Size([2, 3]))
    torch.nn.BatchNorm1d(2).load_state_dict(back["state"])
    assert back["state"]._metadata[""] == {"version": 2}
