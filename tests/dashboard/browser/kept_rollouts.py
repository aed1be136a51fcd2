"""What the store of a made run holds, read beside the dashboard."""

import sqlite3
from contextlib import closing
from pathlib import Path


def ids(runs: Path, run: str, where: str = "1") -> list[str]:
    """The ids of rollouts, the oldest first."""
    with closing(sqlite3.connect(f"file:{runs / run / 'store.db'}?mode=ro", uri=True)) as connection:
        return [
            each for (each,) in connection.execute(f"SELECT rollout_id FROM rollouts WHERE {where} ORDER BY number")
        ]


def count(runs: Path, run: str, where: str = "1") -> int:
    return len(ids(runs, run, where))
