"""Starts the children of the tests."""

import os
from typing import Any

from tests.execution.processes import REPOSITORY
from tests.process.internals import CommandProcess, PythonProcess


def child(behaviour: str, *arguments: object, **options: Any) -> PythonProcess:
    before = os.environ.get("PYTHONPATH")
    path = f"{REPOSITORY}{os.pathsep}{before}" if before else str(REPOSITORY)
    return PythonProcess(
        "tests.process.programs.children",
        behaviour,
        *map(str, arguments),
        name=behaviour,
        env={**os.environ, "PYTHONPATH": path},
        **options,
    )


def command(*words: object, **options: Any) -> CommandProcess:
    return CommandProcess([str(word) for word in words], **options)
