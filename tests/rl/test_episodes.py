"""Episode batches, random numbers of episodes, and the public names."""

import importlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import sharpen.rl
from sharpen.errors import InvalidInputError
from sharpen.rl import Collector, EpisodeBatch, vectorize_env
from tests.errors import raises
from tests.rl.internals import EnvParts, EpisodeNoise
from tests.rl.toys import Countdown, Left, SoftmaxPolicy, Two, Zeros


def batch() -> EpisodeBatch:
    with vectorize_env(EnvParts(Countdown, Left(), Two(), None), "dummy", 2) as venv:
        venv.bind([2, 3, 1])
        return Collector(SoftmaxPolicy(), venv, buffer_size=1).collect()


def test_episodes_lie_one_after_the_other() -> None:
    got = batch()
    assert got.lengths_E.tolist() == [2, 3, 1]
    assert got.offsets_E.tolist() == [0, 2, 5]
    assert got.is_last_T.tolist() == [False, True, False, False, True, True]
    assert len(got) == 6
    second = got.episode(1)
    assert second.obs_T[:, 0].tolist() == [3, 2, 1]
    assert second.extras["p"].shape == (3,)
    assert [each.lengths_E.tolist() for each in got.episodes()] == [[2], [3], [1]]
    assert got.as_dict()["done"].tolist() == got.is_last_T.tolist()


def test_a_buffer_that_is_too_small_grows() -> None:
    with vectorize_env(EnvParts(Countdown, Left(), Two(), None), "dummy", 1) as venv:
        venv.bind([300])
        got = Collector(Zeros(), venv, buffer_size=1).collect()
    assert got.obs_T[:, 0].tolist() == list(range(300, 0, -1))


def test_a_collection_without_states_is_a_clear_error() -> None:
    with vectorize_env(EnvParts(Countdown, Left(), Two(), None), "dummy", 2) as venv:
        venv.bind([])
        with pytest.raises(InvalidInputError):
            Collector(Zeros(), venv).collect()


def drawn(ids: list[int], k_N: list[int], name: str = "random") -> Any:
    noise = EpisodeNoise((1, 2), 8)
    noise.begin(np.array(ids), np.array(k_N))
    noise.select(np.array(ids))
    return np.array([getattr(noise, name)((len(ids), 3)) for _ in range(5)])


@pytest.mark.parametrize("name", ["random", "standard_normal"])
def test_a_row_of_random_numbers_depends_on_its_episode_alone(name: str) -> None:
    alone = drawn([0], [7], name)
    together = drawn([3, 5, 1], [2, 7, 9], name)
    assert np.array_equal(alone[:, 0], together[:, 1])
    assert len(np.unique(together)) == together.size


def test_random_numbers_of_episodes_are_spread_as_they_should_be() -> None:
    noise = EpisodeNoise((4,), 2000)
    ids = np.arange(2000)
    noise.begin(ids, ids)
    noise.select(ids)
    uniform, normal, gumbel = noise.random((2000, 50)), noise.standard_normal((2000, 50)), noise.gumbel(size=(2000, 50))
    assert abs(uniform.mean() - 0.5) < 0.005
    assert abs(np.histogram(uniform, 10, (0, 1))[0] / uniform.size - 0.1).max() < 0.005
    assert abs(normal.mean()) < 0.015
    assert abs(normal.std() - 1) < 0.01
    assert abs(gumbel.mean() - np.euler_gamma) < 0.02
    assert abs(np.corrcoef(uniform[:-1].ravel(), uniform[1:].ravel())[0, 1]) < 0.015
    assert abs(np.corrcoef(uniform[:, :-1].ravel(), uniform[:, 1:].ravel())[0, 1]) < 0.015
    assert 0 < uniform.min() < uniform.max() < 1


def test_other_draws_are_those_of_an_ordinary_generator() -> None:
    one, two = EpisodeNoise((4,), 3), EpisodeNoise((4,), 3)
    assert one.integers(1000) == two.integers(1000)
    assert one.random() == two.random()
    assert one.permutation(10).tolist() == two.permutation(10).tolist()


MODULES = {
    "sharpen.rl.trainer": ["Trainer", "TrainingVessel", "TrainingVesselBase", "Checkpoint", "train", "backtest"],
    "sharpen.rl.trainer.callbacks": ["Callback", "EarlyStopping", "MetricsWriter"],
    "sharpen.rl.trainer.vessel": ["TrainingVessel"],
    "sharpen.rl.trainer.api": ["train", "backtest"],
    "sharpen.rl.utils": ["DataQueue", "EnvWrapper", "LogCollector", "LogWriter", "vectorize_env"],
    "sharpen.rl.utils.log": ["LogBuffer", "ConsoleWriter", "CsvWriter", "LogLevel"],
    "sharpen.rl.utils.finite_env": ["FiniteVectorEnv", "check_nan_observation", "generate_nan_observation"],
    "sharpen.rl.utils.env_wrapper": ["EnvWrapper", "EnvWrapperStatus"],
    "sharpen.rl.utils.data_queue": ["DataQueue"],
    "sharpen.rl.simulator": ["Simulator"],
    "sharpen.rl.interpreter": ["StateInterpreter", "ActionInterpreter", "GymSpaceValidationError"],
    "sharpen.rl.reward": ["Reward", "RewardCombination"],
    "sharpen.rl.aux_info": ["AuxiliaryInfoCollector"],
    "sharpen.rl.seed": ["InitialStateType"],
}


@pytest.mark.parametrize("path", MODULES)
def test_known_paths_lead_to_the_public_names(path: str) -> None:
    module = importlib.import_module(path)
    for name in MODULES[path]:
        assert getattr(module, name) is getattr(sharpen.rl, name)


def test_importing_the_parts_loads_no_torch() -> None:
    code = (
        "import sys; from sharpen.rl import Trainer, Simulator, vectorize_env, CsvWriter; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with raises(AttributeError, "Trainr"):
        _ = sharpen.rl.Trainr
