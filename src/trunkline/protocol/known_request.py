"""Known requests: a client of the modern era repeats its envelope with every call, and calls some tools many times."""

from msgspec import Raw

from trunkline.errors import ProtocolError
from trunkline.protocol.envelope import Envelope
from trunkline.protocol.headers import RoutingHeaders
from trunkline.protocol.modern import check_envelope
from trunkline.wire.messages import Request
from trunkline.wire.request_template import RequestTemplate

__all__ = ["KnownRequest"]

_ARGUMENTS = "arguments"  # the member that differs from call to call
_LONGEST = 2048  # bytes; longer frames are not worth remembering


class KnownRequest:
    """A valid request that arrived under some headers, and that may arrive again under the same headers, but for its id
    and its arguments. Then its envelope is the same, and agrees with the headers again."""

    __slots__ = ("_template", "envelope")

    def __init__(self, template: RequestTemplate, envelope: Envelope) -> None:
        self._template = template
        self.envelope = envelope

    @classmethod
    def learn(cls, frame: bytes, request: Request, headers: RoutingHeaders) -> "KnownRequest | None":
        """Return the known request for a frame, which was decoded to `request`; None if it is not valid, or its
        arguments are not all that differs in the next one."""
        if len(frame) > _LONGEST or type(request.params) is not Raw:
            return None
        try:
            envelope = check_envelope(request, headers)
        except ProtocolError:
            return None
        template = None if envelope is None else RequestTemplate.learn(frame, request, _ARGUMENTS)
        return None if template is None or envelope is None else cls(template, envelope)

    def match(self, frame: bytes) -> Request | None:
        """Return the request in a frame if it is this one with another id or other arguments."""
        return self._template.match(frame)
