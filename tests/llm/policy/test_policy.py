"""The policy samples, scores and learns with one set of weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sharpen.errors import ConfigError, InvalidInputError
from sharpen.llm import TrainingError, load_model
from sharpen.llm.engine import SamplingParams
from tests.errors import raises
from tests.llm.internals import LocalOptions, LocalPolicy, LossSettings, TrainingSample, totals_of

from .scenes import WAY_NAMES, WAYS, policy, prompts, random_samples, sampled


def weights(given: LocalPolicy) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in given.model.named_parameters()}


def gradients(given: LocalPolicy) -> dict[str, Tensor]:
    return {name: each.grad.clone() for name, each in given.model.named_parameters() if each.grad is not None}


# -- sampling and scoring ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=WAY_NAMES)
def test_sampler_and_trainer_agree_before_and_after_updates(model_folder: Path, way: LocalOptions) -> None:
    made = policy(model_folder, **way)
    for version in range(3):
        samples = sampled(made, temperature=0.8, seed=version)
        scores = made.logprobs([x.token_ids for x in samples], masks=[x.loss_mask for x in samples], temperature=0.8)
        for sample, score in zip(samples, scores, strict=True):
            assert score.tolist() == pytest.approx(sample.old_logprobs, abs=1e-3)
        metrics = made.forward_backward(samples, LossSettings())
        assert metrics["ratio"] == pytest.approx(1, abs=1e-3)
        made.optim_step()
        assert made.weights_version == made.engine.weights_version == version + 1
    assert made.sample(prompts(), SamplingParams(max_new_tokens=2))[0].samples[0].versions == [3, 3]


def test_log_probabilities_are_the_models(model_folder: Path) -> None:
    model = load_model(model_folder, device="cpu").model
    samples = random_samples(3)
    scores = policy(model_folder).logprobs([x.token_ids for x in samples], temperature=[x.temperature for x in samples])
    for sample, score in zip(samples, scores, strict=True):
        rows = (model(torch.tensor([sample.token_ids])).logits[0] / sample.temperature).log_softmax(-1)
        wanted = [0.0] + [rows[t - 1, sample.token_ids[t]].item() for t in range(1, len(sample))]
        assert score.tolist() == pytest.approx(wanted, abs=1e-4)
        assert score.dtype == torch.float32


def test_tokens_outside_the_mask_score_zero(model_folder: Path) -> None:
    made = policy(model_folder)
    scores = made.logprobs([[4, 5, 6], [7, 8]], masks=[[True, False, True], [True, False]])
    assert [[value == 0 for value in score.tolist()] for score in scores] == [[True, True, False], [True, True]]


def test_equal_policies_sample_the_same_and_prompts_differ(model_folder: Path) -> None:
    params = SamplingParams(max_new_tokens=8, n=2)
    same = prompts()[0]
    first, second = (policy(model_folder, seed=5).sample([same, same], params) for _ in range(2))
    assert [[s.token_ids for s in each.samples] for each in first] == [
        [s.token_ids for s in each.samples] for each in second
    ]
    assert first[0].samples[0].token_ids != first[1].samples[0].token_ids


# -- gradients ---------------------------------------------------------------------------------------

LOSS = LossSettings(kl_coef=0.1, entropy_coef=0.05, aggregation="seq-mean-token-mean")
SPLITS: list[LocalOptions] = [
    {"packs": False, "micro_batch_size": 3},
    {"micro_batch_size": 2},
    {"token_budget": 30},
    {"micro_batch_size": None},
]


@pytest.mark.parametrize("way", WAYS[::2], ids=WAY_NAMES[::2])
def test_packed_split_and_alone_have_the_same_gradient(model_folder: Path, way: LocalOptions) -> None:
    samples = random_samples(1, count=8)
    wanted: tuple[dict[str, float], dict[str, Tensor]] | None = None
    for split in SPLITS:
        made = policy(model_folder, **{**way, **split})
        metrics = made.forward_backward(samples, LOSS)
        wanted = wanted or (metrics, gradients(made))
        assert metrics == pytest.approx(wanted[0], rel=1e-4, abs=1e-5)
        for name, gradient in gradients(made).items():
            torch.testing.assert_close(gradient, wanted[1][name], rtol=1e-3, atol=1e-5)


def test_a_mini_batch_in_several_calls_adds_up(model_folder: Path) -> None:
    samples = random_samples(2, count=6)
    whole, parts = policy(model_folder), policy(model_folder)
    wanted = whole.forward_backward(samples, LOSS)
    totals = totals_of(samples, LOSS.width)
    first, second = (parts.forward_backward(each, LOSS, totals=totals) for each in (samples[:2], samples[2:]))
    assert first["policy_loss"] + second["policy_loss"] == pytest.approx(wanted["policy_loss"], abs=1e-6)
    assert max(first["ratio_max"], second["ratio_max"]) == pytest.approx(wanted["ratio_max"], rel=1e-5)
    for name, gradient in gradients(parts).items():
        torch.testing.assert_close(gradient, gradients(whole)[name], rtol=1e-3, atol=1e-5)


def test_one_step_is_that_of_plain_torch(model_folder: Path) -> None:
    made = policy(model_folder, weight_decay=0.1, grad_clip=0.1)
    samples = random_samples(4)
    made.forward_backward(samples, LossSettings(clip_low=0.1, clip_high=0.3, kl_coef=0.2))
    metrics = made.optim_step()

    model = load_model(model_folder, device="cpu").model
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    losses: list[Tensor] = []
    for sample in samples:
        rows = (model(torch.tensor([sample.token_ids])).logits[0] / sample.temperature).log_softmax(-1)
        trained = [t for t in range(1, len(sample)) if sample.loss_mask[t]]
        losses += [_plain_loss(rows[t - 1, sample.token_ids[t]], sample, t) for t in trained]
    (sum(losses, torch.zeros(())) / len(losses)).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimiser.step()
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-3)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weights(made)[name], weight.detach(), rtol=1e-3, atol=5e-4)


def _plain_loss(logprob: Tensor, sample: TrainingSample, t: int) -> Tensor:
    assert sample.ref_logprobs is not None
    ratio, advantage = (logprob - sample.old_logprobs[t]).exp(), sample.advantages[t]
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.3) * advantage)
    if advantage < 0:
        loss = torch.minimum(loss, torch.tensor(-3.0 * advantage))
    distance = sample.ref_logprobs[t] - logprob
    return loss + 0.2 * (distance.exp() - 1 - distance)


@pytest.mark.parametrize(("way", "part"), [({"trainable": "top:1"}, ".layers.2."), ({"lora_rank": 2}, ".lora_")])
def test_nothing_else_is_trained(model_folder: Path, way: LocalOptions, part: str) -> None:
    made = policy(model_folder, **way)
    before = weights(made)
    for seed in range(2):
        made.forward_backward(random_samples(seed), LossSettings())
        made.optim_step()
    changed = {name for name, weight in weights(made).items() if not torch.equal(weight, before[name])}
    assert changed == {name for name in before if part in name}


def test_half_precision_learns(model_folder: Path) -> None:
    made = policy(model_folder, precision="bf16", learning_rate=1e-3)
    samples = random_samples(0)
    before = made.logprobs([x.token_ids for x in samples], masks=[x.loss_mask for x in samples])
    for _ in range(5):
        made.forward_backward(samples, LossSettings(clip_low=1.0, clip_high=1e3))
        made.optim_step()
    after = made.logprobs([x.token_ids for x in samples], masks=[x.loss_mask for x in samples])
    gain = sum(
        float(((b - a) * torch.tensor(x.advantages)).sum()) for a, b, x in zip(before, after, samples, strict=True)
    )
    assert made.model.dtype == torch.bfloat16
    assert gain > 1


def test_the_importance_correction_needs_and_uses_the_samplers_log_probabilities(model_folder: Path) -> None:
    samples = random_samples(5)
    made = policy(model_folder)
    with raises(InvalidInputError, 0, "sampler_logprobs"):
        made.forward_backward(samples, LossSettings(importance_cap=2.0))
    for each in samples:
        each.sampler_logprobs = [value - 0.1 for value in each.old_logprobs]
    metrics = made.forward_backward(samples, LossSettings(importance_cap=2.0))
    assert metrics["importance_ratio"] == pytest.approx(1.105, abs=1e-3)


def test_on_policy_what_the_sampler_rounds_differently_has_no_say(model_folder: Path) -> None:
    made = policy(model_folder)
    samples = random_samples(5)
    now = made.logprobs([x.token_ids for x in samples], temperature=[x.temperature for x in samples])
    metrics = made.forward_backward(samples, LossSettings(is_on_policy=True))
    gradient = gradients(made)
    assert metrics["ratio_max"] > 1.1  # it is measured all the same
    made.zero_grad()
    for each, logprobs in zip(samples, now, strict=True):
        each.old_logprobs = logprobs.tolist()
    made.forward_backward(samples, LossSettings())
    for name, wanted in gradients(made).items():
        torch.testing.assert_close(gradient[name], wanted, rtol=1e-3, atol=1e-5)


# -- updates -----------------------------------------------------------------------------------------


def test_samples_without_a_trained_token_change_nothing(model_folder: Path) -> None:
    made = policy(model_folder)
    before = weights(made)
    nothing = TrainingSample([1, 2], [True, False], [1.0, 1.0], [-1.0, -1.0])
    assert made.forward_backward([nothing], LossSettings()) == {}
    assert made.optim_step()["grad_norm"] == 0
    assert made.weights_version == made.num_updates == 0
    assert all(torch.equal(weight, before[name]) for name, weight in weights(made).items())


def test_numbers_that_are_none_are_refused_and_leave_no_gradient(model_folder: Path) -> None:
    made = policy(model_folder, packs=False, micro_batch_size=1)
    samples = random_samples(6)
    place = next(t for t in range(1, len(samples[4])) if samples[4].loss_mask[t])
    samples[4].advantages[place] = float("nan")  # type: ignore[index]
    with raises(InvalidInputError, f"advantages[{place}]", 4, "nan"):
        made.forward_backward(samples, LossSettings())
    assert not gradients(made)


def test_a_broken_gradient_leaves_weights_and_version(model_folder: Path) -> None:
    made = policy(model_folder)
    made.forward_backward(random_samples(0), LossSettings())
    next(iter(made.model.parameters())).grad[0, 0] = float("inf")
    before = weights(made)
    with raises(TrainingError, "inf"):
        made.optim_step()
    assert made.weights_version == 0
    assert all(torch.equal(weight, before[name]) for name, weight in weights(made).items())


@pytest.mark.parametrize("way", WAYS, ids=WAY_NAMES)
def test_the_reference_stays_as_the_policy_began(model_folder: Path, way: LocalOptions) -> None:
    made = policy(model_folder, keeps_reference=True, **way)
    sequences = [x.token_ids for x in random_samples(0)]
    start = made.logprobs(sequences)
    for _ in range(2):
        made.forward_backward(random_samples(0), LossSettings())
        made.optim_step()
    for before, now, reference in zip(
        start, made.logprobs(sequences), made.logprobs(sequences, reference=True), strict=True
    ):
        torch.testing.assert_close(reference, before)
        assert not torch.allclose(now, before, atol=1e-3)


def test_the_reference_of_an_adapter_is_that_adapter(model_folder: Path, tmp_path: Path) -> None:
    first = policy(model_folder, lora_rank=4)
    for _ in range(2):
        first.forward_backward(random_samples(0), LossSettings())
        first.optim_step()
    sequences = [x.token_ids for x in random_samples(1)]
    wanted = first.logprobs(sequences)
    made = policy(first.save_model(tmp_path / "adapter"))
    assert made.trainable.kind == "lora"
    made.forward_backward(random_samples(2), LossSettings())
    made.optim_step()
    for reference, before in zip(made.logprobs(sequences, reference=True), wanted, strict=True):
        torch.testing.assert_close(reference, before, rtol=1e-4, atol=1e-5)


# -- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"trainable": "top"}, ("trainable", "top")),
        ({"trainable": "top:0"}, ("trainable", "top:0")),
        ({"trainable": "top:9"}, (3,)),
        ({"trainable": "lora"}, ("lora_rank", 0)),
        ({"trainable": "all", "lora_rank": 4}, ("trainable", "all")),
        ({"lora_rank": -1}, ("lora_rank", -1)),
        ({"token_budget": 0}, ("token_budget", 0)),
        ({"micro_batch_size": -1}, ("micro_batch_size", -1)),
        ({"precision": "fp16"}, ("precision", "fp16")),
        ({"lr_scheduler": "linear"}, ("total_steps", None)),
    ],
)
def test_settings_that_cannot_work_are_refused(model_folder: Path, options: Any, named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        policy(model_folder, **options)


def test_questions_that_cannot_be_answered_are_refused(model_folder: Path) -> None:
    made = policy(model_folder)
    with raises(ConfigError, "keeps_reference"):
        made.logprobs([[1, 2]], reference=True)
    with raises(InvalidInputError, 384):
        made.logprobs([[1, 384]])
    with raises(InvalidInputError, "masks"):
        made.logprobs([[1, 2]], masks=[[True]])
    with raises(InvalidInputError, "temperature", 0):
        made.logprobs([[1, 2]], temperature=0.0)
    with raises(InvalidInputError, 2, 1):
        made.logprobs([[1, 2]], temperature=[1.0, 1.0])
