"""What the tests of searches share."""

import pytest

from tests.algorithm.internals import prompts_evaluations as evaluations


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost rollout is asked for again at once."""
    monkeypatch.setattr(evaluations, "PAUSES_SECONDS", (0.0, 0.0))
