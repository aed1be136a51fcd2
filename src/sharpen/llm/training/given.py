"""Which arguments a caller really gave: a default in a signature is not a wish."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

Initialise = TypeVar("Initialise", bound=Callable[..., None])


def remembering_given(initialise: Initialise) -> Initialise:
    """An `__init__` that first keeps the arguments that were given in `self._given`, by name."""
    signature = inspect.signature(initialise)

    @wraps(initialise)
    def remembering(self: Any, *args: Any, **options: Any) -> None:
        given = dict(signature.bind(self, *args, **options).arguments)
        given.pop("self")
        self._given = given | given.pop("options", {})
        initialise(self, *args, **options)

    return cast(Initialise, remembering)
