"""What an action did, carried in the address that a browser is sent to after it: only counts, so that nobody can put
words on the page by a link."""

from collections.abc import Mapping

_WORDS = {"cancel": ("cancelled", "had already finished"), "retry": ("enqueued again", "could not be retried")}


def action_report(query: Mapping[str, str]) -> str | None:
    """`3 rollouts cancelled; 1 had already finished.`"""
    words = _WORDS.get(query.get("did", ""))
    done, left = _count(query.get("done")), _count(query.get("left"))
    if words is None or not done + left:
        return None
    said = f"{done:,} rollout{'' if done == 1 else 's'} {words[0]}"
    return f"{said}; {left:,} {words[1]}." if left else f"{said}."


def _count(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 8 else 0
