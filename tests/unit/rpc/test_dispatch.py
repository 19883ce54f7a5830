"""Dispatch of a request to its handler, and conversion of exceptions to errors."""

from time import monotonic
from typing import Any

import pytest
from msgspec import UNSET, Raw

from trunkline.config import Settings
from trunkline.errors import (
    CapabilityNotSupported,
    InternalError,
    InvalidArguments,
    InvalidParams,
    MethodNotFound,
    PeerError,
    ProtocolError,
    Refusal,
    RequestTimeout,
    ToolError,
    ToolNotFound,
    UrlElicitationRequired,
)
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.methods import find_method
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import CallToolResult
from trunkline.registry.results import BadResult
from trunkline.rpc.call_timing import CallTiming
from trunkline.rpc.dispatch import Dispatcher, Feature
from trunkline.rpc.failures import build_failure
from trunkline.server.features import FEATURES

NEWEST, OLD = Revision.V2025_11_25, Revision.V2025_06_18
SETTINGS = Settings(max_calls=7)


def call_of(method: str) -> IncomingRequest:
    row = find_method(method)
    assert row is not None
    return IncomingRequest(id=1, method=row, started=0)


CALL, GET = call_of("tools/call"), call_of("prompts/get")


def dispatch(method: str, params: Any) -> Any:
    feature = Feature("spy", {method: lambda connection, call, typed: typed})
    return Dispatcher([feature]).dispatch(None, call_of(method), params)  # type: ignore[arg-type]


def test_params_are_decoded() -> None:
    assert dispatch("tools/list", Raw(b'{"cursor":"c"}')).cursor == "c"
    assert dispatch("tools/list", UNSET).cursor is None


@pytest.mark.parametrize(
    ("params", "where"),
    [(b"{}", "$"), (b'{"name":1}', "$.name"), (b"[]", "$"), (b'{"name":"x","arguments":[]}', "$.arguments")],
)
def test_invalid_params_name_the_location(params: bytes, where: str) -> None:
    with pytest.raises(InvalidParams) as refused:
        dispatch("prompts/get", Raw(params))
    assert refused.value.data["errors"][0]["path"] == where
    assert refused.value.message.startswith("params of prompts/get: ")


def test_params_that_were_decoded_early_are_not_decoded_again() -> None:
    dispatcher = Dispatcher([Feature("spy", {"prompts/get": lambda connection, call, typed: typed})])
    call = call_of("prompts/get")
    call.timing = CallTiming(UNSET, monotonic, None)
    call.timing.params, target = dispatcher.decode_early(call, Raw(b'{"name":"greet"}'))
    early = call.timing.params
    assert target == "greet"
    assert dispatcher.dispatch(None, call, Raw(b"{}")) is early
    assert call.timing.params is None


@pytest.mark.parametrize(
    ("method", "params"),
    [("prompts/get", Raw(b"{}")), ("prompts/get", UNSET), ("tools/list", Raw(b"{}")), ("tools/call", Raw(b"{}"))],
)
def test_only_valid_params_with_a_target_are_decoded_early(method: str, params: Any) -> None:
    feature = Feature("spy", dict.fromkeys(("prompts/get", "tools/list"), lambda connection, call, typed: typed))
    assert Dispatcher([feature]).decode_early(call_of(method), params) == (None, None)


@pytest.mark.row("A21")
def test_method_without_handler_is_not_found() -> None:
    dispatcher = Dispatcher(FEATURES[:1])
    assert dispatcher.has_handler("ping")
    assert not dispatcher.has_handler("tools/list")
    with pytest.raises(MethodNotFound):
        dispatcher.dispatch(None, call_of("tools/list"), UNSET)  # type: ignore[arg-type]


def test_feature_cannot_handle_unknown_methods() -> None:
    with pytest.raises(MethodNotFound):
        Dispatcher([Feature("odd", {"no/such": lambda connection, call, params: None})])


@pytest.mark.parametrize("method", [method for feature in FEATURES for method in feature.handlers])
def test_features_handle_methods_of_the_specification(method: str) -> None:
    assert Dispatcher(FEATURES).has_handler(method)


# --- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.row("X11")
@pytest.mark.parametrize("error", [ValueError("secret"), SystemExit("secret"), KeyError("secret")])
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("prompts/get", "prompt_render_failed"),
        ("completion/complete", "completion_failed"),
        ("resources/subscribe", "subscription_failed"),
        ("resources/read", "internal_error"),
    ],
)
def test_unexpected_error_becomes_a_reference(error: BaseException, method: str, kind: str) -> None:
    failure = build_failure(error, call_of(method), NEWEST, SETTINGS)
    assert isinstance(failure.reply, InternalError)
    assert failure.reference is not None
    assert failure.reference in failure.reply.message
    assert failure.reply.data == {"kind": kind, "reference": failure.reference}
    assert "secret" not in failure.reply.message


