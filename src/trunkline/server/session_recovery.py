"""Failover within a process: a conversation that an error of our own has ended begins anew, on the same line and as
what it was.

What a handler raises is an answer. What our own code raises leaves nobody who could say how the conversation stands. So
it is given up, and what was under way with it: calls that were begun are answered with `outcome_unknown`, other
requests with an internal error. All that makes the session usable is known outside of what has failed: what was agreed
upon and with whom, what the client has subscribed to, how much it wants to hear of. With that a new conversation takes
its place, and the client notices nothing but the requests that have failed.

If that happens too often, the line is closed; where it is what the process is there for, the error is the process's.
Where requests of many peers share a line, each is a conversation of its own.
"""

import os
from typing import TYPE_CHECKING, Final

from trunkline.errors import InternalError, ProtocolError
from trunkline.facts import RestoreStep
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.session import Session
from trunkline.supervision.restart_policy import GiveUp, RestartPolicy, after_loss
from trunkline.wire.messages import Batch, ErrorResponse, Incoming, Message, Request, RequestId

if TYPE_CHECKING:
    from trunkline.server.connection import Connection

__all__ = ["recover_session"]

_TERMINAL_PHASES: Final = frozenset({Phase.FAILED, Phase.CLOSED})
_PHASE_SIGNALS: Final = {Phase.PAUSED: Signal.PAUSE, Phase.DRAINING: Signal.DRAIN}


def recover_session(connection: "Connection", error: Exception, during: Incoming | IncomingRequest | None) -> None:
    """Goes on after an error of our own, over a message or a call if it is known which."""
    reference = os.urandom(6).hex()
    connection.facts.report_crash(reference, error)
    told = InternalError(
        f"something failed in the server; the log has the details under {reference}", data={"reference": reference}
    )
    if connection.session.phase in _TERMINAL_PHASES:
        return
    if connection.channel.info.stateless:
        _fail_one_request(connection, during, told)
        return
    unread = _unstarted_requests(connection, during)
    connection.facts.emit(RestoreStep, step="RestoreSubscriptions")
    connection.replace_session(_restore_session(connection), told)
    _refuse(connection, unread, told)
    connection.facts.emit(RestoreStep, step="ReplayPending")
    connection.facts.emit(RestoreStep, step="RestoreCapabilities")
    connection.facts.emit(RestoreStep, step="StartMonitoring")
    _record_failure(connection, error)


def _fail_one_request(
    connection: "Connection", during: Incoming | IncomingRequest | None, failure: ProtocolError
) -> None:
    """Ends the one request that it is about: the others are other peers'."""
    call = (
        during
        if isinstance(during, IncomingRequest)
        else connection.session.incoming_requests.get(getattr(during, "id", None) or 0)
    )
    if call is not None:
        connection.fail_now(call, failure)
    else:
        _refuse(connection, _unstarted_requests(connection, during), failure)


def _unstarted_requests(
    connection: "Connection", during: Incoming | IncomingRequest | None
) -> RequestId | list[RequestId] | None:
    """The request, or those of a batch, that came with a message of which nobody knows."""
    if isinstance(during, Batch):
        return [one.id for one in during.messages if isinstance(one, Request)]
    return during.id if isinstance(during, Request) and during.id not in connection.session.incoming_requests else None


def _refuse(connection: "Connection", unstarted: RequestId | list[RequestId] | None, failure: ProtocolError) -> None:
    error = connection.session.error_object(failure)
    if isinstance(unstarted, list):
        answers: list[Message] = [ErrorResponse(ident, error) for ident in unstarted]
        if answers:
            connection.channel.send(answers)
    elif unstarted is not None:
        connection.channel.send(ErrorResponse(unstarted, error), about=unstarted)


def _restore_session(connection: "Connection") -> Session:
    """A session that stands where the one that has failed did."""
    old, session = connection.session, connection.new_session()
    session.last_id = old.last_id  # a late answer is not taken for another one
    session.transition(Signal.CONNECT)
    if old.negotiated is not None and old.revision is not None:
        session.restore_handshake(old.revision, old.negotiated, old.peer, complete=old.phase is not Phase.INITIALIZING)
    if (again := _PHASE_SIGNALS.get(old.phase)) is not None and session.allows(again):
        session.transition(again)
    return session


def _record_failure(connection: "Connection", error: Exception) -> None:
    """Gives up a line on which nothing goes well."""
    settings = connection.settings
    policy = RestartPolicy(intensity=settings.restart_intensity, period=settings.restart_period)
    connection.failure_history, decision = after_loss(connection.failure_history, policy, connection.now())
    if isinstance(decision, GiveUp):
        connection.close_now(f"its conversation has failed too often: {decision.reason}")
        if connection.channel.info.sole_peer:
            raise error
