"""Two ranks learn what one learns, and their states are those of one."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sharpen.errors import ConfigError, InvalidInputError
from sharpen.llm import ModelError, TrainingError
from sharpen.llm.engine import SamplingParams
from tests.errors import raises
from tests.llm.internals import LocalOptions, LocalPolicy, LossSettings, RankedPolicy
from tests.llm.policy.scenes import prompts, random_samples
from tests.llm.tiny_models import write_tiny_model

from .crews import LOSS, ranked, train

CLOSE = {"rtol": 1e-3, "atol": 2e-5}
SCHEDULE: LocalOptions = {"lr_scheduler": "cosine", "total_steps": 8, "warmup_steps": 2, "keeps_reference": True}
WAYS = [
    pytest.param({}, id="all"),
    pytest.param({"trainable": "top:1"}, id="top", marks=pytest.mark.slow),
    pytest.param({"lora_rank": 4, "lora_alpha": 8}, id="lora", marks=pytest.mark.slow),
]


@dataclass
class Pair:
    """The same policy with two ranks and with one, and how to make another of one."""

    two: RankedPolicy
    one: LocalPolicy
    folder: Path
    options: LocalOptions

    def another(self) -> LocalPolicy:
        return LocalPolicy(self.folder, device="cpu", learning_rate=1e-3, **self.options)


@pytest.fixture(scope="module", params=WAYS)
def pair(request: pytest.FixtureRequest, model_folder: Path) -> Iterator[Pair]:
    options: LocalOptions = {**SCHEDULE, **request.param}
    with ranked(model_folder, **options) as two:
        made = Pair(two, two, model_folder, options)
        made.one = made.another()
        yield made


def assert_close(one: LocalPolicy, other: LocalPolicy) -> None:
    for (name, mine), (_, its) in zip(one.model.named_parameters(), other.model.named_parameters(), strict=True):
        torch.testing.assert_close(mine, its, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


def test_two_ranks_learn_what_one_learns(pair: Pair) -> None:
    pair.two.sample(prompts(1))  # the engine is there before, and moves weights in memory
    pair.one.sample(prompts(1))
    start = [each.detach().clone() for each in pair.one.model.parameters()]
    for step in range(3):
        found, wanted = train(pair.two, step), train(pair.one, step)
        assert found == pytest.approx(wanted, rel=1e-3, abs=1e-4)
        assert pair.two.weights_version == pair.one.weights_version == step + 1
    assert_close(pair.two, pair.one)
    moved = max((x - y).abs().max().item() for x, y in zip(start, pair.one.model.parameters(), strict=True))
    assert moved > 1e-3


def test_they_score_and_sample_the_same(pair: Pair) -> None:
    sequences = [each.token_ids for each in random_samples(7, count=8)]
    masks = [[place % 3 > 0 for place in range(len(each))] for each in sequences]
    for reference in (False, True):
        found = pair.two.logprobs(sequences, masks=masks, temperature=0.8, reference=reference)
        wanted = pair.one.logprobs(sequences, masks=masks, temperature=0.8, reference=reference)
        for mine, its in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-3)
    params = SamplingParams(max_new_tokens=4, temperature=0.0)
    answers = [policy.sample(prompts(0, count=5), params) for policy in (pair.two, pair.one)]
    tokens = [[(each.prompt_ids, each.samples[0].token_ids, each.samples[0].text) for each in x] for x in answers]
    assert tokens[0] == tokens[1]
    assert {version for each in answers[0] for version in each.samples[0].versions} == {pair.two.weights_version}


def test_states_go_from_two_ranks_to_one_and_back(pair: Pair, tmp_path: Path) -> None:
    path, other = pair.two.save(tmp_path / "two"), pair.one.save(tmp_path / "one")
    found, wanted = load_file(path), load_file(other)
    assert found.keys() == wanted.keys()
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each, **CLOSE)
    alone = pair.another()
    alone.load(tmp_path / "two")
    assert load_file(alone.save(tmp_path / "again")).keys() == found.keys()
    assert all(torch.equal(each, found[name]) for name, each in load_file(tmp_path / "again" / path.name).items())
    train(pair.two, 3)
    train(alone, 3)
    assert_close(pair.two, alone)
    pair.two.load(tmp_path / "one")
    assert (pair.two.num_updates, pair.two.weights_version) == (pair.one.num_updates, pair.one.weights_version)
    assert all(torch.equal(x, y) for x, y in zip(pair.two.model.parameters(), pair.one.model.parameters(), strict=True))
    train(pair.two, 4)
    train(pair.one, 4)
    assert_close(pair.two, pair.one)


def test_an_error_of_one_rank_leaves_no_gradient(pair: Pair) -> None:
    before = [each.detach().clone() for each in pair.two.model.parameters()]
    samples = random_samples(5, count=9)
    samples[-1].advantages = [float("nan")] * len(samples[-1])
    with pytest.raises(InvalidInputError):
        pair.two.forward_backward(samples, LOSS)
    with pytest.raises(InvalidInputError):
        pair.two.logprobs([[1, 2], [10**6, 3]])
    assert pair.two.optim_step()["grad_norm"] == 0.0
    assert all(torch.equal(x, y) for x, y in zip(before, pair.two.model.parameters(), strict=True))


def test_a_gradient_that_is_no_number_changes_no_rank(pair: Pair) -> None:
    before, updates = [each.detach().clone() for each in pair.two.model.parameters()], pair.two.num_updates
    samples = random_samples(6, count=8)
    for each in samples:
        each.advantages = [3e38] * len(each)
    for _ in range(8):
        pair.two.forward_backward(samples, LossSettings(dual_clip=None))
    with pytest.raises(TrainingError):
        pair.two.optim_step()
    assert pair.two.num_updates == updates
    assert all(torch.equal(x, y) for x, y in zip(before, pair.two.model.parameters(), strict=True))
    train(pair.two, 5)
    assert pair.two.num_updates == updates + 1


def test_the_state_of_another_model_is_refused_and_changes_nothing(pair: Pair, tmp_path: Path) -> None:
    other = LocalPolicy(write_tiny_model(tmp_path / "other", layers=3, seed=9), device="cpu", **pair.options)
    other.save(tmp_path / "state")
    before = pair.two.fingerprint_now
    with pytest.raises(ModelError):
        pair.two.load(tmp_path / "state")
    assert pair.two.fingerprint_now == before


def test_devices_that_cannot_work_are_refused(model_folder: Path) -> None:
    with pytest.raises(ConfigError):
        RankedPolicy(model_folder, devices=["cpu"])
    with pytest.raises(ConfigError):
        RankedPolicy(model_folder, devices=["cpu", "cpu"], device="cpu")


@pytest.mark.slow
def test_a_model_that_is_not_there_is_said_and_no_process_stays(tmp_path: Path) -> None:
    with raises(ModelError, "nowhere"):
        ranked(tmp_path / "nowhere")


@pytest.mark.slow
def test_weights_in_half_precision_are_the_same_on_all_ranks(model_folder: Path, tmp_path: Path) -> None:
    """Their float32 copies are divided; a state has them whole."""
    with ranked(model_folder, precision="bf16") as two:
        for step in range(3):
            train(two, step)
        state = load_file(two.save(tmp_path))
        two._check_same([two.fingerprint_now])
    for name, each in two.model.named_parameters():
        assert state[f"weight.{name}"].dtype == torch.float32
        assert torch.equal(state[f"weight.{name}"].bfloat16(), each)
