"""The program of a worker process: `python -m sharpen.rl.worker SOCKET [SHARED_MEMORY]`.

It builds its environments and answers one round after the other. It never runs the user's script. When its parent
ends, it is killed with everything that it has started, even in the middle of a step that never ends.
"""

import contextlib
import os
import pickle
import random
import select
import signal
import socket
import sys
import threading
import traceback
from typing import Any

import numpy as np

from sharpen.logging import apply_settings
from sharpen.rl.env_set import EnvSet, Rows, map_shared
from sharpen.rl.seed import Begin
from sharpen.rl.trees import map_tree
from sharpen.rl.worker_process import DONE, FAILED, OPEN, Job, Link, LinkClosed, Opening, Work, unpack


def main() -> None:
    files = [int(each) for each in sys.argv[1:]]
    link = Link(socket.socket(fileno=files[0]))
    try:
        _serve(link, files[1] if len(files) > 1 else None)
    except LinkClosed:
        pass  # the parent has closed the environment, or has ended
    except BaseException:  # noqa: BLE001 - it ends the worker, and is shown
        traceback.print_exc()
    _end()


def _serve(link: Link, shared: int | None) -> None:
    _, rest = link.receive()
    _die_with_parent(link.fileno())
    try:
        work = _prepare(pickle.loads(rest))
        rows, mask = _rows(work, shared), np.zeros(work.stop - work.start, np.uint8)
        envs = EnvSet(work.factories, rows, caught=(Exception, SystemExit))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the parent raises it
        link.send(FAILED, _packed(error, "the environment cannot be built"))
        return
    link.send(DONE)
    link.fix(sent=[] if shared else rows.outputs(), received=[mask] if shared else [mask, *rows.inputs()])
    try:
        _answer(link, envs, rows, mask, work.number)
    finally:
        envs.close()


def _answer(link: Link, envs: EnvSet, rows: Rows, mask: Any, number: int) -> None:
    while True:
        kind, rest = link.receive()
        try:
            if kind == OPEN:
                opening: Opening = pickle.loads(rest)
                _seed((*opening.entropy, number))
                envs.open(opening.settings)
                link.send(DONE)
                continue
            begins: list[Begin] = pickle.loads(rest) if rest else []
            slots = np.flatnonzero(mask).tolist()
            notes = envs.exchange(begins, slots, _actions(rows.action, slots))
            answer = pickle.dumps(notes, 5) if notes else b""
        except Exception as error:  # noqa: BLE001 - the parent raises it
            link.send(FAILED, _packed(error))
            continue
        link.send(DONE, answer)


def _actions(found: Any, slots: list[int]) -> list[Any]:
    """Return copies: a row is overwritten by the next round."""
    if isinstance(found, np.ndarray):
        return list(found[slots])
    return [map_tree(lambda array, slot=slot: array[slot].copy(), found) for slot in slots]


def _rows(work: Work, shared: int | None) -> Rows:
    if shared is None:
        return Rows.of(work.observation_space, work.action_space, work.stop - work.start)
    all_rows = Rows.of(work.observation_space, work.action_space, work.n)
    memory = map_shared(shared, all_rows.size_bytes())
    os.close(shared)
    return all_rows.in_memory(memory).part(work.start, work.stop)


def _prepare(job: Job) -> Work:
    """Make this process like its parent, then unpickle the environments."""
    sys.path[:] = job.path
    sys.argv[:] = job.arguments
    os.chdir(job.folder)
    for name in set(os.environ) - set(job.environment):
        if name != "OMP_NUM_THREADS":
            del os.environ[name]
    os.environ.update(job.environment)
    apply_settings(job.log, role="worker")
    return unpack(job.work)


def _packed(error: BaseException, context: str = "") -> bytes:
    cause = error.__cause__ or error
    trace = "".join(traceback.format_exception(cause))
    text = f"{context}: {type(error).__name__}: {error}" if context else str(error)
    try:
        packed = pickle.dumps(cause)
    except Exception:  # noqa: BLE001 - an error that cannot be pickled is in the traceback
        packed = b""
    return pickle.dumps((text, trace, packed))


def _seed(entropy: tuple[int, ...]) -> None:
    """Seed the global generators, for simulators that use them, differently in every worker."""
    numbers = np.random.SeedSequence(entropy).generate_state(3)
    random.seed(int(numbers[0]))
    np.random.seed(int(numbers[1]))
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(int(numbers[2]))


def _die_with_parent(number: int) -> None:
    threading.Thread(target=_watch, args=(number,), name="sharpen-parent", daemon=True).start()


def _watch(number: int) -> None:
    poll = select.poll()
    poll.register(number, getattr(select, "POLLRDHUP", select.POLLHUP))
    poll.poll()
    threading.Event().wait(2.0)  # a worker that ends by itself gets this long
    os.killpg(0, signal.SIGKILL)


def _end() -> None:
    """End immediately, with whatever threads and processes a simulator has left."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it
            stream.flush()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