@pytest.mark.row("X11")
def test_failing_tool_returns_an_error_result() -> None:
    failure = build_failure(ValueError("secret"), CALL, NEWEST, SETTINGS)
    assert isinstance(failure.reply, CallToolResult)
    assert failure.reply.is_error
    assert "secret" not in str(failure.reply)
    assert failure.reply.meta == {"trunkline/error": {"kind": "tool_execution_failed", "reference": failure.reference}}


def test_each_failure_has_its_own_reference() -> None:
    assert len({build_failure(ValueError(), CALL, NEWEST, SETTINGS).reference for _ in range(100)}) == 100


def test_bad_result_is_hidden_as_internal_error() -> None:
    failure = build_failure(BadResult("secret"), CALL, NEWEST, SETTINGS)
    assert isinstance(failure.reply, CallToolResult)
    assert failure.reference is not None
    assert "secret" not in str(failure.reply)


@pytest.mark.row("X09")
def test_invalid_arguments_are_a_result_since_2025_11_25() -> None:
    error = InvalidArguments("bad", errors=[{"path": "$.a"}])
    newest = build_failure(error, CALL, NEWEST, SETTINGS)
    assert isinstance(newest.reply, CallToolResult)
    assert newest.reply.meta is not None
    assert newest.reply.meta["trunkline/error"]["errors"] == [{"path": "$.a"}]
    assert build_failure(error, CALL, OLD, SETTINGS).reply is error
    assert build_failure(error, GET, NEWEST, SETTINGS).reply is error


def test_tool_refusal_carries_its_reason() -> None:
    error = Refusal(1003, "not now", name="rate_limited", hint="wait", retry_after=1.5)
    failure = build_failure(error, CALL, NEWEST, SETTINGS)
    assert isinstance(failure.reply, CallToolResult)
    assert failure.reply.meta is not None
    assert failure.reply.meta["trunkline/refusal"] == {
        "code": 1003,
        "name": "rate_limited",
        "hint": "wait",
        "retryAfterMs": 1500,
    }
    assert build_failure(error, GET, NEWEST, SETTINGS).reply is error


def test_hint_of_refusal_states_the_settings() -> None:
    error = Refusal(1004)
    failure = build_failure(error, CALL, NEWEST, SETTINGS)
    assert isinstance(failure.reply, CallToolResult)
    assert failure.reply.meta is not None
    assert "runs 7 at a time" in failure.reply.meta["trunkline/refusal"]["hint"]
    reply = build_failure(error, GET, NEWEST, SETTINGS).reply
    assert isinstance(reply, Refusal)
    assert "runs 7 at a time" in reply.data["hint"]
    assert "hint" not in error.data  # another server may raise the same instance


@pytest.mark.parametrize(
    "error", [UrlElicitationRequired([]), ToolNotFound("x"), ProtocolError("mine"), CapabilityNotSupported("x", "y")]
)
@pytest.mark.parametrize("call", [CALL, GET])
def test_protocol_error_is_sent_unchanged(error: ProtocolError, call: IncomingRequest) -> None:
    assert build_failure(error, call, NEWEST, SETTINGS).reply is error
    assert build_failure(error, call, NEWEST, SETTINGS).reference is None


@pytest.mark.parametrize(
    "error", [ToolError("read me"), PeerError(-1, "read me"), InternalError("read me"), RequestTimeout("read me", 1)]
)
def test_tool_error_is_a_result_for_tools_only(error: Any) -> None:
    as_result = build_failure(error, CALL, NEWEST, SETTINGS).reply
    assert isinstance(as_result, CallToolResult)
    assert as_result.is_error
    assert "read me" in as_result.content[0].text  # type: ignore[union-attr]
    as_error = build_failure(error, GET, NEWEST, SETTINGS).reply
    assert isinstance(as_error, InternalError)
    assert "read me" in as_error.message


@pytest.mark.row("P26")
@pytest.mark.parametrize("data", [[1, 2], "why", 0])
def test_data_of_a_failed_tool_may_be_any_json(data: Any) -> None:
    answer = build_failure(InternalError("broken", data=data), CALL, NEWEST, SETTINGS).reply
    assert isinstance(answer, CallToolResult)
    assert answer.meta == {"trunkline/error": data}
