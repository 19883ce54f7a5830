"""A log of calls for `trunkline dev`: one line for each connection and each call that ends."""

import sys
import time
from typing import Final, TextIO

from trunkline.cli.terminal import escape
from trunkline.facts import CallEnded, Closed, Connected, Fact

__all__ = ["MessageLog"]

_COLOURS: Final = {
    "ok": "32",
    "input_required": "36",
    "cancelled": "33",
    "timeout": "31",
    "failed": "31",
    "error": "31",
}
_WIDTH: Final = 15  # of the outcome


class MessageLog:
    """Observer that prints calls as they end."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._coloured = self._out.isatty()

    def on(self, fact: Fact) -> None:
        """Print a line, if the fact is of interest."""
        if isinstance(fact, CallEnded):
            about = "" if fact.target is None else f" {escape(fact.target)}"
            code = "" if fact.code is None else f" ({fact.code})"
            outcome = f"{fact.outcome + code:{_WIDTH}}"
            if self._coloured:
                outcome = f"\x1b[{_COLOURS.get(fact.outcome, '0')}m{outcome}\x1b[0m"
            self._print(fact, f"{outcome} {escape(fact.method)}{about}  {fact.seconds * 1000:.1f} ms")
        elif isinstance(fact, Connected):
            self._print(fact, f"{'connected':{_WIDTH}} {escape(fact.transport)} {escape(fact.peer)}".rstrip())
        elif isinstance(fact, Closed):
            self._print(fact, f"{'closed':{_WIDTH}}".rstrip())

    def _print(self, fact: Fact, text: str) -> None:
        self._out.write(f"{time.strftime('%H:%M:%S')}  {fact.connection:>3}  {text}\n")
        self._out.flush()
