"""Streamable HTTP without sessions: every request stands for itself, so any process can answer any of them.

Nothing is kept between two requests. What needs a conversation is not to be had: questions to the client,
subscriptions, a stream for what belongs to no request.
"""

from typing import Final

from trunkline.protocol.revisions import Revision
from trunkline.transports.channel import Closed
from trunkline.transports.http.body import Reading
from trunkline.transports.http.modern import StatelessEndpoint, known_version, refuse_malformed
from trunkline.transports.http.request import HeaderView, Visit
from trunkline.transports.http.respond import VERSION, Answering, refuse_kinds
from trunkline.transports.http.session.channel import HttpChannel
from trunkline.transports.listener_limits import Guard
from trunkline.wire.media_types import EVENTS, JSON, accepts
from trunkline.wire.messages import Malformed, Request

__all__ = ["SessionlessEndpoint"]

_METHODS: Final = b"POST, OPTIONS"
_UNNAMED: Final = Revision.V2025_03_26.value.encode()  # what is spoken by those who do not say


class SessionlessEndpoint:
    """One address, and the requests that are being answered there."""

    def __init__(self, guard: Guard, stateless: StatelessEndpoint) -> None:
        self._guard = guard
        self._stateless = stateless
        self._settings = guard.settings
        self._reading = Reading(guard.settings, guard.clock)
        self._answering = Answering(guard.settings, guard.clock)
        self._channels: dict[HttpChannel, None] = {}

    async def handle(self, visit: Visit) -> None:
        """Answers one HTTP request."""
        if visit.scope["method"] != "POST":
            await visit.not_allowed(_METHODS)
            return
        if not accepts(visit.headers.get(b"accept", b""), JSON, EVENTS):
            await refuse_kinds(visit)
            return
        message = await self._reading.message(visit)
        if message is None or await self._stateless.takes(visit, message) or not await known_version(visit, message):
            return
        if isinstance(message, Malformed):
            await refuse_malformed(visit, message)
        elif len(self._channels) >= self._settings.max_sessions or self._guard.closing:
            why = f"{self._settings.max_sessions} requests are being answered, which is the most; try again later"
            await visit.refuse(503, why, (b"retry-after", b"1"), kind="too_many_sessions")
        else:
            opening = isinstance(message, Request) and message.method == "initialize"
            channel = self._open(visit, None if opening else visit.headers.get(VERSION, _UNNAMED).decode())
            exchange = channel.exchange(message, visit.principal, HeaderView(visit.headers))
            if exchange.ids and exchange.answer is None:
                exchange.finished = lambda: self._end(channel)
            else:
                self._end(channel)
            await self._answering.decide(exchange)
            await self._answering.answer(visit, exchange)

    def _open(self, visit: Visit, revision: str | None) -> HttpChannel:
        channel = HttpChannel(visit.peer, self._settings, revision=revision)
        channel.open(self._guard.admit_session(channel))
        self._channels[channel] = None
        return channel

    def _end(self, channel: HttpChannel) -> None:
        self._channels.pop(channel, None)
        channel.lost(Closed("the request was answered"))

    def release(self) -> None:
        """Nothing to be done: every stream here answers something."""

    def close(self, reason: str) -> None:
        """Ends what is being answered."""
        for channel in list(self._channels):
            self._channels.pop(channel)
            channel.lost(Closed(reason))
        self._reading.close()
