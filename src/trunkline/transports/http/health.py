"""Health endpoints `/livez` and `/readyz` for load balancers and orchestrators.

Both report on all workers, or on one by its number (`/readyz/2`). They answer under any Host and without a token: the
response holds nothing but what a load balancer needs to route requests.
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
_PREFIXES: Final = ("/livez", "/readyz")
_METHODS: Final = b"GET, HEAD"
_NO_STORE: Final = (b"cache-control", b"no-store")
_READY: Final = "ready"
_DEAD_STATES: Final = frozenset({"silent", "gone"})


class Health(Struct, frozen=True):
    """State of the server and its workers, served over HTTP."""

    states: Callable[[], Sequence[str]]  # of each worker, in order of its number
    store_writable: Callable[[], Awaitable[bool]]
    checks: Callable[[], Awaitable[Mapping[str, bool]]]  # results of the server's own health checks, by name

    def matches(self, path: str) -> bool:
        """Return whether a path is a health route."""
        return path.startswith(_PREFIXES) and _ROUTE.fullmatch(path) is not None

    async def handle(self, request: HttpRequest) -> None:
        """Answer a request for a health route."""
        match = _ROUTE.fullmatch(request.path)
        if match is None or request.method not in {"GET", "HEAD"}:
            request.refuse_method(_METHODS)
            return
        states = self.states()
        worker = None if match[2] is None else int(match[2])
        if worker is not None and worker >= len(states):
            request.refuse(404, f"there is no worker {worker}", kind="not_found")
            return
        selected = states if worker is None else [states[worker]]
        healthy, details = (self._alive(selected), {}) if match[1] == "livez" else await self._readiness(selected)
        workers = (
            {"workers": dict(zip(map(str, range(len(states))), states, strict=True))}
            if worker is None
            else {
                "worker": worker,
                "state": states[worker],
            }
        )
        body = codec.to_json({"ok": healthy, **details, **workers})
        request.respond(200 if healthy else 503, body, JSON_CONTENT_TYPE, _NO_STORE)

    def _alive(self, states: Sequence[str]) -> bool:
        return any(state not in _DEAD_STATES for state in states)

    async def _readiness(self, states: Sequence[str]) -> "tuple[bool, dict[str, Any]]":
        writable, checks = await asyncio.gather(self.store_writable(), self.checks())
        healthy = writable and all(checks.values()) and _READY in states
        return healthy, {"store": writable, **({"checks": checks} if checks else {})}
