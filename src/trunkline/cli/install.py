"""`trunkline install`, `uninstall` and `export`: entries for servers in the configuration files of hosts."""

import argparse
import contextlib
import difflib
import os
import re
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK
from trunkline.cli.config_file import ConfigFile, InvalidDocument
from trunkline.cli.connection import find_entry, split_config, split_pairs
from trunkline.cli.hosts import HOSTS, Host, check_name, make_name
from trunkline.cli.loading import NoServer, is_python_file, load_server, split_object
from trunkline.cli.terminal import Terminal, escape, escape_lines
from trunkline.client.server_config import ServerEntry
from trunkline.errors import ConfigError, MisuseError
from trunkline.wire import codec

__all__ = ["configure_export", "configure_install", "configure_uninstall"]

_INSTALL_EXAMPLES: Final = """\
examples:
  trunkline install server.py --host claude-desktop
  trunkline install server.py --host cursor --env REGION=eu --dry-run
  trunkline install https://example.org/mcp --host vscode --name example
  trunkline install ~/.cursor/mcp.json:files --host codex        # the same server in another host
  trunkline install "npx -y some-server /folder" --host zed --name files --yes
"""
_UNINSTALL_EXAMPLES: Final = """\
examples:
  trunkline uninstall calculator --host claude-desktop
  trunkline uninstall --host cursor --restore            # the file as it was before the last change
"""
_EXPORT_EXAMPLES: Final = """\
examples:
  trunkline export server.py --host claude-desktop
  trunkline export https://example.org/mcp --host codex
"""
_TARGET_HELP: Final = """\
A TARGET is one of
  server.py, server.py:app         a Python file, which the host starts with this Python (or with uv: --uv)
  package.module:app               the same for a module
  https://…                        the address of a server
  mcp.json:NAME                    an entry of a configuration file
  "npx -y some-server /folder"     a command, as one word
"""
_CONTEXT: Final = 2  # lines around a change
_MAX_LINE: Final = 300  # characters of a line in a diff
_REFERENCE: Final = re.compile(r"\$\{")


class _Edit(NamedTuple):
    """A change of a host's file that is not yet written."""

    host: Host
    file: ConfigFile
    name: str | None
    after: str
    hidden: set[str]  # values that are not shown


# --- arguments -----------------------------------------------------------------------------------


