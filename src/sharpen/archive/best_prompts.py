"""The best prompts of a run: files that a search wrote, or what an algorithm published last."""

import asyncio
import re
import shutil
from pathlib import Path

from ..types import NamedResources, PromptTemplate
from .catalog import RunEntry
from .opening import open_store


def copy_prompts(folder: Path, target: Path) -> list[Path]:
    """Copy `best_prompt*.txt` and its difference to the seed."""
    found = sorted([*folder.glob("best_prompt*.txt"), *folder.glob("best_prompt.diff")])
    if found:
        target.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copyfile(path, target / path.name)) for path in found]


def published_prompts(entry: RunEntry) -> dict[str, str]:
    """The prompt templates among the latest resources, by a file name for each."""
    resources = asyncio.run(_latest_resources(entry))
    prompts = {name: each.template for name, each in resources.items() if isinstance(each, PromptTemplate)}
    found: dict[str, str] = {}
    for name, text in prompts.items():
        plain = re.sub(r"[^\w-]+", "_", name)[:100] or "_"
        tries = [plain, *(f"{plain}-{number}" for number in range(2, len(prompts) + 2))]
        found[next(f"{each}.txt" for each in tries if f"{each}.txt" not in found)] = text
    return found


async def _latest_resources(entry: RunEntry) -> NamedResources:
    async with open_store(str(entry.store_path)) as opened:
        latest = await opened.store.get_latest_resources()
    return {} if latest is None else latest.resources
