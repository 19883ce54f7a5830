"""Server processes to be attacked over HTTP: on either loop, with and without a store, with and without workers.

The attacker shares nothing with them but sockets. A process that logs an error, or loses a worker, has failed.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from msgspec import Struct
from tests.attacks.raw import ask, request, text_of
from tests.modern import enveloped, headers_of
from tests.processes import PATIENCE, children, command, eventually

SCRIPT = """
    import asyncio, json, sys
    options = json.loads(sys.argv[1])
    if options["loop"] == "asyncio":
        sys.modules["uvloop"] = None
    from trunkline import Server
    from trunkline.stores.sqlite.store import SqliteStore

    server = Server("attacked", store=SqliteStore(options["store"]) if options["store"] else None)

    opened = []  # servers, which a collection of garbage would close

    @server.tool
    async def waits() -> str:
        await asyncio.sleep(0.001)
        return "done"

    @server.tool
    async def leaks() -> str:
        asyncio.get_running_loop().call_soon(server.notify_list_changed, "nonsense")
        return "done"

    @server.tool
    async def opens() -> str:
        class Broken(asyncio.Protocol):
            def connection_made(self, transport):
                transport.write(bytes(1 << 24))
            def pause_writing(self):
                raise RuntimeError("cannot pause")
        opened.append(await asyncio.get_running_loop().create_server(Broken, "127.0.0.1", 0))
        return str(opened[-1].sockets[0].getsockname()[1])

    server.run("http", port=0, **({"workers": 2} if options["workers"] else {}))
"""


class Configuration(Struct, frozen=True):
    """The configuration of a server process."""

    loop: str
    store: bool = False
    workers: bool = False

    def __str__(self) -> str:
        return "-".join([self.loop, "store" if self.store else "memory", *(["workers"] if self.workers else [])])


EVERY = [
    Configuration(loop, store, workers)
    for loop in ("uvloop", "asyncio")
    for store in (True, False)
    for workers in (True, False)
]


class ServerProcess:
    """A server in one process, or in three: a supervisor and two workers."""

    def __init__(self, configuration: Configuration, folder: Path) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        store = str(folder / "store.db") if configuration.store else None
        options = {"loop": configuration.loop, "store": store, "workers": configuration.workers}
        self.process = subprocess.Popen([*command(SCRIPT), json.dumps(options)], stderr=self._log)
        self._configuration = configuration
        self.port = 0
        self.workers: set[int] = set()

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self._started)
        except BaseException:
            self._stop()
            raise
        return self

    def _started(self) -> None:
        eventually(lambda: self.process.poll() is not None or " listens at " in self.log(), every=0.02)
        found = re.search(r"listens at http://127\.0\.0\.1:(\d+)/mcp", self.log())
        assert found is not None, self.log()
        self.port = int(found[1])
        if self._configuration.workers:
            self.workers = eventually(lambda: len(found := children(self.process.pid)) == 2 and found)

    async def __aexit__(self, kind: object, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        code = None
        try:
            code = await asyncio.to_thread(self.process.wait, PATIENCE)
        finally:
            said = self.log()
            self._stop()
        if kind is None:
            assert code == 0, said

    def _stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def log(self) -> str:
        """Return the process's standard error so far."""
        return os.pread(self._log.fileno(), 1 << 22, 0).decode()

    async def call(self, name: str) -> str:
        """Call a tool over a new connection without a session."""
        answer = await ask(self.port, "POST", "/mcp", *modern_call(name))
        return text_of(answer.json)

    async def check_unharmed(self, tools: tuple[str, ...] = ("waits",)) -> None:
        """Fail unless every process is the one that was started, answers, and has logged no error."""
        for _ in range(2):  # one for each worker: connections go round-robin
            for tool in tools:
                assert await self.call(tool) == "done"
        assert self.process.poll() is None, self.log()
        if self._configuration.workers:
            assert children(self.process.pid) == self.workers, self.log()
        for trace in ("Traceback", "incident", "Exception", "failed"):
            assert trace not in self.log(), self.log()


def modern_call(name: str) -> tuple[Any, ...]:
    """Return body and headers of a modern tool call."""
    params = enveloped(name=name, arguments={})
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return (body, *((key.replace("_", "-"), value) for key, value in headers_of("tools/call", params).items()))


def modern_request(name: str) -> bytes:
    """Return the bytes of a modern tool call."""
    return request("POST", "/mcp", *modern_call(name))
