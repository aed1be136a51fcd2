"""`Callback`: code that a training loop calls at fixed moments.

Every loop calls the hooks in this order:

    on_fit_start
        on_iter_start
            on_train_start     … training …    on_train_end
            on_validate_start  … validation …  on_validate_end      (when it is due)
        on_iter_end            (the iteration is counted before)
    on_fit_end

    on_test_start  … test …  on_test_end

A hook gets the loop and what is trained, by position. An exception of a hook ends the loop.
"""

from collections.abc import Iterable
from typing import Any, Literal, Protocol, TypeAlias, get_args

from ..checks import check_names

State: TypeAlias = dict[str, Any]
"""A tree for `save_state`: dicts, lists, tuples, plain values, arrays and tensors."""

Hook = Literal[
    "on_fit_start",
    "on_fit_end",
    "on_iter_start",
    "on_iter_end",
    "on_train_start",
    "on_train_end",
    "on_validate_start",
    "on_validate_end",
    "on_test_start",
    "on_test_end",
]


class Trained(Protocol):
    """What is trained: a vessel, an algorithm, a model."""

    def state_dict(self) -> State: ...

    def load_state_dict(self, state_dict: State, /) -> object: ...


class Loop(Protocol):
    """The training loop, as callbacks see it."""

    metrics: dict[str, float]
    """The newest metrics; those of validation begin with `val/`."""
    current_iter: int
    """The number of finished iterations."""
    current_stage: str
    should_stop: bool
    """Set it to end the loop after this iteration."""

    def state_dict(self) -> State: ...

    def load_state_dict(self, state_dict: State, /) -> object: ...


class Callback:
    """Base of all callbacks: every hook does nothing until it is overridden.

    A hook's arguments are a `Loop` and a `Trained`; they are typed as `Any`, so that a callback made for one kind of
    loop can use its classes and its names of the arguments. A new method whose name begins with `on_` is an error: it
    is a misspelt hook, which would never be called.
    """

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        for name, value in vars(cls).items():
            is_new = not any(hasattr(base, name) for base in cls.__mro__[1:])
            if is_new and name.startswith("on_") and callable(value):
                check_names([name], get_args(Hook), owner=cls.__name__, noun="hook")

    def on_fit_start(self, loop: Any, trained: Any, /) -> None:
        """Before the first iteration."""

    def on_fit_end(self, loop: Any, trained: Any, /) -> None:
        """After the last iteration."""

    def on_iter_start(self, loop: Any, trained: Any, /) -> None:
        """Before an iteration."""

    def on_iter_end(self, loop: Any, trained: Any, /) -> None:
        """After an iteration, which `current_iter` has counted already."""

    def on_train_start(self, loop: Any, trained: Any, /) -> None:
        """Before the training of an iteration."""

    def on_train_end(self, loop: Any, trained: Any, /) -> None:
        """After the training of an iteration."""

    def on_validate_start(self, loop: Any, trained: Any, /) -> None:
        """Before a validation."""

    def on_validate_end(self, loop: Any, trained: Any, /) -> None:
        """After a validation; `val/` metrics are there."""

    def on_test_start(self, loop: Any, trained: Any, /) -> None:
        """Before a test."""

    def on_test_end(self, loop: Any, trained: Any, /) -> None:
        """After a test."""

    def state_dict(self) -> State:
        """Return what the callback needs when the run is resumed."""
        return {}

    def load_state_dict(self, state_dict: State, /) -> None:
        """Restore what `state_dict` returned."""


def has_validations(loop: Any) -> bool:
    """Whether a loop validates at all; assumed if it does not say."""
    return getattr(loop, "val_every_n_iters", 1) is not None


def run_hook(callbacks: Iterable[Callback], hook: Hook, loop: Loop, trained: Trained) -> None:
    """Call one hook on all callbacks, in their order. The first exception is passed to the caller."""
    for callback in callbacks:
        getattr(callback, hook)(loop, trained)
