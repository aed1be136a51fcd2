"""Tensors for the tests of losses: (1, T) rows by hand, and seeded random ones."""

import torch
from torch import Tensor

F64 = torch.float64


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=F64)


def noise(seed: int, *shape: int, spread: float = 0.5) -> Tensor:
    return spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def random_mask(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(100 + seed)) < 0.6
