"""Clients of a server in the process of the test, which raise the exceptions of its handlers.

    async with connect(server) as client:
        with pytest.raises(KeyError):
            await client.call_tool("price", {"item": "milk"})

On the wire an unexpected exception is a reference, under which the log has the details. In the process of a test both
sides are at hand: an observer of the server keeps each exception under its reference, and the client's methods raise
the one that a response refers to.
"""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, cast

from trunkline.client.client import Client
from trunkline.client.results import ToolResult
from trunkline.client.tasks.handle import Task
from trunkline.errors import MisuseError, PeerError, ToolFailed
from trunkline.facts import Fact, HandlerFailed
from trunkline.protocol.meta import TOOL_ERROR
from trunkline.protocol.types import CallToolResult
from trunkline.server.server import Server

if TYPE_CHECKING:
    from trunkline.sampling.provider import SamplingProvider
    from trunkline.testing.fakes import FakeUser
    from trunkline.testing.faults import Faults

__all__ = ["connect"]

_OPENING: Final = frozenset({"open", "close"})


def connect(
    target: Any,
    *,
    raise_exceptions: bool | None = None,
    model: "SamplingProvider | None" = None,
    user: "FakeUser | None" = None,
    faults: "Faults | None" = None,
    **options: Any,
) -> Client:
    """Return a client for a test: `async with connect(server) as client`. It takes the options of `Client`.

    With `raise_exceptions`, the default for a `Server`, a request raises the exception that its handler raised, with
    its traceback. Errors that are meant for the client, such as `ToolError`, stay as they are on the wire. `model`
    answers sampling requests, `user` answers elicitations, and `faults` damage the connection.
    """
    server = target if isinstance(target, Server) else None
    if raise_exceptions and server is None:
        raise MisuseError("raise_exceptions=True is for a Server in this process; exceptions do not leave another one")
    if model is not None:
        options["sampling"] = model
    if user is not None:
        options = {"elicitation": user, "open_url": user.open_url, **options}
    client = Client(target if faults is None else faults.on(target), **options)
    if server is not None and raise_exceptions is not False:
        _raise_exceptions_of(server, client)
    return client


class _KeptExceptions:
    """Observer that keeps the exceptions of handlers by their reference."""

    immediate = True
    failures_only = True

    def __init__(self, server: Server) -> None:
        self._server = server
        self._by_reference: dict[str, BaseException] = {}
        self._remove: Callable[[], None] | None = None

    def on(self, fact: Fact) -> None:
        """Keep the exception of a failure."""
        if isinstance(fact, HandlerFailed):
            self._by_reference[fact.reference] = fact.error

    def attach(self) -> None:
        """Observe the server, unless this observer does so already."""
        if self._remove is None:
            self._remove = self._server.observers.add(self)

    def detach(self) -> None:
        """Stop observing the server."""
        remove, self._remove = self._remove, None
        if remove is not None:
            remove()

    def find(self, outcome: Any) -> BaseException | None:
        """Return the exception that an error or a failed result refers to."""
        if isinstance(outcome, ToolFailed):
            outcome = outcome.result
        details: Any = None
        if isinstance(outcome, PeerError):
            details = outcome.data
        elif isinstance(outcome, ToolResult | CallToolResult):
            details = (outcome.meta or {}).get(TOOL_ERROR)
        reference = cast("Mapping[str, Any]", details).get("reference") if isinstance(details, Mapping) else None
        return self._by_reference.get(reference) if isinstance(reference, str) else None


def _raise_exceptions_of(server: Server, client: Client) -> None:
    """Let the requests of a client raise the exceptions of a server's handlers."""
    kept = _KeptExceptions(server)
    for name, _ in inspect.getmembers(Client, inspect.iscoroutinefunction):
        if not name.startswith("_") and name not in _OPENING:
            setattr(client, name, _raising(getattr(client, name), kept))
    opening, closing = client.open, client.close

    async def open_() -> Client:
        kept.attach()
        return await opening()

    async def close() -> None:
        try:
            await closing()
        finally:
            kept.detach()

    vars(client).update(open=open_, close=close)


def _raising(
    request: Callable[..., Coroutine[Any, Any, Any]], kept: _KeptExceptions
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Wrap a coroutine function, so that it raises the exception that its outcome refers to."""

    @wraps(request)
    async def run(*args: Any, **options: Any) -> Any:
        value: Any = None
        failed: PeerError | None = None
        try:
            value = await request(*args, **options)
        except PeerError as error:
            failed = error
        original = kept.find(value if failed is None else failed)
        if original is not None:
            raise original
        if failed is not None:
            raise failed
        if isinstance(value, Task):
            vars(cast("Any", value))["result"] = _raising(value.result, kept)
        return cast("Any", value)

    return run
