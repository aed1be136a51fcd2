"""Models on the Hugging Face hub, fetched into its cache folder."""

import os
import sys
from pathlib import Path

from ...errors import MissingExtraError, text_of
from ..errors import ModelError

# Weights as safetensors, tokenizer, templates and settings; not the same weights in other formats.
_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
_UNWANTED = ["*/*", "consolidated*"]


def hub_folder(name: str, *, allow_download: bool = True, trust_remote_code: bool = False) -> Path:
    """The folder that holds a model of the hub, downloaded if it is not there yet."""
    turn_telemetry_off()
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingExtraError.of("huggingface_hub", extra="llm", feature="a model from the hub") from error
    wanted = [*_WANTED, "*.py"] if trust_remote_code else _WANTED
    try:
        found = snapshot_download(
            name, allow_patterns=wanted, ignore_patterns=_UNWANTED, local_files_only=not allow_download
        )
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(text_of(error).split())[:300]
        raise ModelError(f"the model {name!r} cannot be found: {_advice(allow_download)} ({reason})") from error
    return Path(found)


def turn_telemetry_off() -> None:
    """Nothing is reported to the hub about what is used, unless the user's environment says otherwise."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None and os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1":
        vars(constants)["HF_HUB_DISABLE_TELEMETRY"] = True  # It read the variable when it was imported.


def _advice(allow_download: bool) -> str:
    if allow_download:
        return "no folder here has that name, and the hub did not give it: check name and connection, or give a folder"
    return (
        "no folder here has that name, it was not downloaded before, and allow_download is off: "
        "turn it on, or give a folder"
    )
