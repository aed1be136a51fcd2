"""What the tests of fine-tuning share: a small GSM8K in its own form, and no data but what a test gives."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.llm.internals import DATA_VARIABLE

REAL_DATA = os.environ.get(DATA_VARIABLE)

PROBLEMS = [
    {
        "question": "Mia bakes 3 trays with 12 rolls each. How many rolls does she bake?",
        "answer": "She bakes 3*12 = <<3*12=36>>36 rolls.\n#### 36",
    },
    {
        "question": "A coat costs $1,500 and is sold at 20% off. What does it cost now?",
        "answer": "It is 1500*.2 = $<<1500*.2=300>>300 less.\nIt costs 1500-300 = $<<1500-300=1200>>1,200.\n#### 1,200",
    },
    {
        "question": "It is 4 degrees and gets 9 degrees colder. How many degrees is it then?",
        "answer": "It is 4-9 = <<4-9=-5>>-5 degrees.\n#### -5",
    },
    {
        "question": "Ben walks 1.5 km to school and back, 5 days a week. How many km is that?",
        "answer": "A day is 1.5*2 = <<1.5*2=3>>3 km.\nA week is 3*5 = <<3*5=15>>15 km.\n#### 15",
    },
]

# As the document of the trainers recommends it, with the import renamed.
DOCUMENTED_CALLS = """
from sharpen.llm import RLTrainingTool

tool = RLTrainingTool()

# SFT训练
sft_result = tool.run({
    "action": "train",
    "algorithm": "sft",
    "model_name": "Qwen/Qwen3-0.6B",
    "max_samples": 1000,
    "num_epochs": 3,
    "output_dir": "./output/sft",
    "use_lora": True,
    "batch_size": 4
})

# GRPO训练
grpo_result = tool.run({
    "action": "train",
    "algorithm": "grpo",
    "model_name": "./output/sft",
    "max_samples": 500,
    "num_epochs": 3,
    "output_dir": "./output/grpo",
    "use_lora": True,
    "batch_size": 2
})
"""


@pytest.fixture(autouse=True)
def no_data_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    """A folder with GSM8K in it: `gsm8k/train.jsonl` with four problems, `gsm8k/test.jsonl` with one."""
    folder = tmp_path / "data" / "gsm8k"
    folder.mkdir(parents=True)
    for split, problems in (("train", PROBLEMS), ("test", PROBLEMS[-1:])):
        lines = [json.dumps(problem, ensure_ascii=False) + "\n" for problem in problems]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder.parent


@pytest.fixture
def without_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package `datasets` were not installed."""
    monkeypatch.setitem(sys.modules, "datasets", None)
