"""An observer that keeps what it is told."""

from typing import TypeVar

from trunkline.facts import Fact

__all__ = ["RecordingObserver"]

F = TypeVar("F", bound=Fact)


class RecordingObserver:
    """Keeps every fact, in order. A test finds it there as soon as it has happened."""

    immediate = True

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def on(self, fact: Fact) -> None:
        """Keeps a fact."""
        self.facts.append(fact)

    def of(self, kind: type[F]) -> list[F]:
        """The facts of one kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)]
