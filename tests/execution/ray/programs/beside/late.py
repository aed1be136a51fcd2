"""Imported by the agent when it runs."""


def three() -> int:
    return 3
