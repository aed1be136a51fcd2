"""Names of another package that programs still use: they work with a warning, or are refused with their replacement."""

import importlib
import logging
import subprocess
import sys
from typing import Any

import pytest

from sharpen import APO, Algorithm, TraceToMessages, Trainer, configure_logger
from sharpen.errors import ConfigError, SharpenError
from sharpen.logging import is_set_up
from sharpen.trainer import init_utils
from tests.errors import raises


def test_old_options_mean_what_their_new_names_mean() -> None:
    with pytest.warns(DeprecationWarning, match="deprecated") as warned:
        trainer = Trainer(n_workers=2, max_tasks=5, triplet_exporter=TraceToMessages(), daemon=True)
    told = [str(each.message) for each in warned]
    assert [any(new in each for each in told) for new in ("n_runners", "max_rollouts", "adapter", "daemon")] == [
        True
    ] * 4
    assert {each.filename for each in warned} == {__file__}
    assert (trainer.n_runners, trainer.max_rollouts) == (trainer.n_workers, trainer.max_tasks) == (2, 5)
    assert isinstance(trainer.triplet_exporter, TraceToMessages)
    assert trainer.adapter is trainer.triplet_exporter


@pytest.mark.parametrize(
    ("options", "named"), [({"daemon": False}, "daemon"), ({"n_workers": 2, "n_runners": 3}, "n_workers")]
)
def test_old_options_that_cannot_be_followed_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with raises(ConfigError, named):
        Trainer(**options)


def test_the_old_way_to_set_logging_up_works() -> None:
    with pytest.warns(DeprecationWarning, match="setup_logging"):
        ours = configure_logger(logging.WARNING)
    assert is_set_up()
    assert (ours.name, ours.level) == ("sharpen", logging.WARNING)
    with pytest.warns(DeprecationWarning, match="setup_logging"):
        theirs = configure_logger(name="my_program")
    assert (theirs.name, theirs.level, len(theirs.handlers)) == ("my_program", logging.INFO, 1)


def test_the_old_switch_of_apo_is_taken() -> None:
    with pytest.warns(DeprecationWarning, match="_poml_trace"):
        APO(_poml_trace=True)


@pytest.mark.parametrize(
    ("path", "name", "home"),
    [
        ("algorithm.utils", "with_store", "algorithm"),
        ("algorithm.verl.interface", "VERL", "algorithm.verl"),
        ("litagent.litagent", "LitAgent", "litagent"),
        ("reward", "find_final_reward", "emitter"),
        ("trainer.registry", "ExecutionStrategyRegistry", ""),
        ("types.core", "Triplet", "types"),
        ("types.tracer", "Span", "types"),
    ],
)
def test_modules_of_agent_lightning_are_there(path: str, name: str, home: str) -> None:
    found = getattr(importlib.import_module(f"sharpen.{path}"), name)
    assert found["shm"] if not home else found is getattr(importlib.import_module(f"sharpen.{home}"), name)


def test_the_decorator_stays_usable_beside_the_module_of_its_name() -> None:
    program = (
        "import sharpen\n"
        "from sharpen.reward import emit_reward\n"
        "import sharpen.reward\n"
        "@sharpen.reward\n"
        "def score(): return 0.5\n"
        "assert score() == 0.5\n"
        "from sharpen import reward\n"
        "assert reward(lambda: 1.0)() == 1.0\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_module_of_rewards_is_deprecated_and_the_decorator_is_not() -> None:
    program = (
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import sharpen\n"
        "    assert sharpen.reward(lambda: 1.0)() == 1.0\n"
        "    from sharpen import reward\n"
        "    assert reward(lambda: 1.0)() == 1.0\n"
        "    assert not [each for each in caught if 'sharpen' in str(each.message)]\n"
        "    import sharpen.reward\n"
        "    (warned,) = [each for each in caught if 'sharpen.reward' in str(each.message)]\n"
        "    assert warned.category is DeprecationWarning and warned.filename == '<string>'\n"
        "    assert 'sharpen.emitter' in str(warned.message)\n"
        "    assert sharpen.reward(lambda: 1.0)() == 1.0\n"
        "    assert len([each for each in caught if 'sharpen.reward' in str(each.message)]) == 1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


class Part:
    def __init__(self, size: int = 1) -> None:
        self.size = size


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: init_utils.load_class("nowhere.Part"), ImportError),
        (lambda: init_utils.load_class("json.nowhere.Part"), ImportError),
        (lambda: init_utils.load_class("json.Part"), AttributeError),
        (lambda: init_utils.instantiate_component(Part, {"sise": 1}), TypeError),
        (lambda: init_utils.build_component(dict, expected_type=Part, spec_name="part"), ValueError),
        (lambda: init_utils.build_component(lambda: 5, expected_type=Part, spec_name="part"), TypeError),
        (lambda: init_utils.build_component(5, expected_type=Part, spec_name="part"), ValueError),
        (lambda: Trainer(algorithm=APO()).dev(lambda task: 1.0, [1]), TypeError),
        (lambda: Algorithm().get_store(), ValueError),
        (lambda: APO().get_best_prompt(), ValueError),
    ],
)
def test_errors_are_those_that_programs_catch(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, SharpenError)


def test_a_trainer_has_as_many_runners_as_its_strategy() -> None:
    assert Trainer().n_runners == 1
    assert Trainer(strategy={"type": "shm", "n_runners": 3}).n_workers == 3
