"""What the functions of this room ask of their tensors."""

import torch
from torch import Tensor

from ...errors import InvalidInputError


def check_rows(mask_BT: Tensor, **values: Tensor) -> None:
    """Refuse what is not (rows, positions) like the mask: torch would broadcast it without a word."""
    for name, each in values.items():
        if mask_BT.dim() != 2 or each.shape != mask_BT.shape:
            raise InvalidInputError(
                f"{name} has the shape {tuple(each.shape)} and the mask {tuple(mask_BT.shape)}: "
                "both must be (rows, positions)"
            )


def as_floats(values: Tensor) -> Tensor:
    """In float32 at least: whole numbers and half precision are too coarse for means."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def only_masked(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """0 outside the mask. Whatever stood there, also NaN, reaches neither the value nor the gradient."""
    return torch.where(mask_BT.bool(), as_floats(values_BT), 0.0)
