"""The options of GEPA: gepa's own names, and why some of them are refused."""

import inspect
import sys
from typing import Any

import pytest

from sharpen import GEPA
from sharpen.errors import ConfigError, MissingExtraError
from tests.algorithm.internals import REFUSED
from tests.errors import raises


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_metric_call": 10}, "GEPA has no option 'max_metric_call'. Did you mean 'max_metric_calls'?"),
        ({"skip_perfct_score": True}, "Did you mean 'skip_perfect_score'"),
        ({"patiense": 1}, "Did you mean 'patience'"),
        ({"run_dir": "x"}, "run_dir"),
        ({"use_cloudpickle": True}, "use_cloudpickle"),
        ({"logger": print}, "logger"),
        ({"val_batch_size": 4}, "val_batch_size"),
        ({"max_metric_calls": 0}, "max_metric_calls is 0"),
        ({"max_metric_calls": None}, "max_metric_calls is None"),
        ({"reflection_model": ""}, "reflection_model is ''"),
        ({"reflection_temperature": 3}, "reflection_temperature is 3"),
        ({"reflection_client": object()}, "openai.AsyncOpenAI"),
        ({"candidate_selection_strategy": "best"}, "candidate_selection_strategy is 'best': use 'pareto' or"),
        ({"module_selector": "some"}, "module_selector is 'some': use 'round_robin' or 'all'"),
        ({"acceptance_criterion": "any"}, "acceptance_criterion is 'any': use 'strict_improvement'"),
        ({"reflection_minibatch_size": 0}, "reflection_minibatch_size is 0"),
        (
            {"batch_sampler": object(), "reflection_minibatch_size": 2},
            "batch_sampler=",
        ),
        ({"use_merge": "yes"}, "use_merge is 'yes': use True or False"),
        ({"perfect_score": float("nan")}, "perfect_reward is nan"),
        ({"perfect_reward": "1"}, "perfect_reward is '1'"),
        ({"perfect_reward": 1.0, "perfect_score": 2.0}, "perfect_score is another name for perfect_reward"),
        ({"reflection_prompt_template": "Improve <curr_param>"}, "<side_info>"),
        ({"reflection_prompt_template": {"plan": 3}}, "reflection_prompt_template['plan'] is int"),
        ({"promotion": "luck"}, "promotion is 'luck'"),
    ],
)
def test_what_cannot_work_is_refused_with_words(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GEPA(**options)
    assert message in str(caught.value)


def test_every_option_of_gepa_is_taken_or_refused_with_a_reason() -> None:
    from gepa.api import optimize

    of_gepa = set(inspect.signature(optimize).parameters)
    ours = set(inspect.signature(GEPA).parameters) | {"seed"}
    assert of_gepa <= ours | set(REFUSED)
    assert not ours & set(REFUSED)


def test_without_the_package_the_command_to_install_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gepa", None)
    with raises(MissingExtraError, "GEPA", "gepa", "sharpen[gepa]"):
        GEPA()


def test_a_search_does_not_inherit_the_state_of_a_strategy() -> None:
    class Sampler:
        used = 0

    options = GEPA(batch_sampler=Sampler()).options
    first = options.for_gepa(num_train=5, num_val=2)
    first["batch_sampler"].used = 1
    assert options.for_gepa(num_train=5, num_val=2)["batch_sampler"].used == 0


def test_minibatches_and_overlaps_are_no_larger_than_the_data() -> None:
    found = GEPA(reflection_minibatch_size=4).options.for_gepa(num_train=2, num_val=3)
    assert (found["reflection_minibatch_size"], found["merge_val_overlap_floor"]) == (2, 3)
