"""What the settings of the loss refuse, and that they need no torch."""

import subprocess
import sys
from typing import Any

import pytest

from sharpen.errors import ConfigError
from tests.errors import raises
from tests.llm.internals import LossSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip_low", -0.1),
        ("clip_low", 1.1),
        ("clip_high", -1),
        ("dual_clip", 1.0),
        ("aggregation", "mean"),
        ("width", 0),
        ("kl_coef", -1.0),
        ("kl_kind", "k4"),
        ("importance_cap", 0.5),
        ("importance_mode", "turn"),
        ("value_clip", 0.0),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(name: str, value: Any) -> None:
    with raises(ConfigError, name):
        LossSettings(**{name: value})


def test_settings_and_samples_load_without_torch() -> None:
    code = (
        "import sys, sharpen.llm.policy.settings, sharpen.llm.policy.samples\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
