"""One role of a run whose roles are started apart: `SHARPEN_CURRENT_ROLE=... python role.py FOLDER COUNT`."""

import asyncio
import sys
from pathlib import Path

from tests.execution.bundles import Enqueue, Work

from sharpen.execution import ClientServerExecutionStrategy
from sharpen.store import InMemoryLightningStore, SQLiteStore

FOLDER, COUNT = Path(sys.argv[1]), int(sys.argv[2])
strategy = ClientServerExecutionStrategy(graceful_timeout=2.0)
store = SQLiteStore(FOLDER / "store.db") if strategy.role == "algorithm" else InMemoryLightningStore()
algorithm = Enqueue(*({"sleep": 0.01} for _ in range(COUNT)))
try:
    strategy.execute(algorithm, Work(folder=FOLDER), store)
except KeyboardInterrupt:
    print("interrupted")
asyncio.run(store.close())
print(*algorithm.statuses)
