"""Errors for targets that a client cannot connect to, with a suggestion.

They are raised when the client is created, before any process is started. The messages leave out values that may be
secret, such as the environment in a configuration.
"""

import os
import re
import shlex
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from trunkline.errors import MisuseError

__all__ = ["check_text", "is_path", "script_error", "unsupported_target_error"]

_TARGETS: Final = "a command, a script, an address such as https://example.org/mcp, or a Server"
_BROKEN_SCHEME: Final = re.compile(r"(https?|wss?|tcp|tls|unix)(?::/?|/{1,2})(?!/)(?P<rest>\S*)", re.IGNORECASE)
_HOST: Final = re.compile(
    r"""
      (?: localhost | \d+(\.\d+){3} ) (:\d+)? (/\S*)?  # 127.0.0.1
    | (?: [\w.-]+ | \[[0-9a-f:]+\] ) :\d+ (/\S*)?      # example:8000
    | [\w-]+ (\.[\w-]+)+ /\S*                          # example.org/mcp
    """,
    re.VERBOSE | re.IGNORECASE,
)


def check_text(text: str, interpreters: Collection[str]) -> None:
    """Raise `MisuseError` for a string that is neither a script nor a command that can be started."""
    program = next(iter(_split_command(text)), "")
    if _can_be_found(text) or _can_be_found(program):
        return
    if broken := _BROKEN_SCHEME.fullmatch(text):
        raise MisuseError(f"{text!r} is no address: did you mean {broken[1].lower()}://{broken['rest'] or '…'}?")
    if _HOST.fullmatch(text):
        address = f"http://{text}" + ("" if "/" in text else "/mcp")
        raise MisuseError(f"{text!r} is neither a program nor an address, which begins with a scheme: {address}")
    if Path(program).suffix in interpreters:
        raise _missing_file_error(Path(program))


def is_path(text: str) -> bool:
    """Return whether a string names a file or a directory, and no program on the path."""
    return bool(text.strip()) and Path(text).exists() and shutil.which(text) is None


def script_error(path: Path, interpreters: Collection[str]) -> MisuseError | None:
    """Return the error for a path that cannot be started as a script; None if it can."""
    if path.is_dir():
        return MisuseError(f"{str(path)!r} is a directory; name the server's script in it, such as server.py")
    if not path.exists():
        return _missing_file_error(path)
    if path.suffix not in interpreters and not os.access(path, os.X_OK):
        return MisuseError(
            f"{str(path)!r} is not executable, and no interpreter is known for it; pass the whole command as a list, "
            f'such as ["npx", "tsx", {str(path)!r}]'
        )
    return None


def unsupported_target_error(target: Any, server: type) -> MisuseError:
    """Return the error for a value of an unsupported type; `server` is the class of servers."""
    match target:
        case ModuleType():
            named = f"{target.__name__}.{_first_instance_name(target, server)}"
            return MisuseError(f"cannot connect to a module; pass the server in it: Client({named})")
        case Mapping():
            config = cast("Mapping[Any, Any]", target)
            return MisuseError(
                f"a client connects to one server, not to a configuration, which ClientGroup takes; "
                f"{_suggest_from_config(config)}"
            )
        case type():
            return MisuseError(f"cannot connect to the class {target.__name__}; pass an instance of it")
        case _:
            return MisuseError(f"a client connects to {_TARGETS}, not to {_shorten_repr(target)}")


def _missing_file_error(path: Path) -> MisuseError:
    where = "" if path.is_absolute() else f" in {os.getcwd()}"
    return MisuseError(f"there is no file {str(path)!r}{where}; check the path of the script")


def _split_command(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise MisuseError(f"{text!r} cannot be read as a command: {error}; pass a list of its words instead") from None


def _can_be_found(program: str) -> bool:
    return bool(program) and (Path(program).exists() or shutil.which(program) is not None)


def _first_instance_name(module: ModuleType, kind: type) -> str:
    """Return the name of the first instance of a class in a module."""
    return next((name for name, value in vars(module).items() if isinstance(value, kind)), "server")


def _suggest_from_config(config: Mapping[Any, Any]) -> str:
    """Return a suggestion for the first server of a host application's configuration."""
    servers: Any = config.get("mcpServers")
    entry: Any = config
    if isinstance(servers, Mapping):
        entry = next(iter(cast("Mapping[Any, Any]", servers).values()), None)
    if isinstance(entry, Mapping):
        options = cast("Mapping[Any, Any]", entry)
        url, command = options.get("url"), options.get("command")
        if isinstance(url, str):
            return f"write Client({url.partition('?')[0]!r}) for its url"
        if isinstance(command, str):
            words = [command, "…"] if options.get("args") else [command]
            return f"write Client({words!r}) for its command and args; `Command` takes env= and cwd= besides"
    return "write Client([command, *args]) or Client(url) for each of its servers"


def _shorten_repr(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"  # noqa: PLR2004 - fits in one line
