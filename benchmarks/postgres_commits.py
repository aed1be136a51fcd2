"""Commits a second of a PostgreSQL server by itself: how they share syncs, and what NOTIFY does to that.

    python benchmarks/postgres_commits.py

Each transaction inserts one row of 1 kB. PostgreSQL lets transactions that notify commit one after another, each with a
sync of its own, since listeners hear in the order of commits. The store therefore notifies in a transaction of its own
right after the commit: that one has nothing to sync.
"""

import json
import threading
import time
from typing import Any

import psycopg
from databases import postgres

INSERT = "INSERT INTO commits (body) VALUES (repeat('x', 1000))"
NOTIFY = "SELECT pg_notify('commits', '1')"
TOGETHER = f"WITH kept AS ({INSERT} RETURNING 1) {NOTIFY} FROM kept"


def commits_per_second(url: str, connections: int, statements: list[str], seconds: float) -> float:
    """One thread a connection; waiting for the server is done without the interpreter's lock."""
    done, end = [0] * connections, time.perf_counter() + seconds

    def work(number: int) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while time.perf_counter() < end:
                for statement in statements:
                    connection.execute(statement.encode(), prepare=True)
                done[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return round(sum(done) / seconds, 1)


def measure(url: str, seconds: float = 1.0) -> dict[str, Any]:
    """With one connection, with eight, and with eight that notify a listener, within the transaction or after it."""
    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute("CREATE TABLE IF NOT EXISTS commits (body text)")
        listener.execute("LISTEN commits")
        figures = {
            "1 connection": commits_per_second(url, 1, [INSERT], seconds),
            "8 connections": commits_per_second(url, 8, [INSERT], seconds),
            "8 connections, NOTIFY within": commits_per_second(url, 8, [TOGETHER], seconds),
            "8 connections, NOTIFY after": commits_per_second(url, 8, [INSERT, NOTIFY], seconds),
        }
        listener.execute("DROP TABLE commits")
    return {"measure": "postgres: commits by themselves", "unit": "commits/s"} | figures


if __name__ == "__main__":
    with postgres() as database:
        print(json.dumps(measure(database.url)))
