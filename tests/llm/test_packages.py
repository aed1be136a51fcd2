"""Without torch, whatever runs a model names the extra that brings it."""

import subprocess
import sys
from pathlib import Path

from tests.cli.projects import write

PROGRAM = """
import sys
sys.modules["torch"] = None  # as where it is not installed
from sharpen.cli import main
codes = [main(["serve", "./model"]), main(["eval", sys.argv[1], "--model", "./model"])]
sys.exit(codes != [1, 1])
"""


def test_commands_that_run_a_model_name_the_extra(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(write(tmp_path))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("needs the package 'torch': pip install 'sharpen[llm]'") == 2
    assert "not expected" not in ended.stderr
