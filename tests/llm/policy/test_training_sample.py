"""What a training sample refuses."""

from typing import Any

import pytest

from sharpen.errors import InvalidInputError
from tests.errors import raises
from tests.llm.internals import TrainingSample

GOOD: dict[str, Any] = {
    "token_ids": [1, 2, 3],
    "loss_mask": [True, False, True],
    "advantages": [0.0, 0.0, 1.0],
    "old_logprobs": [0.0, 0.0, -1.0],
}


def test_the_first_token_is_never_trained() -> None:
    assert TrainingSample(**GOOD).num_trained == 1
    assert len(TrainingSample(**GOOD)) == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"token_ids": [], "loss_mask": [], "advantages": [], "old_logprobs": []}, ("token_ids",)),
        ({"advantages": [1.0]}, ("advantages", 1, 3)),
        ({"returns": [1.0]}, ("returns", 1, 3)),
        ({"temperature": 0}, ("temperature", 0)),
        ({"temperature": float("nan")}, ("temperature", "nan")),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], named: tuple[object, ...]) -> None:
    with raises(InvalidInputError, *named):
        TrainingSample(**{**GOOD, **change})
