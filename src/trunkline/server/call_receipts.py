"""Receipts of calls and of tasks: what the log of a server has to say about each.

On the event loop, a call costs a reference to its params and one encoding of its result, as it is sent at that moment.
Everything else, such as digests, happens on the thread of the writer.
"""

import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType

from trunkline.errors import NotNow
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.tasks import TaskRecord, TaskState
from trunkline.receipts.canonical import digest_json
from trunkline.receipts.entry import CallEntry, format_time
from trunkline.receipts.writer import ReceiptWriter
from trunkline.rpc.connection import PeerConnection
from trunkline.server.access.owner_id import ANONYMOUS_OWNER, owner_of
from trunkline.wire.codec import DecodedJson, json_decoder, original_json, to_raw
from trunkline.wire.messages import ErrorResponse, Message, RequestId, Response

__all__ = ["RECORDED_METHODS", "CallReceipts", "record_task_end"]

RECORDED_METHODS: Final = frozenset({"tools/call", "resources/read", "prompts/get", "tasks/create"})
"""Methods whose calls get a receipt."""

_MAX_NAME: Final = 256  # characters of a name, URI or id; the digests cover the rest
_ID_DIGITS: Final = 16  # of the digest of a session or task, whose id is a secret
_NO_ARGUMENTS: Final = Raw(b"{}")
_LONG_PARAMS: Final = 1024 * 1024  # bytes that long params are counted as; finding out would take a scan

Start = Callable[[IncomingRequest, Any], None]


class _Params(Struct):
    """The members of params that a receipt is about."""

    name: str | None = None
    uri: str | None = None
    arguments: Raw = _NO_ARGUMENTS


class _TaskInResult(Struct, rename="camel"):
    task_id: str | None = None


class _Result(Struct, rename="camel"):
    """The members of a result that tell its outcome."""

    is_error: bool = False
    result_type: str = ""
    task_id: str | None = None  # of 2026-07-28, and of `tasks/create`
    task: _TaskInResult | None = None  # of 2025-11-25


_read_params: Final = json_decoder(_Params)
_read_members: Final = json_decoder(dict[str, Raw])
_read_result: Final = json_decoder(_Result)


class _EndedCall(Struct):
    """A call at its end. The writer makes its receipt."""

    time: float
    seconds: float
    method: str
    target: str | None
    request: RequestId
    principal: Any
    session: str | None
    connection: int
    transport: str
    revision: str
    params: Raw | DecodedJson | UnsetType
    reply: Raw | None = None  # the result or error as sent
    code: int | None = None
    outcome: str | None = None  # None: that of the result

    @property
    def size(self) -> int:
        """The bytes of the params and the reply."""
        params = _LONG_PARAMS if isinstance(self.params, DecodedJson) else len(self.params or b"")
        return params + (0 if self.reply is None else len(self.reply))

    def make(self, n: int) -> CallEntry:
        """Return the receipt of the call."""
        outcome, task = (self.outcome, None) if self.reply is None else _outcome_of(self.reply)
        return CallEntry(
            n=n,
            time=format_time(self.time),
            method=self.method,
            name=_shorten(self.target or _name_in(self.params)),
            principal=_principal_of(owner_of(self.principal)),
            session=_digest_id(self.session),
            connection=self.connection,
            transport=self.transport,
            revision=self.revision,
            request=_shorten(self.request) if isinstance(self.request, str) else self.request,
            task=task,
            outcome=self.outcome or outcome or "ok",
            code=self.code,
            arguments=_digest_arguments(self.method, self.params),
            result=None if self.reply is None else digest_json(self.reply),
            seconds=round(self.seconds, 6),
        )


