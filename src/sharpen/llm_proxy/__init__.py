"""The gateway: an OpenAI-compatible proxy between agents and models that records what was sampled."""

from .budgets.budget import Limits, ModelTotals, Totals
from .budgets.prices import Price
from .models.model_entry import ModelEntry
from .proxy import LLMProxy
from .recording.replay import record_of_rollout

__all__ = ["LLMProxy", "Limits", "ModelEntry", "ModelTotals", "Price", "Totals", "record_of_rollout"]
