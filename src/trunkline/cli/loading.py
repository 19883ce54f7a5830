"""Servers in Python files and modules: `server.py`, `server.py:app`, `package.module`, `package.module:app`."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import trunkline
from trunkline.errors import ConfigError, MisuseError
from trunkline.server.run.importing import Overrides, collect_servers

if TYPE_CHECKING:
    from trunkline.server.server import Server

__all__ = ["NoServer", "find_server", "is_python_file", "load_module", "load_server", "split_object"]


class NoServer(MisuseError):
    """A program has no server of ours."""


_PACKAGE: Final = Path(trunkline.__file__).parent
_USUAL_NAMES: Final = ("server", "mcp", "app")


def split_object(text: str) -> tuple[str, str | None]:
    """Split `place:object` into its parts; the object is None if there is none."""
    place, colon, name = text.rpartition(":")
    if not colon or not all(part.isidentifier() for part in name.removesuffix("()").split(".")):
        return text, None
    return place, name


def is_python_file(text: str) -> bool:
    """Return whether a text names a Python file, with or without an object, and not a command that ends with one."""
    place = split_object(text)[0]
    return place.endswith(".py") and (" " not in place or Path(place).is_file())


def load_server(text: str, overrides: Overrides = Overrides()) -> "Server":  # noqa: B008 - frozen
    """Import the file or module, and return its server. Raises `MisuseError` if there is none, and `ConfigError` if its
    code fails."""
    place, name = split_object(text)
    with collect_servers(overrides) as run:
        module = load_module(place)
        if name is None and run:
            return run[0]
        return find_server(module, name, place)


def load_module(place: str) -> ModuleType:
    """Import a Python file by its path, or a module by its name. Raises `MisuseError` if it does not exist, and
    `ConfigError` if its code fails."""
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise MisuseError(f"there is no file {place}")
        return _import_file(path)
    sys.path.insert(0, "")
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise MisuseError(f"there is no module {place!r} here or among the installed packages") from None
        raise _failed(place, error) from error
    except Exception as error:
        raise _failed(place, error) from error
    finally:
        sys.path.remove("")


def _import_file(path: Path) -> ModuleType:
    """Import a file as if it were a module, with its folder on the import path and without a file of bytecode, as
    Python does for a script."""
    sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"_trunkline_{abs(hash(path))}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))  # noqa: S102 - the program
    except Exception as error:
        del sys.modules[name]
        raise _failed(path.name, error) from error
    return module


def _failed(place: str, error: Exception) -> ConfigError:
    import traceback

    # the last line of the program: deeper ones are ours, or those of Python's import system
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not Path(frame.filename).is_relative_to(_PACKAGE)
    ]
    last = own[-1] if own else None
    at = "" if last is None else f" at {Path(last.filename).name}:{last.lineno}"
    if isinstance(error, SyntaxError):
        at = f" at {Path(error.filename or place).name}:{error.lineno}"
    return ConfigError(f"{place} cannot be imported: {type(error).__name__}: {error}{at}")


def find_server(module: ModuleType, name: str | None, place: str) -> "Server":
    """Return a server of a module: the one with that name, or the only one. Raises `MisuseError` if there is none."""
    from trunkline.server.server import Server

    if name is not None:
        found = _look_up(module, name, place)
        if not isinstance(found, Server):
            raise MisuseError(f"{name} in {place} is a {type(found).__name__}, not a trunkline.Server")
        return found
    servers = {name: value for name, value in vars(module).items() if isinstance(value, Server)}
    if len({id(server) for server in servers.values()}) > 1:
        for usual in _USUAL_NAMES:
            if usual in servers:
                return servers[usual]
        raise MisuseError(f"{place} has several servers; choose one: {', '.join(f'{place}:{one}' for one in servers)}")
    for server in servers.values():
        return server
    raise NoServer(f"{place} has no trunkline.Server; name the function that makes one as {place}:make_server()")


def _look_up(module: ModuleType, name: str, place: str) -> Any:
    found: Any = module
    for part in name.removesuffix("()").split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise MisuseError(f"there is no {name!r} in {place}") from None
    if name.endswith("()"):
        try:
            return found()
        except Exception as error:
            raise _failed(place, error) from error
    return found
