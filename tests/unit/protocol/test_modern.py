"""Modern requests: the order of checks, and the envelope of their results."""

import json
from typing import Any

import pytest
from msgspec import UNSET
from tests import official
from tests.modern import PREFIX, REVISION, meta

from trunkline.errors import ProtocolError
from trunkline.protocol.headers import RoutingHeaders
from trunkline.protocol.modern import CacheHint, ModernProtocol, unwrap_result, wrap_result
from trunkline.protocol.types import (
    CallToolResult,
    Empty,
    Implementation,
    InputRequest,
    InputRequiredResult,
    ListToolsResult,
    TextContent,
)
from trunkline.wire import codec
from trunkline.wire.messages import Request

HEADERS = {"mcp-protocol-version": REVISION, "mcp-method": "tools/call", "mcp-name": "add"}
INFO = f"{PREFIX}serverInfo"


@pytest.fixture
def stateless() -> ModernProtocol:
    return ModernProtocol(Implementation("s", "1"), lambda: {"tools": {}, "logging": {}})


def call(method: str = "tools/call", said: Any = None, **members: Any) -> Request:
    params = {"name": "add", **members, "_meta": meta() if said is None else said}
    return Request(1, method, codec.to_raw({name: value for name, value in params.items() if value is not UNSET}))


def why(stateless: ModernProtocol, request: Request, headers: dict[str, str] | None = None) -> int:
    with pytest.raises(ProtocolError) as refused:
        stateless.validate_request(request, None if headers is None else RoutingHeaders.read(headers))
    return refused.value.code


# --- requests ------------------------------------------------------------------------------------


def test_request_with_envelope_is_accepted(stateless: ModernProtocol) -> None:
    for headers in (None, RoutingHeaders.read(HEADERS)):
        admitted = stateless.validate_request(call(), headers)
        assert admitted is not None
        assert (admitted[0].name, admitted[1].version) == ("tools/call", REVISION)


def test_request_without_envelope_is_handshake_era(stateless: ModernProtocol) -> None:
    older = call(said={})
    assert stateless.validate_request(older, None) is None


def test_first_of_several_faults_is_reported(stateless: ModernProtocol) -> None:
    unknown = {**meta(), f"{PREFIX}protocolVersion": "2030-01-01"}
    wrong = {**HEADERS, "mcp-method": "tools/list"}
    later = {**HEADERS, "mcp-protocol-version": "2030-01-01", "mcp-method": "no/such"}
    assert why(stateless, call("no/such", said={}), wrong) == -32602  # the envelope
    assert why(stateless, call("no/such", said=unknown), wrong) == -32020  # headers that differ
    assert why(stateless, call("no/such", said=unknown), later) == -32022  # the revision
    assert why(stateless, call("no/such"), {**HEADERS, "mcp-method": "no/such"}) == -32601  # the method


@pytest.mark.row("HTT-46", "HTT-47", "HTT-48")
@pytest.mark.parametrize("name", ["mcp-protocol-version", "mcp-method", "mcp-name"])
@pytest.mark.parametrize("value", [None, "other", ""])
def test_missing_or_different_header_is_refused(stateless: ModernProtocol, name: str, value: str | None) -> None:
    headers = {other: text for other, text in {**HEADERS, name: value}.items() if text is not None}
    assert why(stateless, call(), headers) == -32020


@pytest.mark.row("VER-05")
@pytest.mark.parametrize("version", ["2025-11-25", "1.0", "2030-01-01"])
def test_envelope_with_handshake_revision_is_refused(stateless: ModernProtocol, version: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        stateless.validate_request(call(said={**meta(), f"{PREFIX}protocolVersion": version}), None)
    assert (refused.value.code, refused.value.data["requested"]) == (-32022, version)
    assert refused.value.data["supported"] == stateless.discover_result()["supported_versions"]
    assert REVISION in refused.value.data["supported"]


@pytest.mark.row("VER-10")
@pytest.mark.parametrize(
    "method",
    [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "sampling/createMessage",
        "notifications/cancelled",
        "prompts/list",  # of which this server has none
    ],
)
def test_unavailable_method_is_not_found(stateless: ModernProtocol, method: str) -> None:
    assert why(stateless, call(method)) == -32601


# --- results -------------------------------------------------------------------------------------


def dressed(stateless: ModernProtocol, result: Any, **options: Any) -> Any:
    return json.loads(bytes(stateless.encode_result(result, **options)))


def valid(result: Any, method: str) -> Any:
    official.check({"jsonrpc": "2.0", "id": 1, "result": result}, revision=REVISION, sender="server", answers=method)
    return result


def test_result_has_type_and_server_info(stateless: ModernProtocol) -> None:
    assert dressed(stateless, Empty()) == {"resultType": "complete", "_meta": {INFO: {"name": "s", "version": "1"}}}
    told = valid(dressed(stateless, CallToolResult([TextContent("x")])), "tools/call")
    assert told["content"] == [{"type": "text", "text": "x"}]


def test_handler_metadata_is_not_mutated(stateless: ModernProtocol) -> None:
    result = CallToolResult([TextContent("x")], meta={"own/key": 1})
    for _ in range(2):
        assert dressed(stateless, result)["_meta"] == {INFO: {"name": "s", "version": "1"}, "own/key": 1}


@pytest.mark.row("CCH-01")
def test_cacheable_result_has_ttl_and_scope(stateless: ModernProtocol) -> None:
    told = valid(dressed(stateless, ListToolsResult([]), hint=CacheHint(1.5, "public")), "tools/list")
    assert (told["ttlMs"], told["cacheScope"]) == (1500, "public")
    told = dressed(stateless, ListToolsResult([]), hint=CacheHint())
    assert (told["ttlMs"], told["cacheScope"]) == (0, "private")


def test_input_required_result_is_not_cacheable(stateless: ModernProtocol) -> None:
    asking = InputRequiredResult({"a": InputRequest("roots/list")}, "opaque")
    told = valid(dressed(stateless, asking, hint=CacheHint(5, "public")), "resources/read")
    assert (told["resultType"], told.keys() & {"ttlMs", "cacheScope"}) == ("input_required", set())


@pytest.mark.parametrize("value", [3, [1, 2], "text", None, True])
def test_unwrapped_value_is_sent_directly(stateless: ModernProtocol, value: Any) -> None:
    result = CallToolResult([TextContent("x")], {"result": value})
    assert dressed(stateless, result, unwrap=True).get("structuredContent") == value
    assert dressed(stateless, result)["structuredContent"] == {"result": value}


@pytest.mark.parametrize("content", [None, {"other": 1}, 5])
def test_result_without_wrapper_is_unchanged(stateless: ModernProtocol, content: Any) -> None:
    told = dressed(stateless, CallToolResult([TextContent("x")], content), unwrap=True)
    assert told.get("structuredContent") == content


def test_wrap_and_unwrap_are_inverse() -> None:
    bare, valued = CallToolResult([]), CallToolResult([], 7, meta={"a": 1})
    wrapped = wrap_result(valued)
    assert wrapped.structured_content == {"result": 7}
    assert unwrap_result(wrapped) == valued
    assert wrap_result(bare) is unwrap_result(bare) is bare
