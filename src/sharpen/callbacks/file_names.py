"""Names of checkpoint files, made from the iteration, the time and the metrics."""

import logging
import math
import string
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError

log = logging.getLogger(__name__)


class FileNames:
    """A template such as `{iter:03d}-{val/reward:.2f}.pth`. A metric that an iteration lacks is `nan` in it."""

    def __init__(self, template: str) -> None:
        self._template = template
        self._warned: set[str] = set()
        try:
            parts = list(string.Formatter().parse(template))
            self._fields = [field for _, field, _, _ in parts if field is not None]
            example = self.name(iteration=0, metrics=dict.fromkeys(self._fields, math.nan), now=0.0)
        except (ValueError, TypeError, LookupError) as error:
            raise ConfigError(f"filename is {template!r}, which is no template: {error}") from error
        if any("/" in literal for literal, *_ in parts) or example in ("", ".", ".."):
            raise ConfigError(f"filename is {template!r}: give the name of a file, without a folder")

    def name(self, *, iteration: int, metrics: Mapping[str, float], now: float) -> str:
        stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(now))
        values = {**metrics, "iter": iteration, "time": stamp}
        for field in self._fields:
            if field not in values:
                self._warn(field, metrics)
                values[field] = math.nan
        return _Names().vformat(self._template, (), values)

    def _warn(self, field: str, metrics: Mapping[str, float]) -> None:
        if field not in self._warned:
            self._warned.add(field)
            known = ", ".join(["iter", "time", *sorted(metrics)])
            log.warning("the names of checkpoints use %r, which this iteration lacks; there are: %s", field, known)


class _Names(string.Formatter):
    """Looks a whole field up: a metric's name may contain slashes and dots."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs[field_name], field_name
