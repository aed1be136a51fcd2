"""What gepa tells of its iterations, kept until the iteration ends.

gepa calls these methods in its thread. Whatever they raise but `SearchOver` it logs and forgets, so they do no more
than note; what is to be done at the end of an iteration is done on the loop of the run.
"""

import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import RunError, describe
from .family import Family, Texts
from .search_thread import SearchThread

log = logging.getLogger(__name__)
Event = Mapping[str, Any]
MOST_ERRORS = 3


@dataclass(slots=True)
class Iteration:
    """One iteration of gepa. Versions are in the order of making."""

    number: int
    """Of the round that it is, if it has any work to do."""
    made: list[str] = field(default_factory=list)
    validated: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Why gepa did not take those that were made, in the same order."""
    leader: str | None = None
    """The candidate with the best mean so far, where it is a new one."""
    is_broken_off: bool = False

    def why_dropped(self) -> dict[str, str]:
        dropped = [version for version in self.made if version not in self.validated]
        default = "the budget was used up before it was validated" if self.is_broken_off else "gepa did not accept it"
        return dict(zip(dropped, [*self.reasons, *[default] * len(dropped)], strict=False))


class Iterations:
    """Callbacks of gepa. `begin`, which gives the number of the round, and `close` run on the loop."""

    def __init__(
        self,
        thread: SearchThread,
        family: Family,
        *,
        begin: Callable[[], Coroutine[Any, Any, int]],
        close: Callable[[Iteration], Coroutine[Any, Any, None]],
    ) -> None:
        self._thread, self._family, self._begin, self._close = thread, family, begin, close
        self._parents: list[str] = []
        self._num_errors, self._has_failed = 0, False
        self.front_size = 1
        self.open: Iteration | None = None
        """The iteration that was broken off, where there is one."""

    def enter_merged(self, texts: Texts) -> str:
        """The version of a candidate that gepa has put together from others."""
        version = f"v{self._family.round}"
        words = f"merged from the texts of {' and '.join(self._parents)}"
        self._family.enter(version, texts, parents=self._parents, critique=words)
        return version

    # -- what gepa tells -----------------------------------------------------------------------------

    def on_iteration_start(self, event: Event) -> None:
        number = self._thread.wait_for(self._begin)
        self._family.begin(number)
        self.open = Iteration(number, self._family.made)

    def on_evaluation_start(self, event: Event) -> None:
        if event["candidate_idx"] is None:
            self._parents = [self._family.by_number[number] for number in event["parent_ids"]]

    def on_valset_evaluated(self, event: Event) -> None:
        if self.open is None:  # the seed
            return
        version = self._family.version_of(event["candidate"])
        if version is None:
            self._thread.fail(RunError("gepa validated a candidate that was never evaluated: this is a bug"))
        self._family.by_number.append(version)
        self.open.validated.append(version)
        if event["is_best_program"]:
            self.open.leader = version

    def on_pareto_front_updated(self, event: Event) -> None:
        self.front_size = len(event["new_front"])

    def on_candidate_rejected(self, event: Event) -> None:
        reason, new, old = event["reason"], event["new_score"], event["old_score"]
        if reason.startswith("New subsample score"):
            reason = f"not better than its parent on the same training tasks (sum {new:.4g}, its parent {old:.4g})"
        self._note(reason)

    def on_merge_rejected(self, event: Event) -> None:
        self._note("worse than the better of its parents on validation tasks")

    def _note(self, reason: str) -> None:
        if self.open is not None:
            self.open.reasons.append(reason)

    def on_error(self, event: Event) -> None:
        error = event["exception"]
        log.warning("gepa failed in iteration %d: %s", event["iteration"], describe(error))
        self._num_errors, self._has_failed = self._num_errors + 1, True
        if self._num_errors >= MOST_ERRORS:
            self._thread.fail(
                RunError(f"gepa failed {MOST_ERRORS} times in a row, most recently with {describe(error)}")
            )

    def on_iteration_end(self, event: Event) -> None:
        done = self.open
        if done is None or self._thread.is_over:
            return
        self._num_errors = self._num_errors if self._has_failed else 0
        self._has_failed = False
        self._thread.wait_for(lambda: self._close(done))
        self.open = None