class CallReceipts:
    """The receipts of one connection. All methods are called on the event loop, and none raises."""

    __slots__ = ("_connection", "_running", "_writer")

    def __init__(self, connection: PeerConnection, writer: ReceiptWriter) -> None:
        self._connection = connection
        self._writer = writer
        self._running: dict[RequestId, tuple[IncomingRequest, Any]] = {}  # calls, with their params

    def start(self, start: Start, call: IncomingRequest, params: Any) -> None:
        """Start a call that gets a receipt when it ends; refuse it if the receipt could not be written."""
        if call.method.name in RECORDED_METHODS and call.id not in self._running:
            refusal = self._writer.find_refusal()
            if refusal is not None:
                self._connection.reply_error(call, NotNow(refusal))
                return
            self._writer.running += 1
            self._running[call.id] = (call, params)
        start(call, params)

    def on_reply(self, request: RequestId, reply: Message) -> None:
        """Record the end of a call by the reply that was sent."""
        found = self._running.pop(request, None)
        if found is None:
            return
        ended = self._end(*found)
        try:
            if isinstance(reply, ErrorResponse):
                ended.outcome, ended.code, ended.reply = "error", reply.error.code, to_raw(reply.error)
            elif isinstance(reply, Response):
                ended.reply = reply.result if type(reply.result) is Raw else to_raw(reply.result)
        except Exception:  # noqa: BLE001 - a result without a JSON form, which only a peer in this process can receive
            ended.outcome = ended.outcome or "ok"
        self._writer.add(ended.make, ended.size)

    def on_cancelled(self, call: IncomingRequest) -> None:
        """Record the end of a call that the peer has cancelled."""
        if (found := self._running.pop(call.id, None)) is not None:
            ended = self._end(*found)
            ended.outcome = "cancelled"
            self._writer.add(ended.make, ended.size)

    def _end(self, call: IncomingRequest, params: Any) -> _EndedCall:
        connection, origin = self._connection, call.origin
        self._writer.running -= 1
        return _EndedCall(
            time.time(),
            connection.now() - call.started,
            call.method.name,
            call.target,
            call.id if origin.original_id is None else origin.original_id,
            origin.principal,
            connection.channel.info.session,
            connection.number,
            connection.channel.info.transport,
            connection.session.revision_of(call).value,
            params,
        )


def record_task_end(writer: ReceiptWriter, record: TaskRecord) -> None:
    """Record the end of a task."""
    ended_at = time.time()

    def make(n: int) -> CallEntry:
        outcome, reply, code = "ok", None, None
        if record.error is not None:
            outcome, reply, code = "error", to_raw(record.error), record.error.code
        elif record.result is not UNSET:
            outcome, reply = "failed" if record.result_is_error else "ok", record.result
        elif record.state is TaskState.CANCELLED:
            outcome = "cancelled"
        return CallEntry(
            n=n,
            time=format_time(ended_at),
            method="tasks/end",
            name=_shorten(_name_in(record.params)),
            principal=_principal_of(record.client),
            session=_digest_id(record.caller.session),
            revision=record.caller.revision,
            task=_digest_id(record.task_id),
            outcome=outcome,
            code=code,
            arguments=_digest_arguments(record.method, record.params),
            result=None if reply is None else digest_json(reply),
            seconds=round(ended_at - record.created_at, 6),
        )

    writer.add(make)


def _outcome_of(reply: Raw) -> tuple[str, str | None]:
    """Return the outcome of a result, and the id of the task that it announces."""
    try:
        result = _read_result(reply)
    except (ValueError, RecursionError):
        return "ok", None
    task = result.task_id if result.task is None else result.task.task_id
    if task is not None:
        return "task", _digest_id(task)
    if result.result_type == "input_required":
        return "input_required", None
    return ("failed" if result.is_error else "ok"), None


def _digest_arguments(method: str, params: Raw | DecodedJson | UnsetType) -> str | None:
    """Return the digest of the arguments of a tool or prompt; of the params without `_meta` for other methods."""
    try:
        given = _NO_ARGUMENTS if params is UNSET else original_json(params)
        if method in {"tools/call", "prompts/get"}:
            return digest_json(_read_params(given).arguments)
        members = _read_members(given)
        members.pop("_meta", None)
        return digest_json(to_raw(members))
    except (ValueError, RecursionError):  # the params were refused
        return None


def _name_in(params: Raw | DecodedJson | UnsetType) -> str | None:
    """Return the name or URI in the params of a call that was not dispatched."""
    try:
        found = _read_params(_NO_ARGUMENTS if params is UNSET else original_json(params))
    except (ValueError, RecursionError):
        return None
    return found.name or found.uri


def _principal_of(owner: str) -> str | None:
    return None if owner == ANONYMOUS_OWNER else owner


def _digest_id(ident: str | None) -> str | None:
    return None if ident is None else sha256(ident.encode()).hexdigest()[:_ID_DIGITS]


def _shorten(text: str | None) -> str | None:
    return text if text is None or len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}…"
