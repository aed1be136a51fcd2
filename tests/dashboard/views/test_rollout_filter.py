"""Which rollouts a list shows, read from an address and written to one."""

from urllib.parse import parse_qsl

import pytest

from tests.dashboard.internals import RolloutFilter, split_resources


@pytest.mark.parametrize("text", ["0.1234565", "0.5", "1", "-3", "1e-07", "1e+30", "123456789.25"])
def test_a_bound_is_written_as_exactly_as_it_was_read(text: str) -> None:
    read = RolloutFilter.of([("reward_min", text), ("reward_max", text)])
    again = RolloutFilter.of(parse_qsl(read.query().removeprefix("?")))
    assert again == read
    assert again.reward_min == float(text)


def test_round_bounds_stay_short() -> None:
    assert RolloutFilter(reward_min=1.0, reward_max=0.25).query() == "?reward_min=1&reward_max=0.25"


@pytest.mark.parametrize("version", ["9" * 5000, "9" * 19, "0", "-1", "x", ""])
def test_what_is_no_version_belongs_to_the_name(version: str) -> None:
    assert split_resources(f"prompt@{version}") == (f"prompt@{version}", None)
    assert split_resources("prompt@3") == ("prompt", 3)
