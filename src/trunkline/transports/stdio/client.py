"""stdio, the client's side: a server started as a process of ours, spoken to through its pipes.

The process leads a group of its own, so that a Ctrl+C at our terminal does not reach it: we end it, in good order. It
ends when its input is closed; if not within a time, it is asked to (SIGTERM), and if that does not help either it is
killed (SIGKILL), each time with all that it has started. Should we die first, `lifeline` sees to that.

When the process dies, everything that it has written is handed up before the channel says that, how and with which
last words it has ended. All of it runs on timers and callbacks of the loop: no task, and no thread where the system
offers better. So whoever closes the channel may do so from anywhere, and what was begun goes on if nobody waits for it.
"""

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import IO, Any, Final

from trunkline.config import Settings, inherited_environment
from trunkline.errors import ConfigError, TransportError
from trunkline.transports.channel import Accept, Channel, ChannelClosed, ChannelInfo, Receiver
from trunkline.transports.stdio import orphan_guard
from trunkline.transports.stdio.exit_watch import watch_exit
from trunkline.transports.stdio.fd_stream import open_reader, open_writer
from trunkline.transports.stdio.stderr_tail import StderrTail
from trunkline.transports.stream import FramingName, StreamChannel

__all__ = ["Command"]

EXIT_GRACE: Final = 0.1  # seconds: for what ends together to end together, as a process and its output
_KILL_TIMEOUT: Final = 1.0  # seconds that a killed process is waited for; one that hangs in the system outlives that


