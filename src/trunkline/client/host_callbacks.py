"""What a server may ask of a client: a model's message, a user's input, where to look. The host supplies it.

A capability is declared when there is somebody to answer. Functions may be async or plain; a plain one runs on a
thread, so it may well ask a person at a terminal.
"""

import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from trunkline.auth.page_policy import judge, judge_now, page
from trunkline.auth.ssrf import Reach, Refused
from trunkline.client.connection import Connection
from trunkline.client.elicitation import Question, UrlQuestion, checked, unusable
from trunkline.client.tasks.hosted import OwnTasks
from trunkline.errors import InvalidParams, MisuseError
from trunkline.protocol.inflight import Running
from trunkline.protocol.meta import progress_token
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
from trunkline.registry.handlers import OnThread
from trunkline.registry.signatures import called
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.progress import report
from trunkline.rpc.run_handler import Work

__all__ = ["Answering", "Answers", "Elicit", "OpenUrl", "RootLike", "Sample", "root_of"]

RootLike = Root | str | Path
"""A root, its `file:` URI, or a path."""

_Q = TypeVar("_Q")
_R = TypeVar("_R")

_Function = Callable[[_Q], _R] | Callable[[_Q, "Answering"], _R]
"""A function that answers a question; it may have a second parameter, for an `Answering`."""

Sample = _Function[CreateMessageParams, CreateMessageResult | str | Awaitable[CreateMessageResult | str]]
"""Writes the next message, of `CreateMessageParams`; plain text will do."""

Elicit = _Function[Question, ElicitResult | Mapping[str, Any] | None | Awaitable[Any]]
"""Asks the user a `Question`: gives what was filled in, or None if the user declines; or a whole `ElicitResult`."""

OpenUrl = _Function[UrlQuestion, bool | ElicitResult | Awaitable[Any]]
"""Asks the user whether to go to the URL of a `UrlQuestion`, and goes there if so. Says whether the user agreed."""

_Run = Callable[[Any, "Answering", Callable[[Any], Any]], Work]
"""Asks a function: the question, what goes with it, and what makes the answer of its value."""

_HOST_MODEL: Final = "unspecified"  # the name of the model behind a message that was given as plain text


