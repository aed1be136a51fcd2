"""What the tests of the policy share."""

from pathlib import Path

import pytest
import torch

from tests.llm.tiny_models import write_tiny_model

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3, which no test changes."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "qwen3", layers=3)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "llama", architecture="llama", layers=2, seed=1)
