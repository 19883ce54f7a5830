"""At most one notice per kind in an interval: the first at once, the last never lost. Pure; time comes in."""

__all__ = ["Coalescer"]


class Coalescer:
    """Decides when changes are announced."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._announced: dict[str, float] = {}  # when each kind was last
        self._waiting: dict[str, float] = {}  # when each kind is to be next

    def changed(self, kind: str, now: float) -> bool:
        """Notes a change. True: announce it now; otherwise it is announced when `next_due` has come."""
        if kind in self._waiting:
            return False
        due = self._announced.get(kind, now - self._interval) + self._interval
        if due <= now:
            self._announced[kind] = now
            return True
        self._waiting[kind] = due
        return False

    def next_due(self) -> float | None:
        """When the next announcement is due."""
        return min(self._waiting.values(), default=None)

    def due(self, now: float) -> list[str]:
        """The kinds to announce now."""
        kinds = [kind for kind, when in self._waiting.items() if when <= now]
        for kind in kinds:
            del self._waiting[kind]
            self._announced[kind] = now
        return kinds