class Command:
    """Starts a server as a process for every line."""

    def __init__(
        self,
        command: str | Sequence[str | os.PathLike[str]],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        env_from: Iterable[str] = (),
        on_stderr: Callable[[str], None] | None = None,
        framing: FramingName = "lines",
        settings: Settings | None = None,
    ) -> None:
        """`command` is a program and its arguments; a single text is split as a shell would, though none is used.

        The process inherits little of our environment: `env_from` names what else it gets, and `env` gives values.
        `on_stderr` hears every line that it writes to standard error.
        """
        self.argv = _parse_command(command)
        self._cwd = cwd
        self._env = dict(env or {})
        self._env_from = tuple(env_from)
        self._on_stderr = on_stderr
        self._framing: FramingName = framing
        self._settings = settings or Settings()

    @property
    def name(self) -> str:
        """The command, as one would type it."""
        return shlex.join(self.argv)

    @property
    def fingerprint(self) -> bytes:
        """A digest of the command, its folder and its environment, in which there may be secrets."""
        from hashlib import sha256

        environment = sorted(self._environment().items())
        started = (self.argv, None if self._cwd is None else os.fspath(self._cwd), environment, self._framing)
        return sha256(repr(started).encode("utf-8", "backslashreplace")).digest()

    async def connect(self, accept: Accept) -> Channel:
        """Starts the process."""
        process = self._start()
        settings = self._settings
        channel = StreamChannel(
            ChannelInfo("stdio", self.name),
            max_frame=settings.stdio_message_size_limit,
            settings=settings,
            framing=self._framing,
            read_while_blocked=True,
            unique_members=False,
        )
        errors = StderrTail(settings.stderr_kept, self._on_stderr and partial(_call_on_stderr, self._on_stderr))
        child = _ServerProcess(process, channel, errors, settings.stop_timeout)
        try:
            child.open(accept(channel))
        except BaseException:
            child.close()
            await child.wait_closed()
            raise
        return channel

    def _environment(self) -> dict[str, str]:
        return {**inherited_environment(self._env_from), **self._env}

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = self._environment()
        try:
            return subprocess.Popen(  # noqa: S603 - to start what it is given is what it is for
                self._executable(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=self._cwd,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise TransportError(f"cannot start {self.name!r}: {self._explain_start_error(error)}") from error

    def _executable(self, environment: Mapping[str, str]) -> list[str]:
        """On Windows a program may be a script with another ending, which only a search finds."""
        if sys.platform != "win32":
            return self.argv
        import shutil

        return [shutil.which(self.argv[0], path=environment.get("PATH")) or self.argv[0], *self.argv[1:]]

    def _explain_start_error(self, error: OSError | ValueError) -> str:
        program = self.argv[0]
        if self._cwd is not None and not os.path.isdir(self._cwd):
            return f"there is no folder {os.fspath(self._cwd)!r} to start it in; check cwd"
        match error:
            case FileNotFoundError() if os.path.dirname(program):
                return f"there is no program at {program!r}, or none to run it with; check the path and its first line"
            case FileNotFoundError():
                return f"no program {program!r} on PATH; install it, give its whole path, or pass a PATH in env"
            case PermissionError():
                return f"{program!r} may not be executed; check its mode (chmod +x)"
            case OSError():
                return f"{error.strerror}; a script needs a first line that names its interpreter"
            case ValueError():
                return f"{error}; neither arguments nor environment may hold a zero byte"


def _parse_command(command: str | Sequence[str | os.PathLike[str]]) -> list[str]:
    """A command as its words. Raises `ConfigError` for one that could never be started."""
    try:
        words: list[Any] = shlex.split(command) if isinstance(command, str) else [os.fspath(part) for part in command]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a command is one text, or a list of texts and paths: {error}") from None
    if not words or not words[0]:
        raise ConfigError("a command needs at least the name of a program")
    if any(not isinstance(word, str) for word in words):
        raise ConfigError("a command is one text, or a list of texts and paths, not of bytes")
    return words


def _call_on_stderr(on_stderr: Callable[[str], None], line: str) -> None:
    """Passes a line on; what a listener raises is its own affair."""
    try:
        on_stderr(line)
    except Exception as error:  # noqa: BLE001 - reported
        context = {"message": "on_stderr failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


class _ServerProcess:
    """A server process and its three pipes: the source of its channel."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", channel: StreamChannel, errors: StderrTail, stop_timeout: float
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._channel = channel
        self._stderr_tail = errors
        self._stop_timeout = stop_timeout
        self._exited = False
        self._closed_streams: list[str] = []  # which of its streams the process has closed
        self._stderr_ended = False  # all that it ever will
        self._end_reported = False  # the channel, that this is the end
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None  # to the next step of the end
        self._released: asyncio.Future[None] = self._loop.create_future()
        self._stdin = open_writer(
            self._loop, _fileno(process.stdin), channel.update_flow, lambda _: self._on_stream_closed("input")
        )
        self._stdout = open_reader(
            self._loop, _fileno(process.stdout), self._on_stdout, lambda: self._on_stream_closed("output")
        )
        self._stderr = open_reader(self._loop, _fileno(process.stderr), errors.feed, self._on_stderr_closed)
        self._unwatch = watch_exit(self._loop, process, self._on_exit)
        orphan_guard.add(process.pid)

    def open(self, receiver: Receiver) -> None:
        """Begins to listen."""
        self._channel.open(receiver, self, self._stdin)
        self._stderr.resume()
        self._stdout.resume()

    # --- what the channel asks for ---------------------------------------------------------------

    def pause(self) -> None:
        """Leaves what the process says where it is."""
        self._stdout.pause()

    def resume(self) -> None:
        """Listens again."""
        self._stdout.resume()

    def close(self) -> None:
        """Begins to end the process. What it says from now on is read, so that it can end, and goes nowhere."""
        if self._closing:
            return
        self._closing = True
        self._stdin.close()
        _close_pipe(self._process.stdin)
        if self._exited:
            self._release()
        else:
            self._stdout.resume()
            self._schedule(self._stop_timeout, self._terminate)

    async def wait_closed(self) -> None:
        """Waits until the process has ended and nothing of it is left."""
        await asyncio.shield(self._released)

    # --- what the process does -------------------------------------------------------------------

    def _on_stdout(self, data: bytes) -> None:
        if not self._closing:
            self._channel.feed(data)

    def _on_stream_closed(self, stream: str) -> None:
        self._closed_streams.append(stream)
        self._check_ended()

    def _on_stderr_closed(self) -> None:
        """Nothing ends with that, unless all else has."""
        self._stderr_tail.end()
        self._stderr_ended = True
        if self._exited:
            self._check_ended()

    def _on_exit(self) -> None:
        """The process has ended, and nobody has waited for it yet: until then its number, and its group's, is taken."""
        self._signal("SIGKILL")  # whoever is left of its group
        orphan_guard.remove(self._process.pid)
        self._process.wait()
        self._exited = True
        if self._closing:
            self._release()
        else:
            self._check_ended()

    def _check_ended(self) -> None:
        """One thing has ended, and others may be about to: the whole of it says more than its first part."""
        if self._end_reported or self._closing:
            return
        if self._exited and self._stderr_ended and "output" in self._closed_streams:
            self._report_end()
        elif self._timer is None:
            self._schedule(EXIT_GRACE, self._report_end)

    def _report_end(self) -> None:
        self._end_reported = True
        self._stdout.read_available()
        self._stderr.read_available()
        self._channel.receive_eof(
            ChannelClosed(self._reason(), status=self._process.returncode, last_words=self._stderr_tail.text)
        )

    def _reason(self) -> str:
        status = self._process.returncode
        if status is None:
            return f"the server process closed its standard {self._closed_streams[0]}"
        if status >= 0:
            return f"the server process exited with status {status}"
        with contextlib.suppress(ValueError):  # a signal without a name
            return f"the server process was killed by {signal.Signals(-status).name}"
        return f"the server process was killed by signal {-status}"

    # --- its end ---------------------------------------------------------------------------------

    def _schedule(self, seconds: float, step: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, step)

    def _terminate(self) -> None:
        self._signal("SIGTERM")
        self._schedule(self._stop_timeout, self._kill)

    def _kill(self) -> None:
        self._signal("SIGKILL")
        self._schedule(_KILL_TIMEOUT, self._release)

    def _signal(self, name: str) -> None:
        """Tells the whole group; on Windows, which has none, the process alone."""
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                self._process.terminate()
            else:
                os.killpg(self._process.pid, signal.Signals[name])

    def _release(self) -> None:
        if self._released.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        self._unwatch()
        self._stderr.read_available()
        for part in (self._stdout, self._stderr):
            part.close()
        for pipe in (self._process.stdout, self._process.stderr):
            _close_pipe(pipe)
        self._released.set_result(None)


def _fileno(pipe: IO[bytes] | None) -> int:
    assert pipe is not None  # noqa: S101 - all three are pipes
    return pipe.fileno()


def _close_pipe(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        pipe.close()
