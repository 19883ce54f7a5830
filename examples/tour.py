"""A tour of examples/demo_server.py, which is started here and spoken to over stdio: `make demo`.

Trunkline has no client yet. Until it has, `Line` speaks for one: it moves bytes, and a `Session` of the client's side
knows what they mean.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from trunkline.errors import PeerError
from trunkline.protocol.events import Answered, CallReceived, NoticeReceived, ProgressHeard, Refused
from trunkline.protocol.lifecycle import Signal
from trunkline.protocol.methods import Side
from trunkline.protocol.revisions import NEWEST
from trunkline.protocol.session import Session
from trunkline.protocol.types import (
    CallToolParams,
    CompleteParams,
    CompletionArgument,
    ElicitParams,
    ElicitResult,
    Empty,
    GetPromptParams,
    Implementation,
    InitializeParams,
    PaginatedParams,
    ReadResourceParams,
    Reference,
    SubscribeParams,
)
from trunkline.wire import codec
from trunkline.wire.framing import LineFramer
from trunkline.wire.messages import Batch, Message

SERVER = Path(__file__).with_name("demo_server.py")
PATIENCE = 10.0  # seconds until silence counts as a fault
ORDER = {"seed": "basil", "packets": 3}  # what the script fills into the form

console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)


class Line:
    """The client's end of a pipe to a server."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.session = Session(Side.CLIENT, info=Implementation("tour", "1.0"), capabilities={"elicitation": {}})
        self.session.step(Signal.CONNECT)
        self.updated: asyncio.Queue[str] = asyncio.Queue()  # the methods of notifications, as they come

    def send(self, message: Message) -> None:
        """Writes one line."""
        self.process.stdin.write(codec.encode(message) + b"\n")

    async def listen(self) -> None:
        """Reads until the server ends: bytes to frames to messages to events."""
        framer = LineFramer(self.session.settings.stdio_message_size_limit)
        while data := await self.process.stdout.read(65536):
            for frame in framer.feed(data):
                message = codec.decode(frame)
                if not isinstance(message, Batch):
                    self.handle(self.session.receive(message, time.monotonic()))

    def handle(self, event: Any) -> None:
        """Does what an event asks for."""
        match event:
            case Answered(request=request, result=result, error=None):
                request.waiter.set_result(codec.decoder(request.method.result)(result))
            case Answered(request=request, error=error):
                request.waiter.set_exception(PeerError(error.code, error.message, error.data))
            case ProgressHeard(request=request, progress=progress):
                request.on_progress(progress)
            case NoticeReceived(method=method):
                self.updated.put_nowait(method.name)
            case CallReceived(call=call, params=params):  # the server asks: it is answered by `fill_in` alone
                self.send(self.session.reply(call, fill_in(codec.decoder(ElicitParams)(params))))
            case Refused(reply=reply):
                self.send(reply)

    async def ask(self, method: str, params: Any = None, *, on_progress: Callable[..., None] | None = None) -> Any:
        """Sends a request and waits for its result, in its type."""
        waiter = asyncio.get_running_loop().create_future()
        _, message = self.session.call(
            method, params or Empty(), time.monotonic(), on_progress=on_progress, waiter=waiter
        )
        self.send(message)
        return await asyncio.wait_for(waiter, PATIENCE)

    async def call(self, tool: str, *, on_progress: Callable[..., None] | None = None, **arguments: Any) -> Any:
        """Calls a tool."""
        params = CallToolParams(name=tool, arguments=codec.to_raw(arguments))
        return await self.ask("tools/call", params, on_progress=on_progress)

    async def read(self, uri: str) -> str:
        """Reads a resource of one text."""
        return (await self.ask("resources/read", ReadResourceParams(uri=uri))).contents[0].text


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Line]:
    """A line to the demo server, and its orderly end: we close its input, and it goes."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, str(SERVER), stdin=pipe, stdout=pipe)
    line = Line(process)
    listening = asyncio.create_task(line.listen())
    try:
        yield line
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), PATIENCE)
        await listening


def say(title: str, *lines: str) -> None:
    """Prints one stop of the tour."""
    console.print(f"\n[bold]{title}[/bold]")
    for line in lines:
        console.print(f"  {line}", markup=False)


def fill_in(form: ElicitParams) -> ElicitResult:
    """Plays the user."""
    say("A tool asks the user", f"server:  {form.message}", f"fields:  {', '.join(form.requested_schema.properties)}")
    console.print(f"  script:  accept, {ORDER}", markup=False)
    return ElicitResult(action="accept", content=ORDER)


async def greet(line: Line) -> None:
    """The handshake."""
    params = InitializeParams(protocol_version=NEWEST, capabilities=line.session.offered, client_info=line.session.info)
    result = await line.ask("initialize", params)
    line.send(line.session.initialized(result))
    about = f"{result.server_info.name} {result.server_info.version}, speaking {result.protocol_version}"
    say("Connected", about, f"instructions: {result.instructions}")


async def list_everything(line: Line) -> None:
    """What there is."""
    table = Table("kind", "name", "what it is for", title_justify="left")
    listed = (
        ("tool", "tools/list", lambda page: [(item.name, item) for item in page.tools]),
        ("resource", "resources/list", lambda page: [(item.uri, item) for item in page.resources]),
        (
            "template",
            "resources/templates/list",
            lambda page: [(item.uri_template, item) for item in page.resource_templates],
        ),
        ("prompt", "prompts/list", lambda page: [(item.name, item) for item in page.prompts]),
    )
    for kind, method, items in listed:
        for name, item in items(await line.ask(method, PaginatedParams())):
            table.add_row(kind, name, item.description)
    say("What it offers")
    console.print(table)


async def call_with_progress(line: Line) -> None:
    """A tool that takes its time."""
    say("A call with progress: survey")
    columns = (TextColumn("  {task.description:<14}"), BarColumn(30), MofNCompleteColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("measuring", total=None)

        def advance(heard: Any) -> None:
            progress.update(bar, total=heard.total, completed=heard.progress, description=heard.message)

        result = await line.call("survey", on_progress=advance)
    for reading in result.structured_content["result"]:
        state = "dry" if reading["dry"] else "fine"
        console.print(f"  {reading['bed']:<14} {reading['moisture']:>3} %  {state}", markup=False)


async def watch(line: Line) -> None:
    """A resource, until it changes."""
    uri = "greenhouse://log"
    say(f"Reading {uri}", *(await line.read(uri)).splitlines())
    await line.ask("resources/subscribe", SubscribeParams(uri=uri))
    say("Watching it while a tool waters the tomatoes")
    called = asyncio.create_task(line.call("water", bed="tomatoes", litres=3))
    method = await asyncio.wait_for(line.updated.get(), PATIENCE)
    console.print(f"  heard {method}, so it is read again:", markup=False)
    console.print(f"  {(await line.read(uri)).splitlines()[-1]}", markup=False)
    await called


async def prompt_and_complete(line: Line) -> None:
    """A prompt, with help for its argument."""
    reference = Reference(type="ref/prompt", name="planting_plan")
    params = CompleteParams(ref=reference, argument=CompletionArgument("season", "s"))
    proposed = (await line.ask("completion/complete", params)).completion.values
    say("Completing the argument season from 's'", ", ".join(proposed))
    asked = GetPromptParams(name="planting_plan", arguments={"bed": "tomatoes", "season": proposed[-1]})
    result = await line.ask("prompts/get", asked)
    say("The prompt planting_plan, filled in", *(f"{m.role}: {m.content.text}" for m in result.messages))


async def order(line: Line) -> None:
    """A tool that needs to know more."""
    result = await line.call("order_seeds")
    console.print(f"  result:  {result.content[0].text}", markup=False)


async def main() -> int:
    """The whole tour; gives the server's exit status."""
    started = time.monotonic()
    async with connected() as line:
        for stop in (greet, list_everything, call_with_progress, watch, prompt_and_complete, order):
            await stop(line)
    status = line.process.returncode
    say("Closed", f"the server ended with status {status}; the tour took {time.monotonic() - started:.1f} s")
    return status


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
