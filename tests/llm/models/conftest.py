"""What the tests of models share: a tiny model and an adapter of it, written once and only read."""

from pathlib import Path
from typing import Any

import pytest

from ..tiny_models import write_tiny_model


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test writes to the user's own cache."""
    monkeypatch.setenv("SHARPEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    torch.set_num_threads(1)
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_adapter(tiny_model: Path) -> Path:
    """An adapter that changes what the model says."""
    from sharpen.llm import load_model
    from tests.llm.internals import save_model

    loaded = load_model(tiny_model)
    return save_model(with_lora(loaded.model), loaded.tokenizer, tiny_model.parent / "adapter", source=loaded.source)


def with_lora(model: Any, seed: int = 1, **options: Any) -> Any:
    """The model with an adapter of random weights, as if it had been trained."""
    import torch
    from peft import get_peft_model

    from tests.llm.internals import lora_config_for

    config = lora_config_for(model, {"r": 4, "target_modules": "recommended", "init_lora_weights": False, **options})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, config).eval()


def logits(model: Any) -> Any:
    """What the model says about a fixed text."""
    import torch

    with torch.no_grad():
        return model(torch.arange(3, 43)[None]).logits.float()
