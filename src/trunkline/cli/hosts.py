"""Hosts: applications that start or connect to MCP servers named in a configuration file."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from trunkline.cli import json_edit, toml_edit
from trunkline.cli.config_file import InvalidDocument
from trunkline.cli.terminal import escape_json
from trunkline.client.server_config import ServerEntry
from trunkline.errors import MisuseError

__all__ = ["HOSTS", "Host", "check_name", "make_name"]

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # the characters that all hosts accept
_MIN_SECRET: Final = 8  # characters; shorter values are settings
_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")
_SHAPE: Final = frozenset({"type", "command", "args", "cwd", "url", "serverUrl", "httpUrl", "headers", "http_headers"})


class Host(NamedTuple):
    """A host: the place and format of its user's configuration, and the shape of an entry."""

    title: str
    linux: str
    mac: str | None = None  # where it differs
    windows: str | None = None
    section: str = "mcpServers"
    url: str | None = "url"  # the member with the address of a server; None: the file cannot name one
    headers: str = "headers"
    has_type: bool = False  # entries say `"type": "stdio"` or `"type": "http"`
    has_cwd: bool = False
    toml: bool = False
    without_url: str = ""  # where an address belongs instead

    # --- the file --------------------------------------------------------------------------------

    def locate(self, platform: str, environ: Mapping[str, str], home: Path) -> Path:
        """Return the path of the configuration file on a platform, as `sys.platform` names it."""
        places = {"darwin": self.mac, "win32": self.windows}
        folders = {
            "home": str(home),
            "appdata": environ.get("APPDATA") or str(home / "AppData/Roaming"),
            "config": environ.get("XDG_CONFIG_HOME") or str(home / ".config"),
            "codex": environ.get("CODEX_HOME") or str(home / ".codex"),
            "claude": environ.get("CLAUDE_CONFIG_DIR") or str(home),
        }
        return Path((places.get(platform) or self.linux).format_map(folders))

    def read_entries(self, text: str) -> dict[str, Any]:
        """Return the entries of a file by name. Raises `InvalidDocument` if it is broken."""
        found: Any = self._parse(text).get(self.section, {})
        if not isinstance(found, dict):
            raise InvalidDocument(f'"{self.section}" is not a table of servers')
        return cast("dict[str, Any]", found)

    def set_entry(self, text: str, name: str, entry: Mapping[str, Any]) -> str:
        """Return the text of a file with an entry. Raises `InvalidDocument` if it cannot be added."""
        edit = toml_edit.set_table if self.toml else json_edit.set_member
        return self._checked(text, edit(text, (self.section, name), entry), name, entry)

    def remove_entry(self, text: str, name: str) -> str:
        """Return the text of a file without an entry. Raises `InvalidDocument` if it cannot be removed."""
        edit = toml_edit.remove_table if self.toml else json_edit.remove_member
        return self._checked(text, edit(text, (self.section, name)), name, None)

    def _parse(self, text: str) -> dict[str, Any]:
        return toml_edit.parse(text) if self.toml else json_edit.parse(text)

    def _checked(self, before: str, after: str, name: str, entry: Mapping[str, Any] | None) -> str:
        """Return a text after an edit. Raises `InvalidDocument` unless the entry is all that has changed."""
        expected = self._parse(before)
        servers = {**self.read_entries(before), name: entry}
        expected[self.section] = {one: value for one, value in servers.items() if value is not None}
        try:
            found = self._parse(after)
        except InvalidDocument:
            found = {}
        if expected != {self.section: {}, **found}:
            raise InvalidDocument(
                f"{self.section!r} is written in a way that this command cannot edit; edit it by hand"
            )
        return after

    # --- an entry --------------------------------------------------------------------------------

    def make_entry(self, server: ServerEntry) -> dict[str, Any]:
        """Return the entry for a server. Raises `MisuseError` if the host cannot have it."""
        if server.url is not None:
            if self.url is None:
                raise MisuseError(f"{self.title} takes no address in its file; {self.without_url}")
            headers = {self.headers: dict(server.headers)} if server.headers else {}
            return {**({"type": "http"} if self.has_type else {}), self.url: server.url, **headers}
        if server.cwd is not None and not self.has_cwd:
            raise MisuseError(f"{self.title} cannot start a server in a folder (`cwd`: {server.cwd!r})")
        program, *arguments = server.command
        return {
            **({"type": "stdio"} if self.has_type else {}),
            "command": program,
            "args": arguments,
            **({} if server.cwd is None else {"cwd": server.cwd}),
            **({"env": dict(server.env)} if server.env else {}),
        }

    def merge(self, old: Any, new: Mapping[str, Any]) -> dict[str, Any]:
        """Return a new entry with the settings of the old one that do not concern the connection. An entry with a
        command keeps the variables of the old one."""
        if not isinstance(old, Mapping):
            return dict(new)
        before = cast("Mapping[str, Any]", old)
        kept = {name: value for name, value in before.items() if name not in _SHAPE and name != "env"}
        env: Any = before.get("env")
        if "command" in new and isinstance(env, Mapping):
            kept["env"] = {**cast("Mapping[str, Any]", env), **new.get("env", {})}
        return {**new, **kept}

    def secrets(self, entries: Mapping[str, Any]) -> set[str]:
        """Return the values of variables and headers that may be secrets."""
        groups: list[Any] = [
            cast("Mapping[str, Any]", entry).get(member)
            for entry in entries.values()
            if isinstance(entry, Mapping)
            for member in ("env", self.headers)
        ]
        values = [value for group in groups if isinstance(group, Mapping) for value in cast("Any", group).values()]
        return {value for value in values if isinstance(value, str) and len(value) >= _MIN_SECRET}

    def format_entry(self, name: str, entry: Mapping[str, Any]) -> str:
        """Return an entry as it stands in a file that has nothing else, with control characters escaped."""
        if self.toml:
            return toml_edit.format_table((self.section, name), entry).rstrip("\n")
        return escape_json(json_edit.format_json({self.section: {name: entry}}))


