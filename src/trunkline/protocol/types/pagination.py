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
