"""A server with a control socket in a folder. Its calls wait until the file `go` is there."""

import asyncio
import logging
import sys
import time
from pathlib import Path

from trunkline import Server, Settings, SqliteStore
from trunkline.supervision.children import ProcessChild

folder = Path(sys.argv[1])
folder.mkdir(0o700)
logging.basicConfig(filename=folder / "log")
settings = Settings(control_folder=str(folder), slow_call=0.5 if "slow" in sys.argv else None)
server = Server("shop", settings=settings, store=SqliteStore(str(folder / "store.db")))


@server.tool
async def wait() -> str:
    """Wait on the loop."""
    while not (folder / "go").exists():
        await asyncio.sleep(0.02)
    return "done"


@server.tool
def block() -> str:
    """Wait on a thread."""
    while not (folder / "go").exists():
        time.sleep(0.02)
    return "done"


@server.tool
async def hog() -> None:
    """Block the loop until the log says where."""
    while "in hog" not in (folder / "log").read_text():
        time.sleep(0.02)


failures: list[int] = []


async def poll() -> None:
    """Fail once."""
    if not failures:
        failures.append(1)
        raise ConnectionError("it has moved")
    await asyncio.Event().wait()


@server.tool
async def supervise() -> None:
    """Add children to the supervision tree."""
    server.supervise("poll", poll)
    server.supervise("sleep", ProcessChild("sleep", "600"))


if __name__ == "__main__":
    server.run("http", port=0)
