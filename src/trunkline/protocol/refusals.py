"""Refusals: the errors for messages that are illegal to receive or to send."""

from typing import TYPE_CHECKING, Final

from trunkline.errors import (
    CapabilityNotSupported,
    InvalidParams,
    InvalidRequest,
    MessageTooLarge,
    MethodNotFound,
    NotNow,
    ParseError,
    ProtocolError,
    RequestIdConflict,
    WrongPhase,
)
from trunkline.protocol.custom_methods import is_custom
from trunkline.protocol.legal_methods import may_receive
from trunkline.protocol.lifecycle import Phase, Signal, allows
from trunkline.protocol.methods import Method, Side, find_method
from trunkline.protocol.revisions import Revision
from trunkline.wire.messages import Malformed, Request

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile

__all__ = ["malformed_refusal", "request_refusal", "send_refusal", "unavailable_refusal"]

_NOT_ACCEPTING: Final = {Phase.PAUSED, Phase.DRAINING}


def request_refusal(
    message: Request,
    row: Method | None,
    *,
    phase: Phase,
    revision: Revision,
    side: Side,
    negotiated: bool,
    profile: "Profile | None" = None,
) -> ProtocolError:
    """Return the error for an illegal request: check the phase first, then the method, then its capability (the order
    of the founding documents). `row` is the method if it is legal now, so that the id must be in use; `negotiated`: the
    handshake has agreed on a revision."""
    name = message.method
    if row is not None and row.is_request:
        return RequestIdConflict(message.id)
    known = find_method(name)
    signal = known.receive_signal if known else Signal.RECV_CALL
    if not may_receive(side, phase, signal, profile):
        return _phase_refusal(name, signal, phase, negotiated=negotiated)
    extended = None if profile is None else profile.name
    if known is None or not (known.is_request and known.exists_in(revision, extended) and known.is_received_by(side)):
        return MethodNotFound(name)
    return CapabilityNotSupported(name, known.capability or "")


def _phase_refusal(name: str, signal: Signal, phase: Phase, *, negotiated: bool) -> ProtocolError:
    if signal is Signal.RECV_INITIALIZE and negotiated:
        return WrongPhase(name, phase.name.lower(), kind="already_initialized")
    return unavailable_refusal(name, phase) if phase in _NOT_ACCEPTING else WrongPhase(name, phase.name.lower())


def unavailable_refusal(name: str, phase: Phase) -> NotNow:
    """Return the refusal of a request while the session accepts none. A draining server is gone in a moment, and
    another may take its place; the length of a pause is unknown."""
    wait = 1.0 if phase is Phase.DRAINING else None
    return NotNow(f"{name} is refused while the session is {phase.name.lower()}", retry_after=wait)


def send_refusal(
    name: str, *, phase: Phase, revision: Revision, receiver: Side, profile: "Profile | None" = None
) -> ProtocolError:
    """Return the error for a message that this side must not send."""
    row = find_method(name)
    if row is None and is_custom(name):  # legal in every revision, but not in every phase
        return WrongPhase(name, phase.name.lower())
    extended = None if profile is None else profile.name
    if row is None or not row.exists_in(revision, extended) or not row.is_received_by(receiver):
        return MethodNotFound(name)
    if not allows(phase, row.send_signal):
        return WrongPhase(name, phase.name.lower())
    return CapabilityNotSupported(name, row.capability or "")


def malformed_refusal(fault: Malformed) -> ProtocolError:
    """Return the error for a malformed message."""
    if fault.limit is not None:
        return MessageTooLarge(fault.limit)
    kinds: dict[int, type[ProtocolError]] = {ParseError.code: ParseError, InvalidParams.code: InvalidParams}
    return kinds.get(fault.code, InvalidRequest)(fault.why)
