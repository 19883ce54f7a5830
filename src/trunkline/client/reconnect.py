"""The supervisor of a client's connection: it opens, watches, replaces and closes it, in a task of its own.

No other task owns the connection. A caller that opens or closes it only sends a signal and waits, so that can be done
from any task and in any order, and cancelling a caller cancels nothing else. `supervision.restart_policy` decides
whether a lost connection is replaced; the lifecycle table defines the phases.
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
from trunkline.token_bucket import TokenBucket, parse_rate
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
"""Creates the connection of a new channel, with its first phase and the function that classifies its end."""


class _StopRequested(Exception):
    """The connection is to be closed."""


class ConnectionSupervisor:
    """Owner of a client's connection; reconnects when it is lost."""

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
        on_phase: Callable[[Phase], object] | None = None,
        on_end: Callable[[], object],
    ) -> None:
        """`prepare_connection` is awaited with each new connection before any other use, and with whether it is a
        reconnect. `on_end` releases the resources of this supervisor."""
        self.connection: ClientConnection | None = None  # usable now; None while there is none
        self._retries: TokenBucket | None = None  # made with the first refusal
        self.losses = 0
        self._connector = connector
        self._make_connection = make_connection
        self._prepare_connection = prepare_connection
        self.settings = settings
        self._policy = RestartPolicy.from_settings(settings)
        self._clock = clock
        self._observers = observers
        self._on_failed = on_failed
        self._on_phase = on_phase
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._phase = Phase.NEW  # before the first connection
        self.last_ready: ClientConnection | None = None  # the last usable connection
        self._latest: ClientConnection | None = None  # the last connection, usable or not
        self._history = History()
        self._decision: Decision = RetryAfter(0.0)
        self._failure: TrunklineError | None = None  # the reason why there will be no other connection
        self._stop_requested: asyncio.Future[None] = self._loop.create_future()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._reconnected: asyncio.Future[None] = self._loop.create_future()  # reconnected, or given up
        self._closing_channels: set[asyncio.Task[None]] = set()  # closing channels of lost connections
        self._background_tasks: set[asyncio.Task[Any]] = set()
        self._openers = 0
        self._opening_step = ""  # for errors
        self._era: Era | None = None  # of the server, once detected
        self._ended_at_probe = False  # the server exited after server/discover and before a response
        self._task = self._loop.create_task(self._run(), name=f"trunkline: connection to {connector.name}")

    @property
    def phase(self) -> Phase:
        """The phase of the latest session."""
        return self._phase if self._latest is None else self._latest.session.phase

    @property
    def latest(self) -> ClientConnection | None:
        """The connection that was opened last, usable or not."""
        return self._latest

    @property
    def done(self) -> bool:
        """Whether the supervisor's task has ended."""
        return self._task.done()

    @property
    def stopping(self) -> bool:
        """Whether the supervisor's task is about to end."""
        return not self.done and (self._stop_requested.done() or self._failure is not None)

    @property
    def reconnects(self) -> bool:
        """Whether a lost connection will be replaced."""
        return self.settings.auto_reconnect and not self._stop_requested.done()

    def take_retry(self) -> bool:
        """Return whether the client may repeat a request that an overloaded server has refused; count it."""
        if self._retries is None and self.settings.retry_rate is not None:
            self._retries = TokenBucket(parse_rate(self.settings.retry_rate))
        return self._retries is not None and not self._retries.take(self._clock.now())

    # --- for callers ---------------------------------------------------------------------------

    async def wait_opened(self) -> None:
        """Wait until calls can be made, or raise the reason. If every caller is cancelled, stop connecting."""
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
        """Close the connection and wait until all work has ended. Cancelling the caller does not stop that."""
        self._request_stop()
        await self.wait_ended()
        self._enter_closed_phase()

    async def wait_ended(self) -> None:
        """Wait until the supervisor's task has ended."""
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
        """Return a usable connection; wait for it while the client reconnects. Raises the reason if there will be none,
        and `ConnectionClosed` after `timeout` seconds. `purpose` is for the error message."""
        due = None if timeout is None else self._clock.now() + timeout
        while self.connection is None:
            if self._failure is not None:
                raise again(self._failure)
            if not self._opened.done():
                raise WrongPhase(purpose, self.phase.name.lower())
            await self.wait_for([self._reconnected], due)
            if self.connection is None and due is not None and self._clock.now() >= due:
                raise ConnectionClosed(f"{purpose}: not reconnected within {timeout:g} s")
        return self.connection

    def run_in_background(self, work: "Coroutine[Any, Any, T]") -> "asyncio.Task[T]":
        """Run a coroutine as a task that ends with this supervisor at the latest."""
        return self._spawn(work, self._background_tasks)

    def _spawn(self, work: "Coroutine[Any, Any, T]", tasks: "set[asyncio.Task[Any]]") -> "asyncio.Task[T]":
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    # --- the supervisor's task -----------------------------------------------------------------

    async def _run(self) -> None:
        """Open the connection and reconnect until stopped. Never raises: failures are passed to the waiting callers."""
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
        """Replace the connection. Raises the reason if the policy gives up."""
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
                    raise  # do not ask a person to authorize the client again and again
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
        self._report_phase(Phase.READY)

    def _raise_if_given_up(self, error: TrunklineError | None = None) -> None:
        """Raise if the restart policy has given up."""
        if isinstance(self._decision, GiveUp):
            how = Degraded if self._decision.degraded else RetriesExhausted
            last = error or (None if self._latest is None else closed_error(self._latest.disconnected.result()))
            raise how(f"gave up reconnecting to {self._connector.name}: {self._decision.reason}; {last}") from last

    async def _attempt_connection(self, *, reconnecting: bool) -> ClientConnection:
        """Try once to connect, within `initialize_timeout`."""
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
        except Exception as error:  # for example, from a server's lifespan
            why = f"cannot connect to {self._connector.name}: {type(error).__name__}: {error}"
            raise self._with_step(TransportError("; ".join([why, *getattr(error, "__notes__", ())]))) from error

    def _with_step(self, error: TransportError) -> TransportError:
        error.step = self._opening_step
        return error

    async def _connect(self, *, reconnecting: bool) -> ClientConnection:
        """Open a connection. If the server exits at `server/discover`, start it again and send `initialize` at once.

        Servers on the Python package `mcp` up to 1.9.3 do that, with the next message that they read. This is done
        once, and only while the era of the server is unknown.
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
        """Forget the era of the server, since the handshake failed with it."""
        self._era = None
        if isinstance(self._connector, LaunchingConnector):
            era_probe.HANDSHAKE_ONLY.discard(self._connector.fingerprint)

    def _classify_close(self, connection: ClientConnection, closed: ChannelClosed) -> Signal:  # noqa: ARG002 - the same for all reasons
        """Return the lifecycle signal for a closed connection, and close its channel in the background."""
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
            if isinstance(self._decision, RetryAfter):
                self._report_phase(Phase.RECONNECTING)
        return Signal.LOSE if isinstance(self._decision, RetryAfter) and session.allows(Signal.LOSE) else Signal.FAIL

    def _report_phase(self, phase: Phase) -> None:
        if self._on_phase is not None:
            with contextlib.suppress(Exception):  # an error of the callback must not stop the supervisor
                self._on_phase(phase)

    # --- closing -------------------------------------------------------------------------------

    def _fail(self, error: TrunklineError) -> None:
        self._failure = error
        if self._latest is None:
            self._phase = lifecycle.next_phase(self._phase, Signal.FAIL)
        elif self._latest.session.allows(Signal.FAIL):
            self._latest.step(Signal.FAIL)
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # mark it as retrieved: there may be no waiting caller
        elif self._on_failed is not None:
            with contextlib.suppress(Exception):  # an error of the callback must not stop the supervisor
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
        """Wait until one of the futures is done, or until `due`. Raises `_StopRequested` in the supervisor's task."""
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
        """Wait for some seconds on the client's clock."""
        await self.wait_for((), self._clock.now() + seconds)

    async def _run_with_timeout(self, work: "Coroutine[Any, Any, T]", seconds: float | None) -> T:
        """Run a coroutine; cancel it after a timeout, which is extended while a person authorizes the client."""
        task = self._loop.create_task(work)
        try:
            await self.wait_for([task], None if seconds is None else self._clock.now() + seconds)
            while not task.done() and seconds is not None and self._authorizing:
                await self.wait_for([task], self._clock.now() + seconds)  # a person may take any time
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # mark it as retrieved, in case of a stop in this moment
        if task.cancelled():
            raise TimeoutError
        return task.result()

    @property
    def _authorizing(self) -> bool:
        """Whether a person is authorizing the client."""
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
        """Report a step of opening the connection, and remember it for errors."""
        self._opening_step = step
        self._emit(OpeningStep, step=step)

    def _emit_reconnect_step(self, step: str, attempt: int, detail: str = "") -> None:
        self._emit(ReconnectStep, step=step, attempt=attempt, detail=detail)


def _before_ready(error: TransportError) -> TransportError:
    """Return the same error; if a process has exited before the session was open, one that says so."""
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
    """Close a channel, even while the loop is ending: every channel bounds the time that this takes."""
    with contextlib.suppress(TransportError, OSError):
        try:
            await channel.close()
        except asyncio.CancelledError:
            await channel.close()
