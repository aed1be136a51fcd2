"""The starts of a run: which of them a result belongs to, and how long the run has worked over all of them.

A run is started once and resumed any number of times. `config.json` names every start (`started`, `resumed`) and the
seconds that the earlier ones took; `result.json` holds the number of the start that it ended. File times are never
used, as they change when a folder is copied.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..checks import is_number

MOMENT = "%Y-%m-%dT%H:%M:%S%z"
EARLIER = "earlier_seconds"
START = "start"


def moment(value: Any) -> float | None:
    """Return the seconds since 1970 of a time as `config.json` has it; None for anything else."""
    try:
        return datetime.strptime(value, MOMENT).timestamp()
    except (TypeError, ValueError):
        return None


def number_of_starts(config: Mapping[str, Any]) -> int:
    return 1 + len(_resumed(config))


def last_start(config: Mapping[str, Any]) -> float | None:
    """Return when the run was started or resumed last."""
    return moment([config.get("started"), *_resumed(config)][-1])


def is_of_last_start(
    config: Mapping[str, Any], result: Mapping[str, Any], progress: Mapping[str, Any], status: str | None
) -> bool:
    """Whether a result says how the last start ended; otherwise that one was killed.

    Results of version 0.1 have no number. They are of the last start if they repeat its last line of progress or,
    without one, if the loggers recorded the same `status`.
    """
    if START in result:
        return bool(result[START] == number_of_starts(config))
    if not _resumed(config):
        return True
    metrics = result.get("metrics")
    if isinstance(metrics, dict) and "seconds" in metrics:
        return bool(metrics["seconds"] == progress.get("seconds"))
    return bool(status == result.get("status"))


def seconds_worked(config: Mapping[str, Any], result: Mapping[str, Any] | None, ended: float | None) -> float | None:
    """Return the seconds over all starts: from the result of the last one, or from its start to `ended`."""
    if result is not None and is_number(result.get("seconds")):
        return float(result["seconds"])
    began = last_start(config)
    if began is None or ended is None:
        return None
    earlier = config.get(EARLIER)
    return max(ended - began, 0.0) + (float(earlier) if is_number(earlier) else 0.0)


def _resumed(config: Mapping[str, Any]) -> list[Any]:
    found = config.get("resumed")
    return found if isinstance(found, list) else []
