"""Questions of tasks, put to a client of 2025-11-25 that waits for the result of one: by requests, on that line."""

import asyncio
from typing import Final

from msgspec import UNSET, Raw

from trunkline.errors import ConnectionClosed, InternalError, MisuseError, PeerError, ProtocolError
from trunkline.protocol.inflight import Running
from trunkline.protocol.meta import RELATED_TASK
from trunkline.protocol.methods import find
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import InputRequest, Params
from trunkline.server.connection import Connection
from trunkline.server.tasks.shelf import Step
from trunkline.wire import codec
from trunkline.wire.messages import ErrorObject

__all__ = ["Delivery"]

_OURS: Final = InternalError.code


class Delivery:
    """Puts each open question of a task to whoever waits for its result, once."""

    def __init__(self, connection: Connection, call: Running) -> None:
        self._connection = connection
        self._call = call
        self._asked: dict[str, asyncio.Task[None]] = {}

    def deliver(self, record: TaskRecord) -> None:
        """Asks what is open and was not asked yet; what is not open any more is not wanted any more."""
        for key, asking in self._asked.items():
            if key not in record.questions:
                asking.cancel()
        for key, question in record.questions.items():
            if key not in self._asked:
                self._asked[key] = self._connection.loop.create_task(self._ask(record, key, question))

    def end(self) -> None:
        """Nobody waits any more: what is still open stays so, for the next."""
        for asking in self._asked.values():
            asking.cancel()

    async def _ask(self, record: TaskRecord, key: str, question: InputRequest) -> None:
        try:
            answer = await self._connection.request(question.method, _params(record, question), about=self._call)
        except ConnectionClosed:
            return
        except PeerError as error:
            refused = ErrorObject(error.code, error.message, UNSET if error.data is None else error.data)
            await self._change(record, lambda found, now: found.refuse(now, key, refused))
        except ProtocolError as error:  # it cannot be asked that, or was silent for too long
            refused = ErrorObject(_OURS, error.message, error.data)
            await self._change(record, lambda found, now: found.refuse(now, key, refused))
        else:
            await self._change(record, lambda found, now: found.answer(now, {key: answer}))

    async def _change(self, record: TaskRecord, step: Step) -> None:
        await self._connection.shared.tasks.change(record.client, record.task_id, step)


def _params(record: TaskRecord, question: InputRequest) -> Params:
    """The params of a question, with the task that it belongs to."""
    row = find(question.method)
    if row is None:
        raise MisuseError(f"there is no method {question.method!r}")
    params: Params = codec.decoder(row.params)(Raw(codec.to_json(question.params or {})))
    params.meta = {**(params.meta or {}), RELATED_TASK: {"taskId": record.task_id}}
    return params
