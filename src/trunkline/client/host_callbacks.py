"""Callbacks of the host application that answer a server's requests: sampling, elicitation, roots.

The client declares a capability for each callback that it has. A callback may be async or plain; a plain one runs on a
thread, so it may block, for example to ask a person at a terminal.
"""

import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from trunkline.auth.page_policy import check_page_addresses, check_page_addresses_blocking, parse_page_url
from trunkline.auth.ssrf import EgressDenied, EgressPolicy
from trunkline.client.connection import ClientConnection
from trunkline.client.elicitation import Question, UrlQuestion, unusable_url_error, validate_answer
from trunkline.client.tasks.hosted import HostedTasks
from trunkline.errors import InvalidParams, MisuseError
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import progress_token
from trunkline.protocol.tool_messages import find_tool_mismatch
from trunkline.protocol.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    Empty,
    ListRootsResult,
    Root,
    TextContent,
)
from trunkline.registry.handlers import ThreadCall
from trunkline.registry.signatures import read_signature, underlying_function
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.run_handler import Work

if TYPE_CHECKING:
    from trunkline.sampling.provider import SamplingProvider

__all__ = ["CallbackContext", "Elicit", "HostCallbacks", "OpenUrl", "RootLike", "Sample", "to_root"]

RootLike = Root | str | Path
"""A root, its `file:` URI, or a path."""

_Q = TypeVar("_Q")
_R = TypeVar("_R")

_Callback = Callable[[_Q], _R] | Callable[[_Q, "CallbackContext"], _R]
"""A callback for a question of the server. It may have a second parameter, for a `CallbackContext`."""

Sample = _Callback[CreateMessageParams, CreateMessageResult | str | Awaitable[CreateMessageResult | str]]
"""Returns the next message for `CreateMessageParams`, as a `CreateMessageResult` or as plain text."""

Elicit = _Callback[Question, ElicitResult | Mapping[str, Any] | None | Awaitable[Any]]
"""Shows a `Question` to the user; returns the filled-in values, None if the user declines, or an `ElicitResult`."""

OpenUrl = _Callback[UrlQuestion, bool | ElicitResult | Awaitable[Any]]
"""Asks the user whether to open the URL of a `UrlQuestion`, and opens it if so. Returns whether the user agreed."""

_RunCallback = Callable[[Any, "CallbackContext", Callable[[Any], Any]], Work]
"""Runs a callback. Takes the question, its context, and a function that converts the value to a result."""

_HOST_MODEL: Final = "unspecified"  # the model name of a message that is plain text


