"""The result of an action, read from the URL that a browser is redirected to: only counts, so that a link cannot put
text on the page."""

from collections.abc import Mapping

_WORDS = {"cancel": ("cancelled", "had already finished"), "retry": ("enqueued again", "could not be retried")}


def action_report(query: Mapping[str, str]) -> str | None:
    """Return a text such as `3 rollouts cancelled; 1 had already finished.`"""
    words = _WORDS.get(query.get("did", ""))
    done, left = _count(query.get("done")), _count(query.get("left"))
    if words is None or not done + left:
        return None
    said = f"{done:,} rollout{'' if done == 1 else 's'} {words[0]}"
    return f"{said}; {left:,} {words[1]}." if left else f"{said}."


def _count(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 8 else 0
