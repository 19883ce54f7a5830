"""Roots: where a client lets a server look."""

from trunkline.protocol.types.base import Item, Result

__all__ = ["ListRootsResult", "Root"]


class Root(Item):
    """A place in the client's file system."""

    uri: str  # file:
    name: str | None = None


class ListRootsResult(Result):
    """The roots that a client lets a server use."""

    roots: list[Root]
