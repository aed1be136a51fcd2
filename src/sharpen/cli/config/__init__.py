"""Configuration files: YAML in which every value knows where it came from, and what they ask for."""

from .train_config import Kind, TrainConfig, load_config

__all__ = ["Kind", "TrainConfig", "load_config"]
