"""Runners: claim rollouts, run agents, report what came of it."""

from .agent import LitAgentRunner
from .base import Runner
from .threads import MainThread, RunnerWornOut, agents_on
from .worker import worker_name

__all__ = ["LitAgentRunner", "MainThread", "Runner", "RunnerWornOut", "agents_on", "worker_name"]
