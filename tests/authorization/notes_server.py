"""A protected server, and its listener."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.authorization.provider import BrowserUser

from trunkline import Context, Server
from trunkline.auth import MemoryTokens, OAuth, Redirected, ResourceServer
from trunkline.auth.server.verifiers import Verifier

REVISIONS = ["2025-06-18", "2025-11-25", "2026-07-28"]
READS = "notes:read offline_access"  # the scopes of a first login
INTROSPECTOR: dict[str, Any] = {"client_id": "introspector", "client_secret": "told-to-the-server"}
NEARLY_OVER = 5  # seconds: a client renews such a token before it uses it


class AdvancedClock:
    """A clock that can be advanced."""

    seconds = 0.0

    def __call__(self) -> float:
        return time.time() + self.seconds


def notes(verifier: Verifier, **options: Any) -> Server:
    """A server with a tool for all authenticated callers, and one with a scope."""
    server = Server("notes", version="1", auth=ResourceServer(verifier, scopes=["notes:read"], **options))

    @server.tool
    def whoami(ctx: Context) -> str:  # pyright: ignore[reportUnusedFunction] - the server calls it
        """The caller."""
        return f"{ctx.principal.subject} by {ctx.principal.client}"

    @server.tool(scopes=["notes:write"])
    def write() -> str:  # pyright: ignore[reportUnusedFunction] - the server calls it
        """Write a note."""
        return "written"

    return server


@asynccontextmanager
async def serving(server: Server, path: str = "/mcp") -> AsyncIterator[str]:
    """The address of a listener on this machine."""
    listener = await server.listen(f"http://127.0.0.1:0{path}")
    try:
        yield listener.address
    finally:
        await server.aclose()


def oauth(person: BrowserUser, **options: Any) -> OAuth:
    """The OAuth options of our client for a user."""
    return OAuth(**{"interaction": Redirected(person.redirect_uri, person), "store": MemoryTokens(), **options})
