"""What one algorithm of a sequence hands on to the next: the resources that were published last.

They stay in the store, where no secret is written down; a checkpoint keeps only where they lie. A run that goes on may
have its gateway at another address, which is put into them then.
"""

import msgspec

from ..errors import RunError
from ..store import LightningStore
from ..types import LLM, NamedResources, ProxyLLM


class HandedOn(msgspec.Struct, frozen=True):
    """Where the resources lie, and where the gateway of the run was at that time."""

    resources_id: str
    version: int
    gateway_address: str | None = None

    @classmethod
    async def latest(cls, store: LightningStore, gateway_address: str | None) -> "HandedOn | None":
        """The resources that were published last, if there are any."""
        found = await store.get_latest_resources()
        return None if found is None else cls(found.resources_id, found.version, gateway_address)

    async def read(self, store: LightningStore, gateway_address: str | None) -> NamedResources:
        """The resources, with the gateway where it is now."""
        found = await store.get_resources_by_id(self.resources_id, self.version)
        if found is None:
            raise RunError(
                f"the store does not have the resources {self.resources_id!r} (version {self.version}) that the "
                "algorithm started with: an in-memory store ends with its process. To be able to resume, use a "
                "persistent store, such as the default one"
            )
        if self.gateway_address is None or gateway_address is None:
            return found.resources
        return moved(found.resources, self.gateway_address, gateway_address)


def moved(resources: NamedResources, old: str, new: str) -> NamedResources:
    """The same with another address of the gateway."""
    found = dict(resources)
    for name, each in resources.items():
        if isinstance(each, ProxyLLM) and is_below(each, old):
            found[name] = msgspec.structs.replace(each, endpoint=new + each.endpoint.removeprefix(old))
    return found


def is_below(llm: LLM, address: str) -> bool:
    return llm.endpoint == address or llm.endpoint.startswith(f"{address}/")
