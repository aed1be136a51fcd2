"""`python -m sharpen.dashboard [PATH]`: the dashboard over a folder of runs, a run folder or a store file, for testing.

Use `sharpen dashboard` instead: without a token this one is open to every program on this machine.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from ..web.serving import address, listen, new_loop
from .serving import serve_dashboard, source_of


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m sharpen.dashboard", description=__doc__)
    parser.add_argument("path", nargs="?", type=Path, help="a folder of runs, a run folder, or a store file")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--edit-token", help="for testing only: other users can read command lines")
    given = parser.parse_args(arguments)
    bound = listen("127.0.0.1", given.port)
    url = address("127.0.0.1", bound.getsockname()[1])
    source = source_of(given.path)

    def ready() -> None:
        sys.stderr.write(f"{url}/\n")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve_dashboard(source, bound, ready=ready, edit_token=given.edit_token))


if __name__ == "__main__":
    main()
