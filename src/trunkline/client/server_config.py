"""Configuration files that name MCP servers: the `mcpServers` of Claude Desktop, Claude Code, Cursor and others, and
the `servers` of VS Code.

Values may refer to environment variables as `${NAME}`, `${NAME:-default}` or `${env:NAME}`, and to the `inputs` of
VS Code as `${input:id}`.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from trunkline.config import Settings
from trunkline.errors import ConfigError, MisuseError
from trunkline.jsonc import blank_comments
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.transports.channel import Connector
    from trunkline.transports.http.client.credentials import Auth

__all__ = [
    "InputDefinition",
    "ServerConfig",
    "ServerEntry",
    "expand_variables",
    "is_server_config",
    "load_server_config",
    "load_server_entries",
    "parse_server_config",
    "parse_server_entries",
    "parse_server_entry",
    "read_servers",
]

AskInput = Callable[[str], str]
"""Returns the value of an input by its id."""

CheckLaunch = Callable[[list[str], Mapping[str, str]], list[str]]
"""Returns the command to start for a command and its environment. Raises `ConfigError` to refuse it."""

_REFERENCE: Final = re.compile(r"\$\{(?:(env|input):)?([A-Za-z_][A-Za-z0-9_-]*)(?::-([^}]*))?\}")
_SECTIONS: Final = ("mcpServers", "servers", "context_servers")
_decode: Final[Callable[[bytes], Any]] = codec.json_decoder(cast("Any", Any))


class ServerEntry(Struct, frozen=True, kw_only=True):
    """One server of a configuration file: a command to start, or a URL to connect to."""

    name: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    disabled: bool = False
    options: dict[str, Any] = {}  # the member `trunkline`, for a gateway

    def connector(
        self,
        settings: Settings,
        *,
        auth: "Auth | None" = None,
        on_stderr: Callable[[str], None] | None = None,
        variables: Mapping[str, str] | None = None,
        ask_input: AskInput | None = None,
        check_launch: CheckLaunch | None = None,
    ) -> "Connector":
        """Return the connector for this server, with the references to variables replaced. Raises `ConfigError` if one
        is not set. `check_launch` decides whether a command may be started."""

        def expand(text: str) -> str:
            return expand_variables(text, os.environ if variables is None else variables, ask_input, self.name)

        if self.url is not None:
            from trunkline.transports.http.client.connector import HttpConnector

            headers = {name: expand(value) for name, value in self.headers.items()}
            return HttpConnector(expand(self.url), headers=headers, auth=auth, settings=settings)
        from trunkline.transports.stdio.client import Command

        words, env = [expand(word) for word in self.command], {name: expand(it) for name, it in self.env.items()}
        return Command(
            words if check_launch is None else check_launch(words, env),
            cwd=None if self.cwd is None else expand(self.cwd),
            env=env,
            on_stderr=on_stderr,
            settings=settings,
        )


class InputDefinition(Struct, frozen=True, kw_only=True):
    """An input that VS Code asks its user for."""

    id: str
    description: str = ""
    default: str | None = None
    options: tuple[str, ...] = ()  # the allowed values, if there is a choice


class ServerConfig(Struct, frozen=True):
    """A configuration: its servers by their names, and its inputs by their ids."""

    servers: dict[str, ServerEntry]
    inputs: dict[str, InputDefinition] = {}
    options: dict[str, Any] = {}  # the member `trunkline` of the whole configuration, for a gateway

    def input_value(self, ident: str, values: Mapping[str, str]) -> str:
        """Return the value of an input, or its default. Raises `ConfigError` if there is none, or if it is none of the
        input's options."""
        defined = self.inputs.get(ident, InputDefinition(id=ident))
        value = values.get(ident, defined.default)
        if value is None:
            what = f" ({defined.description})" if defined.description else ""
            raise ConfigError(f"the configuration needs the input {ident!r}{what}; pass inputs={{{ident!r}: …}}")
        if defined.options and value not in defined.options:
            raise ConfigError(f"the input {ident!r} must be one of {', '.join(defined.options)}")
        return value


def load_server_entries(path: Path) -> dict[str, ServerEntry]:
    """Return the servers of a configuration file by their names. Raises `ConfigError` like `load_server_config`."""
    return load_server_config(path).servers


