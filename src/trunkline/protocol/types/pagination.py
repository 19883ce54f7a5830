"""Pagination: lists that come in pages."""

from typing import Any

from trunkline.protocol.types.base import Params, Result

__all__ = ["PaginatedParams", "PaginatedResult"]


class PaginatedParams(Params):
    """Asks for a page: the first one, or the one that a cursor stands for."""

    cursor: str | None = None
    limit: Any = None  # some peers wish for a page size; it is not in the specification


class PaginatedResult(Result, kw_only=True):
    """A page. Only the absence of a cursor ends the list: an empty one is a cursor like any other."""

    next_cursor: str | None = None
    cursor: Any = None  # some servers name it so; read into `next_cursor`, and never sent

    def __post_init__(self) -> None:
        """Read the other name of the next cursor."""
        if self.cursor is not None:
            if self.next_cursor is None and isinstance(self.cursor, str):
                self.next_cursor = self.cursor
            self.cursor = None
