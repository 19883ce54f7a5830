"""Fault injection into connections, for tests of error handling.

    faults = Faults().kill(sent="tools/call")
    async with connect(server, faults=faults) as client:
        with pytest.raises(OutcomeUnknown):
            await client.call_tool("add", {"a": 1, "b": 2})

`Client(faults.on(target))` does the same for any other target.

Sent and received messages are counted separately, from 1, as seen from the end that the faults
are put on. Nothing here waits for real time, and the same seed gives the same random faults.

The probe by which a client detects the era of a server, and the response to it, are not
counted, and no random fault affects them: other messages have the same numbers with and without a probe. A rule can
name it like any other message: `drop(sent="server/discover")`.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, Literal, Self

from msgspec import Struct

from trunkline.clock import Clock, LoopClock
from trunkline.config import Settings
from trunkline.errors import MisuseError, TransportError
from trunkline.protocol.client_envelope import PROBE_ID
from trunkline.testing.wrapped_connector import WrappedConnector
from trunkline.transports.channel import (
    Accept,
    Channel,
    ChannelClosed,
    ChannelInfo,
    Connector,
    MessageOrigin,
    Receiver,
)
from trunkline.wire import codec
from trunkline.wire.messages import Batch, Encoded, Incoming, Malformed, Message, RequestId

__all__ = ["Faults", "FaultyChannel"]

Direction = Literal["sent", "received"]
Which = int | str  # the number of a message, or its method: the next message of that method


_KILLED: Final = ChannelClosed("killed by a fault")
_RANDOM_FAULTS: Final = frozenset({"cut", "drop", "duplicate", "garble", "kill", "swap", "truncate"})


class _Rule(Struct):
    direction: Direction
    which: Which
    fault: str
    seconds: float = 0.0
    count: int = 0
    closed: ChannelClosed = _KILLED


class _Entry(Struct):
    """A message in transit, with its request and origin."""

    item: Any
    about: RequestId | None = None
    origin: MessageOrigin | None = None


class Faults:
    """Faults to inject into connections. Every method but `release` and `refuse` names a future message, by its number
    or its method, as `sent=` or as `received=`; `kill` and `stall` work without one, too."""

    def __init__(self, *, clock: Clock | None = None, seed: int = 0, **chances: float) -> None:
        """`chances` are probabilities by fault for every message, such as `drop=0.1`; every fault but a delay can be
        random."""
        if unknown := sorted(chances.keys() - _RANDOM_FAULTS):
            raise MisuseError(f"no fault {unknown[0]!r} happens by chance; {', '.join(sorted(_RANDOM_FAULTS))} do")
        self.lines: list[FaultyChannel] = []
        self.counts: dict[Direction, int] = {"sent": 0, "received": 0}
        self._chances = chances
        self._random = Random(seed)  # noqa: S311 - the same each time is what is wanted
        self._clock = clock
        self._rules: list[_Rule] = []
        self._refusals = 0
        self.stalled: set[Direction] = set()

    # --- where ---------------------------------------------------------------------------------

    def on(self, target: Any) -> Connector:
        """Return a connector to any client target, with these faults on its connections."""
        from trunkline.client.targets import make_connector

        connector = make_connector(target, Settings())

        def check_refused() -> None:
            if self.refused():
                raise TransportError(f"cannot reach {connector.name}: refused by a fault")

        return WrappedConnector(connector, self.put_on, check_refused)

    def around(self, accept: Accept) -> Accept:
        """Wrap a function that accepts channels, such as `server.connect`."""
        return lambda channel: self.put_on(channel, accept)

    def put_on(self, channel: Channel, accept: Accept) -> "FaultyChannel":
        """Wrap a channel with these faults."""
        faulty = FaultyChannel(channel, self)
        faulty.open(accept(faulty))
        self.lines.append(faulty)
        return faulty

    # --- what, to a message to come --------------------------------------------------------------

    def drop(self, *, sent: Which | None = None, received: Which | None = None) -> Self:
        """Drop a message."""
        return self._rule("drop", sent, received)

    def duplicate(self, *, sent: Which | None = None, received: Which | None = None) -> Self:
        """Deliver a message twice."""
        return self._rule("duplicate", sent, received)

    def swap(self, *, sent: Which | None = None, received: Which | None = None) -> Self:
        """Deliver the next message before this one."""
        return self._rule("swap", sent, received)

    def reorder(self, count: int = 2, *, sent: Which | None = None, received: Which | None = None) -> Self:
        """Deliver a message and those after it, `count` in all, in reverse order, once the last of them is there."""
        if count < 2:  # noqa: PLR2004 - one message has no order
            raise MisuseError(f"reorder needs at least 2 messages, not {count!r}")
        return self._rule("reorder", sent, received, count=count)

    def truncate(self, *, sent: Which | None = None, received: Which | None = None) -> Self:
        """Deliver the first half of a message."""
        return self._rule("truncate", sent, received)

    def garble(self, *, sent: Which | None = None, received: Which | None = None) -> Self:
        """Deliver a message with some bytes changed, so that it cannot be decoded."""
        return self._rule("garble", sent, received)

    def delay(self, seconds: float, *, sent: Which | None = None, received: Which | None = None) -> Self:
        """Delay a message, and all later ones, by `seconds` on the clock."""
        return self._rule("delay", sent, received, seconds=seconds)

    def cut(self, *, sent: Which | None = None, received: Which | None = None) -> Self:
        """Close the connection in the middle of a message."""
        return self._rule("cut", sent, received)

    def _rule(self, fault: str, sent: Which | None, received: Which | None, **more: Any) -> Self:
        if sent is not None:
            self._rules.append(_Rule("sent", sent, fault, **more))
        if received is not None:
            self._rules.append(_Rule("received", received, fault, **more))
        return self

    # --- what, to a line -------------------------------------------------------------------------

    def kill(
        self,
        *,
        sent: Which | None = None,
        received: Which | None = None,
        closed: ChannelClosed = _KILLED,
    ) -> Self:
        """Close every connection now; or, if a message is named, its connection right after that message."""
        if sent is None and received is None:
            for line in list(self.lines):
                line.abort(closed)
        return self._rule("kill", sent, received, closed=closed)

    def stall(
        self, direction: Direction | None = None, *, sent: Which | None = None, received: Which | None = None
    ) -> Self:
        """Hold all messages in one direction until `release`: from now on, or from a message on that is named."""
        if direction is not None:
            self.stalled.add(direction)
        return self._rule("stall", sent, received)

    def release(self, direction: Direction) -> Self:
        """Deliver held messages and stop holding further ones."""
        self.stalled.discard(direction)
        for line in list(self.lines):
            line.lanes[direction].flush()
        return self

    def refuse(self, times: int = 1) -> Self:
        """Make the next attempts to connect fail."""
        self._refusals += times
        return self

    # --- for the lines ---------------------------------------------------------------------------

    def refused(self) -> bool:
        """Return whether this attempt to connect fails."""
        refused = self._refusals > 0
        self._refusals -= refused
        return refused

    def judge(self, direction: Direction, item: Any) -> _Rule | None:
        """Return the fault that applies to a message, if any."""
        probe = getattr(item, "id", None) == PROBE_ID
        self.counts[direction] += not probe
        names = (None if probe else self.counts[direction], getattr(item, "method", None))
        for rule in self._rules:
            if rule.direction == direction and rule.which in names:
                self._rules.remove(rule)
                return rule
        if probe:
            return None
        for fault, chance in self._chances.items():
            if self._random.random() < chance:
                return _Rule(direction, 0, fault)
        return None

    def garbled(self, frame: bytes) -> bytes:
        """Return a frame with some bytes changed, still on one line."""
        changed = bytearray(frame)
        for _ in range(1 + len(frame) // 20):
            changed[self._random.randrange(len(frame))] = self._random.randrange(0x80, 0x100)
        return bytes(changed)

    @property
    def clock(self) -> Clock:
        """The clock that measures delays."""
        return self._clock or LoopClock(asyncio.get_running_loop())


class _Lane:
    """One direction of a connection."""

    def __init__(self, line: "FaultyChannel", direction: Direction, deliver: Callable[[list[_Entry]], None]) -> None:
        self._line = line
        self._direction: Direction = direction
        self._deliver = deliver
        self._waiting: list[_Entry] = []  # messages held by a stall or a delay
        self._overtaken: list[_Entry] = []  # messages that the next message overtakes
        self._reversed: list[_Entry] = []  # messages that wait for others, to be delivered in reverse order
        self._reversed_count = 0
        self._delays = 0

    def put(self, entry: _Entry) -> None:
        """Accept a message and apply its fault."""
        rule = self._line.faults.judge(self._direction, entry.item)
        match None if rule is None else rule.fault:
            case "drop":
                return
            case "duplicate":
                self._pass(entry, entry)
            case "swap":
                self._overtaken.append(entry)
            case "reorder" if rule is not None:
                self._reversed_count = rule.count
                self._pass(entry)
            case "stall":
                self._line.faults.stalled.add(self._direction)
                self._pass(entry)
            case "truncate":
                frame = _frame(entry.item)
                self._pass(self._damaged(entry, frame[: len(frame) // 2]))
            case "garble":
                self._pass(self._damaged(entry, self._line.faults.garbled(_frame(entry.item))))
            case "delay" if rule is not None:
                self._delay(rule.seconds)
                self._pass(entry)
            case "cut":
                self._line.abort(ChannelClosed("cut within a message, by a fault"))
            case "kill" if rule is not None:
                self._pass(entry)
                self._line.abort(rule.closed)
            case _:
                self._pass(entry)

    def _damaged(self, entry: _Entry, frame: bytes) -> _Entry:
        item = Encoded(frame) if self._direction == "sent" else codec.decode(frame)
        return _Entry(item, entry.about, entry.origin)

    def _delay(self, seconds: float) -> None:
        clock = self._line.faults.clock
        self._delays += 1
        clock.call_at(clock.now() + seconds, self._delayed)

    def _delayed(self) -> None:
        self._delays -= 1
        self.flush()

    def _pass(self, *entries: _Entry) -> None:
        overtaken, self._overtaken = self._overtaken, []
        arrived = [*entries, *overtaken]
        if self._reversed_count:
            self._reversed += arrived
            if len(self._reversed) < self._reversed_count:
                return
            arrived, self._reversed, self._reversed_count = self._reversed[::-1], [], 0
        self._waiting += arrived
        self.flush()

    def flush(self) -> None:
        """Deliver held messages unless a delay or a stall is in force."""
        if self._waiting and not self._delays and self._direction not in self._line.faults.stalled:
            entries, self._waiting = self._waiting, []
            self._deliver(entries)


def _frame(item: Any) -> bytes:
    if isinstance(item, Encoded):
        return item.frame
    if isinstance(item, Malformed):
        return b"{}"  # its bytes are not known; half of this is no message either
    return codec.to_json(list(item.messages) if isinstance(item, Batch) else item)


class FaultyChannel:
    """A channel that wraps another channel and its receiver."""

    def __init__(self, inner: Channel, faults: Faults) -> None:
        self.faults = faults
        self._inner = inner
        self._receiver: Receiver | None = None
        self._ended = False
        self._closing: asyncio.Task[None] | None = None
        self.lanes = {"sent": _Lane(self, "sent", self._send), "received": _Lane(self, "received", self._deliver)}

    def open(self, receiver: Receiver) -> None:
        """Set the receiver of messages."""
        self._receiver = receiver

    @property
    def info(self) -> ChannelInfo:
        """The description of the wrapped channel."""
        return self._inner.info

    # --- from the receiver to the channel ---------------------------------------------------------

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> int | None:
        """Send a message; raise for one that cannot be encoded, even if a fault would drop it."""
        frame = message.frame if isinstance(message, Encoded) else codec.to_json(message)
        if not self._ended:
            self.lanes["sent"].put(_Entry(message, about))
        return len(frame)

    def _send(self, entries: list[_Entry]) -> None:
        for entry in entries:
            self._inner.send(entry.item, about=entry.about)

    def pause(self) -> None:
        """Pause reading."""
        self._inner.pause()

    def resume(self) -> None:
        """Resume reading."""
        self._inner.resume()

    async def drain(self) -> None:
        """Wait until the wrapped channel has drained."""
        await self._inner.drain()

    async def close(self) -> None:
        """Close the connection."""
        await (self._inner.close() if self._closing is None else asyncio.shield(self._closing))

    # --- from the channel to the receiver ---------------------------------------------------------

    def received(self, messages: Sequence[Incoming], origin: MessageOrigin) -> None:
        """Accept the messages of one read."""
        for message in messages:
            if not self._ended:
                self.lanes["received"].put(_Entry(message, origin=origin))

    def _deliver(self, entries: list[_Entry]) -> None:
        for entry in entries:
            if self._receiver is not None and entry.origin is not None and not self._ended:
                self._receiver.received([entry.item], entry.origin)

    def unanswered(self, request: RequestId, closed: ChannelClosed) -> None:
        """Report that the wrapped channel stays open without a response."""
        if self._receiver is not None and not self._ended:
            self._receiver.unanswered(request, closed)

    def authorizing(self, request: RequestId, *, begun: bool) -> None:
        """Report that the wrapped channel waits for a person, or has stopped waiting."""
        if self._receiver is not None and not self._ended:
            self._receiver.authorizing(request, begun=begun)

    def closed(self, closed: ChannelClosed) -> None:
        """Report that the wrapped channel has closed."""
        if not self._ended:
            self._ended = True
            self.faults.lines.remove(self)
            if self._receiver is not None:
                self._receiver.closed(closed)

    def abort(self, closed: ChannelClosed) -> None:
        """End the connection immediately; close the wrapped channel in the background."""
        if not self._ended:
            self._closing = asyncio.get_running_loop().create_task(self._inner.close())
            self.closed(closed)
