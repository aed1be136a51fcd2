"""Learning rates over the steps."""

import pytest

from sharpen.errors import ConfigError
from tests.errors import raises
from tests.llm.internals import Schedule


def test_the_warm_up_ends_at_the_whole_rate() -> None:
    schedule = Schedule(1.0, warmup_steps=4)
    assert [schedule.at(step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_line_and_a_cosine_end_at_zero() -> None:
    line = Schedule(2.0, "linear", warmup_steps=1, total_steps=5)
    assert [line.at(step) for step in range(7)] == pytest.approx([2.0, 2.0, 1.5, 1.0, 0.5, 0.0, 0.0])
    cosine = Schedule(2.0, "cosine", total_steps=4)
    assert [cosine.at(step) for step in (0, 2, 4, 9)] == pytest.approx([2.0, 1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("schedule", "named"),
    [
        ((-1.0,), ("learning_rate", -1)),
        ((1.0, "step"), ("lr_scheduler", "step")),
        ((1.0, "linear"), ("total_steps", None)),
        ((1.0, "constant", -1), ("warmup_steps", -1)),
    ],
)
def test_what_cannot_work_is_refused(schedule: tuple[object, ...], named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        Schedule(*schedule)  # type: ignore[arg-type]
