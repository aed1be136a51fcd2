"""`sharpen.llm.tools`: the tool for agents, under the path that people know."""

from .tool import RLTrainingTool

__all__ = ["RLTrainingTool"]