def configure_install(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `install`."""
    _add_server_options(parser)
    _add_file_options(parser)
    parser.epilog = f"{_INSTALL_EXAMPLES}\n{_TARGET_HELP}"
    parser.set_defaults(run=_install)


def configure_uninstall(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `uninstall`."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="name of the entry")
    _add_host_option(parser)
    parser.add_argument("--restore", action="store_true", help="restore the backup of the last change instead")
    _add_file_options(parser)
    parser.epilog = _UNINSTALL_EXAMPLES
    parser.set_defaults(run=_uninstall)


def configure_export(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    _add_server_options(parser)
    parser.add_argument("--json", action="store_true", help="print name and entry as one line of JSON")
    parser.epilog = f"{_EXPORT_EXAMPLES}\n{_TARGET_HELP}"
    parser.set_defaults(run=_export)


def _add_host_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", metavar="HOST", required=True, choices=tuple(HOSTS), help=f"one of {', '.join(HOSTS)}"
    )


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="the server; see below")
    _add_host_option(parser)
    parser.add_argument("--name", metavar="NAME", help="name of the entry (the name of the server)")
    parser.add_argument(
        "--env",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        help="set a variable of the server; without a value, copy that of this shell",
    )
    parser.add_argument(
        "--header", metavar="NAME:VALUE", action="append", default=[], help="a header for requests to an address"
    )
    parser.add_argument("--uv", action="store_true", help="start a Python file with `uv run`")
    parser.add_argument("--no-check", action="store_true", help="do not import the Python file to check it")


def _add_file_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="PATH", type=Path, help="configuration file (the one of your user)")
    parser.add_argument("--dry-run", action="store_true", help="only show the change")
    parser.add_argument("--yes", action="store_true", help="write without asking")
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")


# --- commands ------------------------------------------------------------------------------------


def _install(options: argparse.Namespace) -> int:
    terminal, host = Terminal(), HOSTS[options.host]
    env, copied = _variables(options.env)
    server = _describe(options, env, terminal)
    new = host.make_entry(server)
    file = _open(options, host)
    if copied:
        terminal.note(f"warning: {_listed(copied)} will stand in plain text in {escape(str(file.path))}")
    _warn_of_references(server, host, terminal)
    with _Placed(file.path):
        entries = host.read_entries(file.text)
        after = host.set_entry(file.text, server.name, host.merge(entries.get(server.name), new))
    hidden = {*copied.values(), *host.secrets(entries)}
    return _apply(_Edit(host, file, server.name, after, hidden), options, terminal)


def _uninstall(options: argparse.Namespace) -> int:
    terminal, host = Terminal(), HOSTS[options.host]
    if (options.name is None) != options.restore:
        raise MisuseError("name the entry to remove, or restore the file as it was with --restore alone")
    file = _open(options, host)
    if options.restore:
        backup = file.read_backup()
        if backup is None:
            raise MisuseError(f"there is no backup {file.backup_path}")
        with _Placed(file.backup_path):
            hidden = host.secrets(host.read_entries(backup))
        return _apply(_Edit(host, file, None, backup, hidden), options, terminal)
    with _Placed(file.path):
        entries = host.read_entries(file.text)
        if options.name not in entries:
            known = ", ".join(map(escape, entries)) or "none"
            raise MisuseError(f"{file.path} has no server {options.name!r}; it has {known}")
        after = _before_install(host, file, options.name, entries[options.name])
        if after is None:
            after = host.remove_entry(file.text, options.name)
    return _apply(_Edit(host, file, options.name, after, host.secrets(entries)), options, terminal)


def _before_install(host: Host, file: ConfigFile, name: str, entry: Any) -> str | None:
    """Return the backup if adding the entry to it leads to the present file: then nothing else has changed since, and
    the backup is exact where removing is not, such as for a section that the installation has added."""
    backup = file.read_backup()
    try:
        if backup is None or name in host.read_entries(backup) or host.set_entry(backup, name, entry) != file.text:
            return None
    except InvalidDocument:
        return None
    return backup


def _export(options: argparse.Namespace) -> int:
    terminal, host = Terminal(), HOSTS[options.host]
    env, copied = _variables(options.env)
    server = _describe(options, env, terminal)
    entry = host.make_entry(server)
    if copied:
        terminal.note(f"warning: the output has {_listed(copied)} in plain text")
    _warn_of_references(server, host, terminal)
    if options.json:
        terminal.json({"host": options.host, "section": host.section, "name": server.name, "entry": entry})
    else:
        terminal.line(host.format_entry(server.name, entry))
    return EXIT_OK


def _listed(copied: Mapping[str, str]) -> str:
    return f"the value of {', '.join(copied)}"


def _warn_of_references(server: ServerEntry, host: Host, terminal: Terminal) -> None:
    values = (*server.command, *server.env.values(), server.url or "", *server.headers.values())
    if any(_REFERENCE.search(value) for value in values):
        terminal.note(f"note: the entry refers to variables as ${{…}}; check that {host.title} replaces them")


# --- the server ----------------------------------------------------------------------------------


def _variables(words: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables of the options `--env`, and those among them whose value this shell has."""
    copied: dict[str, str] = {}
    for name in [word for word in words if "=" not in word]:
        if name not in os.environ:
            raise MisuseError(f"--env {name}: this shell has no variable {name}; write --env {name}=VALUE")
        copied[name] = os.environ[name]
    given = split_pairs([word for word in words if "=" in word], "=", "--env NAME=VALUE")
    return {**dict(given), **copied}, copied


def _describe(options: argparse.Namespace, env: dict[str, str], terminal: Terminal) -> ServerEntry:
    """Return the server that a target names, as a host has to start it."""
    text: str = options.target
    headers = dict(split_pairs(options.header, ":", "--header NAME:VALUE"))
    name: str | None = None if options.name is None else check_name(options.name)
    config, entry_name = split_config(text)
    if options.uv and not is_python_file(text):
        raise MisuseError("--uv starts a Python file; the target is none")
    if "://" in text:
        return _describe_address(text, name, env, headers)
    if headers:
        raise MisuseError("--header is for servers with an address")
    if config is not None:
        found = find_entry(config, entry_name)
        if found.url is not None and env:
            raise MisuseError(f"--env is for servers that a host starts; {found.name} has an address")
        return ServerEntry(
            name=name or make_name(found.name),
            command=found.command,
            env={**found.env, **env},
            cwd=found.cwd,
            url=found.url,
            headers=found.headers,
        )
    if is_python_file(text) or (split_object(text)[1] is not None and " " not in text):
        return _describe_python(options, name, env, terminal)
    return _describe_command(text, name, env)


def _describe_address(text: str, name: str | None, env: dict[str, str], headers: dict[str, str]) -> ServerEntry:
    from urllib.parse import urlsplit

    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise MisuseError(f"hosts connect over HTTP; {text!r} is no http:// or https:// address")
    if env:
        raise MisuseError("--env is for servers that a host starts; this one has an address")
    return ServerEntry(name=name or make_name(parts.hostname), url=text, headers=headers)


def _describe_command(text: str, name: str | None, env: dict[str, str]) -> ServerEntry:
    import shlex
    import shutil

    try:
        command = shlex.split(text)
    except ValueError as error:
        raise MisuseError(f"{text!r} is not a command: {error}") from None
    if not command or shutil.which(command[0]) is None:
        raise MisuseError(f"{text!r} is no Python file, module, address or configuration file, and no program either")
    if name is None:
        raise MisuseError("choose a name for the entry with --name NAME")
    return ServerEntry(name=name, command=tuple(command), env=env)


def _describe_python(
    options: argparse.Namespace, name: str | None, env: dict[str, str], terminal: Terminal
) -> ServerEntry:
    place, attribute = split_object(options.target)
    suffix = "" if attribute is None else f":{attribute}"
    is_file = place.endswith(".py")
    if is_file and not Path(place).is_file():
        raise MisuseError(f"there is no file {place}")
    where = str(Path(place).absolute()) if is_file else place
    command = [sys.executable, "-m", "trunkline", "run", f"{where}{suffix}"]
    own_name = Path(place).stem if is_file else place
    if options.uv:
        command = [*_uv_command(Path(where)), f"{where}{suffix}"]
    elif not options.no_check:
        try:
            with terminal.reserved(), _environment(env):  # the program may read them when it is imported
                own_name = load_server(f"{place}{suffix}").name
        except NoServer:
            if not is_file or attribute is not None:
                raise
            command = [sys.executable, where]  # a script with a server of another library
    if not is_file and (folder := _import_folder(place)) is not None:
        env = {"PYTHONPATH": folder, **env}
    return ServerEntry(name=name or make_name(own_name), command=tuple(command), env=env)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Generator[None]:
    """Set environment variables for the duration of a block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _uv_command(file: Path) -> list[str]:
    import shutil

    uv = shutil.which("uv")
    if uv is None:
        raise MisuseError("--uv: there is no program uv; install it, or leave out --uv to use this Python")
    project = next((folder for folder in file.parents if (folder / "pyproject.toml").is_file()), None)
    source = ["--with", "trunkline"] if project is None else ["--project", str(project)]
    return [str(Path(uv).absolute()), "run", *source, "python", "-m", "trunkline", "run"]


def _import_folder(module: str) -> str | None:
    """Return this folder if a module is found only here; a host starts servers in another one."""
    from importlib.machinery import PathFinder

    here = str(Path.cwd())
    package = module.partition(".")[0]
    elsewhere = [folder for folder in sys.path if folder not in {"", here}]
    if PathFinder.find_spec(package, elsewhere) is None and PathFinder.find_spec(package, [here]) is not None:
        return here
    return None


# --- the file ------------------------------------------------------------------------------------


class _Placed:
    """Adds the path of a file to the faults that are found in it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InvalidDocument):
            raise ConfigError(f"{self._path}: {error}; nothing was changed") from error


