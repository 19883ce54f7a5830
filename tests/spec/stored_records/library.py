"""A server with one of everything that a store keeps, and the calls that leave it there.

`python -m tests.spec.stored_records.library NAME` writes the records of the installed release to `NAME.json`. Do so
before a change of their layout, so that the tests keep reading the old one.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.attacks.raw import INITIALIZED, ask, call, initialize
from tests.limits import PATIENCE

from trunkline import Context, Server, Settings, TaskPolicy
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.transports.addresses import parse_address

HERE = Path(__file__).parent
KEY = "trunkline/idempotency-key"
SESSION = "session"  # names in the file for ids that the server has chosen
FINISHED = "finished task"
WORKING = "working task"
BECAME = "task of a key"


def make_server(store: SqliteStore, held: asyncio.Event) -> Server:
    """The server. Its records outlive it. `held` is set when a call of `hold` has begun."""
    server = Server("library", store=store, settings=Settings(drain_timeout=0.1, session_ttl=86400.0))

    @server.resource("books://shelf")
    def shelf() -> str:
        return "three books"

    @server.tool
    async def lend(book: str) -> str:
        return f"{book} is lent"

    @server.tool
    async def lose(book: str) -> str:
        raise ValueError(f"{book} is lost")

    @server.tool
    async def hold(book: str) -> str:
        held.set()
        await asyncio.Event().wait()
        return book

    @server.tool(task=TaskPolicy(support="optional", recovery="resume"))
    async def sort(ctx: Context, pages: int) -> str:
        if ctx.resumed_from is not None:
            return f"sorted from page {ctx.resumed_from}"
        if pages > 1:
            await ctx.checkpoint(pages - 1)
            await asyncio.Event().wait()
        return "sorted"

    return server


async def fill(port: int, held: asyncio.Event) -> dict[str, str]:
    """Leave one of everything; return the ids that the server has chosen."""

    opened = await ask(port, "POST", "/mcp", initialize(tasks={"requests": {}}))
    session = opened.session
    await post(port, session, INITIALIZED)
    await post(port, session, call("logging/setLevel", {"level": "warning"}))
    await post(port, session, call("resources/subscribe", {"uri": "books://shelf"}))
    await post(port, session, tool("lend", "a key", book="Emma"))
    await post(port, session, tool("lose", "a key that failed", book="Emma"))
    holding = asyncio.ensure_future(post(port, session, tool("hold", "a key in progress", book="Emma")))
    await held.wait()
    holding.cancel()
    tasks = {
        FINISHED: tool("sort", task=True, pages=1),
        WORKING: tool("sort", task=True, pages=3),
        BECAME: tool("sort", "a key of a task", task=True, pages=1),
    }
    ids = {name: (await post(port, session, message))["result"]["task"]["taskId"] for name, message in tasks.items()}
    for name in (FINISHED, BECAME):
        await wait_until_ended(port, session, ids[name])
    return {SESSION: session, **ids}


async def post(port: int, session: str, message: Any) -> Any:
    """Post a message in a session; return the response."""
    answer = await ask(port, "POST", "/mcp", message, mcp_session_id=session, mcp_protocol_version="2025-11-25")
    return answer.json if answer.body else None


def tool(name: str, key: str | None = None, *, task: bool = False, **arguments: Any) -> Any:
    """A call of a tool, with a key or as a task."""
    more = {} if key is None else {"_meta": {KEY: key}}
    return call("tools/call", {"name": name, "arguments": arguments, **more, **({"task": {}} if task else {})})


async def wait_until_ended(port: int, session: str, task_id: str) -> str:
    """Wait until a task has ended; return its state."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await post(port, session, call("tasks/get", {"taskId": task_id}))
            if (state := answer["result"]["status"]) != "working":
                return state
            await asyncio.sleep(0.01)


async def read_all(store: SqliteStore) -> list[Mapping[str, Any]]:
    """All items of a store: each byte of a value is a character."""
    items: list[Mapping[str, Any]] = []
    after = ""
    while page := await store.scan("", after=after):
        after = page[-1].key
        items += [{"key": item.key, "value": item.value.decode("latin-1"), "expires": item.expires} for item in page]
    return items


async def write(name: str) -> None:
    """Write the records of this release to a file."""
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "store")
        server = make_server(store, held := asyncio.Event())
        listener = await server.listen("http://127.0.0.1:0/mcp")
        try:
            ids = await fill(parse_address(listener.address).port, held)
            written = {"at": time.time(), "ids": ids, "items": await read_all(store)}  # as a crash would leave them
        finally:
            await server.aclose()
    (HERE / f"{name}.json").write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1]))
