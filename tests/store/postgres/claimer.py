"""A process that opens a store, and claims from it until the queue is empty once it is told to go on.

    python -m tests.store.postgres.claimer NAME

It reads the URL, which holds a password, and the word to go on from its input, and prints what it claimed.
"""

import asyncio
import subprocess
import sys

from sharpen.store import PostgresStore


async def main(name: str) -> None:
    store = PostgresStore(sys.stdin.readline().strip(), n_connections=2)
    print("store", store.store_id, flush=True)
    sys.stdin.readline()
    while claimed := await store.dequeue_rollout(worker_id=name):
        await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
        print("claimed", claimed.input, flush=True)
    await store.close()


class Claimer:
    """Such a process, seen from a test."""

    def __init__(self, url: str, name: str = "w") -> None:
        command = [sys.executable, "-m", "tests.store.postgres.claimer", name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None
        self.process.stdin.write(f"{url}\n")
        self.process.stdin.flush()

    async def opened(self) -> str:
        """The id of the store, once it is open."""
        assert self.process.stdout is not None
        return (await asyncio.to_thread(self.process.stdout.readline)).removeprefix("store ").strip()

    async def go(self) -> list[int]:
        """Let it claim; gives the tasks in the order of its claims."""
        output, _ = await asyncio.to_thread(self.process.communicate, "go\n")
        assert self.process.returncode == 0
        return [int(line.removeprefix("claimed ")) for line in output.splitlines()]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
