"""Runs a server in several processes at one address: a supervisor, and workers that are all the same server.

The supervisor is this process. It takes no request itself and opens no store; see `supervision/supervisor.py`.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from trunkline.config import Settings
from trunkline.errors import ConfigError, MisuseError
from trunkline.fdlimit import Reserve
from trunkline.server.run.process import http_extra, run_on_loop, until_told
from trunkline.server.shutdown import EXIT_CODES
from trunkline.supervision.restart_policy import Policy
from trunkline.supervision.supervisor import Plan, Supervisor
from trunkline.supervision.worker_channel import Post
from trunkline.transports.accept import bind
from trunkline.transports.addresses import Address, spelt
from trunkline.transports.tcp import warn_if_open

if TYPE_CHECKING:
    from ssl import SSLContext

    from trunkline.server.server import Server

__all__ = ["Work", "check", "private_store", "run_workers"]

_MOMENT: Final = 0.5  # seconds that what is cut off after each stage has to let go


class Work(Struct, frozen=True):
    """What every worker does."""

    server: "Server"
    listen: Callable[[str, "SSLContext | None", Post], Awaitable[Any]]
    standing: Callable[[], str]  # how the server stands
    tls: "SSLContext | None"
    folder: Path | None = None  # where what workers share is kept, if that ends with them


def run_workers(work: Work, where: Address, count: int) -> None:
    """Serves with so many workers, until Ctrl+C or SIGTERM."""
    with http_extra():
        import_module("trunkline.transports.http.listen")  # once for all workers, which are forks
    reserve = Reserve(work.server.settings.descriptor_reserve)
    reserve.make_room(work.server.settings.max_connections)
    places = bind(where.host, where.port)
    hosts = [place.getsockname()[0] for place in places]
    port: int = places[0].getsockname()[1]
    address = f"{where.scheme}://{spelt(where.host, port)}{where.path}"
    shown = f"{where.scheme}://{spelt(hosts[0], port)}{where.path}"
    warn_if_open(shown, hosts, work.tls)
    server = work.server
    supervisor = Supervisor(places, partial(_work, work, address), _plan(server.settings, count), reserve, _say)
    if code := supervisor.run(lambda: _say(f"{server.name} listens at {shown}")):
        raise SystemExit(code)


@contextlib.contextmanager
def private_store() -> Generator[Path]:
    """A folder for a store that lasts as long as the supervisor."""
    folder = Path(tempfile.mkdtemp(prefix="trunkline-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check() -> None:
    """Raise if this process cannot have workers."""
    if not hasattr(os, "fork"):
        raise ConfigError("this system cannot fork, which workers are made by: run one process, or several of them")
    if threading.current_thread() is not threading.main_thread():
        raise MisuseError("workers are run by the main thread, which hears of signals")


def _plan(settings: Settings, count: int) -> Plan:
    times = (settings.drain_timeout, *([settings.stage_timeout] * len(EXIT_CODES)))
    known = [seconds for seconds in times if seconds is not None]
    policy = Policy(
        first=settings.backoff_first,
        longest=settings.backoff_longest,
        intensity=settings.restart_intensity,
        period=settings.restart_period,
    )
    return Plan(
        workers=count,
        policy=policy,
        silence=settings.worker_timeout,
        end=sum(known) + len(times) * _MOMENT if len(known) == len(times) else None,
        overran=EXIT_CODES["Terminate"],
    )


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)  # noqa: T201 - for a person


def _work(work: Work, address: str, number: int, end: socket.socket) -> int:
    """The life of a worker."""
    post = Post(number, end, work.standing, Reserve(work.server.settings.descriptor_reserve))
    try:
        run_on_loop(work.server, _serve(work, address, post))
    finally:
        if post.orphaned and work.folder is not None:
            shutil.rmtree(work.folder, ignore_errors=True)
    return 0


async def _serve(work: Work, address: str, post: Post) -> Sequence[str]:
    async def opened() -> None:
        await work.listen(address, work.tls, post)

    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    post.open(told.set)
    try:
        return await until_told(work.server, opened(), asyncio.Event().wait, told)
    finally:
        post.close()
