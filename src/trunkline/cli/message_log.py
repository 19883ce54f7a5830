"""A log of messages for `trunkline dev`: a line for each connection, for each call that ends and each request to a
client, and one for the arguments and the result of a call that runs a handler."""

import sys
import time
from typing import TYPE_CHECKING, Any, Final, TextIO

from trunkline.cli.terminal import escape
from trunkline.facts import CallEnded, Closed, Connected, Fact, RequestEnded
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.middleware import Call, Next

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
_MARGIN: Final = " " * (len("00:00:00  000  ") + _WIDTH + 1)
_LONGEST: Final = 200  # characters of arguments or of a result


class MessageLog:
    """Observer that prints calls as they end, and middleware that prints their contents."""

    immediate = True  # in order with the contents, which it prints within the call

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._coloured = self._out.isatty()

    def on(self, fact: Fact) -> None:
        """Print a line, if the fact is of interest."""
        if isinstance(fact, CallEnded | RequestEnded):
            about = "" if fact.target is None else f" {escape(fact.target)}"
            code = "" if fact.code is None else f" ({fact.code})"
            outcome = f"{fact.outcome + code:{_WIDTH}}"
            if self._coloured:
                outcome = f"\x1b[{_COLOURS.get(fact.outcome, '0')}m{outcome}\x1b[0m"
            method = escape(fact.method) if isinstance(fact, CallEnded) else f"{escape(fact.method)} to the client"
            why = "" if fact.message is None else f"  {_shorten(escape(fact.message))}"
            self._print(fact, f"{outcome} {method}{about}  {fact.seconds * 1000:.1f} ms{why}")
        elif isinstance(fact, Connected):
            self._print(fact, f"{'connected':{_WIDTH}} {escape(fact.transport)} {escape(fact.peer)}".rstrip())
        elif isinstance(fact, Closed):
            self._print(fact, f"{'closed':{_WIDTH}}".rstrip())

    async def show_contents(self, call: "Call", next: "Next") -> Any:  # noqa: A002 - the documented name
        """Print the arguments and the result of a call, above the line of its end."""
        result: Any = None
        try:
            result = await next(call)
        finally:
            given = _shorten(_to_text(call.arguments)) if call.arguments else ""
            made = "" if result is None else f"-> {_shorten(_to_text(_summarize(result)))}"
            if given or made:
                self._out.write(f"{_MARGIN}{' '.join(filter(None, (given, made)))}\n")
        return result

    def _print(self, fact: Fact, text: str) -> None:
        self._out.write(f"{time.strftime('%H:%M:%S')}  {fact.connection:>3}  {text}\n")
        self._out.flush()


def _summarize(result: Any) -> Any:
    """Return the part of a result that its handler made."""
    for name in ("structured_content", "content", "contents", "messages", "completion"):
        value = getattr(result, name, None)
        if value is not None:
            return value
    return result


def _to_text(value: Any) -> str:
    return escape(codec.to_json(value).decode())


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
