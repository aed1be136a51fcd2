"""Settings of a request: what is refused, in words."""

import math
from typing import Any

import pytest

from sharpen.errors import InvalidInputError
from sharpen.llm.engine import SamplingParams
from tests.errors import raises


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"temperature": -1}, ("temperature", -1)),
        ({"temperature": math.nan}, ("temperature", "nan")),
        ({"temperature": True}, ("temperature", True)),
        ({"top_p": 0.0}, ("top_p", 0.0)),
        ({"top_p": 1.5}, ("top_p", 1.5)),
        ({"top_k": -1}, ("top_k", -1)),
        ({"max_new_tokens": 0}, ("max_new_tokens", 0)),
        ({"n": 0}, ("n", 0)),
        ({"n": 1.5}, ("n", 1.5)),
        ({"logprobs": 100}, ("logprobs", 100, 0, 64)),
        ({"seed": "a"}, ("seed", "a")),
        ({"stop": ("",)}, ("stop",)),
        ({"top_k": 2**63}, ("top_k", 2**63, 0)),
        ({"temperature": math.inf}, ("temperature", "inf")),
        ({"temperature": 10**400}, ("temperature",)),
        ({"n": 10**6}, ("n", 1000000)),
        ({"seed": 2**64}, ("seed", 2**64)),
        ({"stop": ("x",) * 100}, (100,)),
        ({"stop": ("x" * 5_000,)}, (5000,)),
        ({"stop_token_ids": (-3,)}, ("stop_token_ids", -3)),
    ],
)
def test_a_setting_that_cannot_work_is_refused(setting: dict[str, Any], named: tuple[object, ...]) -> None:
    with raises(InvalidInputError, *named):
        SamplingParams(**setting)


def test_one_stop_string_may_stand_alone() -> None:
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
