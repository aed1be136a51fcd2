"""Loggers and callbacks from component specs."""

from pathlib import Path

import pytest

import sharpen.callbacks
import sharpen.loggers
from sharpen.callbacks import Callback
from sharpen.components import build_component
from sharpen.loggers import Logger


@pytest.mark.parametrize("name", ["CsvLogger", "JsonlLogger", "PickleLogger", "TensorBoardLogger"])
def test_a_logger_of_a_folder_is_built_from_a_dict(tmp_path: Path, name: str) -> None:
    spec = {"type": f"sharpen.loggers.{name}", "dirpath": str(tmp_path), "loglevel": 30}
    logger = build_component(spec, expected_type=Logger, spec_name="loggers")
    assert type(logger) is getattr(sharpen.loggers, name)
    assert logger.loglevel == 30


@pytest.mark.parametrize("name", ["ConsoleLogger", "WandbLogger", "MlflowLogger"])
def test_other_loggers_are_built_from_their_path_alone(name: str) -> None:
    assert build_component(f"sharpen.loggers.{name}", expected_type=Logger, spec_name="loggers").loglevel == 20


@pytest.mark.parametrize("name", ["Checkpoint", "MetricsWriter", "EarlyStopping"])
def test_callbacks_are_built_from_a_dict(tmp_path: Path, name: str) -> None:
    settings = {} if name == "EarlyStopping" else {"dirpath": str(tmp_path)}
    spec = {"type": f"sharpen.callbacks.{name}", **settings}
    callback = build_component(spec, expected_type=Callback, spec_name="callbacks")
    assert type(callback) is getattr(sharpen.callbacks, name)
