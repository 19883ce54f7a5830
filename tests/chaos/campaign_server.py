"""The server of a campaign: `python -m tests.chaos.campaign_server PORT`, on a SQLite file; with `--workers 4` several
processes, with `--redis URL` one of several.

Each effect of a tool is recorded before the response, by `effects.py`. The boards and the store lie beside the effects,
shared by all processes.
"""

import argparse
import asyncio
import os
import secrets
from pathlib import Path
from typing import TypedDict

from msgspec.structs import replace
from tests.chaos import faulty_servers, faulty_stores, stepped_clock
from tests.chaos.effects import Boards, EffectsLog
from tests.chaos.plan import LIMIT, token_of

from trunkline import Context, Server, Settings, TaskPolicy
from trunkline.auth import Principal, ResourceServer, StaticTokens
from trunkline.protocol.types import ToolAnnotations
from trunkline.stores.store import Store

MOST_CLIENTS = 1000
STEP = 0.01  # seconds per step of work
LONG = 3600.0
LINGER = 5 * STEP
OFTEN = 1000  # runs of a task: a campaign kills more often than a server normally should retry


class Effects:
    """The effects of the tools, each on behalf of the principal of its call."""

    def __init__(self, path: Path) -> None:
        self._log = EffectsLog(path)

    def write(self, ctx: Context, what: str, operation: str, number: int = 0, run: str = "-") -> None:
        """Record an effect."""
        assert ctx.principal is not None
        self._log.write(ctx.principal.subject, what, operation, number, run)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--redis", help="the address of the store, instead of a file")
    parser.add_argument("--patience", type=float, help="seconds that it waits for that store")
    parser.add_argument("--replicas", type=int, default=0, help="replicas that confirm its writes")
    parser.add_argument("--fault", help="have a store, or a server, that is not as it should be")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Word(TypedDict):
    """The input that a tool requests from the user."""

    word: str


def deployment(store: Store, path: Path) -> Server:
    """The server; its tools write to the effects file."""
    effects, boards = Effects(path), Boards(path.with_suffix(".boards"))
    known = {token_of(name): Principal(name) for name in (f"c{number:03}" for number in range(MOST_CLIENTS))}
    settings = replace(Settings.load(), work_timeout=90.0)  # also for the profile that raw clients request
    server = Server("deployment", store=store, settings=settings, auth=ResourceServer(StaticTokens(known)))
    _simple(server, effects)
    _tasks(server, effects)

    @server.resource("board://{name}")
    def board(name: str) -> str:
        """The number that was written on a board last."""
        return str(boards.read(name))

    @server.tool
    async def post(operation: str, board: str, ctx: Context) -> str:
        """Write the next number on a board."""
        number = boards.write(board)
        effects.write(ctx, "post", board, number, operation)
        server.notify_updated(f"board://{board}")
        return f"{operation} {board} {number}"

    return server


def _simple(server: Server, effects: Effects) -> None:
    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def look(operation: str) -> str:
        """Change nothing."""
        await asyncio.sleep(STEP)
        return f"{operation} seen"

    @server.tool
    async def pay(operation: str, ctx: Context) -> str:
        """Must not run twice; return the number of the run."""
        run = secrets.token_hex(4)
        await asyncio.sleep(STEP / 2)
        effects.write(ctx, "pay", operation, run=run)
        await asyncio.sleep(STEP / 2)
        return f"{operation} {run}"

    @server.tool
    async def linger(operation: str, size: int, ctx: Context) -> str:
        """Has its effect at once, must not run twice, and responds much later."""
        run = secrets.token_hex(4)
        effects.write(ctx, "linger", operation, run=run)
        await asyncio.sleep(LINGER * size)
        return f"{operation} {run}"

    @server.tool(max_concurrency=LIMIT, max_queue=MOST_CLIENTS)
    async def limited(operation: str, size: int, ctx: Context) -> str:
        """Has few permits in all processes together, and must not run twice."""
        run = secrets.token_hex(4)
        effects.write(ctx, "enter", operation, os.getpid(), run)
        try:
            await asyncio.sleep(2 * STEP * size)
        finally:
            effects.write(ctx, "leave", operation, os.getpid(), run)
        return f"{operation} {run}"

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    async def keep(operation: str, ctx: Context) -> str:
        """May run twice."""
        effects.write(ctx, "keep", operation)
        await asyncio.sleep(STEP)
        return f"{operation} kept"

    @server.tool
    async def count(operation: str, size: int, ctx: Context) -> str:
        """Report numbers, one after another."""
        run = secrets.token_hex(4)
        for number in range(1, size + 1):
            effects.write(ctx, "count", operation, number, run)
            await ctx.info({"operation": operation, "number": number})
            await ctx.progress(number, size)
            await asyncio.sleep(STEP)
        return f"{operation} {size}"

    @server.tool
    async def wait(operation: str, ctx: Context) -> str:
        """Wait for cancellation."""
        run = secrets.token_hex(4)
        effects.write(ctx, "wait", operation, 1, run)
        try:
            await ctx.progress(1)
            await asyncio.sleep(LONG)
        finally:
            effects.write(ctx, "wait", operation, 2, run)
        return f"{operation} waited"

    @server.tool
    async def ask(operation: str, ctx: Context) -> str:
        """Request a word from the user, and record it once."""
        answer = await ctx.elicit(f"a word for {operation}", Word)
        word = answer.data["word"] if answer.data is not None else "-"
        effects.write(ctx, "ask", operation, run=word)
        await asyncio.sleep(STEP)
        return f"{operation} {word}"


def _tasks(server: Server, effects: Effects) -> None:
    async def travel(kind: str, operation: str, size: int, ctx: Context) -> str:
        """Do so many steps, with a checkpoint after each."""
        run, done = secrets.token_hex(4), (ctx.resumed_from or 0) if kind == "resumed" else 0
        for number in range(done + 1, size + 1):
            effects.write(ctx, "step", operation, number, run)
            await asyncio.sleep(STEP)
            await ctx.checkpoint(number)
            effects.write(ctx, "kept", operation, number, run)
        return f"{operation} {size}"

    @server.tool(task=TaskPolicy(recovery="resume", attempts=OFTEN, poll_interval=0.1))
    async def resumed(operation: str, size: int, ctx: Context) -> str:
        """Resume from its checkpoint."""
        return await travel("resumed", operation, size, ctx)

    @server.tool(task=TaskPolicy(recovery="restart", attempts=OFTEN, poll_interval=0.1))
    async def restarted(operation: str, size: int, ctx: Context) -> str:
        """Start again."""
        return await travel("restarted", operation, size, ctx)

    @server.tool(task=TaskPolicy(recovery="fail", poll_interval=0.1))
    async def given_up(operation: str, size: int, ctx: Context) -> str:
        """Not retried."""
        return await travel("given_up", operation, size, ctx)


def main() -> None:
    """Serve until killed."""
    given, path = _arguments(), Path(os.environ["SHOP_EFFECTS"])
    settings = {"patience": given.patience} if given.redis else {}
    if given.replicas:
        settings["replicas"] = given.replicas
    store = faulty_stores.store(given.redis or str(path.with_suffix(".db")), given.seed, given.fault, **settings)
    faulty_servers.plant(given.fault)
    stepped_clock.install()
    more = {"workers": given.workers} if given.workers else {}
    deployment(store, path).run("http", port=given.port, **more)


if __name__ == "__main__":
    main()