class CallbackContext:
    """The request that a callback answers, for callbacks with a second parameter."""

    def __init__(self, connection: ClientConnection, call: IncomingRequest) -> None:
        self._connection = connection
        self._call = call

    @property
    def cancelled(self) -> bool:
        """Whether the server has stopped waiting for the answer."""
        return self._call.done

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress if the server has asked for it. It must grow. Callable from any thread."""
        self._connection.post(partial(self._connection.report_progress, self._call, progress, total, message))


class HostCallbacks:
    """The callbacks of a host application."""

    def __init__(
        self,
        *,
        sampling: "Sample | SamplingProvider | None" = None,
        sampling_tools: bool | None = None,
        elicitation: Elicit | None = None,
        open_url: OpenUrl | None = None,
        roots: Iterable[RootLike] | None = None,
        reach: EgressPolicy = EgressPolicy(loopback=True),  # noqa: B008 - frozen
    ) -> None:
        """`sampling_tools` defaults to what a provider supports. `reach` is the policy for URLs that a server asks its
        user to open."""
        if sampling_tools and sampling is None:
            raise MisuseError("sampling_tools=True says that the sampling function can deal with tools; give one")
        self._provider = None if sampling is None else _as_provider(sampling)
        self._sampling = None if sampling is None else _adapt_callback(sampling)
        if sampling_tools is None:
            sampling_tools = self._provider is not None and self._provider.supports_tools
        self._sampling_tools = sampling_tools
        self._elicitation = None if elicitation is None else _adapt_callback(elicitation)
        self._reach = reach
        self._open_url = None if open_url is None else _adapt_callback(open_url, _UrlCheck(reach))
        self.tasks = HostedTasks()
        self.roots = None if roots is None else [to_root(root) for root in roots]

    def capabilities(self) -> dict[str, Any]:
        """Return the capabilities that the client declares."""
        declared: dict[str, Any] = {}
        if self.roots is not None:
            declared["roots"] = {"listChanged": True}
        if self._sampling is not None:
            declared["sampling"] = {"tools": {}} if self._sampling_tools else {}
        if self._elicitation is not None or self._open_url is not None:
            modes = {"form": self._elicitation, "url": self._open_url}
            declared["elicitation"] = {mode: {} for mode, function in modes.items() if function is not None}
        kinds = {"sampling": "createMessage", "elicitation": "create"}
        requests: dict[str, Any] = {feature: {method: {}} for feature, method in kinds.items() if feature in declared}
        if requests:
            declared["tasks"] = {"list": {}, "cancel": {}, "requests": requests}
        return declared

    def feature(self) -> Feature:
        """Return the method handlers."""
        return Feature(
            "answers",
            {
                "ping": _pong,
                "roots/list": self._list_roots,
                "sampling/createMessage": self._sample,
                "elicitation/create": self._elicit,
            },
        )

    async def close(self) -> None:
        """Close the connections of a sampling provider that no request uses."""
        if self._provider is not None:
            await self._provider.close()

    def _list_roots(self, connection: ClientConnection, call: IncomingRequest, params: Empty) -> ListRootsResult:  # noqa: ARG002
        return ListRootsResult(self.roots or [])

    def _sample(self, connection: ClientConnection, call: IncomingRequest, params: CreateMessageParams) -> Work:
        if params.tools is not None and not self._sampling_tools:
            raise InvalidParams("the sampling of this client does not support tools")  # sampling, "Tools": not declared
        if (why := find_tool_mismatch(params.messages)) is not None:
            raise InvalidParams(why)
        call.token = progress_token(params.meta)
        run = cast("_RunCallback", self._sampling)  # the capability is declared only with a callback
        return self.tasks.run(
            connection, call, params, lambda call: run(params, CallbackContext(connection, call), _to_message)
        )

    def _elicit(self, connection: ClientConnection, call: IncomingRequest, params: ElicitParams) -> Work:
        call.token = progress_token(params.meta)
        start = self._prepare_elicitation(params, connection)
        return self.tasks.run(connection, call, params, start)

    def _prepare_elicitation(
        self, params: ElicitParams, connection: ClientConnection
    ) -> Callable[[IncomingRequest], Work]:
        """Return a function that runs the callback of an elicitation. Raises `InvalidParams` if it cannot be shown."""
        if params.mode == "url":
            if self._open_url is None:
                raise InvalidParams("this client does not open URLs")
            open_url, place = self._open_url, UrlQuestion.of(params, self._reach)
            return lambda call: open_url(place, CallbackContext(connection, call), _to_consent)
        if self._elicitation is None:
            raise InvalidParams("this client does not show forms")
        elicit, question = self._elicitation, Question.of(params)
        return lambda call: elicit(question, CallbackContext(connection, call), partial(validate_answer, question))


def _as_provider(sampling: "Sample | SamplingProvider") -> "SamplingProvider | None":
    """Return a sampling function as a provider, if it is one."""
    from trunkline.sampling.provider import SamplingProvider  # imported here: few clients sample

    return sampling if isinstance(sampling, SamplingProvider) else None


def _pong(connection: ClientConnection, call: IncomingRequest, params: Empty) -> Empty:  # noqa: ARG001
    return Empty()


class _UrlCheck:
    """Check the URL of an elicitation again before its callback runs, by the addresses that its host resolves to."""

    def __init__(self, reach: EgressPolicy) -> None:
        self._reach = reach

    async def check(self, question: UrlQuestion) -> None:
        try:
            await check_page_addresses(parse_page_url(question.url, self._reach), self._reach)
        except EgressDenied as refused:
            raise unusable_url_error(refused) from None

    def check_blocking(self, question: UrlQuestion) -> None:
        try:
            check_page_addresses_blocking(parse_page_url(question.url, self._reach), self._reach)
        except EgressDenied as refused:
            raise unusable_url_error(refused) from None


def _adapt_callback(function: Callable[..., Any], url_check: _UrlCheck | None = None) -> "_RunCallback":
    """Return a function that runs a callback; inspect its signature once."""
    count = _count_parameters(function)
    waits = inspect.iscoroutinefunction(underlying_function(function))

    async def wait(question: Any, answering: CallbackContext, finish: Callable[[Any], Any]) -> Any:
        if url_check is not None:
            await url_check.check(question)
        return finish(await function(*(question, answering)[:count]))

    def call(question: Any, answering: CallbackContext) -> Any:
        if url_check is not None:
            url_check.check_blocking(question)
        return function(*(question, answering)[:count])

    def run(question: Any, answering: CallbackContext, finish: Callable[[Any], Any]) -> Work:
        return wait(question, answering, finish) if waits else ThreadCall(partial(call, question, answering), finish)

    return run


def _count_parameters(function: Callable[..., Any]) -> int:
    """Return how many of the question and the `CallbackContext` a callback takes."""
    try:
        read_signature(function).bind(None, None)
    except (TypeError, ValueError):  # one parameter, or no signature
        return 1
    return 2


def _to_message(value: Any) -> CreateMessageResult:
    if isinstance(value, str):
        return CreateMessageResult("assistant", TextContent(value), _HOST_MODEL, "endTurn")
    if isinstance(value, CreateMessageResult):
        return value
    raise MisuseError(f"a sampling function must return a CreateMessageResult or a string, not {type(value).__name__}")


def _to_consent(value: Any) -> ElicitResult:
    if isinstance(value, ElicitResult):
        return value
    if isinstance(value, bool):
        return ElicitResult("accept" if value else "decline")
    raise MisuseError(f"open_url must return True, False or an ElicitResult, not {type(value).__name__}")


def to_root(root: RootLike) -> Root:
    """Convert a path or a URI to a root. Raises `MisuseError` for any other scheme than `file:`."""
    if isinstance(root, Path):
        name = os.fsencode(root.name).decode(errors="replace")  # JSON has no bytes that are not UTF-8
        return Root(root.absolute().as_uri(), name or None)
    converted = Root(root) if isinstance(root, str) else root
    if urlsplit(converted.uri).scheme != "file":
        raise MisuseError(f"a root is a file: URI or a path, not {converted.uri!r}")
    return converted
