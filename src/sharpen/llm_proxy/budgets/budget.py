"""Limits on calls, tokens and cost, of a rollout and of the whole run, and what was spent.

Calls are counted when they are admitted, in one step with the check, so that calls made at the same time cannot pass
a limit together; tokens and cost when they are settled, and while a call is under way an estimate of them is reserved.
A call that finds the rest of a limit reserved waits for calls under way. Every admitted call is settled, or taken back
as refused. What was spent survives the gateway: of a rollout it is read from its spans, of the run from the store's
worker record (`TotalsKeeper`).
"""

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ...errors import ConfigError, SharpenError, describe
from ...store import LightningStore
from ..calls import Call, Refusal, Said, Usage
from .accounts import MAX_ACCOUNTS, Account, Accounts
from .estimates import UNKNOWN_ANSWER, body_tokens, longest_answer
from .keeping import SAVE_SECONDS, TotalsKeeper
from .prices import PricedEntry, Prices
from .totals import ModelTotals, Totals

__all__ = ["Budget", "Limits", "ModelTotals", "Totals"]

logger = logging.getLogger(__name__)

WAIT_SECONDS = 60.0  # for calls under way, where all that is left of a limit is reserved for them
MAX_MODELS = 200  # names come from callers: past this many they are counted together
OTHER_MODELS = "other"
Scope = Literal["rollout", "run"]
Kind = Literal["calls", "tokens", "cost"]
_SCOPES: tuple[Scope, ...] = ("rollout", "run")
_KINDS: tuple[Kind, ...] = ("calls", "tokens", "cost")


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much a rollout, and the whole run, may spend. Costs are in US dollars; None means no limit."""

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
                raise ConfigError(f"the limit {name} is {value!r}: use {what} above 0, or None for no limit")

    @classmethod
    def of(cls, given: "Limits | Mapping[str, Any] | None") -> "Limits":
        """Return the limits that a user passed: as `Limits`, as a dict by name, or None for no limits."""
        if given is None or isinstance(given, Limits):
            return given or cls()
        unknown = [name for name in given if name not in cls.__struct_fields__] if isinstance(given, Mapping) else given
        if unknown or not isinstance(given, Mapping):
            raise ConfigError(f"limits has {unknown!r}: use {', '.join(cls.__struct_fields__)}")
        return cls(**given)

    def given(self) -> list[tuple[Scope, Kind, float]]:
        """Return the limits that are set, those of a rollout first."""
        every = ((scope, kind, getattr(self, f"{scope}_{kind}")) for scope in _SCOPES for kind in _KINDS)
        return [(scope, kind, limit) for scope, kind, limit in every if limit is not None]


class _UnderWay(msgspec.Struct):
    """A call that was admitted, and what is reserved for it."""

    account: Account | None
    tokens: int
    cost: float


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
        instance: str = "",
        save_seconds: float = SAVE_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
        max_accounts: int = MAX_ACCOUNTS,
    ) -> None:
        self.limits = limits or Limits()
        self._limited = self.limits.given()
        self._has_rollout_limits = any(scope == "rollout" for scope, _, _ in self._limited)
        self._limited_kinds = {kind for _, kind, _ in self._limited}
        self._reserves = bool(self._limited_kinds & {"tokens", "cost"})
        self._prices, self._wait_seconds = prices, wait_seconds
        self._keeper = TotalsKeeper(store, name, lambda: self._totals, instance=instance, save_seconds=save_seconds)
        self._accounts = Accounts(store, max_accounts=max_accounts)
        self._run = Account()
        """What the run has reserved; what it has spent is in the totals."""
        self._under_way: dict[str, _UnderWay] = {}
        self._has_ended = asyncio.Event()
        """Set, and replaced, when a call ends."""
        self._totals = Totals()
        self._warned: set[str] = set()

    async def admit(self, call: Call) -> Refusal | None:
        """Count a call, or say which limit it would pass. What its rollout spent before is read where it is needed."""
        account = None
        if self._has_rollout_limits and call.place is not None:
            try:
                account = await self._accounts.take(call.place.rollout_id)
            except (SharpenError, OSError, TimeoutError) as error:
                self.refuse(call)
                return _unreadable(call, error)
        try:
            refusal = await self._refusal_in_time(call, account)
        except BaseException:
            if account is not None:
                self._accounts.give_back(account)
            raise
        if refusal is not None:
            if account is not None:
                self._accounts.give_back(account)
            self.refuse(call)
            return refusal
        self._begin(call, account)
        return None

    def refuse(self, call: Call) -> None:
        """Count a call that the gateway answers itself. One that was admitted is taken back: it does not count."""
        if call.call_id in self._under_way:
            account = self._end(call)
            self._totals.calls -= 1
            if account is not None:
                account.calls -= 1
                self._accounts.give_back(account)
        self._totals.refused += 1
        self._keeper.note_change()

    def settle(self, call: Call, said: Said, entry: PricedEntry | None = None) -> float | None:
        """Count what an admitted call came to; gives its cost in US dollars, None where nobody knows it."""
        is_admitted = call.call_id in self._under_way
        usage = said.usage or Usage()
        self._warn_of_unknown_tokens(call, said)
        cost = self._cost(call, said, entry)
        self._totals.estimated += said.is_usage_estimated
        self._model_totals(call.model).calls += is_admitted
        for counts in (self._totals, self._model_totals(call.model)):
            counts.input_tokens += usage.input_tokens
            counts.output_tokens += usage.output_tokens
            counts.cost += cost or 0.0
            counts.errors += said.error is not None
        account = self._end(call)
        if account is not None:
            account.tokens += usage.input_tokens + usage.output_tokens
            account.cost += cost or 0.0
            self._accounts.give_back(account)
        self._keeper.note_change()
        return cost

    def totals(self) -> Totals:
        """What was spent up to now, as a copy."""
        by_model = {name: msgspec.structs.replace(each) for name, each in list(self._totals.by_model.items())}
        return msgspec.structs.replace(self._totals, by_model=by_model)

    # -- counting ------------------------------------------------------------------------------------

    def _begin(self, call: Call, account: Account | None) -> None:
        under_way = _UnderWay(account, *(self._estimate(call) if self._reserves else (0, 0.0)))
        self._under_way[call.call_id] = under_way
        for each in (self._run, account):
            if each is not None:
                each.reserved_tokens += under_way.tokens
                each.reserved_cost += under_way.cost
        if account is not None:
            account.calls += 1
        self._totals.calls += 1
        self._keeper.note_change()

    def _end(self, call: Call) -> Account | None:
        """The call is under way no longer; gives the account of its rollout."""
        under_way = self._under_way.pop(call.call_id, None)
        if under_way is None:
            return None
        for each in (self._run, under_way.account):
            if each is not None:
                each.reserved_tokens -= under_way.tokens
                each.reserved_cost -= under_way.cost
        if self._reserves:
            self._has_ended.set()
            self._has_ended = asyncio.Event()
        return under_way.account

    def _estimate(self, call: Call) -> tuple[int, float]:
        """Tokens and cost that a call may come to: as much as it allows, else as much as calls did up to now."""
        ended = self._totals.calls - len(self._under_way)
        known = self._totals if ended > 0 and self._totals.tokens else None
        input_tokens = body_tokens(call) if known is None else known.input_tokens // ended
        mean = UNKNOWN_ANSWER if known is None else known.output_tokens // ended
        usage = Usage(input_tokens, longest_answer(call) or mean)
        cost = self._prices.cost(usage, (call.model,)) if self._prices is not None else None
        if cost is None:
            cost = self._totals.cost / ended if ended > 0 else 0.0
        return usage.input_tokens + usage.output_tokens, cost

    async def _refusal_in_time(self, call: Call, account: Account | None) -> Refusal | None:
        """The limit that a call would pass. Where only what is reserved stands in its way, it waits for that."""
        refusal = self._refusal(call, account)
        if refusal is not None or not self._is_reserved(account):
            return refusal
        try:
            async with asyncio.timeout(self._wait_seconds):
                while refusal is None and self._is_reserved(account):
                    await self._has_ended.wait()
                    refusal = self._refusal(call, account)
        except TimeoutError:
            return _all_reserved(self._wait_seconds)
        return refusal

    def _is_reserved(self, account: Account | None) -> bool:
        """Whether calls under way may use up all that is left of a limit."""
        for scope, kind, limit in self._limited if self._reserves else ():
            spent, reserved = (account, account) if scope == "rollout" else (self._totals, self._run)
            if kind == "calls" or spent is None or reserved is None:
                continue
            if getattr(spent, kind) + getattr(reserved, f"reserved_{kind}") >= limit and self._under_way:
                return True
        return False

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
                    f"the price of model {call.model!r} is unknown: its calls do not count towards the cost limits; "
                    "set its price with prices={...} or in the model list"
                )
        return cost

    def _model_totals(self, model: str) -> ModelTotals:
        by_model = self._totals.by_model
        name = model if model in by_model or len(by_model) < MAX_MODELS else OTHER_MODELS
        return by_model.setdefault(name, ModelTotals())

    def _warn_of_unknown_tokens(self, call: Call, said: Said) -> None:
        is_limited = bool(self._limited_kinds & {"tokens", "cost"})
        if is_limited and said.error is None and said.is_complete and (said.usage is None or said.is_usage_estimated):
            self._warn_once(
                f"the upstream of model {call.model!r} did not report the tokens of a call, so they are estimated for "
                "the limits; for streams of the OpenAI API, pass stream_options={'include_usage': True}"
            )

    def _warn_once(self, message: str) -> None:
        if message not in self._warned and len(self._warned) < MAX_MODELS:
            self._warned.add(message)
            logger.warning(message)

    # -- keeping -------------------------------------------------------------------------------------

    @property
    def worker_id(self) -> str:
        """What the totals are kept under in the store."""
        return self._keeper.worker_id

    async def restore(self) -> None:
        """Go on from what a gateway of this name has spent, as the store knows it."""
        self._totals = await self._keeper.restore()

    async def save(self) -> bool:
        """Write the totals to the store now, if they changed. A store that cannot be reached is logged: False."""
        return await self._keeper.save()

    async def aclose(self, *, wait_seconds: float = 5.0) -> None:
        """Write the totals for the last time."""
        await self._keeper.aclose(wait_seconds=wait_seconds)


def _limit_reached(who: str, name: str, kind: Kind, limit: float, spent: float) -> Refusal:
    allowed, used = (f"${limit:g}", f"${spent:.6g}") if kind == "cost" else (_counted(limit, kind), f"{spent}")
    message = f"{who} has reached its limit {name}: it may spend {allowed} and has spent {used}; raise it in limits"
    return Refusal(429, "limit_reached", message, should_retry=False)


def _counted(number: float, kind: str) -> str:
    return f"{number} {kind.removesuffix('s') if number == 1 else kind}"


def _all_reserved(wait_seconds: float) -> Refusal:
    return Refusal(
        429,
        "limit_reserved",
        f"calls in progress may use up the rest of a limit, and none finished within {wait_seconds:g} s: "
        "try again later",
        retry_after_seconds=1.0,
        should_retry=True,
    )


def _unreadable(call: Call, error: Exception) -> Refusal:
    rollout_id = call.place.rollout_id if call.place else ""
    return Refusal(
        503,
        "store_unavailable",
        f"cannot read from the store what rollout {rollout_id!r} has spent ({describe(error)}): try again",
        retry_after_seconds=1.0,
        should_retry=True,
    )
