"""The user's own hook that takes out of a span what nobody may read, before anything is written.

A hook that fails lets nothing through: the span keeps its numbers and the names that are no content, and says so.
"""

import inspect
import logging
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec

from ...components import load_class
from ...errors import ComponentError, ConfigError
from ...semconv import SHARPEN_REDACTION_ERROR, LightningLLMAttributes
from ..budgets.accounts import INPUT_TOKENS, OUTPUT_TOKENS

logger = logging.getLogger(__name__)

Attributes = dict[str, Any]
Redact = Callable[[Attributes], Attributes]

# Texts that say what a call was, not what was said in it.
_HARMLESS = frozenset(
    {
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.response.model",
        "gen_ai.response.id",
        "gen_ai.response.finish_reasons",
        "gen_ai.agent.name",
        "gen_ai.output.type",
        LightningLLMAttributes.CALL_ID.value,
        LightningLLMAttributes.API.value,
        LightningLLMAttributes.UPSTREAM.value,
        LightningLLMAttributes.ENGINE.value,
        LightningLLMAttributes.ADDED_FIELDS.value,
        LightningLLMAttributes.REFUSED.value,
        LightningLLMAttributes.WEIGHTS_VERSION.value,
    }
)
_COUNTED = (INPUT_TOKENS, OUTPUT_TOKENS, LightningLLMAttributes.COST.value, LightningLLMAttributes.REFUSED.value)


class Redaction:
    """Applies the hook: a function of a span's attributes, or the import path of one (`pkg.module.function`).

    The attributes hold everything that is written of a call: messages, token ids, and the raw exchange where one is
    recorded. The hook gets a copy and returns what may stay; only the numbers that limits are counted by always do.
    """

    def __init__(self, hook: Redact | str | None) -> None:
        self._hook = _load(hook)
        self._name = hook if isinstance(hook, str) else getattr(hook, "__qualname__", repr(type(hook).__name__))
        self._has_failed = False

    def __bool__(self) -> bool:
        return self._hook is not None

    def __call__(self, attributes: Attributes) -> Attributes:
        """What may be written. It never raises."""
        if self._hook is None:
            return attributes
        try:
            return _checked(self._hook(deepcopy(attributes))) | _counted(attributes)
        except Exception as error:  # noqa: BLE001 - the user's code, whatever it does; its text may hold content
            self._tell(error)
            return without_content(attributes) | {SHARPEN_REDACTION_ERROR: type(error).__name__}

    def _tell(self, error: Exception) -> None:
        if not self._has_failed:
            logger.error(
                "the redaction %s raised %s: affected spans are stored without their content and marked; "
                "further failures are not logged",
                self._name,
                type(error).__name__,
            )
        self._has_failed = True


def without_content(attributes: Attributes) -> Attributes:
    """Only numbers, and the texts that are known to hold nothing of what was said. Token ids are content."""
    return {
        name: value for name, value in attributes.items() if name in _HARMLESS or isinstance(value, bool | int | float)
    }


def _counted(attributes: Attributes) -> Attributes:
    """After a restart, what a rollout has spent is read from its spans."""
    return {name: attributes[name] for name in _COUNTED if name in attributes}


def _checked(redacted: Any) -> Attributes:
    if inspect.iscoroutine(redacted):
        redacted.close()
    if not isinstance(redacted, dict) or not all(isinstance(name, str) for name in redacted):
        raise TypeError("a redaction must return a dict of the attributes to store")
    msgspec.json.encode(redacted)
    return redacted


def _load(hook: Redact | str | None) -> Redact | None:
    if isinstance(hook, str):
        try:
            hook = load_class(hook)
        except (ComponentError, ImportError) as error:
            raise ConfigError(f"redact={hook!r} cannot be loaded: {error}") from error
    if hook is None:
        return None
    if not callable(hook) or isinstance(hook, type):
        raise ConfigError(f"redact is {hook!r}: use a function of a span's attributes, or its path 'pkg.module.name'")
    if inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(getattr(hook, "__call__", None)):  # noqa: B004
        raise ConfigError(
            f"redact={hook!r} is async: use a plain function, which is called before each span is written"
        )
    return hook
