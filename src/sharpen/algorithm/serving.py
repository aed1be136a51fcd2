"""A model of our own that agents talk to: an engine behind a server, the server behind the gateway.

Training and validation differ in how tokens are sampled, so they are two models for the gateway. What an agent does not
set itself is then right, whether it reads `sampling_parameters` or not.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Protocol

from ..errors import ConfigError, RunError
from ..types import LLM, NamedResources
from .base import Gateway

Entry = Mapping[str, Any]
"""What the gateway has to know of a server, less the names that agents ask for and how tokens are sampled."""

log = logging.getLogger(__name__)

MAIN_LLM = "main_llm"


class ModelGateway(Gateway, Protocol):
    """A gateway whose models can be changed."""

    @property
    def model_list(self) -> list[dict[str, Any]]: ...
    def update_model_list(self, model_list: list[dict[str, Any]]) -> None: ...


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled."""

    temperature: float
    top_p: float
    max_tokens: int
    top_k: int = 0

    def parameters(self) -> dict[str, Any]:
        """For agents, in words that every SDK knows."""
        return {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}

    def defaults(self) -> dict[str, Any]:
        """For the gateway, which adds what a request lacks."""
        return self.parameters() | ({"top_k": self.top_k} if self.top_k > 0 else {})


class PublishedModel:
    """The names under which agents find the model, and the resources that lead them there."""

    def __init__(
        self, gateway: Gateway | None, *, name: str, training: Sampling, validation: Sampling, feature: str = "VERL"
    ) -> None:
        self._gateway = _checked(gateway, feature)
        self._sampling = {name: training, f"{name}:val": validation}
        self.names = frozenset(self._sampling)
        """As agents ask for it, in training and in validation."""
        self.name = name
        self._before: list[dict[str, Any]] = []
        self._llms: dict[str, LLM] = {}

    @contextlib.contextmanager
    def listed(self, entries: Sequence[Entry]) -> Iterator[None]:
        """The gateway answers for the model, beside the models that it had before."""
        self._before = self._gateway.model_list
        self.lead_to(entries)
        # Kept, as a gateway that has died has no address until it is back, where it was.
        self._llms = {name: self._llm(name) for name in self._sampling}
        try:
            yield
        finally:
            try:
                self._gateway.update_model_list(self._before)
            except RunError as error:
                log.debug("the gateway keeps the models of the run: %s", error)

    def lead_to(self, entries: Sequence[Entry]) -> None:
        """From the next call on these servers answer; the gateway keeps a conversation at one of them."""
        ours = [
            {**entry, "model_name": name, "defaults": sampling.defaults()}
            for name, sampling in self._sampling.items()
            for entry in entries
        ]
        others = [each for each in self._before if each.get("model_name", each.get("name")) not in self._sampling]
        self._gateway.update_model_list([*ours, *others])

    def _llm(self, name: str) -> LLM:
        gateway: Any = self._gateway
        found: LLM = gateway.as_resource(model=name, sampling_parameters=self._sampling[name].parameters())
        return found

    def resources(self, others: NamedResources | None, *, is_validation: bool = False) -> NamedResources:
        """The model first, then what agents are given besides."""
        name = f"{self.name}:val" if is_validation else self.name
        return {MAIN_LLM: self._llms[name]} | {key: value for key, value in (others or {}).items() if key != MAIN_LLM}


def model_name(path: str) -> str:
    """What agents call the model: its name on the hub, or that of its folder or file."""
    is_place = path.startswith(("/", ".", "~")) or path.endswith(".gguf")
    return PurePath(path).name if is_place else path


def _checked(gateway: Any, feature: str) -> ModelGateway:
    if gateway is None:
        raise ConfigError(
            f"{feature} needs a gateway between agents and the model: run it with Trainer.fit, or call set_llm_proxy"
        )
    if not isinstance(getattr(type(gateway), "model_list", None), property) or not hasattr(
        gateway, "update_model_list"
    ):
        raise ConfigError(
            f"the gateway is a {type(gateway).__name__}, whose models cannot be changed: use an LLMProxy instead"
        )
    found: ModelGateway = gateway
    return found
