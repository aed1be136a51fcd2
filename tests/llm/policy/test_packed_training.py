"""From turns to a gradient: how sequences are packed and split changes nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding, scaled_dot_product_attention

from sharpen.llm.policy.advantages import on_tokens, turn_advantages
from sharpen.llm.policy.aggregation import Aggregation, Totals, aggregate
from sharpen.llm.policy.losses import entropy_from_logits, kl_loss, policy_loss
from sharpen.llm.policy.packing import PackedRow, micro_batches, packed_row, padded, unpack
from sharpen.llm.policy.samples import Sample, Turn, merge_turns

VOCABULARY = 11


class OneLayer(torch.nn.Module):
    """A language model of one attention layer, with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        shapes = {"tokens": (VOCABULARY, 8), "places": (32, 8), "qkv": (8, 24), "head": (8, VOCABULARY)}
        for name, shape in shapes.items():
            weights = torch.randn(*shape, generator=random, dtype=torch.float64)
            self.register_parameter(name, torch.nn.Parameter(weights))

    def forward(self, row: PackedRow) -> Tensor:
        hidden = embedding(row.input_ids_T, self.tokens) + embedding(row.position_ids_T, self.places)
        q, k, v = (hidden @ self.qkv).chunk(3, dim=-1)
        mixed = scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], row.attention_mask())
        return (hidden + mixed[0, 0]) @ self.head


def rollouts() -> list[list[Sample]]:
    """Two groups of two. Of the third rollout the second turn does not extend the first."""
    turns = [
        [Turn([1, 2], [3, 4], [-1.0, -2.0], 0.5), Turn([1, 2, 3, 4, 5], [6], [-1.5], 1.0)],
        [Turn([1, 2], [7], [-2.5], 0.0), Turn([1, 2, 7, 8, 8], [9, 10, 1], [-1.0, -3.0, -2.0], 0.0)],
        [Turn([3], [4, 5], [-1.0, -1.0], 1.0), Turn([3, 5, 5], [2], [-2.0], None)],
        [Turn([3], [4, 6], [-1.0, -2.0], 0.0)],
    ]
    return [merge_turns(each, rollout_id=str(n), group=str(n // 2)) for n, each in enumerate(turns)]


def turn_credit(of_rollouts: list[list[Sample]]) -> list[list[float]]:
    """The advantage of every token of every sample."""
    first_turn, rewards, owner = [0], {}, []
    for n, samples in enumerate(of_rollouts):
        for sample in samples:
            for turn, reward in zip(sample.turns, sample.turn_rewards, strict=True):
                rewards[first_turn[-1] + turn] = reward or 0.0
        owner += [n] * samples[0].num_turns
        first_turn.append(first_turn[-1] + samples[0].num_turns)
    group = [int(samples[0].group) for samples in of_rollouts]
    rewards_K = torch.tensor([rewards[k] for k in range(first_turn[-1])], dtype=torch.float64)
    advantages_K = turn_advantages(rewards_K, torch.tensor(owner), torch.tensor(group)).advantages
    index_BT = padded(
        [
            [first_turn[n] + turn if turn >= 0 else -1 for turn in sample.turn_of_token]
            for n, samples in enumerate(of_rollouts)
            for sample in samples
        ],
        fill=-1,
    )
    lengths = [len(sample) for samples in of_rollouts for sample in samples]
    advantages_BT = on_tokens(advantages_K, index_BT)
    return [advantages_BT[b, :length].tolist() for b, length in enumerate(lengths)]


def forward_backward(
    logits_of: Any,
    samples: list[Sample],
    advantages: list[list[float]],
    parts: list[list[int]],
    aggregation: Aggregation,
    dtype: torch.dtype,
) -> float:
    """The loss of one mini-batch in micro-batches, as a trainer computes it. Leaves the gradient in the weights."""
    totals = Totals(
        tokens=sum(each.num_trained for each in samples),
        sequences=sum(each.num_trained > 0 for each in samples),
        width=16,
    )
    total = 0.0
    for part in parts:
        row = packed_row([samples[b].token_ids for b in part])
        logits_TV = logits_of(row)
        next_T = logits_TV[:-1].log_softmax(-1).gather(1, row.input_ids_T[1:, None])[:, 0]
        # The first token has no log-probability, and is never trained.
        logprobs = unpack(torch.nn.functional.pad(next_T, (1, 0)), row)
        entropy = unpack(torch.nn.functional.pad(entropy_from_logits(logits_TV[:-1], chunk_size=4), (1, 0)), row)
        mask = padded([samples[b].loss_mask for b in part], dtype=torch.bool)
        old = padded([samples[b].logprobs for b in part], dtype=dtype)
        credit = padded([advantages[b] for b in part], dtype=dtype)
        policy, _ = policy_loss(
            logprobs, old, credit, mask, clip_low=0.2, clip_high=0.3, aggregation=aggregation, totals=totals
        )
        kl, _ = kl_loss(logprobs, old, mask, aggregation=aggregation, totals=totals)
        spread = aggregate(entropy, mask, aggregation=aggregation, totals=totals)
        loss = policy + 0.1 * kl - 0.01 * spread
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total


def run(
    model: torch.nn.Module, logits_of: Any, aggregation: Aggregation, parts: str
) -> tuple[float, dict[str, Tensor]]:
    of_rollouts = rollouts()
    samples = [sample for each in of_rollouts for sample in each]
    lengths = [len(each) for each in samples]
    micro = {
        "alone": micro_batches(lengths, size=1),
        "by budget": micro_batches(lengths, token_budget=9),
        "together": micro_batches(lengths, size=100),
    }[parts]
    model.zero_grad(set_to_none=True)
    dtype = next(model.parameters()).dtype
    loss = forward_backward(logits_of, samples, turn_credit(of_rollouts), micro, aggregation, dtype)
    return loss, {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("parts", ["by budget", "together"])
def test_packed_and_unpacked_losses_and_gradients_are_the_same(aggregation: Aggregation, parts: str) -> None:
    model = OneLayer()

    wanted_loss, wanted = run(model, model, aggregation, "alone")
    found_loss, found = run(model, model, aggregation, parts)

    assert len(wanted) == 4
    assert wanted_loss != 0
    assert found_loss == pytest.approx(wanted_loss)
    torch.testing.assert_close(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_a_model_of_transformers_takes_the_packed_row_and_its_mask(architecture: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from ..tiny_models import write_tiny_model

    folder = write_tiny_model(tmp_path / "model", architecture=architecture)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").double()

    def packed(row: PackedRow) -> Tensor:
        mask = row.attention_mask()
        found: Tensor = model(row.input_ids_T[None], position_ids=row.position_ids_T[None], attention_mask=mask).logits
        return found[0]

    wanted_loss, wanted = run(model, lambda row: model(row.input_ids_T[None]).logits[0], "token-mean", "alone")
    found_loss, found = run(model, packed, "token-mean", "together")

    assert found_loss == pytest.approx(wanted_loss)
    torch.testing.assert_close(found, wanted)
