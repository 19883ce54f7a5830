"""Discovery: what a server speaks and can do, for clients that do not greet (from 2026-07-28 on)."""

from typing import Any

from trunkline.protocol.types.base import Result

__all__ = ["DiscoverResult"]


class DiscoverResult(Result):
    """The revisions that a server speaks, and what it can do."""

    supported_versions: list[str]
    capabilities: dict[str, Any]  # `ServerCapabilities`, with whatever else the server declares
    instructions: str | None = None
