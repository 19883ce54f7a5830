"""Whether a server lives, and whether it is ready: `/livez` and `/readyz`, for whoever watches over it.

Of the whole, or of one worker by its number (`/readyz/2`). Whoever asks is told, whichever name it calls the server by,
and needs no token: nothing is said that helps anybody but who has to decide where to send requests.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from trunkline.transports.http.request import JSON_CONTENT_TYPE, HttpRequest
from trunkline.wire import codec

__all__ = ["Health"]

_ROUTE: Final = re.compile(r"/(livez|readyz)(?:/(\d{1,6}))?", re.ASCII)
_METHODS: Final = b"GET, HEAD"
_NO_STORE: Final = (b"cache-control", b"no-store")
_READY: Final = "ready"
_DEAD_STATES: Final = frozenset({"silent", "gone"})


class Health(Struct, frozen=True):
    """What is known of how a server stands."""

    states: Callable[[], Sequence[str]]  # of each worker, by its number
    store_writable: Callable[[], Awaitable[bool]]
    checks: Callable[[], Awaitable[Mapping[str, bool]]]  # that the server's author has named, and whether each is well

    async def try_handle(self, request: HttpRequest, route: str) -> bool:
        """Answers a request, if that is what it asks for."""
        asked = _ROUTE.fullmatch(route)
        if asked is None:
            return False
        if request.scope["method"] not in {"GET", "HEAD"}:
            await request.refuse_method(_METHODS)
            return True
        states = self.states()
        one = None if asked[2] is None else int(asked[2])
        if one is not None and one >= len(states):
            await request.refuse(404, f"there is no worker {one}", kind="not_found")
            return True
        of = states if one is None else [states[one]]
        well, said = (self._alive(of), {}) if asked[1] == "livez" else await self._readiness(of)
        shown = (
            {"workers": dict(zip(map(str, range(len(states))), states, strict=True))}
            if one is None
            else {
                "worker": one,
                "state": states[one],
            }
        )
        body = codec.to_json({"ok": well, **said, **shown})
        await request.respond(200 if well else 503, body, JSON_CONTENT_TYPE, _NO_STORE)
        return True

    def _alive(self, states: Sequence[str]) -> bool:
        return any(state not in _DEAD_STATES for state in states)

    async def _readiness(self, states: Sequence[str]) -> "tuple[bool, dict[str, Any]]":
        writable, checks = await asyncio.gather(self.store_writable(), self.checks())
        well = writable and all(checks.values()) and _READY in states
        return well, {"store": writable, **({"checks": checks} if checks else {})}
