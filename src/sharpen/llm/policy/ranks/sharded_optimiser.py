"""AdamW whose state is spread over ranks: each steps its share of the elements and gives the others the result.

The numbers are those of one optimiser, to rounding, and so is the state: `state` gathers it whole on rank 0, and
`load_state` spreads one that rank 0 has read. Both, and `step` and `spread`, are done by all ranks at the same time.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from ...errors import TrainingError
from ..optimiser import MOMENTS, check_settings
from ..settings import Schedule
from .group import Group
from .pieces import Piece, buckets, pieces_of

_FINE = (torch.float32, torch.float64)


class ShardedOptimiser:
    """Steps when it is told to; until then the gradients of this rank add up."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        schedule: Schedule,
        group: Group,
        *,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        grad_clip: float | None = 1.0,
    ) -> None:
        check_settings(parameters, weight_decay, betas, grad_clip)
        self.num_steps = 0
        self._schedule, self._group, self._device = schedule, group, group.device
        self._grad_clip = math.inf if grad_clip is None else grad_clip
        self._parameters = dict(parameters)
        self._collected: dict[str, Tensor] = {}
        self._pieces = self._divided()
        # The share is without a gap, so no weight has two pieces in it.
        self._own = {piece.name: piece for piece in self._pieces if piece.owner == group.rank}
        self._masters = {name: self._master(piece) for name, piece in self._own.items()}
        self._counts: dict[str, int] = {}  # how often each weight was changed, also those of other ranks
        self._adam = self._made_adam(betas, weight_decay)

    def _divided(self) -> list[Piece]:
        """Who steps what."""
        for name, each in self._parameters.items():
            each.data = each.data.contiguous()
            if not self._is_fine(name):
                each.register_post_accumulate_grad_hook(_Collector(self._collected, name))  # type: ignore[no-untyped-call]
        return pieces_of({name: each.numel() for name, each in self._parameters.items()}, self._group.size)

    @property
    def has_gradient(self) -> bool:
        """Whether this rank has one; others may."""
        return any(self._gradient(name) is not None for name in self._parameters)

    def zero(self) -> None:
        """Forget the gradients."""
        self._collected.clear()
        for each in (*self._parameters.values(), *self._masters.values()):
            each.grad = None

    @torch.no_grad()
    def step(self) -> dict[str, float]:
        """Change the weights by the gradients of all ranks, and forget those. `grad_norm` is that before clipping.

        A gradient that is no number changes nothing, on any rank.
        """
        changed = self._names_with_gradient()
        self._sum_gradients(changed)
        norm = self._norm()
        grad_norm, learning_rate = norm.item(), self._schedule.at(self.num_steps)
        if not math.isfinite(grad_norm):
            self.zero()
            raise TrainingError(
                f"the norm of the gradient is {grad_norm} in step {self.num_steps + 1}, so the weights were not "
                "changed: lower the learning rate or grad_clip, check rewards and log-probabilities, or use fp32"
            )
        if self._adam is not None:
            torch.nn.utils.clip_grads_with_norm_(self._masters.values(), self._grad_clip, norm)
            for group in self._adam.param_groups:
                group["lr"] = learning_rate
            self._adam.step()
        self.spread(changed)
        self._counts |= {name: self._counts.get(name, 0) + 1 for name in changed}
        self.num_steps += 1
        self.zero()
        return {"grad_norm": grad_norm, "learning_rate": learning_rate}

    @torch.no_grad()
    def spread(self, names: Collection[str] | None = None) -> None:
        """Every rank has the weights (all, or these) as the rank has them that steps them."""
        names = self._parameters if names is None else set(names)
        wanted = [piece for piece in self._pieces if piece.name in names]
        for owner, bucket in buckets(wanted, self._dtype):
            flat = self._flat(bucket, self._dtype(bucket[0].name))
            if owner == self._group.rank:
                torch.cat([self._part(self._masters, piece).to(flat.dtype) for piece in bucket], out=flat)
            self._group.copy_from(owner, flat)
            for piece, part in zip(bucket, _split(flat, bucket), strict=True):
                self._weight(piece).copy_(part)

    # -- state ---------------------------------------------------------------------------------------

    def outline(self) -> dict[str, Tensor]:
        """What a state has, by name, for comparison: tensors of the right shapes. Needs no other rank."""
        return {f"weight.{name}": each.detach() for name, each in self._parameters.items()}

    @torch.no_grad()
    def state(self) -> dict[str, Tensor]:
        """All numbers but `num_steps`, on the CPU of rank 0; the others have nothing."""
        tensors = self._gathered("weight", self._masters, self._parameters)
        for key in MOMENTS:
            own = {name: self._moment(name, key) for name in self._own if name in self._counts}
            tensors |= self._gathered(key, own, self._counts)
        if self._group.rank == 0:
            tensors |= {f"step.{name}": torch.tensor(float(count)) for name, count in self._counts.items()}
        return tensors

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor], num_steps: int) -> None:
        """Go on from a state of the same weights. Rank 0 gives it whole, the others only the counts: `step.NAME`."""
        self._counts = {
            name: round(float(tensors[f"step.{name}"])) for name in self._parameters if f"step.{name}" in tensors
        }
        self._keep_in_place()
        self._dealt("weight", tensors, self._masters, self._parameters)
        moments = {
            key: {name: torch.zeros_like(self._masters[name]) for name in self._own if name in self._counts}
            for key in MOMENTS
        }
        for key, own in moments.items():
            self._dealt(key, tensors, own, self._counts)
        self._take_moments(moments)
        self.spread()
        self.num_steps = num_steps
        self.zero()

    def _gathered(self, key: str, own: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
        """Whole tensors on rank 0, of the parts that ranks have."""
        is_root = self._group.rank == 0
        kinds = {name: self._master_dtype(name) for name in names}
        whole = {name: torch.empty(self._parameters[name].shape, dtype=kinds[name]) for name in names if is_root}
        for owner, bucket in buckets([piece for piece in self._pieces if piece.name in names], self._master_dtype):
            flat = self._flat(bucket, kinds[bucket[0].name])
            if owner == self._group.rank:
                flat.copy_(torch.cat([self._part(own, piece) for piece in bucket]))
            self._group.copy_from(owner, flat)
            if is_root:
                for piece, part in zip(bucket, _split(flat.cpu(), bucket), strict=True):
                    whole[piece.name].view(-1)[piece.start : piece.end] = part
        return {f"{key}.{name}": each for name, each in whole.items()}

    def _dealt(
        self, key: str, tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], names: Collection[str]
    ) -> None:
        """The parts that ranks have, of whole tensors on rank 0."""
        for owner, bucket in buckets([piece for piece in self._pieces if piece.name in names], self._master_dtype):
            flat = self._flat(bucket, self._master_dtype(bucket[0].name))
            if self._group.rank == 0:
                given = [tensors[f"{key}.{piece.name}"].reshape(-1)[piece.start : piece.end] for piece in bucket]
                flat.copy_(torch.cat([each.to(flat.dtype) for each in given]))
            self._group.copy_from(0, flat)
            if owner == self._group.rank:
                for piece, part in zip(bucket, _split(flat, bucket), strict=True):
                    self._part(own, piece).copy_(part)

    def _moment(self, name: str, key: str) -> Tensor:
        assert self._adam is not None
        found: Tensor = self._adam.state[self._masters[name]][key]
        return found

    def _take_moments(self, moments: Mapping[str, Mapping[str, Tensor]]) -> None:
        if self._adam is None:
            return
        for name, master in self._masters.items():
            self._adam.state.pop(master, None)
            if name in self._counts:
                # The fused kernel wants its count beside the weights.
                count = torch.tensor(float(self._counts[name]), device=master.device)
                self._adam.state[master] = {"step": count, **{key: own[name] for key, own in moments.items()}}

    # -- gradients -----------------------------------------------------------------------------------

    def _gradient(self, name: str) -> Tensor | None:
        return self._parameters[name].grad if self._is_fine(name) else self._collected.get(name)

    def _names_with_gradient(self) -> list[str]:
        """The weights that have a gradient on some rank, the same on all."""
        counts = torch.tensor([self._gradient(name) is not None for name in self._parameters], dtype=torch.int32)
        counts = counts.to(self._device)
        self._group.sum_all(counts)
        return [name for name, count in zip(self._parameters, counts.tolist(), strict=True) if count]

    def _sum_gradients(self, names: Collection[str]) -> None:
        """Each rank has the sum over all ranks for its share."""
        self._keep_in_place()
        chosen = set(names)
        for name in self._own:
            self._masters[name].grad = torch.zeros_like(self._masters[name]) if name in chosen else None
        for owner, bucket in buckets([piece for piece in self._pieces if piece.name in chosen], self._master_dtype):
            flat = self._flat(bucket, self._master_dtype(bucket[0].name)).zero_()
            for piece, part in zip(bucket, _split(flat, bucket), strict=True):
                gradient = self._gradient(piece.name)
                if gradient is not None:
                    part.copy_(gradient.reshape(-1)[piece.start : piece.end])
            self._group.sum_to(flat, owner)
            if owner == self._group.rank:
                for piece, part in zip(bucket, _split(flat, bucket), strict=True):
                    gradient = self._masters[piece.name].grad
                    assert gradient is not None
                    self._within(gradient, piece).copy_(part)

    def _norm(self) -> Tensor:
        """Of the whole gradient, the same bits on every rank."""
        gradients = [each.grad for each in self._masters.values() if each.grad is not None]
        square = torch.zeros((), device=self._device)
        if gradients:
            square += torch.nn.utils.get_total_norm(gradients).to(self._device) ** 2
        self._group.sum_all(square)
        return square.sqrt()

    # -- weights -------------------------------------------------------------------------------------

    def _is_fine(self, name: str) -> bool:
        """Whether the weight itself takes the steps, and no copy in float32."""
        return self._dtype(name) in _FINE

    def _dtype(self, name: str) -> torch.dtype:
        return self._parameters[name].dtype

    def _master_dtype(self, name: str) -> torch.dtype:
        return self._dtype(name) if self._is_fine(name) else torch.float32

    def _weight(self, piece: Piece) -> Tensor:
        return self._parameters[piece.name].detach().view(-1)[piece.start : piece.end]

    def _master(self, piece: Piece) -> nn.Parameter:
        return nn.Parameter(self._weight(piece).to(self._master_dtype(piece.name)))

    def _keep_in_place(self) -> None:
        """An engine may have moved weights in memory; those that are stepped are where the weights are."""
        for name, piece in self._own.items():
            if self._is_fine(name):
                self._masters[name].data = self._weight(piece)

    def _part(self, own: Mapping[str, Tensor], piece: Piece) -> Tensor:
        return self._within(own[piece.name].detach(), piece)

    def _within(self, share: Tensor, piece: Piece) -> Tensor:
        """The elements of a piece in what this rank has of its weight."""
        begin = self._own[piece.name].start
        return share[piece.start - begin : piece.end - begin]

    def _flat(self, bucket: Sequence[Piece], dtype: torch.dtype) -> Tensor:
        return torch.empty(sum(piece.size for piece in bucket), dtype=dtype, device=self._device)

    def _made_adam(self, betas: tuple[float, float], weight_decay: float) -> torch.optim.AdamW | None:
        if not self._masters:  # fewer elements than ranks
            return None
        return torch.optim.AdamW(
            self._masters.values(), lr=self._schedule.at(0), betas=betas, weight_decay=weight_decay, fused=True
        )


class _Collector:
    """Adds the gradient of a weight in half precision to the sum in float32, and frees it."""

    def __init__(self, collected: dict[str, Tensor], name: str) -> None:
        self._collected, self._name = collected, name

    def __call__(self, parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return
        if self._name in self._collected:
            self._collected[self._name] += gradient
        else:
            self._collected[self._name] = gradient.float()


def _split(flat: Tensor, bucket: Sequence[Piece]) -> tuple[Tensor, ...]:
    return torch.split(flat, [piece.size for piece in bucket])
