"""The schema checks: they accept valid messages and reject broken ones, in every revision."""

import json
from typing import Any

import pytest
from tests.official import Sender, check

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
HANDSHAKE_REVISIONS = REVISIONS[:-1]
MODERN = REVISIONS[-1]

TOOL = {"name": "add", "inputSchema": {"type": "object"}}
TEXT = {"type": "text", "text": "hello"}
IMPLEMENTATION = {"name": "demo", "version": "1.0"}
# Members that every result and request has from 2026-07-28 on; the older revisions do not have them.
COMPLETE = {"resultType": "complete"}
CACHED = {**COMPLETE, "ttlMs": 0, "cacheScope": "private"}
ENVELOPE = {
    "_meta": {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": IMPLEMENTATION,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
}


def request(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"id": 1, **notification(method, params)}


def notification(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})


def result(content: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "result": content}


def error(code: Any, **members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "error": {"code": code, "message": "no"}, **members}


def refused(message: Any, because: str, *, revision: str, sender: Sender = "server", answers: Any = None) -> None:
    with pytest.raises(AssertionError, match=because):
        check(message, revision=revision, sender=sender, answers=answers)


@pytest.mark.parametrize("revision", REVISIONS)
class TestEveryRevision:
    def test_valid_messages_of_a_server_pass(self, revision: str) -> None:
        check(result({"tools": [TOOL], **CACHED}), revision=revision, sender="server", answers="tools/list")
        check(result({"content": [TEXT], **COMPLETE}), revision=revision, sender="server", answers="tools/call")
        check(notification("notifications/tools/list_changed"), revision=revision, sender="server")
        progress = {"progressToken": "t", "progress": 1, "total": 2.5}
        check(notification("notifications/progress", progress), revision=revision, sender="server")
        check(error(-32601, id="seven"), revision=revision, sender="server")

    def test_valid_messages_of_a_client_pass(self, revision: str) -> None:
        check(request("tools/list", ENVELOPE), revision=revision, sender="client")
        check(request("tools/call", {"name": "add", **ENVELOPE}), revision=revision, sender="client")
        check(notification("notifications/cancelled", {"requestId": 1}), revision=revision, sender="client")

    def test_message_may_be_bytes(self, revision: str) -> None:
        check(json.dumps(error(-32601, id=1)).encode(), revision=revision, sender="server")

    def test_invalid_json_is_rejected(self, revision: str) -> None:
        refused(b"{", "not JSON", revision=revision)
        refused(b"7", "a message is an object", revision=revision)
        refused(b'{"jsonrpc": "2.0", "id": NaN, "method": "ping"}', "not JSON", revision=revision)

    def test_tool_without_input_schema_is_rejected(self, revision: str) -> None:
        broken = result({"tools": [{"name": "add"}], **CACHED})
        refused(broken, "inputSchema", revision=revision, answers="tools/list")

    def test_result_without_content_is_rejected(self, revision: str) -> None:
        refused(result({**COMPLETE}), "content", revision=revision, answers="tools/call")

    def test_error_names_only_the_missing_text(self, revision: str) -> None:
        broken = result({"content": [{"type": "text"}], **COMPLETE})
        refused(broken, r"content/0(/text)?: [^;]*\n", revision=revision, answers="tools/call")

    def test_progress_without_token_is_rejected(self, revision: str) -> None:
        broken = notification("notifications/progress", {"progress": 1})
        refused(broken, "progressToken", revision=revision)

    def test_log_message_without_data_is_rejected(self, revision: str) -> None:
        broken = notification("notifications/message", {"level": "info"})
        refused(broken, "data", revision=revision)

    def test_method_of_the_other_side_is_rejected(self, revision: str) -> None:
        refused(request("tools/list", ENVELOPE), "a server never sends", revision=revision)
        refused(
            result({"tools": []}), "a client is never asked", revision=revision, sender="client", answers="tools/list"
        )

    def test_unknown_method_is_rejected(self, revision: str) -> None:
        refused(request("tools/destroy"), "never sends the request", revision=revision, sender="client")

    def test_result_without_request_is_rejected(self, revision: str) -> None:
        refused(result({"tools": []}), "no known request", revision=revision)
        refused(result({"tools": []}), "no known request", revision=revision, answers={2: "tools/list"})

    def test_request_of_a_result_is_found_by_id(self, revision: str) -> None:
        check(result({"tools": [], **CACHED}), revision=revision, sender="server", answers={1: "tools/list"})

    def test_error_for_unreadable_request_has_no_id(self, revision: str) -> None:
        check(error(-32700), revision=revision, sender="server")
        check(error(-32700, id=None), revision=revision, sender="server")
        refused(error("-32700"), "code", revision=revision)

    def test_id_must_be_string_or_integer(self, revision: str) -> None:
        refused(error(-32603, id=1.5), "id", revision=revision)

    def test_response_needs_exactly_one_outcome(self, revision: str) -> None:
        refused(error(-32603, id=1, result={}), "exactly one of", revision=revision)
        refused({"jsonrpc": "2.0", "id": 1}, "exactly one of", revision=revision)

    def test_other_jsonrpc_version_is_rejected(self, revision: str) -> None:
        refused({**notification("notifications/tools/list_changed"), "jsonrpc": "1.0"}, "2.0", revision=revision)


