"""The page on PostgreSQL and Redis says what is true: its snippets run, against real servers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .servers import PostgresServer, RedisServer

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "database-stores.md"


@pytest.mark.servers
def test_the_snippets_of_the_page_run(postgres: PostgresServer, redis: RedisServer, tmp_path: Path) -> None:
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    program = "\n".join(blocks)
    for shown, real in (
        ("postgresql://sharpen:secret@localhost:5432/sharpen", postgres.url(postgres.new_schema())),
        ("redis://:secret@localhost:6379/0", redis.url()),
        ("my-project", redis.new_prefix()),
    ):
        assert shown in program
        program = program.replace(shown, real)
    done = subprocess.run(
        [sys.executable, "-"], input=program, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "a crash loses nothing" in done.stdout
    assert "0 rollouts deleted" in done.stdout
