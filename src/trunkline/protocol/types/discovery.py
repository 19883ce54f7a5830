"""Discovery: supported revisions and capabilities of a server without a handshake (from 2026-07-28 on)."""

from typing import Any

from trunkline.protocol.types.base import Result

__all__ = ["DiscoverResult"]


class DiscoverResult(Result):
    """Result of `server/discover`."""

    supported_versions: list[str]
    capabilities: dict[str, Any]  # `ServerCapabilities`, including unknown members
    instructions: str | None = None
