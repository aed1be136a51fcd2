"""Loading models by name."""

import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from sharpen.errors import ConfigError, MissingExtraError
from sharpen.llm import ModelError, load_model
from tests.errors import raises
from tests.llm.internals import save_model

from ..tiny_models import write_tiny_model
from .conftest import logits, with_lora


@pytest.fixture
def copy(tiny_model: Path, tmp_path: Path) -> Path:
    """A model folder that a test may damage."""
    return shutil.copytree(tiny_model, tmp_path / "copy")


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


# -- whole models ------------------------------------------------------------------------------------


def test_a_folder_is_loaded_ready_to_run(tiny_model: Path) -> None:
    loaded = load_model(tiny_model)
    assert (loaded.device, loaded.precision, loaded.source.kind) == ("cpu", "fp32", "folder")
    assert not loaded.model.training
    assert all(each.requires_grad and each.dtype is torch.float32 for each in loaded.model.parameters())
    assert loaded.model.name_or_path == str(tiny_model)


def test_a_folder_that_looks_like_a_name_on_the_hub_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_model(tmp_path / "Qwen" / "Qwen3-0.6B")
    monkeypatch.chdir(tmp_path)
    loaded = load_model("Qwen/Qwen3-0.6B", allow_download=False)
    assert loaded.model.config.model_type == "qwen3"
    assert loaded.tokenizer.decode(loaded.tokenizer("答案 #### 42").input_ids) == "答案 #### 42"


def test_weights_have_the_type_of_the_precision_or_their_own(tiny_model: Path) -> None:
    loaded = load_model(tiny_model, precision="bf16")
    assert (loaded.precision, next(loaded.model.parameters()).dtype) == ("bf16", torch.bfloat16)
    loaded = load_model(tiny_model, precision="bf16", dtype="fp32")
    assert (loaded.precision, next(loaded.model.parameters()).dtype) == ("bf16", torch.float32)
    with raises(ConfigError, "dtype", "float32", "fp32", "bf16", "fp16"):
        load_model(tiny_model, dtype="float32")  # type: ignore[arg-type]


def test_stored_weights_keep_their_type(tiny_model: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny_model, dtype="bf16")
    save_model(loaded.model, loaded.tokenizer, tmp_path / "half")
    assert next(load_model(tmp_path / "half", dtype="stored").model.parameters()).dtype is torch.bfloat16
    assert next(load_model(tmp_path / "half").model.parameters()).dtype is torch.float32


def test_the_attention_can_be_chosen(tiny_model: Path) -> None:
    assert load_model(tiny_model, attn_implementation="eager").model.config._attn_implementation == "eager"
    with raises(ModelError, "nonsense"):
        load_model(tiny_model, attn_implementation="nonsense")


def test_what_a_device_cannot_do_is_refused_before_loading(tiny_model: Path) -> None:
    with raises(ConfigError, "fp16"):
        load_model(tiny_model, device="cpu", precision="fp16")


def test_padding_is_set_without_changing_what_the_model_has(copy: Path) -> None:
    assert load_model(copy).tokenizer.pad_token == "<|endoftext|>"
    edit(copy / "tokenizer_config.json", pad_token=None)
    edit(copy / "config.json", pad_token_id=None)
    edit(copy / "generation_config.json", pad_token_id=None)
    loaded = load_model(copy)
    assert loaded.tokenizer.pad_token == "<|endoftext|>"
    assert loaded.model.config.pad_token_id == loaded.model.generation_config.pad_token_id == 0


def test_the_end_of_text_pads_where_there_is_nothing_better(copy: Path) -> None:
    edit(copy / "tokenizer_config.json", pad_token=None, eos_token="<|endoftext|>")
    assert load_model(copy).tokenizer.pad_token == "<|endoftext|>"


def test_threads_load_models_without_harm_to_each_other(tiny_model: Path) -> None:
    expected = logits(load_model(tiny_model).model)
    with ThreadPoolExecutor(3) as pool:
        models = [each.model for each in pool.map(load_model, [tiny_model] * 6)]
    assert all(torch.equal(logits(model), expected) for model in models)
    assert all(model.lm_head.weight is model.model.embed_tokens.weight for model in models)


