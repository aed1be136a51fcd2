"""`LogLevel`: how much a logger wants to hear."""

from enum import IntEnum


class LogLevel(IntEnum):
    """A value is passed on to the loggers whose level is not above its own."""

    DEBUG = 10
    """Only for debugging: observations, actions."""
    PERIODIC = 20
    """Now and then: the running values of training."""
    INFO = 30
    """What people look at: rewards, losses."""
    CRITICAL = 40
    """What every logger must have."""
