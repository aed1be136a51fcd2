"""LoRA settings, and adapters merged into their bases."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from sharpen.errors import ConfigError
from sharpen.llm import ModelError, create_lora_config, load_model, merge_adapter
from tests.errors import raises
from tests.llm.internals import lora_config_for, lora_differences, read_adapter_config

from .conftest import logits

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Any:
    return load_model(tiny_model).model


def test_a_config_is_a_plain_dict_with_the_documented_values() -> None:
    assert create_lora_config() == {
        "r": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.05,
        "target_modules": ["q_proj", "v_proj"],
    }
    assert create_lora_config(8, 16, 0.1, ["o_proj", "o_proj"], use_rslora=True) == {
        "r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.1,
        "target_modules": ["o_proj"],
        "use_rslora": True,
    }


@pytest.mark.parametrize(
    ("name", "modules"),
    [("minimal", ["q_proj", "v_proj"]), ("recommended", ATTENTION), ("full", [*ATTENTION, *MLP])],
)
def test_targets_have_the_names_of_the_document(name: str, modules: list[str]) -> None:
    assert create_lora_config(target_modules=name)["target_modules"] == modules


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"r": 0}, ("r", 0)),
        ({"r": 2.5}, ("r", 2.5)),
        ({"r": True}, ("r", True)),
        ({"lora_alpha": 0}, ("lora_alpha", 0)),
        ({"lora_alpha": float("nan")}, ("lora_alpha", "nan")),
        ({"lora_alpha": "32"}, ("lora_alpha", 32)),
        ({"lora_dropout": 1}, ("lora_dropout", 1)),
        ({"lora_dropout": -0.1}, ("lora_dropout", -0.1)),
        ({"target_modules": []}, ("target_modules",)),
        ({"target_modules": [1]}, ("target_modules", 1)),
        ({"target_modules": 5}, ("target_modules", 5)),
        ({"target_modules": ""}, ("target_modules",)),
        ({"use_dorra": True}, ("use_dorra", "use_dora")),
        ({"task_type": "SEQ_CLS"}, ("task_type",)),
        ({"inference_mode": True}, ("inference_mode",)),
        ({"init_lora_weights": "pissa"}, ("pissa",)),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        create_lora_config(**options)


def test_a_dict_becomes_the_config_of_peft(model: Any) -> None:
    config = lora_config_for(model, {"r": 4, "lora_alpha": 8, "target_modules": "full", "use_rslora": True})
    assert (config.r, config.lora_alpha, config.lora_dropout, config.use_rslora) == (4, 8, 0.05, True)
    assert config.target_modules == {*ATTENTION, *MLP}
    assert config.task_type == "CAUSAL_LM"
    assert lora_config_for(model, None).target_modules == {"q_proj", "v_proj"}


def test_a_config_of_peft_is_taken_with_all_its_values(model: Any) -> None:
    given = LoraConfig(r=3, lora_alpha=5, target_modules=["k_proj"], rank_pattern={"k_proj": 2}, bias="lora_only")
    config = lora_config_for(model, given)
    assert (config.r, config.lora_alpha, config.rank_pattern, config.bias) == (3, 5, {"k_proj": 2}, "lora_only")
    assert config.target_modules == {"k_proj"}
    assert config.task_type == "CAUSAL_LM"
    assert given.task_type is None


def test_a_config_of_another_kind_is_refused(model: Any) -> None:
    with raises(ConfigError, "lora_config"):
        lora_config_for(model, 16)  # type: ignore[arg-type]
    with raises(ConfigError, "task_type", "SEQ_CLS"):
        lora_config_for(model, LoraConfig(task_type="SEQ_CLS"))
    with raises(ConfigError, "rank"):
        lora_config_for(model, {"rank": 16})


@pytest.mark.parametrize("targets", [["q_proj", "c_attn"], "c_attn"])
def test_modules_that_a_model_lacks_are_named_with_those_it_has(model: Any, targets: Any) -> None:
    with raises(ConfigError, "c_attn", "down_proj", "v_proj"):
        lora_config_for(model, {"target_modules": targets})


def test_modules_to_save_whole_are_checked_too(model: Any) -> None:
    with raises(ConfigError, "modules_to_save", "head"):
        lora_config_for(model, {"modules_to_save": ["head"]})
    assert lora_config_for(model, {"modules_to_save": ["lm_head"]}).modules_to_save == ["lm_head"]


def test_patterns_and_partial_names_of_modules_are_taken(model: Any) -> None:
    assert lora_config_for(model, {"target_modules": r".*layers\.0\..*q_proj"}).target_modules.endswith("q_proj")
    assert lora_config_for(model, {"target_modules": ["self_attn.q_proj"]}).target_modules == {"self_attn.q_proj"}
    assert lora_config_for(model, {"target_modules": "all-linear"}).target_modules == "all-linear"
    with pytest.raises(ConfigError):
        lora_config_for(model, {"target_modules": "("})


def test_every_target_gets_its_matrices(tiny_model: Path) -> None:
    loaded = load_model(tiny_model).model
    adapted = get_peft_model(loaded, lora_config_for(loaded, {"r": 2, "target_modules": "full"}))
    trained = [name for name, each in adapted.named_parameters() if each.requires_grad]
    assert len(trained) == 2 * 2 * 7
    with pytest.raises(ConfigError):
        lora_config_for(adapted, None)


# -- adapters ----------------------------------------------------------------------------------------


def test_differences_between_an_adapter_and_what_is_wanted_are_named(tiny_adapter: Path) -> None:
    has = read_adapter_config(tiny_adapter)
    same = {"r": 4, "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": "recommended"}
    assert lora_differences(has, same) == []
    assert lora_differences(has, None) == []
    assert lora_differences(has, {**same, "r": 8, "target_modules": None}) == [
        "r is 4 in the adapter, but 8 is wanted",
        "target_modules is ['k_proj', 'o_proj', 'q_proj', 'v_proj'] in the adapter, but ['q_proj', 'v_proj'] is wanted",
    ]
    assert lora_differences(has, {**same, "use_rslora": True}) == [
        "use_rslora is False in the adapter, but True is wanted"
    ]
    assert len(lora_differences(has, {**same, "target_modules": "all-linear"})) == 1


def test_a_config_of_peft_is_compared_too(tiny_adapter: Path) -> None:
    has = read_adapter_config(tiny_adapter)
    options: dict[str, Any] = {"lora_alpha": 32, "lora_dropout": 0.05, "init_lora_weights": False}
    assert lora_differences(has, LoraConfig(r=4, target_modules=ATTENTION, **options)) == []
    assert lora_differences(has, LoraConfig(r=2, target_modules=ATTENTION, **options)) == [
        "r is 4 in the adapter, but 2 is wanted"
    ]


def test_an_adapter_merged_into_its_base_is_a_model_of_its_own(tiny_adapter: Path, tmp_path: Path) -> None:
    folder = merge_adapter(tiny_adapter, tmp_path / "merged")
    merged = load_model(folder)
    assert merged.source.kind == "folder"
    assert merged.tokenizer.chat_template
    torch.testing.assert_close(logits(merged.model), logits(load_model(tiny_adapter).model), atol=1e-4, rtol=1e-4)


def test_only_an_adapter_can_be_merged_and_not_over_itself(
    tiny_model: Path, tiny_adapter: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError):
        merge_adapter(tiny_model, tmp_path / "merged")
    with pytest.raises(ModelError):
        merge_adapter(tiny_adapter, tiny_adapter)
    assert not (tmp_path / "merged").exists()
