"""The channel protocol: the seam between transports, which move messages, and the code that interprets them.

A transport creates channels. A channel passes every message of one read to its receiver synchronously, and everything
the receiver sends meanwhile leaves in one write. All of it happens on one event loop: no method of a channel or a
receiver runs concurrently with another, and none is called from another thread.

A receiver can pause reading, so a fast peer cannot flood it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from msgspec import Struct

from trunkline.wire.messages import Encoded, Incoming, Message, RequestId

if TYPE_CHECKING:
    from trunkline.protocol.envelope import Envelope
    from trunkline.protocol.headers import MirroredArgument, RoutingHeaders
    from trunkline.protocol.profiles import Profile

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
    "ProfiledReceiver",
    "Receiver",
    "ReleasableConnector",
    "RequestHead",
    "ReusableChannel",
    "limit_setting",
]


class ChannelInfo(Struct, frozen=True):
    """The kind of a channel and its peer."""

    transport: str
    peer: str = ""
    needs_keepalive: bool = False  # the peer may disappear without closing, as over a network
    revision: str | None = None  # the protocol revision, for transports without a handshake
    same_process: bool = False  # the peer is a client or server of this program
    local: bool = False  # the peer is our parent process or ourselves, and needs no authentication
    session: str | None = None  # the id under which a peer resumes, perhaps at another process
    sole_peer: bool = False  # the process serves this peer only, and ends with the channel
    stateless: bool = False  # carries independent requests of unrelated peers
    session_id: str | None = None  # the id of the session on the wire, whether it can be resumed or not; a secret
    handshake_only: bool = False  # the transport has told the eras apart, and carries the handshake era here


class RequestHead(Protocol):
    """The head of an HTTP request, besides its headers."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str:
        """The decoded path within the application."""
        ...

    @property
    def query(self) -> bytes: ...
    @property
    def scheme(self) -> str: ...
    @property
    def client_host(self) -> str:
        """The client's address without its port; empty if unknown."""
        ...

    @property
    def root_path(self) -> str:
        """The path that the application is mounted at."""
        ...

    @property
    def prefix(self) -> str:
        """The path prefix that a trusted proxy has stripped."""
        ...

    @property
    def principal(self) -> Any: ...


class MessageOrigin(Struct, frozen=True):
    """The origin of received messages: the authenticated principal, the HTTP request, and the stream for the response.

    A pipe has one origin for its lifetime. A transport that wraps every message in a request creates one per request.
    """

    principal: Any = None
    headers: Mapping[str, str] | None = None
    stream: Any = None
    original_id: RequestId | None = None  # the peer's request id, if the transport assigned another one
    request: RequestHead | None = None  # the HTTP request that carried the messages; a WebSocket's is its handshake
    routing_headers: "RoutingHeaders | None" = None  # of a modern request over HTTP, to be compared with it
    envelope: "Envelope | None" = None  # of a modern request over HTTP that is known to agree with its headers


class ChannelClosed(Struct, frozen=True):
    """The reason why a channel closed, with the exit status if the peer was a child process."""

    reason: str
    error: BaseException | None = None
    status: int | None = None  # exit status; negative signal number if a signal ended the process
    last_words: str = ""  # the end of the process's standard error
    reached: bool = True  # False: the peer has received none of the unanswered requests
    too_large: bool = False  # a message over the limit closed the channel; a retry would fail again


_SIZE_LIMIT_SETTINGS: Final = {
    "stdio": "stdio_message_size_limit",
    "tcp": "tcp_message_size_limit",
    "unix": "tcp_message_size_limit",
    "websocket": "ws_message_size_limit",
    "sse": "sse_event_size_limit",
    "http": "sse_event_size_limit",  # a JSON body is limited separately, by http_body_size_limit
}


def limit_setting(info: ChannelInfo) -> str | None:
    """Return the name of the setting that limits a transport's messages; None if there is none or more than one."""
    return _SIZE_LIMIT_SETTINGS.get(info.transport)


class Oversized(TypeError):
    """Outgoing message larger than its transport allows, according to our own settings."""

    def __init__(self, size: int, limit: int, setting: str) -> None:
        super().__init__(f"the message has {size} bytes, and the limit is {limit} bytes ({setting})")
        self.size = size
        self.limit = limit
        self.setting = setting


