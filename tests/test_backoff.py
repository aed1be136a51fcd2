"""The pauses of a back-off."""

import asyncio
import random
import time

import pytest

from sharpen.backoff import Backoff


class Clock:
    """A clock that moves only by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_pauses_grow_to_the_maximum() -> None:
    backoff = Backoff(0.1, maximum=1.0)
    assert [next(backoff) for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert backoff.tries == 6
    backoff.reset()
    assert next(backoff) == 0.1
    assert backoff.pause(100_000) == 1.0
    assert [Backoff(1.0, maximum=9.0, factor=3.0).pause(number) for number in range(4)] == [1.0, 3.0, 9.0, 9.0]


def test_the_last_pause_ends_at_the_deadline() -> None:
    clock = Clock()
    backoff = Backoff(1.0, maximum=8.0, deadline_seconds=5.0, clock=clock)
    while backoff.wait(clock.sleep):
        pass
    assert clock.slept == [1.0, 2.0, 2.0]
    assert next(backoff, None) is None
    backoff.reset()
    assert next(backoff) == 1.0


def test_without_time_there_is_no_pause() -> None:
    assert next(Backoff(1.0, maximum=8.0, deadline_seconds=0.0), None) is None


def test_jitter_comes_from_the_given_source() -> None:
    def pauses(seed: int) -> list[float]:
        backoff = Backoff(1.0, maximum=4.0, jitter=0.5, rng=random.Random(seed))
        return [next(backoff) for _ in range(50)]

    assert pauses(1) == pauses(1) != pauses(2)
    assert all(2.0 <= pause <= 4.0 for pause in pauses(1)[2:])


def test_jitter_leaves_seeded_random_numbers_alone() -> None:
    random.seed(3)
    before = random.getstate()
    next(Backoff(1.0, maximum=4.0, jitter=0.5))
    assert random.getstate() == before


def test_other_tasks_run_while_one_backs_off() -> None:
    async def both() -> list[str]:
        seen: list[str] = []

        async def retry() -> None:
            backoff = Backoff(0.02, maximum=0.02, deadline_seconds=0.05)
            while await backoff.wait_async():
                seen.append("retry")

        async def other() -> None:
            seen.append("other")

        began = time.monotonic()
        await asyncio.gather(retry(), other())
        assert time.monotonic() - began >= 0.05
        return seen

    seen = asyncio.run(both())
    assert seen[0] == "other"
    assert seen.count("retry") >= 2
