"""The training tool: fine-tuning for agents over JSON, as jobs in processes of their own."""

from .requests import ToolParameter
from .tool import RLTrainingTool

__all__ = ["RLTrainingTool", "ToolParameter"]
