"""One rollout behind a real gateway, and the model server behind that."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sharpen import InMemoryLightningStore
from sharpen.llm_proxy import LLMProxy
from sharpen.semconv import SHARPEN_LLM_CALL
from sharpen.types import AttemptedRollout, Span

from .scripted import ScriptedUpstream

T = TypeVar("T")


class Scene:
    """Where to ask directly, where to ask through the gateway, and what was recorded."""

    def __init__(self, upstream: ScriptedUpstream, proxy: LLMProxy, store: Any, rollout: AttemptedRollout) -> None:
        self.upstream, self.proxy, self.store, self.rollout = upstream, proxy, store, rollout
        self.direct_url, self.direct_anthropic_url = upstream.base_url, upstream.anthropic_url
        place = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        self.gateway_anthropic_url = proxy.as_resource(**place, model="scripted").endpoint.removesuffix("/v1")
        self.gateway_url = f"{self.gateway_anthropic_url}/v1"

    def spans(self) -> list[Span]:
        """The calls that the gateway recorded, in order."""
        found = asyncio.run(self.store.query_spans(self.rollout.rollout_id, name=SHARPEN_LLM_CALL))
        return list(found)

    def both(self, ask: Callable[[str], T]) -> tuple[T, T]:
        """The same question, directly and through the gateway."""
        return ask(self.direct_url), ask(self.gateway_url)


@contextmanager
def scene(upstream: ScriptedUpstream, **settings: Any) -> Iterator[Scene]:
    entry = {"model_name": "*", "model": "*", "base_url": upstream.base_url, "api_key": "sk-upstream"}
    store = InMemoryLightningStore()
    rollout = asyncio.run(store.start_rollout({"question": 1}))
    proxy = LLMProxy(model_list=[entry | settings.pop("entry", {})], store=store, launch_mode="thread", **settings)
    proxy.start_sync()
    try:
        yield Scene(upstream, proxy, store, rollout)
    finally:
        proxy.stop_sync()


def wait_until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """What the condition gives once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)
    return found
