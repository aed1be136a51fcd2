"""What a model answers to many prompts: which tokens, when it stops, and what it leaves behind."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sharpen.errors import ConfigError
from sharpen.llm import ModelError, RowError, generate_completions
from tests.errors import raises
from tests.llm.internals import GeneratedCompletion

from .scripted_models import scripted_model
from .tiny_models import tiny_tokenizer, write_tiny_model

PROMPTS = [
    "How many",
    "She sold 48 clips in April, and then",
    [{"role": "user", "content": "What is 12 + 30?"}],
    "a",
    "Step by step: the final answer is",
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many clips did Natalia sell?"}],
    "Natalia",
    "答案",
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM

    folder: Path = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", seed=1)
    return AutoModelForCausalLM.from_pretrained(folder).eval(), tiny_tokenizer()


def texts(completions: list[GeneratedCompletion]) -> list[str]:
    return [completion.text for completion in completions]


def test_completions_come_in_the_order_of_their_prompts() -> None:
    model, tokenizer = scripted_model({"a": "1", "b": "2", "c": "3"})
    prompts = ["a", "What is b", "c", "How many clips did Natalia sell? b", "xa", "q"]
    completions = generate_completions(model, tokenizer, prompts, max_new_tokens=8, batch_size=2)
    assert texts(completions) == ["1", "2", "3", "2", "1", ""]
    assert not any(completion.is_truncated for completion in completions)
    assert [len(completion.token_ids) for completion in completions] == [2, 2, 2, 2, 2, 1]


def test_no_prompts_give_no_completions(tiny: tuple[Any, Any]) -> None:
    assert generate_completions(*tiny, [], max_new_tokens=8) == []


def test_chat_messages_go_through_the_chat_template() -> None:
    model, tokenizer = scripted_model({"\n": "4", "4": "2"})
    asked = [{"role": "user", "content": "What is 6 * 7?"}]
    assert texts(generate_completions(model, tokenizer, [asked], max_new_tokens=8)) == ["42"]


def test_an_answer_that_was_begun_is_continued() -> None:
    model, tokenizer = scripted_model({"\n": "4", "=": "9"})
    begun = [{"role": "user", "content": "What is 3*3?"}, {"role": "assistant", "content": "3*3="}]
    assert texts(generate_completions(model, tokenizer, [begun], max_new_tokens=8)) == ["9"]


def test_settings_of_the_chat_template_reach_it() -> None:
    model, tokenizer = scripted_model({"\n": "4", "!": "9"})
    tokenizer.chat_template += "{% if is_loud %}!{% endif %}"
    asked = [{"role": "user", "content": "hello"}]
    plain = generate_completions(model, tokenizer, [asked], max_new_tokens=8)
    loud = generate_completions(model, tokenizer, [asked], max_new_tokens=8, chat_template_kwargs={"is_loud": True})
    assert texts(plain + loud) == ["4", "9"]


def test_greedy_completions_are_the_likeliest_tokens_one_by_one(tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    (completion,) = generate_completions(model, tokenizer, [PROMPTS[1]], max_new_tokens=12)
    ids = tokenizer(PROMPTS[1])["input_ids"]
    for token in completion.token_ids:
        with torch.no_grad():
            assert model(torch.tensor([ids])).logits[0, -1].argmax() == token
        ids.append(token)
    assert completion.is_truncated == (completion.token_ids[-1] != tokenizer.eos_token_id)


def test_greedy_completions_are_the_same_in_batches_of_any_size(tiny: tuple[Any, Any]) -> None:
    alone, some, together = (
        generate_completions(*tiny, PROMPTS, max_new_tokens=16, batch_size=batch_size) for batch_size in (1, 3, 8)
    )
    assert alone == some == together
    assert len(set(texts(alone))) > len(PROMPTS) // 2


def test_the_same_seed_draws_the_same_completions(tiny: tuple[Any, Any]) -> None:
    def drawn(seed: int | None) -> list[GeneratedCompletion]:
        return generate_completions(*tiny, PROMPTS, max_new_tokens=8, temperature=1.0, batch_size=3, seed=seed)

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert drawn(None) != drawn(None)


def test_tokens_are_drawn_as_often_as_the_temperature_says() -> None:
    model, tokenizer = scripted_model({})
    odds = {"1": 0.6, "2": 0.3, "3": 0.1}
    scale = math.sqrt(len(tokenizer))  # What the norm makes of the one that stands for a token.
    last = tokenizer("a")["input_ids"][0]
    with torch.no_grad():
        model.lm_head.weight[:, last] = -100 / scale
        for text, share in odds.items():
            model.lm_head.weight[tokenizer(text)["input_ids"][0], last] = math.log(share) / scale

    def shares(**sampling: float) -> list[float]:
        found = texts(
            generate_completions(model, tokenizer, ["a"] * 600, max_new_tokens=1, batch_size=600, seed=1, **sampling)
        )
        return [found.count(text) / len(found) for text in odds]

    assert shares(temperature=1.0) == pytest.approx([0.6, 0.3, 0.1], abs=0.06)
    flat = [math.sqrt(share) for share in odds.values()]
    assert shares(temperature=2.0) == pytest.approx([share / sum(flat) for share in flat], abs=0.06)
    assert shares(temperature=1.0, top_p=0.85) == pytest.approx([2 / 3, 1 / 3, 0], abs=0.06)
    assert shares(temperature=0.0) == [1, 0, 0]


def test_a_completion_ends_at_every_token_that_ends_one() -> None:
    model, tokenizer = scripted_model({"a": "1", "1": "2", "b": "3", "3": "4", "c": "5", "5": "6"})
    ids = {text: tokenizer(text)["input_ids"][0] for text in "24"}
    model.generation_config.eos_token_id = [ids["2"], tokenizer.eos_token_id]
    model.config.eos_token_id = ids["4"]
    completions = generate_completions(model, tokenizer, ["a", "b", "c"], max_new_tokens=8)
    assert texts(completions) == ["1", "3", "56"]
    assert [completion.token_ids[-1] for completion in completions] == [ids["2"], ids["4"], tokenizer.eos_token_id]


def test_what_runs_into_the_limit_is_truncated() -> None:
    model, tokenizer = scripted_model({"a": "1", "1": "1", "b": "2"})
    endless, short = generate_completions(model, tokenizer, ["a", "b"], max_new_tokens=5)
    assert (endless.text, endless.is_truncated) == ("11111", True)
    assert (short.text, short.is_truncated) == ("2", False)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_completion_ends_with_the_window_of_the_model_whatever_else_is_in_its_batch(batch_size: int) -> None:
    model, tokenizer = scripted_model({"a": "1", "1": "1"}, window=8)
    tokenizer.pad_token = tokenizer.eos_token  # What fills a row that has ended must not look like its end.
    long, short = generate_completions(model, tokenizer, ["zzzzza", "a"], max_new_tokens=100, batch_size=batch_size)
    assert (long.text, long.is_truncated) == ("11", True)
    assert (short.text, short.is_truncated) == ("1111111", True)


def test_settings_that_come_with_a_model_play_no_part_and_stay(tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    expected = generate_completions(model, tokenizer, PROMPTS, max_new_tokens=12)
    own = model.generation_config
    unlike: dict[str, Any] = {"do_sample": True, "temperature": 5.0, "top_k": 3, "repetition_penalty": 3.0}
    unlike |= {"suppress_tokens": expected[0].token_ids[:1], "max_length": 3, "num_beams": 2}
    before = {name: getattr(own, name) for name in unlike}
    try:
        own.update(**unlike)
        assert generate_completions(model, tokenizer, PROMPTS, max_new_tokens=12) == expected
        assert model.generation_config is own
        assert {name: getattr(own, name) for name in unlike} == unlike
    finally:
        own.update(**before)


def test_model_tokenizer_and_random_numbers_are_left_as_they_were(tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    model.train()
    model.model.layers[0].eval()  # A part that its owner keeps fixed.
    modes = [module.training for module in model.modules()]
    sides, state = (tokenizer.padding_side, tokenizer.truncation_side), torch.get_rng_state()
    try:
        for seed in (1, None):
            generate_completions(model, tokenizer, PROMPTS[:3], max_new_tokens=4, temperature=1.0, seed=seed)
        assert [module.training for module in model.modules()] == modes
    finally:
        model.eval()
    assert (tokenizer.padding_side, tokenizer.truncation_side) == sides
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_everything_is_restored_when_generation_fails(tiny: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny
    config, state = model.generation_config, torch.get_rng_state()

    def fails(*args: object, **kwargs: object) -> None:
        torch.rand(1)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "generate", fails)
    model.train()
    try:
        with raises(RuntimeError, "out of memory"):
            generate_completions(model, tokenizer, PROMPTS, max_new_tokens=4, temperature=1.0, seed=1)
        assert model.training
    finally:
        model.eval()
    assert model.generation_config is config
    assert torch.equal(torch.get_rng_state(), state)


def test_an_adapter_takes_part_and_its_settings_stay(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(write_tiny_model(tmp_path / "tiny", seed=1))
    tokenizer = tiny_tokenizer()
    expected = generate_completions(base, tokenizer, PROMPTS, max_new_tokens=8)
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    base.generation_config.repetition_penalty = 3.0
    adapted = generate_completions(model, tokenizer, PROMPTS, max_new_tokens=8)
    assert adapted != expected
    with model.disable_adapter():
        assert generate_completions(model, tokenizer, PROMPTS, max_new_tokens=8) == expected
    assert model.generation_config.repetition_penalty == base.generation_config.repetition_penalty == 3.0
    assert adapted == generate_completions(model.merge_and_unload(), tokenizer, PROMPTS, max_new_tokens=8)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_new_tokens": 0}, ("max_new_tokens", 0)),
        ({"max_new_tokens": 2.5}, ("max_new_tokens", 2.5)),
        ({"batch_size": 0}, ("batch_size", 0)),
        ({"batch_size": True}, ("batch_size", True)),
        ({"temperature": -0.1}, ("temperature", -0.1)),
        ({"temperature": math.nan}, ("temperature", "nan")),
        ({"temperature": "hot"}, ("temperature", "hot")),
        ({"temperature": 1.0, "top_p": 0}, ("top_p", 0)),
        ({"temperature": 1.0, "top_p": 1.5}, ("top_p", 1.5)),
        ({"top_p": 0.9}, (0,)),
        ({"seed": -1}, ("seed", -1)),
        ({"seed": 1.5}, ("seed", 1.5)),
    ],
)
def test_settings_that_cannot_work_are_refused(
    tiny: tuple[Any, Any], settings: dict[str, Any], named: tuple[object, ...]
) -> None:
    with raises(ConfigError, *named):
        generate_completions(*tiny, ["a"], **{"max_new_tokens": 4, **settings})


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ("", ()),
        ([], ()),
        (None, (None,)),
        (["hello"], (0, "hello")),
        ([{"role": "user"}], (0, "content")),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], ()),
        ("a" * 64, (64,)),
    ],
)
def test_a_prompt_that_cannot_be_used_is_named_by_its_row(prompt: Any, named: tuple[object, ...]) -> None:
    with raises(RowError, 1, *named):
        generate_completions(*scripted_model({}), ["a", prompt], max_new_tokens=4)


def test_a_tokenizer_without_a_chat_template_takes_texts_only() -> None:
    model, tokenizer = scripted_model({"a": "1"})
    tokenizer.chat_template = None
    with pytest.raises(ModelError):
        generate_completions(model, tokenizer, [[{"role": "user", "content": "a"}]], max_new_tokens=4)
    assert texts(generate_completions(model, tokenizer, ["a"], max_new_tokens=4)) == ["1"]
