"""The forward pass for training: the model's own numbers and gradients, shared, packed, split or computed again."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sharpen.llm import load_model
from tests.llm.internals import (
    AnyBody,
    Body,
    ModelBody,
    TokenBatch,
    body_of,
    places_of,
    policy_fast_forward as body_module,
    token_batch,
)

from ..engine.tiny import build
from .scenes import random_samples


def batch(*, shares: bool = True) -> TokenBatch:
    samples = [each for each in random_samples(0) if each.num_trained]
    places = [places_of(each.loss_mask) for each in samples]
    return token_batch([x.token_ids for x in samples], places, [x.temperature for x in samples], shares=shares)


def gradients(model: Any, body: AnyBody, given: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    logprobs, entropy = body.logprobs(given, entropy_gradient=True)
    pull = torch.linspace(-1, 1, len(logprobs))
    ((logprobs + 0.3 * entropy) * pull).sum().backward()
    return logprobs.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same(one: tuple[Tensor, dict[str, Tensor]], other: tuple[Tensor, dict[str, Tensor]]) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=1e-4, atol=1e-5)
    assert one[1].keys() == other[1].keys()
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("family", ["model_folder", "llama_folder"])
def test_numbers_and_gradients_are_the_models_own(family: str, request: pytest.FixtureRequest) -> None:
    model = load_model(request.getfixturevalue(family), device="cpu").model
    wanted = gradients(model, ModelBody(model), batch())
    assert isinstance(body_of(model), Body)
    assert_same(gradients(model, Body(model), batch()), wanted)
    assert_same(gradients(model, Body(model), batch(shares=False)), wanted)


@pytest.mark.parametrize(
    ("family", "options"),
    [("Qwen2", {}), ("Mistral", {"sliding_window": None}), ("Llama", {"attention_bias": True, "mlp_bias": True})],
)
def test_every_family_has_our_own_pass(family: str, options: dict[str, Any]) -> None:
    model = build(family, vocab=384, **options)
    assert isinstance(body_of(model), Body)
    assert_same(gradients(model, Body(model), batch()), gradients(model, ModelBody(model), batch()))


def test_layers_computed_again_give_the_same_gradient(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(model_folder, device="cpu").model
    wanted = gradients(model, Body(model, checkpoints=False), batch())
    computed = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal computed
        computed += 1
        return torch.utils.checkpoint.checkpoint(*arguments, **options)

    monkeypatch.setattr(body_module, "activation_room_bytes", lambda device: 0)
    monkeypatch.setattr(body_module, "checkpoint", counted)
    assert_same(gradients(model, Body(model), batch()), wanted)
    assert computed == 3


def test_only_trained_layers_keep_what_a_gradient_needs(model_folder: Path) -> None:
    model = load_model(model_folder, device="cpu").model
    whole = gradients(model, Body(model), batch())[1]
    model.requires_grad_(False)
    model.model.layers[2].requires_grad_(True)
    part = gradients(model, Body(model), batch())[1]
    assert part
    assert set(part) == {name for name in whole if ".layers.2." in name}
    for name, gradient in part.items():
        torch.testing.assert_close(gradient, whole[name], rtol=1e-3, atol=2e-4)
    seen = []
    model.model.layers[1].mlp.down_proj.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    Body(model).logprobs(batch())
    assert seen == [False]


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_an_adapter_on_the_output_layer_counts(llama_folder: Path) -> None:
    import peft

    model = load_model(llama_folder, device="cpu").model
    config = peft.LoraConfig(r=2, target_modules=["lm_head", "q_proj"], init_lora_weights=False, lora_dropout=0.3)
    adapted = peft.get_peft_model(model, config).eval()
    assert_same(
        gradients(adapted, Body(adapted), batch()), gradients(adapted, ModelBody(adapted.get_base_model()), batch())
    )


def test_a_model_of_another_family_is_run_by_its_own_code() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=384, n_embd=16, n_layer=1, n_head=2, n_positions=64, resid_pdrop=0, embd_pdrop=0)
    model = GPT2LMHeadModel(config).eval()
    body = body_of(model)
    assert not body.shares_prefixes
    logprobs, entropy = body.logprobs(batch())
    assert not entropy.requires_grad
    wanted = []
    for ids, places in zip(batch().inputs, batch().places, strict=True):
        wanted.append(model(torch.tensor([ids])).logits[0][places - 1])
    rows = (torch.cat(wanted) / batch().temperature_N[:, None]).log_softmax(-1)
    torch.testing.assert_close(logprobs, rows.gather(1, batch().targets_N[:, None])[:, 0], rtol=1e-4, atol=1e-5)


def test_a_forward_pass_that_differs_is_not_used(model_folder: Path) -> None:
    model = copy.deepcopy(load_model(model_folder, device="cpu").model)
    model.model.layers[0].mlp.register_forward_hook(lambda module, given, out: out * 1.5)
    assert isinstance(body_of(model), ModelBody)


def test_one_token_before_the_asked_one_is_enough(model_folder: Path) -> None:
    model = load_model(model_folder, device="cpu").model
    given = token_batch([[5, 9]], [np.array([1])], [1.0])
    assert given.inputs == [[5]]
    torch.testing.assert_close(Body(model).logprobs(given)[0], ModelBody(model).logprobs(given)[0])
