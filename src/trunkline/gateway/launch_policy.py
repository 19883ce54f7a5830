"""Launch policy: decides which commands a gateway may start. Pure, but for the lookup of programs.

Without a list, a gateway starts the commands of its configuration. A person who may change that file may start programs
as this user, so the file must be one that no other user can change. With a list, a command must begin with the words of
an entry: `npx` allows each use of npx, and `npx -y some-server` that server alone, with any further arguments. A
program without a folder is then looked up on the PATH of the gateway, never on one that the configuration sets, and
variables that make programs load other code are refused.
"""

import os
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from trunkline.errors import ConfigError, MisuseError

__all__ = ["LaunchPolicy", "check_file_owner"]

_LOADS_CODE: Final = frozenset(
    {
        *("BASH_ENV", "ENV", "NODE_OPTIONS", "NODE_PATH", "PERL5LIB", "PERL5OPT", "PYTHONHOME", "PYTHONPATH"),
        *("PYTHONSTARTUP", "RUBYLIB", "RUBYOPT", "JAVA_TOOL_OPTIONS", "CLASSPATH"),
    }
)
_LOADS_CODE_PREFIXES: Final = ("LD_", "DYLD_")


class LaunchPolicy:
    """Commands that may be started. `LaunchPolicy()` allows all of a configuration that no other user can change,
    `LaunchPolicy(["uvx", "npx -y some-server"])` those that begin with these words, `LaunchPolicy([])` none."""

    def __init__(
        self, commands: Iterable[str] | None = None, *, which: Callable[[str], str | None] = shutil.which
    ) -> None:
        """`which` finds a program on the PATH."""
        if isinstance(commands, str):
            raise MisuseError(f"commands= is a list of commands; write [{commands!r}]")
        self._which = which
        try:
            self._allowed = None if commands is None else [shlex.split(command) for command in commands]
        except ValueError as error:
            raise ConfigError(f"an allowed command cannot be split into words: {error}") from None
        if self._allowed is not None and [] in self._allowed:
            raise ConfigError("an allowed command is empty")

    def __repr__(self) -> str:
        allowed = "" if self._allowed is None else repr([shlex.join(words) for words in self._allowed])
        return f"LaunchPolicy({allowed})"

    @property
    def lists_commands(self) -> bool:
        """Whether only listed commands are allowed."""
        return self._allowed is not None

    def check(self, command: Sequence[str], env: Mapping[str, str]) -> list[str]:
        """Return the command to start, with the program's path if there is a list. Raises `ConfigError` if it is not
        allowed."""
        if self._allowed is None:
            return [*command]
        program = command[0] if command else ""
        if not any([*command[: len(words)]] == words for words in self._allowed):
            raise ConfigError(f"the launch policy does not allow the command {program!r}; add it to the allowed ones")
        for name in env:
            if name.upper() in _LOADS_CODE or name.upper().startswith(_LOADS_CODE_PREFIXES):
                raise ConfigError(f"the launch policy does not allow the variable {name}: it makes programs load code")
        if os.path.dirname(program):
            return [*command]
        found = self._which(program)
        if found is None:
            raise ConfigError(f"no program {program!r} on the PATH of the gateway; install it, or give its whole path")
        return [found, *command[1:]]


def check_file_owner(path: Path) -> None:
    """Raise `ConfigError` if another user can change a configuration file, and so the commands that are started."""
    if sys.platform == "win32":
        return
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if status.st_uid not in {os.geteuid(), 0}:
        raise ConfigError(
            f"{path} belongs to another user ({status.st_uid}), who could start any command; take it over, or list the "
            "commands that may be started"
        )
    if status.st_mode & 0o022:
        raise ConfigError(
            f"other users can change {path} (mode {stat.S_IMODE(status.st_mode):o}), and so start any command; "
            "chmod go-w the file, or list the commands that may be started"
        )
