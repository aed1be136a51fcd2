import re
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from tests.algorithm.internals import (
    FIXED,
    IGNORED,
    KEYS,
    OTHER_NAMES,
    VERLConfig,
    read_config,
    read_value,
    why_ignored,
)

from .keys_page import PAGE, page


def fields_of(kind: Any, prefix: str = "") -> set[str]:
    """The dotted names of the fields of a struct."""
    found = set()
    for field in msgspec.structs.fields(kind):
        is_section = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
        found |= fields_of(field.type, f"{prefix}{field.name}.") if is_section else {f"{prefix}{field.name}"}
    return found


def test_every_key_has_a_field_and_every_field_a_key() -> None:
    names = {name.removeprefix("actor_rollout_ref.") for name in KEYS}
    assert fields_of(VERLConfig) == names | {"given", "doubts", "ignored"}


def test_every_default_is_a_value_that_its_key_takes() -> None:
    for name, key in KEYS.items():
        if key.default is not None:
            assert read_value(name, key.kind, key.default) == key.default
        else:
            assert key.is_optional or key.same_as or key.name.endswith(("do_sample", "use_dynamic_bsz", "trainable"))


def test_every_key_that_another_follows_is_there() -> None:
    assert {key.same_as for key in KEYS.values()} - {None} <= KEYS.keys()
    assert set(OTHER_NAMES.values()) <= KEYS.keys()


def test_no_key_is_of_two_kinds() -> None:
    assert not KEYS.keys() & OTHER_NAMES.keys()
    assert not FIXED.keys() & (KEYS.keys() | OTHER_NAMES.keys())
    # Patterns (`*_parallel_size`, `fsdp_config.*`, …) take these in as well; a key that acts is looked for first.
    assert {name for name in KEYS if why_ignored(name)} == {
        "actor_rollout_ref.actor.fsdp_config.param_offload",
        "actor_rollout_ref.actor.fsdp_config.reshard_after_forward",
        "actor_rollout_ref.actor.strategy",
        "actor_rollout_ref.rollout.tensor_model_parallel_size",
    }


@pytest.mark.parametrize("name", FIXED)
def test_a_key_with_one_value_takes_that_value(name: str) -> None:
    assert read_config({name: FIXED[name].value}) == read_config()


def test_every_pattern_of_keys_without_a_meaning_finds_a_key() -> None:
    for reason, patterns in IGNORED.items():
        for pattern in patterns:
            name = pattern.replace("*.", "critic.", 1) if pattern.startswith("*.") else pattern
            found = why_ignored(name.replace("*", "x"))
            assert found is not None, f"{pattern} ({reason})"


def test_the_page_of_keys_is_that_of_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(), "write it again: python -m tests.algorithm.verl.keys_page"
    acting = text.partition("## Keys that act")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([\w.]+)` \|", acting, flags=re.MULTILINE) == list(KEYS)


def test_reading_a_config_loads_no_heavy_package() -> None:
    code = (
        "import sys; from sharpen import GRPO; GRPO('m'); "
        "print([name for name in ('torch', 'transformers', 'numpy', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
