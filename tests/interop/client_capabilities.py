"""The probes of capabilities; with those of methods, all probes. Undeclared capabilities are not used."""

import json
from typing import Any

import pytest
from tests.interop.client_probes import INVALID_PARAMS, METHOD_NOT_FOUND, MODERN, Probe, ProbeContext
from tests.interop.client_probes import PROBES as METHODS
from tests.interop.host import Host
from tests.interop.matrix import declared

from trunkline.errors import CapabilityNotSupported, InputFailed, MethodNotFound, MisuseError, PeerError
from trunkline.protocol.meta import CLIENT_CAPABILITIES


def server_capability(path: str) -> Probe:
    """Check that the client knows the server's capability; the probes of its methods test its meaning."""

    async def knows(line: ProbeContext) -> None:
        assert path in declared(dict(line.client.capabilities))

    return knows


def client_capability(path: str, tool: str, method: str, **arguments: Any) -> Probe:
    """Check that the server knows the client's capability, and that a client without it does not act on it."""

    async def holds(line: ProbeContext) -> None:
        assert path in paths(json.loads(await line.host.call("client_capabilities")))
        absent = "elicitation.form" if path == "elicitation" else path.removesuffix(".listChanged")
        other = line.without[absent]
        assert path not in paths(capabilities_of(other, line.modern))
        with pytest.raises(
            (InputFailed, PeerError) if line.modern else PeerError
        ):  # some send the request all the same
            await other.call(tool, **arguments)
        for request in other.asked(method):  # the client may get the request all the same
            [answer] = other.answers_to(request["id"], by="client")
            assert answer["error"]["code"] in {METHOD_NOT_FOUND, INVALID_PARAMS}

    return holds


def capabilities_of(host: Host, modern: bool) -> dict[str, Any]:
    """The capabilities that a client has declared: in its handshake, or with each request."""
    if not modern:
        return host.sent("initialize")[0]["params"]["capabilities"]
    return host.sent("server/discover")[0]["params"]["_meta"][CLIENT_CAPABILITIES]


def paths(capabilities: dict[str, Any]) -> set[str]:
    """All declared paths and their parents."""
    whole = [path.split(".") for path in declared(capabilities)]
    return {".".join(parts[:length]) for parts in whole for length in range(1, len(parts) + 1)}


OF_SERVERS = (
    "tools.listChanged",
    "resources.subscribe",
    "resources.listChanged",
    "prompts.listChanged",
    "logging",
    "completions",
)
PROBES = {
    **METHODS,
    **{f"server {path}": server_capability(path) for path in OF_SERVERS},
    "client sampling": client_capability("sampling", "sample", "sampling/createMessage", prompt="hello"),
    "client roots": client_capability("roots", "list_roots", "roots/list"),
    "client roots.listChanged": client_capability("roots.listChanged", "list_roots", "roots/list"),
    "client elicitation": client_capability("elicitation", "elicit", "elicitation/create", message="accept"),
    "client elicitation.form": client_capability("elicitation.form", "elicit", "elicitation/create", message="accept"),
    "client elicitation.url": client_capability(
        "elicitation.url", "elicit_url", "elicitation/create", message="accept"
    ),
}


async def sends_only_declared_methods(host: Host, *said: str) -> None:
    """Check that the client rejects methods of undeclared capabilities before sending; only these methods are sent."""
    client = host.client
    modern = client.revision == MODERN
    for request in (
        client.list_tools(),
        client.call_tool("add"),
        client.list_resources(),
        client.list_resource_templates(),
        client.read_resource("test://static"),
        client.subscribe("test://static"),
        client.unsubscribe("test://static"),
        client.list_prompts(),
        client.get_prompt("greet"),
        client.complete("prompt", "greet", "who"),
        *([] if modern else [client.set_log_level("debug")]),  # it causes no later request
    ):
        with pytest.raises((CapabilityNotSupported, MethodNotFound)):
            await request
    with pytest.raises(MisuseError):
        await client.set_roots([])
    await client.ping()
    sent = [entry["message"]["method"] for wire in host.tap.wires for entry in wire if entry["sender"] == "client"]
    assert tuple(sent) == said
