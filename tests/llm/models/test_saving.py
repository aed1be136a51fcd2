"""Saving models: what is written, what stays, and what a failure leaves behind."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from sharpen.llm import LoadedModel, ModelError, load_model
from tests.errors import raises
from tests.llm.internals import check_save_folder, save_model

from .conftest import logits, with_lora

TOKENIZER = {"chat_template.jinja", "tokenizer.json", "tokenizer_config.json"}
WHOLE = {"config.json", "generation_config.json", "model.safetensors", *TOKENIZER}
ADAPTER = {"adapter_config.json", "adapter_model.safetensors", *TOKENIZER}


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def save(loaded: LoadedModel, path: Path) -> Path:
    return save_model(loaded.model, loaded.tokenizer, path, source=loaded.source)


def with_adapter(folder: Path, seed: int = 1) -> LoadedModel:
    loaded = load_model(folder)
    model = with_lora(loaded.model, seed)
    return LoadedModel(model, loaded.tokenizer, loaded.source, loaded.device, loaded.precision)


# -- whole models ------------------------------------------------------------------------------------


def test_a_saved_model_says_the_same_when_loaded_again(tiny_model: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny_model)
    with torch.no_grad():
        loaded.model.lm_head.weight.add_(0.01)
    folder = save(loaded, tmp_path / "new" / "model")
    assert names_in(folder) == WHOLE
    again = load_model(folder)
    assert torch.equal(logits(again.model), logits(loaded.model))
    assert again.tokenizer.chat_template == loaded.tokenizer.chat_template
    assert again.model.generation_config.eos_token_id == loaded.model.generation_config.eos_token_id


def test_a_model_is_saved_over_itself(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    loaded = load_model(folder)
    with torch.no_grad():
        loaded.model.model.norm.weight.add_(0.5)
    save(loaded, folder)
    assert torch.equal(logits(load_model(folder).model), logits(loaded.model))


def test_files_of_others_stay(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "output"
    (folder / "checkpoint-10").mkdir(parents=True)
    (folder / "checkpoint-10" / "state.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("{}\n")
    save(load_model(tiny_model), folder)
    assert names_in(folder) == WHOLE | {"checkpoint-10", "metrics.jsonl"}
    assert (folder / "checkpoint-10" / "state.json").read_text() == "{}"


# -- adapters ----------------------------------------------------------------------------------------


def test_a_saved_adapter_says_the_same_when_loaded_again(tiny_model: Path, tmp_path: Path) -> None:
    adapted = with_adapter(tiny_model)
    folder = save(adapted, tmp_path / "adapter")
    assert names_in(folder) == ADAPTER
    assert torch.equal(logits(load_model(folder).model), logits(adapted.model))


def test_an_adapter_names_its_base_by_an_absolute_path(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_model.parent)
    loaded = load_model("tiny")
    model = with_lora(loaded.model)
    model.peft_config["default"].base_model_name_or_path = "tiny"
    for folder, source in ((tmp_path / "known", loaded.source), (tmp_path / "unknown", None)):
        save_model(model, loaded.tokenizer, folder, source=source)
        config = json.loads((folder / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == str(tiny_model)
        assert config["target_modules"] == sorted(config["target_modules"])


def test_an_adapter_that_goes_on_keeps_its_base(tiny_adapter: Path, tiny_model: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny_adapter, is_trainable=True)
    with torch.no_grad():
        for each in loaded.model.parameters():
            if each.requires_grad:
                each.add_(0.01)
    folder = save(loaded, tmp_path / "further")
    again = load_model(folder)
    assert again.source.base is not None
    assert again.source.base.path == tiny_model
    assert torch.equal(logits(again.model), logits(loaded.model))
    assert not torch.equal(logits(again.model), logits(load_model(tiny_adapter).model))


def test_of_several_adapters_the_trained_one_is_saved(tiny_model: Path, tmp_path: Path) -> None:
    adapted = with_adapter(tiny_model)
    adapted.model.add_adapter("ref", adapted.model.peft_config["default"])
    folder = save(adapted, tmp_path / "adapter")
    assert names_in(folder) == ADAPTER
    assert torch.equal(logits(load_model(folder).model), logits(adapted.model))


def test_an_adapter_of_another_name_is_saved_in_the_same_form(tiny_model: Path, tmp_path: Path) -> None:
    adapted = with_adapter(tiny_model)
    adapted.model.add_adapter("mine", adapted.model.peft_config["default"])
    adapted.model.set_adapter("mine")
    adapted.model.delete_adapter("default")
    folder = save(adapted, tmp_path / "adapter")
    assert names_in(folder) == ADAPTER
    assert torch.equal(logits(load_model(folder).model), logits(adapted.model.eval()))


def test_an_adapter_of_a_model_that_is_only_in_memory_is_refused(tiny_adapter: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny_adapter, merge=True)
    with raises(ModelError, "merge_adapter"):
        save_model(with_lora(loaded.model), loaded.tokenizer, tmp_path / "adapter", source=loaded.source)
    assert not (tmp_path / "adapter").exists()


def test_an_adapter_never_takes_the_place_of_its_base(tiny_model: Path, tmp_path: Path) -> None:
    base = shutil.copytree(tiny_model, tmp_path / "base")
    adapted = with_adapter(base)
    with pytest.raises(ModelError):
        save(adapted, base)
    assert names_in(base) == WHOLE
    check_save_folder(base, source=adapted.source, is_adapter=False)
    check_save_folder(tmp_path / "other", source=adapted.source, is_adapter=True)


def test_a_folder_holds_one_kind_of_model(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "output"
    save(with_adapter(tiny_model), folder)
    save(load_model(tiny_model), folder)
    assert names_in(folder) == WHOLE
    save(with_adapter(tiny_model), folder)
    assert names_in(folder) == ADAPTER


# -- failures ----------------------------------------------------------------------------------------


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """No file can grow beyond this, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size_bytes", [200, 20_000])
def test_a_full_disk_leaves_nothing_behind(tiny_model: Path, tmp_path: Path, size_bytes: int) -> None:
    loaded = load_model(tiny_model)
    with largest_file(size_bytes), raises(ModelError, "output"):
        save(loaded, tmp_path / "output")
    assert not (tmp_path / "output").exists()


def test_a_full_disk_leaves_the_model_that_was_there(tiny_model: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny_model)
    folder = save(loaded, tmp_path / "output")
    before = logits(loaded.model)
    with torch.no_grad():
        loaded.model.model.norm.weight.add_(0.5)
    with largest_file(20_000), pytest.raises(ModelError):
        save(loaded, folder)
    assert names_in(folder) == WHOLE
    assert torch.equal(logits(load_model(folder).model), before)


def test_a_file_in_the_way_is_named(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(ModelError):
        save(load_model(tiny_model), tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_what_a_killed_process_left_is_removed(tiny_model: Path, tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    leftover = tmp_path / "output" / f".model.{dead.pid}-0.tmpdir"
    alive = tmp_path / "output" / f".model.{os.getpid()}-999.tmpdir"
    for folder in (leftover, alive):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
    save(load_model(tiny_model), tmp_path / "output")
    assert names_in(tmp_path / "output") == WHOLE | {alive.name}