def test_no_telemetry_is_sent(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.delenv("HF_HUB_DISABLE_TELEMETRY", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    load_model(tiny_model)
    assert constants.HF_HUB_DISABLE_TELEMETRY
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"


# -- what is wrong with a model ----------------------------------------------------------------------


def test_a_model_that_was_never_downloaded_says_what_to_do() -> None:
    with raises(ModelError, "Qwen/Qwen3-0.6B-Nope", "allow_download"):
        load_model("Qwen/Qwen3-0.6B-Nope", allow_download=False)


def test_a_model_with_weights_missing_is_refused(copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with raises(ModelError, 1, "model.layers.1.self_attn.q_proj.weight"):
        load_model(copy)


def test_damaged_weights_are_an_error_that_names_the_model(copy: Path) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    with raises(ModelError, "copy"):
        load_model(copy)


@pytest.mark.parametrize("values", [{"model_type": "nonsense"}, {"hidden_size": 48}])
def test_a_config_that_does_not_fit_is_an_error_that_names_the_model(copy: Path, values: dict[str, object]) -> None:
    edit(copy / "config.json", **values)
    with raises(ModelError, "copy"):
        load_model(copy)


def test_code_of_a_model_does_not_run(copy: Path) -> None:
    edit(copy / "config.json", model_type="mine", auto_map={"AutoConfig": "mine.Config"})
    (copy / "mine.py").write_text("raise SystemExit('it ran')\n")
    with raises(ModelError, "trust_remote_code"):
        load_model(copy)


def test_a_model_without_a_tokenizer_is_refused(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ModelError):
        load_model(copy)


def test_the_tokenizer_of_another_model_is_refused(copy: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", vocab=390)
    shutil.copy(other / "tokenizer.json", copy)
    with raises(ModelError, 390, 384):
        load_model(copy)


def test_a_tokenizer_without_an_end_of_text_is_refused(copy: Path) -> None:
    edit(copy / "tokenizer_config.json", eos_token=None)
    with pytest.raises(ModelError):
        load_model(copy)


def test_a_missing_package_names_the_extra(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with raises(MissingExtraError, "sharpen[llm]"):
        load_model(tiny_model)


# -- adapters ----------------------------------------------------------------------------------------


def test_an_adapter_is_applied_to_its_base(tiny_model: Path, tiny_adapter: Path) -> None:
    expected = logits(with_lora(load_model(tiny_model).model))
    loaded = load_model(tiny_adapter)
    assert loaded.source.kind == "adapter"
    assert torch.equal(logits(loaded.model), expected)
    assert not torch.allclose(logits(load_model(tiny_model).model), expected)
    assert not any(each.requires_grad for each in loaded.model.parameters())


def test_exactly_the_weights_of_a_trainable_adapter_can_be_trained_in_float32(tiny_adapter: Path) -> None:
    model = load_model(tiny_adapter, precision="bf16", is_trainable=True).model
    trained = {name: each.dtype for name, each in model.named_parameters() if each.requires_grad}
    frozen = {name: each.dtype for name, each in model.named_parameters() if not each.requires_grad}
    assert len(trained) == 2 * 2 * 4  # Two matrices for each of four modules in two layers.
    assert all("lora_" in name for name in trained)
    assert not any("lora_" in name for name in frozen)
    assert set(trained.values()) == {torch.float32}
    assert set(frozen.values()) == {torch.bfloat16}


def test_a_merged_adapter_is_a_plain_model_that_can_be_trained_whole(tiny_adapter: Path) -> None:
    model = load_model(tiny_adapter, merge=True).model
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert not hasattr(model, "peft_config")
    assert all(each.requires_grad for each in model.parameters())
    torch.testing.assert_close(logits(model), logits(load_model(tiny_adapter).model), atol=1e-4, rtol=1e-4)


def test_an_adapter_that_moved_with_its_base_is_found(
    tiny_model: Path, tiny_adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_model, tmp_path / "base")
    adapter = shutil.copytree(tiny_adapter, tmp_path / "runs" / "adapter")
    edit(adapter / "adapter_config.json", base_model_name_or_path="../../base")
    loaded = load_model(adapter)
    assert loaded.source.base is not None
    assert loaded.source.base.path == tmp_path / "base"
    assert torch.equal(logits(loaded.model), logits(load_model(tiny_adapter).model))


def test_an_adapter_without_a_tokenizer_takes_that_of_its_base(tiny_adapter: Path, tmp_path: Path) -> None:
    adapter = shutil.copytree(tiny_adapter, tmp_path / "adapter")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (adapter / name).unlink()
    assert load_model(adapter).tokenizer.chat_template


def test_an_adapter_for_another_model_is_an_error_that_names_it(tiny_adapter: Path, tmp_path: Path) -> None:
    adapter = shutil.copytree(tiny_adapter, tmp_path / "adapter")
    other = write_tiny_model(tmp_path / "other", hidden=64)
    edit(adapter / "adapter_config.json", base_model_name_or_path=str(other))
    with raises(ModelError, "adapter"):
        load_model(adapter)


def test_an_adapter_with_weights_missing_is_refused(tiny_adapter: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    adapter = shutil.copytree(tiny_adapter, tmp_path / "adapter")
    weights = load_file(adapter / "adapter_model.safetensors")
    weights.popitem()
    save_file(weights, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError):
        load_model(adapter)
