"""Redis client that reconnects by itself. Commands of one loop iteration are sent in one write.

No command waits longer than the timeout. The outcome of a command that was sent but not answered, by the timeout or
when the connection ends, is unknown; it is never sent again. Commands that are submitted without a connection wait for
the next one.

With `replicas`, each batch of writes is followed by WAIT. Their replies count once that many replicas have confirmed
all of them; if they do not in time, it is unknown whether the writes survive a failover.

One error reply is not final: a Redis that does not know the script has executed nothing. Then the client sends the
script again, followed by the refused commands of that batch, in order. If a later command of the batch succeeded,
because another client loaded the script in between, the refused ones fail instead: commits of one batch keep their
order.
"""

import asyncio
import random
import re
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from trunkline.errors import NotExecuted, StoreError, StoreUnavailable, StoreUnusable
from trunkline.stores.redis.connection import (
    NO_REPLY,
    PendingCommand,
    RedisConnection,
    ReplyError,
    connect,
    encode_command,
)
from trunkline.stores.redis.url import RedisAddress

__all__ = ["RedisClient"]

_LATE_WAKEUP: Final = 0.1  # seconds: a timer that fires later means that this process was suspended
_CONFIRMED_WITHIN: Final = 0.8  # of the timeout: then the replicas have had their time
_MIN_BACKOFF: Final = 0.02  # seconds
_MAX_BACKOFF: Final = 1.0
_NOT_MASTER: Final = re.compile(r"\b(READONLY|LOADING|MASTERDOWN)\b")  # the server is not, or not yet, a usable master


def _ignore(*_: object) -> None:
    """Do nothing: the default callback."""


