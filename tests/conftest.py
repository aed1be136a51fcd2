"""What every test shares."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says something about the machine, and nothing about the code.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")


@pytest.fixture(scope="session", autouse=True)
def private_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fixtures of modules and sessions keep their runs out of the clone too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARPEN_RUNS", str(tmp_path_factory.mktemp("session-runs")))
        yield


@pytest.fixture(autouse=True)
def private_folders(
    private_runs: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test writes to the user's own folders, nor runs to the clone's."""
    monkeypatch.setenv("SHARPEN_SPOOL", str(tmp_path_factory.mktemp("spool")))
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path_factory.mktemp("runs")))


APART = (
    "litellm",
    "tianshou",
    "triton",
)  # packages that are not beside ours: their tests have environments of their own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for package in APART:
        missing = find_spec(package) is None
        for item in items:
            if missing and item.get_closest_marker(package):
                item.add_marker(pytest.mark.skip(reason=f"{package} is not installed here: make test-{package}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Under CI nothing goes untested: a skip is a failure that names its reason."""
    report = yield
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.longrepr = f"{item.nodeid} was skipped, which CI does not allow: {reason}"
    return report


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parent.parent
