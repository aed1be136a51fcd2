"""Checks of options and numbers, and install commands."""

import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sharpen.checks import (
    check_bool,
    check_choice,
    check_installed,
    check_int,
    check_ints,
    check_names,
    check_number,
    is_int,
    is_number,
    listed,
    name_hint,
    nearest_names,
    needs_extra,
)
from sharpen.errors import ConfigError, InvalidInputError, MissingExtraError
from tests.errors import raises

# -- names -------------------------------------------------------------------------------------------


def test_the_nearest_names_come_first_whatever_their_case() -> None:
    known = ["group_size", "Group_Sizes", "lr", "seed"]
    assert nearest_names("GROUP_SIZE", known) == ["group_size", "Group_Sizes"]
    assert nearest_names("xyz", known) == []
    assert len(nearest_names("xyz", known, limit=1, cutoff=0)) == 1


def test_an_unknown_name_is_refused_with_the_nearest_and_the_allowed_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        check_names(["seed", "grup_size"], ["seed", "group_size", "lr"], owner="GRPO")
    for word in ("GRPO", "'grup_size'", "'group_size'", "lr"):
        assert word in str(caught.value)
    check_names(["seed"], ["seed"], owner="GRPO")


def test_many_allowed_names_are_cut() -> None:
    known = [f"option_{number}" for number in range(40)]
    assert "28 more" in name_hint("xyz", known)
    assert "option_9" not in name_hint("option_11", known)
    assert name_hint("xyz", []) == ""
    assert listed(["a", "b", "c"], limit=2) == "a, b and 1 more"


def test_a_key_that_is_not_a_text_is_named_as_it_is() -> None:
    with raises(InvalidInputError, 7):
        check_names([7], ["seed"], owner="GRPO", error=InvalidInputError)


def test_a_choice_is_returned_and_anything_else_names_all_of_them() -> None:
    modes = ("train", "val", "test", "all")
    assert check_choice("mode", "val", modes) == "val"
    assert check_choice("mode", None, modes, optional=True) is None
    for wrong in ("vall", None, 3):
        with pytest.raises(ConfigError) as caught:
            check_choice("mode", wrong, modes)
        assert f"mode is {wrong!r}" in str(caught.value)
        assert "'train', 'val', 'test', 'all'" in str(caught.value)


# -- numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, 1.0, "1", None, float("nan"), np.float64(1), np.bool_(True), Decimal(1)])
def test_only_whole_numbers_are_whole(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        check_int("count", value)
    assert f"count is {value!r}" in str(caught.value)
    assert not is_int(value)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_a_whole_number_comes_back_plain(value: Any) -> None:
    found = check_int("count", value, at_least=3, at_most=3)
    assert found == 3
    assert type(found) is int


@pytest.mark.parametrize(("value", "bound"), [(0, "1"), (65, "64")])
def test_a_number_outside_its_bounds_names_them(value: int, bound: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_int("count", value, at_least=1, at_most=64, error=InvalidInputError)
    assert f"count is {value}" in str(caught.value)
    assert bound in str(caught.value)


def test_several_counts_are_checked_by_their_names() -> None:
    check_ints(a=1, b=None)
    check_ints(at_least=0, a=0)
    with raises(ConfigError, "b", 0):
        check_ints(a=1, b=0)


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), float("inf"), 10**400, Decimal(1), 1j])
def test_what_is_not_a_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        check_number("lr", value)
    assert f"lr is {value!r:.80}" in str(caught.value)
    assert not is_number(value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2, int),
        (0.5, float),
        (np.float32(0.5), float),
        (np.float64(0.5), float),
        (np.int16(2), int),
        (Fraction(1, 2), float),
    ],
)
def test_a_number_comes_back_plain(value: Any, kind: type) -> None:
    found = check_number("lr", value, above=0)
    assert found == value
    assert type(found) is kind


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"above": 0}, 0.1, 0),
        ({"at_least": 0}, 0, -0.1),
        ({"below": 1}, 0.9, 1),
        ({"at_most": 1}, 1, 1.1),
        ({"at_least": 0, "at_most": 1}, 0.5, 95),
    ],
)
def test_bounds_of_numbers_are_open_or_closed(bounds: dict[str, float], inside: float, outside: float) -> None:
    assert check_number("share", inside, **bounds) == inside  # type: ignore[call-overload]
    with pytest.raises(ConfigError) as caught:
        check_number("share", outside, **bounds)  # type: ignore[call-overload]
    assert all(f"{name.replace('_', ' ')} {bound}" in str(caught.value) for name, bound in bounds.items())


def test_a_number_that_may_be_missing() -> None:
    assert check_number("timeout", None, above=0, optional=True) is None
    assert check_int("count", None, optional=True) is None


# -- optional packages -------------------------------------------------------------------------------


def test_a_missing_package_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tomllib", None)

    def load() -> None:
        with needs_extra("tomllib", extra="llm", feature="reading"):
            import tomllib  # noqa: F401

    with raises(MissingExtraError, "reading", "tomllib", "pip install 'sharpen[llm]'"):
        load()
    with raises(MissingExtraError, "pip install 'sharpen[llm]'"):
        check_installed("json", "tomllib", extra="llm", feature="reading")
    with raises(MissingExtraError, "pip install no_such_package"):
        check_installed("no_such_package", extra=None, feature="reading")
    check_installed("json", extra="llm", feature="reading")


def test_other_errors_of_an_import_pass() -> None:
    def load() -> None:
        with needs_extra("json", extra="llm", feature="reading"):
            raise ValueError("3")

    with raises(ValueError, 3):
        load()


@pytest.mark.parametrize("value", [1, 0, "True", None])
def test_a_switch_is_neither_a_number_nor_a_text(value: Any) -> None:
    with raises(ConfigError, "fast", value):
        check_bool("fast", value)
    check_bool("fast", value=False)
    check_bool("fast", None, optional=True)
