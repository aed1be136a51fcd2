"""Which models a gateway has, as far as they have names."""

import msgspec

from ...checks import listed


class ListedModels(msgspec.Struct, frozen=True):
    """Names that agents can ask for, and patterns such as `gpt-*` that stand for more."""

    names: list[str]
    patterns: list[str] = []
    open_patterns: list[str] = []
    """Those of which nobody could say what they stand for: every name that fits may be there."""

    def has(self, model: str) -> bool:
        return model in self.names or any(_fits(model, each) for each in self.open_patterns)

    def known(self) -> str:
        """For people."""
        if not self.names and not self.patterns:
            return "the gateway has no models yet"
        stars = f"the upstreams of {listed(self.patterns, limit=20)}"
        if not self.names:
            return f"{stars} list no models"
        return f"available: {listed(self.names, limit=20)}" + (
            f", including those that {stars} list" if self.patterns else ""
        )


def _fits(model: str, pattern: str) -> bool:
    stem = pattern.partition("*")[0]
    return model.startswith(stem)