def load_server_config(path: Path) -> ServerConfig:
    """Read a configuration file. Raises `ConfigError` for one that cannot be read or used."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read {path}: {reason}") from error
    try:
        content = _decode(blank_comments(text).encode())
    except codec.DecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    return parse_server_config(content, str(path))


def parse_server_entries(content: Any, source: str = "the configuration") -> dict[str, ServerEntry]:
    """Return the servers of a configuration by their names. Raises `ConfigError` like `parse_server_config`."""
    return parse_server_config(content, source).servers


def parse_server_config(content: Any, source: str = "the configuration") -> ServerConfig:
    """Return the servers and inputs of a configuration. `content` is the whole configuration, or the mapping of its
    servers alone. Raises `ConfigError` if it is neither, naming the entry at fault."""
    if not isinstance(content, Mapping):
        raise ConfigError(f"{source} is not a JSON object")
    whole = cast("Mapping[str, Any]", content)
    section, inputs = _find_section(whole)
    if section is None:
        section = whole
    if not isinstance(section, Mapping):
        raise ConfigError(f"the servers of {source} are not a JSON object")
    servers = cast("Mapping[str, Any]", section)
    return ServerConfig(
        {name: parse_server_entry(name, entry, source) for name, entry in servers.items()},
        _parse_inputs(inputs, source),
        {} if section is whole else _parse_options(whole.get("trunkline"), f"`trunkline` of {source}"),
    )


def read_servers(servers: Any, *, reader: str = "a group") -> tuple[ServerConfig, dict[str, Any]]:
    """Return the configuration and the targets of all servers, by their names: an entry of the configuration, or a
    target of `Client`. `servers` is the path of a file, its content, or a mapping of names to targets. Disabled entries
    are left out. `reader` is for the error message."""
    config = ServerConfig({})
    if isinstance(servers, str | os.PathLike):
        config = load_server_config(Path(cast("str | os.PathLike[str]", servers)))
        targets: dict[str, Any] = dict(config.servers)
    elif not isinstance(servers, Mapping):
        raise MisuseError(f"{reader} takes a file, a configuration or a mapping of names to targets, not {servers!r}")
    elif is_server_config(cast("Mapping[Any, Any]", servers)):
        config = parse_server_config(servers)
        targets = dict(config.servers)
    else:
        given = cast("Mapping[str, Any]", servers)
        targets = {
            name: parse_server_entry(name, target) if isinstance(target, Mapping) else target
            for name, target in given.items()
        }
    return config, {
        name: target for name, target in targets.items() if not (isinstance(target, ServerEntry) and target.disabled)
    }


def is_server_config(content: Mapping[Any, Any]) -> bool:
    """Return whether a mapping is a whole configuration, as opposed to one of servers by their names."""
    return isinstance(_find_section(content)[0], Mapping)


def _find_section(content: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the servers and the inputs of a whole configuration; None for what it does not have."""
    section = next((content[name] for name in _SECTIONS if name in content), None)
    if section is None and isinstance(nested := content.get("mcp"), Mapping):  # settings.json of VS Code
        inner = cast("Mapping[str, Any]", nested)
        return inner.get("servers"), inner.get("inputs")
    return section, None if section is None else content.get("inputs")


def _parse_inputs(inputs: Any, source: str) -> dict[str, InputDefinition]:
    found: dict[str, InputDefinition] = {}
    for one in cast("list[Any]", inputs) if isinstance(inputs, list) else []:
        members = cast("Mapping[str, Any]", one if isinstance(one, Mapping) else {})
        ident, default = members.get("id"), members.get("default")
        if not isinstance(ident, str):
            raise ConfigError(f"an input of {source} has no `id`")
        found[ident] = InputDefinition(
            id=ident,
            description=str(members.get("description") or ""),
            default=None if default is None else str(default),
            options=tuple(map(_option_value, members.get("options") or ())),
        )
    return found


def _option_value(option: Any) -> str:
    return str(cast("Mapping[str, Any]", option).get("value") if isinstance(option, Mapping) else option)


def parse_server_entry(name: str, entry: Any, source: str = "the configuration") -> ServerEntry:
    """Return one server of a configuration. Raises `ConfigError` if it cannot be used."""
    where = f"server {name!r} of {source}"
    if not isinstance(entry, Mapping):
        raise ConfigError(f'{where} is not an object like {{"command": "…"}} or {{"url": "…"}}')
    members = cast("Mapping[str, Any]", entry)
    url = members.get("url", members.get("serverUrl", members.get("httpUrl")))
    command: Any = members.get("command")
    if isinstance(command, Mapping):  # Zed
        members = cast("Mapping[str, Any]", command)
        command = members.get("path")
    if (url is None) == (command is None):
        raise ConfigError(f"{where} needs either `command` or `url`")
    if url is not None and not isinstance(url, str):
        raise ConfigError(f"`url` of {where} is not a string")
    if command is not None and not isinstance(command, str):
        raise ConfigError(f"`command` of {where} is not a string; its arguments belong into `args`")
    arguments: Any = members.get("args") or []
    if not isinstance(arguments, list) or not all(isinstance(word, str) for word in cast("list[Any]", arguments)):
        raise ConfigError(f"`args` of {where} is not a list of strings")
    cwd: Any = members.get("cwd")
    if cwd is not None and not isinstance(cwd, str):
        raise ConfigError(f"`cwd` of {where} is not a string")
    return ServerEntry(
        name=name,
        command=() if command is None else (command, *cast("list[str]", arguments)),
        env=_strings(members.get("env"), f"`env` of {where}"),
        cwd=cwd,
        url=url,
        headers=_strings(members.get("headers"), f"`headers` of {where}"),
        disabled=members.get("disabled") is True or members.get("enabled") is False,
        options=_parse_options(cast("Mapping[str, Any]", entry).get("trunkline"), f"`trunkline` of {where}"),
    )


def _parse_options(value: Any, where: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{where} is not a JSON object")
    return dict(cast("Mapping[str, Any]", value or {}))


def _strings(value: Any, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} is not a JSON object")
    found: dict[str, str] = {}
    for name, text in cast("Mapping[str, Any]", value).items():
        if not isinstance(text, str | int | float) or isinstance(text, bool):
            raise ConfigError(f"{name!r} in {where} is not a string")
        found[name] = str(text)
    return found


def expand_variables(text: str, variables: Mapping[str, str], ask_input: AskInput | None, server: str) -> str:
    """Replace the references of a text. Raises `ConfigError` for one without a value."""

    def replace(found: re.Match[str]) -> str:
        kind, name, default = cast("tuple[str | None, str, str | None]", found.groups())
        if kind == "input":
            if ask_input is None:
                raise ConfigError(f"server {server!r} asks for the input {name!r}, which only its editor can supply")
            return ask_input(name)
        value = variables.get(name, default)
        if value is None:
            raise ConfigError(f"server {server!r} uses ${{{name}}}; set the environment variable {name}")
        return value

    return _REFERENCE.sub(replace, text)
