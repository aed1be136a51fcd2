"""What the tests of the gateway share."""

from collections.abc import Iterator

import pytest

from .scripted import ScriptedUpstream


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    """A hosted API: no token ids, and it refuses to be asked for them."""
    with ScriptedUpstream() as running:
        yield running


@pytest.fixture
def vllm() -> Iterator[ScriptedUpstream]:
    """An engine that gives token ids and log-probabilities when asked."""
    with ScriptedUpstream(engine="vllm") as running:
        yield running
