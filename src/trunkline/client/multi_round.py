"""A request that is answered with questions: they are put to the same functions as those of older servers, and the
request is sent again with their answers."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Raw, Struct
from msgspec.structs import replace

from trunkline.client.connection import ClientConnection
from trunkline.errors import BadAnswer, InputFailed
from trunkline.protocol.client_envelope import read_result_header
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.methods import Side, find_method
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import INPUT_REQUIRED, AskableParams
from trunkline.rpc.run_handler import run_work
from trunkline.transports.channel import MessageOrigin
from trunkline.wire import codec

__all__ = ["MAX_ROUNDS", "RawInputRequest", "answer_input_requests", "next_round"]

MAX_ROUNDS: Final = 32  # a server that asks more often than that leads in a circle
_ASKABLE: Final = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})
_FIRST_DELAY: Final = 0.25  # seconds before a request is sent again that was put off without a question
_MAX_DELAY: Final = 4.0  # seconds, when it was put off time and again


class RawInputRequest(Struct):
    """A question of a server's."""

    method: str
    params: Raw = Raw(b"{}")


class _InputRequired(Struct, rename="camel"):
    input_requests: dict[str, RawInputRequest] = {}
    request_state: str | None = None


_decode_input_required: Final = codec.decoder(_InputRequired)


async def next_round(connection: ClientConnection, name: str, params: Any, result: Raw, number: int) -> Any:
    """The params of the next round, whose number counts from 1, from a result that is not complete. Raises
    `InputFailed` if a question cannot be answered, and `BadAnswer` if the result asks nothing that can be asked."""
    kind = read_result_header(result).result_type
    if kind != INPUT_REQUIRED or not isinstance(params, AskableParams):
        raise BadAnswer(name, f"there is no result of type {kind!r}")
    if number > MAX_ROUNDS:
        raise BadAnswer(name, f"it has asked {MAX_ROUNDS} times, and still asks")
    try:
        asked = _decode_input_required(result)
    except (codec.DecodeError, RecursionError) as error:
        raise BadAnswer(name, str(error)) from None
    if not asked.input_requests:
        if asked.request_state is None:
            raise BadAnswer(name, "input is required, and it does not say which")
        await asyncio.sleep(min(_FIRST_DELAY * 2 ** (number - 1), _MAX_DELAY))
    answers = await answer_input_requests(connection, asked.input_requests)
    return replace(params, input_responses=answers or None, request_state=asked.request_state)


async def answer_input_requests(
    connection: ClientConnection, requests: Mapping[str, RawInputRequest]
) -> dict[str, Raw]:
    """The answers to all questions, which are asked at once. If one of them has none, nobody waits for the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {
                key: group.create_task(_answer_input_request(connection, key, asked)) for key, asked in requests.items()
            }
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return {key: task.result() for key, task in tasks.items()}


async def _answer_input_request(connection: ClientConnection, key: str, request: RawInputRequest) -> Raw:
    row = find_method(request.method)
    if row is None or request.method not in _ASKABLE:
        raise InputFailed(f"the server asks for {request.method!r}, which no client can be asked")
    if row.capability is not None and not connection.session.has_capability(Side.CLIENT, row.capability):
        raise InputFailed(f"the server asks for {request.method}, which this client does not offer")
    call = IncomingRequest(id=key, method=row, started=connection.now(), origin=MessageOrigin())
    call.suspensions += 1  # a person may take as long as a person takes
    dispatch: Callable[..., Any] = connection.dispatch
    try:
        answer = await run_work(dispatch(call, request.params), connection.threads)
    except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise InputFailed(f"the server asks for {request.method}, and there is no answer: {error}") from error
    finally:
        call.done = True
    return codec.to_raw(project(answer, Revision.V2026_07_28))
