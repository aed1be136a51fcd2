"""The served store of a run, open to those who hold its token: runners apart, and whoever looks at the run."""

import contextlib
from collections.abc import Iterator, Sequence

from ..store import LightningStore
from ..store.token_files import given_token, left_in_file, port_of, token_file
from .mounts import Mount, announce
from .serving import Served, new_token, serve


@contextlib.contextmanager
def served_openly(
    store: LightningStore, *, managed: bool | None, host: str, port: int | None, mounts: Sequence[Mount]
) -> Iterator[Served]:
    """Served with the token that the user has set, or with one of its own that is left in a file."""
    token = given_token() or new_token()
    served = serve(store, managed=managed, host=host, port=port, token=token, mounts=mounts)
    with contextlib.ExitStack() as stack:
        if served.token == token:
            file = None if given_token() else token_file(host, port_of(served.url))
            if file is not None:
                stack.enter_context(left_in_file(file, token))
            announce(mounts, served.url, token, file)
        yield served
