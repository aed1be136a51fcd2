"""Which runner a model gets: our own forward pass where it is known to be exact, else the model's."""

import logging
from typing import Any, Protocol

import torch

from ..errors import ModelError
from .block_tables import BlockTables
from .fused_runner import FusedRunner
from .kernels import has_triton
from .model_runner import ModelRunner, eval_mode
from .paged_runner import PagedRunner
from .rows import Ticket
from .scheduler import Chunk
from .sequence import Sequence
from .sizes import Sizes

log = logging.getLogger(__name__)

_NUM_CHECKED = 8  # tokens of the comparison
_KERNEL_DTYPES = {torch.float32, torch.bfloat16, torch.float16}


class Runner(Protocol):
    """Computes what the scheduler has planned."""

    @property
    def shares_prefixes(self) -> bool: ...
    def prefill(self, chunks: list[Chunk], tables: BlockTables) -> Ticket | None: ...
    def decode(self, sequences: list[Sequence], tables: BlockTables) -> Ticket: ...
    def release(self, sequence: Sequence) -> None: ...
    def refresh(self, *, have_moved: bool) -> None: ...


def build_runner(model: Any, sizes: Sizes, *, static_shapes: bool | None, use_graphs: bool) -> Runner:
    """Our own forward pass, if on a few tokens it gives what the model gives; else the model's own."""
    runner: PagedRunner | FusedRunner
    is_static = _suits_kernels(model, sizes) if static_shapes is None else static_shapes
    try:
        runner = FusedRunner(model, sizes, use_graphs=use_graphs) if is_static else PagedRunner(model, sizes)
    except ModelError as error:
        log.warning("%s; it is run by its own, one sequence at a time: exact, but slow", error)
        return ModelRunner(model)
    if not is_same(runner, model, sizes):
        log.warning("the engine's forward pass differs from that of %s; the model's own is used", type(model).__name__)
        return ModelRunner(model)
    return runner


def _suits_kernels(model: Any, sizes: Sizes) -> bool:
    """Whether fixed shapes pay: on a GPU, by the kernels that read no more of the cache than what lives."""
    if not sizes.is_cuda or model.get_input_embeddings().weight.dtype not in _KERNEL_DTYPES:
        return False
    if not has_triton():
        log.warning("Triton is not installed, so the engine samples without its own kernels: exact, but slower")
        return False
    return True


def is_same(runner: PagedRunner | FusedRunner, model: Any, sizes: Sizes) -> bool:
    """Whether both give the same logits for some tokens, to the rounding of the dtype."""
    count = min(_NUM_CHECKED, sizes.max_length)
    ids = [(7919 * (place + 1)) % sizes.vocab_size for place in range(count)]
    ours = runner.logits(ids)
    with eval_mode(model):
        theirs = model(input_ids=torch.tensor([ids], device=sizes.device), use_cache=False).logits[0].float()
    is_full = model.get_input_embeddings().weight.dtype in {torch.float32, torch.float64}
    allowed = (1e-3 if is_full else 0.1) * max(1.0, theirs.abs().max().item())
    return bool((ours - theirs).abs().max().item() <= allowed)
