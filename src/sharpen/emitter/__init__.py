"""What agents add to their trace, and how it is read back."""

from .emit import emit_annotation, emit_exception, emit_message, emit_object, get_message_value, get_object_value
from .operation import operation
from .reward import (
    RewardDimension,
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
    reward,
)

__all__ = [
    "RewardDimension",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "find_final_reward",
    "find_reward_spans",
    "get_message_value",
    "get_object_value",
    "get_reward_value",
    "get_rewards_from_span",
    "is_reward_span",
    "operation",
    "reward",
]
