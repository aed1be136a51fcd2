"""GGUF files as models: converted once, loaded, adapted, saved."""

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from sharpen.llm import ModelError, load_model
from tests.errors import raises
from tests.llm.internals import cache_folder, converted, save_model

from ..tiny_models import write_tiny_model
from .conftest import logits, with_lora
from .tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_tiny_model(tmp_path_factory.mktemp("llama") / "tiny-llama", architecture="llama")


@pytest.fixture(scope="module")
def tiny_gguf(tiny_llama: Path) -> Path:
    loaded = load_model(tiny_llama)
    return write_tiny_gguf(tiny_llama.parent / "tiny.gguf", loaded.model, loaded.tokenizer)


@pytest.fixture
def shared_cache(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that keeps the conversion from test to test."""
    monkeypatch.setenv("SHARPEN_CACHE", str(tiny_gguf.parent / "cache"))
    return tiny_gguf.parent / "cache"


def test_a_gguf_file_is_the_model_that_it_was_made_of(tiny_gguf: Path, tiny_llama: Path, shared_cache: Path) -> None:
    original, loaded = load_model(tiny_llama), load_model(tiny_gguf)
    assert loaded.source.kind == "gguf"
    torch.testing.assert_close(logits(loaded.model), logits(original.model))
    assert all(each.dtype is torch.float32 and each.requires_grad for each in loaded.model.parameters())
    text = "Natalia sold 48 clips. 答案是 #### 72"
    assert loaded.tokenizer.decode(loaded.tokenizer(text).input_ids) == text
    assert loaded.tokenizer.chat_template == original.tokenizer.chat_template
    assert loaded.tokenizer.eos_token == "<|im_end|>"
    assert loaded.model.generation_config.eos_token_id == loaded.tokenizer.eos_token_id
    assert loaded.tokenizer.model_max_length == 1024
    assert Path(loaded.model.name_or_path).parent == shared_cache / "models"


@pytest.mark.usefixtures("shared_cache")
def test_numbers_are_split_as_the_file_says(tiny_gguf: Path) -> None:
    parts = load_model(tiny_gguf).tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("sold  48")
    assert [part for part, _ in parts] == ["sold", "ĠĠ", "4", "8"]


def test_a_file_is_converted_once_a_content(tiny_gguf: Path, tmp_path: Path, private_cache: Path) -> None:
    first = converted(tiny_gguf)
    written = (first / "model.safetensors").stat().st_mtime_ns
    moved = shutil.copy(tiny_gguf, tmp_path / "tiny.gguf")
    assert converted(moved) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in (private_cache / "models").iterdir()] == [first.name]
    data = bytearray(moved.read_bytes())
    data[-1] ^= 1
    moved.write_bytes(data)
    os.utime(moved, ns=(1, 1))
    assert converted(moved) != first


def test_two_threads_at_once_give_one_whole_model(tiny_gguf: Path, private_cache: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(converted(tiny_gguf))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert [path.name for path in (private_cache / "models").iterdir()] == [found[0].name]
    assert load_model(found[0]).source.kind == "folder"


@pytest.mark.slow
def test_two_processes_at_once_give_one_whole_model(tiny_gguf: Path, private_cache: Path) -> None:
    program = "from sharpen.llm.models.gguf import *; print(converted(Path(" + repr(str(tiny_gguf)) + ")))"
    children = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = {child.communicate()[0].splitlines()[-1] for child in children}
    assert [child.returncode for child in children] == [0, 0]
    assert found == {str(path) for path in (private_cache / "models").iterdir()}
    assert len(found) == 1
    assert load_model(found.pop()).source.kind == "folder"


@pytest.mark.usefixtures("shared_cache")
def test_an_adapter_of_a_gguf_file_finds_its_base_again(tiny_gguf: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny_gguf)
    model = with_lora(loaded.model)
    folder = save_model(model, loaded.tokenizer, tmp_path / "adapter", source=loaded.source)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(converted(tiny_gguf))
    assert torch.equal(logits(load_model(folder).model), logits(model))
    config["base_model_name_or_path"] = str(tiny_gguf)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    again = load_model(folder)
    assert again.source.base is not None
    assert again.source.base.kind == "gguf"
    assert torch.equal(logits(again.model), logits(model))


@pytest.mark.usefixtures("shared_cache")
def test_a_model_from_a_gguf_file_is_saved_whole(tiny_gguf: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny_gguf)
    folder = save_model(loaded.model, loaded.tokenizer, tmp_path / "model", source=loaded.source)
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert torch.equal(logits(load_model(folder).model), logits(loaded.model))


def test_an_unknown_way_to_split_text_is_a_warning(
    tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_model(tiny_llama)
    path = write_tiny_gguf(tmp_path / "odd.gguf", loaded.model, loaded.tokenizer, way_to_split="novel")
    with caplog.at_level(logging.WARNING, logger="sharpen"):
        converted(path)
    assert "(novel)" in caplog.text


@pytest.mark.parametrize("size_bytes", [0, 3, 500, 20_000])
def test_a_damaged_file_is_named_and_leaves_nothing_behind(
    tiny_gguf: Path, tmp_path: Path, private_cache: Path, size_bytes: int
) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(tiny_gguf.read_bytes()[:size_bytes])
    with raises(ModelError, "damaged.gguf"):
        load_model(path)
    assert list((private_cache / "models").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SHARPEN_CACHE", str(tmp_path / "file"))
    with raises(ModelError, "tiny.gguf"):
        load_model(tiny_gguf)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == Path(os.environ["SHARPEN_CACHE"])
    monkeypatch.delenv("SHARPEN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sharpen"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "sharpen"
