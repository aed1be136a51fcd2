"""The log of Sharpen: its levels, its format and its files.

Importing Sharpen configures nothing; `setup_logging` does, and the Trainer calls it if the user has not. Handlers are
added only to the logger `sharpen`; the root logger belongs to the user's program. Several processes can share one file:
lines are appended whole, and name the role and the process that wrote them.
"""

import contextlib
import logging
import os
import pkgutil
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO, TypedDict

from .checks import did_you_mean, is_int
from .errors import ConfigError
from .files import is_disk_full, open_private
from .secrets import hide_known, known_secrets, remember_secrets

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
VARIABLE = "SHARPEN_LOG"
_PACKAGE = __name__.partition(".")[0]
_lock = threading.Lock()
_ATTEMPT_ID = re.compile(r"(at-[0-9a-f]{12})[0-9a-f]{16,}")  # the rest is the agent's access to the gateway

Level = str | int


class LogSettings(TypedDict):
    """The settings of the log, in a form that can be sent to a child process as JSON."""

    is_set_up: bool
    level: int
    levels: dict[str, int]
    files: list[str]
    hidden: dict[str, str]
    """Secrets, and the text that replaces each."""


def setup_logging(
    level: Level | None = None,
    *,
    levels: Mapping[str, Level] | None = None,
    file: str | os.PathLike[str] | None = None,
    stream: TextIO | None = None,
) -> None:
    """Show the log, and append it to a file. Calling it again replaces the previous settings.

    Args:
        level: The lowest level to show, such as `"debug"` or `logging.WARNING`. If neither `level` nor `levels` is
            given, the variable `SHARPEN_LOG` is read (`debug`, or `info,store=debug,runner=warning`); the default is
            `info`.
        levels: Levels of single modules: `{"store": "debug"}`.
        file: A file to append the log to.
        stream: Where to show the log; standard error if not given.
    """
    if level is None and levels is None:
        base, rooms = _parse_variable(os.environ.get(VARIABLE, ""))
    else:
        base = LEVELS["info"] if level is None else _level(level)
        rooms = {_room(name): _level(each) for name, each in (levels or {}).items()}
    path = None if file is None else _checked_file(file)
    _install(base, rooms, [] if path is None else [path], stream, role=None)


def configure_logger(level: int = logging.INFO, name: str = _PACKAGE) -> logging.Logger:
    """Set up a logger by its name. Deprecated: use `setup_logging`, which also covers the processes of a run."""
    warnings.warn("configure_logger is deprecated: use setup_logging", DeprecationWarning, stacklevel=2)
    logger = logging.getLogger(name)
    if name == _PACKAGE or name.startswith(f"{_PACKAGE}."):
        setup_logging(level)
        return logger
    logger.setLevel(level)
    if not logger.handlers:
        logger.addHandler(_Screen(None, None))
        logger.propagate = False  # the root logger would show every line again
    return logger


def is_set_up() -> bool:
    """Whether the log was set up."""
    return any(isinstance(handler, _Screen) for handler in _package_logger().handlers)


def current_settings() -> LogSettings:
    """Return the settings of this process, for its children."""
    logger = _package_logger()
    rooms = {name.partition(".")[2]: each.level for name, each in _room_loggers() if each.level}
    files = [handler.baseFilename for handler in logger.handlers if isinstance(handler, _File)]
    return {"is_set_up": is_set_up(), "level": logger.level, "levels": rooms, "files": files, "hidden": known_secrets()}


def apply_settings(settings: LogSettings, *, role: str | None = None) -> None:
    """Log in this process as its parent does; every line has the `role` and the process id."""
    remember_secrets(settings["hidden"])
    if settings["is_set_up"]:
        files = [Path(path) for path in settings["files"]]
        _install(settings["level"], settings["levels"], files, None, role=f"{role or 'child'} {os.getpid()}")


