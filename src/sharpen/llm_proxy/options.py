"""How the heart of a gateway behaves. `Gateway` and `GatewayApplication` take the same one."""

from typing import Any

import msgspec

MAX_BODY_BYTES = 64 * 2**20


class GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds; None means that only `timeout_seconds` bounds it."""

    timeout_seconds: float = 600.0
    """For one call from the first word to its upstream until the last byte; waiting in a pause does not count."""
    first_byte_seconds: float | None = None
    """Until the upstream begins to answer, for each try."""
    chunk_seconds: float | None = None
    """From piece to piece of an answer."""
    num_retries: int = 0
    token: str | None = None
    """What callers must show, as `Authorization: Bearer` or `x-api-key`."""
    open_attempts: bool = False
    """Whether calls under the URL of an open attempt need no token: its id is their credential."""
    hosts: frozenset[str] | None = None
    """Names under which the gateway is served; None serves every name."""
    max_body_bytes: int = MAX_BODY_BYTES

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        return list((shown | {"token": self.token and "***"}).items())

    def __repr__(self) -> str:
        return f"GatewayOptions({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"