class Channel(Protocol):
    """Ordered, whole messages in both directions. Code above this seam never sees bytes."""

    @property
    def info(self) -> ChannelInfo: ...

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> int | None:
        """Queue a message or a batch without waiting; do nothing after the channel has closed. Return the size of the
        message as JSON in bytes, for observers; None if it is unknown or was not sent.

        `about` is the id of the related request: HTTP chooses the stream by it, other transports ignore it. Raise
        TypeError for a message that cannot be encoded as JSON, and `Oversized` for one above the transport's limit;
        nothing is sent then. Error responses are exempt from the limit.
        """
        ...

    def pause(self) -> None:
        """Stop reading until `resume`. Messages that were read before may still be delivered."""
        ...

    def resume(self) -> None:
        """Read again."""
        ...

    async def drain(self) -> None:
        """Wait while the peer reads too slowly; return at once after the channel has closed."""
        ...

    async def close(self) -> None:
        """Send the pending messages if possible, then close. The receiver's `closed` is called once, whichever side
        closes first."""
        ...


MirrorLookup = Callable[[str], "Sequence[MirroredArgument]"]
"""Returns the arguments of a tool, by its name, that are repeated in HTTP headers."""


@runtime_checkable
class MirroringChannel(Protocol):
    """Client channel that repeats some tool arguments in HTTP headers."""

    def set_mirrors(self, mirrors: MirrorLookup) -> None:
        """Set the lookup. From then on `send` raises TypeError for a call whose arguments do not fit into headers."""
        ...


@runtime_checkable
class ReusableChannel(Protocol):
    """Channel that may serve several sessions, one after the other."""

    def replace_receiver(self, receiver: "Receiver") -> None:
        """Report to another receiver from now on."""
        ...


class Receiver(Protocol):
    """Callbacks of a channel, implemented by the server's and the client's connection."""

    def received(self, messages: Sequence[Incoming], origin: MessageOrigin) -> None:
        """Handle the messages of one read. Must not raise."""
        ...

    def unanswered(self, request: RequestId, closed: ChannelClosed) -> None:
        """The response to one of our requests will never arrive, although the channel stays open."""
        ...

    def authorizing(self, request: RequestId, *, begun: bool) -> None:
        """Authorization for one of our requests has begun or ended. It may involve a person, so it may take long."""
        ...

    def closed(self, closed: ChannelClosed) -> None:
        """The channel has closed; this is its last callback."""
        ...


@runtime_checkable
class ProfiledReceiver(Protocol):
    """Receiver that knows the compatibility profile of its session, for errors that the transport sends itself."""

    @property
    def profile(self) -> "Profile | None":
        """The profile; None without one, and before the handshake."""
        ...


Accept = Callable[[Channel], Receiver]
"""Accepts a new channel and returns its receiver."""


class Connector(Protocol):
    """Opens channels to one peer: the first one, and another one after each loss."""

    @property
    def name(self) -> str:
        """The peer in readable form: a command or an address."""
        ...

    async def connect(self, accept: Accept) -> Channel:
        """Open a new channel. Raise `TransportError` if that fails. Leave no resources behind after an error or a
        cancellation."""
        ...


@runtime_checkable
class ReleasableConnector(Protocol):
    """Connector that holds resources between two channels."""

    async def release(self) -> None:
        """Release them: the last channel has closed. `connect` may be called again later. Must not raise."""
        ...


@runtime_checkable
class AuthorizingConnector(Protocol):
    """Connector that may need authorization, perhaps interactive, before a channel is open."""

    @property
    def pending_authorizations(self) -> int:
        """The number of authorizations in progress."""
        ...


@runtime_checkable
class LaunchingConnector(Protocol):
    """Connector that starts its peer as a new process for every channel."""

    @property
    def fingerprint(self) -> bytes:
        """Equal for connectors that start the same command with the same environment in the same folder."""
        ...


class Listener(Protocol):
    """Accepts peers and creates a channel for each."""

    @property
    def address(self) -> str:
        """The address in the form that a client takes."""
        ...

    async def close(self) -> None:
        """Accept no more peers. Open connections stay open."""
        ...

    async def wait_lost(self) -> None:
        """Return when the listener was closed; raise `TransportError` when one of its sockets no longer listens."""
        ...

    def reopen(self) -> None:
        """Open the sockets that no longer listen again, at the same address; do nothing if all listen. Open connections
        and sessions are not affected. Raises `TransportError`."""
        ...

    async def wait_closed(self) -> None:
        """Release the remaining resources, after the last connection has closed."""
        ...
