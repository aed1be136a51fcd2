"""The gate: calls under way are counted, and new ones wait or are refused while it is paused."""

import asyncio

import pytest

from tests.errors import raises
from tests.llm_proxy.internals import Gate, Refusal, WhenPaused


async def test_an_open_gate_lets_calls_through_at_once_and_counts_them() -> None:
    gate = Gate()
    assert [await gate.enter(), await gate.enter()] == [False, False]
    assert gate.in_flight == 2
    gate.leave()
    assert gate.in_flight == 1


async def test_paused_calls_wait_and_go_on_when_the_gate_opens() -> None:
    gate = Gate()
    gate.pause()
    waiting = [asyncio.ensure_future(gate.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    assert gate.in_flight == 0
    gate.resume()
    assert await asyncio.gather(*waiting) == [True, True, True]
    assert gate.in_flight == 3


async def test_a_gate_that_is_paused_again_before_the_waiters_wake_lets_none_through() -> None:
    gate = Gate()
    gate.pause()
    waiting = asyncio.ensure_future(gate.enter())
    await asyncio.sleep(0)
    gate.resume()
    gate.pause()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    gate.resume()
    assert await waiting is True


async def test_waiting_is_bounded_and_then_refused_with_a_time_to_come_back() -> None:
    gate = Gate(pause_wait_seconds=0.01)
    gate.pause()
    with raises(Refusal, 0.01) as refused:
        await gate.enter()
    assert (refused.value.status, refused.value.retry_after_seconds) == (429, 1.0)
    assert gate.in_flight == 0


async def test_a_gate_that_refuses_says_when_to_come_back() -> None:
    gate = Gate(when_paused="refuse")
    gate.pause()
    with pytest.raises(Refusal) as refused:
        await gate.enter()
    assert (refused.value.status, refused.value.code, refused.value.should_retry) == (429, "paused", True)


async def test_draining_waits_for_the_last_call() -> None:
    gate = Gate()
    await gate.enter()
    await gate.enter()
    draining = [asyncio.ensure_future(gate.drain(30)) for _ in range(2)]
    gate.leave()
    await asyncio.sleep(0)
    assert not any(each.done() for each in draining)
    gate.leave()
    assert await asyncio.gather(*draining) == [0, 0]


async def test_draining_tells_how_many_are_left_when_time_is_over() -> None:
    gate = Gate()
    await gate.enter()
    assert await gate.drain(0.01) == 1
    gate.leave()
    assert await gate.drain(0) == 0


async def test_a_waiting_call_that_is_given_up_leaves_no_trace() -> None:
    gate = Gate()
    gate.pause()
    waiting = asyncio.ensure_future(gate.enter())
    await asyncio.sleep(0)
    waiting.cancel()
    gate.resume()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert gate.in_flight == 0


async def test_drains_that_find_a_new_call_when_they_wake_all_wait_for_it_and_return() -> None:
    gate = Gate()
    await gate.enter()
    draining = [asyncio.ensure_future(gate.drain()) for _ in range(3)]
    await asyncio.sleep(0)
    gate.leave()
    await gate.enter()
    await asyncio.sleep(0)
    assert not any(each.done() for each in draining)
    gate.leave()
    assert await asyncio.wait_for(asyncio.gather(*draining), 5) == [0, 0, 0]


@pytest.mark.parametrize("when_paused", ["wait", "refuse"])
async def test_calls_that_wait_before_a_gate_are_refused_when_it_is_closed(when_paused: WhenPaused) -> None:
    gate = Gate(when_paused="wait")
    gate.pause()
    waiting = asyncio.ensure_future(gate.enter())
    await asyncio.sleep(0)
    gate.close()
    late = Gate(when_paused=when_paused)
    late.pause()
    late.close()
    for entering in (waiting, late.enter()):
        with pytest.raises(Refusal) as refused:
            await entering
        assert (refused.value.status, refused.value.retry_after_seconds) == (503, 1.0)
    assert gate.in_flight == 0


async def test_a_closed_gate_that_is_not_paused_lets_calls_through() -> None:
    gate = Gate()
    gate.close()
    assert await gate.enter() is False
