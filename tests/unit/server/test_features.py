"""Features, and the modules that are imported with their first use."""

import json
import subprocess
import sys
from importlib import import_module

import pytest

from trunkline.rpc.dispatch import Feature
from trunkline.server import features

MINIMAL = """
import sys
from trunkline import Server
server = Server("minimal")

@server.tool
def echo(text: str) -> str:
    return text

try:
    server.run("stdio")
finally:
    names = [name for name in sys.modules if name.startswith("trunkline.") or name in sys.argv[1:]]
    print(*sorted(names), file=sys.stderr)
"""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "a"}}}
LIST = {"jsonrpc": "2.0", "id": 3, "method": "tools/list"}
MOST_MODULES = 105  # at the last count; each costs a quarter of a millisecond at start-up
UNUSED = (
    "trunkline.auth.",
    "trunkline.client",
    "trunkline.protocol.client_envelope",
    "trunkline.protocol.lenient",
    "trunkline.protocol.modern",
    "trunkline.protocol.task",
    "trunkline.protocol.types.completion",
    "trunkline.protocol.types.elicitation",
    "trunkline.protocol.types.prompts",
    "trunkline.protocol.types.resources",
    "trunkline.protocol.types.roots",
    "trunkline.protocol.types.sampling",
    "trunkline.protocol.types.subscriptions",
    "trunkline.protocol.types.tasks_",
    "trunkline.registry.completions",
    "trunkline.registry.generators",
    "trunkline.registry.prompts",
    "trunkline.registry.resources",
    "trunkline.registry.templates",
    "trunkline.registry.validators",
    "trunkline.server.cluster",
    "trunkline.server.idempotency",
    "trunkline.server.input.",
    "trunkline.server.notifications.listen",
    "trunkline.server.notifications.resource_updates",
    "trunkline.server.notifications.subscription",
    "trunkline.server.sessions",
    "trunkline.server.tasks",
    "trunkline.stores.",
    "trunkline.supervision.",
    "trunkline.transports.addresses",
    "trunkline.transports.http",
)
SLOW = ("ipaddress", "urllib.parse", "hashlib", "dataclasses", "json", "jsonschema_rs")


def imported_by(*messages: object) -> list[str]:
    """Run a minimal server on stdio with these messages; return its modules."""
    lines = "".join(json.dumps(message) + "\n" for message in messages)
    command = [sys.executable, "-c", MINIMAL, *SLOW]
    return subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stderr.split()


@pytest.mark.parametrize("feature", features.FEATURES, ids=lambda feature: feature.name)
def test_feature_has_the_handlers_of_its_module(feature: Feature) -> None:
    module: Feature = import_module(f"{features.__name__}.{feature.name}").FEATURE
    assert list(feature.handlers.items()) == list(module.handlers.items())
    assert len(feature.handlers) == len(module.handlers)


def test_minimal_server_imports_no_unused_feature() -> None:
    imported = imported_by(INITIALIZE, INITIALIZED, CALL)
    assert [name for name in imported if name.startswith(UNUSED) or name in SLOW] == []
    assert len(imported) <= MOST_MODULES


def test_list_of_tools_imports_only_their_types() -> None:
    imported = imported_by(INITIALIZE, INITIALIZED, LIST)
    assert [name for name in imported if name.startswith(UNUSED)] == []


def test_request_imports_its_feature() -> None:
    listed = {"jsonrpc": "2.0", "id": 4, "method": "server/discover"}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    imported = imported_by({**listed, "params": {"_meta": meta}})
    assert {"trunkline.protocol.modern", "trunkline.server.features.discovery"} <= set(imported)
