"""Multi-round requests: answer the input requests in a result with the host's callbacks, and send the request again."""

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

MAX_ROUNDS: Final = 32  # a server that needs more is taken for one that never ends
_ASKABLE: Final = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})
_FIRST_DELAY: Final = 0.25  # seconds before a request is repeated that the server has deferred without an input request
_MAX_DELAY: Final = 4.0  # seconds, after repeated deferrals


class RawInputRequest(Struct):
    """An input request of the server, with encoded params."""

    method: str
    params: Raw = Raw(b"{}")


class _InputRequired(Struct, rename="camel"):
    input_requests: dict[str, RawInputRequest] = {}
    request_state: str | None = None


_decode_input_required: Final = codec.decoder(_InputRequired)


async def next_round(connection: ClientConnection, name: str, params: Any, result: Raw, number: int) -> Any:
    """Return the params of the next round, counted from 1. Raises `InputFailed` if an input request cannot be answered,
    and `BadAnswer` if the result contains none."""
    kind = read_result_header(result).result_type
    if kind != INPUT_REQUIRED or not isinstance(params, AskableParams):
        raise BadAnswer(name, f"unexpected result type {kind!r}")
    if number > MAX_ROUNDS:
        raise BadAnswer(name, f"the server still requires input after {MAX_ROUNDS} rounds")
    try:
        required = _decode_input_required(result)
    except (codec.DecodeError, RecursionError) as error:
        raise BadAnswer(name, str(error)) from None
    if not required.input_requests:
        if required.request_state is None:
            raise BadAnswer(name, "the server requires input, and names none")
        await asyncio.sleep(min(_FIRST_DELAY * 2 ** (number - 1), _MAX_DELAY))
    answers = await answer_input_requests(connection, required.input_requests)
    return replace(params, input_responses=answers or None, request_state=required.request_state)


async def answer_input_requests(
    connection: ClientConnection, requests: Mapping[str, RawInputRequest]
) -> dict[str, Raw]:
    """Answer input requests concurrently. If one fails, cancel the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {
                key: group.create_task(_answer_input_request(connection, key, one)) for key, one in requests.items()
            }
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return {key: task.result() for key, task in tasks.items()}


async def _answer_input_request(connection: ClientConnection, key: str, request: RawInputRequest) -> Raw:
    row = find_method(request.method)
    if row is None or request.method not in _ASKABLE:
        raise InputFailed(f"the server requires input by {request.method!r}, which is no input request")
    if row.capability is not None and not connection.session.has_capability(Side.CLIENT, row.capability):
        raise InputFailed(f"the server requires input by {request.method}, which this client does not support")
    call = IncomingRequest(id=key, method=row, started=connection.now(), origin=MessageOrigin())
    call.suspensions += 1  # a person may take any time
    dispatch: Callable[..., Any] = connection.dispatch
    try:
        answer = await run_work(dispatch(call, request.params), connection.threads)
    except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise InputFailed(f"the server requires input by {request.method}, which failed: {error}") from error
    finally:
        call.done = True
    return codec.to_raw(project(answer, Revision.V2026_07_28))
