"""Pagination of lists."""

from typing import Any

from trunkline.protocol.types.base import Params, Result

__all__ = ["PaginatedParams", "PaginatedResult"]


class PaginatedParams(Params):
    """Params of a list: the first page, or the page of a cursor."""

    cursor: str | None = None
    limit: Any = None  # page size that some peers request; not in the specification


class PaginatedResult(Result, kw_only=True):
    """A page. Only a missing cursor ends the list: an empty one is a cursor like any other."""

    next_cursor: str | None = None
    cursor: Any = None  # another name of `next_cursor` that some servers use; never sent

    def __post_init__(self) -> None:
        """Move the cursor from its other name."""
        if self.cursor is not None:
            if self.next_cursor is None and isinstance(self.cursor, str):
                self.next_cursor = self.cursor
            self.cursor = None
