"""Session recovery: replace a session that an internal error has broken, on the same connection.

An exception of a handler is a reply. An exception in our own code leaves the session in an unknown state, so recovery
abandons that session with its running requests: calls whose handler had started fail with `outcome_unknown`, other
requests with an internal error. The connection knows everything else that makes the session usable: the negotiated
revision and capabilities, the client, its subscriptions and its log level. A new session takes over that state, and the
client notices only the failed requests.

Recovery closes a connection that fails too often; on stdio, where one connection is the whole process, it raises the
error. On a channel that several peers share, each request is independent, and only the failed one ends.
"""

import os
from collections.abc import Callable
from typing import Final

from trunkline.errors import InternalError, ProtocolError
from trunkline.facts import RestoreStep
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.session import Session
from trunkline.rpc.connection import PeerConnection
from trunkline.supervision.restart_policy import GiveUp, History, RestartPolicy, after_loss
from trunkline.wire.messages import Batch, ErrorResponse, Incoming, Message, Request, RequestId

__all__ = ["record_failure", "recover_session"]

_TERMINAL_PHASES: Final = frozenset({Phase.FAILED, Phase.CLOSED})
_PHASE_SIGNALS: Final = {Phase.PAUSED: Signal.PAUSE, Phase.DRAINING: Signal.DRAIN}


def recover_session(
    connection: PeerConnection,
    error: Exception,
    during: Incoming | IncomingRequest | None,
    new_session: Callable[[], Session],
) -> bool:
    """Replace the session after an internal error; `during` is the message or call that was being processed, if known.
    Return False if the session stays, because it has ended or the channel is shared."""
    reference = os.urandom(6).hex()
    connection.facts.report_crash(reference, error)
    failure = InternalError(
        f"internal error of the server; see its log under reference {reference}", data={"reference": reference}
    )
    if connection.session.phase in _TERMINAL_PHASES:
        return False
    if connection.channel.info.stateless:
        _fail_one_request(connection, during, failure)
        return False
    unstarted = _unstarted_requests(connection, during)
    connection.facts.emit(RestoreStep, step="RestoreSubscriptions")
    connection.replace_session(_restore_session(connection.session, new_session()), failure)
    _refuse(connection, unstarted, failure)
    connection.facts.emit(RestoreStep, step="ReplayPending")
    connection.facts.emit(RestoreStep, step="RestoreCapabilities")
    connection.facts.emit(RestoreStep, step="StartMonitoring")
    return True


def _fail_one_request(
    connection: PeerConnection, during: Incoming | IncomingRequest | None, failure: ProtocolError
) -> None:
    """Fail only the request in question: the channel carries requests of other peers."""
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
    connection: PeerConnection, during: Incoming | IncomingRequest | None
) -> RequestId | list[RequestId] | None:
    """Return the ids of the requests in a message that the session has not recorded."""
    if isinstance(during, Batch):
        return [one.id for one in during.messages if isinstance(one, Request)]
    return during.id if isinstance(during, Request) and during.id not in connection.session.incoming_requests else None


def _refuse(connection: PeerConnection, unstarted: RequestId | list[RequestId] | None, failure: ProtocolError) -> None:
    error = connection.session.error_object(failure)
    if isinstance(unstarted, list):
        answers: list[Message] = [ErrorResponse(request_id, error) for request_id in unstarted]
        if answers:
            connection.channel.send(answers)
    elif unstarted is not None:
        connection.channel.send(ErrorResponse(unstarted, error), about=unstarted)


def _restore_session(old: Session, session: Session) -> Session:
    """Bring a new session into the state of the failed one."""
    session.last_id = old.last_id  # a late response must not match a new request
    if old.profile is not None:
        session.use_profile(old.profile)
    session.transition(Signal.CONNECT)
    if old.negotiated is not None and old.revision is not None:
        session.restore_handshake(old.revision, old.negotiated, old.peer, complete=old.phase is not Phase.INITIALIZING)
    if (signal := _PHASE_SIGNALS.get(old.phase)) is not None and session.allows(signal):
        session.transition(signal)
    return session


def record_failure(connection: PeerConnection, error: Exception, history: History | None) -> History:
    """Return the history of failed sessions with one more failure; close a connection that fails too often."""
    settings = connection.settings
    policy = RestartPolicy(intensity=settings.restart_intensity, period=settings.restart_period)
    history, decision = after_loss(history or History(), policy, connection.now())
    if isinstance(decision, GiveUp):
        connection.close_now(f"its session failed too often: {decision.reason}")
        if connection.channel.info.sole_peer:
            raise error
    return history
