"""Multi-process mode: a supervisor, and worker processes that run the same server at one address.

This process is the supervisor. It handles no requests and opens no store; see `supervision/worker_supervisor.py`.
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
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from trunkline.config import CertificateFiles, Settings
from trunkline.errors import ConfigError, MisuseError
from trunkline.fdlimit import DescriptorReserve
from trunkline.server.run.process import require_http_extra, run_on_loop, serve_until_stopped
from trunkline.server.shutdown import EXIT_CODES
from trunkline.supervision.restart_policy import RestartPolicy
from trunkline.supervision.worker_channel import WorkerChannel
from trunkline.supervision.worker_supervisor import SupervisorOptions, WorkerSupervisor
from trunkline.transports.addresses import parse_address
from trunkline.transports.listening import ListeningSockets, open_sockets, warn_if_unencrypted

if TYPE_CHECKING:
    from ssl import SSLContext

    from trunkline.server.run.runnable import RunnableServer
    from trunkline.transports.tls import LastCertificate

__all__ = [
    "CodeReload",
    "WorkerJob",
    "check_workers_supported",
    "reloading_code",
    "run_workers",
    "temporary_store_folder",
]

_CANCEL_GRACE: Final = 0.5  # seconds that a cancelled stage has to clean up


class CodeReload(Protocol):
    """Loads the program again when its code has changed. The supervisor and each worker have one."""

    def check(self) -> bool:
        """In the supervisor: load the code if a file has changed; return whether new code was loaded."""
        ...

    def load(self) -> None:
        """In a worker: load the code, without blocking the event loop."""
        ...


_code_reload: ContextVar[CodeReload | None] = ContextVar("code_reload", default=None)


@contextlib.contextmanager
def reloading_code(code: CodeReload) -> Generator[None]:
    """Let workers that run in this block load changed code."""
    token = _code_reload.set(code)
    try:
        yield
    finally:
        _code_reload.reset(token)


class WorkerJob(Struct, frozen=True):
    """Parameters of every worker process."""

    server: "RunnableServer"
    listen: Callable[
        [str, "SSLContext | CertificateFiles | None", ListeningSockets, WorkerChannel, "SSLContext | None"],
        Awaitable[Any],
    ]
    readiness: Callable[[], str]  # "ready", "paused" or "draining"
    tls: "SSLContext | CertificateFiles | None"
    store_folder: Path | None = None  # of a temporary store, deleted with the workers
    on_restart: Callable[[str], object] | None = None  # called in the supervisor, for "worker" or "listener"


def run_workers(job: WorkerJob, address: str, count: int) -> None:
    """Serve an address with `count` workers until Ctrl+C or SIGTERM."""
    with require_http_extra():
        import_module("trunkline.transports.http.listen")  # imported before the fork, once for all workers
    reserve = DescriptorReserve(job.server.settings.descriptor_reserve)
    reserve.raise_limit(job.server.settings.max_connections)
    server = job.server
    certificate = _load_certificate(job.tls, server.settings)
    where = parse_address(address)
    opened = open_sockets(where, server.settings)
    main, plan = partial(_run_worker, job, address, opened, certificate), _make_plan(server.settings, count)
    code = _code_reload.get()
    try:
        warn_if_unencrypted(where, opened)
        supervisor = WorkerSupervisor(
            opened.sockets,
            main,
            plan,
            reserve,
            _print_line,
            certificate=certificate,
            reloads=server.handles_hangup,
            reload_code=None if code is None else code.check,
            reopen=opened.reopen,
            on_restart=job.on_restart,
        )
        code = supervisor.run(lambda: _print_line(f"{server.name} listens at {opened.address}"))
    finally:
        opened.close()
    if code:
        raise SystemExit(code)


@contextlib.contextmanager
def temporary_store_folder() -> Generator[Path]:
    """Create a folder for a store that exists as long as the supervisor."""
    folder = Path(tempfile.mkdtemp(prefix="trunkline-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_workers_supported() -> None:
    """Raise if this system or thread cannot run workers."""
    if not hasattr(os, "fork"):
        raise ConfigError("workers= needs os.fork, which this system lacks: run one process, or start several yourself")
    if threading.current_thread() is not threading.main_thread():
        raise MisuseError("workers= needs the main thread, which receives signals: call run() there")


def _make_plan(settings: Settings, count: int) -> SupervisorOptions:
    times = (settings.drain_timeout, *([settings.stage_timeout] * len(EXIT_CODES)))
    known = [seconds for seconds in times if seconds is not None]
    return SupervisorOptions(
        workers=count,
        policy=RestartPolicy.for_children(settings),
        silence_timeout=settings.worker_timeout,
        shutdown_timeout=sum(known) + len(times) * _CANCEL_GRACE if len(known) == len(times) else None,
        overrun_exit_code=EXIT_CODES["Terminate"],
    )


def _load_certificate(tls: "SSLContext | CertificateFiles | None", settings: Settings) -> "LastCertificate | None":
    """Load certificate files for workers that start while these are broken. Raise `ConfigError` if they are broken
    now: here, once, instead of in each worker."""
    if not isinstance(tls, CertificateFiles):
        return None
    from trunkline.transports.tls import LastCertificate

    return LastCertificate(tls, settings.certificate_check_interval)


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - for a person


def _run_worker(  # noqa: PLR0917 - the first four are bound before the fork
    job: WorkerJob,
    address: str,
    opened: ListeningSockets,
    certificate: "LastCertificate | None",
    number: int,
    sock: socket.socket,
) -> int:
    """Run a worker process until it stops; return its exit code."""
    previous_tls = None if certificate is None else certificate.context
    channel = WorkerChannel(number, sock, job.readiness, DescriptorReserve(job.server.settings.descriptor_reserve))
    try:
        run_on_loop(
            job.server, _serve(job, partial(job.listen, address, job.tls, opened, channel, previous_tls), channel)
        )
    finally:
        if channel.orphaned and job.store_folder is not None:
            shutil.rmtree(job.store_folder, ignore_errors=True)
    return 0


async def _serve(job: WorkerJob, listen: Callable[[], Awaitable[Any]], channel: WorkerChannel) -> Sequence[str]:
    async def start() -> None:
        await listen()

    stop = asyncio.Event()
    loop, reload = asyncio.get_running_loop(), job.server.hang_up
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if isinstance(job.tls, CertificateFiles) or job.server.handles_hangup:
        loop.add_signal_handler(signal.SIGHUP, reload)
    code = _code_reload.get()
    channel.open(stop.set, reload, (lambda: None) if code is None else code.load)
    try:
        return await serve_until_stopped(job.server, start(), asyncio.Event().wait, stop)
    finally:
        channel.close()