def _open(options: argparse.Namespace, host: Host) -> ConfigFile:
    path: Path | None = options.config
    return ConfigFile(host.locate(sys.platform, os.environ, Path.home()) if path is None else path.expanduser())


def _apply(edit: _Edit, options: argparse.Namespace, terminal: Terminal) -> int:
    """Show a change, ask for permission, and write it."""
    path = escape(str(edit.file.path))
    changed = edit.after != edit.file.text
    written = False
    if not changed:
        terminal.note(f"{path} is already so; nothing to change")
    else:
        show = terminal.note if options.json else terminal.line
        if not edit.file.exists:
            terminal.note(f"{path} does not exist yet; it will be created")
        for line in _difference(edit.file.text, edit.after, edit.hidden):
            show(line)
        if not options.dry_run:
            if not options.yes and not _allowed(terminal, path):
                return EXIT_FAILURE
            edit.file.replace(edit.after)
            written = True
            terminal.note(f"changed {path}; restart {edit.host.title} to load it")
            if edit.file.exists:
                terminal.note(f"the file as it was: {escape(str(edit.file.backup_path))}")
    if options.json:
        backup = str(edit.file.backup_path) if written and edit.file.exists else None
        terminal.json(
            {"host": options.host, "path": str(edit.file.path), "name": edit.name, "changed": written, "backup": backup}
        )
    return EXIT_OK


