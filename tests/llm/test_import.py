"""What importing the wing costs, its names, and the calls that people know."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sharpen.llm
from tests.errors import raises

HEAVY = {"torch", "numpy", "datasets", "pyarrow", "pandas", "transformers", "trl", "peft", "msgspec", "rich"}

DOCUMENTED = [
    # Rows for SFT, and for GRPO with their reward.
    'dataset = create_sft_dataset(split="train", max_samples=1000)',
    'dataset = create_rl_dataset(\n    split="train",\n    max_samples=500,\n    model_name="Qwen/Qwen3-0.6B"\n)\n'
    "reward_fn = create_accuracy_reward()",
    'sft_dataset = create_sft_dataset(split="train", max_samples=1000)\n'
    'rl_dataset = create_rl_dataset(split="train", max_samples=500, model_name="Qwen/Qwen3-0.6B")\n'
    "reward_fn = create_accuracy_reward()",
]


def loaded_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in run.stdout.split()}


def test_importing_the_wing_loads_nothing_heavy() -> None:
    assert not loaded_by("import sharpen.llm") & HEAVY


def test_rewards_and_data_sets_load_nothing_heavy() -> None:
    code = "import sharpen.llm.datasets, sharpen.llm.rewards\nfrom sharpen.llm import create_accuracy_reward\n"
    assert not loaded_by(code + "create_accuracy_reward()(['42'], ground_truth=['42'])") & HEAVY


def test_every_name_can_be_imported() -> None:
    for name in sharpen.llm.__all__:
        assert getattr(sharpen.llm, name) is not None
        assert name in dir(sharpen.llm)
    with raises(AttributeError, "create_sft_datasets"):
        _ = sharpen.llm.create_sft_datasets


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(sharpen.llm.__file__).read_text(encoding="utf-8"))
    imported = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported - {None} == set(sharpen.llm.__all__)


@pytest.mark.parametrize("code", DOCUMENTED)
def test_the_documented_calls_run(data_folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setenv("SHARPEN_DATA", str(data_folder))
    names: dict[str, object] = {}
    exec("from sharpen.llm import create_sft_dataset, create_rl_dataset, create_accuracy_reward\n" + code, names)
    for name in {"dataset", "sft_dataset", "rl_dataset"} & set(names):
        assert len(names[name]) == 4  # type: ignore[arg-type]
