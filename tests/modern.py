"""Handwritten requests of the modern era: with an envelope and, over HTTP, with the headers that repeat it."""

from collections.abc import Mapping
from typing import Any

from tests import official
from tests.unit.transports.http.asgi import Answer, Host, request

REVISION = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
EVERYTHING: Mapping[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
"""The capabilities of a client that supports every request of a server."""

_NAMES = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def meta(capabilities: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """An envelope."""
    return {
        f"{PREFIX}protocolVersion": REVISION,
        f"{PREFIX}clientCapabilities": dict(capabilities or {}),
        f"{PREFIX}clientInfo": {"name": "by hand", "version": "1"},
        **more,
    }


def enveloped(capabilities: Mapping[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    """Params with an envelope."""
    return {**members, "_meta": {**meta(capabilities), **members.get("_meta", {})}}


def headers_of(method: str, params: Mapping[str, Any]) -> dict[str, str]:
    """The headers of a request."""
    named = _NAMES.get(method)
    name = {} if named is None or named not in params else {"mcp_name": str(params[named])}
    return {"mcp_protocol_version": REVISION, "mcp_method": method, **name}


def begin(host: Host, method: str, params: Mapping[str, Any], *, id: Any = 1, **headers: Any) -> Answer:
    """Post a request without waiting for the response body."""
    return host.begin("POST", request(method, params, id=id), **{**headers_of(method, params), **headers})


async def ask(
    host: Host, method: str, params: Mapping[str, Any] | None = None, *, id: Any = 1, **headers: Any
) -> Answer:
    """Post a request, adding an envelope if it has none; return the validated response."""
    given = {} if params is None else dict(params)
    if "_meta" not in given:
        given["_meta"] = meta()
    answer = await begin(host, method, given, id=id, **headers).finished()
    if answer.headers.get("content-type") == "application/json":
        official.check(answer.body, revision=REVISION, sender="server", answers=method)
    return answer


async def result(host: Host, method: str, params: Mapping[str, Any] | None = None, **headers: Any) -> Any:
    """Return the result of a request; fail on an error."""
    answer = await ask(host, method, params, **headers)
    assert answer.status == 200, answer.body
    assert "result" in answer.json, answer.body
    return answer.json["result"]


async def refused(host: Host, method: str, params: Mapping[str, Any] | None = None, **headers: Any) -> tuple[int, int]:
    """Return the status and the error code of a rejected request."""
    answer = await ask(host, method, params, **headers)
    assert answer.json["id"] == headers.get("id", 1), answer.body
    return answer.status, answer.json["error"]["code"]
