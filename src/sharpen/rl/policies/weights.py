"""Weights from a file: a safetensors file, or a checkpoint of ours. Nothing is ever unpickled."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ...checkpoints import is_state_file, load_state
from ...errors import ConfigError


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Load the weights of `module` from a safetensors file or from a checkpoint of a trainer."""
    source = Path(path)
    if not source.is_file():
        raise ConfigError(f"there is no weight file {path}")
    try:
        found = _weights_in(load_state(source)) if is_state_file(source) else load_file(source)
    except (ValueError, SafetensorError) as error:
        raise ConfigError(
            f"{path} is not a safetensors file ({error}). A pickled one is never read: save the weights with "
            "safetensors.torch.save_file first"
        ) from error
    if found is None:
        raise ConfigError(f"{path} holds no policy weights: give a checkpoint of a trainer or a safetensors file")
    try:
        missing, unexpected = module.load_state_dict(found, strict=False)
    except RuntimeError as error:  # weights of the right names and another shape
        raise ConfigError(f"the weights in {path} do not fit the network: {error}") from error
    if missing or unexpected:
        raise ConfigError(
            f"the weights in {path} do not fit the network: missing {sorted(missing)}, unknown {sorted(unexpected)}"
        )


def _weights_in(tree: Any) -> dict[str, Tensor] | None:
    """The `weights` of a policy, wherever a trainer, a vessel or a policy put them."""
    while isinstance(tree, dict):
        if isinstance(tree.get("weights"), dict):
            return {name: value for name, value in tree["weights"].items() if isinstance(value, Tensor)}
        tree = tree.get("vessel", tree.get("policy"))
    return None
