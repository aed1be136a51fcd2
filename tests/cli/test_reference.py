"""The reference of the command line."""

from pathlib import Path

import pytest

from tests.cli.internals import reference_page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


@pytest.mark.parametrize("columns", ["60", "200"])
def test_the_page_is_what_the_parser_says(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    again = "write it again: python -m sharpen.cli.reference > docs/reference/cli.md"
    assert PAGE.read_text(encoding="utf-8") == reference_page(), again


def test_a_per_cent_sign_is_one() -> None:
    assert "%%" not in reference_page()
