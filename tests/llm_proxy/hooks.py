"""Redactions that a gateway's process imports by their path."""

from typing import Any


def without_messages(attributes: dict[str, Any]) -> dict[str, Any]:
    print("a word on standard output, which belongs to the orders of a gateway's process")
    return {name: value for name, value in attributes.items() if "messages" not in name}
