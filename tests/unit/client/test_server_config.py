"""Configuration files that name servers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from trunkline import Client, Settings
from trunkline.client.server_config import load_server_entries, parse_server_config, parse_server_entries
from trunkline.errors import ConfigError
from trunkline.transports.stdio.client import Command

SCRIPT = "from trunkline import Server; s = Server('one'); s.add_tool(lambda: 'hello', name='greet'); s.run()"


@pytest.mark.parametrize("section", ["mcpServers", "servers", "context_servers"])
def test_sections_of_all_hosts_are_read(section: str) -> None:
    entries = parse_server_entries({section: {"a": {"command": "x", "args": ["1"]}, "b": {"url": "https://b.example"}}})
    assert entries["a"].command == ("x", "1")
    assert entries["b"].url == "https://b.example"


def test_mapping_of_servers_alone_is_read() -> None:
    assert parse_server_entries({"a": {"command": "x"}})["a"].command == ("x",)


def test_settings_of_an_editor_are_read() -> None:
    assert parse_server_entries({"mcp": {"servers": {"a": {"command": "x"}}}})["a"].command == ("x",)


def test_command_as_an_object_is_read() -> None:
    entry = {"command": {"path": "x", "args": ["1"], "env": {"A": "1"}}}
    parsed = parse_server_entries({"context_servers": {"a": entry}})["a"]
    assert (parsed.command, parsed.env) == (("x", "1"), {"A": "1"})


@pytest.mark.parametrize("disabled", [{"disabled": True}, {"enabled": False}])
def test_disabled_server_is_marked(disabled: dict[str, Any]) -> None:
    assert parse_server_entries({"a": {"command": "x", **disabled}})["a"].disabled


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ([], "is not a JSON object"),
        ({"mcpServers": []}, "servers of the configuration are not a JSON object"),
        ({"a": "x"}, "server 'a' of the configuration is not an object like"),
        ({"a": {}}, "needs either `command` or `url`"),
        ({"a": {"command": "x", "url": "y"}}, "needs either `command` or `url`"),
        ({"a": {"command": ["x"]}}, "its arguments belong into `args`"),
        ({"a": {"command": "x", "args": "y"}}, "`args` of server 'a'"),
        ({"a": {"command": "x", "args": [1]}}, "`args` of server 'a'"),
        ({"a": {"command": "x", "cwd": 1}}, "`cwd` of server 'a'"),
        ({"a": {"command": "x", "env": []}}, "`env` of server 'a'"),
        ({"a": {"command": "x", "env": {"A": True}}}, "'A' in `env`"),
        ({"a": {"url": 1}}, "`url` of server 'a'"),
        ({"a": {"url": "x", "headers": {"A": []}}}, "'A' in `headers`"),
    ],
)
def test_fault_names_the_entry(content: Any, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_server_entries(content)
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "cannot read"), (b"\xff", "not UTF-8"), (b"{", "is not JSON"), (b"1", "not a JSON object")],
)
def test_unusable_file_is_refused(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "mcp.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=why):
        load_server_entries(path)


def command_of(entry: dict[str, Any], **given: Any) -> Command:
    connector = parse_server_entries({"a": entry})["a"].connector(Settings(), **given)
    assert isinstance(connector, Command)
    return connector


def test_variables_are_replaced() -> None:
    entry = {"command": "x", "args": ["${A}/b", "${env:A}", "${NONE:-d}", "$A", "${input:key}"]}
    command = command_of(entry, variables={"A": "1"}, ask_input=lambda name: f"<{name}>")
    assert command.argv == ["x", "1/b", "1", "d", "$A", "<key>"]


@pytest.mark.parametrize(
    ("text", "why"), [("${NONE}", "set the environment variable NONE"), ("${input:k}", "input 'k'")]
)
def test_missing_variable_is_named(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        command_of({"command": text}, variables={})


def test_headers_and_url_are_expanded() -> None:
    entry = parse_server_entries({"a": {"url": "https://${H}/mcp", "headers": {"X-Key": "${K}"}}})["a"]
    assert entry.connector(Settings(), variables={"H": "h.example", "K": "1"}).name == "https://h.example/mcp"


async def test_client_connects_to_an_entry(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SCRIPT)
    (tmp_path / "mcp.json").write_text(
        f"""// comment
        {{"mcpServers": {{"one": {{"command": {json.dumps(sys.executable)}, "args": ["${{PLACE}}/server.py"],}}}}}}"""
    )
    entry = load_server_entries(tmp_path / "mcp.json")["one"]
    async with Client(entry.connector(Settings(), variables={"PLACE": str(tmp_path)})) as client:
        assert (await client.call_tool("greet")).data == "hello"


INPUTS = [
    {"id": "key", "type": "promptString", "description": "API key", "password": True},
    {"id": "level", "type": "pickString", "options": ["low", {"label": "High", "value": "high"}], "default": "low"},
]


@pytest.mark.parametrize("nested", [False, True])
def test_inputs_of_an_editor_are_read(nested: bool) -> None:
    content = {"inputs": INPUTS, "servers": {"a": {"command": "x"}}}
    config = parse_server_config({"mcp": content} if nested else content)
    assert config.input_value("key", {"key": "secret"}) == "secret"
    assert config.input_value("level", {}) == "low"
    assert config.input_value("level", {"level": "high"}) == "high"
    assert config.input_value("unknown", {"unknown": "1"}) == "1"


@pytest.mark.parametrize(
    ("ident", "values", "why"),
    [("key", {}, r"input 'key' \(API key\); pass inputs="), ("level", {"level": "x"}, "one of low, high")],
)
def test_missing_or_wrong_input_is_named(ident: str, values: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_server_config({"inputs": INPUTS, "servers": {}}).input_value(ident, values)


def test_input_without_an_id_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no `id`"):
        parse_server_config({"inputs": [{}], "servers": {}})
