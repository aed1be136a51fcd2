"""A transcript as one JSON value, for programs."""

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from ..archive.transcript import Transcript


def as_json(transcript: "Transcript", *, with_spans: bool, with_tokens: bool) -> dict[str, Any]:
    """Return the transcript; spans and tokens only if requested. Each attempt says why it ended."""
    from ..archive.lookup import why_ended

    found: dict[str, Any] = msgspec.structs.asdict(transcript)
    found["attempts"] = [{**msgspec.to_builtins(each), "why_ended": why_ended(each)} for each in transcript.attempts]
    if not with_spans:
        del found["spans"]
    if not with_tokens:
        found["entries"] = [msgspec.structs.replace(entry, tokens=None) for entry in transcript.entries]
    return found
