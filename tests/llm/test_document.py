"""The programs of the trainers' document run as they are written, with the import renamed.

A folder `Qwen/Qwen3-0.6B` with a tiny model stands in the working directory, and GSM8K has a few problems.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from .conftest import DOCUMENTED_CALLS
from .tiny_models import write_tiny_model

BASIC_SFT = """
from sharpen.llm import create_sft_dataset, SFTTrainerWrapper

dataset = create_sft_dataset(split="train", max_samples=1000)

trainer = SFTTrainerWrapper(
    model_name="Qwen/Qwen3-0.6B",
    dataset=dataset,
    output_dir="./output/sft",
    num_epochs=3,
    batch_size=4
)

trainer.train()
"""

FIRST_SFT = """
from sharpen.llm.trainers import SFTTrainerWrapper

trainer = SFTTrainerWrapper(
    model_name="Qwen/Qwen3-0.6B",
    dataset=dataset,
    output_dir="./output/sft",
    num_epochs=3,
    batch_size=4,
    learning_rate=2e-5,
    use_lora=True
)

trainer.train()
result = trainer.train()
print(f"训练完成,模型保存在: {result['output_dir']}")
trainer.save_model("./my_model")
"""

LORA_SFT = """
from sharpen.llm import create_lora_config

lora_config = create_lora_config(
    r=16,
    lora_alpha=32,
    lora_dropout=0.05
)

trainer = SFTTrainerWrapper(
    model_name="Qwen/Qwen3-0.6B",
    dataset=dataset,
    output_dir="./output/sft_lora",
    use_lora=True,
    lora_config=lora_config
)

trainer.train()
"""

BASIC_GRPO = """
from sharpen.llm import (
    create_rl_dataset,
    create_accuracy_reward,
    GRPOTrainerWrapper
)

dataset = create_rl_dataset(
    split="train",
    max_samples=500,
    model_name="Qwen/Qwen3-0.6B"
)

reward_fn = create_accuracy_reward()

trainer = GRPOTrainerWrapper(
    model_name="Qwen/Qwen3-0.6B",
    dataset=dataset,
    reward_fn=reward_fn,
    output_dir="./output/grpo",
    num_epochs=3,
    batch_size=2
)

trainer.train()
"""

FIRST_GRPO = """
from sharpen.llm.trainers import GRPOTrainerWrapper

trainer = GRPOTrainerWrapper(
    model_name="Qwen/Qwen3-0.6B",
    dataset=dataset,
    reward_fn=reward_fn,
    output_dir="./output/grpo",
    num_epochs=3,
    batch_size=2,
    learning_rate=1e-5,
    use_lora=True
)

trainer.train()
result = trainer.train()
print(f"训练完成,模型保存在: {result['output_dir']}")
trainer.save_model("./my_model")
"""

SFT_THEN_GRPO = """
sft_trainer = SFTTrainerWrapper(
    model_name="Qwen/Qwen3-0.6B",
    dataset=sft_dataset,
    output_dir="./output/sft"
)
sft_trainer.train()

grpo_trainer = GRPOTrainerWrapper(
    model_name="./output/sft",
    dataset=rl_dataset,
    reward_fn=reward_fn,
    output_dir="./output/grpo"
)
grpo_trainer.train()
"""

WITH_TARGETS = """
from sharpen.llm import create_lora_config

lora_config = create_lora_config(
    r=16,
    lora_alpha=32,
    lora_dropout=0.05,
    target_modules=["q_proj", "v_proj"]
)
"""

WHOLE = """
from sharpen.llm import (
    create_sft_dataset,
    create_rl_dataset,
    create_accuracy_reward,
    create_lora_config,
    SFTTrainerWrapper,
    GRPOTrainerWrapper
)

sft_dataset = create_sft_dataset(split="train", max_samples=1000)
rl_dataset = create_rl_dataset(split="train", max_samples=500, model_name="Qwen/Qwen3-0.6B")

reward_fn = create_accuracy_reward()

lora_config = create_lora_config(r=16, lora_alpha=32)

sft_trainer = SFTTrainerWrapper(
    model_name="Qwen/Qwen3-0.6B",
    dataset=sft_dataset,
    output_dir="./output/sft",
    num_epochs=3,
    batch_size=4,
    use_lora=True,
    lora_config=lora_config
)
sft_trainer.train()

grpo_trainer = GRPOTrainerWrapper(
    model_name="./output/sft",
    dataset=rl_dataset,
    reward_fn=reward_fn,
    output_dir="./output/grpo",
    num_epochs=3,
    batch_size=2,
    use_lora=True,
    lora_config=lora_config
)
grpo_trainer.train()
"""


@pytest.fixture
def place(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import torch

    torch.set_num_threads(1)
    _stopping_soon(write_tiny_model(tmp_path / "Qwen" / "Qwen3-0.6B", architecture="qwen3"))
    monkeypatch.setenv("SHARPEN_DATA", str(data_folder))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _stopping_soon(folder: Path) -> None:
    """Make the model end most answers within some tokens: the document leaves them 512."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    embeddings = weights["model.embed_tokens.weight"]  # which are the output's weights, too
    embeddings[:, 0], embeddings[2, 0] = 1.0, 2.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def run(*programs: str) -> dict[str, Any]:
    """Run programs after each other, as the cells of a notebook."""
    names: dict[str, Any] = {}
    for program in programs:
        exec(compile(program, "document", "exec"), names)
    return names


@pytest.mark.slow
def test_sft_as_in_the_document(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run(BASIC_SFT, FIRST_SFT, LORA_SFT, WITH_TARGETS)
    assert names["result"]["steps"] == 3
    assert f"模型保存在: {names['result']['output_dir']}" in capsys.readouterr().out
    assert json.loads((place / "my_model" / "adapter_config.json").read_text())["r"] == 16
    assert (place / "output" / "sft_lora" / "adapter_model.safetensors").is_file()
    assert names["lora_config"]["target_modules"] == ["q_proj", "v_proj"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_grpo_as_in_the_document(place: Path) -> None:
    names = run(BASIC_GRPO, FIRST_GRPO)
    assert names["result"]["steps"] == 6
    assert (place / "my_model" / "adapter_model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_example_of_the_document(place: Path) -> None:
    names = run(WHOLE)
    base = json.loads((place / "output" / "grpo" / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert os.path.samefile(base, place / "Qwen" / "Qwen3-0.6B")
    names = run(WHOLE.partition("lora_config = ")[0], SFT_THEN_GRPO)
    assert names["grpo_trainer"].current_iter == 6
    assert (place / "output" / "grpo" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tool_as_in_the_document(place: Path) -> None:
    names = run(DOCUMENTED_CALLS)
    for name, steps in (("sft_result", 3), ("grpo_result", 6)):
        result = json.loads(names[name])
        assert result["status"] == "success", result
        assert result["steps"] == steps
    assert (place / "output" / "grpo" / "adapter_model.safetensors").is_file()
