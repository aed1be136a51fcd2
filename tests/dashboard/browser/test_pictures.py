"""Pictures of the pages, as the documentation shows them.

    SHARPEN_SCREENSHOTS=docs/images pytest -m browser tests/dashboard/browser/test_pictures.py

writes them there; otherwise they go to a temporary folder. `SHARPEN_SCREENSHOTS_RUN` may name the folder of a run of
`make demo`, which is then shown for the training of a model.
"""

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.internals import RunsSource

from .conftest import served
from .kept_rollouts import ids
from .test_every_page import REFUND
from .watching import settled, watched

pytestmark = pytest.mark.browser
MOST_BYTES = 200_000
SHOWN = ("help-desk", "help-desk-plain", "dates", "room")
MODEL = "calculator"
PICTURES = {
    "dashboard-runs": ("/", 560),
    "dashboard-run": (f"/runs/{MODEL}", 900),
    "dashboard-rollouts": ("/runs/help-desk/rollouts", 760),
    "dashboard-rollout": ("/runs/help-desk/rollouts/{refund}", 1180),
    "dashboard-compare": ("/compare?run=help-desk&run=help-desk-plain", 1040),
    "dashboard-prompts": ("/runs/dates/prompts", 860),
    "dashboard-group": (f"/runs/{MODEL}/rollouts/{{member}}/group", 600),
    "dashboard-episodes": ("/runs/room/episodes", 720),
    "dashboard-dark": (f"/runs/{MODEL}", 900),
    "dashboard-phone": ("/runs/help-desk/rollouts/{refund}", 844),
}


@pytest.fixture(scope="module")
def shown(made_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs that are shown, and no others."""
    root = tmp_path_factory.mktemp("shown")
    for name in SHOWN:
        (root / name).symlink_to(made_runs / name)
    demo = os.environ.get("SHARPEN_SCREENSHOTS_RUN")
    (root / MODEL).symlink_to(Path(demo).absolute() if demo else made_runs / "tokens")
    return root


@pytest.fixture(scope="module")
def address(shown: Path) -> Iterator[str]:
    with served(RunsSource(shown)) as url:
        yield url


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_taken(name: str, browser: Browser, address: str, shown: Path, tmp_path: Path) -> None:
    path, height = PICTURES[name]
    size = {"width": 390 if name.endswith("phone") else 1360, "height": height}
    context = browser.new_context(
        viewport=size,  # type: ignore[arg-type]
        color_scheme="dark" if name.endswith("dark") else "light",
        reduced_motion="reduce",
    )
    page = context.new_page()
    with watched(page):
        chosen = {"refund": ids(shown, "help-desk", REFUND)[0], "member": _member(shown)}
        page.goto(address + path.format(**chosen))
        _prepare(page, name)
        data = _small(page.screenshot(animations="disabled"))
    context.close()
    assert 5_000 < len(data) < MOST_BYTES
    assert Image.open(io.BytesIO(data)).size == (size["width"], height)
    folder = os.environ.get("SHARPEN_SCREENSHOTS")
    (Path(folder) if folder else tmp_path).joinpath(f"{name}.png").write_bytes(data)


def _member(shown: Path) -> str:
    """One of a group whose rewards differ."""
    mixed = (
        "mode = 'train' AND json_extract(metadata, '$.group') IN (SELECT json_extract(metadata, '$.group') FROM "
        "rollouts WHERE mode = 'train' GROUP BY 1 HAVING max(reward) > min(reward))"
    )
    return (ids(shown, MODEL, mixed) or ids(shown, MODEL, "mode = 'train'"))[0]


def _prepare(page: Page, name: str) -> None:
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    settled(page)
    if name == "dashboard-rollout":
        page.locator(".bar", has_text="refund_order").first.click()
        expect(page.locator("#span-detail .span-card")).to_be_visible()
        page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    if name == "dashboard-compare":
        expect(page.locator("#numbers table").first).to_be_visible()
    if "canvas" in page.content():
        expect(page.locator("figure.chart canvas").first).to_be_visible()


def _small(data: bytes) -> bytes:
    """With a palette: pages have few colours."""
    saved = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        saved, "PNG", optimize=True
    )
    return saved.getvalue()
