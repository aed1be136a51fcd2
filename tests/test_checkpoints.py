"""Checkpoints: exact trees, whole files, clear refusals."""

import json
import math
import pickle
import random
import struct
import subprocess
import sys
import time
from collections import OrderedDict, defaultdict, namedtuple
from enum import IntEnum
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as numpy_strategies
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from sharpen.checkpoints import copy_tree, is_state_file, load_state, save_state
from sharpen.errors import StateError, StateFileError
from sharpen.files import remove_leftovers
from tests.errors import raises

TORCH_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
]


def is_same(a: Any, b: Any) -> bool:
    """Equal in type, in value, and to the last bit of an array."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(map(is_same, a.values(), b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, float | complex):
        return repr(a) == repr(b)
    return bool(a == b)


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def trip(folder: Path, tree: Any) -> Any:
    save_state(folder / "state.pth", tree)
    return load_state(folder / "state.pth")


dtypes = st.one_of(
    numpy_strategies.boolean_dtypes(),
    numpy_strategies.integer_dtypes(endianness="?"),
    numpy_strategies.floating_dtypes(endianness="?"),
    numpy_strategies.complex_number_dtypes(sizes=(64, 128)),
    numpy_strategies.unicode_string_dtypes(max_len=4),
    numpy_strategies.byte_string_dtypes(max_len=4),
    numpy_strategies.datetime64_dtypes(),
)
arrays = numpy_strategies.arrays(dtypes, numpy_strategies.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(), max_size=8),
    st.binary(max_size=8),
    st.binary(max_size=8).map(bytearray),
)
keys = st.one_of(st.text(max_size=4), st.sampled_from(["$dict", "$", "$array"]), st.integers(), st.none())
trees = st.recursive(
    scalars | arrays | arrays.map(lambda array: array.reshape(-1)[0] if array.size else 0.0),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4).map(OrderedDict),
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees)
def test_every_tree_comes_back_exactly(tmp_path: Path, tree: Any) -> None:
    assert is_same(trip(tmp_path, tree), tree)


@settings(max_examples=50, deadline=None)
@given(tree=trees)
def test_a_copy_is_equal_and_shares_nothing(tree: Any) -> None:
    assert is_same(copy_tree(tree), tree)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)], ids=str)
def test_tensors_of_every_type_and_shape_come_back(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    size = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 2, (size,), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    assert is_same(trip(tmp_path, {"w": tensor}), {"w": tensor})


def test_values_that_are_not_in_one_piece_come_back(tmp_path: Path) -> None:
    tensor, array = torch.arange(24.0).reshape(4, 6), np.arange(24.0).reshape(4, 6)
    tree = {
        "transposed": tensor.T,
        "strided": tensor[::2, 1::3],
        "expanded": torch.ones(1).expand(5),
        "negated": torch.view_as_complex(tensor.reshape(-1, 2)).conj().imag,
        "array": array.T,
        "reversed": array[::-1, ::2],
        "fortran": np.asfortranarray(array),
        "unaligned": np.frombuffer(bytes(25), dtype=np.uint8)[1:].view("<f8"),
    }
    assert is_same(trip(tmp_path, tree), tree)


def test_equal_memory_is_written_once_and_loaded_apart(tmp_path: Path) -> None:
    weight = torch.randn(200, 100)
    tree = {"embedding": weight, "head": weight.detach(), "row": weight[0]}
    back = trip(tmp_path, tree)
    assert is_same(back, tree)
    assert (tmp_path / "state.pth").stat().st_size < 1.2 * weight.numel() * 4
    back["head"].zero_()
    assert bool(back["embedding"].any())


def test_what_was_loaded_can_be_changed(tmp_path: Path) -> None:
    back = trip(tmp_path, {"a": np.zeros(3), "t": torch.zeros(3), "s": np.array(["x"])})
    back["a"][0] = back["t"][0] = 1
    back["s"][0] = "y"
    assert is_same(load_state(tmp_path / "state.pth")["a"], np.zeros(3))


def test_a_parameter_comes_back_as_its_values(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    assert is_same(trip(tmp_path, parameter), torch.ones(2))


def test_the_state_of_an_optimiser_comes_back(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 2)
    optimiser = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    tree = {"net": net.state_dict(), "optimiser": optimiser.state_dict()}
    back = trip(tmp_path, tree)
    assert is_same(back, tree)
    torch.optim.Adam(net.parameters()).load_state_dict(back["optimiser"])


def test_numbers_beyond_json_come_back(tmp_path: Path) -> None:
    tree = [math.nan, math.inf, -math.inf, -0.0, 2**64, -(2**63), -(2**200), 7**9000, 5e-324, np.float64(1.5)]
    assert is_same(trip(tmp_path, tree), tree)


Point = namedtuple("Point", "x y")


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (np.array([{}], dtype=object), ()),
        (np.zeros(2, dtype=[("x", "f4"), ("y", "i4")]), ("records",)),
        (np.ma.array([1, 2], mask=[0, 1]), ("numpy.asarray",)),
        (torch.eye(2).to_sparse(), ()),
        (torch.empty(2, device="meta"), ()),
        ({1, 2}, ("builtins.set",)),
        (Point(1, 2), ("Point",)),
        (Colour.RED, ("Colour",)),
        (defaultdict(int), ("defaultdict",)),
        (random.Random(1), ("random.Random",)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_lose_something_is_refused_by_its_place(
    tmp_path: Path, value: Any, named: tuple[object, ...]
) -> None:
    with raises(StateError, "state['deep'][1]", *named):
        save_state(tmp_path / "state.pth", {"deep": [0, value]})
    assert list(tmp_path.iterdir()) == []


def test_a_tree_that_contains_itself_is_refused(tmp_path: Path) -> None:
    tree: list[Any] = []
    tree.append(tree)
    with pytest.raises(StateError):
        save_state(tmp_path / "state.pth", tree)


def test_too_many_plain_values_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharpen.checkpoints.MAX_TREE_BYTES", 1000)
    with raises(StateError, "NumPy"):
        save_state(tmp_path / "state.pth", list(range(1000)))


def test_the_file_is_read_by_safetensors(tmp_path: Path) -> None:
    save_state(tmp_path / "state.pth", {"w": torch.ones(2, dtype=torch.bfloat16), "b": np.zeros(3, np.float32)})
    with safe_open(tmp_path / "state.pth", framework="pt") as file:
        assert [file.get_tensor(name).dtype for name in sorted(file.keys())] == [torch.bfloat16, torch.float32]
        assert json.loads(file.metadata()["tree"]).keys() == {"w", "b"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with raises(StateFileError, "absent.pth"):
        load_state(tmp_path / "absent.pth")


def test_foreign_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "boom",))

    foreign = {
        "empty": b"",
        "text": b"hello, this is no state",
        "pickle": pickle.dumps(Bomb()),
        "json": b'{"weights": [1, 2, 3]}',
    }
    for name, data in foreign.items():
        (tmp_path / name).write_bytes(data)
        with raises(StateFileError, name):
            load_state(tmp_path / name)
    assert not (tmp_path / "boom").exists()


def test_checkpoints_of_torch_and_models_are_refused_with_the_reason(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "torch.pth")
    save_file({"w": np.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(StateFileError):
        load_state(tmp_path / "torch.pth")
    with pytest.raises(StateFileError):
        load_state(tmp_path / "model.safetensors")
    with pytest.raises(StateFileError):
        load_state(tmp_path)


def test_a_state_file_is_told_from_other_files(tmp_path: Path) -> None:
    save_state(tmp_path / "state.pth", {})
    save_file({"w": np.ones(1)}, tmp_path / "model.safetensors")
    assert is_state_file(tmp_path / "state.pth")
    assert not is_state_file(tmp_path / "model.safetensors")
    torch.save({}, tmp_path / "torch.pth")
    (tmp_path / "list").write_bytes(struct.pack("<Q", 3) + b"[1]")
    for name in ("torch.pth", "list"):
        with raises(ValueError, "header"):
            is_state_file(tmp_path / name)


def test_a_file_of_a_later_version_says_so(tmp_path: Path) -> None:
    save_file({}, tmp_path / "new.pth", metadata={"format": "sharpen-state", "version": "9", "tree": "{}"})
    with raises(StateFileError, 9):
        load_state(tmp_path / "new.pth")


def outcome(path: Path, tree: Any) -> str:
    try:
        return "equal" if is_same(load_state(path), tree) else "different"
    except StateFileError:
        return "refused"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed(tmp_path: Path, place: float, bit: int) -> None:
    tree = {"w": np.arange(64.0), "t": torch.arange(9), "text": "values"}
    save_state(tmp_path / "state.pth", tree)
    data = bytearray((tmp_path / "state.pth").read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    (tmp_path / "state.pth").write_bytes(data)
    assert outcome(tmp_path / "state.pth", tree) in ("refused", "equal")  # blanks in the header carry nothing


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kept=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(tmp_path: Path, kept: float) -> None:
    save_state(tmp_path / "state.pth", {"w": np.arange(64.0), "text": "values"})
    data = (tmp_path / "state.pth").read_bytes()
    (tmp_path / "state.pth").write_bytes(data[: int(kept * len(data))])
    with raises(StateFileError, "state.pth"):
        load_state(tmp_path / "state.pth")


def test_a_tree_with_unknown_tags_or_arrays_is_refused(tmp_path: Path) -> None:
    import zlib

    for text in (
        '{"$eval": "1"}',
        '{"$array": "7", "crc32": 0}',
        '{"$int": "x"}',
        "[",
        '{"$tensor": 3}',
        "[" * 100_000,
    ):
        metadata = {"format": "sharpen-state", "version": "1", "tree": text, "crc32": str(zlib.crc32(text.encode()))}
        save_file({}, tmp_path / "odd.pth", metadata=metadata)
        with raises(StateFileError, "odd.pth"):
            load_state(tmp_path / "odd.pth")


def test_the_tree_knows_types_and_shapes_whatever_the_header_says(tmp_path: Path) -> None:
    tree = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "t": torch.arange(4.0)}
    save_state(tmp_path / "state.pth", tree)
    data = (tmp_path / "state.pth").read_bytes()
    assert b'"dtype":"F32","shape":[2,3]' in data
    changed = data.replace(b'"dtype":"F32","shape":[2,3]', b'"dtype":"I32","shape":[3,2]')
    (tmp_path / "state.pth").write_bytes(changed)
    assert is_same(load_state(tmp_path / "state.pth"), tree)


def test_a_header_that_lies_about_its_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "huge.pth").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    with raises(StateFileError, "huge.pth"):
        load_state(tmp_path / "huge.pth")


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    save_state(tmp_path / "state.pth", {"n": 1})
    (tmp_path / "folder.pth").mkdir()
    with raises(OSError, "folder.pth"):
        save_state(tmp_path / "folder.pth", {"n": 2})
    with pytest.raises(StateError):
        save_state(tmp_path / "state.pth", object())
    assert load_state(tmp_path / "state.pth") == {"n": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.pth", "state.pth"]


WRITER = """
import sys
import numpy as np
from sharpen.checkpoints import save_state

