"""How much memory a pass may fill with what its gradient needs."""

import torch

_CPU_BYTES = 1 << 30
_GPU_SHARE = 0.6  # of what is free; gradients, logits and the passing tensors of a layer need the rest


def activation_room_bytes(device: torch.device) -> int:
    """On a GPU a share of what is free now, counting what torch holds without using it."""
    if device.type != "cuda":
        return _CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int((free + unused) * _GPU_SHARE)
