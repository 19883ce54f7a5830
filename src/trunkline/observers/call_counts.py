"""Observer that counts calls by feature and outcome."""

from collections import Counter, defaultdict

from trunkline.facts import CallEnded, Fact

__all__ = ["CallCounts"]


class CallCounts:
    """Counts the requests of peers since it was created, and their durations.

    There are few keys, whatever peers send: requests that were refused before they became calls, and so may have any
    method, share the family "".
    """

    wants = (CallEnded,)

    def __init__(self) -> None:
        self._calls = Counter[tuple[str, str]]()
        self._seconds = defaultdict[str, float](float)

    def on(self, fact: Fact) -> None:
        """Count a request that has ended."""
        if isinstance(fact, CallEnded):
            family = "" if fact.outcome == "refused" else fact.family
            self._calls[family, fact.outcome] += 1
            self._seconds[family] += fact.seconds

    @property
    def calls(self) -> dict[tuple[str, str], int]:
        """The number of requests by family, such as "tools", and outcome."""
        return dict(self._calls)

    @property
    def seconds(self) -> dict[str, float]:
        """The duration of all requests by family."""
        return dict(self._seconds)
