"""Asking the client for input: sampling, elicitation and roots, for handlers that do not know the era.

To a client of the handshake era an ask is a request on the same line, awaited. Later revisions ask by answering the
request itself and running the handler again; that is another `Asker`, in `rounds`, and no handler will notice.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

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
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.connection import Connection

__all__ = ["Asker", "ClientLacksCapability", "InvalidInputResponse", "OnProgress", "RequestAsker"]

_TASK_CAPABILITIES: Final[Mapping[str, str]] = {
    "sampling/createMessage": "tasks.requests.sampling.createMessage",
    "elicitation/create": "tasks.requests.elicitation.create",
}
"""What a client declares that makes tasks of such requests."""
_decode_created: Final = codec.decoder(CreateTaskResult)

OnProgress = Callable[[ProgressParams], None]
"""Told what the client reports of a request that it works on."""


class ClientLacksCapability(PeerError):
    """The client has not declared what an ask needs. Nothing was sent."""

    def __init__(self, capability: str) -> None:
        super().__init__(
            MethodNotFound.code,
            f"the client does not support {capability}",
            {"kind": "capability_not_supported", "capability": capability},
        )
        self.capability = capability


class InvalidInputResponse(PeerError):
    """The client has answered an ask with something that is no answer to it."""


class Asker(Protocol):
    """Puts a question to the client and waits for the answer, in the type that the method's row names."""

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
    """Asks by sending a request."""

    def __init__(self, connection: "Connection", call: IncomingRequest) -> None:
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
        key: str | None = None,  # noqa: ARG002 - an answer on this line finds its question by itself
        task: bool = False,
    ) -> Any:
        """Asks and waits; with `task`, by a request that is answered at once and its result fetched later, if a client
        knows how. Raises `ClientLacks`, `PeerError`, `RequestTimeout` or `ConnectionClosed`."""
        if self._connection.close_reason is not None:  # and its handler goes on all the same
            raise ConnectionClosed("the client has gone", reached=False)
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
            raise ClientLacksCapability(name.partition("/")[0]) from None  # not part of the revision that is spoken
        if asks_for_task:
            raw = await self._fetch_task_result(raw, timeout)
        result = self._connection.session.result_type(name)
        try:
            return lenient.read(result, raw)
        except msgspec.ValidationError as error:
            raise InvalidInputResponse(-32603, f"the client's answer to {name} is malformed: {error}") from None

    async def _fetch_task_result(self, raw: Any, timeout: float | None) -> Any:
        """The result of a request that the client has made a task of. Who stops waiting for it cancels it."""
        try:
            task_id = _decode_created(raw).task.task_id
        except msgspec.ValidationError:
            return raw  # it was answered right away, which is a mistake that does no harm
        request = self._connection.request
        try:
            return await request("tasks/result", GetTaskPayloadParams(task_id), about=self._call, timeout=timeout)
        except (asyncio.CancelledError, RequestTimeout):
            self._connection.send_request("tasks/cancel", CancelTaskParams(task_id)).waiter.add_done_callback(
                _ignore_outcome
            )
            raise


def _ignore_outcome(done: "asyncio.Future[Any]") -> None:
    """Nobody waits for an answer to this."""
    if not done.cancelled():
        done.exception()
