"""The dashboard at the address of a store."""

import subprocess
import sys
from pathlib import Path

from sharpen.dashboard import dashboard_app
from sharpen.store import InMemoryLightningStore
from tests.store.internals import StoreApp

from .asgi_client import ask

TOKEN = "token-of-the-store"

LAZY = """
import sys
import sharpen.dashboard
assert "starlette" not in sys.modules and "jinja2" not in sys.modules
sys.modules["jinja2"] = None
import asyncio
from sharpen.store import InMemoryLightningStore
said = []
async def send(message): said.append(message)
async def ask():
    app = sharpen.dashboard.dashboard_app(InMemoryLightningStore(), name="x")
    await app({"type": "http", "method": "GET", "path": "/", "headers": []}, None, send)
asyncio.run(ask())
print(said[0]["status"], said[1]["body"].decode())
"""


AWAY_FROM_THE_LOOP = """
import asyncio, sys, threading
import sharpen.dashboard
from sharpen.store import InMemoryLightningStore
threads = {}
class Watch:
    def find_spec(self, name, path=None, target=None):
        threads[name] = threading.current_thread()
sys.meta_path.insert(0, Watch())
said = []
async def send(message): said.append(message)
async def ask():
    app = sharpen.dashboard.dashboard_app(InMemoryLightningStore(), name="x")
    scope = {"type": "http", "method": "GET", "path": "/static/none", "query_string": b"", "headers": []}
    await asyncio.gather(*[app(dict(scope), None, send) for _ in range(2)])
asyncio.run(ask())
heavy = [name for name in threads if name.partition(".")[0] in ("starlette", "jinja2")]
assert heavy
assert [name for name in heavy if threads[name] is threading.main_thread()] == []
print([message["status"] for message in said if "status" in message])
"""


def test_the_first_request_imports_it_away_from_the_loop() -> None:
    done = subprocess.run([sys.executable, "-c", AWAY_FROM_THE_LOOP], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[404, 404]\n"), done.stderr


async def test_it_stands_under_the_prefix_of_the_store(runs_folder: Path) -> None:
    mounted = dashboard_app(
        InMemoryLightningStore(), name="first", run_path=str(runs_folder / "first"), edit_token=TOKEN
    )
    app = StoreApp(InMemoryLightningStore(), token=TOKEN, mounts=[("/dashboard", mounted)])
    assert (await ask(app, f"/dashboard?token={TOKEN}")).header("location") == f"/dashboard/?token={TOKEN}"
    assert (await ask(app, "/dashboard/")).status == 401
    answer = await ask(app, f"/dashboard/?token={TOKEN}", headers={"sec-fetch-site": "none"})
    assert answer.header("location") == "/dashboard/"
    assert "; Path=/dashboard/; HttpOnly" in (answer.header("set-cookie") or "")
    cookie = {"cookie": answer.cookie}
    place = (await ask(app, "/dashboard/", headers=cookie)).header("location")
    assert place == "/dashboard/runs/first"
    page = await ask(app, place, headers=cookie)
    assert page.status == 200
    assert 'href="/dashboard/static/app.css"' in page.text
    assert (await ask(app, "/dashboard/static/app.css")).status == 200


async def test_a_token_for_the_pages_does_not_open_the_store(runs_folder: Path) -> None:
    mounted = dashboard_app(InMemoryLightningStore(), name="first", edit_token=TOKEN)
    app = StoreApp(InMemoryLightningStore(), token=TOKEN, mounts=[("/dashboard", mounted)])
    cookie = (await ask(app, f"/dashboard/?token={TOKEN}")).cookie
    assert (await ask(app, "/v1/statistics", headers={"cookie": cookie})).status == 401


async def test_a_foreign_page_is_refused(runs_folder: Path) -> None:
    mounted = dashboard_app(InMemoryLightningStore(), name="first")
    app = StoreApp(InMemoryLightningStore(), mounts=[("/dashboard", mounted)])
    assert (await ask(app, "/dashboard/", headers={"origin": "http://evil.example"})).status == 403


def test_nothing_heavy_is_imported_before_the_first_request_and_a_missing_package_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("501 ")
    assert "pip install 'sharpen[dashboard]'" in done.stdout
