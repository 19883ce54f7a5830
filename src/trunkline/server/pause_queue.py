"""Queue for the new requests of a paused connection."""

from typing import Any

from trunkline.protocol.inflight import IncomingRequest

__all__ = ["PauseQueue"]


class PauseQueue:
    """Requests that a paused connection holds back until `resume()`."""

    def __init__(self, since: float, max_queued: int) -> None:
        """`since` is the time of the pause; at most `max_queued` calls wait."""
        self.since = since
        self._max_queued = max_queued
        self._queued: list[tuple[IncomingRequest, Any]] = []

    def enqueue(self, call: IncomingRequest, params: Any) -> bool:
        """Queue a call; return False if the queue is full."""
        if len(self._queued) >= self._max_queued:
            self._queued = self.pending
        if len(self._queued) >= self._max_queued:
            return False
        call.queued = True
        self._queued.append((call, params))
        return True

    @property
    def pending(self) -> list[tuple[IncomingRequest, Any]]:
        """Queued calls that are not cancelled, with their params, in order of arrival."""
        return [(call, params) for call, params in self._queued if not call.done]
