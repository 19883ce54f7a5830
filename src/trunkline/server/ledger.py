"""Calls that are done once, however often they are made: those that carry an idempotency key.

A client that lost the answer to a call makes it again with the same key, and gets what the first one came to. What is
kept of a key, in the store, is what was asked under it, and then one of two things: that it is being done, by somebody
who says every few seconds that it still is; or what came of it. Every change names the version that it was made for, so
of two who begin, one does, and who was thought dead cannot write over what its successor did.

A run belongs to its key and not to its connection: who has lost the line comes back and finds it under way, or done.
It ends when the client cancels it, or its time is up, or the server ends. Of such a run, and of one whose process died,
nobody knows what it has done. It is run again if the tool says that this does no harm; otherwise the answer is
`outcome_unknown`, and stays that.

What came of a run is kept, failed or not: a tool that raises may have done half of its work by then. Nothing is kept
of what never began: arguments that do not fit, a tool that is busy, a question to the user that comes first.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Raw, Struct

from trunkline.clock import Clock, Timer
from trunkline.config import Settings
from trunkline.conversation.dispatch import failure_of
from trunkline.conversation.drive import Work
from trunkline.conversation.perform import perform
from trunkline.errors import Conflict, InvalidParams, MisuseError, ProtocolError, StoreError, UrlElicitationRequired
from trunkline.protocol.codes import code_of
from trunkline.protocol.inflight import Running
from trunkline.protocol.types import CallToolParams, CallToolResult
from trunkline.server.owners import owner_of
from trunkline.server.rounds import asked_by, ending
from trunkline.stores.store import ABSENT, Delete, Item, Put, Store, key_of
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.connection import Connection

__all__ = ["Keyed", "Ledger"]

_LONGEST: Final = 255  # characters of a key


class InvalidKey(InvalidParams):
    """An idempotency key that is none."""

    kind = "invalid_idempotency_key"

    def __init__(self) -> None:
        super().__init__(f"an idempotency key is a text of 1 to {_LONGEST} characters")


class KeyReused(InvalidParams):
    """A key under which something else has been asked before."""

    kind = "idempotency_key_reused"

    def __init__(self) -> None:
        super().__init__("this idempotency key was used for another tool or other arguments; use a new one")


class RunLost(ProtocolError):
    """A call that was begun, and of which nobody knows how it ended."""

    kind = "outcome_unknown"

    def __init__(self, why: str) -> None:
        super().__init__(f"it was begun, and may or may not have been done: {why}")


class _Begun(Struct, tag="begun"):
    """It is being done; after `until`, whoever did it is taken for dead."""

    asked: str
    until: float


class _Gave(Struct, tag="gave"):
    """It came to a result."""

    asked: str
    result: Raw

    def value(self) -> CallToolResult:
        """The result."""
        return _read_result(self.result)


class _Raised(Struct, tag="raised"):
    """It came to an error."""

    asked: str
    code: int
    message: str
    data: Any

    def value(self) -> CallToolResult:
        """Raises the error."""
        raise ProtocolError(self.message, code=self.code, data=self.data)


_Record = _Begun | _Gave | _Raised
_read_record: Final[Callable[[bytes], _Record]] = codec.decoder(cast("Any", _Record))
_read_result: Final = codec.decoder(CallToolResult)


class Keyed:
    """A call that carries a key: what it asks, and how it is started."""

    __slots__ = ("asked", "begun", "call", "connection", "idempotent", "where", "work")

    def __init__(
        self,
        connection: "Connection",
        call: Running,
        params: CallToolParams,
        key: Any,
        *,
        idempotent: bool,
        work: Callable[[Callable[[], None]], Work],
    ) -> None:
        """`work` gives the work of the call; it is given what is to be called when the tool itself begins."""
        if not isinstance(key, str) or not 1 <= len(key) <= _LONGEST:
            raise InvalidKey
        digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
        self.connection = connection
        self.call = call
        self.where = key_of("owner", owner_of(call.origin.principal), "once", digest)
        self.asked = hashlib.sha256(asked_by(params)).hexdigest()
        self.idempotent = idempotent
        self.work = work
        self.begun = False

    def start(self) -> Work:
        """Its work."""
        return self.work(self._begin)

    def _begin(self) -> None:
        self.begun = True

    @property
    def lost(self) -> bool:
        """Whether nobody waits for the answer because the line has gone. A request that had a line of its own says no
        more when its client gives up than when it is lost."""
        connection = self.connection
        return connection.close_reason is not None or (connection.channel.info.shared and self.call.cancelled)


class _Run:
    """One run of a call, under way here."""

    def __init__(self, keyed: Keyed, version: int) -> None:
        self.keyed = keyed
        self.version = version  # of what the store has
        self.turn = asyncio.Lock()  # one write at a time, each for the version of the last
        self.task: asyncio.Task[Any] | None = None
        self.timer: Timer | None = None
        self.renewing: asyncio.Task[None] | None = None
        self.over = False  # the work is: what is left is to keep what came of it
        self.taken: Conflict | None = None  # somebody else does it by now

    def stop(self) -> None:
        """Ends the work."""
        if self.task is not None and not self.over:
            self.task.cancel()


class Ledger:
    """Keeps what was asked under a key, and what came of it."""

    def __init__(self, store: Store, settings: Settings, wall: Clock, clock: Clock) -> None:
        """`wall` is the time that the store goes by, `clock` that of the calls."""
        self._store = store
        self._ttl = settings.idempotency_ttl
        self._lease = settings.idempotency_lease
        self._wall = wall
        self._clock = clock
        self._runs: dict[str, _Run] = {}

    async def once(self, keyed: Keyed) -> CallToolResult:
        """What came of a call: now, or when it was made first. Raises the error that it came to, `KeyReused`, or
        `RunLost`."""
        while True:
            item = await self._store.get(keyed.where)
            record = None if item is None else _read_record(item.value)
            if record is not None and record.asked != keyed.asked:
                raise KeyReused
            if isinstance(record, _Gave | _Raised):
                return record.value()
            run = self._runs.get(keyed.where)
            if run is not None and run.task is not None:
                await asyncio.wait([run.task])
            elif item is not None and record is not None and record.until > self._wall.now():
                await self._change_of(item, record.until)
            elif item is not None and not keyed.idempotent:
                raise RunLost("whoever did it was stopped, or died")
            else:
                with contextlib.suppress(Conflict):  # somebody else was faster
                    return await self._follow(self._begin(keyed, ABSENT if item is None else item.version))

    async def _change_of(self, item: Item, until: float) -> None:
        """Waits until somebody changes what is kept, or is taken for dead."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake(*_: object) -> None:
            if not changed.done():
                changed.set_result(None)

        watch, timer = self._store.watch(item.key, wake), self._wall.call_at(until, wake)
        try:
            found = await self._store.get(item.key)
            if found is not None and found.version == item.version:
                await changed
        finally:
            timer.cancel()
            watch.close()

    async def drained(self) -> None:
        """Waits until nothing is being done."""
        while self._runs:
            await asyncio.wait([run.task for run in self._runs.values() if run.task is not None])

    async def close(self) -> None:
        """Stops what is being done, and keeps that it was."""
        for run in list(self._runs.values()):
            run.stop()
        await self.drained()

    # --- a run -----------------------------------------------------------------------------------

    def _begin(self, keyed: Keyed, version: int) -> _Run:
        run = self._runs[keyed.where] = _Run(keyed, version)
        run.task = asyncio.create_task(self._run(run))
        run.task.add_done_callback(lambda _: self._forget(run))
        return run

    def _forget(self, run: _Run) -> None:
        del self._runs[run.keyed.where]
        if run.task is not None and not run.task.cancelled():
            run.task.exception()  # whoever still waits for it has been told

    async def _follow(self, run: _Run) -> CallToolResult:
        """What a run comes to. If whoever waits for it has lost the line, it goes on until its time is up."""
        task = cast("asyncio.Task[CallToolResult]", run.task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            deadline = run.keyed.call.deadline
            if not run.keyed.lost:
                run.stop()
            elif deadline is not None and not task.done():
                timer = self._clock.call_at(deadline, run.stop)
                task.add_done_callback(lambda _: timer.cancel())
            raise

    async def _run(self, run: _Run) -> CallToolResult:
        keyed = run.keyed
        await self._write(run, self._begun(run))
        self._renew_later(run)
        try:
            result: CallToolResult = await perform(keyed.start(), keyed.connection.threads)
            kept = _Gave(keyed.asked, codec.to_raw(result))
        except asyncio.CancelledError:
            run.over = True
            await self._stopped(run)
            raise run.taken or asyncio.CancelledError from None
        except Exception as error:  # noqa: BLE001 - kept, as what came of it
            run.over = True
            return await self._failed(run, error)
        finally:
            if run.timer is not None:
                run.timer.cancel()
        run.over = True
        await self._keep(run, kept)
        return result

    async def _stopped(self, run: _Run) -> None:
        """It was stopped: to ask a question first, which is no end; or else nobody knows how far it came."""
        call = run.keyed.call
        asks = call.round is not None and call.round.has_asked
        await self._leave(run, None if asks or not run.keyed.begun else self._begun(run, lasts=False))

    async def _failed(self, run: _Run, error: Exception) -> CallToolResult:
        """It raised something: before it began, to send the user elsewhere first, or else as what came of it."""
        call, connection = run.keyed.call, run.keyed.connection
        if not run.keyed.begun or isinstance(error, UrlElicitationRequired):
            await self._leave(run, None)
            raise error
        raised = error if call.envelope is None else ending(call, error)
        revision = connection.session.revision_of(call)
        failure = failure_of(cast("BaseException", raised), call, revision)
        if failure.reference is not None:
            connection.report_failure(call, failure.reference, error)
        if isinstance(failure.answer, CallToolResult):
            await self._keep(run, _Gave(run.keyed.asked, codec.to_raw(failure.answer)))
            return failure.answer
        told = failure.answer
        await self._keep(run, _Raised(run.keyed.asked, code_of(told, revision), told.message, told.data))
        raise told

    # --- what is kept ------------------------------------------------------------------------------

    def _begun(self, run: _Run, *, lasts: bool = True) -> _Begun:
        return _Begun(run.keyed.asked, self._wall.now() + self._lease if lasts else 0.0)

    async def _write(self, run: _Run, record: _Record | None) -> None:
        """Changes what is kept, for nobody else has; None: keeps nothing. Raises `Conflict` if somebody has."""
        async with run.turn:
            where, expires = run.keyed.where, self._wall.now() + self._ttl
            write = (
                Delete(where, run.version)
                if record is None
                else Put(where, codec.to_json(record), expires, run.version)
            )
            run.version = await self._store.commit([write])

    async def _keep(self, run: _Run, ended: _Gave | _Raised) -> None:
        try:
            await self._write(run, ended)
        except Conflict:
            raise  # what another came to, who took this one for dead, is the answer
        except (StoreError, MisuseError) as error:  # it does not answer; or that is more than it can keep
            raise RunLost("what came of it could not be kept") from error

    async def _leave(self, run: _Run, record: _Begun | None) -> None:
        """Lets others have it, now if that can be written, or else when the time is up."""
        with contextlib.suppress(StoreError):
            await self._write(run, record)

    def _renew_later(self, run: _Run) -> None:
        run.timer = self._wall.call_at(self._wall.now() + self._lease / 3, lambda: self._renew(run))

    def _renew(self, run: _Run) -> None:
        async def renew() -> None:
            try:
                await self._write(run, self._begun(run))
            except Conflict as taken:
                run.taken = taken
                run.stop()
            except StoreError:
                self._renew_later(run)  # it may answer again in time
            else:
                self._renew_later(run)

        if not run.over:
            run.renewing = asyncio.create_task(renew())
