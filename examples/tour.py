"""A tour of examples/demo_server.py, which this program starts as a process and uses through a client, then of
examples/reports.py, which has durable tasks, and examples/switchboard.py, which has four processes: `make demo`."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from trunkline import Client
from trunkline.errors import OutcomeUnknown, ToolFailed

SERVER = Path(__file__).with_name("demo_server.py")
REPORTS = Path(__file__).with_name("reports.py")
SWITCHBOARD = Path(__file__).with_name("switchboard.py")
LOG = "greenhouse://log"
ORDER = {"seed": "basil", "packets": 3}  # the answer to the form
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)

console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)


def say(title: str, *lines: str) -> None:
    """Print one step of the tour."""
    console.print(f"\n[bold]{title}[/bold]")
    tell(*lines)


def tell(*lines: str) -> None:
    """Print the lines of a step."""
    for line in lines:
        console.print(f"  {line}", markup=False, soft_wrap=True)


def hear(message: Any) -> None:
    """Print a log message."""
    tell(f"log:     {message.level}, {message.logger}: {message.data}")


def fill_in(form: Any) -> dict[str, Any]:
    """Answer as the user."""
    fields = [f"{field.name} ({field.kind})" for field in form.fields]
    tell(f"server:  {form.message}", f"fields:  {', '.join(fields)}", f"script:  accept, {ORDER}")
    return ORDER


def kill(pid: int) -> None:
    """Kill a process."""
    tell(f"process {pid} is killed")
    os.kill(pid, KILL)


async def text_of(client: Client, uri: str) -> str:
    """Read a resource with one text."""
    [content] = await client.read_resource(uri)
    return content.text or ""


async def look_around(client: Client) -> None:
    """Print the server and its catalog."""
    info = client.server_info
    named = "a server without a name" if info is None else f"{info.name} {info.version}"
    say("Connected", f"{named}, speaking {client.revision}", f"instructions: {client.instructions}")
    table = Table("kind", "name", "what it is for")
    async for tool in client.tools():
        table.add_row("tool", tool.name, tool.description)
    async for resource in client.resources():
        table.add_row("resource", resource.uri, resource.description)
    async for template in client.resource_templates():
        table.add_row("template", template.uri_template, template.description)
    async for prompt in client.prompts():
        table.add_row("prompt", prompt.name, prompt.description)
    say("What it offers")
    console.print(table)


async def survey(client: Client, *, kill_at: int = 0) -> None:
    """Call a slow tool that reports progress; kill the server meanwhile, if requested."""
    pid = int(await text_of(client, "greenhouse://process"))
    columns = (TextColumn("  {task.description:<14}"), BarColumn(30), MofNCompleteColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("measuring", total=None)

        def advance(heard: Any) -> None:
            progress.update(bar, total=heard.total, completed=heard.progress, description=heard.message)
            if client.losses == 0 and heard.progress == kill_at:
                kill(pid)

        result = await client.call_tool("survey", on_progress=advance)
    for reading in result.data:
        tell(f"{reading.bed:<14} {reading.moisture:>3} %  {'dry' if reading.dry else 'fine'}")


async def watch(client: Client) -> None:
    """Subscribe to a resource, and wait for a change."""
    say(f"Reading {LOG}", *(await text_of(client, LOG)).splitlines())
    say("Watching it while a tool waters the tomatoes")
    await client.subscribe(LOG)
    updates = client.notifications("notifications/resources/updated")
    await client.call_tool("water", {"bed": "tomatoes", "litres": 3})
    heard = await anext(updates)
    tell(f"heard {heard.method}, so it is read again:", (await text_of(client, LOG)).splitlines()[-1])


async def prompt_and_complete(client: Client) -> None:
    """Render a prompt with a completed argument."""
    proposed = (await client.complete("prompt", "planting_plan", "season", "s")).values
    say("Completing the argument season from 's'", ", ".join(proposed))
    result = await client.get_prompt("planting_plan", {"bed": "tomatoes", "season": proposed[-1]})
    say("The prompt planting_plan, filled in", *(f"{one.role}: {one.text}" for one in result.messages))


async def order(client: Client) -> None:
    """Call a tool that elicits input."""
    say("A tool asks the user")
    tell(f"result:  {(await client.call_tool('order_seeds')).data}")


async def go_wrong(client: Client) -> None:
    """Call a tool that fails."""
    say("A call that fails")
    try:
        await client.call_tool("water", {"bed": "roses", "litres": 3})
    except ToolFailed as error:
        tell(str(error))


async def survive(client: Client) -> None:
    """Kill the server in the middle of a call, twice."""
    say("The server is killed while it measures, which only reads: it is started and asked again")
    while client.losses == 0:  # on a busy machine, the answer may be there before the process is dead
        await survey(client, kill_at=2)
    tell(f"lost {client.losses} time, and still subscribed to {', '.join(client.subscriptions)}")
    say("The server is killed while it waters, which must not be done twice by accident")
    error = await killed_while_watering(client)
    tell(f"{type(error).__name__}: {error}")
    tell(f"the next one says: {(await text_of(client, LOG)).splitlines()[-1]}")


async def killed_while_watering(client: Client) -> OutcomeUnknown:
    """Kill the server while it waters; return the error that the call ends with."""
    while True:  # as above
        pid = int(await text_of(client, "greenhouse://process"))
        try:
            await client.call_tool("water", {"bed": "basil", "litres": 2}, on_progress=lambda _, pid=pid: kill(pid))
        except OutcomeUnknown as error:
            return error


async def outlive() -> None:
    """Kill the server while it runs a task, and restart it."""
    say("A server that keeps what it does in a file is killed while it writes a report")
    with tempfile.TemporaryDirectory() as folder:
        async with Client([sys.executable, REPORTS, f"{folder}/reports.db"]) as client:
            task = await client.start_tool("write_report", {"pages": 6})
            while task.message is None:
                await asyncio.sleep(0.05)
                await task.refresh()
            tell(task.message)
            kill(int(await text_of(client, "reports://process")))
            tell(*(await task.result()).text.splitlines())
            said = [await client.call_tool("print_report", {"copies": 3}, idempotency_key="order 1") for _ in range(2)]
            tell(*(f"printed {result.text}" for result in said), "which was one order, printed once")


async def share() -> None:
    """Kill one of four processes of a server."""
    say("A server of four processes, and four clients")
    command = (sys.executable, str(SWITCHBOARD), "0")
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        url = (await process.stderr.readline()).decode().split()[-1]
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(url, revision="2025-11-25")) for _ in range(4)]
            answers = [(await client.call_tool("who")).data for client in clients]
            tell(*(f"client {number}: process {pid}" for number, pid in enumerate(answers, 1)))
            kill(answers[0])
            tell(f"client 1: process {(await clients[0].call_tool('who')).data}, in the same session")
    finally:
        process.terminate()
        await process.communicate()


async def main() -> None:
    """Run the whole tour."""
    started = time.monotonic()
    async with Client(SERVER, elicitation=fill_in, on_log=hear, log_level="info") as client:
        await look_around(client)
        say("A call with progress: survey")
        await survey(client)
        for stop in (watch, prompt_and_complete, order, go_wrong, survive):
            await stop(client)
    await outlive()
    if hasattr(os, "fork"):
        await share()
    say("Closed", f"the tour took {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    asyncio.run(main())
