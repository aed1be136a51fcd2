"""Arguments that Agent Lightning's proxy has and ours does not, and what to use instead."""

from collections.abc import Iterable
from difflib import get_close_matches

from ..errors import ConfigError

INSTEAD = {
    "litellm_config": "its model list is model_list, its retries num_retries, and an entry's litellm_params the rest",
    "num_workers": "one gateway serves thousands of calls at once; for more, start several with different names",
    "launcher_args": "use host, port and launch_mode",
    "middlewares": "redact= changes what is recorded; run other middleware in front of the gateway",
    "callbacks": "every call is a span in the store; redact= changes what is recorded, limits= limits spending",
}


def refuse_unknown_arguments(names: Iterable[str], *, known: Iterable[str]) -> None:
    for name in names:
        if name in INSTEAD:
            raise ConfigError(f"LLMProxy has no {name}: {INSTEAD[name]}")
        near = get_close_matches(name, list(known), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f": use one of {', '.join(known)}"
        raise TypeError(f"LLMProxy got an unexpected argument {name!r}{hint}")
