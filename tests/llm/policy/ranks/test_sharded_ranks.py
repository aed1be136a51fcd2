"""Ranks that hold parts of the weights: they serve, end and die as those with copies do."""

import os
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file

from sharpen.errors import ConfigError
from sharpen.llm import TrainingError
from tests.errors import raises
from tests.execution.processes import is_running
from tests.llm.internals import LocalOptions, LocalPolicy, PolicyServers, ShardedPolicy, Sharding

from .crews import local_bytes, ranked, sharded, train

pytestmark = pytest.mark.slow


def test_every_rank_answers_agents_and_closing_lets_go_of_all(model_folder: Path, tmp_path: Path) -> None:
    """Three ranks in half precision, and then others from their state."""
    options: LocalOptions = {"precision": "bf16"}
    one = LocalPolicy(model_folder, device="cpu", learning_rate=1e-3, **options)
    with sharded(model_folder, 3, **options) as three, PolicyServers(three, name="tiny", seed=3) as servers:
        assert local_bytes(three)[0] == pytest.approx(local_bytes(three)[1] / 3, rel=0.1)
        with pytest.raises(ConfigError):
            sharded(model_folder)
        for step in range(3):
            # The largest ratio is the exponential of a difference of two numbers with eight bits.
            assert train(three, step) == pytest.approx(train(one, step), rel=5e-2, abs=2e-2)
        body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "return_token_ids": True}
        answers = [httpx.post(f"{url}/completions", json=body, timeout=60).json() for url in servers.base_urls]
        assert len({tuple(each["choices"][0]["token_ids"]) for each in answers}) == 1
        assert [each["weights_version"] for each in answers] == ["3", "3", "3"]
        state = load_file(three.save(tmp_path))
        pids = three.pids
    assert not any(map(is_running, pids))
    assert not torch.distributed.is_initialized()
    for name, each in load_file(one.save(tmp_path / "one")).items():
        torch.testing.assert_close(state[name], each, rtol=0.1, atol=2e-3)
    with ranked(model_folder, **options) as copies:
        copies.load(tmp_path)
        again = load_file(copies.save(tmp_path / "copies"))
    assert all(torch.equal(again[name], each) for name, each in state.items())


def train_and_save_for_long(policy: ShardedPolicy, folder: Path) -> None:
    for step in range(10_000):
        train(policy, step)
        policy.save(folder)


def test_a_killed_rank_is_a_clear_error_and_the_last_state_is_whole(model_folder: Path, tmp_path: Path) -> None:
    policy = sharded(model_folder)
    train(policy, 0)
    saved = policy.save(tmp_path).read_bytes()
    (pid,) = policy.pids
    threading.Thread(target=lambda: (time.sleep(0.3), os.kill(pid, signal.SIGKILL))).start()
    with raises(TrainingError, 1, pid, "SIGKILL"):
        train_and_save_for_long(policy, tmp_path / "later")
    with pytest.raises(TrainingError):
        policy.save(tmp_path)
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["policy.safetensors"]
    assert (tmp_path / "policy.safetensors").read_bytes() == saved
    assert not list(tmp_path.glob("later/*.tmp"))
    assert not is_running(pid)
    policy.close()
    LocalPolicy(model_folder, device="cpu", learning_rate=1e-3).load(tmp_path)


def test_a_model_that_only_its_own_code_computes_is_divided_too(tmp_path: Path, model_folder: Path) -> None:
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 384, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 64}
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(tmp_path)
    one = LocalPolicy(tmp_path, device="cpu", learning_rate=1e-3, keeps_reference=True)
    with sharded(tmp_path, keeps_reference=True) as two:
        for step in range(2):
            assert train(two, step) == pytest.approx(train(one, step), rel=1e-4, abs=1e-5)
        assert_scores_with_the_weights_of_the_moment(two, one, tmp_path / "state")
        assert local_bytes(two)[0] == pytest.approx(local_bytes(two)[1] / 2, rel=0.02)


def test_layers_that_stay_whole_while_training_never_compute_with_old_weights(
    tmp_path: Path, model_folder: Path
) -> None:
    options: LocalOptions = {"learning_rate": 1e-3, "keeps_reference": True}
    one = LocalPolicy(model_folder, device="cpu", **options)
    kept = Sharding(reshards_after_forward=False)
    with ShardedPolicy(model_folder, devices=["cpu"] * 2, sharding=kept, **options) as two:
        assert train(two, 0) == pytest.approx(train(one, 0), rel=1e-4, abs=1e-5)
        assert_scores_with_the_weights_of_the_moment(two, one, tmp_path)
        assert local_bytes(two)[0] == pytest.approx(local_bytes(two)[1] / 2, rel=0.02)


def assert_scores_with_the_weights_of_the_moment(two: ShardedPolicy, one: LocalPolicy, folder: Path) -> None:
    """Right after scores with other weights: those of the reference, and those before a state was loaded."""
    state = one.save(folder).parent
    for policy in (two, one):
        train(policy, 7)
        policy.logprobs([[1, 2, 3]])
    for is_loaded in (False, True):
        for reference in (False, True, False):
            found, wanted = (policy.logprobs([[1, 2, 3, 4], [7, 8]], reference=reference) for policy in (two, one))
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5)
        if not is_loaded:
            two.load(state)
            one.load(state)
