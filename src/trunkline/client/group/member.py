"""One member of a group: its client, its state, and the task that connects it.

The client reconnects by itself after a lost connection. The task here covers the rest: attempts to connect for the
first time, with growing delays, and the end of a client that has given up. A failure stays in the member.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

from trunkline.client.client import Client
from trunkline.client.group.names import MAX_NAME, alter_name, make_prefix
from trunkline.client.group.states import MEMBER_STATES, MemberEvent, MemberSignal, MemberState
from trunkline.clock import Clock, LoopClock, Timer
from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed, ConnectionClosed, MisuseError, TransportError, TrunklineError
from trunkline.protocol.lifecycle import Phase
from trunkline.protocol.types import Tool
from trunkline.supervision.child_table import ChildState
from trunkline.supervision.restart_policy import GiveUp, History, RestartPolicy, after_failure
from trunkline.supervision.supervisor import ChildStatus
from trunkline.trust.pins import BlockedTool

__all__ = ["Member"]

_log: Final = logging.getLogger("trunkline")
_NOT_OPEN: Final = "the group is not open: `async with group:` or `await group.open()` comes first"
_USABLE: Final = frozenset({MemberState.READY, MemberState.RECONNECTING})
_CHILD_STATES: Final[Mapping[MemberState, ChildState]] = {
    MemberState.NOT_STARTED: ChildState.STOPPED,
    MemberState.CONNECTING: ChildState.STARTING,
    MemberState.READY: ChildState.RUNNING,
    MemberState.RECONNECTING: ChildState.STARTING,
    MemberState.FAILED: ChildState.BACKOFF,
    MemberState.CLOSED: ChildState.STOPPED,
}


class Member:
    """A server of a group, with a client of its own."""

    def __init__(
        self,
        name: str,
        make_client: Callable[..., Client],
        *,
        settings: Settings,
        clock: Clock | None,
        start_timeout: float | None,
        on_event: Callable[[MemberEvent], object] | None,
    ) -> None:
        """`make_client` takes `on_failed` and `on_phase`, and raises `MisuseError` for a target that cannot be used."""
        self.name = name
        self.prefix = make_prefix(name)
        self.state = MemberState.NOT_STARTED
        self.error: TrunklineError | None = None  # the reason of the last failure, until the member is ready
        self.list_error: TrunklineError | None = None  # why the last list is missing
        self.changes = 0  # of the list of tools, as far as the server has reported them; a reconnect counts as one
        self.tools: dict[str, Tool] = {}  # by the altered name, as last listed
        self.prompts: dict[str, str] = {}  # original names by altered ones, as last listed
        self.checked: int | None = None  # the value of `changes` for which the tools were compared with the pins
        self.blocked: Mapping[str, BlockedTool] = {}  # by the original name
        self.vanished: tuple[str, ...] = ()  # pinned tools that the server does not have
        self.listing = asyncio.Lock()  # held while the tools are listed and compared with their pins
        self._open = False
        self._make_client = make_client
        self._client: Client | None = None
        self._policy = RestartPolicy.from_settings(settings)
        self._custom_clock = clock
        self._start_timeout = start_timeout
        self._on_event = on_event
        self._settled = asyncio.Event()  # connected or failed, or the time to wait for that is over
        self._timer: Timer | None = None  # ends the wait
        self._task: asyncio.Task[None] | None = None
        self._given_up: asyncio.Future[TrunklineError] | None = None

    def __repr__(self) -> str:
        return f"<Member {self.name!r}: {self.state.name.lower()}>"

    @property
    def name_limit(self) -> int:
        """The number of characters for the name of a tool or prompt after the prefix."""
        return MAX_NAME - len(self.prefix) - 2

    @property
    def is_open(self) -> bool:
        """Whether the member is started, or may be."""
        return self._open

    @property
    def client(self) -> Client:
        """The client, open or not. Raises `MisuseError` if the target of the member cannot be used."""
        if self._client is None:
            self._client = self._make_client(on_failed=self._on_failed, on_phase=self._on_phase)
            self._client.on("notifications/tools/list_changed", lambda _: self._mark_changed())
        return self._client

    def describe(self, path: str) -> ChildStatus:
        """Return the state of the member in the words of the supervision tree. One that has failed and is not tried
        again is degraded."""
        state = _CHILD_STATES[self.state]
        if state is ChildState.BACKOFF and (self._task is None or self._task.done()):
            state = ChildState.DEGRADED
        failure = "" if self.error is None else f"{type(self.error).__name__}: {self.error}"
        restarts = 0 if self._client is None else self._client.losses
        return ChildStatus(f"{path}/{self.name}", "connection", state, restarts, failure)

    def set_tools(self, tools: list[Tool]) -> None:
        """Store the tools as listed. The first of two with the same altered name counts."""
        self.tools = {}
        for tool in tools:
            self.tools.setdefault(alter_name(tool.name, self.name_limit), tool)

    # --- starting and stopping -----------------------------------------------------------------

    def open(self) -> None:
        """Allow the member to start, on the running loop."""
        if not self._open:
            self._open = True
            self._settled, self.listing = asyncio.Event(), asyncio.Lock()
            if self.state is MemberState.CLOSED:
                self._step(MemberSignal.RESET)

    def start(self) -> None:
        """Begin to connect, unless that has begun. A member that has failed tries again at once. Raises `MisuseError`
        if the group is not open."""
        if not self._open:
            raise MisuseError(_NOT_OPEN)
        if self.state not in {MemberState.NOT_STARTED, MemberState.FAILED}:
            return
        if self._task is not None:
            self._task.cancel()
        self._settled.clear()
        loop = asyncio.get_running_loop()
        clock = self._custom_clock or LoopClock(loop)
        if self._timer is not None:
            self._timer.cancel()
        if self._start_timeout is not None:
            self._timer = clock.call_at(clock.now() + self._start_timeout, self._settled.set)
        self._step(MemberSignal.START)
        self._task = loop.create_task(self._run(clock), name=f"trunkline: member {self.name}")

    async def wait_settled(self) -> None:
        """Wait until the member has connected or failed, for at most its start timeout."""
        await self._settled.wait()

    async def connected_client(self) -> Client:
        """Return the client; start the member if necessary. Raises `ConnectionClosed` if it is not connected."""
        if self.state in _USABLE:
            return self.client
        if self.state is not MemberState.FAILED:
            self.start()
        await self.wait_settled()
        if self.state in _USABLE:
            return self.client
        why = self.error or f"it did not answer within {self._start_timeout:g} s, and may still do so"
        raise ConnectionClosed(f"member {self.name!r} is not connected: {why}", reached=False) from self.error

    async def close(self) -> None:
        """Close the connection, and end all work of the member."""
        self._open = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self._client is not None:
            await self._client.close()
        self._settle()
        self._step(MemberSignal.CLOSE)

    # --- the task of the member ----------------------------------------------------------------

    async def _run(self, clock: Clock) -> None:
        history = History()
        while True:
            self._given_up = asyncio.get_running_loop().create_future()
            try:
                await self.client.open()
            except TrunklineError as error:
                self._fail(error)
                if isinstance(error, MisuseError) or (isinstance(error, AuthorizationFailed) and not error.passing):
                    return  # a second attempt would fail, or ask a person again
            except Exception as error:  # noqa: BLE001 - for example, of the user's connector
                self._fail(TransportError(f"{type(error).__name__}: {error}"))
                return
            else:
                self._mark_changed()
                self._step(MemberSignal.CONNECT)
                self._settle()
                self._fail(await self._given_up)
                return  # the client has tried again for as long as its settings allow
            history, decision = after_failure(history, self._policy, random.random())  # noqa: S311 - no secret
            if isinstance(decision, GiveUp):
                return
            await _sleep(clock, decision.delay)
            self._step(MemberSignal.START)

    def _fail(self, error: TrunklineError) -> None:
        self.error = error
        self._step(MemberSignal.FAIL)
        self._settle()

    def _settle(self) -> None:
        self._settled.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_failed(self, error: TrunklineError) -> None:
        if self._given_up is not None and not self._given_up.done():
            self._given_up.set_result(error)

    def _on_phase(self, phase: Phase) -> None:
        if phase is Phase.READY:
            self._mark_changed()
        if self.state in _USABLE:
            self._step(MemberSignal.CONNECT if phase is Phase.READY else MemberSignal.LOSE)

    def _mark_changed(self) -> None:
        self.changes += 1

    def _step(self, signal: MemberSignal) -> None:
        before, self.state = self.state, MEMBER_STATES[self.state][signal]
        if self.state is MemberState.READY:
            self.error = None
        if self.state is before or self._on_event is None:
            return
        try:
            self._on_event(MemberEvent(self.name, self.state, self.error))
        except Exception:  # noqa: BLE001 - an error of the callback must not stop the member
            _log.exception("on_event of the group failed for member %r", self.name)


async def _sleep(clock: Clock, seconds: float) -> None:
    woken = asyncio.Event()
    timer = clock.call_at(clock.now() + seconds, woken.set)
    try:
        await woken.wait()
    finally:
        timer.cancel()
