"""What a process hears over one bus, for as long as it is known there by one name."""

from collections.abc import Callable

from trunkline.stores.bus import Ears

__all__ = ["CrewEars"]


class CrewEars:
    """Passes on what is heard; what comes before the process has its name waits until then."""

    def __init__(self, crew: Ears) -> None:
        self._crew = crew
        self._early: list[Callable[[], None]] | None = []
        self._ended = False

    def begin(self) -> None:
        """The process has its name."""
        early, self._early = self._early or [], None
        for heard in early:
            heard()

    def end(self) -> None:
        """It has it no more."""
        self._ended = True

    def _pass_on(self, heard: Callable[[], None]) -> None:
        if self._early is not None:
            self._early.append(heard)
        elif not self._ended:
            heard()

    def heard(self, sender: str, message: bytes) -> None:
        """A message from another process."""
        self._pass_on(lambda: self._crew.heard(sender, message))

    def met(self, name: str) -> None:
        """Another process is there."""
        self._pass_on(lambda: self._crew.met(name))

    def lost(self, name: str | None) -> None:
        """Something may not have arrived."""
        self._pass_on(lambda: self._crew.lost(name))

    def rejected(self, why: str) -> None:
        """A frame failed verification."""
        if not self._ended:
            self._crew.rejected(why)
