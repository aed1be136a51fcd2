"""Language models small enough for a test: random weights, a real tokenizer, a real chat template."""

import functools
from pathlib import Path
from typing import Any, Literal

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SENTENCES = [
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.",
    "How many clips did Natalia sell altogether in April and May?",
    "She sold 48 / 2 = 24 clips in May, so 48 + 24 = 72 clips altogether.\n#### 72",
    "What is 12 + 30? Step by step: the final answer is 42. Final Answer: 42",
    "You are a helpful assistant that solves the problem and states the answer.",
]
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write_tiny_model(
    folder: Path,
    *,
    architecture: Literal["qwen3", "llama"] = "qwen3",
    seed: int = 0,
    hidden: int = 32,
    layers: int = 2,
    vocab: int = 384,
    window: int = 1024,
) -> Path:
    """Write a model folder. The weights are float32 and follow from the seed; the global generator stays as it was."""
    import torch

    tokenizer = tiny_tokenizer(vocab)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _model(architecture, len(tokenizer), hidden, layers, window)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_tokenizer(vocab: int = 384) -> Any:
    """A byte-level tokenizer with a chat template: any text survives it."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_trained_tokenizer(vocab), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@functools.cache
def _trained_tokenizer(vocab: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def _model(architecture: str, vocab: int, hidden: int, layers: int, window: int) -> Any:
    import transformers

    kind = {"qwen3": "Qwen3", "llama": "Llama"}[architecture]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=window,
        tie_word_embeddings=True,
        initializer_range=0.1,  # With the usual 0.02 so narrow a model gives nearly even odds whatever it is told.
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config)
