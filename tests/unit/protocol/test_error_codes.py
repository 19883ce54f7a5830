"""The codes of errors on the wire."""

from collections.abc import Iterator

import pytest

from trunkline import errors
from trunkline.errors import (
    HeaderMismatch,
    InvalidParams,
    MethodNotFound,
    MissingCapability,
    ProtocolError,
    Refusal,
    ResourceNotFound,
    UnsupportedVersion,
    UrlElicitationRequired,
)
from trunkline.protocol.error_codes import CODES, add_refusal, code_of, error_object
from trunkline.protocol.revisions import Revision
from trunkline.wire.messages import ErrorObject

URL = UrlElicitationRequired([{"url": "https://example.com"}])
STANDARD = {-32700, -32600, -32601, -32602, -32603}


@pytest.mark.parametrize(
    ("error", "codes"),
    [
        (ResourceNotFound("a://b"), [-32002, -32002, -32002, -32002, -32602]),
        (URL, [-32603, -32603, -32603, -32042, -32603]),
        (InvalidParams("no"), [-32602] * 5),
        (MethodNotFound("a"), [-32601] * 5),
        (Refusal(1008, "not now"), [1008] * 5),
        (HeaderMismatch("no"), [-32600] * 4 + [-32020]),
        (MissingCapability("roots"), [-32600] * 4 + [-32021]),
        (UnsupportedVersion("1", ["2026-07-28"]), [-32600] * 4 + [-32022]),
    ],
)
def test_error_code_depends_on_revision(error: ProtocolError, codes: list[int]) -> None:
    assert [code_of(error, revision) for revision in Revision] == codes


def test_error_object_has_message_and_kind() -> None:
    sent = error_object(ResourceNotFound("a://b"), Revision.V2025_11_25)
    data = {"kind": "resource_not_found", "uri": "a://b"}
    assert sent == ErrorObject(-32002, "there is no resource at 'a://b'", data)


def test_error_lists_missing_capabilities_as_declared() -> None:
    error = MissingCapability("sampling.tools", "sampling.context", "roots")
    required = {"sampling": {"tools": {}, "context": {}}, "roots": {}}
    assert error.data == {"kind": "missing_client_capability", "requiredCapabilities": required}
    assert error.message == "the client must declare sampling.tools, sampling.context, roots"


def test_error_lists_supported_versions() -> None:
    error = UnsupportedVersion("1" * 1000, ["2026-07-28", "2025-11-25"])
    said = {"supported": ["2026-07-28", "2025-11-25"], "requested": "1" * 1000}
    assert error.data == {"kind": "unsupported_protocol_version", **said}
    assert error.message == f"protocol version '{'1' * 40}' is not supported"


def protocol_errors(of: type[ProtocolError] = ProtocolError) -> Iterator[type[ProtocolError]]:
    for derived in of.__subclasses__():
        yield derived
        yield from protocol_errors(derived)


@pytest.mark.parametrize(
    "error", [error for error in protocol_errors() if error.__module__.startswith(f"{errors.__name__}.")]
)
def test_default_code_is_json_rpc_or_has_row(error: type[ProtocolError]) -> None:
    assert error.code in STANDARD or error.kind in CODES


def test_rows_cover_all_revisions_newest_first() -> None:
    for rows in CODES.values():
        since = [revision for revision, _ in rows]
        assert since == sorted(since, reverse=True)
        assert since[-1] is min(Revision)


@pytest.mark.row("Q04")
def test_data_of_a_refusal_gets_its_reason_once() -> None:
    refused = add_refusal(-32600, {"kind": "access_denied"})
    assert refused["refusal"] == {
        "code": 1005,
        "name": "permission_denied",
        "hint": "ask the operator of the server for access",
    }
    assert add_refusal(-32600, {"kind": "access_denied", "refusal": 7}) == {"kind": "access_denied", "refusal": 7}
    assert "hint" not in add_refusal(-32600, {"kind": "too_many_sessions"})["refusal"]  # it states settings
    for code, data in ((1005, {"kind": "access_denied"}), (-32600, "access_denied"), (-32600, {"kind": "other"})):
        assert add_refusal(code, data) == data
