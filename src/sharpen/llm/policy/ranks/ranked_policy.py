"""`RankedPolicy`: a policy on several devices of this machine, with the face of one on a single device."""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import torch
from torch import Tensor

from ....errors import ConfigError, InvalidInputError, describe
from ...engine import Generation, SamplingParams
from ...errors import ModelError, TrainingError
from ..checkpoint import read_state, write_state
from ..losses import Totals, merge_metrics
from ..packing import Integers, TokenBatch, check_ids, totals_of
from ..policy import temperatures_of
from ..samples import TrainingSample
from ..settings import LocalOptions, LossSettings
from .crew import Crew, Posted
from .dealing import deal, in_order, scored
from .drawn import Drawn
from .group import Group
from .messages import (
    AnyOrder,
    Begin,
    Draw,
    Forget,
    Gather,
    Meet,
    Score,
    Serve,
    Step,
    StopServing,
    Take,
    Train,
    leaves_others_waiting,
)
from .rank_policy import RankPolicy
from .sharding import Sharding
from .turns import Turns

T = TypeVar("T")
Given = TypeVar("Given", bound=AnyOrder)

CHECK_EVERY = 16
"""Updates from one comparison of all ranks' weights to the next."""
_PATIENCE_SECONDS = 10.0
_NOTHING = type(None)


