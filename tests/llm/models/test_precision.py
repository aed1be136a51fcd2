"""The device and the precision that are chosen."""

import pytest
import torch

from sharpen.errors import ConfigError
from tests.errors import raises
from tests.llm.internals import choose_device, choose_precision, torch_dtype


def gpu(monkeypatch: pytest.MonkeyPatch, *, has_bf16: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: has_bf16)


def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_the_best_device_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    no_gpu(monkeypatch)
    assert choose_device() == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device() == "mps"
    gpu(monkeypatch, has_bf16=True)
    assert choose_device() == "cuda"
    assert choose_device("cpu") == "cpu"
    assert choose_device("cuda:1") == "cuda:1"


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    no_gpu(monkeypatch)
    with raises(ConfigError, "cuda:0"):
        choose_device("cuda:0")
    with raises(ConfigError, 0):
        choose_device(0)  # type: ignore[arg-type]


@pytest.mark.parametrize("wanted", [None, "auto"])
def test_the_usual_precision_follows_the_device(monkeypatch: pytest.MonkeyPatch, wanted: str | None) -> None:
    assert choose_precision(wanted, "cpu") == "fp32"
    assert choose_precision(wanted, "mps") == "fp32"
    gpu(monkeypatch, has_bf16=True)
    assert choose_precision(wanted, "cuda:0") == "bf16"
    gpu(monkeypatch, has_bf16=False)
    assert choose_precision(wanted, "cuda") == "fp16"


def test_what_a_device_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(ConfigError, "fp16"):
        choose_precision("fp16", "cpu")
    gpu(monkeypatch, has_bf16=False)
    with raises(ConfigError, "bf16"):
        choose_precision("bf16", "cuda")


@pytest.mark.parametrize(("wanted", "device"), [("fp32", "cpu"), ("bf16", "cpu"), ("fp32", "cuda"), ("fp16", "cuda")])
def test_a_precision_that_the_device_has_is_taken(wanted: str, device: str) -> None:
    assert choose_precision(wanted, device) == wanted


def test_an_unknown_precision_is_refused() -> None:
    with raises(ConfigError, "half", "fp32", "bf16", "fp16"):
        choose_precision("half", "cpu")


def test_each_precision_has_its_type_of_numbers() -> None:
    assert torch_dtype("fp32") is torch.float32
    assert torch_dtype("bf16") is torch.bfloat16
    assert torch_dtype("fp16") is torch.float16
