"""Attributes of spans and metrics, without the library."""

from typing import Any

import pytest

from trunkline.facts import CallEnded, Closed, RequestEnded
from trunkline.observers.otel.attributes import (
    MetricName,
    describe_end,
    error_type,
    metric_attributes,
    session_attributes,
    span_name,
)

COMMON: dict[str, Any] = {"connection": 1, "at": 0.0, "request": 7, "code": None, "seconds": 1.0}


def ended(method: str = "tools/call", outcome: str = "ok", **members: Any) -> CallEnded:
    return CallEnded(**{**COMMON, "method": method, "outcome": outcome, **members})


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("http://127.0.0.1:8000", {"server.address": "127.0.0.1", "server.port": 8000}),
        ("https://example.com", {"server.address": "example.com", "server.port": 443}),
        ("ws://example.com/mcp", {"server.address": "example.com", "server.port": 80}),
        ("tcp://[::1]:7000", {"server.address": "::1", "server.port": 7000}),
        ("127.0.0.1:7000", {"server.address": "127.0.0.1", "server.port": 7000}),
        ("/run/server.sock", {"server.address": "/run/server.sock"}),
        ("/usr/bin/python server.py", {}),
        ("python server.py", {}),
        ("http://[invalid", {}),
        ("", {}),
    ],
)
def test_address_of_the_server_is_that_of_the_peer(peer: str, expected: dict[str, object]) -> None:
    request = RequestEnded(**{**COMMON, "method": "ping", "outcome": "ok", "peer": peer})
    assert describe_end(request) == {"jsonrpc.request.id": "7", **expected}


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (ended(), None),
        (ended(outcome="input_required"), None),
        (ended(outcome="task"), None),
        (ended(outcome="failed"), "tool_error"),
        (ended(outcome="timeout", code=-32001), "-32001"),
        (ended(outcome="cancelled"), "cancelled"),
        (ended("subscriptions/listen", "closed"), None),
        (ended("subscriptions/listen", "error", code=-32602), "-32602"),
    ],
)
def test_error_type_tells_how_a_request_has_failed(fact: CallEnded, expected: str | None) -> None:
    assert error_type(fact) == expected


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("tools/call", "add", "tools/call add"),
        ("prompts/get", "greet", "prompts/get greet"),
        ("resources/read", "note://a", "resources/read"),
        ("tools/list", None, "tools/list"),
        ("", None, "_OTHER"),
    ],
)
def test_span_is_named_after_method_and_name(method: str, target: str | None, expected: str) -> None:
    assert span_name(method, target) == expected


def test_name_counts_once_it_was_used_successfully() -> None:
    known: set[MetricName] = set()
    failed = ended(target="add", outcome="error", code=-32602)
    assert "gen_ai.tool.name" not in metric_attributes(failed, known)
    assert metric_attributes(ended(target="add"), known)["gen_ai.tool.name"] == "add"
    assert metric_attributes(failed, known)["gen_ai.tool.name"] == "add"


def test_number_of_names_is_limited() -> None:
    known: set[MetricName] = set()
    named = [metric_attributes(ended(target=f"tool {number}"), known) for number in range(1100)]
    assert sum("gen_ai.tool.name" in attributes for attributes in named) == len(known) == 1000


def test_session_that_was_lost_has_an_error_type() -> None:
    closed = Closed(connection=1, at=0.0, reason="reset", failure="ConnectionResetError", transport="tcp")
    assert session_attributes(closed) == {"network.transport": "tcp", "error.type": "ConnectionResetError"}