@contextmanager
def also_to_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Append the log to one more file during the block."""
    logger, handler = _package_logger(), _ExtraFile(_checked_file(path), role=None)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


# Control characters (except tab and line end), their 8-bit forms, changes of the text direction, line separators and
# lone surrogates.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """Return the text with control characters made visible, so that it cannot control a terminal; tabs and line ends
    are kept."""
    return UNSAFE.sub(lambda found: _visible(ord(found[0])), text.replace("\r\n", "\n"))


def _visible(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


# -- handlers ----------------------------------------------------------------------------------------


class _Format(logging.Formatter):
    """One line: time, level, role and process (in a child process), module, message.

    The message may come from an agent: further lines are indented, so that none looks like the start of an entry.
    """

    default_msec_format = "%s.%03d"

    def __init__(self, role: str | None) -> None:
        who = f"[{role}] " if role else ""
        super().__init__(f"%(asctime)s %(levelname)-7s {who.replace('%', '%%')}%(room)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.room = record.name.removeprefix(f"{_PACKAGE}.")
        return _ATTEMPT_ID.sub(r"\1...", plain(hide_known(super().format(record)))).replace("\n", "\n    ")


class _Screen(logging.StreamHandler[TextIO]):
    """Writes to whatever standard error is at that moment, since a live progress line replaces it."""

    def __init__(self, stream: TextIO | None, role: str | None) -> None:
        super().__init__(stream)
        self._given = stream
        self.setFormatter(_Format(role))

    def emit(self, record: logging.LogRecord) -> None:
        if self._given is None:
            if _root_shows():
                return  # a handler of the user's program shows this line already
            self.stream = sys.stderr
        super().emit(record)


class _File(logging.FileHandler):
    """A file that several processes append to. It is created with its first line."""

    def __init__(self, path: Path, role: str | None) -> None:
        super().__init__(path, mode="a", encoding="utf-8", delay=True)
        self.setFormatter(_Format(role))
        self._is_full = False

    def emit(self, record: logging.LogRecord) -> None:
        was_full, self._is_full = self._is_full, False
        super().emit(record)  # which calls `handleError`
        if self._is_full and not was_full:
            self._report(f"{self.baseFilename}: the disk is full; log lines are skipped until there is space")

    def handleError(self, record: logging.LogRecord) -> None:
        """Do not print a traceback for every line if the disk is full."""
        if not is_disk_full(sys.exception()):
            super().handleError(record)
            return
        self._is_full = True
        stream, self.stream = self.stream, None  # it is opened again for the next line
        if stream is not None:
            with contextlib.suppress(OSError):  # what could not be written is skipped
                stream.close()

    def close(self) -> None:
        try:
            super().close()
        except OSError as error:
            if not is_disk_full(error):
                raise

    @staticmethod
    def _report(text: str) -> None:
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"{text}\n")


class _ExtraFile(_File):
    """The file of `also_to_file`, which `setup_logging` does not replace."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=open_private)  # type: ignore[return-value]


def _root_shows() -> bool:
    screens = [each for each in (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__) if each is not None]
    return any(getattr(handler, "stream", None) in screens for handler in logging.getLogger().handlers)


def _is_replaced(handler: logging.Handler) -> bool:
    return isinstance(handler, _Screen | _File) and not isinstance(handler, _ExtraFile)


def _install(
    level: int, rooms: Mapping[str, int], files: Iterable[Path], stream: TextIO | None, *, role: str | None
) -> None:
    with _lock:
        logger = _package_logger()
        for handler in filter(_is_replaced, list(logger.handlers)):
            logger.removeHandler(handler)
            handler.close()
        for _, room_logger in _room_loggers():
            room_logger.setLevel(logging.NOTSET)
        logger.setLevel(level)
        for name, room_level in rooms.items():
            logging.getLogger(f"{_PACKAGE}.{name}").setLevel(room_level)
        logger.addHandler(_Screen(stream, role))
        for path in files:
            logger.addHandler(_File(path, role))


def _package_logger() -> logging.Logger:
    return logging.getLogger(_PACKAGE)


def _room_loggers() -> list[tuple[str, logging.Logger]]:
    known = list(logging.Logger.manager.loggerDict.items())
    prefix = f"{_PACKAGE}."
    return [(name, each) for name, each in known if name.startswith(prefix) and isinstance(each, logging.Logger)]


# -- settings by users ------------------------------------------------------------------------------


def _parse_variable(text: str) -> tuple[int, dict[str, int]]:
    base, rooms = LEVELS["info"], dict[str, int]()
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, is_room, value = part.partition("=")
        try:
            if is_room:
                rooms[_room(name.strip())] = _level(value.strip())
            else:
                base = _level(name)
        except ConfigError as error:
            raise ConfigError(f"{VARIABLE} is {text!r}: {error}") from None
    return base, rooms


def _level(value: Level) -> int:
    if is_int(value) and value >= 0:
        return value
    if isinstance(value, str) and value.lower() in LEVELS:
        return LEVELS[value.lower()]
    hint = did_you_mean(str(value), LEVELS)
    raise ConfigError(f"the log level {value!r} is unknown; use {', '.join(LEVELS)}, or a number.{hint}")


def _room(name: str) -> str:
    """Return the name of a module below the package: `store`, `store.client`."""
    short = name.removeprefix(f"{_PACKAGE}.") if isinstance(name, str) else ""
    rooms = {module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])}
    if short.partition(".")[0] in rooms:
        return short
    known = sorted(room for room in rooms if not room.startswith("_"))
    hint = did_you_mean(str(name), known)
    raise ConfigError(f"sharpen has no module {name!r} to set a log level for; use one of {', '.join(known)}.{hint}")


def _checked_file(file: str | os.PathLike[str]) -> Path:
    path = Path(file).absolute()
    if path.is_dir() or not path.parent.is_dir():
        reason = "it is a folder" if path.is_dir() else f"there is no folder {str(path.parent)!r}"
        raise ConfigError(f"the log cannot be written to {str(file)!r}: {reason}")
    return path
