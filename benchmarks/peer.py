"""The peer in an environment of its own, and measures that take turns with it."""

import json
import os
import statistics
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEER_PACKAGES = ["agentlightning==0.3.0", "litellm<1.81", "opentelemetry-sdk<1.40"]


def peer_python(folder: Path) -> str:
    """The peer, pinned to packages that it still works with."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PEER_PACKAGES], check=True)
    return str(python)


def measure(script: str, python: str, package: str, arguments: list[str]) -> dict[str, Any]:
    """The last line that a measure prints, as JSON."""
    command = [python, str(HERE / script), *arguments, "--package", package]
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1800, check=False)
    if done.returncode != 0:
        sys.exit(f"{package} {' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compared(
    title: str, ours: list[float], theirs: list[float], goal: float, *, less_is_better: bool
) -> dict[str, Any]:
    """One line of a comparison; the ratio is that of the medians."""
    line: dict[str, Any] = {"measure": title, "ours": statistics.median(ours), "ours_all": ours}
    if theirs:
        mine, other = statistics.median(ours), statistics.median(theirs)
        ratio = other / mine if less_is_better else mine / other
        line |= {"peer": other, "peer_all": theirs, "ratio": round(ratio, 1), "goal": goal, "reached": ratio >= goal}
    return line
