"""Limits on calls, tokens and cost, of a rollout and of the whole run, and what was spent.

Calls are counted when they are admitted, in one step with the check, so that calls made at the same time cannot pass
a limit together; tokens and cost when they are settled. Every admitted call is settled, or taken back as refused.
What was spent survives the gateway: of a rollout it is read from its spans, of the run from the store's worker record.
"""

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ...errors import ConfigError, SharpenError, in_words
from ...store import LightningStore
from ...store.checks import check_id
from ..calls import Call, Refusal, Said, Usage
from .accounts import MAX_ACCOUNTS, Account, Accounts
from .prices import PricedEntry, Prices

logger = logging.getLogger(__name__)

SAVE_SECONDS = 1.0
MAX_MODELS = 200  # names come from callers: past this many they are counted together
OTHER_MODELS = "other"
Scope = Literal["rollout", "run"]
Kind = Literal["calls", "tokens", "cost"]
_SCOPES: tuple[Scope, ...] = ("rollout", "run")
_KINDS: tuple[Kind, ...] = ("calls", "tokens", "cost")


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much a rollout, and the whole run, may spend. Cost is in US dollars; None is no limit."""

    rollout_calls: int | None = None
    rollout_tokens: int | None = None
    rollout_cost: float | None = None
    run_calls: int | None = None
    run_tokens: int | None = None
    run_cost: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            kinds = (int, float) if name.endswith("cost") else (int,)
            if value is not None and (type(value) not in kinds or not 0 < value < math.inf):
                what = "US dollars" if name.endswith("cost") else "a whole number"
                raise ConfigError(f"the limit {name} is {value!r}: give {what} above 0, or None for no limit")

    @classmethod
    def of(cls, given: "Limits | Mapping[str, Any] | None") -> "Limits":
        """Limits as a user writes them: by name in a dict, or made already."""
        if given is None or isinstance(given, Limits):
            return given or cls()
        unknown = [name for name in given if name not in cls.__struct_fields__] if isinstance(given, Mapping) else given
        if unknown or not isinstance(given, Mapping):
            raise ConfigError(f"limits has {unknown!r}: the limits are {', '.join(cls.__struct_fields__)}")
        return cls(**given)

    def given(self) -> list[tuple[Scope, Kind, float]]:
        """Those that are set; those of a rollout come first."""
        every = ((scope, kind, getattr(self, f"{scope}_{kind}")) for scope in _SCOPES for kind in _KINDS)
        return [(scope, kind, limit) for scope, kind, limit in every if limit is not None]


class ModelTotals(msgspec.Struct):
    """What the calls of one model came to. Only calls that ended count here."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    errors: int = 0


