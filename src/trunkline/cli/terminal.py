"""Input and output of commands.

Results go to standard output; everything else (logs, progress, questions) goes to standard error, so that output can be
piped. Text of a server is escaped before it is written: it cannot move the cursor, change colours or forge lines.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Generator, Iterable, Sequence
from select import select
from typing import Any, Final, TextIO

from trunkline.errors.text import printable
from trunkline.wire import codec

__all__ = ["Terminal", "escape", "escape_json", "escape_lines"]

_STOP_INTERVAL: Final = 0.1  # seconds between two looks whether to stop asking
_STYLES: Final = {"title": "1", "name": "36", "dim": "2", "good": "32", "warning": "33", "bad": "31"}


def escape(text: str) -> str:
    """Escape the control characters of a text for one line."""
    return printable(text, max_length=None)


def escape_lines(text: str) -> str:
    """Escape the control characters of a text except for line ends and tabs."""
    return printable(text, max_length=None, multiline=True)


def escape_json(text: str) -> str:
    """Escape the control characters that JSON allows in strings, such as U+009B, as JSON does the others. Line ends
    between its values stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _json_escape(char) for char in text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class Terminal:
    """The streams of a command."""

    def __init__(self, *, out: TextIO | None = None, err: TextIO | None = None, source: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err
        self._source = sys.stdin if source is None else source
        self._coloured = self._out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._status = ""  # the line of progress that is on the screen
        self._stopped = threading.Event()

    @property
    def interactive(self) -> bool:
        """Whether a person can answer questions."""
        return self._source is not None and self._source.isatty() and self._err.isatty()

    @property
    def shows_results(self) -> bool:
        """Whether standard output is a terminal."""
        return self._out.isatty()

    @property
    def shows_progress(self) -> bool:
        """Whether a line of progress can be updated."""
        return self._err.isatty()

    @property
    def width(self) -> int:
        """Columns of the terminal; 80 if that is unknown."""
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(self._out.fileno()).columns or 80  # 0 is unknown, too
        return 80

    def styled(self, text: str, style: str) -> str:
        """Return a text with the control sequences of a style, if standard output shows them."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._coloured and text else text

    def line(self, text: str = "") -> None:
        """Write one line, or several, of a result. The text must be escaped already."""
        self.clear_status()
        self._out.write(f"{text}\n")
        if self._err.isatty():
            self._out.flush()  # in order with what goes to standard error

    def raw(self, data: bytes) -> None:
        """Write bytes to standard output as they are."""
        self._out.flush()
        self._out.buffer.write(data)
        self._out.buffer.flush()

    def json(self, value: Any) -> None:
        """Write a value as one line of JSON, with control characters escaped."""
        self.line(escape_json(codec.to_json(value).decode()))

    def note(self, text: str) -> None:
        """Write a line that is not part of the result. The text must be escaped already."""
        self.clear_status()
        self._err.write(f"{text}\n")
        self._err.flush()

    def status(self, text: str) -> None:
        """Replace the line of progress; does nothing unless standard error is a terminal."""
        if not self.shows_progress:
            return
        text = escape(text)[: max(self.width - 1, 20)]
        self._err.write(f"\r\x1b[K{text}")
        self._err.flush()
        self._status = text

    def clear_status(self) -> None:
        """Remove the line of progress."""
        if self._status:
            self._err.write("\r\x1b[K")
            self._err.flush()
            self._status = ""

    def ask(self, question: str) -> str | None:
        """Ask a question and return the answer without its line end; None at the end of input."""
        self.clear_status()
        self._out.flush()  # the question may be about what was written
        self._err.write(question)
        self._err.flush()
        answer = self._source.readline() if self._wait_for_input() else ""
        if not answer:
            self._err.write("\n")
            self._err.flush()
            return None
        return answer.rstrip("\r\n")

    def _wait_for_input(self) -> bool:
        """Wait until a line was typed; return False if questions have stopped before. A thread that reads could not be
        interrupted."""
        while not self._stopped.is_set():
            if select([self._source], [], [], _STOP_INTERVAL)[0]:
                return True
        return False

    def stop_asking(self) -> None:
        """Answer questions, also one that waits on another thread, as the end of input would."""
        self._stopped.set()

    def resume_asking(self) -> None:
        """Ask questions again."""
        self._stopped.clear()

    def columns(self, rows: Iterable[Sequence[str]], *, indent: int = 2) -> None:
        """Write rows of escaped cells as aligned columns. The last column is cut off at the terminal's edge."""
        rows = [*rows]
        if not rows:
            return
        count = max(map(len, rows))
        widths = [max((len(row[at]) for row in rows if at < len(row)), default=0) for at in range(count)]
        limit = self.width if self._out.isatty() else None
        for row in rows:
            line = (
                " " * indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
            )
            if limit is not None and len(line) > limit:
                line = f"{line[: limit - 1]}…"
            name = row[0]
            self.line(f"{' ' * indent}{self.styled(name, 'name')}{line[indent + len(name) :]}")

    @contextlib.contextmanager
    def reserved(self) -> Generator[None]:
        """Keep standard output for results: whatever else the code in this block prints goes to standard error."""
        with contextlib.redirect_stdout(self._err):
            yield
