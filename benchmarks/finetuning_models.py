"""Models of random weights, for machines to which no real ones can be carried; and rows to train on.

    python benchmarks/finetuning_models.py 135M FOLDER

Speed and memory do not depend on what the weights are. A word of the rows is one token of these models' tokenizer.
"""

import random
import sys
from pathlib import Path
from typing import Any

# layers, width, width of the feed-forward part, heads, heads of keys and values, tokens
SHAPES = {
    "tiny": (2, 64, 128, 4, 2, 1024),
    "135M": (30, 576, 1536, 9, 3, 49152),  # SmolLM2-135M
    "1.07B": (16, 2048, 8192, 32, 8, 49152),  # Llama-3.2-1B with a smaller vocabulary
}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|> ' + message['role'] + ' ' + message['content'] + ' <|im_end|> ' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|> assistant ' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unknown|>"]
ROLES = ["system", "user", "assistant"]
WORDS = [
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "red", "green", "blue", "black",
    "white", "day", "night", "water", "fire", "earth", "house", "door", "window", "street", "city", "road", "train",
    "ship", "bird", "fish", "horse", "dog", "cat", "tree", "leaf", "stone", "river", "hill", "field", "sun", "moon",
    "star", "wind", "rain", "snow", "bread", "milk", "salt",
]  # fmt: skip

Row = dict[str, Any]


def rows(count: int, *, prompt_words: int, completion_words: int, seed: int = 0) -> list[Row]:
    """Conversations of random words; rewards find nothing in them but the completion."""
    source = random.Random(seed)

    def message(role: str, words: int) -> list[dict[str, str]]:
        return [{"role": role, "content": " ".join(source.choices(WORDS, k=words))}]

    return [
        {"prompt": message("user", prompt_words)}
        | ({"completion": message("assistant", completion_words)} if completion_words else {})
        for _ in range(count)
    ]


def tokenizer(size: int) -> Any:
    """Words of the rows and of nobody, until there are `size` of them."""
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    known = [*SPECIAL, *ROLES, *WORDS]
    names = [*known, *(f"word{number}" for number in range(len(known), size))]
    words = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<|unknown|>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.Fuse()
    words.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    make: Any = transformers.PreTrainedTokenizerFast
    made = make(tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = CHAT_TEMPLATE
    return made


def write_model(shape: str, folder: Path, *, device: str = "cpu", dtype: str = "float32") -> Path:
    """Write a model folder of this shape."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    make: Any = LlamaForCausalLM

    layers, width, inner, heads, key_value_heads, vocabulary = SHAPES[shape]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        dtype=dtype,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = make(config).to(getattr(torch, dtype))
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 2, 0
    model.save_pretrained(folder)
    tokenizer(vocabulary).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    write_model(sys.argv[1], Path(sys.argv[2]))
