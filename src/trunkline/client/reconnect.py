"""The line to a server, owned by a task of its own: opened, watched, made again when it is lost, and closed.

Nobody else's task is tied to it. Whoever opens or closes it only asks, and waits; so that can be done from anywhere, in
any order, and whoever is cancelled meanwhile takes nothing along. What is to be done about a loss is decided by
`supervision.policy`, and where the line stands is told by the lifecycle table.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from trunkline.client import era_probe
from trunkline.client.connection import ClientConnection
from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import (
    AuthorizationFailed,
    ConnectionClosed,
    Degraded,
    HandshakeFailed,
    RetriesExhausted,
    TransportError,
    TrunklineError,
    WrongPhase,
    again,
)
from trunkline.facts import Fact, Observers, OpeningStep, ReconnectStep
from trunkline.protocol import lifecycle
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.revisions import Era
from trunkline.rpc.outgoing_requests import closed_error
from trunkline.supervision import restart_policy
from trunkline.supervision.restart_policy import Decision, GiveUp, History, RestartPolicy, RetryAfter
from trunkline.transports.channel import (
    AuthorizingConnector,
    Channel,
    ChannelClosed,
    Connector,
    LaunchingConnector,
    Receiver,
    ReleasableConnector,
)

__all__ = ["ConnectionSupervisor"]

T = TypeVar("T")
ConnectionFactory = Callable[[Channel, Phase, Callable[[ClientConnection, ChannelClosed], Signal]], ClientConnection]
"""Makes the connection of a new channel: the phase it begins in, and who says what its end means."""


class _StopRequested(Exception):
    """The line is to be closed."""


class ConnectionSupervisor:
    """Keeps one connection, and makes it again."""

    def __init__(
        self,
        connector: Connector,
        make_connection: ConnectionFactory,
        prepare_connection: Callable[[ClientConnection, bool], Awaitable[None]],
        *,
        settings: Settings,
        clock: Clock,
        observers: Observers,
        on_failed: Callable[[TrunklineError], object] | None = None,
        on_end: Callable[[], object],
    ) -> None:
        """`greet` is told of each new connection before anybody else uses it, and whether it is not the first; `on_end`
        lets go of what only this line needs."""
        self.connection: ClientConnection | None = None  # to be used now; None while there is none
        self.losses = 0
        self._connector = connector
        self._make_connection = make_connection
        self._prepare_connection = prepare_connection
        self.settings = settings
        self._policy = RestartPolicy.from_settings(settings)
        self._clock = clock
        self._observers = observers
        self._on_failed = on_failed
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._phase = Phase.NEW  # while there has been no connection
        self.last_ready: ClientConnection | None = None  # the last that calls were made on
        self._latest: ClientConnection | None = None  # the last that was made, in use or not
        self._history = History()
        self._decision: Decision = RetryAfter(0.0)
        self._failure: TrunklineError | None = None  # why there will be no other connection
        self._stop_requested: asyncio.Future[None] = self._loop.create_future()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._reconnected: asyncio.Future[None] = (
            self._loop.create_future()
        )  # the line has been made again, or will not be
        self._closing_channels: set[asyncio.Task[None]] = set()  # channels that have ended
        self._background_tasks: set[asyncio.Task[Any]] = set()  # what goes on beside calls
        self._openers = 0
        self._opening_step = ""  # the step that is being made
        self._era: Era | None = None  # that the server was found to speak
        self._ended_at_probe = False  # the last attempt: the server, after server/discover and before an answer to it
        self._task = self._loop.create_task(self._run(), name=f"trunkline: line to {connector.name}")

    @property
    def phase(self) -> Phase:
        """Where the conversation stands."""
        return self._phase if self._latest is None else self._latest.session.phase

    @property
    def latest(self) -> ClientConnection | None:
        """The connection that was made last, whether it can be used or not."""
        return self._latest

    @property
    def done(self) -> bool:
        """Whether nothing of it is left."""
        return self._task.done()

    @property
    def stopping(self) -> bool:
        """Whether it is about to be over."""
        return not self.done and (self._stop_requested.done() or self._failure is not None)

    @property
    def reconnects(self) -> bool:
        """Whether a line that is lost is made again."""
        return self.settings.auto_reconnect and not self._stop_requested.done()

    # --- for whoever uses it -------------------------------------------------------------------

    async def wait_opened(self) -> None:
        """Waits until the line is ready for calls; raises why it is not. If all who wait are cancelled, it closes."""
        self._openers += 1
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            if self._openers == 1 and not self._opened.done():
                self._request_stop()
            raise
        finally:
            self._openers -= 1

    async def close(self) -> None:
        """Closes the line and waits until nothing of it is left. Whoever is cancelled meanwhile does not stop that."""
        self._request_stop()
        await self.wait_ended()
        self._enter_closed_phase()

    async def wait_ended(self) -> None:
        """Waits until nothing of it is left."""
        if not self.done:
            await asyncio.wait([self._task])

    def _enter_closed_phase(self) -> None:
        if self._latest is None:
            self._phase = lifecycle.next_phase(self._phase, Signal.CLOSE)
        elif self._latest.session.phase is not Phase.CLOSED:
            self._latest.step(Signal.CLOSE)

    def _request_stop(self) -> None:
        if not self._stop_requested.done():
            self._stop_requested.set_result(None)

    async def wait_for_connection(self, purpose: str, timeout: float | None) -> ClientConnection:
        """A connection that calls can be made on, waited for while the line is being made again. Raises why there is
        none, and `ConnectionClosed` if there is none in time. `what` is to be done with it, for the error."""
        due = None if timeout is None else self._clock.now() + timeout
        while self.connection is None:
            if self._failure is not None:
                raise again(self._failure)
            if not self._opened.done():
                raise WrongPhase(purpose, self.phase.name.lower())
            await self.wait_for([self._reconnected], due)
            if self.connection is None and due is not None and self._clock.now() >= due:
                raise ConnectionClosed(f"{purpose}: the line was not made again within {timeout:g} s")
        return self.connection

    def run_in_background(self, work: "Coroutine[Any, Any, T]") -> "asyncio.Task[T]":
        """Has something done beside calls; it does not outlive the line."""
        return self._spawn(work, self._background_tasks)

    def _spawn(self, work: "Coroutine[Any, Any, T]", tasks: "set[asyncio.Task[Any]]") -> "asyncio.Task[T]":
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    # --- its life ------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Never raises: what goes wrong is told to those who wait for it."""
        try:
            await self._open()
            while self.connection is not None:
                await self.wait_for([self.connection.disconnected])
                await self._reconnect()
        except _StopRequested:
            pass
        except asyncio.CancelledError:  # the loop ends
            self._request_stop()
        except TrunklineError as error:
            self._fail(error)
        finally:
            await self._shut_down()

    async def _open(self) -> None:
        for step in ("LoadConfig", "InitTransport"):
            self._enter_opening_step(step)
        connection = await self._attempt_connection(reconnecting=False)
        if not connection.ready:
            raise closed_error(connection.disconnected.result())
        self.connection = self.last_ready = connection
        self._opened.set_result(None)

    async def _reconnect(self) -> None:
        """Makes the line again, or raises why it is given up."""
        while self._latest is None or not self._latest.ready:
            self._raise_if_given_up()
            attempt = self._history.attempts + 1
            if isinstance(self._decision, RetryAfter) and self._decision.delay:
                self._emit_reconnect_step("Backoff", attempt, f"{self._decision.delay:.3g} s")
                await self.wait_for([], self._clock.now() + self._decision.delay)
            self._emit_reconnect_step("Attempt", attempt)
            try:
                await self._attempt_connection(reconnecting=True)
            except TrunklineError as error:
                self._emit_reconnect_step("Failure", attempt, str(error))
                if isinstance(error, AuthorizationFailed) and not error.passing:
                    raise  # nobody is asked who we are time and again
                if isinstance(self._decision, RetryAfter):
                    chance = random.random()  # noqa: S311 - no secret depends on it
                    self._history, self._decision = restart_policy.after_failure(self._history, self._policy, chance)
                self._emit_reconnect_step("IncrementRetryCount", self._history.attempts)
                self._emit_reconnect_step("CheckMaxRetries", self._history.attempts)
                self._raise_if_given_up(error)
            else:
                self._emit_reconnect_step("Success", attempt)
                self._history = self._history.succeeded()
        self.connection = self.last_ready = self._latest
        self._set_reconnected()

    def _raise_if_given_up(self, error: TrunklineError | None = None) -> None:
        """Raises, if the line is not to be made again."""
        if isinstance(self._decision, GiveUp):
            how = Degraded if self._decision.degraded else RetriesExhausted
            last = error or (None if self._latest is None else closed_error(self._latest.disconnected.result()))
            raise how(f"the line to {self._connector.name} is given up: {self._decision.reason}; {last}") from last

    async def _attempt_connection(self, *, reconnecting: bool) -> ClientConnection:
        """One attempt at a connection, within the time that a handshake may take."""
        seconds = self.settings.initialize_timeout
        try:
            return await self._run_with_timeout(self._connect(reconnecting=reconnecting), seconds)
        except HandshakeFailed as error:
            raise self._with_step(HandshakeFailed(f"cannot connect to {self._connector.name}: {error}")) from None
        except TransportError as error:
            raise self._with_step(_before_ready(error)) from error.__cause__
        except (TrunklineError, _StopRequested):
            raise
        except TimeoutError:
            raise self._with_step(
                HandshakeFailed(f"{self._connector.name} was not ready within {seconds:g} s")
            ) from None
        except Exception as error:  # a server's lifespan, for one
            why = f"{self._connector.name} cannot be connected to: {type(error).__name__}: {error}"
            raise self._with_step(TransportError("; ".join([why, *getattr(error, "__notes__", ())]))) from error

    def _with_step(self, error: TransportError) -> TransportError:
        error.step = self._opening_step
        return error

    async def _connect(self, *, reconnecting: bool) -> ClientConnection:
        """Open a connection. A server that ends at server/discover is started again, and sent initialize at once.

        Servers on the Python package `mcp` up to 1.9.3 do that, with the next message that they read. It is done once,
        and only while the era of the server is not known.
        """
        connector = self._connector
        program = connector.fingerprint if isinstance(connector, LaunchingConnector) else None
        if self._era is None and program in era_probe.HANDSHAKE_ONLY:
            self._era = Era.HANDSHAKE
        try:
            return await self._open_connection(reconnecting=reconnecting)
        except ConnectionClosed as closed:
            if self._era is not None or not closed.reached or not self._ended_at_probe:
                raise
        self._era = Era.HANDSHAKE
        try:
            connection = await self._open_connection(reconnecting=reconnecting)
        except BaseException:
            self._era = None
            raise
        if program is not None:
            era_probe.HANDSHAKE_ONLY.add(program)
        return connection

    async def _open_connection(self, *, reconnecting: bool) -> ClientConnection:
        begins = Phase.RECONNECTING if reconnecting else Phase.NEW
        self._enter_opening_step("EstablishConnection")

        def accept(channel: Channel) -> Receiver:
            self._latest = self._make_connection(channel, begins, self._classify_close)
            return self._latest

        channel = await self._connector.connect(accept)
        connection: Any = self._latest
        if connection.disconnected.done():
            raise closed_error(connection.disconnected.result())
        try:
            self._enter_opening_step("SendInitialize")
            self._era = await connection.open(lambda: self._enter_opening_step("WaitForInitialized"), self._era)
            await self._prepare_connection(connection, reconnecting)
        except BaseException as error:
            self._ended_at_probe = connection.disconnected.done() and connection.probe_unanswered
            if isinstance(error, HandshakeFailed):
                self._forget_era()
            await _close_channel(channel)
            raise
        return connection

    def _forget_era(self) -> None:
        """Forget what was found out about the server, since it holds no more."""
        self._era = None
        if isinstance(self._connector, LaunchingConnector):
            era_probe.HANDSHAKE_ONLY.discard(self._connector.fingerprint)

    def _classify_close(self, connection: ClientConnection, closed: ChannelClosed) -> Signal:  # noqa: ARG002 - whatever the reason
        """What it means that a connection has ended. Its channel may need a while to end, too."""
        self._spawn(_close_channel(connection.channel), self._closing_channels)
        if connection is self.connection:
            self.connection = None
        session = connection.session
        if self._stop_requested.done() or session.phase in {Phase.DRAINING, Phase.CLOSED}:
            return Signal.CLOSE
        if not self._opened.done():
            return Signal.FAIL
        if session.phase is Phase.READY:
            self.losses += 1
            self._history, self._decision = restart_policy.after_loss(self._history, self._policy, self._clock.now())
            if self._reconnected.done():
                self._reconnected = self._loop.create_future()
        return Signal.LOSE if isinstance(self._decision, RetryAfter) and session.allows(Signal.LOSE) else Signal.FAIL

    # --- the end -------------------------------------------------------------------------------

    def _fail(self, error: TrunklineError) -> None:
        self._failure = error
        if self._latest is None:
            self._phase = lifecycle.next_phase(self._phase, Signal.FAIL)
        elif self._latest.session.allows(Signal.FAIL):
            self._latest.step(Signal.FAIL)
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # nobody has to wait for it
        elif self._on_failed is not None:
            with contextlib.suppress(Exception):  # a callback's fault is its own
                self._on_failed(error)

    async def _shut_down(self) -> None:
        self.connection = None
        self._failure = self._failure or ConnectionClosed("the client was closed")
        if not self._opened.done():
            self._opened.set_exception(again(self._failure))
            self._opened.exception()
        self._set_reconnected()
        if self._latest is not None:
            if self._latest.session.allows(Signal.DRAIN):
                self._latest.step(Signal.DRAIN)
            self._latest.fail_pending_requests("the client was closed")
        for task in self._background_tasks:
            task.cancel()
        self._on_end()
        if self._latest is not None:
            await _close_channel(self._latest.channel)
        if self._stop_requested.done():
            self._enter_closed_phase()
        if left := self._closing_channels | self._background_tasks:
            await asyncio.wait(left)
        if isinstance(self._connector, ReleasableConnector):
            await self._connector.release()

    def _set_reconnected(self) -> None:
        if not self._reconnected.done():
            self._reconnected.set_result(None)

    # --- waiting -------------------------------------------------------------------------------

    async def wait_for(self, futures: "Sequence[asyncio.Future[Any]]", due: float | None = None) -> None:
        """Waits until one of them is done or the time has come; raises `_Stopped` in the line's own task."""
        timer: asyncio.Future[None] = self._loop.create_future()
        late = None if due is None else self._clock.call_at(due, partial(_set_timer_done, timer))
        stop = [self._stop_requested] if asyncio.current_task() is self._task else []
        try:
            await asyncio.wait([*futures, timer, *stop], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if late is not None:
                late.cancel()
        if stop and self._stop_requested.done():
            raise _StopRequested

    async def sleep(self, seconds: float) -> None:
        """Waits for so long."""
        await self.wait_for((), self._clock.now() + seconds)

    async def _run_with_timeout(self, work: "Coroutine[Any, Any, T]", seconds: float | None) -> T:
        """The outcome of some work, if there is one in time; it is stopped otherwise."""
        task = self._loop.create_task(work)
        try:
            await self.wait_for([task], None if seconds is None else self._clock.now() + seconds)
            while not task.done() and seconds is not None and self._authorizing:
                await self.wait_for([task], self._clock.now() + seconds)  # a person takes as long as a person takes
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # if the line is stopped in this very moment, nobody asks for it
        if task.cancelled():
            raise TimeoutError
        return task.result()

    @property
    def _authorizing(self) -> bool:
        """Whether it is being settled who we are."""
        connector = self._connector
        if isinstance(connector, AuthorizingConnector) and connector.pending_authorizations:
            return True
        return self._latest is not None and self._latest.pending_authorizations > 0

    # --- facts ---------------------------------------------------------------------------------

    def _emit(self, fact: Callable[..., Fact], **fields: Any) -> None:
        if self._observers:
            number = 0 if self._latest is None else self._latest.number
            self._observers.on(fact(connection=number, at=self._clock.now(), **fields))

    def _enter_opening_step(self, step: str) -> None:
        """Tells of a step on the way to a conversation, and keeps it for whoever asks where that went wrong."""
        self._opening_step = step
        self._emit(OpeningStep, step=step)

    def _emit_reconnect_step(self, step: str, attempt: int, detail: str = "") -> None:
        self._emit(ReconnectStep, step=step, attempt=attempt, detail=detail)


def _before_ready(error: TransportError) -> TransportError:
    """The same error; if a process has ended before the session was open, one that says so."""
    if not isinstance(error, ConnectionClosed) or error.status is None:
        return error
    advice = "" if error.status else "; a server script has to call run() at its end"
    return ConnectionClosed(
        f"{error.message} before it was ready{advice}",
        status=error.status,
        last_words=error.last_words,
        reached=error.reached,
    )


def _set_timer_done(timer: "asyncio.Future[None]") -> None:
    if not timer.done():
        timer.set_result(None)


async def _close_channel(channel: Channel) -> None:
    """Closes a channel. Not even the end of the loop cuts that short: a channel sees to it that it has an end."""
    with contextlib.suppress(TransportError, OSError):
        try:
            await channel.close()
        except asyncio.CancelledError:
            await channel.close()
