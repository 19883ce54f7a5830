"""Waiting for a task; its questions are put meanwhile to a client of 2025-11-25, by requests, on that line.

A client that is told of questions should come and wait (tasks, "Input Required Status"). One that only looks, and finds
the same questions again, is asked by requests of their own, which any stream may carry.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from msgspec import UNSET, Raw

from trunkline.errors import ConnectionClosed, InternalError, MisuseError, PeerError, ProtocolError, RequestTimeout
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import RELATED_TASK
from trunkline.protocol.methods import find_method
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import InputRequest, Params
from trunkline.server.access.owner_id import owner_of
from trunkline.server.connection import Connection
from trunkline.server.tasks.repository import Transition
from trunkline.wire import codec
from trunkline.wire.messages import ErrorObject

__all__ = ["QuestionDelivery", "wait_for_outcome"]

_INTERNAL_ERROR: Final = InternalError.code
T = TypeVar("T")


async def wait_for_outcome(
    connection: Connection, call: IncomingRequest, task_id: str, get_outcome: Callable[[TaskRecord], T | None]
) -> T:
    """What a task of whoever calls has come to, once it has come to something. Its questions are put meanwhile, where
    a client can be asked while it waits. Raises `TaskNotFound`."""
    tasks, owner = connection.shared.tasks, owner_of(call.origin.principal)
    delivery, can_be_asked = _QuestionSender(connection, call), call.envelope is None
    connection.adjust_call_limit(1)  # it waits for something else, and shall keep nobody from being answered
    try:
        with tasks.question_delivery.result_waiter(task_id) if can_be_asked else nullcontext():
            while True:
                with tasks.watchers.expect_change(owner, task_id) as heard:
                    record = (await tasks.get(owner, task_id)).record
                    found = get_outcome(record)
                    if found is not None:
                        return found
                    if can_be_asked:
                        delivery.send_open(record)
                    await _wait_for_change_or_expiry(heard, record, connection)
    finally:
        connection.adjust_call_limit(-1)
        delivery.stop()


async def _wait_for_change_or_expiry(
    changed: "asyncio.Future[None]", record: TaskRecord, connection: Connection
) -> None:
    """Waits for news of a task; that it has expired is told by nobody."""
    if record.expires_at is None:
        return await changed

    def wake() -> None:
        if not changed.done():
            changed.set_result(None)

    timer = connection.shared.wall_clock.call_at(record.expires_at, wake)
    try:
        await changed
    finally:
        timer.cancel()


class QuestionDelivery:
    """Who looks at tasks that ask, and whether somebody waits for them."""

    def __init__(self) -> None:
        self._seen_questions: WeakKeyDictionary[Connection, dict[str, frozenset[str]]] = WeakKeyDictionary()
        self._result_waiters: Counter[str] = Counter()
        self._senders: dict[str, _QuestionSender] = {}  # by the name of the task

    @contextmanager
    def result_waiter(self, task_id: str) -> "Generator[None]":
        """Somebody waits for a task, and is asked what others are asked no more."""
        self._result_waiters[task_id] += 1
        self._stop_sender(task_id)
        try:
            yield
        finally:
            self._result_waiters[task_id] -= 1
            if not self._result_waiters[task_id]:
                del self._result_waiters[task_id]

    def record_poll(self, connection: Connection, record: TaskRecord) -> None:
        """Somebody has looked at a task. What it has found open before, and nobody waits for, it is asked."""
        seen = self._seen_questions.setdefault(connection, {})
        before = seen.pop(record.task_id, frozenset[str]())
        if not record.questions:
            self._stop_sender(record.task_id)
            return
        seen[record.task_id] = frozenset(record.questions)
        if before & record.questions.keys() and record.task_id not in self._result_waiters:
            if record.task_id not in self._senders:
                self._senders[record.task_id] = _QuestionSender(connection, None, self._forget_sender)
            self._senders[record.task_id].send_open(record)

    def _forget_sender(self, sender: "_QuestionSender") -> None:
        self._senders = {name: other for name, other in self._senders.items() if other is not sender}

    def _stop_sender(self, task_id: str) -> None:
        asking = self._senders.pop(task_id, None)
        if asking is not None:
            asking.stop()


class _QuestionSender:
    """Puts each open question of a task to whoever waits for its result, or looks at it, once."""

    def __init__(
        self,
        connection: Connection,
        call: IncomingRequest | None,
        on_done: "Callable[[_QuestionSender], None] | None" = None,
    ) -> None:
        """`call` is what waits; None if nothing does. `over` is told when nothing is asked any more."""
        self._connection = connection
        self._call = call
        self._on_done = on_done
        self._requests: dict[str, asyncio.Task[None]] = {}
        self._answered: set[str] = set()  # questions whose answer has come, and is being written down

    def send_open(self, record: TaskRecord) -> None:
        """Asks what is open and was not asked yet; what is not open any more is not wanted any more."""
        self._cancel_requests(self._requests.keys() - record.questions.keys())
        for key, question in record.questions.items():
            if key not in self._requests:
                asking = self._requests[key] = self._connection.loop.create_task(
                    self._ask_and_record(record, key, question)
                )
                asking.add_done_callback(self._on_request_done)

    def _on_request_done(self, _: "asyncio.Task[None]") -> None:
        if self._on_done is not None and all(asking.done() for asking in self._requests.values()):
            self._on_done(self)

    def stop(self) -> None:
        """Nobody waits any more: what is still open stays so, for the next. What was answered just now is heard
        first."""
        self._connection.loop.call_soon(lambda: self._cancel_requests(self._requests.keys()))

    def _cancel_requests(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key not in self._answered:
                self._requests[key].cancel()

    async def _ask_and_record(self, record: TaskRecord, key: str, question: InputRequest) -> None:
        step = await self._request_answer(record, key, question)
        if step is not None:
            self._answered.add(key)
            await self._connection.shared.tasks.change(record.client, record.task_id, step)

    async def _request_answer(self, record: TaskRecord, key: str, question: InputRequest) -> Transition | None:
        """What the answer to a question means for its task; None if there is none."""
        try:
            answer = await self._connection.request(
                question.method, _question_params(record, question), about=self._call
            )
        except ConnectionClosed:
            return None
        except RequestTimeout as error:
            if self._call is None:
                return None  # it may not have heard, and somebody may come yet
            refused = ErrorObject(_INTERNAL_ERROR, error.message, error.data)
        except PeerError as error:
            refused = ErrorObject(error.code, error.message, UNSET if error.data is None else error.data)
        except ProtocolError as error:  # it cannot be asked that
            refused = ErrorObject(_INTERNAL_ERROR, error.message, error.data)
        else:
            return lambda found, now: found.answer(now, {key: answer})
        return lambda found, now: found.refuse(now, key, refused)


def _question_params(record: TaskRecord, question: InputRequest) -> Params:
    """The params of a question, with the task that it belongs to."""
    row = find_method(question.method)
    if row is None:
        raise MisuseError(f"there is no method {question.method!r}")
    params: Params = codec.decoder(row.params)(Raw(codec.to_json(question.params or {})))
    params.meta = {**(params.meta or {}), RELATED_TASK: {"taskId": record.task_id}}
    return params
