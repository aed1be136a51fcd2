"""Small tensors on their way to a device."""

import torch
from torch import Tensor


def moved(tensor: Tensor, device: torch.device | str | None) -> Tensor:
    """The tensor on the device. A GPU fetches it when it comes to it: the next batch is made while one is computed."""
    if device is None or torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