HOSTS: Final = {
    "claude-desktop": Host(
        "Claude Desktop",
        mac="{home}/Library/Application Support/Claude/claude_desktop_config.json",
        windows="{appdata}/Claude/claude_desktop_config.json",
        linux="{config}/Claude/claude_desktop_config.json",
        url=None,
        without_url="add it there under Settings, Connectors",
    ),
    "claude-code": Host("Claude Code", "{claude}/.claude.json", has_type=True),
    "cursor": Host("Cursor", "{home}/.cursor/mcp.json"),
    "vscode": Host(
        "VS Code",
        mac="{home}/Library/Application Support/Code/User/mcp.json",
        windows="{appdata}/Code/User/mcp.json",
        linux="{config}/Code/User/mcp.json",
        section="servers",
        has_type=True,
        has_cwd=True,
    ),
    "windsurf": Host("Windsurf", "{home}/.codeium/windsurf/mcp_config.json", url="serverUrl"),
    "codex": Host(
        "Codex", "{codex}/config.toml", section="mcp_servers", headers="http_headers", has_cwd=True, toml=True
    ),
    "gemini": Host("Gemini CLI", "{home}/.gemini/settings.json", url="httpUrl", has_cwd=True),
    "zed": Host(
        "Zed",
        mac="{home}/.config/zed/settings.json",
        windows="{appdata}/Zed/settings.json",
        linux="{config}/zed/settings.json",
        section="context_servers",
    ),
}


def make_name(text: str) -> str:
    """Return a text as the name of an entry. Raises `MisuseError` if nothing of it can stand in a name."""
    return check_name(_NOT_IN_NAME.sub("-", text).strip("-")[:64])


def check_name(name: str) -> str:
    """Return a name that all hosts accept. Raises `MisuseError` for any other."""
    if _NAME.fullmatch(name) is None:
        raise MisuseError(f"{name!r} cannot name a server; choose up to 64 letters, digits, _ and - with --name")
    return name
