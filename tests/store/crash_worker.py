"""A process that uses a store until it is killed or told to stop, and notes what was acknowledged to it.

`python crash_worker.py ROLE URL ACKS STOP NAME SEED`: ROLE is `work` (claim, send spans, complete) or `produce`
(publish resources, enqueue, wait for completions). URL is that of a store server, or `database`: then the store is
opened right in the database of SHARPEN_DATABASE_URL, which may carry a password. Every acknowledged write is a line in
the file ACKS, synced before the next step. Where the file STOP exists, it ends in order as soon as there is nothing
left to do.
"""

import asyncio
import json
import os
import random
import sys
from pathlib import Path

from sharpen.errors import StoreUnavailableError
from sharpen.semconv import PRIMARY_REWARD_VALUE
from sharpen.store import LightningStore, LightningStoreClient
from sharpen.store.opening import DATABASE_VARIABLE, open_url
from sharpen.types import AttemptedRollout, EnqueueRolloutRequest, PromptTemplate, RolloutConfig, Span

CONFIG = RolloutConfig(unresponsive_seconds=1.0, max_attempts=10_000, retry_condition=["unresponsive"])
IN_FLIGHT = 30  # the producer keeps about so many rollouts unfinished


class Acks:
    """What was acknowledged, one JSON line each; a line that a kill cut short does not count."""

    def __init__(self, path: Path) -> None:
        self.known = read_acks(path)
        self._file = path.open("ab", buffering=0)
        self._file.write(b"\n")  # ends the line that a kill may have cut short

    def note(self, what: str, **fact: object) -> None:
        self._file.write(json.dumps({"what": what, **fact}).encode() + b"\n")
        os.fsync(self._file.fileno())


def read_acks(path: Path) -> list[dict[str, object]]:
    if not path.exists():
        return []
    found = []
    for line in path.read_bytes().split(b"\n"):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def is_over(stop: Path) -> bool:
    return stop.exists()


def is_stored(client: LightningStore) -> bool:
    """Whether what was acknowledged last is in the store by now, and not only in the spool."""
    return not isinstance(client, LightningStoreClient) or client.spooled == 0


async def work(client: LightningStore, acks: Acks, stop: Path, name: str) -> None:
    while True:
        claimed = await client.dequeue_rollout(worker_id=name, wait_seconds=1.0)
        if claimed is not None:
            await run(client, acks, claimed)
        elif is_over(stop) and is_stored(client):
            return


async def run(client: LightningStore, acks: Acks, claimed: AttemptedRollout) -> None:
    ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
    assert claimed.resources_id is not None
    await client.get_resources_by_id(claimed.resources_id, claimed.resources_version)
    for _ in range(2):
        spans = [Span.from_attributes(attributes={"text": "x" * 200}, **ids) for _ in range(2)]
        await client.add_many_spans(spans)
        acks.note("spans", **ids, spans=[span.span_id for span in spans], stored=is_stored(client))
        await asyncio.sleep(random.uniform(0, 0.01))  # the agent thinks
    reward = random.random()
    last = Span.from_attributes(attributes={PRIMARY_REWARD_VALUE: reward}, **ids)
    attempt = await client.complete_attempt(**ids, spans=[last])
    stored = is_stored(client)
    acks.note("spans", **ids, spans=[last.span_id], stored=stored)
    # An answer from the store has the attempt's number; one from the spool does not know it.
    status = attempt.status if attempt.sequence_id else "unknown"
    acks.note("completion", **ids, status=status, reward=reward, stored=stored)


async def produce(client: LightningStore, acks: Acks, stop: Path, name: str) -> None:
    """Goes on where the last producer was killed: what it was not told of is sent again, under the same ids."""
    enqueued = sum(len(ack["ids"]) for ack in acks.known if ack["what"] == "enqueue")  # type: ignore[arg-type, misc]
    version = max((ack["version"] for ack in acks.known if ack["what"] == "resources"), default=0)  # type: ignore[type-var]
    cursor = finished = 0
    while not is_over(stop):
        resources = {"prompt": PromptTemplate(f"version {version + 1}", "f-string")}
        if version == 0:
            update = await client.add_resources(resources, resources_id="rs-crash")
        else:
            update = await client.update_resources("rs-crash", resources, request_id=f"rq-{version}")
        version = update.version
        acks.note("resources", version=version, template=resources["prompt"].template)
        ids = [f"ro-{number:06d}" for number in range(enqueued, enqueued + 5)]
        requests = [EnqueueRolloutRequest({"id": each}, config=CONFIG, rollout_id=each) for each in ids]
        await client.enqueue_many_rollouts(requests)
        enqueued += len(ids)
        acks.note("enqueue", ids=ids)
        while enqueued - finished > IN_FLIGHT and not is_over(stop):
            page = await client.finished_rollouts(after=cursor, wait_seconds=1.0)
            cursor, finished = page.cursor, finished + len(page.items)


async def open_database() -> LightningStore:
    """The database may be away just now; whoever starts workers would start this one again."""
    while True:
        try:
            return open_url(os.environ[DATABASE_VARIABLE])
        except StoreUnavailableError:
            await asyncio.sleep(0.05)


async def main(role: str, url: str, acks: str, stop: str, name: str, seed: str) -> None:
    random.seed(seed)
    if url == "database":
        client = await open_database()
    else:
        client = LightningStoreClient(url, retry_seconds=120, spool_after_seconds=0.3)
    await {"work": work, "produce": produce}[role](client, Acks(Path(acks)), Path(stop), name)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
