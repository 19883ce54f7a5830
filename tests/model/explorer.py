"""Explorer: runs a scenario under every schedule and every combination of faults within a budget.

A run is a list of choices, each a number. Choice 0 lets the scenario go on; the others delay something, inject a fault or end one. The
explorer runs the scenario with the choices of a prefix, goes on with choice 0, and notes the other choices at each new
state as prefixes to run. A state that was reached before is not explored again.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct

_MAX_STEPS: Final = 1000  # of one run


class Budget(Struct):
    """What a run may still do beyond its scenario."""

    faults: int
    delays: int


_AT_THE_END: Final = Budget(-1, -1)


class Choice(Struct):
    """A choice of the explorer: what it does, and what it costs."""

    label: str
    act: Callable[[], None]
    faults: int = 0
    delays: int = 0


class Scenario(Protocol):
    """A deployment with work to do."""

    def go_on(self) -> Choice | None:
        """Return choice 0, which lets the scenario go on and costs nothing; None at its end."""
        ...

    def others(self) -> list[Choice]:
        """Return the other choices now."""
        ...

    def fingerprint(self) -> int:
        """Return a hash of the state."""
        ...

    def check(self) -> None:
        """Raise `AssertionError` if the state violates an invariant."""
        ...

    def finish(self) -> None:
        """End all faults, let time pass, and raise `AssertionError` if something was lost or did not come to an end."""
        ...

    def close(self) -> None:
        """End everything that is in progress."""
        ...


class Violation(AssertionError):
    """An invariant does not hold, with the schedule that leads there."""

    def __init__(self, error: AssertionError, trace: list[str]) -> None:
        super().__init__(f"{error}\n\nafter\n  " + "\n  ".join(trace))


class Explorer:
    """All schedules of a scenario within a budget."""

    def __init__(self, make: Callable[[], Scenario], faults: int, delays: int, *, revisit: bool = False) -> None:
        """With `revisit`, also explore again the states that were reached before."""
        self.runs = 0
        self.seen: set[tuple[int, int, int]] = set()  # states, each with the rest of the budget
        self._make = make
        self._faults = faults
        self._delays = delays
        self._revisit = revisit
        # The shortest prefix first, so that a violation is reported with a short schedule.
        self._prefixes = deque([b""])

    @property
    def states(self) -> int:
        """Number of states that were reached."""
        return len(self.seen)

    def explore(self) -> None:
        """Run all schedules. Raise `Violation` for the first one that violates an invariant."""
        while self._prefixes:
            self._run(self._make(), self._prefixes.popleft())
            self.runs += 1

    def _run(self, scenario: Scenario, prefix: bytes) -> None:
        budget, taken, trace = Budget(self._faults, self._delays), bytearray(), list[str]()
        try:
            while choice := scenario.go_on():
                assert len(taken) < _MAX_STEPS, "the scenario does not come to an end"
                number = 0
                if len(taken) < len(prefix):
                    number = prefix[len(taken)]
                elif not self._is_new(scenario, budget):
                    return
                else:
                    others = len(_affordable(scenario, budget))
                    self._prefixes.extend(bytes((*taken, other)) for other in range(1, 1 + others))
                if number != 0:
                    choice = _affordable(scenario, budget)[number - 1]
                taken.append(number)
                trace.append(choice.label if number == 0 else f"! {choice.label}")
                budget.faults -= choice.faults
                budget.delays -= choice.delays
                choice.act()
                if len(taken) >= len(prefix):
                    scenario.check()
            if self._is_new(scenario, _AT_THE_END):
                scenario.finish()
        except AssertionError as error:
            raise Violation(error, trace) from error
        finally:
            scenario.close()

    def _is_new(self, scenario: Scenario, budget: Budget) -> bool:
        """Return whether a state is reached for the first time with this budget, or is to be explored in any case."""
        state = (scenario.fingerprint(), budget.faults, budget.delays)
        if state in self.seen:
            return self._revisit
        self.seen.add(state)
        return True


def _affordable(scenario: Scenario, budget: Budget) -> list[Choice]:
    return [choice for choice in scenario.others() if choice.faults <= budget.faults and choice.delays <= budget.delays]
