"""The seam between what moves messages and what they mean.

A transport makes channels and hands up, synchronously, every message that one read brought. What is answered
meanwhile leaves in one write. All of it happens on one event loop: no method of a channel or a receiver is ever
called from two places at once, and none is called from another thread.

Reading can be paused: whoever receives is flooded by what it has asked to go on, never by what it could refuse.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from msgspec import Struct

from trunkline.protocol.headers import MirroredArgument
from trunkline.wire.messages import Encoded, Incoming, Message, RequestId

__all__ = [
    "Accept",
    "AuthorizingConnector",
    "Channel",
    "ChannelClosed",
    "ChannelInfo",
    "Connector",
    "LaunchingConnector",
    "Listener",
    "MessageOrigin",
    "MirrorLookup",
    "MirroringChannel",
    "Oversized",
    "Receiver",
    "ReleasableConnector",
    "ReusableChannel",
    "limit_setting",
]


class ChannelInfo(Struct, frozen=True):
    """What kind of line this is, and who is at its other end."""

    transport: str
    peer: str = ""
    needs_keepalive: bool = False  # the peer, without a word, as over a network: silence is worth a ping then
    revision: str | None = None  # that is spoken, where there is no handshake to agree on one
    same_process: bool = False  # the peer is a client or server of this very program
    local: bool = False  # the peer is whoever started us, or ourselves: nobody who has to say who it is
    session: str | None = None  # the id that a peer comes back under, perhaps to another process
    sole_peer: bool = False  # it is what the process is there for: nobody else comes, and it ends with the line
    stateless: bool = False  # between peers who do not know of each other: every request stands for itself


class MessageOrigin(Struct, frozen=True):
    """What came with these very bytes: who is known to have sent them, and where the answer goes.

    A pipe has one origin for good. A transport with a request around every message makes a new one for each.
    """

    principal: Any = None
    headers: Mapping[str, str] | None = None
    stream: Any = None
    original_id: RequestId | None = (
        None  # the id that the peer gave, where a transport had to give the request another one
    )


class ChannelClosed(Struct, frozen=True):
    """Why a channel ended; and of a peer that was a process of ours, how that did."""

    reason: str
    error: BaseException | None = None
    status: int | None = None  # what the process ended with; of a signal, its number below zero
    last_words: str = ""  # the end of what the process wrote to standard error
    reached: bool = True  # whether what was not answered may have reached the peer
    too_large: bool = False  # a message of the peer ended it, which would come again


_SIZE_LIMIT_SETTINGS: Final = {
    "stdio": "stdio_message_size_limit",
    "tcp": "tcp_message_size_limit",
    "unix": "tcp_message_size_limit",
    "websocket": "ws_message_size_limit",
    "sse": "sse_event_size_limit",
    "http": "sse_event_size_limit",  # of what is no event, the body is read with the head of its answer
}


def limit_setting(info: ChannelInfo) -> str | None:
    """The setting that limits the messages of a transport; None where there is none, or more than one."""
    return _SIZE_LIMIT_SETTINGS.get(info.transport)


class Oversized(TypeError):
    """A message of ours that is larger than what its transport takes, by our own settings."""

    def __init__(self, size: int, limit: int, setting: str) -> None:
        super().__init__(f"the message has {size} bytes, and the limit is {limit} bytes ({setting})")
        self.size = size
        self.limit = limit
        self.setting = setting


class Channel(Protocol):
    """Whole messages, both ways, in order. Nothing above this line sees bytes on a wire."""

    @property
    def info(self) -> ChannelInfo: ...

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> None:
        """Takes a message, or a batch of them; never waits. After the channel has closed it does nothing.

        `about` names the request that the message belongs to: a pipe ignores it, HTTP picks the stream by it.
        Raises TypeError for a message that has no JSON, and `Oversized` for one above the limit of a transport that has
        one; then nothing of it is sent. Errors are sent in any case.
        """
        ...

    def pause(self) -> None:
        """Reads no more until `resume`. What was read already may still be handed up."""
        ...

    def resume(self) -> None:
        """Reads again."""
        ...

    async def drain(self) -> None:
        """Waits while the peer reads too slowly; returns at once when the channel has closed."""
        ...

    async def close(self) -> None:
        """Sends what can still be sent and ends. The receiver is told once, whoever began it."""
        ...


MirrorLookup = Callable[[str], Sequence[MirroredArgument]]
"""Which arguments of a tool, by its name, are said a second time outside of the message."""


@runtime_checkable
class MirroringChannel(Protocol):
    """A client's channel whose messages have an outside: some arguments of tools are repeated there."""

    def set_mirrors(self, mirrors: MirrorLookup) -> None:
        """Names them. `send` raises TypeError from then on for a call whose arguments cannot be repeated."""
        ...


@runtime_checkable
class ReusableChannel(Protocol):
    """A channel that may carry one session after another."""

    def replace_receiver(self, receiver: "Receiver") -> None:
        """Report to another receiver from now on."""
        ...


class Receiver(Protocol):
    """Who a channel reports to: the serving loop, or a client's connection."""

    def received(self, messages: Sequence[Incoming], origin: MessageOrigin) -> None:
        """Takes what one read brought. Must not raise."""
        ...

    def unanswered(self, request: RequestId, closed: ChannelClosed) -> None:
        """The answer to a request of ours cannot come any more, though the channel lives on."""
        ...

    def authorizing(self, request: RequestId, *, begun: bool) -> None:
        """Before a request of ours can be answered somebody has to be asked who we are, which may take as long as it
        takes a person; and when that has ended."""
        ...

    def closed(self, closed: ChannelClosed) -> None:
        """The last thing a channel ever says."""
        ...


Accept = Callable[[Channel], Receiver]
"""Who takes a new channel, and gives back whom it shall report to."""


class Connector(Protocol):
    """Opens lines to one peer: the first, and another one each time a line was lost."""

    @property
    def name(self) -> str:
        """The peer, for people to read: a command, an address."""
        ...

    async def connect(self, accept: Accept) -> Channel:
        """A new line. Raises `TransportError` with a sentence if there is none to be had; then nothing is left behind,
        nor if it is cancelled."""
        ...


@runtime_checkable
class ReleasableConnector(Protocol):
    """A connector that holds something as long as its peer may be needed, between two lines, too."""

    async def release(self) -> None:
        """Let go of that: the last line has ended. Another one may be asked for later. Must not raise."""
        ...


@runtime_checkable
class AuthorizingConnector(Protocol):
    """A connector that may have to ask somebody who we are before there is a line."""

    @property
    def pending_authorizations(self) -> int:
        """How many are being asked now."""
        ...


@runtime_checkable
class LaunchingConnector(Protocol):
    """A connector that starts its peer as a process, for every connection anew."""

    @property
    def fingerprint(self) -> bytes:
        """Equal for connectors that start the same command with the same environment in the same folder."""
        ...


class Listener(Protocol):
    """Waits for peers, and hands over a channel for each."""

    @property
    def address(self) -> str:
        """Where it can be reached, in the words that a client takes."""
        ...

    async def close(self) -> None:
        """Takes no more peers. Those that are on the line stay."""
        ...

    async def wait_closed(self) -> None:
        """Lets go of what is left, once nobody is on the line any more."""
        ...
