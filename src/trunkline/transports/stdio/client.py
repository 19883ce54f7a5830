"""stdio transport, client side: start a server as a child process and communicate through its pipes.

The process leads its own session and process group, so a Ctrl+C at our terminal does not reach it and we can shut it
down in order. Closing its input asks it to exit. After `stop_timeout` its process group gets SIGTERM, and after another
`stop_timeout` SIGKILL. If our process dies first, `orphan_guard` kills the group.

When the process dies, the channel delivers all remaining output before it reports the exit status and the end of
standard error. All of it runs on timers and callbacks of the loop, without tasks, and without threads where the system
offers pidfds. So the channel may be closed from anywhere, and the shutdown continues even if its caller does not wait.
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
from trunkline.wire import codec

__all__ = ["Command"]

EXIT_GRACE: Final = 0.1  # seconds: an exit and the end of the pipes arrive as separate events
_KILL_TIMEOUT: Final = 1.0  # seconds to wait after SIGKILL; a process blocked in the kernel may outlive it


class Command:
    """Connector that starts a server process for every channel."""

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
        """`command` is a program and its arguments; a string is split like a shell would, but no shell is used.

        The process inherits only part of our environment: `env_from` names further variables, and `env` sets values.
        `on_stderr` is called with every line of its standard error.
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
        """The command as one would type it."""
        return shlex.join(self.argv)

    @property
    def fingerprint(self) -> bytes:
        """A digest of the command, its folder and its environment, which may contain secrets."""
        from hashlib import sha256

        environment = sorted(self._environment().items())
        started = (self.argv, None if self._cwd is None else os.fspath(self._cwd), environment, self._framing)
        return sha256(repr(started).encode("utf-8", "backslashreplace")).digest()

    async def connect(self, accept: Accept) -> Channel:
        """Start the process."""
        process = self._start()
        settings = self._settings
        channel = StreamChannel(
            ChannelInfo("stdio", self.name),
            max_frame=settings.stdio_message_size_limit,
            settings=settings,
            framing=self._framing,
            read_while_blocked=True,
            write_first=True,
            decode=codec.decode,
        )
        stderr_tail = StderrTail(settings.stderr_kept, self._on_stderr and partial(_call_on_stderr, self._on_stderr))
        child = _ServerProcess(process, channel, stderr_tail, settings.stop_timeout)
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
            return subprocess.Popen(  # noqa: S603 - its purpose is to start a command
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
        """Return the command; on Windows with the resolved path, since a program may be a script with another
        extension."""
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
                return f"{program!r} is not executable; check its mode (chmod +x)"
            case OSError():
                return f"{error.strerror}; a script needs a first line that names its interpreter"
            case ValueError():
                return f"{error}; arguments and environment must not contain a null byte"


def _parse_command(command: str | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Split a command into its arguments. Raise `ConfigError` for one that could never start."""
    try:
        arguments: list[Any] = (
            shlex.split(command) if isinstance(command, str) else [os.fspath(part) for part in command]
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a command is a string, or a list of strings and paths: {error}") from None
    if not arguments or not arguments[0]:
        raise ConfigError("a command needs at least the name of a program")
    if any(not isinstance(word, str) for word in arguments):
        raise ConfigError("a command is a string, or a list of strings and paths, not of bytes")
    return arguments


def _call_on_stderr(on_stderr: Callable[[str], None], line: str) -> None:
    """Call `on_stderr` with a line; report its exceptions to the loop's exception handler."""
    try:
        on_stderr(line)
    except Exception as error:  # noqa: BLE001 - reported
        context = {"message": "on_stderr failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


class _ServerProcess:
    """A server process with its three pipes; the source of its channel."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", channel: StreamChannel, stderr_tail: StderrTail, stop_timeout: float
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._channel = channel
        self._stderr_tail = stderr_tail
        self._stop_timeout = stop_timeout
        self._exited = False
        self._closed_streams: list[str] = []  # names of the streams that the process has closed
        self._stderr_ended = False
        self._end_reported = False
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None  # to the next step of the shutdown
        self._released: asyncio.Future[None] = self._loop.create_future()
        self._stdin = open_writer(
            self._loop, _fileno(process.stdin), channel.update_flow, lambda _: self._on_stream_closed("input")
        )
        self._stdout = open_reader(
            self._loop, _fileno(process.stdout), channel.feed, lambda: self._on_stream_closed("output")
        )
        self._stderr = open_reader(self._loop, _fileno(process.stderr), stderr_tail.feed, self._on_stderr_closed)
        self._unwatch = watch_exit(self._loop, process, self._on_exit)
        orphan_guard.add(process.pid)

    def open(self, receiver: Receiver) -> None:
        """Start reading."""
        self._channel.open(receiver, self, self._stdin)
        self._stderr.resume()
        self._stdout.resume()

    # --- source of the channel --------------------------------------------------------------------

    def pause(self) -> None:
        """Stop reading the output."""
        self._stdout.pause()

    def resume(self) -> None:
        """Read the output again."""
        self._stdout.resume()

    def close(self) -> None:
        """Begin to shut the process down. Its output is read and discarded, so that it does not block."""
        if self._closing:
            return
        self._closing = True
        self._stdin.close()
        self._stdout.discard()
        _close_pipe(self._process.stdin)
        if self._exited:
            self._release()
        else:
            self._stdout.resume()
            self._schedule(self._stop_timeout, self._terminate)

    async def wait_closed(self) -> None:
        """Wait until the process has exited and its pipes are closed."""
        await asyncio.shield(self._released)

    # --- events of the process --------------------------------------------------------------------

    def _on_stream_closed(self, stream: str) -> None:
        self._closed_streams.append(stream)
        self._check_ended()

    def _on_stderr_closed(self) -> None:
        """Standard error is closed, which ends the channel only if everything else has ended."""
        self._stderr_tail.end()
        self._stderr_ended = True
        if self._exited:
            self._check_ended()

    def _on_exit(self) -> None:
        """The process has exited and is not reaped yet, so its pid and process group cannot be reused."""
        self._signal("SIGKILL")  # the rest of its process group
        orphan_guard.remove(self._process.pid)
        self._process.wait()
        self._exited = True
        if self._closing:
            self._release()
        else:
            self._check_ended()

    def _check_ended(self) -> None:
        """Report the end if all parts have ended; otherwise allow them a moment, since together they give a better
        reason."""
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

    # --- shutdown ---------------------------------------------------------------------------------

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
        """Signal the whole process group; on Windows, which has none, terminate the process."""
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
