"""What the tests of configurations share."""

from collections.abc import Iterator

import pytest

from tests.cli.projects import own_imports


@pytest.fixture(autouse=True)
def no_traces_of_imports() -> Iterator[None]:
    with own_imports():
        yield
