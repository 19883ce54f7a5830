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
from trunkline.protocol.inflight import Running
from trunkline.protocol.meta import RELATED_TASK
from trunkline.protocol.methods import find
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import InputRequest, Params
from trunkline.server.access.owner_id import owner_of
from trunkline.server.connection import Connection
from trunkline.server.tasks.repository import Step
from trunkline.wire import codec
from trunkline.wire.messages import ErrorObject

__all__ = ["Looks", "awaited"]

_OURS: Final = InternalError.code
T = TypeVar("T")


async def awaited(connection: Connection, call: Running, task_id: str, come_to: Callable[[TaskRecord], T | None]) -> T:
    """What a task of whoever calls has come to, once it has come to something. Its questions are put meanwhile, where
    a client can be asked while it waits. Raises `TaskNotFound`."""
    tasks, owner = connection.shared.tasks, owner_of(call.origin.principal)
    delivery, can_be_asked = _Delivery(connection, call), call.envelope is None
    connection.rest(1)  # it waits for something else, and shall keep nobody from being answered
    try:
        with tasks.looks.waiting(task_id) if can_be_asked else nullcontext():
            while True:
                with tasks.interest.expecting(owner, task_id) as heard:
                    record = (await tasks.get(owner, task_id)).record
                    found = come_to(record)
                    if found is not None:
                        return found
                    if can_be_asked:
                        delivery.deliver(record)
                    await _heard_or_expired(heard, record, connection)
    finally:
        connection.rest(-1)
        delivery.end()


async def _heard_or_expired(heard: "asyncio.Future[None]", record: TaskRecord, connection: Connection) -> None:
    """Waits for news of a task; that it has expired is told by nobody."""
    if record.expires_at is None:
        return await heard

    def wake() -> None:
        if not heard.done():
            heard.set_result(None)

    timer = connection.shared.wall.call_at(record.expires_at, wake)
    try:
        await heard
    finally:
        timer.cancel()


class Looks:
    """Who looks at tasks that ask, and whether somebody waits for them."""

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[Connection, dict[str, frozenset[str]]] = WeakKeyDictionary()
        self._waited_for: Counter[str] = Counter()
        self._asking: dict[str, _Delivery] = {}  # by the name of the task

    @contextmanager
    def waiting(self, task_id: str) -> "Generator[None]":
        """Somebody waits for a task, and is asked what others are asked no more."""
        self._waited_for[task_id] += 1
        self._stop(task_id)
        try:
            yield
        finally:
            self._waited_for[task_id] -= 1
            if not self._waited_for[task_id]:
                del self._waited_for[task_id]

    def looked(self, connection: Connection, record: TaskRecord) -> None:
        """Somebody has looked at a task. What it has found open before, and nobody waits for, it is asked."""
        seen = self._seen.setdefault(connection, {})
        before = seen.pop(record.task_id, frozenset[str]())
        if not record.questions:
            self._stop(record.task_id)
            return
        seen[record.task_id] = frozenset(record.questions)
        if before & record.questions.keys() and record.task_id not in self._waited_for:
            if record.task_id not in self._asking:
                self._asking[record.task_id] = _Delivery(connection, None, self._forget)
            self._asking[record.task_id].deliver(record)

    def _forget(self, asking: "_Delivery") -> None:
        self._asking = {name: other for name, other in self._asking.items() if other is not asking}

    def _stop(self, task_id: str) -> None:
        asking = self._asking.pop(task_id, None)
        if asking is not None:
            asking.end()


class _Delivery:
    """Puts each open question of a task to whoever waits for its result, or looks at it, once."""

    def __init__(
        self, connection: Connection, call: Running | None, over: "Callable[[_Delivery], None] | None" = None
    ) -> None:
        """`call` is what waits; None if nothing does. `over` is told when nothing is asked any more."""
        self._connection = connection
        self._call = call
        self._over = over
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._heard: set[str] = set()  # questions whose answer has come, and is being written down

    def deliver(self, record: TaskRecord) -> None:
        """Asks what is open and was not asked yet; what is not open any more is not wanted any more."""
        self._withdraw(self._asked.keys() - record.questions.keys())
        for key, question in record.questions.items():
            if key not in self._asked:
                asking = self._asked[key] = self._connection.loop.create_task(self._ask(record, key, question))
                asking.add_done_callback(self._settled)

    def _settled(self, _: "asyncio.Task[None]") -> None:
        if self._over is not None and all(asking.done() for asking in self._asked.values()):
            self._over(self)

    def end(self) -> None:
        """Nobody waits any more: what is still open stays so, for the next. What was answered just now is heard
        first."""
        self._connection.loop.call_soon(lambda: self._withdraw(self._asked.keys()))

    def _withdraw(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key not in self._heard:
                self._asked[key].cancel()

    async def _ask(self, record: TaskRecord, key: str, question: InputRequest) -> None:
        step = await self._answer(record, key, question)
        if step is not None:
            self._heard.add(key)
            await self._connection.shared.tasks.change(record.client, record.task_id, step)

    async def _answer(self, record: TaskRecord, key: str, question: InputRequest) -> Step | None:
        """What the answer to a question means for its task; None if there is none."""
        try:
            answer = await self._connection.request(question.method, _params(record, question), about=self._call)
        except ConnectionClosed:
            return None
        except RequestTimeout as error:
            if self._call is None:
                return None  # it may not have heard, and somebody may come yet
            refused = ErrorObject(_OURS, error.message, error.data)
        except PeerError as error:
            refused = ErrorObject(error.code, error.message, UNSET if error.data is None else error.data)
        except ProtocolError as error:  # it cannot be asked that
            refused = ErrorObject(_OURS, error.message, error.data)
        else:
            return lambda found, now: found.answer(now, {key: answer})
        return lambda found, now: found.refuse(now, key, refused)


def _params(record: TaskRecord, question: InputRequest) -> Params:
    """The params of a question, with the task that it belongs to."""
    row = find(question.method)
    if row is None:
        raise MisuseError(f"there is no method {question.method!r}")
    params: Params = codec.decoder(row.params)(Raw(codec.to_json(question.params or {})))
    params.meta = {**(params.meta or {}), RELATED_TASK: {"taskId": record.task_id}}
    return params