class RedisClient:
    """Reconnecting client. `on_connected` is called for each new connection, `on_lost` when it ends, `on_push` with
    published messages, and `on_changed` with the keys of a command that was, or may have been, executed."""

    def __init__(
        self,
        address: RedisAddress,
        tls: ssl.SSLContext | None,
        timeout: float,
        *,
        script: str | None = None,
        replicas: int = 0,
        on_connected: Callable[[], None] = _ignore,
        on_lost: Callable[[], None] = _ignore,
        on_push: Callable[[list[Any]], None] | None = None,
        on_changed: Callable[[Sequence[str]], None] = _ignore,
    ) -> None:
        self._address = address
        self._tls = tls
        self._timeout = timeout
        self._script_load = [] if script is None else [encode_command("SCRIPT", "LOAD", script)]
        self._replicas = replicas
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._on_push = on_push
        self._on_changed = on_changed
        self._loop = asyncio.get_running_loop()
        self._connection: RedisConnection | None = None
        self._connect_task: asyncio.Task[None] | None = None
        self._last_error: StoreError = StoreUnavailable("no connection yet")  # of the last attempt to connect
        self._unsent: list[PendingCommand] = []
        self._awaiting_script: list[PendingCommand] = []
        self._unconfirmed: deque[tuple[PendingCommand, list[PendingCommand]]] = deque()  # each WAIT and its writes
        self._holds = 0
        self._refusal: str | None = None  # of a server that is no master: dropped once it has answered everything
        self._batch = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline = 0.0  # of the running timer

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._connection is not None

    async def open(self, *, retry: bool = True) -> None:
        """Wait for the first connection. Without `retry`, the first attempt that fails ends the wait."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._connect(StoreUnusable if retry else StoreError)
        except (TimeoutError, StoreUnavailable):
            raise StoreUnavailable(
                f"the store {self._address} does not respond: {self._last_error}"
            ) from self._last_error

    async def close(self) -> None:
        """Wait for pending commands, and close the connection."""
        while under_way := [job.future for job in self._pending_commands() if not job.future.done()]:
            await asyncio.wait(under_way)
        if self._connect_task is not None:
            self._connect_task.cancel()
            await asyncio.wait([self._connect_task])
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
            await connection.ended
        if self._timer is not None:
            self._timer.cancel()

    # --- commands ----------------------------------------------------------------------------------

    def submit(
        self,
        encoded: bytes,
        keys: Sequence[str] = (),
        *,
        writes: bool = False,
        decode: Callable[[Any], Any] | None = None,
    ) -> asyncio.Future[Any]:
        """Send a command together with all others of this loop iteration. `writes`: replicas have to confirm it.
        `decode` makes the result of the reply."""
        job = PendingCommand(encoded, self._loop.time() + self._timeout, keys, writes=writes, decode=decode)
        self._submit((job,))
        return job.future

    def submit_all(
        self,
        commands: Sequence[bytes],
        keys: Sequence[str] = (),
        *,
        writes: bool = False,
        decode: Callable[[Any], Any] | None = None,
    ) -> list[asyncio.Future[Any]]:
        """Send commands in order over one connection; if one of them is not sent, none is. `keys` and `decode`
        are those of the last one."""
        *first, last = commands
        due = self._loop.time() + self._timeout
        jobs = [PendingCommand(packed, due, writes=writes) for packed in first]
        jobs.append(PendingCommand(last, due, keys, writes=writes, decode=decode))
        self._submit(jobs)
        return [job.future for job in jobs]

    def _submit(self, jobs: Sequence[PendingCommand]) -> None:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += jobs
        if self._timer is None:
            self._schedule_timeout(jobs[0].deadline)

    def _pending_commands(self) -> list[PendingCommand]:
        sent = self._connection.pending if self._connection else ()
        unconfirmed = [job for _, written in self._unconfirmed for job in written]
        return [*sent, *unconfirmed, *self._awaiting_script, *self._unsent]

    def hold_until(self, done: asyncio.Future[Any]) -> None:
        """Send nothing until a future is done."""
        self._holds += 1
        done.add_done_callback(self._release_hold)

    def _release_hold(self, _: asyncio.Future[Any]) -> None:
        self._holds -= 1
        self._flush()

    def _flush(self) -> None:
        if self._connection is None or self._holds or self._refusal is not None or not self._unsent:
            return
        jobs, self._unsent = self._unsent, []
        self._batch += 1
        for job in jobs:
            job.batch = self._batch
        self._send(self._connection, jobs)

    def _send(self, connection: RedisConnection, jobs: Sequence[PendingCommand]) -> None:
        """Send commands, and ask for the confirmation of those that write."""
        if self._replicas and (written := [job for job in jobs if job.writes]):
            limit = round(self._timeout * _CONFIRMED_WITHIN * 1000)
            wait = PendingCommand(encode_command("WAIT", self._replicas, limit), jobs[-1].deadline)
            wait.batch = jobs[-1].batch
            wait.future.cancel()  # its reply settles the writes
            self._unconfirmed.append((wait, written))
            jobs = [*jobs, wait]
        connection.send(jobs)

    def _reply_received(self, pending: PendingCommand, reply: Any) -> None:
        if self._unconfirmed and pending is self._unconfirmed[0][0]:
            self._confirm_writes(reply)
        elif isinstance(reply, ReplyError):
            self._error_received(pending, reply)
        else:
            if self._replicas and pending.writes:
                pending.reply = reply
            else:
                self._succeed(pending, reply)
            if self._awaiting_script and pending.batch == self._awaiting_script[-1].batch:
                self._fail_awaiting_script()
        if self._awaiting_script:
            self._resend_with_script()
        if self._refusal is not None and self._connection is not None and not self._connection.pending:
            self._drop(self._connection, self._refusal)

    def _succeed(self, pending: PendingCommand, reply: Any) -> None:
        pending.settle(reply)
        if pending.keys and (reply[0] if isinstance(reply, list) else reply) > 0:
            self._on_changed(pending.keys)

    def _confirm_writes(self, reply: Any) -> None:
        """Settle the writes that the replicas have, or have not, confirmed."""
        _, written = self._unconfirmed.popleft()
        confirmed = reply if isinstance(reply, int) else 0
        for job in written:
            if job.reply is NO_REPLY:
                continue  # it was refused
            if confirmed >= self._replicas:
                self._succeed(job, job.reply)
            else:
                why = f"{confirmed} of {self._replicas} replicas confirmed the command in time"
                job.settle(StoreUnavailable(f"the store {self._address}: {why}; a failover may lose it"))
                self._on_changed(job.keys)

    def _error_received(self, pending: PendingCommand, error: ReplyError) -> None:
        if str(error).startswith("NOSCRIPT") and not pending.resent:
            self._awaiting_script.append(pending)
            return
        pending.settle(error)
        if _NOT_MASTER.search(str(error)) and self._connection is not None:
            self._refusal = str(error)

    def _fail_awaiting_script(self) -> None:
        missed, self._awaiting_script = self._awaiting_script, []
        for job in missed:
            job.settle(NotExecuted("the store had lost its script, and the command was not executed"))

    def _resend_with_script(self) -> None:
        """Send the script and the commands that failed without it, once the whole batch is answered."""
        connection, batch = self._connection, self._awaiting_script[-1].batch
        if connection is None or (connection.pending and connection.pending[0].batch == batch):
            return
        missed, self._awaiting_script = self._awaiting_script, []
        for job in missed:
            job.resent = True
        loads = [PendingCommand(load, missed[0].deadline) for load in self._script_load]
        for load in loads:
            load.future.cancel()  # its reply is not needed
        self._send(connection, [*loads, *missed])

    def _schedule_timeout(self, deadline: float) -> None:
        self._timer_deadline = deadline
        self._timer = self._loop.call_at(deadline, self._check_timeouts)

    def _check_timeouts(self) -> None:
        """Fail commands that have timed out. If this process was suspended, read pending replies first: the store
        may have answered in time."""
        self._timer = None
        now = self._loop.time()
        if now - self._timer_deadline > _LATE_WAKEUP:
            self._schedule_timeout(now + _LATE_WAKEUP / 2)
            return
        connection = self._connection
        if connection is not None and connection.pending and connection.pending[0].deadline <= now:
            self._drop(connection, "it does not respond any more")
        late = [job for job in self._unsent if job.deadline <= now]
        self._unsent = self._unsent[len(late) :]
        for job in late:
            job.settle(NotExecuted(f"the store {self._address} cannot be reached: {self._last_error}"))
        if left := self._pending_commands():
            self._schedule_timeout(min(job.deadline for job in left))

    # --- connections -------------------------------------------------------------------------------

    async def _connect(self, *fatal: type[StoreError]) -> None:
        """Try to connect, with exponential backoff, until it succeeds. Raises `fatal` errors; others are not final."""
        create_connection = partial(RedisConnection, self._reply_received, self._on_push, self._connection_lost)
        pause = _MIN_BACKOFF
        while True:
            try:
                async with asyncio.timeout(self._timeout):
                    connection = await connect(
                        self._address, self._tls, self._timeout, create_connection, *self._script_load
                    )
                break
            except TimeoutError:
                self._last_error = StoreUnavailable("timeout")
            except (OSError, StoreError) as error:
                self._last_error = error if isinstance(error, StoreError) else StoreUnavailable(str(error))
            if isinstance(self._last_error, fatal):
                raise self._last_error
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - jitter, so that clients do not reconnect in step
            pause = min(2 * pause, _MAX_BACKOFF)
        self._connect_task = None
        self._connection = connection
        self._on_connected()
        self._flush()

    def _drop(self, connection: RedisConnection, why: str) -> None:
        self._last_error = StoreUnavailable(why)
        connection.abort()
        self._connection_lost(connection)

    def _connection_lost(self, connection: RedisConnection) -> None:
        lost = [*connection.pending]
        connection.pending.clear()
        unsent: list[PendingCommand] = []
        if connection is self._connection:
            lost += self._awaiting_script
            lost += [job for _, written in self._unconfirmed for job in written if job.reply is not NO_REPLY]
            self._unconfirmed.clear()
            unsent, self._connection, self._awaiting_script, self._unsent = self._unsent, None, [], []
            self._connect_task = asyncio.create_task(self._connect())
            self._refusal = None
            self._on_lost()
        for job in lost:
            job.settle(
                StoreUnavailable(
                    f"the store {self._address} did not respond; it is unknown whether the command was executed"
                )
            )
            if job.keys:
                self._on_changed(job.keys)
        for job in unsent:  # they were prepared for that connection
            job.settle(NotExecuted(f"the connection to the store {self._address} was lost before the command was sent"))
