"""What stands on the outside of a request of the modern era: headers that repeat what is in it, so that whoever is on
the way can tell without opening it."""

from collections.abc import Mapping
from typing import Any, Final

from trunkline.protocol.headers import NAMED_BY, headers_for, routing
from trunkline.protocol.meta import PROTOCOL_VERSION
from trunkline.protocol.types import CallToolParams
from trunkline.transports.channel import Mirrors
from trunkline.wire import codec
from trunkline.wire.messages import Request

__all__ = ["REVISION", "label"]

REVISION: Final = "MCP-Protocol-Version"

_ATTRIBUTES: Final = {"taskId": "task_id"}  # where a member has another name here than on the wire
_read_arguments: Final = codec.decoder(dict[str, Any])


def label(request: Request, mirrors: Mirrors) -> dict[str, str] | None:
    """The headers of a request; None for one of the handshake era, which has none of its own.

    Raises `InvalidValue` for an argument that no header can carry.
    """
    params: Any = request.params
    meta: Mapping[str, Any] = getattr(params, "meta", None) or {}
    revision = meta.get(PROTOCOL_VERSION)
    if revision is None:
        return None
    repeated = headers_for(mirrors(params.name), _arguments(params)) if isinstance(params, CallToolParams) else {}
    return {REVISION: revision, **routing(request.method, _named(request.method, params)), **repeated}


def _named(method: str, params: Any) -> dict[str, Any]:
    """The member that a request is named by, as it is on the wire."""
    member = NAMED_BY.get(method)
    return {} if member is None else {member: getattr(params, _ATTRIBUTES.get(member, member), None)}


def _arguments(params: CallToolParams) -> dict[str, Any]:
    try:
        return _read_arguments(params.arguments)
    except codec.DecodeError:
        return {}  # the server will say what is wrong with them
