"""The name under which the store knows a worker."""

import os
import secrets
import socket
from functools import lru_cache


def worker_name(worker_id: int) -> str:
    """Unique for each worker of each process, so that nobody keeps the attempts of a dead one alive."""
    return f"{_process_name(os.getpid())}-{worker_id}"


@lru_cache(maxsize=1)
def _process_name(pid: int) -> str:
    # The number of a process comes back, after a restart of a container at once: the random part does not.
    return f"{socket.gethostname()}-{pid}-{secrets.token_hex(3)}"
