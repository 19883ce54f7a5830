"""Delivery of a task's questions to 2025-11-25 clients, as requests.

A client that learns of questions should call `tasks/result` (tasks, "Input Required Status"); the server then sends the
questions as requests on that connection. A client that only polls with `tasks/get`, and sees the same questions twice,
receives them as requests outside of any call, which any stream may carry.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from msgspec import UNSET, Raw

from trunkline.errors import ConnectionClosed, InternalError, MisuseError, PeerError, ProtocolError, RequestTimeout
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import RELATED_TASK
from trunkline.protocol.methods import find_method
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import InputRequest, Params
from trunkline.rpc.connection import PeerConnection
from trunkline.server.tasks.repository import TaskRepository, Transition
from trunkline.wire import codec
from trunkline.wire.messages import ErrorObject

__all__ = ["QuestionDelivery", "QuestionSender"]


class QuestionDelivery:
    """Delivery of questions to clients that poll a task, while no `tasks/result` request waits for it."""

    def __init__(self, repository: TaskRepository) -> None:
        self._repository = repository
        self._seen_questions: WeakKeyDictionary[PeerConnection, dict[str, frozenset[str]]] = WeakKeyDictionary()
        self._result_waiters: Counter[str] = Counter()
        self._senders: dict[str, QuestionSender] = {}  # by task id

    @contextmanager
    def result_waiter(self, task_id: str) -> "Generator[None]":
        """Mark a task as awaited by a `tasks/result` request, which then receives the questions of the task."""
        self._result_waiters[task_id] += 1
        self._stop_sender(task_id)
        try:
            yield
        finally:
            self._result_waiters[task_id] -= 1
            if not self._result_waiters[task_id]:
                del self._result_waiters[task_id]

    def record_poll(self, connection: PeerConnection, record: TaskRecord) -> None:
        """Note that a client has polled a task. Send it the questions that it saw in an earlier poll, unless a
        `tasks/result` request waits for the task."""
        seen = self._seen_questions.setdefault(connection, {})
        before = seen.pop(record.task_id, frozenset[str]())
        if not record.questions:
            self._stop_sender(record.task_id)
            return
        seen[record.task_id] = frozenset(record.questions)
        if before & record.questions.keys() and record.task_id not in self._result_waiters:
            if record.task_id not in self._senders:
                self._senders[record.task_id] = QuestionSender(connection, None, self._repository, self._forget_sender)
            self._senders[record.task_id].send_open(record)

    def _forget_sender(self, sender: "QuestionSender") -> None:
        self._senders = {name: other for name, other in self._senders.items() if other is not sender}

    def _stop_sender(self, task_id: str) -> None:
        sender = self._senders.pop(task_id, None)
        if sender is not None:
            sender.stop()


class QuestionSender:
    """Sends each open question of a task once, to one client."""

    def __init__(
        self,
        connection: PeerConnection,
        call: IncomingRequest | None,
        repository: TaskRepository,
        on_done: "Callable[[QuestionSender], None] | None" = None,
    ) -> None:
        """`call` is the waiting `tasks/result` request, or None for a polling client. `on_done` is called when all
        requests have ended."""
        self._connection = connection
        self._call = call
        self._repository = repository
        self._on_done = on_done
        self._requests: dict[str, asyncio.Task[None]] = {}
        self._answered: set[str] = set()  # keys of questions whose answer is being stored

    def send_open(self, record: TaskRecord) -> None:
        """Send the open questions that were not sent yet, and cancel requests whose question is no longer open."""
        self._cancel_requests(self._requests.keys() - record.questions.keys())
        for key, question in record.questions.items():
            if key not in self._requests:
                request = self._requests[key] = self._connection.loop.create_task(
                    self._ask_and_record(record, key, question)
                )
                request.add_done_callback(self._on_request_done)

    def _on_request_done(self, _: "asyncio.Task[None]") -> None:
        if self._on_done is not None and all(request.done() for request in self._requests.values()):
            self._on_done(self)

    def stop(self) -> None:
        """Cancel the open requests; their questions stay open for the next client. An answer that has just arrived is
        handled first."""
        self._connection.loop.call_soon(lambda: self._cancel_requests(self._requests.keys()))

    def _cancel_requests(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key not in self._answered:
                self._requests[key].cancel()

    async def _ask_and_record(self, record: TaskRecord, key: str, question: InputRequest) -> None:
        step = await self._request_answer(record, key, question)
        if step is not None:
            self._answered.add(key)
            await self._repository.change(record.client, record.task_id, step)

    async def _request_answer(self, record: TaskRecord, key: str, question: InputRequest) -> Transition | None:
        """Send a question and return the transition that records the answer; None if there is no answer."""
        try:
            answer = await self._connection.request(
                question.method, _question_params(record, question), about=self._call
            )
        except ConnectionClosed:
            return None
        except PeerError as error:
            refusal = ErrorObject(error.code, error.message, UNSET if error.data is None else error.data)
        except ProtocolError as error:  # the time limit has passed, or the client does not support this request
            if isinstance(error, RequestTimeout) and self._call is None:
                return None  # the client may not have received it, and a `tasks/result` request may come yet
            refusal = ErrorObject(InternalError.code, error.message, error.data)
        else:
            return lambda found, now: found.answer(now, {key: answer})
        return lambda found, now: found.refuse(now, key, refusal)


def _question_params(record: TaskRecord, question: InputRequest) -> Params:
    """Return the params of a question, with the related task in its `_meta`."""
    row = find_method(question.method)
    if row is None:
        raise MisuseError(f"there is no method {question.method!r}")
    params: Params = codec.decoder(row.params)(Raw(codec.to_json(question.params or {})))
    params.meta = {**(params.meta or {}), RELATED_TASK: {"taskId": record.task_id}}
    return params
