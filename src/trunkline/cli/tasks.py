"""`trunkline tasks`: the tasks of a server, in both dialects."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from trunkline.cli.call import print_result
from trunkline.cli.commands import EXIT_OK
from trunkline.cli.connection import TARGET_HELP, add_target_options, run_with_client
from trunkline.cli.terminal import Terminal, escape
from trunkline.errors import MisuseError
from trunkline.protocol.revisions import MODERN_REVISIONS, NEWEST_HANDSHAKE

if TYPE_CHECKING:
    from trunkline.client.client import Client

__all__ = ["configure"]

_EXAMPLES: Final = """\
examples:
  trunkline tasks https://example.org/mcp                 # list them (revisions up to 2025-11-25)
  trunkline tasks https://example.org/mcp get ID
  trunkline tasks https://example.org/mcp result ID       # wait for the result and print it
  trunkline tasks https://example.org/mcp cancel ID

Start a task with `trunkline call TARGET TOOL … --task`.
"""

_ACTIONS: Final = ("list", "get", "result", "cancel")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_target_options(parser)
    parser.add_argument("action", nargs="?", default="list", choices=_ACTIONS, help="what to do (list)")
    parser.add_argument("id", metavar="ID", nargs="?", help="the task's id")
    parser.add_argument("--save", metavar="FOLDER", help="folder for images and other binary results")
    parser.epilog = f"{_EXAMPLES}\n{TARGET_HELP}"
    parser.set_defaults(run=run_with_client(_run))


async def _run(client: "Client", options: argparse.Namespace, terminal: Terminal) -> int:
    if options.action == "list":
        return await _list(client, options, terminal)
    if options.id is None:
        raise MisuseError(f"`tasks {options.action}` needs the id of a task")
    task = client.task(options.id)
    if options.action == "result":
        return print_result(await task.result(raise_on_error=False), options, terminal)
    if options.action == "cancel":
        await task.cancel()
    else:
        await task.refresh()
    if options.json:
        terminal.json({"taskId": task.id, "status": task.status, "statusMessage": task.message})
    else:
        terminal.line(f"{escape(task.id)}  {task.status}  {escape(task.message or '')}".rstrip())
    return EXIT_OK


async def _list(client: "Client", options: argparse.Namespace, terminal: Terminal) -> int:
    if client.revision in MODERN_REVISIONS:
        raise MisuseError(
            f"revision {client.revision} has no list of tasks; name one, as in `tasks TARGET get ID`, "
            f"or pass --revision {NEWEST_HANDSHAKE}"
        )
    tasks: list[Any] = []
    cursor: str | None = None
    while True:
        page = await client.request("tasks/list", {} if cursor is None else {"cursor": cursor}, timeout=options.timeout)
        tasks.extend(page.tasks)
        cursor = page.next_cursor
        if cursor is None:
            break
    if options.json:
        terminal.json({"tasks": tasks})
    elif not tasks:
        terminal.note("no tasks of this client; without authorization a client sees only those of its own session")
    else:
        terminal.columns(
            [(escape(one.task_id), one.status, escape(one.status_message or "")) for one in tasks], indent=0
        )
    return EXIT_OK
