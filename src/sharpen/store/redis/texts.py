"""Texts that Redis can be asked for: what cannot be written as UTF-8 stands nowhere in it."""


def is_text(value: object) -> bool:
    """Whether it is a text that can be written: a lone half of a surrogate pair, for one, cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
