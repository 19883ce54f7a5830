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
from trunkline.protocol.inflight import Running
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.session import Session
from trunkline.supervision.restart_policy import GiveUp, Policy, lost
from trunkline.wire.messages import Batch, ErrorResponse, Incoming, Message, Request, RequestId

if TYPE_CHECKING:
    from trunkline.server.connection import Connection

__all__ = ["fail_over"]

_OVER: Final = frozenset({Phase.FAILED, Phase.CLOSED})
_AGAIN: Final = {Phase.PAUSED: Signal.PAUSE, Phase.DRAINING: Signal.DRAIN}


def fail_over(connection: "Connection", error: Exception, over: Incoming | Running | None) -> None:
    """Goes on after an error of our own, over a message or a call if it is known which."""
    reference = os.urandom(6).hex()
    connection.report_crash(reference, error)
    told = InternalError(
        f"something failed in the server; the log has the details under {reference}", data={"reference": reference}
    )
    if connection.session.phase in _OVER:
        return
    if connection.channel.info.shared:
        _answer_alone(connection, over, told)
        return
    unread = _unread(connection, over)
    connection.tell(RestoreStep, step="RestoreSubscriptions")
    connection.begin_anew(_restored(connection), told)
    _refuse(connection, unread, told)
    connection.tell(RestoreStep, step="ReplayPending")
    connection.tell(RestoreStep, step="RestoreCapabilities")
    connection.tell(RestoreStep, step="StartMonitoring")
    _note_loss(connection, error)


def _answer_alone(connection: "Connection", over: Incoming | Running | None, told: ProtocolError) -> None:
    """Ends the one request that it is about: the others are other peers'."""
    call = over if isinstance(over, Running) else connection.session.in_flight.get(getattr(over, "id", None) or 0)
    if call is not None:
        connection.abandon(call, told)
    else:
        _refuse(connection, _unread(connection, over), told)


def _unread(connection: "Connection", over: Incoming | Running | None) -> RequestId | list[RequestId] | None:
    """The request, or those of a batch, that came with a message of which nobody knows."""
    if isinstance(over, Batch):
        return [one.id for one in over.messages if isinstance(one, Request)]
    return over.id if isinstance(over, Request) and over.id not in connection.session.in_flight else None


def _refuse(connection: "Connection", unread: RequestId | list[RequestId] | None, told: ProtocolError) -> None:
    error = connection.session.error_object(told)
    if isinstance(unread, list):
        answers: list[Message] = [ErrorResponse(ident, error) for ident in unread]
        if answers:
            connection.channel.send(answers)
    elif unread is not None:
        connection.channel.send(ErrorResponse(unread, error), about=unread)


def _restored(connection: "Connection") -> Session:
    """A session that stands where the one that has failed did."""
    old, session = connection.session, connection.new_session()
    session.last_id = old.last_id  # a late answer is not taken for another one
    session.step(Signal.CONNECT)
    if old.negotiated is not None and old.revision is not None:
        session.restore(old.revision, old.negotiated, old.peer, complete=old.phase is not Phase.INITIALIZING)
    if (again := _AGAIN.get(old.phase)) is not None and session.allows(again):
        session.step(again)
    return session


def _note_loss(connection: "Connection", error: Exception) -> None:
    """Gives up a line on which nothing goes well."""
    settings = connection.settings
    policy = Policy(intensity=settings.restart_intensity, period=settings.restart_period)
    connection.losses, decision = lost(connection.losses, policy, connection.now())
    if isinstance(decision, GiveUp):
        connection.bury(f"its conversation has failed too often: {decision.why}")
        if connection.channel.info.sole:
            raise error
