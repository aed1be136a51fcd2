"""A run on a cluster that goes on until it is ended: `python long_run.py FOLDER ADDRESS PLACE`."""

import asyncio
import os
import sys
from pathlib import Path

import ray
from tests.execution.bundles import RETRY, Work
from tests.execution.internals import ServedByProcess

from sharpen import setup_logging
from sharpen.execution import RayExecutionStrategy
from sharpen.store import SQLiteStore

FOLDER, ADDRESS, PLACE = Path(sys.argv[1]), sys.argv[2], sys.argv[3]


class Algorithm:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def __call__(self, store, event):
        for _ in range(2):
            await store.enqueue_rollout({"sleep": 600}, config=RETRY)
        try:
            (self.folder / "enqueued-all").touch()
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            (self.folder / "algorithm-cancelled").touch()
            raise


class Noted(ServedByProcess):
    """Leaves for the test what must be in no log."""

    async def open(self, on_end):
        tokens = [self.address.token, os.environ["SHARPEN_GATEWAY_TOKEN"]]
        (FOLDER / "tokens").write_text("\n".join(tokens))
        (FOLDER / "url").write_text(self.url)
        (FOLDER / "session").write_text(ray._private.worker.global_worker.node.get_session_dir_path())
        await super().open(on_end)


setup_logging("debug")
if ADDRESS == "local":
    from tests.execution.internals import serving

    serving.ServedByProcess = Noted
store = SQLiteStore(FOLDER / "store.db")
strategy = RayExecutionStrategy(
    address=ADDRESS,
    algorithm=PLACE,
    runner_resources={"CPU": 0.1},
    runtime_env={"py_modules": []},
    graceful_timeout=1.0,
    terminate_timeout=3.0,
)
try:
    strategy.execute(Algorithm(FOLDER), Work(folder=FOLDER), store)
except KeyboardInterrupt:
    print("interrupted")
finally:
    asyncio.run(store.close())
    print("closed", flush=True)
