"""Reading what is posted: its kind, its length, and how long it may take to arrive."""

import asyncio
from typing import Final

from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import MessageTooLarge
from trunkline.transports.http.patience import Patience
from trunkline.transports.http.request import BodyTooLarge, Disconnected, Visit
from trunkline.wire import codec
from trunkline.wire.media_types import is_utf8_json
from trunkline.wire.messages import Incoming

__all__ = ["Reading"]

_CLOSE: Final = (b"connection", b"close")


class Reading:
    """Reads messages from the bodies of requests."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._limit = settings.http_body_size_limit
        self._patience = Patience(clock, settings.body_timeout)

    async def message(self, visit: Visit) -> Incoming | None:
        """What was posted; None if there is none to be had, which the peer has been told."""
        body = await self.body(visit)
        return None if body is None else codec.decode_strict(body)

    async def body(self, visit: Visit) -> bytes | None:
        """The same, as it came."""
        if not is_utf8_json(visit.headers.get(b"content-type", b"")):
            why = "the content type must be application/json, in UTF-8"
            await visit.refuse(415, why, kind="unsupported_media_type")
            return None
        length = visit.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._limit:
            await self._too_large(visit)
            return None
        reader = self._patience.begin()
        try:
            return await visit.body(self._limit)
        except BodyTooLarge:
            await self._too_large(visit)
        except Disconnected:
            pass
        except asyncio.CancelledError:
            if not self._patience.ran_out(reader):
                raise
            await visit.refuse(408, "the body did not arrive in time", _CLOSE)
        finally:
            self._patience.end(reader)
        return None

    async def _too_large(self, visit: Visit) -> None:
        await visit.refuse_with(413, MessageTooLarge(self._limit), _CLOSE)

    def close(self) -> None:
        """Waits for nobody any more."""
        self._patience.close()
