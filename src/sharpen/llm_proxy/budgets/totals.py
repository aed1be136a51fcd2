"""What the calls of a gateway came to."""

import msgspec


class ModelTotals(msgspec.Struct):
    """The totals of one model. Only calls that have ended count."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    errors: int = 0


class Totals(msgspec.Struct):
    """The totals of a gateway, including those before a restart. Costs are in US dollars."""

    calls: int = 0
    refused: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    errors: int = 0
    unpriced: int = 0
    """Calls whose cost is unknown; they add nothing to the cost."""
    estimated: int = 0
    """Calls whose upstream did not report all their tokens, which were estimated from the text."""
    lost: int = 0
    """Calls whose span never reached the store, since the gateway started."""
    by_model: dict[str, ModelTotals] = {}

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens
