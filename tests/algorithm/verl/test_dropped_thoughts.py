"""Chat templates that drop earlier reasoning, as Qwen3's does: turns do not extend each other, and are trained apart.

A tiny model answers every question with a thought and then, by chance, with yes or no. Everything else is real: the
gateway, the engine, the agent, the trainer.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from sharpen import LLM, llm_rollout
from sharpen.llm import demo_model
from tests.algorithm.internals import check_template
from tests.llm.tiny_models import CHAT_TEMPLATE, tiny_tokenizer

from .scenes import ask, fit, small_grpo

DROPS_THOUGHTS = (
    "{% set last = namespace(user=-1) %}"
    "{% for message in messages %}{% if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' and loop.index0 < last.user and not keeps_thoughts %}"
    "{{ message.content.split('</think>')[-1] }}{% else %}{{ message.content }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is false %}{{ '<think></think>' }}{% endif %}{% endif %}"
)
PIECES = ["<think>", "hmm", "</think>", "yes", "no"]
QUESTIONS = ["Is it so?", "Really?", "And now?"]
GROUPS, MEMBERS, STEPS = 4, 8, 2


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=["tiny", pytest.param("SmolLM2", marks=pytest.mark.slow)])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param == "tiny":
        found: Any = tiny_tokenizer()
    else:
        with pytest.MonkeyPatch.context() as patch:
            cache = os.environ.get("SHARPEN_CACHE") or str(tmp_path_factory.mktemp("cache"))
            patch.setenv("SHARPEN_CACHE", cache)
            found = AutoTokenizer.from_pretrained(demo_model())
    found.add_tokens(PIECES)
    found.chat_template = DROPS_THOUGHTS
    return found


def write_model(folder: Path, tokenizer: Any) -> Path:
    """A model whose next token follows from the last one alone."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        embedded, head = model.model.embed_tokens.weight, model.lm_head.weight
        embedded.copy_(torch.nn.functional.normalize(torch.randn_like(embedded), dim=1))
        head.zero_()
        think, hmm, close, yes, no, end = map(tokenizer.convert_tokens_to_ids, [*PIECES, "<|im_end|>"])
        start = tokenizer("assistant\n", add_special_tokens=False)["input_ids"][-1]
        for last, following in [(start, think), (think, hmm), (hmm, close), (yes, end), (no, end)]:
            head[following] += 3 * embedded[last]
        head[yes] += 3 * embedded[close]
        head[no] += 3 * embedded[close]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@llm_rollout
async def three_questions(task: str, llm: LLM) -> float:
    """A reward of 1 if all answers are yes."""
    messages: list[dict[str, str]] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": f"{task}. {question}"})
        answer = (await ask(llm, messages, max_tokens=8))["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": answer})
    return sum(each["content"].endswith("yes") for each in messages) / len(QUESTIONS)


def steps_of(folder: Path) -> list[dict[str, Any]]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if "train/sequences" in row]


def of_template(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.getMessage().startswith("chat template")]


def test_turns_are_trained_apart_with_their_own_prompts_and_a_warning_says_so(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = write_model(tmp_path / "model", tokenizer)

    fit(small_grpo(model, steps=STEPS, learning_rate=1e-3), tmp_path / "run", three_questions)

    (warning,) = of_template(caplog)
    assert "<think>" in warning
    rows = steps_of(tmp_path / "run")
    assert len(rows) == STEPS
    for row in rows:
        assert row["train/turns_mean"] == len(QUESTIONS)
        trained = row["train/sequences"] / len(QUESTIONS)  # the rollouts of groups with a spread
        assert trained % MEMBERS == 0
        assert trained == GROUPS * MEMBERS * (1 - row["train/flat_groups"])
        # Four pieces and the end of the turn: each sampled token is trained once.
        assert row["train/trained_tokens"] == row["train/sequences"] * 5
        # The trainer finds the same probabilities as the sampler: every turn follows what was read before it.
        assert row["train/ratio"] == pytest.approx(1, abs=1e-3)


def test_a_template_that_keeps_thoughts_trains_a_conversation_as_one_sequence(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = write_model(tmp_path / "model", tokenizer)
    config = {"data.apply_chat_template_kwargs": {"keeps_thoughts": True}}

    fit(small_grpo(model, steps=1, learning_rate=1e-3, config=config), tmp_path / "run", three_questions)

    assert of_template(caplog) == []
    (row,) = steps_of(tmp_path / "run")
    assert row["train/sequences"] == GROUPS * MEMBERS * (1 - row["train/flat_groups"])
    assert row["train/trained_tokens"] == row["train/sequences"] * 5 * len(QUESTIONS)


def test_the_check_sees_dropped_thoughts_and_the_switches_of_the_template(tokenizer: Any) -> None:
    assert check_template(tokenizer).level == "warning"
    assert check_template(tokenizer, {"keeps_thoughts": True}).level == "passed"
    # The prompt of a first turn ends with an empty thought, which later turns do not show.
    assert check_template(tokenizer, {"enable_thinking": False}).level == "warning"
    plain = tiny_tokenizer()
    plain.chat_template = CHAT_TEMPLATE
    assert check_template(plain).level == "passed"
