"""`trunkline watch`: print the notifications of a server as they arrive."""

import argparse
from typing import TYPE_CHECKING, Final

from trunkline.cli.commands import EXIT_OK
from trunkline.cli.connection import TARGET_HELP, add_target_options, positive_int, run_with_client
from trunkline.cli.terminal import Terminal, escape
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.client.client import Client

__all__ = ["configure"]

_EXAMPLES: Final = """\
examples:
  trunkline watch https://example.org/mcp                     # list changes and log messages, until Ctrl+C
  trunkline watch server.py docs://readme docs://news         # updates of these resources as well
  trunkline watch https://example.org/mcp --count 1 --json    # the next notification
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_target_options(parser)
    parser.add_argument("uris", metavar="URI", nargs="*", default=[], help="resources to subscribe to")
    parser.add_argument("--count", type=positive_int, help="stop after this many notifications")
    parser.epilog = f"{_EXAMPLES}\n{TARGET_HELP}"
    parser.set_defaults(run=run_with_client(_watch))


async def _watch(client: "Client", options: argparse.Namespace, terminal: Terminal) -> int:
    reader = client.notifications()
    for uri in options.uris:
        await client.subscribe(uri, timeout=options.timeout)
    terminal.note("waiting for notifications; Ctrl+C ends")
    count = 0
    async for notification in reader:
        if options.json:
            terminal.json({"method": notification.method, "params": notification.params})
        else:
            params = escape(codec.to_json(notification.params).decode())
            terminal.line(f"{terminal.styled(escape(notification.method), 'name')}  {params}")
        count += 1
        if count == options.count:
            break
    return EXIT_OK
