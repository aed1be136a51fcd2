"""What the name of a model stands for. No model is loaded here."""

import json
from pathlib import Path

import pytest

from sharpen.llm import ModelError
from tests.errors import raises
from tests.llm.internals import ModelSource, find_model


def model_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def adapter_folder(folder: Path, base: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "gpt2", "HuggingFaceTB/SmolLM2-135M-Instruct", "output/sft"])
def test_a_name_that_is_no_path_is_one_of_the_hub(name: str) -> None:
    assert find_model(name) == ModelSource(name, "hub")


def test_a_folder_wins_over_the_hub(here: Path) -> None:
    folder = model_folder(here / "Qwen" / "Qwen3-0.6B")
    assert find_model("Qwen/Qwen3-0.6B") == ModelSource("Qwen/Qwen3-0.6B", "folder", folder)


def test_a_folder_is_found_from_the_home_folder_and_as_a_path_object(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder(here / "mine")
    monkeypatch.setenv("HOME", str(here))
    assert find_model("~/mine").path == folder
    assert find_model(folder).path == folder


def test_a_gguf_file_is_a_model(here: Path) -> None:
    (here / "small.gguf").write_bytes(b"GGUF")
    assert find_model("small.gguf") == ModelSource("small.gguf", "gguf", here / "small.gguf")


@pytest.mark.parametrize("name", ["./nope", "../nope", "/nope/model", "~/nope", "nope.gguf", "a/b/c"])
def test_a_path_that_does_not_exist_is_named(name: str) -> None:
    with pytest.raises(ModelError) as error:
        find_model(name)
    assert repr(name) in str(error.value)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("", ()),
        (" ", (" ",)),
        (None, (None,)),
        ("my model", ("Qwen/Qwen3-0.6B",)),
        ("a\0b", ()),
        ("/" + "x" * 5000, ()),
        ("~nobody-of-that-name/model", ()),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(name: str, named: tuple[object, ...]) -> None:
    with raises(ModelError, *named):
        find_model(name)


def test_a_folder_without_a_model_says_what_is_missing(here: Path) -> None:
    (here / "empty").mkdir()
    with raises(ModelError, "config.json", "adapter_config.json"):
        find_model("empty")


def test_a_folder_of_models_names_them(here: Path) -> None:
    model_folder(here / "run" / "checkpoint-20")
    adapter_folder(here / "run" / "checkpoint-40", "gpt2")
    with raises(ModelError, "checkpoint-20", "checkpoint-40"):
        find_model("run")


def test_weights_that_could_carry_code_are_refused(here: Path) -> None:
    folder = model_folder(here / "old")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError):
        find_model("old")


def test_another_file_is_no_model(here: Path) -> None:
    (here / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError):
        find_model("./model.safetensors")


# -- adapters ----------------------------------------------------------------------------------------


def test_the_base_of_an_adapter_is_found_as_it_is_given(here: Path) -> None:
    base = model_folder(here / "base")
    adapter = adapter_folder(here / "runs" / "sft", str(base))
    assert find_model("runs/sft") == ModelSource("runs/sft", "adapter", adapter, ModelSource(str(base), "folder", base))


def test_the_base_of_an_adapter_is_found_from_the_working_directory(here: Path) -> None:
    base = model_folder(here / "Qwen" / "Qwen3-0.6B")
    adapter_folder(here / "runs" / "sft", "Qwen/Qwen3-0.6B")
    found = find_model("runs/sft").base
    assert found is not None
    assert found.path == base


def test_the_base_of_an_adapter_is_found_beside_it(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = model_folder(here / "runs" / "base")
    adapter = adapter_folder(here / "runs" / "sft", "../base")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    found = find_model(adapter).base
    assert found is not None
    assert (found.kind, found.path) == ("folder", base)


def test_the_base_of_an_adapter_may_be_on_the_hub_or_a_gguf_file(here: Path) -> None:
    adapter_folder(here / "first", "Qwen/Qwen3-0.6B")
    assert find_model("first").base == ModelSource("Qwen/Qwen3-0.6B", "hub")
    (here / "small.gguf").write_bytes(b"GGUF")
    adapter_folder(here / "second", "../small.gguf")
    assert find_model("second").base == ModelSource(str(here / "small.gguf"), "gguf", here / "small.gguf")


def test_an_adapter_whose_base_is_gone_names_both(here: Path) -> None:
    adapter_folder(here / "sft", "/gone/base")
    with raises(ModelError, "sft", "/gone/base"):
        find_model("sft")


def test_an_adapter_whose_converted_base_is_gone_says_how_to_get_it_back(here: Path, private_cache: Path) -> None:
    adapter_folder(here / "sft", str(private_cache / "models" / "small-1234-1"))
    with raises(ModelError, "GGUF"):
        find_model("sft")


def test_an_adapter_of_an_adapter_is_refused(here: Path) -> None:
    adapter_folder(here / "first", "gpt2")
    adapter_folder(here / "second", str(here / "first"))
    with raises(ModelError, "merge_adapter"):
        find_model("second")


@pytest.mark.parametrize("base", [None, "", 7, ["gpt2"]])
def test_an_adapter_without_the_name_of_its_base_is_refused(here: Path, base: object) -> None:
    adapter_folder(here / "sft", base)
    with pytest.raises(ModelError):
        find_model("sft")


@pytest.mark.parametrize("text", ["{", "[]", "\udcff"])
def test_a_damaged_adapter_config_is_named(here: Path, text: str) -> None:
    folder = adapter_folder(here / "sft", "gpt2")
    (folder / "adapter_config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with raises(ModelError, "adapter_config.json"):
        find_model("sft")


def test_an_adapter_without_weights_is_refused(here: Path) -> None:
    folder = adapter_folder(here / "sft", "gpt2")
    (folder / "adapter_model.safetensors").unlink()
    with raises(ModelError, "adapter_model.safetensors"):
        find_model("sft")
