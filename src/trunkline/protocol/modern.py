"""Server side of the modern era: validation of requests with an envelope, and encoding of results.

The specification prescribes the order of the checks, and with it the error for a request with several faults: envelope,
headers, revision, method. A result contains its type and the server info; lists and contents also have a cache lifetime
and scope.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast

from msgspec import UNSET, Raw, Struct, field
from msgspec.structs import replace

from trunkline.errors import CapabilityNotSupported, HeaderMismatch, MethodNotFound, UnsupportedVersion
from trunkline.protocol import headers as mirror
from trunkline.protocol.capabilities import Capabilities, restrict_to_revision
from trunkline.protocol.envelope import Envelope, read_params
from trunkline.protocol.legal_methods import required_capabilities
from trunkline.protocol.meta import SERVER_INFO
from trunkline.protocol.methods import Method, Side, methods_for
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import MODERN_REVISIONS, SUPPORTED_VERSIONS, Revision
from trunkline.protocol.types import CallToolResult, ContentBlock, Implementation, InputRequiredResult, Params, Result
from trunkline.protocol.types.tasks_extension import DetailedTask, TaskCreated
from trunkline.wire import codec
from trunkline.wire.messages import Request

__all__ = ["CacheHint", "CacheScope", "ModernProtocol", "check_envelope", "unwrap_result", "wrap_result"]

CacheScope = Literal["public", "private"]
_CACHEABLE_METHODS: Final = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    }
)  # methods whose results have a cache lifetime

_COMPLETE: Final = b"complete"
_WITH_META: Final = (Result, Params, DetailedTask)
_KINDS: Final[Mapping[type, bytes]] = {InputRequiredResult: b"input_required", TaskCreated: b"task"}
_MODERN_VERSIONS: Final = frozenset(revision.value for revision in MODERN_REVISIONS)
_decode_object: Final = codec.json_decoder(dict[str, Any])
_METHODS_BY_NAME: Final = {row.name: row for row in methods_for(Revision.V2026_07_28, Side.SERVER) if row.is_request}


class CacheHint(Struct, frozen=True):
    """Cache lifetime of a result, and whether shared caches may store it."""

    ttl: float = 0.0  # seconds
    scope: CacheScope = "private"


_NOT_CACHED: Final = CacheHint()


class _CompleteToolResult(Struct, rename="camel", gc=False):
    """A result of `tools/call` with the members that begin every result."""

    result_type: str
    meta: Raw = field(name="_meta")
    content: list[ContentBlock]
    structured_content: Any
    is_error: bool


class ModernProtocol:
    """Validates requests with an envelope and encodes their results."""

    def __init__(
        self,
        info: Implementation,
        capabilities: Callable[[], Capabilities],
        find_custom: Callable[[str], Method | None] = lambda _: None,
    ) -> None:
        """`capabilities` returns the current capabilities of the server, `find_custom` a method outside of the
        specification that the server handles."""
        self._find_custom = find_custom
        self.capabilities = capabilities
        self._offered_for: Capabilities | None = None  # the capabilities for which the methods below are offered
        self._offered: Mapping[str, Method] = {}
        self._info = codec.to_raw(info)
        self._plain_meta = codec.to_raw({SERVER_INFO: self._info})
        self._plain_head = _encode_head(b"complete", bytes(self._plain_meta))

    # --- requests ------------------------------------------------------------------------------

    def validate_request(
        self, message: Request, headers: mirror.RoutingHeaders | None, envelope: Envelope | None = None
    ) -> tuple[Method, Envelope] | None:
        """Return the method and the envelope of a request; None for a request of the handshake era. Raise a
        `ProtocolError` for an invalid request. `headers` are those of an HTTP transport; `envelope` is that of a
        request for which the transport has called `check_envelope`."""
        envelope = envelope or check_envelope(message, headers)
        if envelope is None:
            return None
        capabilities = self.capabilities()
        if self._offered_for is not capabilities:
            self._offered_for, self._offered = capabilities, _offered_methods(capabilities)
        row = self._offered.get(message.method) or self._find_custom(message.method)
        if row is None or not row.is_request or envelope.version not in _MODERN_VERSIONS:
            raise _refusal(envelope.version, message.method)
        return row, envelope

    # --- results -------------------------------------------------------------------------------

    def discover_result(self) -> dict[str, Any]:
        """Return the supported revisions, and the capabilities in the modern ones."""
        return {
            "supported_versions": list(SUPPORTED_VERSIONS),
            "capabilities": restrict_to_revision(self.capabilities(), Revision.V2026_07_28),
        }

    @staticmethod
    def default_hint(method: str) -> CacheHint | None:
        """Return the hint for a result that states none; None if the results of the method have no cache lifetime."""
        return _NOT_CACHED if method in _CACHEABLE_METHODS else None

    def complete_tool_result(self, result: CallToolResult, *, unwrap: bool) -> Struct:
        """Return a result without metadata of its own in the form of the modern era, to be encoded with its response.
        `unwrap` is as for `encode_result`."""
        value: Any = result.structured_content
        if unwrap and isinstance(value, dict) and "result" in value:
            value = value["result"]  # pyright: ignore[reportUnknownVariableType] - `cast` is a call
        return _CompleteToolResult("complete", self._plain_meta, result.content, value, result.is_error)

    def encode_result(self, result: Any, *, hint: CacheHint | None = None, unwrap: bool = False) -> Raw:
        """Encode a result. `unwrap`: send structured content without the wrapper object of older revisions."""
        if unwrap and isinstance(result, CallToolResult):
            result = unwrap_result(result)
        kind, meta = _KINDS.get(cast("Any", type(result)), _COMPLETE), self._plain_meta
        if isinstance(result, _WITH_META) and result.meta is not None:
            meta = codec.to_raw({SERVER_INFO: self._info, **result.meta})
            result = replace(result, meta=None)  # a copy, since a handler may return one object many times
        elif (own := _plain_meta(result)) is not None:
            meta = codec.to_raw({SERVER_INFO: self._info, **own})
            result = {name: value for name, value in cast("Any", result).items() if name != "_meta"}
        plain = kind is _COMPLETE and meta is self._plain_meta
        head = self._plain_head if plain else _encode_head(kind, bytes(meta))
        body = codec.to_json(project(result, Revision.V2026_07_28))
        if hint is not None and kind is _COMPLETE:
            head += b',"ttlMs":%d,"cacheScope":"%b"' % (round(hint.ttl * 1000), hint.scope.encode())
        return Raw(head + (b"}" if body == b"{}" else b"," + body[1:]))


def _plain_meta(result: Any) -> Mapping[str, Any] | None:
    """Return the metadata in the plain result of a custom method, which may be encoded; None if there is none."""
    found: Any = cast("dict[str, Any]", result).get("_meta") if isinstance(result, dict) else None
    return _decode_object(found) if isinstance(found, Raw) else found


def _encode_head(kind: bytes, meta: bytes) -> bytes:
    """Return the members that begin every result, without the closing brace."""
    return b'{"resultType":"%b","_meta":%b' % (kind, meta)


def check_envelope(message: Request, headers: mirror.RoutingHeaders | None) -> Envelope | None:
    """Return the envelope of a request; None for a request of the handshake era. Raise a `ProtocolError` for an invalid
    envelope, and for one that contradicts the headers of an HTTP transport."""
    named = None if headers is None else headers.version
    envelope, params = read_params(message.params, expected=named in _MODERN_VERSIONS)
    if envelope is None or headers is None:
        return envelope
    version, method = envelope.version, message.method
    if named != version and (named is None or named.strip() != version):
        raise HeaderMismatch(f"MCP-Protocol-Version is {named!r}, and the body says {version!r}")
    member = mirror.NAME_MEMBERS.get(method)
    name = None if member is None else getattr(params, member)
    if not mirror.match_exactly(method, name, headers):
        why = mirror.find_mismatch(method, name if isinstance(name, str) else None, headers)
        if why is not None:
            raise HeaderMismatch(why)
    return envelope


def _offered_methods(capabilities: Capabilities) -> dict[str, Method]:
    """Return the methods that a server with these capabilities offers."""
    declared = required_capabilities(capabilities)
    return {name: row for name, row in _METHODS_BY_NAME.items() if row.capability is None or row.capability in declared}


def _refusal(version: str, method: str) -> UnsupportedVersion | MethodNotFound | CapabilityNotSupported:
    """Return the error for a request of another revision, or for a method that is not offered."""
    if version not in _MODERN_VERSIONS:
        return UnsupportedVersion(version, SUPPORTED_VERSIONS)
    row = _METHODS_BY_NAME.get(method)
    if row is None or row.capability is None:
        return MethodNotFound(method)
    return CapabilityNotSupported(method, row.capability)


def unwrap_result(result: CallToolResult) -> CallToolResult:
    """Return a result without the wrapper object of its structured content, if it has one."""
    wrapped = result.structured_content
    if not isinstance(wrapped, dict) or "result" not in wrapped:
        return result
    return CallToolResult(result.content, wrapped["result"], result.is_error, meta=result.meta)


def wrap_result(result: CallToolResult) -> CallToolResult:
    """Return a result with the wrapper object that older revisions need."""
    if result.structured_content is UNSET:
        return result
    return CallToolResult(result.content, {"result": result.structured_content}, result.is_error, meta=result.meta)
