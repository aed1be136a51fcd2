"""What the calls of a gateway came to."""

import msgspec


class ModelTotals(msgspec.Struct):
    """What the calls of one model came to. Only calls that ended count here."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    errors: int = 0


class Totals(msgspec.Struct):
    """What the calls of a gateway came to, also those before a restart. Cost is in US dollars."""

    calls: int = 0
    refused: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    errors: int = 0
    unpriced: int = 0
    """Calls whose cost nobody knows; they add nothing to the cost."""
    estimated: int = 0
    """Calls whose upstream did not tell their tokens, or not all: they were counted from what was read."""
    lost: int = 0
    """Calls whose span never reached the store, since the gateway started."""
    by_model: dict[str, ModelTotals] = {}

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens
