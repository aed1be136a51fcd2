"""The options that searches have in common: people find them, and a slip of the pen is told."""

import inspect
import typing
from typing import Any

import pytest

from sharpen import APO, GEPA, FewShot
from sharpen.errors import ConfigError
from tests.algorithm.internals import PromptOptimiser, SharedOptions
from tests.errors import raises

SEARCHES = [APO, FewShot, GEPA]


@pytest.mark.parametrize(
    ("kind", "option", "message"),
    [
        (APO, "beam_witdh", "APO has no option 'beam_witdh'. Did you mean 'beam_width'?"),
        (APO, "trainsplit", "APO has no option 'trainsplit'. Did you mean 'train_split'?"),
        (FewShot, "max_demo", "FewShot has no option 'max_demo'. Did you mean 'max_demos'?"),
        (FewShot, "beam_width", "FewShot has no option 'beam_width'."),
        (GEPA, "reflection_modell", "GEPA has no option 'reflection_modell'. Did you mean 'reflection_model'"),
    ],
)
def test_an_unknown_option_is_told_with_the_nearest_that_there_is(kind: Any, option: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**{option: 3})
    assert message in str(caught.value)


def test_a_search_of_a_user_is_called_by_its_own_name() -> None:
    class Mine(APO):
        pass

    with raises(ConfigError, "Mine", "sed"):
        Mine(sed=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", SEARCHES)
def test_every_option_is_taken_typed_and_named_in_the_docstring(kind: Any) -> None:
    shared = set(SharedOptions.__annotations__)
    own = set(inspect.signature(kind).parameters) - {"shared"}
    assert not shared & own
    refused = {"val_batch_size", "run_initial_validation"} if kind is GEPA else set()
    assert set(inspect.signature(PromptOptimiser).parameters) - refused <= shared | own
    assert inspect.signature(kind).parameters["shared"].annotation == typing.Unpack[SharedOptions]
    assert all(f"`{name}`" in kind.__doc__ for name in shared)


def test_what_the_shared_options_mean_is_said_at_a_class_that_people_can_reach() -> None:
    hints = typing.get_type_hints(PromptOptimiser.__init__)
    for name, kind in typing.get_type_hints(SharedOptions).items():
        assert hints[name] == kind
    assert all(
        f"        {name}: " in str(PromptOptimiser.__doc__) for name in inspect.signature(PromptOptimiser).parameters
    )
