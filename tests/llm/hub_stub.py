"""A hub on loopback that speaks the protocol of the Hugging Face hub, for the real client libraries.

It serves folders as repositories: `/api/models/NAME`, `/api/datasets/NAME` (also below `revision/`, `tree/` and
`paths-info/`), and `NAME/resolve/REVISION/FILE`. Large files are answered as the hub does: with a redirect to another
address that has the bytes, and with their size and hash in `X-Linked-Size` and `X-Linked-ETag`.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".parquet")


class Repository:
    """One folder, at one commit."""

    def __init__(self, kind: str, name: str, folder: Path) -> None:
        self.kind, self.name = kind, name
        self.files = {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
        digest = hashlib.sha1(name.encode())
        for path in sorted(self.files):
            digest.update(path.encode() + self.files[path])
        self.commit = digest.hexdigest()

    @property
    def info(self) -> dict[str, Any]:
        return {
            "_id": self.commit[:24],
            "id": self.name,
            "modelId": self.name,
            "sha": self.commit,
            "private": False,
            "gated": False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "lastModified": "2026-01-01T00:00:00.000Z",
            "createdAt": "2026-01-01T00:00:00.000Z",
            "siblings": [{"rfilename": path} for path in sorted(self.files)],
        }

    def entries(self, paths: list[str]) -> list[dict[str, Any]]:
        """Files and folders with these paths."""
        found: list[dict[str, Any]] = []
        for path in paths:
            if path in self.files:
                found.append(self._entry(path))
            elif any(each.startswith(f"{path}/") for each in self.files):
                found.append(
                    {"type": "directory", "path": path, "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 0}
                )
        return found

    def tree(self, folder: str, *, is_recursive: bool) -> list[dict[str, Any]]:
        start = f"{folder}/" if folder else ""
        below = [path for path in sorted(self.files) if path.startswith(start)]
        if is_recursive:
            return self.entries(below)
        return self.entries(list(dict.fromkeys(start + path.removeprefix(start).split("/")[0] for path in below)))

    def _entry(self, path: str) -> dict[str, Any]:
        data = self.files[path]
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
        if path.endswith(LARGE):
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        return entry


class Hub(ThreadingHTTPServer):
    """`broken` names files whose bytes break off in the middle; `requests` is what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.broken: set[str] = set()
        self.held: set[str] = set()
        """Files of which half is sent, and the rest when `released` is set."""
        self.released = threading.Event()
        self.holding = threading.Event()
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, kind: str, name: str, folder: Path) -> Repository:
        repository = Repository(kind, name, folder)
        self.repositories[kind, name] = repository
        return repository

    def environment(self, home: Path) -> dict[str, str]:
        """What makes the client libraries use this hub, with an empty cache."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is none."""


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        hub.shutdown()
        thread.join()
        hub.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer()

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path).strip("/")
        self.server.requests.append(f"{self.command} /{path}")
        if path.startswith("bytes/"):
            return self._send_bytes(*path.removeprefix("bytes/").split("/", 3))
        pieces = path.split("/")
        if pieces[0] == "api":
            return self._send_info(pieces[1], "/".join(pieces[2:4]), pieces[4:], parts.query)
        kind = "datasets" if pieces[0] == "datasets" else "models"
        pieces = pieces[1:] if kind == "datasets" else pieces
        if len(pieces) > 4 and pieces[2] == "resolve":
            return self._resolve(kind, "/".join(pieces[:2]), "/".join(pieces[4:]))
        return self._send(404, {"error": "Not found"})

    def _send_info(self, kind: str, name: str, rest: list[str], query: str) -> None:
        repository = self.server.repositories.get((kind, name))
        if repository is None:
            return self._send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        if rest and rest[0] == "tree":
            is_recursive = "recursive=true" in query.lower()
            return self._send(200, repository.tree("/".join(rest[2:]), is_recursive=is_recursive))
        if rest and rest[0] == "paths-info":
            asked = json.loads(self._body) if self._body.startswith(b"{") else _form(self._body)
            paths = asked["paths"] if isinstance(asked["paths"], list) else [asked["paths"]]
            return self._send(200, repository.entries(paths))
        if rest and rest[0] not in ("revision",):
            return self._send(404, {"error": "Not found"})
        return self._send(200, repository.info)

    def _resolve(self, kind: str, name: str, path: str) -> None:
        repository = self.server.repositories.get((kind, name))
        if repository is None:
            return self._send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        headers = {"X-Repo-Commit": repository.commit}
        data = repository.files.get(path)
        if data is None:
            return self._send(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound", **headers})
        if not path.endswith(LARGE):
            return self._send_data(data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', **headers}, path)
        headers |= {
            "X-Linked-Size": str(len(data)),
            "X-Linked-ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            # Another host, as the bytes of the hub are on one: the client reads the headers of this answer.
            "Location": f"http://localhost:{self.server.server_port}/bytes/{kind}/{name}/{path}",
        }
        return self._send(302, None, headers)

    def _send_bytes(self, kind: str, owner: str, name: str, path: str) -> None:
        data = self.server.repositories[kind, f"{owner}/{name}"].files[path]
        self._send_data(data, {"ETag": f'"{hashlib.sha256(data).hexdigest()}"'}, path)

    def _send_data(self, data: bytes, headers: dict[str, str], path: str) -> None:
        first, status = 0, 200
        asked = self.headers.get("range", "")
        if asked.startswith("bytes="):
            start, _, end = asked.removeprefix("bytes=").partition("-")
            first, status = int(start or 0), 206
            headers = {**headers, "Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}
            data = data[first : int(end) + 1 if end else len(data)]
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data)), "Accept-Ranges": "bytes"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if path in self.server.broken | self.server.held:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            if path in self.server.held:
                self.server.holding.set()
                self.server.released.wait(60)
            self.close_connection = True
            return
        self.wfile.write(data)

    def _send(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _form(body: bytes) -> dict[str, Any]:
    from urllib.parse import parse_qs

    return dict(parse_qs(body.decode()))
