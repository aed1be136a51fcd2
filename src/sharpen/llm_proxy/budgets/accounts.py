"""What rollouts have spent: one account each, read from the store when a rollout is first seen.

Accounts of rollouts without calls under way are forgotten, the longest unused first, once there are too many: the spans
in the store hold the same, so memory does not grow with the number of rollouts.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ...errors import SpansEvictedError, UnknownIdError
from ...semconv import SHARPEN_LLM_CALL, LightningLLMAttributes
from ...store import LightningStore

MAX_ACCOUNTS = 10_000
PAGE = 100
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"


class Account:
    """Calls that were admitted, tokens and cost of those that ended, and what those under way may come to."""

    __slots__ = ("calls", "cost", "in_use", "is_read", "reading", "reserved_cost", "reserved_tokens", "tokens")

    def __init__(self) -> None:
        self.calls = 0
        self.tokens = 0
        self.cost = 0.0
        self.reserved_tokens = 0
        self.reserved_cost = 0.0
        self.in_use = 0
        """Calls of the rollout that are under way, or wait to be admitted."""
        self.is_read = False
        self.reading: asyncio.Task[None] | None = None


class Accounts:
    """The accounts of the rollouts seen last."""

    def __init__(self, store: LightningStore | None, *, max_accounts: int = MAX_ACCOUNTS) -> None:
        self._store = store
        self._max_accounts = max_accounts
        self._by_rollout: OrderedDict[str, Account] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_rollout)

    async def take(self, rollout_id: str) -> Account:
        """The account, marked as in use until it is given back. An error of the store passes."""
        account = self._by_rollout.get(rollout_id)
        if account is None:
            account = self._by_rollout[rollout_id] = Account()
        self._by_rollout.move_to_end(rollout_id)
        account.in_use += 1
        self._forget_some()
        try:
            await self._read_once(rollout_id, account)
        except BaseException:
            self.give_back(account)
            raise
        return account

    def give_back(self, account: Account) -> None:
        account.in_use -= 1

    def _forget_some(self) -> None:
        for _ in range(len(self._by_rollout) - self._max_accounts):
            rollout_id, account = next(iter(self._by_rollout.items()))
            if account.in_use:
                # Not now; it comes last in line, so that each look is short.
                self._by_rollout.move_to_end(rollout_id)
            else:
                del self._by_rollout[rollout_id]

    async def _read_once(self, rollout_id: str, account: Account) -> None:
        """Calls that come at the same time wait for one reading, whichever of them is given up meanwhile."""
        if account.is_read or self._store is None:
            return
        if account.reading is None:
            account.reading = asyncio.ensure_future(_read(self._store, rollout_id, account))
            account.reading.add_done_callback(lambda task: _end_reading(account, task))
        await asyncio.shield(account.reading)


async def _read(store: LightningStore, rollout_id: str, account: Account) -> None:
    calls, tokens, cost, offset = 0, 0, 0.0, 0
    while True:
        try:
            page = await store.query_spans(rollout_id, name=SHARPEN_LLM_CALL, limit=PAGE, offset=offset)
        except (UnknownIdError, SpansEvictedError):
            break  # of a rollout that the store does not know, or has forgotten, nothing is known
        for attributes in (span.attributes for span in page if not is_refused(span.attributes)):
            calls += 1
            tokens += int(_number(attributes.get(INPUT_TOKENS)) + _number(attributes.get(OUTPUT_TOKENS)))
            cost += _number(attributes.get(LightningLLMAttributes.COST))
        offset += len(page)
        if not len(page) or offset >= page.total:
            break
    account.calls, account.tokens, account.cost = account.calls + calls, account.tokens + tokens, account.cost + cost
    account.is_read = True


def _end_reading(account: Account, task: asyncio.Task[None]) -> None:
    account.reading = None
    if not task.cancelled():
        task.exception()  # whoever waits has it; if nobody does any more, the next call reads again


def is_refused(attributes: Mapping[str, Any]) -> bool:
    """Whether the span of a gateway tells of a call that was not let through."""
    return bool(attributes.get(LightningLLMAttributes.REFUSED))


def _number(value: Any) -> float:
    """Anybody may write spans; what is no number counts as nothing."""
    return value if isinstance(value, int | float) and math.isfinite(value) else 0
