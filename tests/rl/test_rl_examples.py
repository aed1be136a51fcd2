"""The programs in `examples/` about simulators do what their first lines say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def run(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_rl_cartpole(tmp_path: Path) -> None:
    last = run("rl_cartpole", tmp_path).splitlines()[-1]
    found = re.fullmatch(r"balanced for (\d+) steps after \d+ episodes", last)
    assert found is not None
    assert int(found[1]) >= 475


@pytest.mark.slow
def test_rl_order_execution(tmp_path: Path) -> None:
    lines = run("rl_order_execution", tmp_path).splitlines()
    found = {line.split()[0]: (float(line.split()[1]), float(line.split()[-1].rstrip(")"))) for line in lines[:3]}
    assert found["TWAP"] == (0.0, 0.0)
    mean, half = found["PPO"]
    assert mean - half > 0
    assert found["oracle"][0] > mean
    drawn = tmp_path / "order_execution.png"
    assert drawn.exists() == (lines[3] == "drawn to order_execution.png")
