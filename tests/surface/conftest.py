"""Compare a part of the public surface with its committed snapshot, or write the snapshot again.

A snapshot is a text file in `snapshots/` with one fact a line, so that a change reads well in a diff. When a change is
intended, write the snapshots again, look at the diff, and name the change in CHANGELOG.md:

    pytest tests/surface --write-snapshots
"""

from collections.abc import Callable, Iterable
from difflib import unified_diff
from pathlib import Path

import pytest

from .commands import folder

SNAPSHOTS = Path(__file__).parent / "snapshots"
__all__ = ["SNAPSHOTS", "Compare", "compare", "folder"]
Compare = Callable[[str, Iterable[str]], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-snapshots", action="store_true", help="write tests/surface/snapshots again")


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Compare:
    """Compare the lines of a snapshot, named by its file, with those that the code gives now."""
    # The option is unknown when the tests of the whole repository are collected.
    writes = request.config.getoption("--write-snapshots", default=False)

    def compare(name: str, lines: Iterable[str]) -> None:
        path, now = SNAPSHOTS / name, list(lines)
        assert now
        assert not any("\n" in line for line in now)
        if writes:
            path.write_text("".join(f"{line}\n" for line in now), encoding="utf-8")
            return
        then = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        changed = list(unified_diff(then, now, "committed", "now", lineterm="", n=0))
        if changed:
            facts = "\n".join(line for line in changed[2:] if not line.startswith("@@"))
            pytest.fail(
                f"the public surface changed (tests/surface/snapshots/{name}):\n{facts}\n"
                "If that is intended, run `pytest tests/surface --write-snapshots`, commit the difference, "
                "and name the change in CHANGELOG.md.",
                pytrace=False,
            )

    return compare
