"""Ranks that hold parts of the weights learn what one process learns, and their states are those of one."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sharpen.errors import InvalidInputError
from sharpen.llm import TrainingError
from sharpen.llm.engine import SamplingParams
from tests.llm.internals import LocalOptions, LocalPolicy, LossSettings, ShardedPolicy
from tests.llm.policy.scenes import prompts, random_samples

from .crews import LOSS, local_bytes, sharded, train

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 1e-4, "atol": 2e-5}
SCHEDULE: LocalOptions = {"lr_scheduler": "cosine", "total_steps": 8, "warmup_steps": 2, "keeps_reference": True}
WAYS = [
    pytest.param({"micro_batch_size": 1}, id="all"),
    pytest.param({"lora_rank": 4, "lora_alpha": 8}, id="lora"),
]


@dataclass
class Pair:
    """The same policy in two parts and whole."""

    two: ShardedPolicy
    one: LocalPolicy
    folder: Path
    options: LocalOptions

    def another(self) -> LocalPolicy:
        return LocalPolicy(self.folder, device="cpu", learning_rate=1e-3, **self.options)


@pytest.fixture(scope="module", params=WAYS)
def pair(request: pytest.FixtureRequest, model_folder: Path) -> Iterator[Pair]:
    options: LocalOptions = {**SCHEDULE, **request.param}
    with sharded(model_folder, **options) as two:
        made = Pair(two, two, model_folder, options)  # type: ignore[arg-type]
        made.one = made.another()
        yield made


def assert_same_state(two: LocalPolicy, one: LocalPolicy, folder: Path) -> None:
    found, wanted = load_file(two.save(folder / "two")), load_file(one.save(folder / "one"))
    assert found.keys() == wanted.keys()
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


def test_losses_gradients_and_weights_are_those_of_one_process(pair: Pair, tmp_path: Path) -> None:
    for step in range(4):
        found, wanted = train(pair.two, step), train(pair.one, step)
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5)
        assert found["grad_norm"] > LossSettings().clip_low  # so that clipping counts
    assert_same_state(pair.two, pair.one, tmp_path)


def test_each_rank_holds_half_of_weights_and_optimiser_after_any_pass(pair: Pair) -> None:
    pair.two.logprobs([[1, 2, 3]] * 3)
    pair.two.forward_backward(random_samples(1, count=4), LOSS)
    own, whole = local_bytes(pair.two)  # a layer that was still whole would not be in parts
    assert own == pytest.approx(whole / 2, rel=0.02)
    moments = sum(each["exp_avg"].numel() for each in pair.two._sharded._adam.state.values())  # type: ignore[union-attr]
    trained = sum(each.numel() for each in pair.two._trained().values())
    assert moments == pytest.approx(trained / 2, rel=0.02)
    pair.two.zero_grad()


def test_they_score_and_sample_the_same_with_the_newest_weights(pair: Pair) -> None:
    sequences = [each.token_ids for each in random_samples(7, count=8)]
    masks = [[place % 3 > 0 for place in range(len(each))] for each in sequences]
    masks[0] = [False] * len(masks[0])
    for reference in (False, True, False):
        found = pair.two.logprobs(sequences, masks=masks, temperature=0.8, reference=reference)
        wanted = pair.one.logprobs(sequences, masks=masks, temperature=0.8, reference=reference)
        for mine, its in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, its, **CLOSE)
    params = SamplingParams(max_new_tokens=4, temperature=0.0)
    for step in (20, 21):
        answers = [policy.sample(prompts(0, count=5), params) for policy in (pair.two, pair.one)]
        tokens = [[(each.prompt_ids, each.samples[0].token_ids) for each in x] for x in answers]
        assert tokens[0] == tokens[1]
        assert {version for each in answers[0] for version in each.samples[0].versions} == {pair.two.weights_version}
        train(pair.two, step)
        train(pair.one, step)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_ranks_with_unequal_work_wait_for_nobody(pair: Pair, count: int, tmp_path: Path) -> None:
    samples = [each for each in random_samples(8, count=8) if each.num_trained][:count]
    found, wanted = (each.forward_backward(samples, LOSS) for each in (pair.two, pair.one))
    assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    assert pair.two.optim_step() == pytest.approx(pair.one.optim_step(), rel=1e-4, abs=1e-5)
    sequences = [each.token_ids for each in samples]
    for mine, its in zip(pair.two.logprobs(sequences), pair.one.logprobs(sequences), strict=True):
        torch.testing.assert_close(mine, its, **CLOSE)


def test_states_go_between_parts_copies_and_one_process(pair: Pair, tmp_path: Path) -> None:
    pair.two.save(tmp_path / "parts")
    alone = pair.another()
    alone.load(tmp_path / "parts")
    assert_same_state(pair.two, alone, tmp_path / "a")
    train(pair.two, 3)
    train(alone, 3)
    assert_same_state(pair.two, alone, tmp_path / "b")
    pair.one.save(tmp_path / "one")
    pair.two.load(tmp_path / "one")
    assert (pair.two.num_updates, pair.two.weights_version) == (pair.one.num_updates, pair.one.weights_version)
    found, wanted = load_file(pair.two.save(tmp_path / "again")), load_file(tmp_path / "one" / "policy.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], each) for name, each in wanted.items())


def test_a_saved_model_is_that_of_one_process(pair: Pair, tmp_path: Path) -> None:
    sequences = [each.token_ids for each in random_samples(9, count=3)]
    pair.two.save_model(tmp_path / "model")
    pair.two.save_model(tmp_path / "merged", merge=True)
    wanted = pair.two.logprobs(sequences)
    for name in ("model", "merged"):
        loaded = LocalPolicy(tmp_path / name, device="cpu")
        for mine, its in zip(loaded.logprobs(sequences), wanted, strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-3)


def test_wrong_samples_and_gradients_that_are_no_numbers_leave_all_as_it_was(pair: Pair) -> None:
    before, updates = pair.two._sharded.own_weights(), pair.two.num_updates
    wrong, vast = random_samples(5, count=9), random_samples(6, count=8)
    wrong[-1].advantages = [float("nan")] * len(wrong[-1])
    with pytest.raises(InvalidInputError):
        pair.two.forward_backward(wrong, LOSS)
    assert pair.two.optim_step()["grad_norm"] == 0.0
    for each in vast:
        each.advantages = [3e38] * len(each)
    for _ in range(8):
        pair.two.forward_backward(vast, LossSettings(dual_clip=None))
    with pytest.raises(TrainingError):
        pair.two.optim_step()
    assert all(torch.equal(each, before[name]) for name, each in pair.two._sharded.own_weights().items())
    train(pair.two, 5)
    assert pair.two.num_updates == updates + 1
