"""What importing the modules costs."""

import subprocess
import sys

HEAVY = {"torch", "numpy", "transformers", "trl", "peft", "datasets", "safetensors", "huggingface_hub", "tokenizers"}
MODULES = ("source", "loading", "saving", "lora", "hub", "gguf", "gguf_export", "templates")


def test_nothing_heavy_is_loaded_before_a_model_is() -> None:
    program = "\n".join(
        [
            "import sys",
            *(f"import sharpen.llm.models.{module}" for module in MODULES),
            "sharpen.llm.models.lora.create_lora_config(r=8, target_modules='full')",
            "sharpen.llm.models.source.find_model('Qwen/Qwen3-0.6B')",
            "print(*sys.modules)",
        ]
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {name.partition(".")[0] for name in run.stdout.split()} & HEAVY
