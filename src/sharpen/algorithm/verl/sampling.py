"""How tokens are sampled, as the settings say it."""

from ..serving import Sampling
from .config import VERLConfig


def training_sampling(config: VERLConfig) -> Sampling:
    rollout = config.rollout
    return Sampling(rollout.temperature, rollout.top_p, config.data.max_response_length, rollout.top_k)


def validation_sampling(config: VERLConfig) -> Sampling:
    values = config.rollout.val_kwargs
    temperature = values.temperature if values.do_sample else 0.0
    return Sampling(temperature, values.top_p, config.data.max_response_length, values.top_k)
