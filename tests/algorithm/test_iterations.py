"""An algorithm reports its iterations to whoever listens."""

from collections.abc import Mapping
from typing import Any

import cloudpickle

from sharpen.algorithm import Algorithm


class Quiet(Algorithm[Any]):
    """Leaves everything as it is."""


class Heard:
    should_stop = False

    def __init__(self) -> None:
        self.reports: list[Any] = []

    def begin_iteration(self) -> None:
        self.reports.append("begin")

    def report_iteration(self, metrics: Mapping[str, float], val_metrics: Mapping[str, float] | None, /) -> bool:
        self.reports.append((metrics, val_metrics))
        return True


def test_without_a_trainer_nobody_listens_and_nothing_stops() -> None:
    algorithm = Quiet()
    algorithm.begin_iteration()
    assert algorithm.report_iteration({"loss": 1.0}, val_metrics={"loss": 2.0}) is False
    assert algorithm.should_stop is False


def test_a_report_reaches_the_loop_and_says_whether_to_stop() -> None:
    algorithm, heard = Quiet(), Heard()
    algorithm.set_loop(heard)
    algorithm.begin_iteration()
    assert algorithm.report_iteration({"loss": 1.0}) is True
    assert heard.reports == ["begin", ({"loss": 1.0}, None)]


def test_the_loop_stays_behind_when_an_algorithm_travels() -> None:
    algorithm = Quiet()
    algorithm.set_loop(Heard())
    assert cloudpickle.loads(cloudpickle.dumps(algorithm)).report_iteration({}) is False
