"""`Upstreams`: who answers a call, in order of preference.

A conversation stays on one upstream as long as that one is well; a failing one comes last until it may be tried
again, and one at its rate is left out. Everything runs in the event loop of the gateway.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ...checks import listed
from ..calls import Call, Refusal, Upstream, UpstreamAnswer, Usage
from ..models.listing import ListedModels
from ..models.model_entry import Engine, ModelEntry
from .conversations import key_of, share_of
from .health import Health
from .http_upstream import HttpUpstream
from .links import Link
from .rates import Rates

__all__ = ["HttpUpstream", "ModelUpstream", "Upstreams"]


class ModelUpstream:
    """One entry of the model list with its health and its rates."""

    def __init__(self, entry: ModelEntry, sender: Upstream, upstream_id: str, health: Health, rates: Rates) -> None:
        self.entry, self.name, self.upstream_id = entry, entry.name, upstream_id
        self.health, self.rates = health, rates
        self._sender = sender
        if isinstance(sender, HttpUpstream):
            sender.count_again = rates.reserve

    async def send(self, call: Call) -> UpstreamAnswer:
        """Ask. Refused when its rate was reached since it was chosen."""
        wait_seconds = self.rates.wait_seconds()
        if wait_seconds > 0:
            raise _at_limit(call.model, [self], wait_seconds)
        self.rates.reserve()
        return await self._sender.send(call)

    async def list_models(self, headers: Mapping[str, str]) -> list[str] | None:
        """The names that agents can ask for here; None where a star stands for what nobody tells."""
        if "*" not in self.entry.model_name:
            return [self.entry.model_name]
        ask = getattr(self._sender, "list_models", None)  # LiteLLM cannot say
        found = None if ask is None or "*" not in (self.entry.model or "*") else await ask(headers)
        return None if found is None else [name for each in found if (name := self.entry.asked_name(each)) is not None]

    @property
    def engine(self) -> Engine | None:
        """What samples there, as far as it is known by now."""
        return self.entry.engine or getattr(self._sender, "engine", None)

    def __repr__(self) -> str:
        return f"ModelUpstream({self.name!r})"


class Upstreams:
    """The upstreams of a gateway. With `passes_keys` an entry without a key is asked with the client's own.

    A client's key may be the token of the gateway, which is nobody else's business: take it off the call's headers.
    """

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        *,
        num_retries: int = 0,
        clock: Callable[[], float] = time.monotonic,
        passes_keys: bool = True,
        timeout_seconds: float | None = 600.0,
        connect_seconds: float = 10.0,
    ) -> None:
        self._most = num_retries + 1
        self._clock, self._passes_keys = clock, passes_keys
        self._timeout_seconds, self._connect_seconds = timeout_seconds, connect_seconds
        self._links: dict[str, Link] = {}
        self._all: list[ModelUpstream] = []
        self._by_model: dict[str, list[ModelUpstream]] = {}
        self.replace(entries)

    @property
    def model_names(self) -> list[str]:
        """What agents can ask for, in the order of the list."""
        return list(dict.fromkeys(each.entry.model_name for each in self._all))

    async def list_models(self, headers: Mapping[str, str]) -> ListedModels:
        """Names as in the list; the upstreams of a star are asked what they have."""
        told = await asyncio.gather(*(each.list_models(headers) for each in self._all))
        names = [name for each in told for name in each or ()]
        stars = [name for name in self.model_names if "*" in name]
        silent = [each.entry.model_name for each, found in zip(self._all, told, strict=True) if found is None]
        return ListedModels(list(dict.fromkeys(names)), stars, silent)

    def replace(self, entries: Sequence[ModelEntry]) -> None:
        """Take another list. Who stands in both keeps health, used rates and connections; calls under way end."""
        before = {each.upstream_id: each for each in self._all}
        seen: Counter[str] = Counter()
        self._all = [self._made(entry, _id_of(entry, seen), before) for entry in entries]
        self._by_model = {}
        for url in self._links.keys() - {each.entry.url for each in self._all}:
            self._links.pop(url).retire()

    def _made(self, entry: ModelEntry, upstream_id: str, before: dict[str, ModelUpstream]) -> ModelUpstream:
        old = before.get(upstream_id)
        has_same_rates = old is not None and (old.entry.rpm, old.entry.tpm) == (entry.rpm, entry.tpm)
        health = old.health if old else Health(self._clock)
        rates = old.rates if old and has_same_rates else Rates(entry.rpm, entry.tpm, self._clock)
        return ModelUpstream(entry, self._sender(entry), upstream_id, health, rates)

    def _sender(self, entry: ModelEntry) -> Upstream:
        if entry.provider == "litellm":
            from .litellm_upstream import LiteLLMUpstream

            return LiteLLMUpstream(entry, passes_keys=self._passes_keys, timeout_seconds=self._timeout_seconds)
        link = self._links.get(entry.url)
        if link is None:
            link = self._links[entry.url] = Link(entry.url, self._clock)
        return HttpUpstream(
            entry,
            link,
            passes_keys=self._passes_keys,
            timeout_seconds=self._timeout_seconds,
            connect_seconds=self._connect_seconds,
        )

    # -- choosing ------------------------------------------------------------------------------------

    def choose(self, call: Call) -> list[ModelUpstream]:
        """Whom to ask, the best first: as many as may be asked, one and `num_retries`."""
        known = self._known_for(call.model)
        free = [each for each in known if each.rates.wait_seconds() <= 0]
        if not free:
            raise _at_limit(call.model, known, min(each.rates.wait_seconds() for each in known))
        if len(free) > 1:
            key = key_of(call)
            free.sort(key=lambda each: share_of(key, each.upstream_id, each.entry.weight), reverse=True)
            free.sort(key=lambda each: not each.health.may_be_tried)  # keeps the order of equals
        free[0].health.begin_trial()
        return free[: self._most]

    def _known_for(self, model: str) -> list[ModelUpstream]:
        found = self._by_model.get(model)
        if found is not None:
            return found
        best = max(
            (each.entry.model_name for each in self._all if each.entry.matches(model)), key=_precision, default=None
        )
        if best is None:
            raise self._unknown(model)
        found = [each for each in self._all if each.entry.model_name == best]
        if not best.endswith("*"):  # names that a star stands for have no end
            self._by_model[model] = found
        return found

    def _unknown(self, model: str) -> Refusal:
        asked = f"model {model!r} does not exist" if model else "the request has no model"
        known = listed(self.model_names, limit=20)
        return Refusal(
            404, "model_not_found", f"{asked}: " + (f"use {known}" if known else "the gateway has no models yet")
        )

    # -- what became of it ---------------------------------------------------------------------------

    def report(self, upstream: Upstream, ok: bool | None, *, retry_after_seconds: float = 0.0) -> None:
        """Whether an upstream did its part: False for no connection, no answer, a cut, a 429 or a 5xx.

        None where nobody can tell, such as when the agent hung up.
        """
        if isinstance(upstream, ModelUpstream):
            if ok is None:
                upstream.health.end_trial()
            elif ok:
                upstream.health.succeeded()
            else:
                upstream.health.failed(at_least_seconds=retry_after_seconds)

    def settled(self, upstream: Upstream, usage: Usage | None) -> None:
        """The tokens that a call used there."""
        if isinstance(upstream, ModelUpstream) and usage is not None:
            upstream.rates.settle(usage.input_tokens + usage.output_tokens)

    async def aclose(self) -> None:
        """Close every connection."""
        for link in self._links.values():
            link.close()


def _id_of(entry: ModelEntry, seen: Counter[str]) -> str:
    """The same in every gateway and after every change of settings; equal entries are counted."""
    base = "\n".join([entry.model_name, entry.model or "", entry.provider, entry.url])
    seen[base] += 1
    return f"{base}\n{seen[base]}"


def _precision(model_name: str) -> tuple[bool, int]:
    return not model_name.endswith("*"), len(model_name)


def _at_limit(model: str, upstreams: Sequence[ModelUpstream], wait_seconds: float) -> Refusal:
    names = "; ".join(f"{each.name}: {each.rates.limits}" for each in upstreams)
    return Refusal(
        429,
        "rate_limited",
        f"the upstreams of {model!r} are at their limit ({names}): try again in {wait_seconds:.1f} s",
        retry_after_seconds=wait_seconds,
    )
