"""A tiny model for the tests of training, written once a process, and one thread for torch."""

from pathlib import Path

import pytest

from ..tiny_models import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    torch.set_num_threads(1)
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
