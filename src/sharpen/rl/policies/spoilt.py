"""Learning that has gone wrong: a loss that is no number spoils the weights, and nothing afterwards says so."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import InvalidInputError
from ..episodes import EpisodeBatch
from ..trees import leaves


def refuse_spoilt(policy: str, metrics: Mapping[str, float], batch: EpisodeBatch) -> dict[str, float]:
    """The metrics of an update; where one of them is no finite number, an error that says where it came from."""
    spoilt = next((name for name, value in metrics.items() if name in _LOSSES and not math.isfinite(value)), None)
    if spoilt is not None:
        raise InvalidInputError(f"{policy}.learn: {spoilt} is {metrics[spoilt]}. {_origin(batch)}")
    return dict(metrics)


_LOSSES = ("loss", "loss/critic", "loss/actor")


def _origin(batch: EpisodeBatch) -> str:
    count = _rows_not_finite(batch.obs_T)
    if count:
        return (
            f"{count} of {len(batch)} observations are not finite: give them a space with bounds, and set "
            "validate_when = 'always' in the state interpreter to find the first"
        )
    return (
        "The observations of this collect are finite, so the weights have left the range of numbers: "
        "use a smaller lr, smaller rewards, or a smaller max_grad_norm"
    )


def _rows_not_finite(obs_T: Any) -> int:
    is_wrong_T: Any = False
    for leaf in leaves(obs_T):
        if np.issubdtype(leaf.dtype, np.floating):
            is_wrong_T = is_wrong_T | ~np.isfinite(leaf.reshape(len(leaf), -1)).all(1)
    return int(np.count_nonzero(is_wrong_T))
