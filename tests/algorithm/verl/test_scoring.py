"""Rewards from a reward model."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from sharpen.llm import ModelError, RewardError
from sharpen.types import Span
from tests.algorithm.internals import Conversation, RewardModel, collect, conversation_of
from tests.errors import raises

from ...llm.tiny_models import tiny_tokenizer, write_tiny_model
from .made_rollouts import call, collected, failed

torch.set_num_threads(1)


def write_reward_model(folder: Path, *, labels: int = 1, padding: int | None = 0) -> Path:
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    tokenizer = tiny_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        num_labels=labels,
        pad_token_id=padding,
        initializer_range=0.5,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForSequenceClassification(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reward_model(tmp_path_factory.mktemp("reward"))


def said(*texts: str) -> Conversation:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)], "tools": None}


def by_hand(folder: Path, conversation: Conversation) -> float:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    text = tokenizer.apply_chat_template(conversation["messages"], tokenize=False)
    with torch.no_grad():
        return float(model(**tokenizer(text, return_tensors="pt")).logits)


LONG = said("How many clips?", "72 clips altogether", "And in May?", "24")
SHORT = said("How many clips?", "72")
OTHER = said("How many clips?", "I do not know")


# -- scores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", [0, None])
def test_conversations_scored_together_have_the_scores_that_each_has_alone(tmp_path: Path, padding: int | None) -> None:
    place = write_reward_model(tmp_path / "model", padding=padding)

    scores = RewardModel(place, device="cpu").scores([LONG, SHORT, OTHER])

    assert scores == pytest.approx([by_hand(place, each) for each in (LONG, SHORT, OTHER)], rel=1e-4, abs=1e-5)
    assert len(set(scores)) == 3


def test_the_bound_of_a_batch_does_not_change_a_score(folder: Path) -> None:
    conversations = [LONG, SHORT, OTHER, SHORT]

    apart = RewardModel(folder, device="cpu", max_batch_tokens=1).scores(conversations)

    assert apart == pytest.approx(RewardModel(folder, device="cpu").scores(conversations), rel=1e-4, abs=1e-5)


def test_a_conversation_longer_than_the_model_reads_is_scored_by_its_end(folder: Path) -> None:
    end = ["step " * 30, "yes " * 30]

    scores = RewardModel(folder, device="cpu").scores([said("one", "two", *end), said("three", "four", *end)])

    assert scores[0] == pytest.approx(scores[1], rel=1e-4)


def test_nothing_to_score_is_no_error(folder: Path) -> None:
    assert RewardModel(folder, device="cpu").scores([]) == []


def test_only_rollouts_that_ended_well_without_a_reward_are_rated(folder: Path) -> None:
    rollouts = [
        collected("a-0", None, call([1], [2])),
        collected("a-1", 0.5, call([1], [2])),
        collect(failed("a-2"), [], max_prompt_length=9, max_response_length=9),
        collect(failed("a-3", as_what="unresponsive"), [], max_prompt_length=9, max_response_length=9),
        collected("a-4", None, call([1], [2])),
    ]
    conversations: dict[str, Conversation | None] = {f"a-{i}": SHORT for i in range(4)} | {"a-4": None}

    rated = RewardModel(folder, device="cpu").rate(rollouts, conversations)

    assert rated[0].reward == pytest.approx(by_hand(folder, SHORT), rel=1e-4)
    assert [each.reward for each in rated[1:]] == [0.5, 0.0, None, None]


def test_the_conversation_of_a_rollout_is_that_of_its_last_call() -> None:
    def span(number: int, question: str, answer: str) -> Span:
        told = {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": question}]}]),
            "gen_ai.output.messages": json.dumps(
                [{"role": "assistant", "parts": [{"type": "text", "content": answer}]}]
            ),
        }
        return Span.from_attributes(attributes=told, sequence_id=number, start_time=number, end_time=number + 0.5)

    found = conversation_of([span(1, "first", "one"), span(2, "second", "two")])

    assert found is not None
    assert [message["content"] for message in found["messages"]] == ["second", "two"]
    assert conversation_of([]) is None


# -- bad models --------------------------------------------------------------------------------------


def test_a_language_model_is_no_reward_model(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)

    with raises(ModelError, 1, "score.weight"):
        RewardModel(tmp_path, device="cpu")


def test_a_model_of_several_labels_is_no_reward_model(tmp_path: Path) -> None:
    with raises(ModelError, 3):
        RewardModel(write_reward_model(tmp_path, labels=3), device="cpu")


def test_a_model_without_a_chat_template_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "chat_template.jinja").unlink()

    with pytest.raises(ModelError):
        RewardModel(copy, device="cpu")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        RewardModel(tmp_path, device="cpu")


def test_a_conversation_that_the_template_cannot_write_is_named(folder: Path) -> None:
    broken: Conversation = {"messages": [{"role": "assistant"}], "tools": None}

    with raises(RewardError, 1):
        RewardModel(folder, device="cpu").scores([SHORT, broken])
