"""A policy that is saved, killed and loaded goes on to the same numbers; models are written for others."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sharpen.llm import ModelError, load_model
from tests.errors import raises
from tests.llm.internals import LocalOptions, LocalPolicy, LossSettings
from tests.llm.tiny_models import write_tiny_model

from .scenes import WAY_NAMES, WAYS, policy, random_samples, sampled

ALL_WAYS: list[LocalOptions] = [*WAYS, {"precision": "bf16"}]


def train(made: LocalPolicy, steps: int) -> None:
    for _ in range(steps):
        made.forward_backward(sampled(made, n=2, max_new_tokens=4), LossSettings(entropy_coef=0.01))
        made.optim_step()


def assert_equal(one: LocalPolicy, other: LocalPolicy) -> None:
    for (name, mine), (_, its) in zip(one.model.named_parameters(), other.model.named_parameters(), strict=True):
        assert torch.equal(mine, its), name


@pytest.mark.parametrize("way", ALL_WAYS, ids=[*WAY_NAMES, "bf16"])
def test_a_loaded_policy_goes_on_to_the_same_bits(model_folder: Path, tmp_path: Path, way: LocalOptions) -> None:
    options: LocalOptions = {"lr_scheduler": "cosine", "total_steps": 6, "warmup_steps": 2, **way}
    straight = policy(model_folder, **options)
    train(straight, 2)
    straight.save(tmp_path)
    train(straight, 2)
    resumed = policy(model_folder, **options)
    train(resumed, 1)  # whatever it did before
    resumed.load(tmp_path)
    assert (resumed.weights_version, resumed.engine.weights_version, resumed.num_updates) == (2, 2, 2)
    train(resumed, 2)
    assert_equal(straight, resumed)


CHILD = """
import os, signal, sys
from pathlib import Path
from tests.llm.policy.scenes import policy
from tests.llm.policy.test_policy_state import train
made = policy(Path(sys.argv[1]))
train(made, 1)
made.save(sys.argv[2])
os.write(1, b"saved")
train(made, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(model_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(model_folder), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[3]
    child = subprocess.run(command, stdout=subprocess.PIPE, env=environment, cwd=root, check=False)
    assert (child.returncode, child.stdout) == (-signal.SIGKILL, b"saved")
    resumed, straight = policy(model_folder), policy(model_folder)
    resumed.load(tmp_path)
    train(resumed, 1)
    train(straight, 2)
    assert_equal(straight, resumed)


def test_the_state_of_another_model_is_refused_and_changes_nothing(model_folder: Path, tmp_path: Path) -> None:
    made = policy(model_folder)
    made.save(tmp_path / "state")
    other_folder = write_tiny_model(tmp_path / "other", layers=3, seed=9)
    for other, words in (
        (policy(other_folder), ()),
        (policy(model_folder, trainable="top:1"), ("all",)),
        (policy(model_folder, precision="bf16"), ()),
    ):
        before = {name: each.detach().clone() for name, each in other.model.named_parameters()}
        with raises(ModelError, *words):
            other.load(tmp_path / "state")
        assert all(torch.equal(each, before[name]) for name, each in other.model.named_parameters())
    policy(model_folder, lora_rank=2).save(tmp_path / "lora")
    with pytest.raises(ModelError):
        policy(model_folder, lora_rank=4).load(tmp_path / "lora")


def test_missing_and_damaged_states_are_refused(model_folder: Path, tmp_path: Path) -> None:
    made = policy(model_folder)
    with pytest.raises(ModelError):
        made.load(tmp_path)
    path = made.save(tmp_path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelError):
        made.load(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["policy.safetensors"]


@pytest.mark.parametrize("way", WAYS, ids=WAY_NAMES)
def test_a_written_model_is_the_policy(model_folder: Path, tmp_path: Path, way: LocalOptions) -> None:
    made = policy(model_folder, **way)
    train(made, 2)
    sequences = [each.token_ids for each in random_samples(0)]
    wanted = made.logprobs(sequences)
    folders = {made.save_model(tmp_path / "model"), made.save_model(tmp_path / "merged", merge=True)}
    assert (tmp_path / "merged" / "config.json").is_file()
    for folder in folders:
        for score, before in zip(policy(folder).logprobs(sequences), wanted, strict=True):
            torch.testing.assert_close(score, before, rtol=1e-4, atol=1e-4)
    for score, before in zip(made.logprobs(sequences), wanted, strict=True):
        assert torch.equal(score, before)
    train(made, 1)  # it goes on


def test_an_adapter_is_merged_before_its_model_is_trained(model_folder: Path, tmp_path: Path) -> None:
    adapter = policy(model_folder, lora_rank=2)
    train(adapter, 1)
    sequences = [each.token_ids for each in random_samples(0)]
    made = policy(adapter.save_model(tmp_path / "adapter"), trainable="top:1")
    for score, before in zip(made.logprobs(sequences), adapter.logprobs(sequences), strict=True):
        torch.testing.assert_close(score, before, rtol=1e-4, atol=1e-4)
    train(made, 1)
    assert not hasattr(load_model(made.save_model(tmp_path / "model"), device="cpu").model, "peft_config")
