"""Where fixtures lie: for each version a folder of packed files, each with what that version said about it."""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures"
VERSIONS = sorted(path.name for path in FIXTURES.iterdir()) if FIXTURES.exists() else []


class Packed:
    """The fixtures of one version."""

    def __init__(self, version: str) -> None:
        self.folder = FIXTURES / version

    def unpack(self, name: str, target: Path) -> Path:
        """A copy of the fixture `name` in `target / name`."""
        with tarfile.open(self.folder / f"{name}.tar.gz") as archive:
            archive.extractall(target, filter="tar")
        return target / name

    def recorded(self, name: str) -> Any:
        """What the version that wrote the fixture read from it, or came to when it continued."""
        return json.loads(self.text(f"{name}.json"))

    def text(self, name: str) -> str:
        return gzip.decompress((self.folder / f"{name}.gz").read_bytes()).decode()

    def pack(self, name: str, source: Path) -> None:
        """Write a folder as the fixture `name`; equal folders give equal bytes."""
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            archive.add(source, name, filter=_anonymous)
        self._write(f"{name}.tar", content.getvalue())

    def record(self, name: str, value: Any) -> None:
        self.write_text(f"{name}.json", json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False))

    def write_text(self, name: str, text: str) -> None:
        self._write(name, text.encode())

    def _write(self, name: str, content: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry
