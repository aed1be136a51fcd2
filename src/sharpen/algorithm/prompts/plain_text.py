"""Text of models and users made safe to show: nothing in it moves a cursor, colours a terminal or turns a line around.

Prompts and critiques hold whatever a model wrote. What is shown of them is text, and only text.
"""

import unicodedata

# Controls and half characters, the ends of lines and paragraphs, and the marks that turn text around or have no shape.
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def one_line(text: str) -> str:
    """The text on one line, with single spaces and without hidden characters."""
    if text.isprintable():  # the common case, without a look at each character
        return " ".join(text.split())
    shown = "".join("" if unicodedata.category(char) == "Cf" else _spaced(char) for char in text)
    return " ".join(shown.split())


def escaped(text: str, *, keep: str = "") -> str:
    """The text with hidden characters spelt out (`\\x1b`), but for those to keep."""
    if text.isprintable():
        return text
    return "".join(char if char in keep or not is_hidden(char) else _spelt(char) for char in text)


def is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN


def clipped(text: str, width: int) -> str:
    """What fits into `width` columns, where a Chinese character takes two; an ellipsis says that there is more."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…" if width > 0 else ""


def _spaced(char: str) -> str:
    return " " if is_hidden(char) else char


def _spelt(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
