"""The server of a campaign, made to be killed: `python -m tests.chaos.campaign_server PORT`, on a file; with `--workers 4` several of
them, with `--redis URL` one of several.

Whatever a tool does is a line in a file, written in one go before it is answered. The file is outside of all that
Trunkline keeps: it is what the rest is judged by. The boards and the store lie beside it, for all processes the same.
"""

import argparse
import asyncio
import os
import secrets
from pathlib import Path
from typing import TypedDict

from tests.chaos import faulty
from tests.chaos.plan import token_of

from trunkline import Context, Server, Settings, TaskPolicy
from trunkline.auth import Principal, ResourceServer, StaticTokens
from trunkline.protocol.types import ToolAnnotations
from trunkline.stores.store import Store

MOST_CLIENTS = 1000
STEP = 0.01  # seconds that a step of some work takes
LONG = 3600.0
LINGER = 5 * STEP
OFTEN = 1000  # runs of a task: a campaign kills more often than anybody should try


class Line:
    """The file of effects."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, ctx: Context, what: str, deed: str, number: int = 0, run: str = "-") -> None:
        """One more, whole or not at all."""
        os.write(self._file, f"{what} {deed} {number} {run} {ctx.principal.subject}\n".encode("ascii"))


class Boards:
    """A file for each board, with as many bytes as numbers were written on it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> int:
        """The number that was written last."""
        file = self._file(name)
        return file.stat().st_size if file.exists() else 0

    def write(self, name: str) -> int:
        """Writes the next number. Nobody else gets the same one: where an append has ended is its own place."""
        file = os.open(self._file(name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, b".")
            return os.lseek(file, 0, os.SEEK_CUR)
        finally:
            os.close(file)

    def _file(self, name: str) -> Path:
        return self._path.with_suffix(f".{name}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--redis", help="the address of the store, instead of a file")
    parser.add_argument("--patience", type=float, help="seconds that it waits for that store")
    parser.add_argument("--fault", help="have a store, or a server, that is not as it should be")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Word(TypedDict):
    """What a user is asked for."""

    word: str


def deployment(store: Store, path: Path) -> Server:
    """The server; its tools write to the file there."""
    effects, boards = Line(path), Boards(path)
    known = {token_of(name): Principal(name) for name in (f"c{number:03}" for number in range(MOST_CLIENTS))}
    server = Server(
        "deployment", store=store, settings=Settings.load(), auth=ResourceServer(StaticTokens(known)), compat="erlmcp"
    )
    _simple(server, effects)
    _tasks(server, effects)

    @server.resource("board://{name}")
    def board(name: str) -> str:
        """The number that was written on a board last."""
        return str(boards.read(name))

    @server.tool
    async def post(deed: str, board: str, ctx: Context) -> str:
        """Writes the next number on a board."""
        number = boards.write(board)
        effects.write(ctx, "post", board, number, deed)
        server.notify_updated(f"board://{board}")
        return f"{deed} {board} {number}"

    return server


def _simple(server: Server, effects: Line) -> None:
    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def look(deed: str) -> str:
        """Changes nothing."""
        await asyncio.sleep(STEP)
        return f"{deed} seen"

    @server.tool
    async def pay(deed: str, ctx: Context) -> str:
        """Must not be done twice; says in which run it was."""
        run = secrets.token_hex(4)
        await asyncio.sleep(STEP / 2)
        effects.write(ctx, "pay", deed, run=run)
        await asyncio.sleep(STEP / 2)
        return f"{deed} {run}"

    @server.tool
    async def linger(deed: str, size: int, ctx: Context) -> str:
        """Has its effect at once, which must not come twice, and is answered long after that."""
        run = secrets.token_hex(4)
        effects.write(ctx, "linger", deed, run=run)
        await asyncio.sleep(LINGER * size)
        return f"{deed} {run}"

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    async def keep(deed: str, ctx: Context) -> str:
        """May be done twice."""
        effects.write(ctx, "keep", deed)
        await asyncio.sleep(STEP)
        return f"{deed} kept"

    @server.tool
    async def count(deed: str, size: int, ctx: Context) -> str:
        """Says numbers, one after another."""
        run = secrets.token_hex(4)
        for number in range(1, size + 1):
            effects.write(ctx, "count", deed, number, run)
            await ctx.info({"deed": deed, "number": number})
            await ctx.progress(number, size)
            await asyncio.sleep(STEP)
        return f"{deed} {size}"

    @server.tool
    async def wait(deed: str, ctx: Context) -> str:
        """Waits until it is cancelled."""
        run = secrets.token_hex(4)
        effects.write(ctx, "wait", deed, 1, run)
        try:
            await ctx.progress(1)
            await asyncio.sleep(LONG)
        finally:
            effects.write(ctx, "wait", deed, 2, run)
        return f"{deed} waited"

    @server.tool
    async def ask(deed: str, ctx: Context) -> str:
        """Asks the user for a word, and does something with it once."""
        answer = await ctx.elicit(f"a word for {deed}", Word)
        word = answer.data["word"] if answer.data is not None else "-"
        effects.write(ctx, "ask", deed, run=word)
        await asyncio.sleep(STEP)
        return f"{deed} {word}"


def _tasks(server: Server, effects: Line) -> None:
    async def travel(kind: str, deed: str, size: int, ctx: Context) -> str:
        """Goes so many steps, and keeps after each how far it has come."""
        run, done = secrets.token_hex(4), (ctx.resumed_from or 0) if kind == "resumed" else 0
        for number in range(done + 1, size + 1):
            effects.write(ctx, "step", deed, number, run)
            await asyncio.sleep(STEP)
            await ctx.checkpoint(number)
            effects.write(ctx, "kept", deed, number, run)
        return f"{deed} {size}"

    @server.tool(task=TaskPolicy(recovery="resume", attempts=OFTEN, poll_interval=0.1))
    async def resumed(deed: str, size: int, ctx: Context) -> str:
        """Goes on from its checkpoint."""
        return await travel("resumed", deed, size, ctx)

    @server.tool(task=TaskPolicy(recovery="restart", attempts=OFTEN, poll_interval=0.1))
    async def restarted(deed: str, size: int, ctx: Context) -> str:
        """Begins anew."""
        return await travel("restarted", deed, size, ctx)

    @server.tool(task=TaskPolicy(recovery="fail", poll_interval=0.1))
    async def given_up(deed: str, size: int, ctx: Context) -> str:
        """Is not tried again."""
        return await travel("given_up", deed, size, ctx)


def main() -> None:
    """Serves until it is killed."""
    given, path = _arguments(), Path(os.environ["SHOP_EFFECTS"])
    where, settings = (given.redis, {"patience": given.patience}) if given.redis else (path.with_suffix(".db"), {})
    store = faulty.store(str(where), given.seed, given.fault, **settings)
    if given.fault == "denying":
        faulty.deny_begun()
    more = {"workers": given.workers} if given.workers else {}
    deployment(store, path).run("http", port=given.port, **more)


if __name__ == "__main__":
    main()
