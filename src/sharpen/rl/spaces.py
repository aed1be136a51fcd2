"""Checks of values against gymnasium spaces, and arrays that hold values of them.

`SpaceCheck.full` checks everything and names the key that fails. `SpaceCheck.quick` checks kind, dtype and shape,
which is what goes wrong after an episode's first step, in a fraction of a microsecond.
"""

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ..errors import GymSpaceValidationError
from .trees import Array, Tree

Check = Callable[[Any], None]


class SpaceCheck:
    """Both checks of one space."""

    def __init__(self, space: gym.Space[Any]) -> None:
        if not isinstance(space, gym.Space):
            raise GymSpaceValidationError(f"expected a gymnasium space, not {type(space).__name__}", space, None)
        self.space = space
        self.quick: Check = _quick(space, self._slow)
        # Without bounds to check, the quick check is complete.
        self.full: Check = self.quick if _has_no_bounds(space) else self._slow

    def _slow(self, x: Any) -> None:
        """Raise `GymSpaceValidationError` unless `x` is in the space."""
        _check(self.space, x, "")


def _has_no_bounds(space: gym.Space[Any]) -> bool:
    if isinstance(space, spaces.Dict):
        return all(map(_has_no_bounds, space.spaces.values()))
    if isinstance(space, spaces.Box):
        return not space.bounded_below.any() and not space.bounded_above.any()
    return isinstance(space, spaces.Discrete)


def _check(space: gym.Space[Any], x: Any, path: str) -> None:
    if isinstance(space, spaces.Dict):
        _check_dict(space, x, path)
    elif isinstance(space, spaces.Tuple):
        _check_tuple(space, x, path)
    elif isinstance(space, spaces.Box):
        _check_box(space, x, path)
    elif not space.contains(x):
        raise _failure("the value is not in its space", path, space, x)


def _failure(message: str, path: str, space: gym.Space[Any], x: Any) -> GymSpaceValidationError:
    where = f"at key {path.removeprefix('.')!r}: " if path else ""
    return GymSpaceValidationError(where + message, space, x)


def _check_dict(space: spaces.Dict, x: Any, path: str) -> None:
    if not isinstance(x, dict):
        raise _failure(f"expected a dict, not {type(x).__name__}", path, space, x)
    missing, extra = [key for key in space.spaces if key not in x], [key for key in x if key not in space.spaces]
    if missing or extra:
        raise _failure(f"the keys differ: missing {missing}, not in the space {extra}", path, space, x)
    for key, inner in space.spaces.items():
        _check(inner, x[key], f"{path}.{key}")


def _check_tuple(space: spaces.Tuple[Any], x: Any, path: str) -> None:
    if not isinstance(x, tuple | list) or len(x) != len(space.spaces):
        raise _failure(f"expected a tuple of length {len(space.spaces)}", path, space, x)
    for number, (inner, value) in enumerate(zip(space.spaces, x, strict=True)):
        _check(inner, value, f"{path}.{number}")


def _check_box(space: spaces.Box, x: Any, path: str) -> None:
    if space.shape == () and type(x) in (int, float):
        if not _can_hold(np.dtype(space.dtype), x):
            raise _failure(f"this {type(x).__name__} does not fit into {space.dtype}", path, space, x)
        x = np.asarray(x, space.dtype)  # before the bounds are checked, because they are rounded too
    if not isinstance(x, np.ndarray | np.generic):
        raise _failure(f"expected a numpy array, not {type(x).__name__}", path, space, x)
    if not np.can_cast(x.dtype, space.dtype):
        raise _failure(f"the dtype is {x.dtype}, which does not fit into {space.dtype}", path, space, x)
    if x.shape != space.shape:
        raise _failure(f"the shape is {x.shape}, not {space.shape}", path, space, x)
    if not _is_within(space, x):
        raise _failure("a value is outside the bounds", path, space, x)


def _is_within(space: spaces.Box, values: Any) -> bool:
    # A NaN compares false with every bound; without a bound it is a value like any other.
    is_above = not space.bounded_below.any() or bool(((values >= space.low) | ~space.bounded_below).all())
    return is_above and (not space.bounded_above.any() or bool(((values <= space.high) | ~space.bounded_above).all()))


def _quick(space: gym.Space[Any], full: Check) -> Check:
    """Return a check that passes after one or two comparisons, and otherwise leaves the decision to `full`."""
    if isinstance(space, spaces.Box):
        return _quick_box(space, full)
    if isinstance(space, spaces.Discrete):
        return _quick_discrete(space, full)
    if isinstance(space, spaces.Dict):
        return _quick_dict(space, full)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return _quick_integers(space, full)
    return full