class RankedPolicy(RankPolicy):
    """A policy with one process for each device; this process is rank 0, with the first of them.

    Each rank holds the whole model and computes its part of the sequences. The optimiser's state is divided between
    them (see the package for what is not, and `ShardedPolicy` for ranks that divide the weights). The numbers are those
    of `LocalPolicy`, to rounding, and so are its states: one that was saved with other devices, or with one alone, can
    be loaded. The other ranks end with `close`, or with this process. When one of them dies, the next call is a
    TrainingError with its last words.
    """

    def __init__(
        self, model_name: str | os.PathLike[str], *, devices: Sequence[str], **options: Unpack[LocalOptions]
    ) -> None:
        check_devices(devices, options, least=2)
        self._begin_all(model_name, devices, options)

    def _begin_all(
        self,
        model_name: str | os.PathLike[str],
        devices: Sequence[str],
        options: LocalOptions,
        sharding: Sharding | None = None,
    ) -> None:
        group = Group.open(devices, is_default=sharding is not None)
        self._crew = Crew(len(devices) - 1, on_loss=group.abort)
        self._turns = Turns(self._on_device)
        self._has_gradient = False
        self._let_go = weakref.finalize(self, _let_go, self._crew, group)
        try:
            posted = self._post_begin(model_name, group.port, devices, options, sharding)
            self._begin_own(model_name, group, {**options, "device": devices[0]})
            self._meet_others(posted)
        except BaseException:
            self._let_go()
            raise

    def _begin_own(self, model_name: str | os.PathLike[str], group: Group, options: LocalOptions) -> None:
        RankPolicy.__init__(self, model_name, group, **options)

    @property
    def pids(self) -> list[int]:
        """The processes of the other ranks."""
        return self._crew.pids

    def close(self) -> None:
        """End the other ranks, for good. A second call changes nothing."""
        super().close()
        self._crew.end()
        self._turns.abandon(_PATIENCE_SECONDS)
        self.group.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post_begin(
        self,
        model_name: str | os.PathLike[str],
        port: int,
        devices: Sequence[str],
        options: LocalOptions,
        sharding: Sharding | None,
    ) -> Posted:
        threads = torch.get_num_threads()
        if devices[0] == "cpu":
            threads = max(1, threads // len(devices))
        name = os.fspath(model_name)
        ranks = range(1, len(devices))
        begins = [Begin(rank, list(devices), port, name, options, threads, sharding) for rank in ranks]
        try:
            return self._crew.post(begins)
        except TypeError as error:
            raise ConfigError(f"an option of the policy cannot be used with several devices: {error}") from error

    def _meet_others(self, posted: Posted) -> None:
        for rank, theirs in enumerate(self._crew.collect(posted, str), 1):
            if theirs != self.fingerprint_at_start:
                raise ModelError(
                    f"rank {rank} loaded different weights than this process: check whether the model is being changed"
                )
        self._turns.take(lambda: self._done_together(Meet(), self.meet))

    # -- sampling and scoring ------------------------------------------------------------------------

    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams | None = None) -> list[Generation]:
        """The samples of many prompts, in their order. Without a seed in `params`, each prompt gets one of its own."""
        seeded = [self._seeded(params or SamplingParams()) for _ in prompts]
        parts = deal(prompts, self.group.size)
        orders = [Draw([list(prompts[n]) for n in part], [seeded[n] for n in part]) for part in parts]

        def draw() -> list[Generation]:
            engine = self.engine  # all ranks have theirs before they are asked
            posted = self._crew.post([each if each.prompts else None for each in orders[1:]])
            requests = [engine.submit(*each) for each in zip(orders[0].prompts, orders[0].params, strict=True)]
            own = [request.result() for request in requests]
            others = self._crew.collect(posted, list[Drawn])
            return in_order(parts, [own, *([each.generation() for each in theirs] for theirs in others)])

        return self._turns.take(draw)

    def logprobs(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        masks: Sequence[Sequence[bool]] | None = None,
        temperature: float | Sequence[float] = 1.0,
        reference: bool = False,
    ) -> list[Tensor]:
        """As those of `LocalPolicy`; each rank computes a part."""
        check_ids(sequences, self._vocab_size)
        if masks is not None and len(masks) != len(sequences):
            raise InvalidInputError(f"there are {len(masks)} masks for {len(sequences)} sequences: pass one for each")
        temperatures = temperatures_of(temperature, len(sequences))
        parts = self._parts(sequences)
        passes = self._most_passes([scored(sequences, masks, part) for part in parts])

        def order(part: list[int]) -> Score:
            own = None if masks is None else [list(masks[number]) for number in part]
            return Score([list(sequences[n]) for n in part], own, [temperatures[n] for n in part], reference, passes)

        def score() -> list[Tensor]:
            posted = self._crew.post([order(part) if part or passes else None for part in parts[1:]])
            own = self._done_by_own(order(parts[0]), self.score_part)
            others = [each for each in self._crew.collect(posted, list[bytes]) if each]
            return in_order(parts, [own, *([_numbers(each) for each in theirs] for theirs in others)])

        return self._turns.take(score)

    def _parts(self, sequences: Sequence[Sequence[int]]) -> list[list[int]]:
        return deal(sequences, self.group.size, shares=self.settings.packs and self._body.shares_prefixes)

    def _most_passes(self, parts: Sequence[Sequence[Sequence[int]]]) -> int:
        """How often all ranks pass through the model for these sequences; 0: each as it needs."""
        return 0

    # -- learning ------------------------------------------------------------------------------------

    def forward_backward(
        self, samples: Sequence[TrainingSample], loss: LossSettings, *, totals: Totals | None = None
    ) -> dict[str, float]:
        """As that of `LocalPolicy`; each rank keeps the gradients of a part until `optim_step` adds them up."""
        check_ids([each.token_ids for each in samples], self._vocab_size)
        totals = totals or totals_of(samples, loss.width)
        trained = [each for each in samples if each.num_trained]
        parts = [[trained[number] for number in part] for part in self._parts([each.token_ids for each in trained])]
        passes = self._most_passes([[each.token_ids for each in part] for part in parts])
        orders = [Train(part, loss, totals, passes) for part in parts]

        def train() -> dict[str, float]:
            with self._whole_gradients_everywhere():
                posted = self._crew.post([each if each.samples or passes else None for each in orders[1:]])
                own = self._done_by_own(orders[0], self.train_part)
                others = self._crew.collect(posted, dict[str, float])
                self._turns.check()
            self._has_gradient = self._has_gradient or bool(trained)
            return _summed([own, *others])

        return self._turns.take(train)

    def zero_grad(self) -> None:
        """Forget the gradients that have added up, on all ranks."""
        forget_own = super().zero_grad

        def forget() -> None:
            forget_own()
            self._has_gradient = False
            self._crew.post(Forget())

        self._turns.take(forget)

    @contextlib.contextmanager
    def _whole_gradients_everywhere(self) -> Iterator[None]:
        """After an error on one rank no rank has a gradient left: a part of them would pull one way."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(TrainingError):  # of ranks that are lost, which is being raised already
                self.zero_grad()
            raise

    def optim_step(self) -> dict[str, float]:
        """As that of `LocalPolicy`, by all ranks. Now and then their weights are compared."""
        return self._turns.take(self._step_if_any)

    def _step_if_any(self) -> dict[str, float]:
        if not self._has_gradient:
            return {"grad_norm": 0.0, "learning_rate": self.settings.schedule.at(self.num_updates)}
        self._has_gradient = False
        order = Step(is_checked=self._is_checked_now())
        metrics, prints = self._done_together(order, self._step, str | None)
        if order.is_checked:
            self._check_same(prints)
        return metrics

    def _is_checked_now(self) -> bool:
        return self.num_updates % CHECK_EVERY == 0

    def _check_same(self, prints: Sequence[str | None]) -> None:
        own = self.fingerprint_now
        for rank, theirs in enumerate(prints, 1):
            if theirs != own:
                self._crew.lose(
                    f"the weights of rank {rank} differ from those of rank 0 after update {self.num_updates}: a device "
                    "or the connection between devices is faulty"
                )

    # -- files ---------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the state into a folder, whole and as `LocalPolicy` does; a state that is there is replaced at once."""
        state, _ = self._turns.take(lambda: self._done_together(Gather(), self._state))
        return write_state(Path(folder), self.kind, state)

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Go on from a state, whatever devices it was saved with. One of another model is refused."""
        state = read_state(Path(folder), self.kind, like=self.outline())
        marks = {name: each for name, each in state.tensors.items() if name.startswith("step.")}
        counts = {name.removeprefix("step."): float(each) for name, each in marks.items()}
        order = Take(state.num_updates, state.counters, counts)

        def take() -> None:
            self._done_together(order, lambda: self._take(state))
            self._has_gradient = False

        self._turns.take(take)

    # -- serving -------------------------------------------------------------------------------------

    def serve(self, order: Serve) -> list[str]:
        """The other ranks answer agents, at these addresses. `PolicyServers` does the same for rank 0."""
        return self._turns.take(lambda: self._crew.collect(self._crew.post(order), str))

    def stop_serving(self) -> None:
        """The other ranks take no more requests."""
        with contextlib.suppress(TrainingError):  # ranks that have gone do not serve either
            self._turns.take(lambda: self._crew.collect(self._crew.post(StopServing()), _NOTHING))

    # -- all at once ---------------------------------------------------------------------------------

    def _done_together(self, order: AnyOrder, work: Callable[[], T], kind: Any = _NOTHING) -> tuple[T, list[Any]]:
        """What all ranks do at the same time: the result of this one, and the replies of the others."""
        posted = self._crew.post(order)
        found = self._done_by_own(order, lambda _: work())
        return found, self._crew.collect(posted, kind)

    def _done_by_own(self, order: Given, work: Callable[[Given], T]) -> T:
        """The part of rank 0. Where it leaves the others alone in what all do, they are lost."""
        try:
            return work(order)
        except BaseException as error:
            if leaves_others_waiting(order, error):
                self._crew.mourn()
                self._crew.lose(f"rank 0 could not continue with the others: {describe(error)}")
            raise

    def _on_device(self) -> AbstractContextManager[Any]:
        """Threads have a current GPU of their own."""
        return torch.cuda.device(self.device) if self.device.startswith("cuda") else contextlib.nullcontext()

    def _batch(
        self, sequences: Sequence[Sequence[int]], places: Sequence[Integers], temperatures: Sequence[float]
    ) -> TokenBatch:
        self._turns.check()
        return super()._batch(sequences, places, temperatures)


def _let_go(crew: Crew, group: Group) -> None:
    crew.kill()
    group.leave()


def check_devices(devices: Sequence[str], options: LocalOptions, *, least: int) -> None:
    """There is a list of devices, and no other word on it."""
    if isinstance(devices, str) or len(devices) < least:
        raise ConfigError(
            f"devices is {devices!r}: use {'two' if least == 2 else 'one'} or more, such as ['cuda:0', 'cuda:1'], or "
            "use LocalPolicy"
        )
    if options.get("device") is not None:
        raise ConfigError(f"device is {options['device']!r}, but there are several devices: set only devices")


def _numbers(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.float32) if data else torch.zeros(0)


def _summed(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    return merge_metrics(
        {name: torch.tensor(value, dtype=torch.float64) for name, value in part.items()} for part in parts
    )
