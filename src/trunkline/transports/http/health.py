"""Health endpoints `/livez`, `/readyz` and `/healthz` for load balancers and orchestrators; `/live`, `/ready` and
`/health` are other names of them.

The first two report on all workers, or on one by its number (`/readyz/2`). They answer under any Host and without a
token: the response holds nothing but what a load balancer needs to route requests. The components that `/healthz` lists
are for callers that `health_details` allows to see them.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from trunkline.config import HealthDetails
from trunkline.transports.http.request import JSON_CONTENT_TYPE, UNIX_CLIENT, HttpRequest
from trunkline.wire import codec

__all__ = ["Health"]

_ROUTE: Final = re.compile(r"/(live|ready|health)(z?)(?:/(\d{1,6}))?", re.ASCII)
_PREFIXES: Final = ("/live", "/ready", "/health")
_FORWARDING_HEADERS: Final = (b"x-forwarded-for", b"forwarded", b"x-real-ip", b"via")
_LOCAL_CLIENTS: Final = frozenset({"127.0.0.1", "::1", UNIX_CLIENT[0]})
_UNHEALTHY: Final = frozenset({"unhealthy", "unknown"})
_METHODS: Final = b"GET, HEAD"
_RETRY_SOON: Final = (b"retry-after", b"1")
_NO_STORE: Final = (b"cache-control", b"no-store")
_READY: Final = "ready"
_DEAD_STATES: Final = frozenset({"silent", "gone"})


class HealthDocument(Protocol):
    """The health of a server and its components."""

    @property
    def state(self) -> Any: ...
    def details(self) -> dict[str, Any]:
        """Describe the components as JSON."""
        ...


CheckResult = tuple[bool, bool]
"""Whether a health check passes, and whether its result allows the server to be ready."""


class Health(Struct, frozen=True):
    """State of the server and its workers, served over HTTP."""

    states: Callable[[], Sequence[str]]  # of each worker, in order of its number
    store_writable: Callable[[], Awaitable[bool]]
    checks: Callable[[], Awaitable[Mapping[str, CheckResult]]]  # of the server's own health checks, by name
    report: Callable[[Sequence[str]], Awaitable[HealthDocument]]  # the health of all components
    details: HealthDetails = "off"

    def matches(self, path: str) -> bool:
        """Return whether a path is a health route."""
        return path.startswith(_PREFIXES) and _ROUTE.fullmatch(path) is not None

    def yields(self, path: str) -> bool:
        """Return whether a custom route may take the place of a health route: of a name without a `z`."""
        match = _ROUTE.fullmatch(path)
        return match is not None and not match[2]

    async def handle(self, request: HttpRequest) -> None:
        """Answer a request for a health route."""
        match = _ROUTE.fullmatch(request.path)
        if match is None or request.method not in {"GET", "HEAD"}:
            request.refuse_method(_METHODS)
            return
        states = self.states()
        if match[1] == "health" and match[3] is None:
            await self._respond_with_report(request, states)
            return
        worker = None if match[3] is None else int(match[3])
        if worker is not None and worker >= len(states):
            request.refuse(404, f"there is no worker {worker}", kind="not_found")
            return
        selected = states if worker is None else [states[worker]]
        healthy, details = (self._alive(selected), {}) if match[1] == "live" else await self._readiness(selected)
        workers = (
            {"workers": dict(zip(map(str, range(len(states))), states, strict=True))}
            if worker is None
            else {
                "worker": worker,
                "state": states[worker],
            }
        )
        body = codec.to_json({"ok": healthy, **details, **workers})
        _respond(request, body, healthy=healthy)

    async def _respond_with_report(self, request: HttpRequest, states: Sequence[str]) -> None:
        report = await self.report(states)
        status = report.state.value
        components = {"components": report.details()} if self._shows_details(request) else {}
        body = codec.to_json({"status": status, **components})
        _respond(request, body, healthy=status not in _UNHEALTHY)

    def _shows_details(self, request: HttpRequest) -> bool:
        if self.details != "local":
            return self.details == "all"
        forwarded = request.proxied or any(name in request.headers for name in _FORWARDING_HEADERS)
        return not forwarded and request.client_host in _LOCAL_CLIENTS

    def _alive(self, states: Sequence[str]) -> bool:
        return any(state not in _DEAD_STATES for state in states)

    async def _readiness(self, states: Sequence[str]) -> "tuple[bool, dict[str, Any]]":
        writable, checks = await asyncio.gather(self.store_writable(), self.checks())
        healthy = writable and all(allows_ready for _, allows_ready in checks.values()) and _READY in states
        passing = {name: passes for name, (passes, _) in checks.items()}
        return healthy, {"store": writable, **({"checks": passing} if passing else {})}


def _respond(request: HttpRequest, body: bytes, *, healthy: bool) -> None:
    if healthy:
        request.respond(200, body, JSON_CONTENT_TYPE, _NO_STORE)
    else:
        request.respond(503, body, JSON_CONTENT_TYPE, _NO_STORE, _RETRY_SOON)
