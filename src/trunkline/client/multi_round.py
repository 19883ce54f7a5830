"""A request that is answered with questions: they are put to the same functions as those of older servers, and the
request is sent again with their answers."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Raw, Struct
from msgspec.structs import replace

from trunkline.client.connection import Connection
from trunkline.errors import BadAnswer, InputFailed
from trunkline.protocol.client_envelope import head_of
from trunkline.protocol.inflight import Running
from trunkline.protocol.methods import Side, find
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import INPUT_REQUIRED, AskableParams
from trunkline.rpc.run_handler import perform
from trunkline.transports.channel import Origin
from trunkline.wire import codec

__all__ = ["MOST_ROUNDS", "Asked", "answered", "next_round"]

MOST_ROUNDS: Final = 32  # a server that asks more often than that leads in a circle
_ASKABLE: Final = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})
_PUT_OFF: Final = 0.25  # seconds before a request is sent again that was put off without a question
_LONGEST: Final = 4.0  # seconds, when it was put off time and again


class Asked(Struct):
    """A question of a server's."""

    method: str
    params: Raw = Raw(b"{}")


class _Required(Struct, rename="camel"):
    input_requests: dict[str, Asked] = {}
    request_state: str | None = None


_read: Final = codec.decoder(_Required)


async def next_round(connection: Connection, name: str, params: Any, result: Raw, number: int) -> Any:
    """The params of the next round, whose number counts from 1, from a result that is not complete. Raises
    `InputFailed` if a question cannot be answered, and `BadAnswer` if the result asks nothing that can be asked."""
    kind = head_of(result).result_type
    if kind != INPUT_REQUIRED or not isinstance(params, AskableParams):
        raise BadAnswer(name, f"there is no result of type {kind!r}")
    if number > MOST_ROUNDS:
        raise BadAnswer(name, f"it has asked {MOST_ROUNDS} times, and still asks")
    try:
        asked = _read(result)
    except (codec.DecodeError, RecursionError) as error:
        raise BadAnswer(name, str(error)) from None
    if not asked.input_requests:
        if asked.request_state is None:
            raise BadAnswer(name, "input is required, and it does not say which")
        await asyncio.sleep(min(_PUT_OFF * 2 ** (number - 1), _LONGEST))
    answers = await answered(connection, asked.input_requests)
    return replace(params, input_responses=answers or None, request_state=asked.request_state)


async def answered(connection: Connection, questions: Mapping[str, Asked]) -> dict[str, Raw]:
    """The answers to all questions, which are asked at once. If one of them has none, nobody waits for the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {key: group.create_task(_answer(connection, key, asked)) for key, asked in questions.items()}
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return {key: task.result() for key, task in tasks.items()}


async def _answer(connection: Connection, key: str, question: Asked) -> Raw:
    row = find(question.method)
    if row is None or question.method not in _ASKABLE:
        raise InputFailed(f"the server asks for {question.method!r}, which no client can be asked")
    if row.needs is not None and not connection.session.has(Side.CLIENT, row.needs):
        raise InputFailed(f"the server asks for {question.method}, which this client does not offer")
    call = Running(id=key, method=row, started=connection.now(), origin=Origin())
    call.held += 1  # a person may take as long as a person takes
    dispatch: Callable[..., Any] = connection.dispatch
    try:
        answer = await perform(dispatch(call, question.params), connection.threads)
    except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise InputFailed(f"the server asks for {question.method}, and there is no answer: {error}") from error
    finally:
        call.done = True
    return codec.to_raw(project(answer, Revision.V2026_07_28))
