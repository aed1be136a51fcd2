"""Requests and tokens a minute."""

from hypothesis import given, strategies as st

from tests.llm_proxy.internals import Rates

from .sending import Clock


def test_without_limits_nothing_waits() -> None:
    rates = Rates(None, None, Clock())
    for _ in range(1000):
        rates.reserve()
        rates.settle(1_000_000)
    assert rates.wait_seconds() == 0


def test_requests_beyond_the_limit_wait_until_the_first_is_a_minute_old() -> None:
    clock = Clock()
    rates = Rates(2, None, clock)
    rates.reserve()
    clock.now += 10
    rates.reserve()
    assert rates.wait_seconds() == 50
    clock.now += 50
    assert rates.wait_seconds() == 0
    rates.reserve()
    assert rates.wait_seconds() == 10


def test_tokens_count_when_they_are_settled() -> None:
    clock = Clock()
    rates = Rates(None, 100, clock)
    rates.reserve()
    rates.settle(60)
    assert rates.wait_seconds() == 0
    clock.now += 20
    rates.settle(60)
    assert rates.wait_seconds() == 40
    clock.now += 40
    assert rates.wait_seconds() == 0


def test_a_limit_that_is_just_used_up_lets_nothing_through() -> None:
    rates = Rates(None, 100, Clock())
    rates.settle(100)
    assert rates.wait_seconds() == 60


def test_one_answer_above_the_limit_waits_a_minute_and_no_longer() -> None:
    clock = Clock()
    rates = Rates(None, 100, clock)
    rates.settle(5000)
    assert rates.wait_seconds() == 60
    clock.now += 60
    assert rates.wait_seconds() == 0


def test_half_a_request_a_minute_is_one_in_two_minutes() -> None:
    clock = Clock()
    rates = Rates(0.5, None, clock)
    assert rates.wait_seconds() == 0
    rates.reserve()
    assert rates.wait_seconds() == 120
    clock.now += 60
    assert rates.wait_seconds() == 60
    clock.now += 60
    assert rates.wait_seconds() == 0


def test_both_limits_hold() -> None:
    clock = Clock()
    rates = Rates(10, 100, clock)
    rates.settle(200)
    assert rates.wait_seconds() == 60
    assert rates.limits == "10 requests per minute and 100 tokens per minute"


@given(st.lists(st.floats(min_value=0, max_value=30), max_size=200), st.integers(min_value=1, max_value=10))
def test_no_minute_ever_holds_more_requests_than_allowed(pauses: list[float], limit: int) -> None:
    clock = Clock()
    rates, sent = Rates(limit, None, clock), list[float]()
    for pause in pauses:
        clock.now += pause
        if rates.wait_seconds() == 0:
            rates.reserve()
            sent.append(clock.now)
    assert all(sum(when - 60 < other <= when for other in sent) <= limit for when in sent)
