"""The gateway: an OpenAI-compatible proxy between agents and models that records what was sampled."""

from .budgets import Limits, ModelTotals, Totals
from .model_entry import ModelEntry
from .prices import Price
from .proxy import LLMProxy
from .replay import record_of_rollout

__all__ = ["LLMProxy", "Limits", "ModelEntry", "ModelTotals", "Price", "Totals", "record_of_rollout"]
