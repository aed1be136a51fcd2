"""Whether a model on this machine can read chat messages."""

import json
from pathlib import Path

from ..errors import ConfigError


def check_chat_template(model_name: str) -> None:
    """A model folder has a chat template. A name of the hub is left to the trainer: nothing is downloaded here."""
    folder = Path(model_name).expanduser()
    if not folder.is_dir():
        if model_name.startswith((".", "/", "~")):
            raise ConfigError(
                f"model_name is {model_name!r}, but that folder does not exist: pass the folder of the model to train"
            )
        return
    settings = folder / "tokenizer_config.json"
    if not settings.is_file() or any(
        (folder / name).exists() for name in ("chat_template.jinja", "chat_template.json")
    ):
        return
    try:
        template = json.loads(settings.read_text(encoding="utf-8")).get("chat_template")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"cannot read {str(settings)!r}: {error}") from error
    if not template:
        raise ConfigError(
            f"the model in {model_name!r} has no chat template, so it cannot read chat messages: use an "
            "instruction-tuned model, or add a chat_template.jinja to its folder"
        )
