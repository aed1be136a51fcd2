"""How numbers, times and words look."""

import pytest

from tests.dashboard.internals import formats


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "\N{EN DASH}"), (0, "0"), (1234, "1,234"), (0.125, "0.125"), (3.2e-5, "3.20e-05"), (123456.7, "123,457"),
     (12.345678, "12.35"), (float("nan"), "nan"), (-0.5, "-0.500"), (1e20, "100,000,000,000,000,000,000")],
)  # fmt: skip
def test_numbers_take_the_fewest_signs_that_tell_them(value: float | None, shown: str) -> None:
    assert formats.number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "\N{EN DASH}"), (0.0123, "12 ms"), (3.42, "3.4 s"), (59.99, "60.0 s"), (125, "2 min 05 s"),
     (11_220, "3 h 07 min"), (200_000, "2 d 7 h"), (-5, "-5.0 s"), (1e18, "11,574,074,074,074 d"),
     (float("inf"), "\N{EN DASH}"), (float("-inf"), "\N{EN DASH}"), (float("nan"), "\N{EN DASH}")],
)  # fmt: skip
def test_durations_are_in_words_of_people(seconds: float | None, shown: str) -> None:
    assert formats.duration(seconds) == shown


def test_sizes_and_rewards_line_up() -> None:
    assert [formats.size(value) for value in (None, 12, 1500, 2.5e9, 7e12)] == [
        "\N{EN DASH}", "12 B", "1.5 kB", "2.5 GB", "7.0 TB",
    ]  # fmt: skip
    assert [formats.reward(value) for value in (1, -0.25, 2e9)] == ["1.000", "-0.250", "2e+09"]
    assert formats.percent(0.1234) == "12.3 %"


def test_moments_name_their_zone_where_a_machine_reads_them() -> None:
    assert formats.iso(0.5) == "1970-01-01T00:00:00.500+00:00"
    assert formats.age(90.0, now=100.0) == "10.0 s"


@pytest.mark.parametrize("seconds", [float("inf"), float("-inf"), float("nan"), 1e15, -1e15, 1e300])
def test_a_moment_that_no_calendar_knows_is_a_dash(seconds: float) -> None:
    assert formats.moment(seconds) == "\N{EN DASH}"
    assert formats.iso(seconds) == ""
    assert formats.age(seconds)


def test_a_long_text_becomes_one_short_line() -> None:
    assert formats.short("a\n b" + "c" * 100, 8) == "a bcccc…"


def test_an_id_of_an_element_is_safe_in_a_selector() -> None:
    assert formats.key("<a b='c'>").isalnum()
    assert formats.key("a") != formats.key("b")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, formats.DASH),
        (0, "$0.00"),
        (12.5, "$12.50"),
        (1234.5, "$1,234.50"),
        (0.0032, "$0.0032"),
        (2.52e-05, "$0.000025"),
    ],
)
def test_prices_have_no_exponent(value: float | None, shown: str) -> None:
    assert formats.dollars(value) == shown
