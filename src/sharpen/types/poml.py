"""Renders POML, whose expressions are JavaScript, in a process that may read nothing and start nothing.

The `poml` package carries its own Node.js. Its permission model keeps the template away from files and other
programs; the environment of the process holds no secret.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import InvalidInputError, MissingExtraError

RENDER_TIMEOUT_SECONDS = 60
# Node.js prints the failing line of source first, then the error at the start of a line of its own.
_ERROR_LINE = re.compile(r"\[?\w*(Error|Exception): ")


def render_poml(template: str, values: dict[str, Any]) -> str:
    """The text of the template with these values."""
    package = find_spec("poml")
    if package is None or package.origin is None:
        raise MissingExtraError.of("poml", extra="prompts", feature='PromptTemplate with engine="poml"')
    try:
        context = json.dumps(values)
    except TypeError as error:
        raise InvalidInputError(f"a value cannot be given to a POML template, which takes JSON: {error}") from error
    root = Path(package.origin).resolve().parent
    with tempfile.TemporaryDirectory(prefix="sharpen-poml-") as folder:
        work = Path(folder).resolve()
        (work / "template.poml").write_text(template, encoding="utf-8")
        (work / "values.json").write_text(context, encoding="utf-8")
        permissions = f"--permission --allow-addons --allow-fs-read={root}/ --allow-fs-read={work}/"
        command = [sys.executable, "-m", "poml", "-f", "template.poml", "--context-file", "values.json"]
        done = subprocess.run(
            [*command, "--chat", "false"],
            cwd=work,
            env={"PATH": os.environ.get("PATH", ""), "NODE_OPTIONS": permissions, "NODE_NO_WARNINGS": "1"},
            capture_output=True,
            text=True,
            timeout=RENDER_TIMEOUT_SECONDS,
            check=False,
        )
    if done.returncode != 0:
        reason = next(filter(_ERROR_LINE.match, done.stderr.splitlines()), "no reason given")
        raise InvalidInputError(f"the POML template cannot be rendered (it may not read files): {reason}")
    text = json.loads(done.stdout)["messages"]
    return text if isinstance(text, str) else json.dumps(text)
