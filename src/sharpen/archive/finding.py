"""Finding one rollout, or one attempt of it, by what a person calls it."""

from collections.abc import Sequence

from ..checks import nearest_names
from ..errors import InvalidInputError, UnknownIdError
from ..store import LightningStore
from ..types import Attempt, Rollout
from .catalog import LAST

_SHOWN = 5
_ID_LENGTH = 8  # from here on digits are a part of an id, and no number
_NEAR = 500  # of the newest ids the nearest are told where there is no such rollout


async def find_rollout(store: LightningStore, text: str) -> Rollout:
    """The rollout with this id, or the only one whose id holds it; `last` is the newest."""
    if not text.strip():
        raise InvalidInputError("the rollout is an empty text: give its id, a part of it, or 'last'")
    found = await store.get_rollout_by_id(text)
    if found is not None:
        return found
    if text == LAST:
        return await _newest(store)
    page = await store.query_rollouts(rollout_id_contains=text, limit=_SHOWN + 1)
    if len(page) == 1:
        return await store.get_rollout_by_id(page[0].rollout_id) or page[0]
    if len(page):
        shown = ", ".join(each.rollout_id for each in page[:_SHOWN]) + (", ..." if len(page) > _SHOWN else "")
        raise UnknownIdError(f"{page.total} rollouts have {text!r} in their ids: {shown}; give more of the id")
    raise UnknownIdError(f"there is no rollout {text!r}{await _nearest(store, text)}")


async def _newest(store: LightningStore) -> Rollout:
    page = await store.search_rollouts(order="newest", limit=1)
    if not page.items:
        raise UnknownIdError("there are no rollouts in this store")
    return page.items[0]


async def _nearest(store: LightningStore, text: str) -> str:
    page = await store.search_rollouts(order="newest", limit=_NEAR)
    ids = [each.rollout_id for each in page.items]
    near = nearest_names(text, ids, cutoff=0.4) or ids[:3]
    return f": the nearest are {', '.join(near)}" if near else ": the store has none"


def find_attempt(attempts: Sequence[Attempt], text: str) -> Attempt:
    """The attempt with this number, counted from 1, or with this id or a part of it that no other has."""
    if text.isdecimal() and len(text) < _ID_LENGTH:
        found = [each for each in attempts if each.sequence_id == int(text)]
    else:
        same = [each for each in attempts if each.attempt_id == text]
        found = same or [each for each in attempts if text and text in each.attempt_id]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{each.sequence_id} ({each.attempt_id})" for each in attempts) or "none"
    problem = f"{len(found)} attempts fit {text!r}" if found else f"there is no attempt {text!r}"
    raise UnknownIdError(f"{problem}: the rollout has {known}")
