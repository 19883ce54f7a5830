"""An observer that records facts."""

from typing import TypeVar

from trunkline.facts import Fact

__all__ = ["RecordingObserver"]

F = TypeVar("F", bound=Fact)


class RecordingObserver:
    """Records every fact in order, as soon as it is reported."""

    immediate = True

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def on(self, fact: Fact) -> None:
        """Record a fact."""
        self.facts.append(fact)

    def of(self, kind: type[F]) -> list[F]:
        """Return the recorded facts of one class."""
        return [fact for fact in self.facts if isinstance(fact, kind)]