@pytest.mark.parametrize("revision", HANDSHAKE_REVISIONS)
class TestHandshakeRevisions:
    def test_valid_handshake_is_accepted(self, revision: str) -> None:
        asked = {"protocolVersion": revision, "capabilities": {}, "clientInfo": IMPLEMENTATION}
        check(request("initialize", asked), revision=revision, sender="client")
        answered = {"protocolVersion": revision, "capabilities": {"tools": {}}, "serverInfo": IMPLEMENTATION}
        check(result(answered), revision=revision, sender="server", answers="initialize")
        check(notification("notifications/initialized"), revision=revision, sender="client")

    def test_initialize_result_without_server_info_is_rejected(self, revision: str) -> None:
        answered = {"protocolVersion": revision, "capabilities": {}}
        refused(result(answered), "serverInfo", revision=revision, answers="initialize")

    def test_valid_sampling_exchange_is_accepted(self, revision: str) -> None:
        message = {"role": "user", "content": TEXT}
        asked = {"messages": [message], "maxTokens": 10}
        check(request("sampling/createMessage", asked), revision=revision, sender="server")
        answered = {"role": "assistant", "content": TEXT, "model": "m"}
        check(result(answered), revision=revision, sender="client", answers="sampling/createMessage")

    def test_sampling_without_max_tokens_is_rejected(self, revision: str) -> None:
        refused(request("sampling/createMessage", {"messages": []}), "maxTokens", revision=revision)

    def test_empty_result_with_members_is_rejected(self, revision: str) -> None:
        check(result({}), revision=revision, sender="server", answers="ping")
        check(result({"_meta": {}}), revision=revision, sender="client", answers="ping")
        refused(result({"pong": True}), "pong", revision=revision, answers="ping")


@pytest.mark.parametrize("revision", REVISIONS)
def test_only_2025_03_26_has_batches(revision: str) -> None:
    batch = [result({"tools": [TOOL]}), {**result({"content": [TEXT]}), "id": 2}]
    answers = {1: "tools/list", 2: "tools/call"}
    if revision == "2025-03-26":
        check(batch, revision=revision, sender="server", answers=answers)
        refused([*batch, error("x", id=3)], "code", revision=revision, answers=answers)
        refused([], "never empty", revision=revision)
    else:
        refused(batch, "no batches", revision=revision, answers=answers)


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
def test_elicitation_form_is_flat(revision: str) -> None:
    form = {"type": "object", "properties": {"name": {"type": "string"}}}
    check(
        request("elicitation/create", {"message": "Who?", "requestedSchema": form}), revision=revision, sender="server"
    )
    nested = {"type": "object", "properties": {"name": {"type": "object"}}}
    broken = request("elicitation/create", {"message": "Who?", "requestedSchema": nested})
    refused(broken, "requestedSchema/properties/name", revision=revision)


def test_2025_11_25_allows_a_task_as_call_result() -> None:
    now = "2025-11-25T10:30:00Z"
    task = {"taskId": "t", "status": "working", "createdAt": now, "lastUpdatedAt": now, "ttl": None}
    check(result({"task": task}), revision="2025-11-25", sender="server", answers="tools/call")
    refused(result({"task": {"taskId": "t"}}), "status", revision="2025-11-25", answers="tools/call")


class TestModernRevision:
    def test_input_required_result_is_accepted(self) -> None:
        question = {
            "method": "elicitation/create",
            "params": {"mode": "form", "message": "Who?", "requestedSchema": {"type": "object", "properties": {}}},
        }
        waiting = {"resultType": "input_required", "inputRequests": {"who": question}}
        check(result(waiting), revision=MODERN, sender="server", answers="tools/call")
        refused(result(waiting), "tools", revision=MODERN, answers="tools/list")

    def test_result_needs_a_result_type(self) -> None:
        refused(result({"content": [TEXT]}), "resultType", revision=MODERN, answers="tools/call")

    def test_request_needs_an_envelope(self) -> None:
        refused(request("tools/list", {}), "_meta", revision=MODERN, sender="client")

    def test_server_requests_are_rejected(self) -> None:
        refused(request("roots/list"), "a server never sends", revision=MODERN)
