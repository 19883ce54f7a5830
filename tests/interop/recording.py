"""A recording connector between our client and its transport."""

import json
from collections.abc import Sequence
from typing import Any

from tests.interop.matrix import Wire
from tests.transcripts import check_transcript

from trunkline.transports.channel import Accept, Channel, ChannelClosed, Connector, MessageOrigin, Receiver
from trunkline.wire import codec
from trunkline.wire.messages import Incoming


class RecordingConnector:
    """Opens connections of another connector, and records their messages."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.wires: list[Wire] = []  # one for each connection

    @property
    def name(self) -> str:
        return self._connector.name

    async def connect(self, accept: Accept) -> Channel:
        wire: Wire = []
        self.wires.append(wire)
        return await self._connector.connect(
            lambda channel: _RecordingReceiver(accept(_RecordingChannel(channel, wire)), wire)
        )


class _RecordingChannel:
    """A channel that records the client's messages."""

    def __init__(self, channel: Channel, wire: Wire) -> None:
        self._channel = channel
        self._wire = wire

    def send(self, message: Any, **options: Any) -> None:
        self._channel.send(message, **options)
        self._wire.append({"sender": "client", "message": _plain(message)})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


class _RecordingReceiver:
    """A receiver that records the server's messages."""

    def __init__(self, receiver: Receiver, wire: Wire) -> None:
        self._receiver = receiver
        self._wire = wire

    def received(self, messages: Sequence[Incoming], origin: MessageOrigin) -> None:
        self._wire += [{"sender": "server", "message": _plain(message)} for message in messages]
        self._receiver.received(messages, origin)

    def unanswered(self, request: Any, closed: ChannelClosed) -> None:
        self._receiver.unanswered(request, closed)

    def authorizing(self, request: Any, *, begun: bool) -> None:
        self._receiver.authorizing(request, begun=begun)

    def closed(self, closed: ChannelClosed) -> None:
        self._receiver.closed(closed)


def _plain(message: Any) -> Any:
    if isinstance(message, list | tuple):  # a batch
        return [_plain(one) for one in message]
    return json.loads(codec.encode(message))


def check_client_messages(wire: Wire) -> None:
    """Raise AssertionError unless all messages of the client are valid in their revision.

    It reads the server's messages only as far as that depends on them.
    """
    check_transcript([(entry["sender"], json.dumps(entry["message"]).encode()) for entry in wire], "client")
