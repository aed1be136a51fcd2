"""Models by name: only what is in the base folder, unless downloads are allowed."""

import json
from pathlib import Path

import pytest

from tests.errors import raises
from tests.llm.internals import ParameterError, Workspace, check_model

from .calls import Calls


def write_adapter(folder: Path, base_model: str) -> None:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base_model}), encoding="utf-8")
    (folder / "adapter_model.safetensors").touch()


def checked(base: Path, name: str, *, allow_download: bool = False) -> str:
    return check_model(Workspace(base), "model_name", name, allow_download=allow_download)


@pytest.fixture(autouse=True)
def empty_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_folder_of_the_name_wins_over_the_hub(base: Path) -> None:
    (base / "Qwen").mkdir()
    (base / "model").rename(base / "Qwen" / "Qwen3-0.6B")
    assert checked(base, "Qwen/Qwen3-0.6B") == str(base / "Qwen" / "Qwen3-0.6B")
    assert checked(base, "./Qwen/Qwen3-0.6B") == str(base / "Qwen" / "Qwen3-0.6B")


def test_a_name_on_the_hub_needs_permission(base: Path) -> None:
    with pytest.raises(ParameterError):
        checked(base, "Qwen/Qwen3-0.6B")
    assert checked(base, "Qwen/Qwen3-0.6B", allow_download=True) == "Qwen/Qwen3-0.6B"


def test_a_model_in_the_cache_of_the_hub_is_no_download(base: Path, empty_hub_cache: Path) -> None:
    stored = empty_hub_cache / "models--Qwen--Qwen3-0.6B"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text("abc", encoding="ascii")
    (stored / "snapshots" / "abc").mkdir(parents=True)
    (stored / "snapshots" / "abc" / "config.json").write_text("{}", encoding="ascii")
    assert checked(base, "Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("name", ["./missing", "missing.gguf", "a/b/c", "no such model!"])
def test_a_missing_model_is_named(base: Path, name: str) -> None:
    with raises(ParameterError, "model_name") as caught:
        checked(base, name, allow_download=True)
    assert name in str(caught.value)


def test_a_folder_without_a_model_says_what_is_missing(base: Path) -> None:
    (base / "empty").mkdir()
    with raises(ParameterError, "config.json", "adapter_config.json"):
        checked(base, "empty")


def test_models_outside_are_refused(base: Path, tmp_path: Path) -> None:
    (base / "model").rename(tmp_path / "outside")
    (base / "link").symlink_to(tmp_path / "outside")
    for name in ("../outside", str(tmp_path / "outside"), "link"):
        with pytest.raises(ParameterError):
            checked(base, name, allow_download=True)


def test_the_base_of_an_adapter_is_checked_too(base: Path, tmp_path: Path) -> None:
    write_adapter(base / "inside", str(base / "model"))
    assert checked(base, "inside") == str(base / "inside")
    (base / "model").rename(tmp_path / "outside")
    write_adapter(base / "spy", str(tmp_path / "outside"))
    with pytest.raises(ParameterError):
        checked(base, "spy")
    write_adapter(base / "far", "Qwen/Qwen3-0.6B")
    with raises(ParameterError, "Qwen/Qwen3-0.6B"):
        checked(base, "far")


def test_a_job_is_not_begun_for_a_model_that_is_not_there(call: Calls) -> None:
    answer = call("train", algorithm="sft", model_name="./nowhere")
    assert answer["error"]["problems"][0]["key"] == "model_name"
    assert "no such file or folder" in answer["error"]["message"]
    assert "model_path is './nowhere'" in call.refused("evaluate", model_path="./nowhere")
    assert call("list", kind="jobs")["jobs"] == []
