"""Asking the client for input: sampling, elicitation and roots, for handlers that do not know the era.

To a client of the handshake era an ask is a request on the same line, awaited. Later revisions ask by answering the
request itself and running the handler again; that is another `Asker`, in `rounds`, and no handler will notice.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from trunkline.errors import CapabilityNotSupported, MethodNotFound, PeerError
from trunkline.protocol.inflight import Running
from trunkline.protocol.types import ProgressParams
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.connection import Connection

__all__ = ["Asker", "ClientLacks", "LiveAsker", "OnProgress", "UnfitAnswer"]

OnProgress = Callable[[ProgressParams], None]
"""Told what the client reports of a request that it works on."""


class ClientLacks(PeerError):
    """The client has not declared what an ask needs. Nothing was sent."""

    def __init__(self, capability: str) -> None:
        super().__init__(
            MethodNotFound.code,
            f"the client does not support {capability}",
            {"kind": "capability_not_supported", "capability": capability},
        )
        self.capability = capability


class UnfitAnswer(PeerError):
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
    ) -> Any: ...


class LiveAsker:
    """Asks by sending a request."""

    def __init__(self, connection: "Connection", call: Running) -> None:
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
    ) -> Any:
        """Asks and waits. Raises `ClientLacks`, `PeerError`, `RequestTimeout` or `ConnectionClosed`."""
        try:
            raw = await self._connection.request(
                name, params, about=self._call, needs=needs, timeout=timeout, on_progress=on_progress
            )
        except CapabilityNotSupported as error:
            raise ClientLacks(error.data["capability"]) from None
        except MethodNotFound:
            raise ClientLacks(name.partition("/")[0]) from None  # not part of the revision that is spoken
        result = self._connection.session.result_type(name)
        try:
            return codec.decoder(result)(raw)
        except msgspec.ValidationError as error:
            raise UnfitAnswer(-32603, f"the client's answer to {name} is malformed: {error}") from None
