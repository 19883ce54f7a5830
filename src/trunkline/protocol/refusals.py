"""Why something is not taken, or may not be sent: what the peer got wrong, as the error that it is told."""

from typing import Final

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
from trunkline.protocol.lifecycle import Phase, Signal, allows
from trunkline.protocol.methods import Method, Side, find_method
from trunkline.protocol.revisions import Revision
from trunkline.wire.messages import Malformed, Request

__all__ = ["malformed_refusal", "request_refusal", "send_refusal", "unavailable_refusal"]

_NOT_ACCEPTING: Final = {Phase.PAUSED, Phase.DRAINING}


def request_refusal(
    message: Request, row: Method | None, *, phase: Phase, revision: Revision, side: Side, negotiated: bool
) -> ProtocolError:
    """Phase first, then the method, then its capability (the order of the founding documents). `row` is the method if
    it may be asked for now, so that its id must be in use; `agreed`: the handshake has settled on a revision."""
    name = message.method
    if row is not None and row.is_request:
        return RequestIdConflict(message.id)
    known = find_method(name)
    signal = known.receive_signal if known else Signal.RECV_CALL
    if not allows(phase, signal):
        return _phase_refusal(name, signal, phase, negotiated=negotiated)
    if known is None or not (known.is_request and known.exists_in(revision) and known.is_received_by(side)):
        return MethodNotFound(name)
    return CapabilityNotSupported(name, known.capability or "")


def _phase_refusal(name: str, signal: Signal, phase: Phase, *, negotiated: bool) -> ProtocolError:
    if signal is Signal.RECV_INITIALIZE and negotiated:
        return WrongPhase(name, phase.name.lower(), kind="already_initialized")
    return unavailable_refusal(name, phase) if phase in _NOT_ACCEPTING else WrongPhase(name, phase.name.lower())


def unavailable_refusal(name: str, phase: Phase) -> NotNow:
    """Refuse a request that arrives while the session takes none. A server that drains is gone in a moment, and another
    may take its place; how long a pause lasts is not known."""
    wait = 1.0 if phase is Phase.DRAINING else None
    return NotNow(f"{name} is not taken while the session is {phase.name.lower()}", retry_after=wait)


def send_refusal(name: str, *, phase: Phase, revision: Revision, receiver: Side) -> ProtocolError:
    """What forbids us a message: the same questions, seen from the other end."""
    row = find_method(name)
    if row is None or not row.exists_in(revision) or not row.is_received_by(receiver):
        return MethodNotFound(name)
    if not allows(phase, row.send_signal):
        return WrongPhase(name, phase.name.lower())
    return CapabilityNotSupported(name, row.capability or "")


def malformed_refusal(fault: Malformed) -> ProtocolError:
    """What is wrong with something that is no message."""
    if fault.limit is not None:
        return MessageTooLarge(fault.limit)
    kinds: dict[int, type[ProtocolError]] = {ParseError.code: ParseError, InvalidParams.code: InvalidParams}
    return kinds.get(fault.code, InvalidRequest)(fault.why)
