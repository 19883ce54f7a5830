"""A host application around our client: it answers requests of servers, and records them."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from tests.interop.recording import RecordingConnector, check_client_messages
from tests.limits import PATIENCE

from trunkline import Client, Settings
from trunkline.client.elicitation import Question, UrlQuestion
from trunkline.client.host_callbacks import CallbackContext, RootLike
from trunkline.client.notifications import NotificationReader
from trunkline.protocol.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitResult,
    ProgressParams,
    Root,
    TextContent,
)
from trunkline.transports.channel import Connector

ROOT = Root("file:///workspace", "workspace")
OTHER_ROOT = Root("file:///elsewhere", "elsewhere")
PATIENT = Settings(
    probe_timeout=PATIENCE, quick_timeout=PATIENCE, connect_timeout=PATIENCE, initialize_timeout=PATIENCE
)


class Host:
    """Our client in a host. `without` names missing capabilities: sampling, roots, elicitation.form, …"""

    def __init__(
        self,
        connector: Connector,
        revision: str | None = None,
        *,
        without: tuple[str, ...] = (),
        roots: Iterable[RootLike] = (ROOT,),
        settings: Settings = PATIENT,
    ) -> None:
        self.tap = RecordingConnector(connector)
        self.questions: list[Question | UrlQuestion] = []
        self.answer: Any = {"name": "Ada", "age": 36}  # to forms, or a function that returns one
        self.sampling_cancelled = asyncio.Event()
        answers = {
            "sampling": ("sampling", self.sample),
            "roots": ("roots", roots),
            "elicitation.form": ("elicitation", self.elicit),
            "elicitation.url": ("open_url", self.open_url),
        }
        offered: dict[str, Any] = {key: value for path, (key, value) in answers.items() if path not in without}
        self.client = Client(self.tap, name="host", version="1.0", revision=revision, settings=settings, **offered)

    async def __aenter__(self) -> Self:
        await self.client.open()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        """If nothing failed, validate all messages of the client."""
        await self.client.close()
        if kind is None:
            self.check_client_messages()

    def check_client_messages(self) -> None:
        """Raise AssertionError unless all messages of the client are valid."""
        for wire in self.tap.wires:
            check_client_messages(wire)

    # --- callbacks -----------------------------------------------------------------------------

    async def sample(self, params: CreateMessageParams, answering: CallbackContext) -> CreateMessageResult:
        """Echo the prompt; block on "hang" once it has begun, and report progress on "count"."""
        content = params.messages[-1].content
        said = content.text if isinstance(content, TextContent) else ""
        if said == "count":
            answering.progress(1, 2, "half")
            answering.progress(2, 2, "whole")
            await asyncio.sleep(0)
        if said == "hang":
            answering.progress(1)
            try:
                await asyncio.Event().wait()
            finally:
                self.sampling_cancelled.set()
        return CreateMessageResult("assistant", TextContent(f"echo: {said}"), "parrot", "endTurn")

    def elicit(self, question: Question) -> Any:
        """Decline or cancel if the message says so, or return the answer. It is a plain function, on a thread."""
        self.questions.append(question)
        if question.message in {"decline", "cancel"}:
            return ElicitResult(question.message)
        return self.answer(question) if callable(self.answer) else self.answer

    async def open_url(self, question: UrlQuestion) -> bool:
        """Agree, unless the message says "decline"."""
        self.questions.append(question)
        return question.message != "decline"

    # --- requests ------------------------------------------------------------------------------

    async def give_up(self) -> None:
        """Call a tool that never ends, and cancel it once it has begun."""
        started = Reports()
        call = asyncio.create_task(self.client.call_tool("hang", on_progress=started))
        await started.begun.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()

    # --- records -------------------------------------------------------------------------------

    async def call(self, name: str, **arguments: Any) -> str:
        """The text result of a tool."""
        return (await self.client.call_tool(name, arguments)).text

    def asked(self, method: str) -> list[dict[str, Any]]:
        """The requests of one kind that the server has sent."""
        return [message for message in self._passed("server") if message.get("method") == method and "id" in message]

    def heard(self, method: str) -> list[dict[str, Any]]:
        """The notifications of one kind that the server has sent."""
        return [message for message in self._passed("server") if message.get("method") == method]

    def sent(self, method: str) -> list[dict[str, Any]]:
        """The messages of one kind that the client has sent."""
        return [message for message in self._passed("client") if message.get("method") == method]

    def _passed(self, sender: str) -> list[dict[str, Any]]:
        return [entry["message"] for wire in self.tap.wires for entry in wire if entry["sender"] == sender]

    def answers_to(self, ident: Any, *, by: str) -> list[dict[str, Any]]:
        """The responses to a request, of either side."""
        return [message for message in self._passed(by) if "method" not in message and message.get("id") == ident]

    @contextmanager
    def listening(self, method: str) -> Iterator[NotificationReader]:
        """Notifications of one kind, from now on."""
        reader = self.client.notifications(method)
        try:
            yield reader
        finally:
            reader.close()

    async def nothing_heard(self, reader: NotificationReader) -> None:
        """Fail if there is anything to read. A ping first: all messages before its response have arrived."""
        await self.client.ping()
        reader.close()
        assert [notice async for notice in reader] == []


class Reports(list[ProgressParams]):
    """Progress reports, and an event for the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    def __call__(self, progress: ProgressParams) -> None:
        self.append(progress)
        self.begun.set()
