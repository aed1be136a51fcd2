"""Settings of a request: what is refused, in words."""

import math
from typing import Any

import pytest

from sharpen.errors import InvalidInputError
from sharpen.llm.engine import SamplingParams


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": True}, "temperature is True"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"n": 0}, "n is 0"),
        ({"n": 1.5}, "n is 1.5"),
        ({"logprobs": 100}, "logprobs is 100: use a whole number of 0 to 64"),
        ({"seed": "a"}, "seed is 'a'"),
        ({"stop": ("",)}, "at least one character"),
        ({"top_k": 2**63}, f"top_k is {2**63}: use a whole number of 0 to"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": 10**400}, "temperature is 1000"),
        ({"n": 10**6}, "n is 1000000"),
        ({"seed": 2**64}, f"seed is {2**64}"),
        ({"stop": ("x",) * 100}, "stop holds 100 strings"),
        ({"stop": ("x" * 5_000,)}, "stop holds a string of 5000 characters"),
        ({"stop_token_ids": (-3,)}, "stop_token_ids is -3"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        SamplingParams(**setting)


def test_one_stop_string_may_stand_alone() -> None:
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
