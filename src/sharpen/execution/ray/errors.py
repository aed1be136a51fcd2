"""An error on its way from an actor to the program: as itself where it can travel, else in words."""

import pickle

from ...errors import RunError
from ...runner.bundle import unpack


def packed(error: BaseException) -> bytes | None:
    """None where it cannot travel."""
    import cloudpickle  # type: ignore[import-untyped]

    try:
        data: bytes = cloudpickle.dumps(error)
    except Exception:  # noqa: BLE001 - an error of the user's own may hold anything; its words travel all the same
        return None
    return data


def unpacked(data: bytes | None, traceback: str) -> BaseException:
    """The error, with where it came from."""
    words = traceback.strip().splitlines()[-1]
    try:
        error = unpack(data) if data is not None else RunError(words)
    except (pickle.UnpicklingError, ImportError, AttributeError, TypeError, ValueError):
        error = RunError(words)
    if not isinstance(error, BaseException):
        error = RunError(words)
    error.add_note(f"in the algorithm's actor:\n{traceback}")
    return error
