"""Who serves together, seen from one process: who was met, who was silent for how long, and who is gone."""

from collections.abc import Iterable
from typing import Final

__all__ = ["Roster"]

_REMEMBERED: Final = 1000  # names of those who are gone; of others it is found out again
_NEVER: Final = float("-inf")


class Roster:
    """All of them but this process."""

    def __init__(self, seconds: float) -> None:
        """`seconds` is how long one may be silent."""
        self._seconds = seconds
        self._sure: dict[str, float] = {}  # of those who were met: until when nobody needs to ask after them
        self._gone: dict[str, None] = {}

    @property
    def names(self) -> frozenset[str]:
        """Those who were met and are not gone."""
        return frozenset(self._sure)

    def __len__(self) -> int:
        return len(self._sure)

    def met(self, name: str, now: float) -> bool:
        """One is there; False if that is known, or if it is not really."""
        if name in self._sure or name in self._gone:
            return False
        self._sure[name] = now + self._seconds
        return True

    def alive(self, name: str, until: float) -> None:
        """Nobody needs to ask after that one until then."""
        if name in self._sure:
            self._sure[name] = until

    def spare(self, until: float) -> None:
        """Nobody needs to ask after anybody until then: it was this process that has heard nothing."""
        self._sure = dict.fromkeys(self._sure, until)

    def depart(self, name: str) -> bool:
        """One is gone, for ever; False if that is known."""
        if name in self._gone:
            return False
        self._sure.pop(name, None)
        self._gone[name] = None
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]
        return True

    def forget(self) -> None:
        """Nobody was met."""
        self._sure.clear()

    def is_gone(self, name: str) -> bool:
        """Whether that one is known to be gone."""
        return name in self._gone

    def is_silent(self, name: str, now: float) -> bool:
        """Whether somebody needs to ask after that one."""
        return self._sure.get(name, _NEVER) <= now

    def silence(self, names: Iterable[str], now: float) -> float | None:
        """When the next of those who are not silent will be, if nothing is heard; None if all are."""
        return min((until for name in names if (until := self._sure.get(name, _NEVER)) > now), default=None)

    @property
    def most_silent(self) -> str | None:
        """The one that was not heard of for longest."""
        return min(self._sure, key=self._sure.__getitem__, default=None)
