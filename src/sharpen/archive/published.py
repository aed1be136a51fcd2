"""What a run published last: a version of resources in its store, and the versions with the same prompts.

A search tries every candidate as a version of its own and publishes the best once more at its end, so the rewards of
what was published may stand under an earlier version.
"""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from ..store import LightningStore
from ..types import NamedResources, PromptTemplate
from .catalog import RunEntry
from .run_files import RunFiles

Version: TypeAlias = tuple[str | None, int | None]
Prompts: TypeAlias = Mapping[str, PromptTemplate]
_TOGETHER = 32


class _Candidate(msgspec.Struct):
    version: str
    prompts: dict[str, PromptTemplate]


class _Candidates(msgspec.Struct):
    candidates: list[_Candidate]
    best_version: str | None = None


def published_version(entry: RunEntry) -> Version:
    """What its result says; nothing while it works, as what is written there is of an earlier start."""
    if entry.state not in ("succeeded", "failed", "interrupted"):
        return None, None
    result = RunFiles(entry.path).result()
    return result.get("resources_id"), result.get("resources_version")


def best_prompts(entry: RunEntry) -> Prompts:
    """Those of the best candidate of its last search; none where it searched for no prompts."""
    folders = entry.prompt_folders()
    return _best_in(folders[-1] / "candidates.json") if folders else {}


def _best_in(path: Path) -> Prompts:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Candidates)
    except (OSError, msgspec.MsgspecError):
        return {}  # a damaged file tells nothing: the rewards still do
    prompts = {each.version: each.prompts for each in found.candidates}
    # While none is named, the seed is the best.
    return prompts.get(found.best_version or next(iter(prompts), ""), {})


async def versions_with(store: LightningStore, prompts: Prompts, versions: Collection[Version]) -> set[Version]:
    """Those of the versions whose prompts are these."""
    wanted, known = dict(prompts), [each for each in versions if each[0] is not None] if prompts else []
    found: set[Version] = set()
    for start in range(0, len(known), _TOGETHER):
        part = known[start : start + _TOGETHER]
        read = await asyncio.gather(*(prompts_of(store, each) for each in part))
        found |= {version for version, each in zip(part, read, strict=True) if each == wanted}
    return found


async def prompts_of(store: LightningStore, version: Version) -> dict[str, PromptTemplate]:
    """The prompts in a version of resources."""
    if version[0] is None:
        return {}
    found = await store.get_resources_by_id(version[0], version[1])
    resources: NamedResources = {} if found is None else found.resources
    return {name: each for name, each in resources.items() if isinstance(each, PromptTemplate)}
