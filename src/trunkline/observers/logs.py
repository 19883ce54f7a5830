"""Facts into the standard library's logging, under the name `trunkline`."""

import logging
from typing import Final

from trunkline.errors.text import printable
from trunkline.facts import ConnectionFailed, Dropped, Fact, HandlerFailed

__all__ = ["LogObserver"]

_log: Final = logging.getLogger("trunkline")


class LogObserver:
    """Logs failures of handlers and connections with their traceback; and everything else, if level debug is on when it
    is made. It logs at once: a log that lags behind could lose what was said last before a process ends."""

    immediate = True

    def __init__(self) -> None:
        self.failures_only = not _log.isEnabledFor(logging.DEBUG)

    def on(self, fact: Fact) -> None:
        """Logs a fact."""
        if isinstance(fact, HandlerFailed):
            what = fact.method if fact.target is None else f"{fact.method} of {printable(fact.target, most=200)!r}"
            told = "%s failed (request %r, reference %s)"
            _log.error(told, what, fact.request, fact.reference, exc_info=fact.error)
        elif isinstance(fact, ConnectionFailed):
            told = "a connection failed and was closed (%s, peer %s, incident %s)"
            _log.error(told, fact.transport, fact.peer or "unknown", fact.incident, exc_info=fact.error)
        elif isinstance(fact, Dropped):
            _log.debug("dropped: %s (%s)", printable(fact.why), fact.kind)
        else:
            _log.debug("%s", fact)
