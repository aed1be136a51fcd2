"""What the tests of tracers share."""

import pytest

from sharpen.tracer import DummyTracer


@pytest.fixture(autouse=True)
def no_trace_before() -> None:
    """The last trace of this context is an empty one, whatever the test before has left."""
    DummyTracer().trace_run(lambda: None)