class Answering:
    """A question of a server's that is being answered, for functions that have a second parameter."""

    def __init__(self, connection: Connection, call: Running) -> None:
        self._connection = connection
        self._call = call

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._call.done

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Reports progress, if the server wants to hear of it. It must grow. Callable from any thread."""
        self._connection.post(partial(report, self._connection, self._call, progress, total, message))


class Answers:
    """The functions of a host application that answer a server."""

    def __init__(
        self,
        *,
        sampling: Sample | None = None,
        sampling_tools: bool = False,
        elicitation: Elicit | None = None,
        open_url: OpenUrl | None = None,
        roots: Iterable[RootLike] | None = None,
        reach: Reach = Reach(loopback=True),  # noqa: B008 - frozen
    ) -> None:
        """`reach` is how far the URLs may lead that a server wants its user to open."""
        if sampling_tools and sampling is None:
            raise MisuseError("sampling_tools=True says that the sampling function can deal with tools; give one")
        self._sampling = None if sampling is None else _prepared(sampling)
        self._sampling_tools = sampling_tools
        self._elicitation = None if elicitation is None else _prepared(elicitation)
        self._reach = reach
        self._open_url = None if open_url is None else _prepared(open_url, _Judge(reach))
        self.tasks = OwnTasks()
        self.roots = None if roots is None else [root_of(root) for root in roots]

    def capabilities(self) -> dict[str, Any]:
        """What is declared to servers."""
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
        """Who answers which method."""
        return Feature(
            "answers",
            {
                "ping": _pong,
                "roots/list": self._list_roots,
                "sampling/createMessage": self._sample,
                "elicitation/create": self._elicit,
            },
        )

    def _list_roots(self, connection: Connection, call: Running, params: Empty) -> ListRootsResult:  # noqa: ARG002
        return ListRootsResult(self.roots or [])

    def _sample(self, connection: Connection, call: Running, params: CreateMessageParams) -> Work:
        if params.tools is not None and not self._sampling_tools:
            raise InvalidParams("this client's sampling takes no tools")  # sampling, "Tools": not declared
        call.token = progress_token(params.meta)
        run = cast("_Run", self._sampling)  # declared, or nobody could have asked
        return self.tasks.run(connection, call, params, lambda call: run(params, Answering(connection, call), _message))

    def _elicit(self, connection: Connection, call: Running, params: ElicitParams) -> Work:
        call.token = progress_token(params.meta)
        start = self._elicitation_of(params, connection)
        return self.tasks.run(connection, call, params, start)

    def _elicitation_of(self, params: ElicitParams, connection: Connection) -> Callable[[Running], Work]:
        """What puts a question to the user. Raises `InvalidParams` for one that cannot be put."""
        if params.mode == "url":
            if self._open_url is None:
                raise InvalidParams("this client opens no URLs")
            open_url, place = self._open_url, UrlQuestion.of(params, self._reach)
            return lambda call: open_url(place, Answering(connection, call), _consent)
        if self._elicitation is None:
            raise InvalidParams("this client shows no forms")
        elicit, question = self._elicitation, Question.of(params)
        return lambda call: elicit(question, Answering(connection, call), partial(checked, question))


def _pong(connection: Connection, call: Running, params: Empty) -> Empty:  # noqa: ARG001
    return Empty()


class _Judge:
    """Judges the URL of a question once more, by the addresses that its host has, before its function is called."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    async def judge(self, question: UrlQuestion) -> None:
        try:
            await judge(page(question.url, self._reach), self._reach)
        except Refused as refused:
            raise unusable(refused) from None

    def judge_now(self, question: UrlQuestion) -> None:
        try:
            judge_now(page(question.url, self._reach), self._reach)
        except Refused as refused:
            raise unusable(refused) from None


def _prepared(function: Callable[..., Any], judged: _Judge | None = None) -> "_Run":
    """How a function is asked, found out once."""
    count = _parameters(function)
    waits = inspect.iscoroutinefunction(called(function))

    async def wait(question: Any, answering: Answering, finish: Callable[[Any], Any]) -> Any:
        if judged is not None:
            await judged.judge(question)
        return finish(await function(*(question, answering)[:count]))

    def call(question: Any, answering: Answering) -> Any:
        if judged is not None:
            judged.judge_now(question)
        return function(*(question, answering)[:count])

    def run(question: Any, answering: Answering, finish: Callable[[Any], Any]) -> Work:
        return wait(question, answering, finish) if waits else OnThread(partial(call, question, answering), finish)

    return run


def _parameters(function: Callable[..., Any]) -> int:
    """How many of the question and the `Answering` a function takes."""
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):  # one, or a function that does not tell
        return 1
    return 2


def _message(given: Any) -> CreateMessageResult:
    if isinstance(given, str):
        return CreateMessageResult("assistant", TextContent(given), _HOST_MODEL, "endTurn")
    if isinstance(given, CreateMessageResult):
        return given
    raise MisuseError(f"a sampling function gives a CreateMessageResult or text, not {type(given).__name__}")


def _consent(given: Any) -> ElicitResult:
    if isinstance(given, ElicitResult):
        return given
    if isinstance(given, bool):
        return ElicitResult("accept" if given else "decline")
    raise MisuseError(f"open_url says True or False, or gives an ElicitResult, not {type(given).__name__}")


def root_of(root: RootLike) -> Root:
    """A root, of whatever stands for one. Raises `MisuseError` for what is not below `file:`."""
    if isinstance(root, Path):
        name = os.fsencode(root.name).decode(errors="replace")  # JSON carries no bytes that are not UTF-8
        return Root(root.absolute().as_uri(), name or None)
    given = Root(root) if isinstance(root, str) else root
    if urlsplit(given.uri).scheme != "file":
        raise MisuseError(f"a root is a file: URI or a path, not {given.uri!r}")
    return given
