"""Reply gate: replies wait for changes that a client may rely on once it has the reply."""

import asyncio
from collections.abc import Callable

__all__ = ["ReplyGate"]


class ReplyGate:
    """Holds replies back while changes are being stored or sent to other processes.

    Every call reads `open` when it ends, and most find it true: so it is an attribute, which a change makes false, and
    the first reply after the changes makes true again.
    """

    __slots__ = ("_find_pending", "open")

    def __init__(self, find_pending: "Callable[[], asyncio.Future[object] | None]") -> None:
        """`find_pending` returns a future that is done when all changes so far are; None if they are."""
        self._find_pending = find_pending
        self.open = True

    def close(self) -> None:
        """Note that a change has begun."""
        self.open = False

    def find_pending(self) -> "asyncio.Future[object] | None":
        """Return the future that a reply has to wait for now; None if there is none."""
        pending = self._find_pending()
        self.open = pending is None
        return pending
