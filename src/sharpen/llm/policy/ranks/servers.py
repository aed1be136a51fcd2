"""A policy behind an OpenAI-compatible API: one server for each of its ranks, which hold the same weights."""

from collections.abc import Mapping
from typing import Any, Self

from ...server import EngineServer
from ..policy import LocalPolicy
from .messages import Serve
from .ranked_policy import RankedPolicy


class PolicyServers:
    """Serves every rank of a policy under `name`; a policy on one device has one server. See `EngineServer`."""

    def __init__(
        self,
        policy: LocalPolicy,
        *,
        name: str,
        seed: int | None = None,
        rollout_prefix: str = "",
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._policy = policy
        kwargs = None if chat_template_kwargs is None else dict(chat_template_kwargs)
        self._order = Serve(name, seed, rollout_prefix, kwargs)
        self._own = EngineServer(
            policy.engine,
            policy.tokenizer,
            name=name,
            seed=seed,
            rollout_prefix=rollout_prefix,
            chat_template_kwargs=chat_template_kwargs,
        )
        self.base_urls: list[str] = []
        """Where clients find the model; empty before the start."""

    def start(self) -> Self:
        """Returns when all answer."""
        self._own.start()
        try:
            others = self._policy.serve(self._order) if isinstance(self._policy, RankedPolicy) else []
        except BaseException:
            self._own.stop()
            raise
        self.base_urls = [self._own.base_url, *others]
        return self

    def stop(self) -> None:
        """Take no more requests; those under way are refused. It may be called twice, and before any start."""
        self._own.stop()
        if isinstance(self._policy, RankedPolicy):
            self._policy.stop_serving()
        self.base_urls = []

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
