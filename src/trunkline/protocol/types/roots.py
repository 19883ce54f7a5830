"""Roots: file system locations that a client exposes to a server."""

from trunkline.protocol.types.base import Item, Result

__all__ = ["ListRootsResult", "Root"]


class Root(Item):
    """A root."""

    uri: str  # file:
    name: str | None = None


class ListRootsResult(Result):
    """Result of `roots/list`."""

    roots: list[Root]
