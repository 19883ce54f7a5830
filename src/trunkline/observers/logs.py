"""Observer that writes facts to the `trunkline` logger of the standard library."""

import logging
from typing import Final

from trunkline.errors.text import printable
from trunkline.facts import ConnectionFailed, Dropped, Fact, HandlerFailed, MessageUnreadable

__all__ = ["LogObserver"]

_log: Final = logging.getLogger("trunkline")
_WARNING_INTERVAL: Final = (
    10.0  # seconds between two warnings about unreadable messages, since the peer decides how many arrive
)


class LogObserver:
    """Logs failures of handlers and connections with their traceback, and unreadable messages, one in ten seconds.

    If level debug is enabled when the observer is created, it logs every other fact too. It logs immediately, so that
    the last messages before a process ends are not lost.
    """

    immediate = True

    def __init__(self) -> None:
        self.failures_only = not _log.isEnabledFor(logging.DEBUG)
        self._warned_at: float | None = None
        self._suppressed = 0  # unreadable messages since the last warning

    def on(self, fact: Fact) -> None:
        """Log a fact."""
        if isinstance(fact, HandlerFailed):
            what = (
                fact.method if fact.target is None else f"{fact.method} of {printable(fact.target, max_length=200)!r}"
            )
            request = "" if fact.request is None else f"request {fact.request!r}, "
            _log.error("%s failed (%sreference %s)", what, request, fact.reference, exc_info=fact.error)
        elif isinstance(fact, ConnectionFailed):
            template = "a connection failed and was closed (%s, peer %s, incident %s)"
            _log.error(template, fact.transport, fact.peer or "unknown", fact.incident, exc_info=fact.error)
        elif isinstance(fact, MessageUnreadable):
            self._warn(fact)
        elif isinstance(fact, Dropped):
            _log.debug("dropped: %s (%s)", printable(fact.why), fact.kind)
        else:
            _log.debug("%s", fact)

    def _warn(self, fact: MessageUnreadable) -> None:
        if self._warned_at is not None and fact.at - self._warned_at < _WARNING_INTERVAL:
            self._suppressed += 1
            return
        more = f"; {self._suppressed} more since the last warning" if self._suppressed else ""
        began = f", began with {fact.excerpt!r}" if fact.excerpt else ""
        _log.warning("unusable message: %s (connection %d%s)%s", printable(fact.why), fact.connection, began, more)
        self._warned_at, self._suppressed = fact.at, 0
