"""Requests to the client for input: sampling, elicitation and roots. A handler need not know the era.

In the handshake era the server sends a request on the same connection and awaits the response. In the modern era it
answers the call with its questions and runs the handler again: see `MultiRoundAsker` in `multi_round`.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from trunkline.errors import CapabilityNotSupported, ConnectionClosed, MethodNotFound, PeerError, RequestTimeout
from trunkline.protocol import lenient
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.methods import Side
from trunkline.protocol.types import (
    CancelTaskParams,
    CreateTaskResult,
    GetTaskPayloadParams,
    ProgressParams,
    TaskMetadata,
)
from trunkline.rpc.connection import PeerConnection
from trunkline.wire import codec

__all__ = ["Asker", "ClientLacksCapability", "InvalidInputResponse", "OnProgress", "RequestAsker"]

_TASK_CAPABILITIES: Final[Mapping[str, str]] = {
    "sampling/createMessage": "tasks.requests.sampling.createMessage",
    "elicitation/create": "tasks.requests.elicitation.create",
}
"""The capability of a client that can run the request as a task, by method."""
_decode_created: Final = codec.decoder(CreateTaskResult)

OnProgress = Callable[[ProgressParams], None]
"""Callback for progress that the client reports on a request."""


class ClientLacksCapability(PeerError):
    """The client has not declared a capability that a request needs. The server sent nothing."""

    def __init__(self, capability: str) -> None:
        super().__init__(
            MethodNotFound.code,
            f"the client does not support {capability}",
            {"kind": "capability_not_supported", "capability": capability},
        )
        self.capability = capability


class InvalidInputResponse(PeerError):
    """The client's response does not fit the request for input."""


class Asker(Protocol):
    """Requests input from the client and returns the response, in the method's result type."""

    async def ask(
        self,
        name: str,
        params: Any,
        *,
        needs: str | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        key: str | None = None,
        task: bool = False,
    ) -> Any: ...


class RequestAsker:
    """Requests input by sending a request to the client (handshake era)."""

    def __init__(self, connection: PeerConnection, call: IncomingRequest) -> None:
        self._connection = connection
        self._call = call

    async def ask(
        self,
        name: str,
        params: Any,
        *,
        needs: str | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        key: str | None = None,  # noqa: ARG002 - the request id identifies the response
        task: bool = False,
    ) -> Any:
        """Send the request and wait for its response. With `task`, if the client has the capability, ask it to run the
        request as a task and fetch the result later.

        Raises `ClientLacksCapability`, `PeerError`, `RequestTimeout` or `ConnectionClosed`.
        """
        if self._connection.close_reason is not None:  # the handler may outlive the connection
            raise ConnectionClosed("the client has disconnected", reached=False)
        await self._connection.drain_of(self._call)()
        asks_for_task = task and self._connection.session.has_capability(Side.CLIENT, _TASK_CAPABILITIES.get(name, ""))
        if asks_for_task:
            params = replace(params, task=TaskMetadata())
        try:
            raw = await self._connection.request(
                name, params, about=self._call, needs=needs, timeout=timeout, on_progress=on_progress
            )
        except CapabilityNotSupported as error:
            raise ClientLacksCapability(error.data["capability"]) from None
        except MethodNotFound:
            raise ClientLacksCapability(name.partition("/")[0]) from None  # the negotiated revision does not have it
        if asks_for_task:
            raw = await self._fetch_task_result(raw, timeout)
        result = self._connection.session.result_type(name)
        try:
            return lenient.read(result, raw)
        except msgspec.ValidationError as error:
            raise InvalidInputResponse(-32603, f"the client's response to {name} is malformed: {error}") from None

    async def _fetch_task_result(self, raw: Any, timeout: float | None) -> Any:
        """Fetch the result of a request that the client runs as a task. A timeout or cancellation cancels the task."""
        try:
            task_id = _decode_created(raw).task.task_id
        except msgspec.ValidationError:
            return raw  # the client answered directly: not allowed, but harmless
        request = self._connection.request
        try:
            return await request("tasks/result", GetTaskPayloadParams(task_id), about=self._call, timeout=timeout)
        except (asyncio.CancelledError, RequestTimeout):
            self._connection.send_request("tasks/cancel", CancelTaskParams(task_id)).waiter.add_done_callback(
                _ignore_outcome
            )
            raise


def _ignore_outcome(done: "asyncio.Future[Any]") -> None:
    """Retrieve the exception, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()
