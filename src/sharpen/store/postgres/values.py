"""Values of callers on their way into a question."""

MAX_BIGINT = 2**63 - 1
_NOWHERE = " "  # no id holds a space


def findable(text: object) -> str:
    """The text as the database can look for it; what no text in it could ever hold is found nowhere."""
    if not isinstance(text, str) or "\0" in text:
        return _NOWHERE
    try:
        text.encode()
    except UnicodeEncodeError:
        return _NOWHERE
    return text


def bounded(number: int | float) -> int:
    """A count or a number that may be larger than any there is."""
    return int(min(number, MAX_BIGINT))
