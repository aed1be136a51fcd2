"""The command of an agent: what may stand in it, and whether it can be run here."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError


def check_command(command: Any) -> list[str]:
    """The command as texts."""
    if isinstance(command, str | bytes) or not isinstance(command, Sequence):
        raise ConfigError(
            f"command is {command!r}: use a list, such as ['python', 'agent.py']; for a shell command use "
            "['sh', '-c', '…']"
        )
    if not command:
        raise ConfigError("command is empty: pass the program and its arguments")
    return [_argument(number, each) for number, each in enumerate(command)]


def _argument(number: int, given: Any) -> str:
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text or (number == 0 and not text):
        raise ConfigError(f"command[{number}] is {given!r}: use a str")
    return text


def check_program(program: str, cwd: Path | None, environment: Mapping[str, str]) -> None:
    """Refuse a program that is not on this machine, before a rollout is spent on it."""
    if cwd is not None and not cwd.is_dir():
        raise ConfigError(f"cwd is {str(cwd)!r}, which is not a folder on this machine")
    if os.sep not in program:
        if shutil.which(program, path=environment.get("PATH", os.defpath)) is None:
            raise ConfigError(
                f"command[0] is {program!r}, which is not on this machine's PATH: install it, or use its full path"
            )
        return
    path = (cwd or Path()) / program
    if not path.is_file():
        raise ConfigError(
            f"command[0] is {program!r}, but the file {str(path.absolute())!r} does not exist: use the program's path"
        )
    if not os.access(path, os.X_OK):
        raise ConfigError(
            f"command[0] is {program!r}, which is not executable: run chmod +x on it, or put its interpreter first"
        )
