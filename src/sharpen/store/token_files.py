"""How clients on the machine of a store server find its token.

The side that serves the store leaves it in a file that only its user can read; clients find it there. Between
machines the variable SHARPEN_TOKEN carries it.
"""

import contextlib
import fcntl
import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import ConfigError

log = logging.getLogger(__name__)
VARIABLE = "SHARPEN_TOKEN"
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "::": "::1"}


def given_token() -> str | None:
    """The token that the user has set."""
    return os.environ.get(VARIABLE, "").strip() or None


def token_file(host: str, port: int) -> Path:
    """Where the token of a server on this machine lies, whatever name its host is called by."""
    folder = state_folder() / "tokens"
    name = _LOOPBACK.get(host.strip("[]"), host.strip("[]"))
    return folder / f"{re.sub(r'[^A-Za-z0-9.]', '_', name)}-{port}"


def token_file_of(url: str) -> Path:
    """Where the token of the server at an address lies, if that is a server of this machine."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:  # what stands before the port may be a password
        raise ConfigError(f"the port in the address of the store server is not a number: {error}") from None
    return token_file(parts.hostname or "", port or (443 if parts.scheme == "https" else 80))


def token_at(host: str, port: int) -> str | None:
    """The token that the user has set, else the one that a server of this user left on this machine."""
    return given_token() or read_token(token_file(host, port))


def port_of(url: str) -> int:
    """The port in the address of a server."""
    return int(url.rpartition(":")[2])


def state_folder() -> Path:
    """Where this user keeps tokens and spools."""
    if state := os.environ.get("XDG_STATE_HOME"):
        return Path(state) / "sharpen"
    try:
        return Path.home() / ".local" / "state" / "sharpen"
    except RuntimeError:  # a user without a home, as in some containers
        return _folder_without_home()


def _folder_without_home() -> Path:
    return Path(tempfile.gettempdir()) / f"sharpen-{os.getuid()}"


def check_folder(path: Path) -> None:
    """Anybody may make a folder in a temporary directory: one that is not ours alone is not used."""
    folder = _folder_without_home()
    if folder not in path.parents:
        return
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{folder} is not a private folder of this user: remove it or set XDG_STATE_HOME")


def read_token(path: Path) -> str | None:
    try:
        check_folder(path)
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


@contextlib.contextmanager
def left_in_file(path: Path, token: str) -> Iterator[None]:
    """Leave the token for runners of this machine, as long as the run goes on. The file stays locked meanwhile, so that
    those that killed runs have left can be told from it; they are removed."""
    file = -1
    try:
        file = _write(path, token)
        _remove_leftovers(path.parent)
    except OSError as error:
        log.warning(
            "the token cannot be saved in %s (%s): set SHARPEN_TOKEN for the server and its clients", path, error
        )
    try:
        yield
    finally:
        if read_token(path) == token:  # not that of a later run
            path.unlink(missing_ok=True)
        if file >= 0:
            os.close(file)


def _write(path: Path, token: str) -> int:
    """Whole or not at all, and never readable by others. Returns the open file, which holds its lock."""
    path.parent.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.parent.mkdir(exist_ok=True, mode=0o700)
    check_folder(path)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    file = _open_locked(new)
    try:
        os.write(file, token.encode("ascii"))
        new.replace(path)
    except BaseException:
        os.close(file)
        raise
    return file


def _open_locked(path: Path) -> int:
    while True:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_nlink:
            return file
        os.close(file)  # before it was locked, another process took it for a leftover and removed it


def _remove_leftovers(folder: Path) -> None:
    """Remove the tokens that nobody holds locked: their servers were killed."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # it is in use, or has gone meanwhile
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file), os.lstat(path)):
                    path.unlink()
            finally:
                os.close(file)
