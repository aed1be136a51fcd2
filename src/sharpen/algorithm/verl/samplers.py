"""Who samples for the agents: our own engine on the very weights that are trained, vLLM beside it, or a server of
somebody else's.

Our engine has new weights as soon as they are there. vLLM is given them after every step: an adapter while it runs, or
all weights by a new start. A server of somebody else's keeps the weights that it has, so what it samples needs more and
more correction, and teaches less and less.
"""

import logging
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from ...errors import ConfigError
from ...llm.policy.policy import LocalPolicy
from ...llm.policy.ranks.servers import PolicyServers
from ...llm.server.vllm import VLLMServer
from ..serving import Entry
from .config import VERLConfig

log = logging.getLogger(__name__)


class Sampler(Protocol):
    """Answers calls from `start` to `stop`."""

    def start(self) -> object: ...
    def stop(self) -> None: ...
    def entries(self) -> list[Entry]: ...

    def take(self, policy: LocalPolicy) -> bool:
        """Sample with the newest weights from now on; whether the entries are others now."""


def with_engine_here(config: VERLConfig) -> VERLConfig:
    """The config with an engine that can run here: our own where vLLM is asked for, as in most published configs, and
    is not installed."""
    if config.rollout.name != "vllm" or find_spec("vllm") is not None:
        return config
    log.warning(
        "actor_rollout_ref.rollout.name is vllm, which is not installed; using the built-in engine instead. "
        "Run pip install vllm to use it, or set rollout.name=sharpen"
    )
    return replace(config, rollout=replace(config.rollout, name="sharpen", tensor_model_parallel_size=1))


def make_sampler(config: VERLConfig, policy: LocalPolicy, *, name: str, rollout_prefix: str) -> Sampler:
    kind = config.rollout.name
    if kind == "vllm":
        return VLLMSampler(config, policy, name=name)
    if kind == "openai":
        return ForeignSampler(config.rollout.base_url, name=name)
    return OwnSampler(config, policy, name=name, rollout_prefix=rollout_prefix)


class OwnSampler:
    """Our engine, one on every device that trains."""

    def __init__(self, config: VERLConfig, policy: LocalPolicy, *, name: str, rollout_prefix: str) -> None:
        self._name = name
        self._servers = PolicyServers(
            policy,
            name=name,
            seed=config.rollout.seed,
            rollout_prefix=rollout_prefix,
            chat_template_kwargs=config.data.apply_chat_template_kwargs or None,
        )

    def start(self) -> object:
        return self._servers.start()

    def stop(self) -> None:
        self._servers.stop()

    def entries(self) -> list[Entry]:
        return [{"model": self._name, "base_url": url, "engine": "sharpen"} for url in self._servers.base_urls]

    def take(self, policy: LocalPolicy) -> bool:
        return False


class VLLMSampler:
    """vLLM in a process of its own. Its weights are those of a folder that is written after each step."""

    def __init__(self, config: VERLConfig, policy: LocalPolicy, *, name: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sharpen-weights-")
        self._is_lora = policy.trainable.kind == "lora"
        if config.algorithm.max_staleness and not self._is_lora:
            raise ConfigError(
                "algorithm.max_staleness is above 0, but vLLM restarts for new full weights, and running calls would "
                "be lost: train an adapter (actor_rollout_ref.model.lora_rank), or use rollout.name=sharpen"
            )
        ranks = [each.r for each in getattr(policy.model, "peft_config", {}).values()]
        options = {"tensor-parallel-size": config.rollout.tensor_model_parallel_size, "seed": config.rollout.seed}
        if config.rollout.max_num_seqs is not None:
            options["max-num-seqs"] = config.rollout.max_num_seqs
        self._server = VLLMServer(
            _base_of(policy, config),
            name=name,
            lora_rank=max(ranks) if self._is_lora else None,
            options=options,
        )
        # A new adapter changes nothing yet, so vLLM begins with the weights of the policy; other beginnings are taken.
        self._taken = 0 if policy.source.base is None else None
        self._written: list[Path] = []

    def start(self) -> object:
        return self._server.start()

    def stop(self) -> None:
        self._server.stop()
        self._folder.cleanup()

    def entries(self) -> list[Entry]:
        return [{name: value for name, value in self._server.model_entry().items() if name != "name"}]

    def take(self, policy: LocalPolicy) -> bool:
        if policy.weights_version == self._taken:
            return False
        folder = Path(self._folder.name) / f"v{policy.weights_version}"
        policy.save_model(folder)
        if self._is_lora:
            self._server.load_adapter(folder, policy.weights_version)
        else:
            self._server.load_model(folder, policy.weights_version)
        self._taken = policy.weights_version
        self._written.append(folder)
        while len(self._written) > (2 if self._is_lora else 1):  # the adapter before stays for calls that still name it
            shutil.rmtree(self._written.pop(0), ignore_errors=True)
        return True


class ForeignSampler:
    """A server that somebody else runs, at an address."""

    def __init__(self, base_url: str | None, *, name: str) -> None:
        if base_url is None:
            raise ConfigError(
                "rollout.name is openai: set actor_rollout_ref.rollout.base_url to the address of the server"
            )
        self._entry = {"model": name, "base_url": base_url, "weights_version": "0"}

    def start(self) -> object:
        log.warning("%s keeps its own weights: the trained policy is not used for sampling", self._entry["base_url"])
        return self

    def stop(self) -> None:
        """It is not ours to stop."""

    def entries(self) -> list[Entry]:
        return [dict(self._entry)]

    def take(self, policy: LocalPolicy) -> bool:
        return False


def _base_of(policy: LocalPolicy, config: VERLConfig) -> str:
    """What vLLM starts with; an adapter is given to it afterwards."""
    source = policy.source.base or policy.source
    return str(source.path) if source.path is not None else config.model.path
