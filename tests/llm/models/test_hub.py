"""Models of the hub, from its cache folder: nothing is downloaded here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from sharpen.llm import ModelError, load_model
from tests.errors import raises
from tests.llm.internals import hub_folder, save_model

from ..hub_stub import running_hub
from .conftest import logits, with_lora


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a hub that does not answer."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def keep(cache: Path, name: str, folder: Path) -> Path:
    """Put a model into the cache, as a download does."""
    place = cache / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("a" * 40)
    return shutil.copytree(folder, place / "snapshots" / ("a" * 40))


@pytest.mark.parametrize("allow_download", [False, True])
def test_a_model_that_was_downloaded_needs_no_connection(
    hub_cache: Path, tiny_model: Path, allow_download: bool
) -> None:
    snapshot = keep(hub_cache, "org/tiny", tiny_model)
    assert hub_folder("org/tiny", allow_download=allow_download) == snapshot
    loaded = load_model("org/tiny", allow_download=allow_download)
    assert (loaded.source.kind, loaded.source.path) == ("hub", None)
    assert torch.equal(logits(loaded.model), logits(load_model(tiny_model).model))


def test_an_adapter_keeps_the_name_of_its_base_on_the_hub(hub_cache: Path, tiny_model: Path, tmp_path: Path) -> None:
    keep(hub_cache, "org/tiny", tiny_model)
    loaded = load_model("org/tiny", allow_download=False)
    model = with_lora(loaded.model)
    folder = save_model(model, loaded.tokenizer, tmp_path / "adapter", source=loaded.source)
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "org/tiny"
    assert torch.equal(logits(load_model(folder, allow_download=False).model), logits(model))


def test_an_adapter_on_the_hub_is_applied_to_its_base(hub_cache: Path, tiny_adapter: Path) -> None:
    keep(hub_cache, "org/adapter", tiny_adapter)
    loaded = load_model("org/adapter", allow_download=False, is_trainable=True)
    assert (loaded.source.name, loaded.source.kind) == ("org/adapter", "adapter")
    assert torch.equal(logits(loaded.model), logits(load_model(tiny_adapter).model))


def test_a_hub_that_does_not_answer_is_said_in_words() -> None:
    with raises(ModelError, "org/tiny"):
        load_model("org/tiny")
    with raises(ModelError, "org/tiny", "allow_download"):
        load_model("org/tiny", allow_download=False)


PROGRAM = """
from sharpen.llm import ModelError
from sharpen.llm.models.hub import hub_folder

try:
    hub_folder("org/tiny")
except ModelError as error:
    print(isinstance(error.__cause__, OSError), error)
"""


def test_a_cache_that_cannot_be_written_is_not_blamed_on_the_hub(tiny_model: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file where the folder should be")
    with running_hub() as hub:
        hub.add("models", "org/tiny", tiny_model)
        environment = {**os.environ, **hub.environment(home)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=60
        )
    assert done.stdout.startswith("True")
    assert str(home) in done.stdout
    assert "HF_HOME" in done.stdout
    assert "connection" not in done.stdout


def test_a_download_that_was_cut_off_is_named(hub_cache: Path, tiny_model: Path) -> None:
    snapshot = keep(hub_cache, "org/tiny", tiny_model)
    (snapshot / "model.safetensors").unlink()
    with raises(ModelError, "org/tiny"):
        load_model("org/tiny", allow_download=False)
