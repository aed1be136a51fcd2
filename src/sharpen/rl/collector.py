"""`Collector`: plays episodes with a policy and returns them in the order of their numbers.

Each round the policy acts on all running episodes at once. Steps are stored as they come, one row of slots per round;
at the end they are gathered episode by episode, so the result does not depend on which episode finished first.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..checks import check_int
from ..errors import InvalidInputError
from .finite_env import FiniteVectorEnv
from .policy import Actions, Actor, EpisodeBatch
from .seed import EpisodeNoise
from .trees import Array, Tree, concatenate, leaves, map_tree, rows

ROWS = 64  # the minimum number of rounds that a new buffer holds


class _Round(NamedTuple):
    """The outcome of one round."""

    steps: int
    ended: int
    running: Array
    """The environments whose episode continues."""


class Collector:
    """Plays episodes of a vector environment with a policy."""

    def __init__(self, policy: Actor, env: FiniteVectorEnv, *, buffer_size: int = 20000) -> None:
        self.policy, self.env = policy, env
        self._buffer_rounds = max(ROWS, buffer_size // len(env))

    def collect(self, n_episode: int | None = None, *, deterministic: bool = False) -> EpisodeBatch:
        """Play exactly `n_episode` episodes, or all there are, and return them."""
        buffer = _Buffer(len(self.env), self._buffer_rounds)
        for _ in self._rounds(n_episode, deterministic, buffer):
            pass
        return buffer.episodes()

    def collect_steps(self, n_step: int, *, n_waiting: int = 0, deterministic: bool = False) -> Iterator[EpisodeBatch]:
        """Begin episodes until `n_step` steps are made, play them to their ends, and yield every `n_step` steps.

        An episode that is running when a batch is yielded is cut there: each of its parts but the last is a truncated
        episode of its batch. The policy may learn between two batches. The first batch is smaller by `n_waiting`, the
        number of steps that the caller has kept from before, and the last batch holds whatever remains.
        """
        n_step = check_int("n_step", n_step, at_least=1, error=InvalidInputError)
        buffer = _Buffer(len(self.env), self._buffer_rounds)
        taken, kept, due = 0, 0, n_step - n_waiting
        for played in self._rounds(None, deterministic, buffer):
            taken, kept = taken + played.steps, kept + played.steps
            if taken >= n_step:
                self.env.stop_beginning()
            if kept >= due:
                buffer.cut(played.running, self.env)
                yield buffer.episodes()
                buffer.clear()
                kept, due = 0, n_step
        if kept:
            yield buffer.episodes()

    def play(self, n_episode: int | None = None, *, deterministic: bool = True) -> int:
        """Play episodes for the loggers only, and return their number."""
        return sum(played.ended for played in self._rounds(n_episode, deterministic, None))

    def _rounds(self, n_episode: int | None, deterministic: bool, buffer: "_Buffer | None") -> Iterator[_Round]:
        """Play rounds until the collection ends, and yield the outcome of each."""
        env, policy = self.env, self.policy
        env.open_collection(each_step=False, limit=n_episode)
        noise = EpisodeNoise(env.entropy, len(env))
        was_running = np.zeros(len(env), bool)
        ids, action_N = np.zeros(0, np.int64), None
        while True:
            reward_N, terminated_N, truncated_N = env.round(ids, action_N)
            if len(ids):
                done_N = terminated_N | truncated_N
                continuing = ids[~done_N]
                was_running[:] = False
                was_running[continuing] = True
                if buffer is not None:
                    buffer.put_result(ids, reward_N, terminated_N, truncated_N)
                    buffer.put_ends(ids[done_N], env)
                yield _Round(len(ids), int(np.count_nonzero(done_N)), continuing)
            ids = env.running()
            if not len(ids):
                if env.is_over:
                    break
                continue  # all episodes ended together: the next round only begins new ones
            begun = ids[~was_running[ids]]
            if len(begun):
                noise.begin(begun, env.k_N[begun])
            obs_N = rows(env.obs, ids)
            actions = policy.act(obs_N, rng=noise.select(ids), deterministic=deterministic)
            action_N = _checked_actions(actions, len(ids), policy)
            if buffer is not None:
                buffer.put_step(ids, begun, obs_N, action_N, actions.extras)
        env.close_collection()


def _checked_actions(actions: Any, count: int, policy: Actor) -> Tree:
    """Return the actions after a check: NumPy would silently broadcast a single one over all episodes."""
    name = f"{type(policy).__name__}.act"
    if not isinstance(actions, Actions):
        raise InvalidInputError(f"{name} returned {type(actions).__name__}; return Actions(action_N) instead")
    for leaf in leaves(actions.action_N):
        if np.shape(leaf)[:1] != (count,):
            raise InvalidInputError(
                f"{name} returned actions of shape {np.shape(leaf)} for {count} observations; return one for each"
            )
    return actions.action_N


class _Buffer:
    """The steps of all slots, as arrays of (round, slot, …) that grow when they are full."""

    def __init__(self, n: int, rounds: int) -> None:
        self._n, self._rounds, self._t = n, rounds, -1
        self._start_N = np.zeros(n, np.int64)
        self._store: dict[str, Tree] = {}
        self._ends: list[tuple[Array, Array, Array, int]] = []  # k, slot, first round, round after the last
        self._last_obs: list[Tree] = []

    def put_step(self, ids: Array, begun: Array, obs_N: Tree, action_N: Tree, extras: Mapping[str, Array]) -> None:
        """Store what the policy saw and chose in this round."""
        self._t += 1
        if self._t == self._rounds:
            self._grow()
        self._start_N[begun] = self._t
        self._put("obs", ids, obs_N)
        self._put("action", ids, action_N)
        for name, values_N in extras.items():
            self._put(f"extra:{name}", ids, values_N)

    def put_result(self, ids: Array, reward_N: Array, terminated_N: Array, truncated_N: Array) -> None:
        """Store the results of this round."""
        self._put("reward", ids, reward_N)
        self._put("terminated", ids, terminated_N)
        self._put("truncated", ids, truncated_N)

    def put_ends(self, slots: Array, env: FiniteVectorEnv) -> None:
        """Store the ends of the episodes in these slots."""
        if len(slots):
            self._ends.append((env.k_N[slots], slots, self._start_N[slots], self._t + 1))
            self._last_obs.append(rows(env.obs, slots))

    def cut(self, slots: Array, env: FiniteVectorEnv) -> None:
        """End the running episodes of these slots here, as truncated."""
        self._store["truncated"][self._t, slots] = True
        self.put_ends(slots, env)

    def clear(self) -> None:
        """Start the next part; episodes that continue begin in its first round."""
        self._t = -1
        self._start_N[:] = 0
        self._ends, self._last_obs = [], []

    def _put(self, name: str, ids: Array, values_N: Tree) -> None:
        if name not in self._store:
            self._store[name] = map_tree(self._empty, values_N)
        place = self._store[name]
        if isinstance(place, np.ndarray):
            place[self._t, ids] = values_N
        else:
            map_tree(lambda array, values: array.__setitem__((self._t, ids), values), place, values_N)

    def _empty(self, values_N: Any) -> Array:
        like = np.asarray(values_N)
        return np.empty((self._rounds, self._n, *like.shape[1:]), like.dtype)

    def _grow(self) -> None:
        def doubled(array: Array) -> Array:
            larger = np.empty((2 * len(array), *array.shape[1:]), array.dtype)
            larger[: len(array)] = array
            return larger

        self._store = {name: map_tree(doubled, tree) for name, tree in self._store.items()}
        self._rounds *= 2

    def episodes(self) -> EpisodeBatch:
        """Return the finished episodes in the order of k."""
        if not self._ends:
            raise InvalidInputError("no episode was played: check that there are initial states")
        k_E = np.concatenate([each[0] for each in self._ends])
        order = np.argsort(k_E, kind="stable")
        slot_E = np.concatenate([each[1] for each in self._ends])[order]
        start_E = np.concatenate([each[2] for each in self._ends])[order]
        stop_E = np.concatenate([np.full(len(each[1]), each[3]) for each in self._ends])[order]
        lengths_E = stop_E - start_E
        index_T = self._indices(slot_E, start_E, lengths_E)
        found = {name: self._gather(tree, index_T) for name, tree in self._store.items()}
        extras = {name.partition(":")[2]: array for name, array in found.items() if name.startswith("extra:")}
        return EpisodeBatch(
            obs_T=found["obs"],
            action_T=found["action"],
            reward_T=found["reward"],
            terminated_T=found["terminated"],
            truncated_T=found["truncated"],
            last_obs_E=rows(concatenate(self._last_obs), order),
            lengths_E=lengths_E,
            extras=extras,
        )

    def _indices(self, slot_E: Array, start_E: Array, lengths_E: Array) -> Array:
        """Return the index of each step of each episode, with rounds and slots as one axis."""
        ends_E = np.cumsum(lengths_E)
        within_T = np.arange(ends_E[-1]) - np.repeat(ends_E - lengths_E, lengths_E)
        index_T: Array = (np.repeat(start_E, lengths_E) + within_T) * self._n + np.repeat(slot_E, lengths_E)
        return index_T

    def _gather(self, tree: Tree, index_T: Array) -> Tree:
        return map_tree(lambda array: array.reshape(-1, *array.shape[2:])[index_T], tree)
