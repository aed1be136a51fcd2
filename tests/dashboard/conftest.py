"""A folder of small runs, and the dashboard over it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.types import ASGIApp as App

from tests.dashboard.internals import RunsSource, make_app

from .made_runs import HOSTILE, make_run


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs; nobody may change them."""
    root = tmp_path_factory.mktemp("runs")
    make_run(root, "first", reward=0.5, steps=5)
    make_run(root, "second", reward=0.8, steps=7, algorithm="VERL", seed=2)
    make_run(root, "broken", steps=2, error='Traceback (most recent call last):\n  File "x"\nValueError: no tasks')
    make_run(root, HOSTILE, steps=2, agent=HOSTILE, metric=HOSTILE)
    return root


@pytest.fixture
async def source(runs_folder: Path) -> AsyncIterator[RunsSource]:
    made = RunsSource(runs_folder)
    yield made
    await made.close()


@pytest.fixture
def app(source: RunsSource) -> App:
    """Open to everybody, as with `--no-token`."""
    return make_app(source, view_token=None, edit_token=None)