def _quick_box(space: spaces.Box, full: Check) -> Check:
    dtype, shape = np.dtype(space.dtype), space.shape

    def quick(x: Any) -> None:
        if type(x) is np.ndarray and x.dtype == dtype and x.shape == shape:
            return
        full(x) if not _fits(x, dtype, shape) else None

    return quick


def _fits(x: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    if isinstance(x, np.ndarray | np.generic):
        return x.shape == shape and np.can_cast(x.dtype, dtype)
    return shape == () and type(x) in (int, float) and _can_hold(dtype, x)


def _can_hold(dtype: np.dtype[Any], number: float) -> bool:
    """Return whether a Python number keeps its value, but for rounding, as one of this dtype."""
    if dtype.kind == "f":
        return not float(np.finfo(dtype).max) < abs(number) < math.inf
    limits = np.iinfo(dtype) if dtype.kind in "iu" and type(number) is int else None
    return limits is not None and bool(limits.min <= number <= limits.max)


def _quick_discrete(space: spaces.Discrete, full: Check) -> Check:
    low, high = int(space.start), int(space.start + space.n)

    def quick(x: Any) -> None:
        if (type(x) is np.int64 or type(x) is int) and low <= x < high:
            return
        full(x)

    return quick


def _quick_dict(space: spaces.Dict, full: Check) -> Check:
    checks = [(key, _quick(inner, _named(key, inner))) for key, inner in space.spaces.items()]

    def quick(x: Any) -> None:
        if type(x) is not dict or len(x) != len(checks):
            full(x)
        try:
            for key, check in checks:
                check(x[key])
        except KeyError:
            full(x)

    return quick


def _named(key: str, space: gym.Space[Any]) -> Check:
    return lambda x: _check(space, x, f".{key}")


def _quick_integers(space: spaces.MultiDiscrete | spaces.MultiBinary, full: Check) -> Check:
    shape = space.shape

    def quick(x: Any) -> None:
        if type(x) is np.ndarray and x.shape == shape and x.dtype.kind in "iub":
            return
        full(x)

    return quick


# -- arrays ------------------------------------------------------------------------------------------


def empty_batch(space: gym.Space[Any], n: int) -> Tree:
    """Return zeros for n values of a space, or an array of objects if it has no fixed shape."""
    if isinstance(space, spaces.Dict):
        return {key: empty_batch(inner, n) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(empty_batch(inner, n) for inner in space.spaces)
    if not has_fixed_shape(space):
        return np.empty(n, object)
    return np.zeros((n, *(space.shape or ())), space.dtype)


def has_fixed_shape(space: gym.Space[Any]) -> bool:
    """Return whether all values of a space fit into arrays of one shape."""
    if isinstance(space, spaces.Dict):
        return all(map(has_fixed_shape, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return all(map(has_fixed_shape, space.spaces))
    return isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


Writer = Callable[[int, Any], None]


def row_writer(batch: Tree) -> Writer:
    """Return a function that writes one value into row i of a batch."""
    if isinstance(batch, np.ndarray):
        return batch.__setitem__
    parts = [(key, row_writer(part)) for key, part in (batch.items() if isinstance(batch, dict) else enumerate(batch))]

    def write(i: int, value: Any) -> None:
        for key, part in parts:
            part(i, value[key])

    return write


def generate_nan_observation(obs_space: gym.Space[Any]) -> Any:
    """Return an observation of NaNs (integers: their largest value), which Qlib returns when seeds have run out."""
    if isinstance(obs_space, spaces.Dict):
        return {key: generate_nan_observation(inner) for key, inner in obs_space.spaces.items()}
    if isinstance(obs_space, spaces.Tuple):
        return tuple(map(generate_nan_observation, obs_space.spaces))
    zeros: Array = np.zeros(obs_space.shape or (), obs_space.dtype)
    if np.issubdtype(zeros.dtype, np.floating):
        return np.full_like(zeros, np.nan)
    largest = True if zeros.dtype == bool else np.iinfo(zeros.dtype).max
    filled = np.full_like(zeros, largest)
    return filled.item() if isinstance(obs_space, spaces.Discrete) else filled


def check_nan_observation(obs: Any) -> bool:
    """Return whether `generate_nan_observation` made this observation."""
    if isinstance(obs, dict):
        return all(map(check_nan_observation, obs.values()))
    if isinstance(obs, tuple | list):
        return all(map(check_nan_observation, obs))
    array: Array = np.asarray(obs)
    if np.issubdtype(array.dtype, np.floating):
        return bool(np.isnan(array).all())
    if array.dtype == bool:
        return bool(array.all())
    return np.issubdtype(array.dtype, np.integer) and bool((array == np.iinfo(array.dtype).max).all())
