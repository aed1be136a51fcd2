"""What a browser notices while a page is looked at, and how a page is judged by its looks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page

SCRIPTS = Path(__file__).parent / "scripts"


class Watch:
    """Errors of scripts, what the policy refused, requests that failed or left, dialogs."""

    def __init__(self, page: Page) -> None:
        self.problems: list[str] = []
        self.allowed: list[str] = []
        """Parts of complaints that a test provokes."""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", self._request)
        page.on("response", self._response)
        page.on("requestfailed", self._failed)

    def _console(self, message: Any) -> None:
        # A request that a newer one replaces is no fault; one that fails is told by its answer as well.
        if message.text.startswith(("htmx:sendAbort", "htmx:afterRequest")):
            return
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text} {message.location.get('url', '')}")

    def _dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob", "about") and parts.hostname != "127.0.0.1":
            self.problems.append(f"foreign: {request.url}")
        if parts.path.rpartition("/")[2].startswith("evil."):
            self.problems.append(f"evil: {request.url}")

    def _response(self, response: Any) -> None:
        if response.status >= 400:
            self.problems.append(f"status {response.status}: {response.url}")

    def _failed(self, request: Any) -> None:
        # A page that is left ends its live events, and a download is no page.
        if "ERR_ABORTED" not in (request.failure or ""):
            self.problems.append(f"failed: {request.url} {request.failure}")

    @property
    def left(self) -> list[str]:
        return [each for each in self.problems if not any(part in each for part in self.allowed)]


@contextmanager
def watched(page: Page) -> Iterator[Watch]:
    """Nothing may go wrong in the block, but for what is allowed in it."""
    watch = Watch(page)
    yield watch
    assert watch.left == []


def too_wide(page: Page) -> int:
    """By how many pixels the page scrolls to the side."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def pale_texts(page: Page) -> dict[str, str]:
    """Texts with less contrast than people need, by their element."""
    found: dict[str, str] = page.evaluate((SCRIPTS / "contrasts.js").read_text())
    return found


def nameless(page: Page) -> list[str]:
    """What a screen reader could not tell."""
    found: list[str] = page.evaluate((SCRIPTS / "nameless.js").read_text())
    return found


def settled(page: Page) -> None:
    """Everything that the page asks for when it opens is there: curves are drawn and pieces filled."""
    page.wait_for_function(
        "() => !document.querySelector('.htmx-request') && [...document.querySelectorAll('[data-no-curves]')]"
        ".every((each) => each.hidden || !each.textContent.startsWith('Reading'))"
    )


def go_back(page: Page) -> None:
    """As the button of the browser does. What comes of it has to be waited for: the page is asked for again."""
    page.wait_for_load_state()  # a page that is still loading would change its address, but not what it shows
    page.evaluate("() => history.back()")


Serve = Callable[..., str]
