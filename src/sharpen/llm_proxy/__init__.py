"""The gateway: an OpenAI-compatible proxy between agents and models that records what was sampled."""

from .budgets.budget import Limits, ModelTotals, Totals
from .budgets.prices import Price
from .client import LLMProxyClient
from .models.model_entry import ModelEntry
from .proxy import LLMProxy
from .recording.replay import record_of_rollout

__all__ = ["LLMProxy", "LLMProxyClient", "Limits", "ModelEntry", "ModelTotals", "Price", "Totals", "record_of_rollout"]
