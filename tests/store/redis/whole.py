"""Whether everything in Redis fits together: what stands in indexes and totals follows from the rollouts."""

import json
from collections import Counter

import redis

from tests.store.internals import OPEN, PHASES

LATEST, DEADLINE = 12, 8


def check_whole(url: str, prefix: str) -> None:
    """Fail with the first thing that does not fit."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        _Check(client, f"{{{prefix}}}:").run()


class _Check:
    def __init__(self, client: "redis.Redis", root: str) -> None:
        self.client, self.root = client, root
        names = {key.removeprefix(f"{root}r:") for key in client.scan_iter(f"{root}r:*")}
        self.rows = {name: client.hgetall(f"{root}r:{name}") for name in names}
        self.states = {name: json.loads(row["s"]) for name, row in self.rows.items()}

    def run(self) -> None:
        self.numbers()
        self.phases()
        self.rewards_and_deadlines()
        self.workers()
        self.totals()
        self.bodies()

    def zset(self, name: str) -> dict[str, float]:
        return dict(self.client.zrange(self.root + name, 0, -1, withscores=True))

    def numbers(self) -> None:
        assert self.zset("numbers") == {name: int(row["n"]) for name, row in self.rows.items()}

    def phases(self) -> None:
        for phase in set(PHASES.values()):
            inside = {name for name, state in self.states.items() if PHASES[state[0]] == phase}
            found = self.zset(phase)
            assert found.keys() == inside, phase
            if phase not in ("queued", "active"):
                assert found == {name: int(self.rows[name]["f"]) for name in inside}, phase

    def rewards_and_deadlines(self) -> None:
        rewards = {f"{int(self.rows[name]['n']):015d}": state[7] for name, state in self.states.items()}
        assert self.zset("rewards") == {number: reward for number, reward in rewards.items() if reward is not None}
        latest = {name: state[LATEST] for name, state in self.states.items() if state[LATEST]}
        due = {name: attempt[DEADLINE] for name, attempt in latest.items() if attempt[DEADLINE] is not None}
        assert self.zset("deadlines") == due

    def tries(self, name: str) -> list[list]:
        old = json.loads(self.rows[name].get("a", "[]"))
        latest = self.states[name][LATEST]
        return [*old, latest] if latest else old

    def workers(self) -> None:
        open_by, unwanted_by = dict[str, set[str]](), dict[str, set[str]]()
        for name, state in self.states.items():
            latest = state[LATEST]
            if latest and PHASES[state[0]] == "active" and latest[4] in OPEN and latest[5]:
                open_by.setdefault(latest[5], set()).add(name)
            for attempt in self.tries(name):
                if attempt[9] and attempt[5]:
                    unwanted_by.setdefault(attempt[5], set()).add(attempt[0])
        for kind, wanted in (("open", open_by), ("unwanted", unwanted_by)):
            found = {key.removeprefix(f"{self.root}{kind}:") for key in self.client.scan_iter(f"{self.root}{kind}:*")}
            assert found == wanted.keys(), kind
            for worker, members in wanted.items():
                key = f"{self.root}{kind}:{worker}"
                assert set(self.zset(f"open:{worker}") if kind == "open" else self.client.smembers(key)) == members

    def totals(self) -> None:
        totals = {name: int(value) for name, value in self.client.hgetall(f"{self.root}totals").items()}
        by_status = Counter(state[0] for state in self.states.values())
        assert {status: totals.get(status, 0) for status in PHASES} == {status: by_status[status] for status in PHASES}
        spans = 0
        for name, state in self.states.items():
            attempts = [attempt[0] for attempt in self.tries(name)]
            assert len(attempts) == state[9], name
            kept = sum(self.client.hlen(f"{self.root}spans:{attempt}") for attempt in attempts)
            assert kept == state[11], name
            spans += kept
        assert totals.get("spans", 0) == spans
        assert totals.get("attempts", 0) == sum(state[9] for state in self.states.values())
        is_open = [s for s in self.states.values() if PHASES[s[0]] == "active" and s[LATEST] and s[LATEST][4] in OPEN]
        assert totals.get("open", 0) == len(is_open)

    def bodies(self) -> None:
        uses = Counter(row["i"][1:] for row in self.rows.values() if row["i"].startswith("@"))
        found = {key.removeprefix(f"{self.root}body:") for key in self.client.scan_iter(f"{self.root}body:*")}
        assert {name: int(self.client.hget(f"{self.root}body:{name}", "u")) for name in found} == dict(uses)