class Totals(msgspec.Struct):
    """What the calls of a gateway came to, also those before a restart. Cost is in US dollars."""

    calls: int = 0
    refused: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    errors: int = 0
    unpriced: int = 0
    """Calls whose cost nobody knows; they add nothing to the cost."""
    by_model: dict[str, ModelTotals] = {}

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Budget:
    """Admits calls and counts what they spend. It belongs to one event loop.

    Without `prices` nothing has a cost: a replay is free.
    """

    def __init__(
        self,
        limits: Limits | None,
        prices: Prices | None,
        store: LightningStore | None,
        *,
        name: str = "gateway",
        save_seconds: float = SAVE_SECONDS,
        max_accounts: int = MAX_ACCOUNTS,
    ) -> None:
        self.limits = limits or Limits()
        self._limited = self.limits.given()
        self._has_rollout_limits = any(scope == "rollout" for scope, _, _ in self._limited)
        self._limited_kinds = {kind for _, kind, _ in self._limited}
        self.worker_id = check_id("the name of a gateway", f"gateway-{name}")
        self._prices, self._store, self._save_seconds = prices, store, save_seconds
        self._accounts = Accounts(store, max_accounts=max_accounts)
        self._under_way: dict[str, Account | None] = {}
        self._totals = Totals()
        self._warned: set[str] = set()
        self._changes = self._saved_changes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._saving = asyncio.Lock()
        self._save_task: asyncio.Task[bool] | None = None
        self._is_save_failing = False

    async def admit(self, call: Call) -> Refusal | None:
        """Count a call, or say which limit it would pass. What its rollout spent before is read where it is needed."""
        account = None
        if self._has_rollout_limits and call.place is not None:
            try:
                account = await self._accounts.take(call.place.rollout_id)
            except (SharpenError, OSError, TimeoutError) as error:
                self.refuse(call)
                return _unreadable(call, error)
        refusal = self._refusal(call, account)
        if refusal is not None:
            if account is not None:
                self._accounts.give_back(account)
            self.refuse(call)
            return refusal
        if account is not None:
            account.calls += 1
        self._totals.calls += 1
        self._under_way[call.call_id] = account
        self._note_change()
        return None

    def refuse(self, call: Call) -> None:
        """Count a call that the gateway answers itself. One that was admitted is taken back: it does not count."""
        if call.call_id in self._under_way:
            account = self._under_way.pop(call.call_id)
            self._totals.calls -= 1
            if account is not None:
                account.calls -= 1
                self._accounts.give_back(account)
        self._totals.refused += 1
        self._note_change()

    def settle(self, call: Call, said: Said, entry: PricedEntry | None = None) -> float | None:
        """Count what an admitted call came to; gives its cost in US dollars, None where nobody knows it."""
        is_admitted = call.call_id in self._under_way
        account = self._under_way.pop(call.call_id, None)
        usage = said.usage or Usage()
        self._warn_of_unknown_tokens(call, said)
        cost = self._cost(call, said, entry)
        self._model_totals(call.model).calls += is_admitted
        for counts in (self._totals, self._model_totals(call.model)):
            counts.input_tokens += usage.input_tokens
            counts.output_tokens += usage.output_tokens
            counts.cost += cost or 0.0
            counts.errors += said.error is not None
        if account is not None:
            account.tokens += usage.input_tokens + usage.output_tokens
            account.cost += cost or 0.0
            self._accounts.give_back(account)
        self._note_change()
        return cost

    def totals(self) -> Totals:
        """What was spent up to now, as a copy."""
        by_model = {name: msgspec.structs.replace(each) for name, each in list(self._totals.by_model.items())}
        return msgspec.structs.replace(self._totals, by_model=by_model)

    # -- counting ------------------------------------------------------------------------------------

    def _refusal(self, call: Call, account: Account | None) -> Refusal | None:
        for scope, kind, limit in self._limited:
            spent = account if scope == "rollout" else self._totals
            if spent is not None and getattr(spent, kind) >= limit:
                who = f"rollout {call.place.rollout_id!r}" if scope == "rollout" and call.place else "this run"
                return _limit_reached(who, f"{scope}_{kind}", kind, limit, getattr(spent, kind))
        return None

    def _cost(self, call: Call, said: Said, entry: PricedEntry | None) -> float | None:
        if self._prices is None or said.usage is None:
            return None
        cost = self._prices.cost(said.usage, (call.model, said.model), entry)
        if cost is None:
            self._totals.unpriced += 1
            if "cost" in self._limited_kinds:
                self._warn_once(
                    f"the price of model {call.model!r} is not known: its calls count as free for the cost limits; "
                    "give its price with prices={...} or in the model list"
                )
        return cost

    def _model_totals(self, model: str) -> ModelTotals:
        by_model = self._totals.by_model
        name = model if model in by_model or len(by_model) < MAX_MODELS else OTHER_MODELS
        return by_model.setdefault(name, ModelTotals())

    def _warn_of_unknown_tokens(self, call: Call, said: Said) -> None:
        is_limited = bool(self._limited_kinds & {"tokens", "cost"})
        if is_limited and said.error is None and said.is_complete and said.usage is None:
            self._warn_once(
                f"the upstream of model {call.model!r} did not say how many tokens a call took: such calls count as 0 "
                "for the limits; streams of the OpenAI API tell it with stream_options={'include_usage': True}"
            )

    def _warn_once(self, message: str) -> None:
        if message not in self._warned and len(self._warned) < MAX_MODELS:
            self._warned.add(message)
            logger.warning(message)

    # -- keeping -------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Go on from what a gateway of this name has spent, as the store knows it."""
        worker = await self._store.get_worker_by_id(self.worker_id) if self._store is not None else None
        if worker is None or not worker.heartbeat_stats:
            return
        try:
            self._totals = msgspec.convert(worker.heartbeat_stats, Totals)
        except msgspec.ValidationError as error:
            logger.warning("the totals of %r in the store cannot be read (%s): they begin at 0", self.worker_id, error)

    async def save(self) -> bool:
        """Write the totals to the store now, if they changed. A store that cannot be reached is logged: False."""
        self._stop_timer()
        async with self._saving:
            changes = self._changes
            if self._store is None or changes == self._saved_changes:
                return True
            try:
                await self._store.update_worker(self.worker_id, msgspec.to_builtins(self._totals))
            except (SharpenError, OSError, TimeoutError) as error:
                self._note_failure(error)
                return False
            self._saved_changes, self._is_save_failing = changes, False
            return True

    async def aclose(self, *, wait_seconds: float = 5.0) -> None:
        """Write the totals for the last time."""
        try:
            await asyncio.wait_for(self.save(), wait_seconds)
        except TimeoutError:
            logger.warning("the totals of %r could not be stored within %g s", self.worker_id, wait_seconds)
        finally:
            self._stop_timer()

    def _note_change(self) -> None:
        """The totals are written a moment later, so that many calls need one write."""
        self._changes += 1
        if self._timer is None and self._store is not None:
            self._timer = asyncio.get_running_loop().call_later(self._save_seconds, self._save_soon)

    def _save_soon(self) -> None:
        self._timer = None
        if self._save_task is None or self._save_task.done():
            self._save_task = asyncio.ensure_future(self.save())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _note_failure(self, error: Exception) -> None:
        if not self._is_save_failing:
            logger.warning("the totals of %r are not stored for now: %s", self.worker_id, in_words(error))
        self._is_save_failing = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._save_seconds, self._save_soon)


def _limit_reached(who: str, name: str, kind: Kind, limit: float, spent: float) -> Refusal:
    allowed, used = (f"${limit:g}", f"${spent:.6g}") if kind == "cost" else (f"{limit} {kind}", f"{spent}")
    message = f"{who} may spend {allowed} and has spent {used}: its limit {name} is reached; raise it in limits"
    return Refusal(429, "limit_reached", message, should_retry=False)


def _unreadable(call: Call, error: Exception) -> Refusal:
    rollout_id = call.place.rollout_id if call.place else ""
    return Refusal(
        503,
        "store_unavailable",
        f"what rollout {rollout_id!r} has spent cannot be read from the store now ({in_words(error)}): try again",
        retry_after_seconds=1.0,
        should_retry=True,
    )
