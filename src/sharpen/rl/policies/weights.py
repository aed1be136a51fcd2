"""Weights from a file: a safetensors file, or a checkpoint of ours. Nothing is ever unpickled."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...callbacks.state_file import FORMAT, load_state
from ...errors import ConfigError


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Load the weights of `module` from a safetensors file or from a checkpoint of a trainer."""
    found = _weights_in(load_state(Path(path))) if _is_state_file(Path(path)) else _plain(Path(path))
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


def _is_state_file(path: Path) -> bool:
    """Whether the file is a tree of ours; a foreign file is an error that says what it is."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ConfigError(f"there is no weight file {path}")
    try:
        with safe_open(path, framework="pt") as opened:
            return (opened.metadata() or {}).get("format") == FORMAT
    except SafetensorError as error:
        raise ConfigError(
            f"{path} is no safetensors file ({error}). A pickled one is never read: "
            "save the weights with safetensors.torch.save_file first"
        ) from error


def _plain(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def _weights_in(tree: Any) -> dict[str, Tensor] | None:
    """The `weights` of a policy, wherever a trainer, a vessel or a policy put them."""
    while isinstance(tree, dict):
        if isinstance(tree.get("weights"), dict):
            return {name: value for name, value in tree["weights"].items() if isinstance(value, Tensor)}
        tree = tree.get("vessel", tree.get("policy"))
    return None
