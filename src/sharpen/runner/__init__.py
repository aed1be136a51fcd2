"""Runners: claim rollouts, run agents, report what came of it."""

from .base import LitAgentRunner, Runner, worker_name
from .threads import MainThread, RunnerWornOut, agents_on

__all__ = ["LitAgentRunner", "MainThread", "Runner", "RunnerWornOut", "agents_on", "worker_name"]
