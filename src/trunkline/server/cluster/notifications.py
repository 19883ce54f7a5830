"""What is new for the clients of all processes: each tells its own.

Who is answered counts on it that others have heard what its call has changed. So an answer waits until that is kept for
those who hear of it later, and until all other processes have confirmed that they have it. Where nothing is new, or
nobody else is there, nothing is paid.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from trunkline.wire import codec
from trunkline.wire.messages import Encoded, Notification

if TYPE_CHECKING:
    from trunkline.server.cluster.cluster import Crew
    from trunkline.server.sessions.durable import Keeper

__all__ = ["News"]

_NEWS: Final = b"n"
_FOR_SESSION: Final = b"s"
_MOST_UNDER_WAY: Final = 100  # batches; what is new meanwhile is told together
_MOST_AT_ONCE: Final = 1000  # pieces of news in one batch
_MOST_WAITING: Final = 10_000  # pieces of news; of more, the same is told once

_read: Final = codec.json_decoder(list[str])


class News:
    """What is new, on its way to and from the other processes."""

    def __init__(self, keeper: "Keeper", crew: "Crew | None", heard: Callable[[str], None]) -> None:
        """`heard` tells the clients of this process: of a resource, by its URI, or of a list, by its notification."""
        self._keeper = keeper
        self._crew = crew
        self._heard = heard
        self._waiting: list[str] = []
        self._told: asyncio.Future[None] | None = None  # when all is confirmed that is new by now
        self._sending: asyncio.Future[None] | None = None  # when what waits is
        self._under_way = 0
        if crew is not None:
            crew.on(_NEWS, self._hear)
            crew.on(_FOR_SESSION, self._pass_on)

    @property
    def unsettled(self) -> "asyncio.Future[Any] | None":
        """What is done when all is kept and confirmed that is new by now; None if it is."""
        kept, told = self._keeper.news, self._told
        if told is None or told.done():
            self._told = None
            return kept
        return told if kept is None else asyncio.gather(kept, told, return_exceptions=True)

    # --- telling the others ------------------------------------------------------------------------

    def tell(self, piece: str) -> None:
        """Something is new: a resource, or a list."""
        if self._crew is None or self._crew.alone:
            return
        self._waiting.append(piece)
        if len(self._waiting) > _MOST_WAITING:
            self._waiting = list(dict.fromkeys(self._waiting))
        if self._sending is None:
            loop = asyncio.get_running_loop()
            self._told = self._sending = loop.create_future()
            if self._under_way < _MOST_UNDER_WAY:
                loop.call_soon(self._send, self._crew)

    def _send(self, crew: "Crew") -> None:
        """Sends what waits."""
        sending, self._sending = self._sending, None
        waiting, self._waiting = self._waiting, []
        last = None
        for start in range(0, len(waiting), _MOST_AT_ONCE):
            last = crew.tell(_NEWS, codec.to_json(waiting[start : start + _MOST_AT_ONCE])) or last
        if sending is None:
            return
        if last is None:
            sending.set_result(None)
        else:
            self._under_way += 1
            last.add_done_callback(lambda _: self._confirmed(crew, sending))

    def _confirmed(self, crew: "Crew", sending: "asyncio.Future[None]") -> None:
        if not sending.done():  # somebody may have stopped waiting
            sending.set_result(None)
        self._under_way -= 1
        if self._sending is not None and self._under_way == _MOST_UNDER_WAY - 1:
            self._send(crew)

    def tell_session(self, session: str, name: str, params: Any) -> None:
        """Has whoever holds a session send it a notification, if anybody does."""
        if self._crew is not None:
            frame = codec.encode(Notification(name, params))
            self._crew.broadcast(_FOR_SESSION, b"\n".join([session.encode(), name.encode(), frame]))

    # --- being told --------------------------------------------------------------------------------

    def _hear(self, _: str, body: bytes) -> "asyncio.Future[None] | None":
        for piece in _read(body):
            self._heard(piece)
        return self._keeper.news

    def _pass_on(self, _: str, body: bytes) -> None:
        session, name, frame = body.split(b"\n", 2)
        connection = self._keeper.connection_of(session.decode())
        if connection is not None:
            connection.broadcast(name.decode(), Encoded(frame), None)