for version in range(int(sys.argv[2]), 1_000_000):
    save_state(sys.argv[1], {"version": version, "weights": np.full(50_000, version)})
    print(version, flush=True)
"""


def test_a_killed_writer_leaves_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    rng, path, version = random.Random(3), tmp_path / "state.pth", 0
    for _ in range(5):
        command = [sys.executable, "-c", WRITER, str(path), str(version + 1)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        reported = int(writer.stdout.readline())
        time.sleep(rng.uniform(0, 0.02))
        writer.kill()
        reported = int((writer.communicate()[0].split() or [reported])[-1])
        state = load_state(path)
        version = state["version"]
        assert version in (reported, reported + 1)
        assert (state["weights"] == version).all()
        remove_leftovers(tmp_path)
        # safetensors has a temporary file of its own, `.tmp…`, which says nothing of who made it.
        assert [each.name for each in tmp_path.iterdir() if not each.name.startswith(".tmp")] == ["state.pth"]


def test_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with raises(OSError, "absent"):
        save_state(tmp_path / "absent" / "state.pth", {})


def test_a_tree_without_arrays_needs_neither_numpy_nor_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from sharpen.callbacks import Callback, Checkpoint\n"
        "from sharpen.checkpoints import load_state, save_state\n"
        f"save_state({str(tmp_path / 's')!r}, {{'a': (1, b'x')}}); print(load_state({str(tmp_path / 's')!r}))\n"
        "print({'numpy', 'torch', 'rich', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["{'a': (1, b'x')}", "set()"]
