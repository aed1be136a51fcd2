"""The state of training in one file: tensors as safetensors, and the rest as JSON in its header.

One file is replaced at once: after a crash at any moment there is the old state or the new one. A fingerprint tells a
model's weights from others by their names, shapes, types and exact sums.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from ...errors import describe
from ...files import remove_leftovers, replacing
from ..errors import ModelError, TrainingError

_HEADER = "sharpen"
_FORMAT = 1


class _Header(msgspec.Struct, frozen=True):
    format: int
    fingerprint: str
    trainable: str
    num_updates: int
    counters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelState:
    """Where training stands. The fingerprint is that of the model at the start."""

    fingerprint: str
    trainable: str
    num_updates: int
    tensors: Mapping[str, Tensor]
    counters: dict[str, Any] = field(default_factory=dict)
    """Further plain values of the policy."""


def write_state(folder: Path, kind: str, state: ModelState) -> Path:
    """Write `KIND.safetensors` into a folder, which is made if it is not there."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    header = _Header(_FORMAT, state.fingerprint, state.trainable, state.num_updates, state.counters)
    tensors = {name: each.detach().cpu().contiguous() for name, each in state.tensors.items()}
    path = _path(folder, kind)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata={_HEADER: msgspec.json.encode(header).decode()})
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"the state cannot be saved in {str(folder)!r}: {describe(error)}") from error
    return path


def read_state(folder: Path, kind: str, *, like: ModelState) -> ModelState:
    """The state in a folder, if it is one of the same model with the same trained weights."""
    path = _path(folder, kind)
    header, tensors = _read(path)
    if header.fingerprint != like.fingerprint:
        raise ModelError(
            f"the state in {str(path)!r} belongs to a model with other weights: "
            "load it into the same model, in the same precision"
        )
    if header.trainable != like.trainable:
        raise ModelError(
            f"the state in {str(path)!r} has trainable {header.trainable!r}, but this policy has {like.trainable!r}: "
            "use the same value"
        )
    _check_shapes(path, tensors, like.tensors)
    return ModelState(header.fingerprint, header.trainable, header.num_updates, tensors, header.counters)


def _read(path: Path) -> tuple[_Header, dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ModelError(f"there is no state at {str(path)!r}: save one first, or pass its folder")
    try:
        with safe_open(path, framework="pt") as file:
            header = msgspec.json.decode((file.metadata() or {})[_HEADER], type=_Header)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except (OSError, SafetensorError, KeyError, msgspec.MsgspecError) as error:
        raise ModelError(f"{str(path)!r} does not contain a readable state: {describe(error)}") from error
    if header.format != _FORMAT:
        raise ModelError(
            f"the state in {str(path)!r} has format {header.format}, but this version of sharpen reads {_FORMAT}"
        )
    return header, tensors


def _check_shapes(path: Path, tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    names = {each for each in tensors if each.startswith("weight.")}
    own = {each for each in wanted if each.startswith("weight.")}
    for name in sorted(names ^ own):
        where = "lacks" if name in own else "has"
        raise ModelError(f"the state in {str(path)!r} {where} {name!r}: it was trained with other settings")
    for name in sorted(own):
        if tensors[name].shape != wanted[name].shape:
            raise ModelError(
                f"{name!r} has the shape {tuple(tensors[name].shape)} in {str(path)!r}, but here "
                f"{tuple(wanted[name].shape)}: it was trained with other settings"
            )


def _path(folder: Path, kind: str) -> Path:
    return folder.expanduser().absolute() / f"{kind}.safetensors"


# -- what tells weights from others -------------------------------------------------------------------


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(model: nn.Module) -> str:
    """The same for the same weights on any device; sums of whole numbers do not depend on the order."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype} {_sum_of_bits(weight)}\n".encode())
    return digest.hexdigest()[:32]


def _sum_of_bits(weight: Tensor) -> int:
    bits = weight.detach().contiguous().view(_INTEGERS[weight.element_size()])
    return int(bits.sum(dtype=torch.int64))
