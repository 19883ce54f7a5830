"""A process on a bus: prints the peers that it finds and loses, and echoes each message.

python -m tests.contract.bus_peer <sqlite file or redis url> <prefix> <name>
"""

import asyncio
import sys

from tests.contract.buses import IDENTITY

from trunkline.stores.bus import Bus
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.sqlite.store import SqliteStore


class Echo:
    """A listener that echoes."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def heard(self, sender: str, message: bytes) -> None:
        self._bus.send(sender, message)

    def met(self, name: str) -> None:
        print("met", name, flush=True)

    def lost(self, name: str | None) -> None:
        print("lost", name, flush=True)

    def rejected(self, why: str) -> None:
        print("rejected", why, flush=True)


async def main(where: str, prefix: str, name: str) -> None:
    store = RedisStore(where, prefix=prefix) if where.startswith("redis:") else SqliteStore(where)
    bus = store.bus()
    assert bus is not None
    await bus.open(name, Echo(bus), IDENTITY)
    print("open", name, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        from uvloop import new_event_loop
    except ImportError:
        from asyncio import new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:  # as servers run
        runner.run(main(*sys.argv[1:]))
