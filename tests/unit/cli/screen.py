"""A command in a pseudo-terminal, with the contents of its screen."""

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from select import select

import pyte
from tests.limits import PATIENCE

COLUMNS, LINES = 100, 30
# Make the terminal the controlling one, so that it sends signals, also where SIGINT was ignored; then run the command.
_TAKE_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Screen:
    """The terminal that a command runs in."""

    def __init__(self, process: "subprocess.Popen[bytes]", descriptor: int) -> None:
        self.process = process
        self.raw = b""
        self._descriptor = descriptor
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def text(self) -> str:
        """The contents of the screen, without empty lines at the end."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    @property
    def title(self) -> str:
        """The title of the window, which only a control sequence can set."""
        return self._screen.title

    @property
    def cursor_column(self) -> int:
        """The column of the cursor, from 0."""
        return self._screen.cursor.x

    @property
    def cursor_hidden(self) -> bool:
        """Whether the cursor is invisible."""
        return self._screen.cursor.hidden

    @property
    def echoes(self) -> bool:
        """Whether the terminal is in its usual mode: it echoes input, line by line."""
        flags = termios.tcgetattr(self._descriptor)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    def send(self, text: str) -> None:
        """Type a text."""
        os.write(self._descriptor, text.encode())

    def until(self, truth: "str | Callable[[], bool]") -> None:
        """Read until a text is on the screen, or a condition is true."""
        due = time.monotonic() + PATIENCE
        while not (truth in self.text if isinstance(truth, str) else truth()):
            ended = self.process.poll() is not None
            assert time.monotonic() < due, f"not within {PATIENCE} s: {truth!r}; the screen is\n{self.text}"
            assert self._read(0.2) or not ended or not isinstance(truth, str), f"{truth!r} never came:\n{self.text}"

    def ended(self) -> int:
        """Read until the command ends; return its exit code."""
        self.until(lambda: self.process.poll() is not None)
        while self._read(0.0):
            pass
        return self.process.wait()

    def _read(self, seconds: float) -> bool:
        if not select([self._descriptor], [], [], seconds)[0]:
            return False
        with contextlib.suppress(OSError):  # the other end is closed
            data = os.read(self._descriptor, 1 << 16)
            self.raw += data
            self._stream.feed(data)
            return bool(data)
        return False


@contextlib.contextmanager
def screen_of(*arguments: str, cwd: Path | None = None) -> Iterator[Screen]:
    """Run `trunkline` in a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, sys.executable, "-m", "trunkline", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(theirs)
        try:
            yield Screen(process, ours)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    finally:
        os.close(ours)
