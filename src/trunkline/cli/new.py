"""`trunkline new`: create a project with a server, its tests and its configuration."""

import argparse
import re
import shlex
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

from trunkline.cli import call
from trunkline.cli.commands import EXIT_OK
from trunkline.cli.terminal import Terminal, escape
from trunkline.errors import ConfigError, MisuseError
from trunkline.version import __version__

__all__ = ["configure"]

_EXAMPLES: Final = """\
examples:
  trunkline new calculator
  trunkline new reports --http --tasks --dir ~/projects/reports
"""
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}[A-Za-z0-9]|[A-Za-z]")
_RESERVED: Final = {
    *("trunkline", "server", "tests"),  # would hide a package that the project imports
    *("con", "prn", "aux", "nul", *(f"{port}{digit}" for port in ("com", "lpt") for digit in range(1, 10))),  # Windows
}
_FILES: Final = {
    "server.py": "server.py.txt",
    "tests/test_server.py": "test_server.py.txt",
    "README.md": "README.md.txt",
    "pyproject.toml": "pyproject.toml.txt",
    ".gitignore": "gitignore.txt",
}
_TASK_FILES: Final = {**_FILES, "server.py": "server_tasks.py.txt", "tests/test_tasks.py": "test_tasks.py.txt"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", metavar="NAME", help="name of the project and its server")
    parser.add_argument("--http", action="store_true", help="serve over HTTP instead of stdio")
    parser.add_argument("--tasks", action="store_true", help="add a tool that runs as a task")
    parser.add_argument("--dir", metavar="FOLDER", type=Path, help="folder of the project (./NAME)")
    parser.add_argument("--json", action="store_true", help="print the created files as JSON")
    parser.epilog = _EXAMPLES
    parser.set_defaults(run=_new)


def _new(options: argparse.Namespace) -> int:
    name: str = options.name
    if _NAME.fullmatch(name) is None:
        raise MisuseError(
            f"{name!r} cannot name a project; use up to 64 letters, digits, - and _; begin with a letter and "
            "end with a letter or digit"
        )
    if name.lower() in _RESERVED:
        raise MisuseError(f"{name!r} cannot name a project, because it already has a meaning; choose another name")
    folder = (Path(name) if options.dir is None else options.dir).expanduser()
    contents = _render(name, http=options.http, tasks=options.tasks)
    _write(folder, contents)
    terminal = Terminal()
    if options.json:
        terminal.json({"folder": str(folder.absolute()), "files": [*contents]})
        return EXIT_OK
    terminal.note(f"created {escape(str(folder))} with {', '.join(contents)}")
    if (code := _call_first_tool(folder / "server.py", terminal)) != EXIT_OK:
        return code
    terminal.note("next:")
    for command in (f"cd {shlex.quote(str(folder))}", "python -m pytest", _next_command(http=options.http)):
        terminal.line(f"  {escape(command)}")
    return EXIT_OK


def _call_first_tool(server: Path, terminal: Terminal) -> int:
    """Show that the new server works: run `trunkline call`, and return its exit code."""
    parser = argparse.ArgumentParser()
    call.configure(parser)
    words = (str(server), "add", "a=2", "b=3")
    terminal.note(escape(f"first call: trunkline call {shlex.join(words)}"))
    options = parser.parse_args(words)
    return options.run(options)


def _next_command(*, http: bool) -> str:
    return "trunkline run server.py --http" if http else "trunkline install server.py --host claude-desktop"


def _render(name: str, *, http: bool, tasks: bool) -> dict[str, str]:
    """Return the files of a project by their paths."""
    target = f"http://127.0.0.1:8000/mcp --name {name} --host cursor" if http else "server.py --host claude-desktop"
    values = {
        "name": name,
        "transport": '"http"' if http else "",
        "requirement": f"trunkline{'[http]' if http else ''}>={__version__}",
        "run": f"trunkline run server.py{' --http' if http else ''}",
        "install": f"trunkline install {target}",
    }
    templates = files("trunkline.cli") / "templates" / "project"
    return {
        path: Template((templates / source).read_text("utf-8")).substitute(values)
        for path, source in (_TASK_FILES if tasks else _FILES).items()
    }


def _write(folder: Path, contents: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise MisuseError(f"{folder} is not empty; choose another folder with --dir")
        for path, text in contents.items():
            file = folder / path
            file.parent.mkdir(exist_ok=True)
            with file.open("x", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
    except (FileExistsError, NotADirectoryError) as error:
        raise MisuseError(f"{error.filename} already exists and is not a folder") from error
    except OSError as error:
        raise ConfigError(f"cannot create {error.filename}: {error.strerror}") from error
