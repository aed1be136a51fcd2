"""What rank 0 and another rank say to each other: MessagePack in frames, on a socket that only they have.

Every order has a number, and its reply has the same one: the reply to an order that nobody waits for any more is
passed over.
"""

from typing import Any

import msgspec

from ...engine import SamplingParams
from ...errors import TrainingError
from ..losses import Totals
from ..samples import TrainingSample
from ..settings import LocalOptions, LossSettings
from .sharding import Sharding


class Order(msgspec.Struct, frozen=True, tag=True):
    """What a rank is to do."""


class Begin(Order, frozen=True):
    """Load the model. The reply is its fingerprint."""

    rank: int
    devices: list[str]
    port: int
    model_name: str
    options: LocalOptions
    num_threads: int
    sharding: Sharding | None = None


class Meet(Order, frozen=True):
    """Together: join the group."""


class Train(Order, frozen=True):
    """Add up gradients. The reply is the metrics.

    With `num_passes` it is done together: ranks with shards of the weights all pass through the model so often.
    """

    samples: list[TrainingSample]
    loss: LossSettings
    totals: Totals
    num_passes: int = 0


class Forget(Order, frozen=True):
    """Forget the gradients."""


class Step(Order, frozen=True):
    """Together: change the weights. The reply is their fingerprint, if `is_checked`."""

    is_checked: bool


class Score(Order, frozen=True):
    """The reply is the log-probabilities of each sequence, as the bytes of float32 numbers.

    With `num_passes` it is done together, as `Train`.
    """

    sequences: list[list[int]]
    masks: list[list[bool]] | None
    temperatures: list[float]
    reference: bool
    num_passes: int = 0


class Draw(Order, frozen=True):
    """The reply is a `Drawn` for each prompt."""

    prompts: list[list[int]]
    params: list[SamplingParams]


class Gather(Order, frozen=True):
    """Together: give rank 0 the state."""


class Take(Order, frozen=True):
    """Together: take a state from rank 0."""

    num_updates: int
    counters: dict[str, Any]
    counts: dict[str, float]


class MakeEngine(Order, frozen=True):
    """Together: gather the weights of an engine, on every rank."""


class GatherModel(Order, frozen=True):
    """Together: give rank 0 the whole model."""


class Serve(Order, frozen=True):
    """Answer agents. The reply is the address."""

    name: str
    seed: int | None
    rollout_prefix: str
    chat_template_kwargs: dict[str, Any] | None


class StopServing(Order, frozen=True):
    """Take no more requests."""


class Stop(Order, frozen=True):
    """End."""


AnyOrder = (
    Begin
    | Meet
    | Train
    | Forget
    | Step
    | Score
    | Draw
    | Gather
    | Take
    | MakeEngine
    | GatherModel
    | Serve
    | StopServing
    | Stop
)


def leaves_others_waiting(order: AnyOrder, error: BaseException) -> bool:
    """Whether a rank that failed so has left the others alone in what all do at the same time. It cannot go on."""
    if isinstance(order, Train | Score):
        return order.num_passes > 0
    # A gradient that is no number is one on every rank.
    is_everywhere = isinstance(order, Step) and isinstance(error, TrainingError)
    return isinstance(order, Meet | Step | Gather | Take | MakeEngine | GatherModel) and not is_everywhere


class Asked(msgspec.Struct, frozen=True):
    number: int
    order: AnyOrder


class Failure(msgspec.Struct, frozen=True):
    """An error of a rank."""

    kind: str
    message: str
    traceback: str


class Reply(msgspec.Struct, frozen=True):
    number: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    failure: Failure | None = None


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch, and arrays of them, as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, range):
        return list(value)
    raise TypeError(f"a {type(value).__name__} cannot be sent to another rank")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_asked_decoder = msgspec.msgpack.Decoder(Asked, strict=False)  # a mask may hold 0 and 1
_reply_decoder = msgspec.msgpack.Decoder(Reply)


def encode_asked(number: int, order: AnyOrder) -> bytes:
    return _encoder.encode(Asked(number, order))


def decode_asked(data: bytes) -> Asked:
    return _asked_decoder.decode(data)


def encode_reply(number: int, value: Any = None, failure: Failure | None = None) -> bytes:
    return _encoder.encode(Reply(number, msgspec.Raw(_encoder.encode(value)), failure))


def decode_reply(data: bytes) -> Reply:
    return _reply_decoder.decode(data)