def _allowed(terminal: Terminal, path: str) -> bool:
    if not terminal.interactive:
        raise MisuseError("no terminal to ask at; add --yes to write the change, or --dry-run to see it only")
    answer = terminal.ask(f"Change {path}? [y/N] ")
    if answer is not None and answer.strip().lower() in {"y", "yes"}:
        return True
    terminal.note("nothing was changed")
    return False


def _difference(before: str, after: str, hidden: set[str]) -> list[str]:
    """Return the lines of a diff, escaped, without the values to hide."""
    old, new = before.split("\n"), after.split("\n")
    start, end = _common(old, new)
    changed = (old[start : len(old) - end], new[start : len(new) - end])
    if max(map(len, [*changed[0], *changed[1]]), default=0) > _MAX_LINE:  # a document on one line
        head, tail = _common(before, after)
        removed, added = before[head : len(before) - tail], after[head : len(after) - tail]
        lines = [f"{sign}{part}" for sign, part in (("-", removed), ("+", added)) if part]
    else:
        first, last = max(start - _CONTEXT, 0), max(end - _CONTEXT, 0)
        shown = old[first : len(old) - last], new[first : len(new) - last]
        compared = [*difflib.unified_diff(*shown, n=_CONTEXT, lineterm="")][2:]
        lines = [f"@@ line {first + 1} @@", *(line for line in compared if not line.startswith("@@"))]
    text = "\n".join(line.rstrip("\r") for line in lines).removesuffix("\n ")  # behind the last line end
    for value in hidden:
        text = text.replace(codec.to_json(value).decode(), '"…"').replace(f"'{value}'", '"…"')
    return escape_lines(text).split("\n")


def _common(one: Sequence[str], other: Sequence[str]) -> tuple[int, int]:
    """Return how many items two sequences have in common at their start, and at their end behind that."""
    shorter = min(len(one), len(other))
    start = next((at for at in range(shorter) if one[at] != other[at]), shorter)
    rest = shorter - start
    return start, next((at for at in range(rest) if one[-1 - at] != other[-1 - at]), rest)
