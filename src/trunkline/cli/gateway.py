"""`trunkline gateway`: serve the servers of a configuration file as one."""

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK, end_interrupted_line
from trunkline.cli.connection import split_pairs
from trunkline.cli.run import (
    add_listener_options,
    add_transport_options,
    add_workers_option,
    find_settings,
    read_listener_options,
)
from trunkline.cli.store_location import make_store
from trunkline.cli.terminal import Terminal, escape
from trunkline.config import Settings, has_log_variable
from trunkline.errors import MisuseError

if TYPE_CHECKING:
    from trunkline.gateway.gateway import Gateway

__all__ = ["configure"]

_EXAMPLES: Final = """\
examples:
  trunkline gateway mcp.json                             # on stdio, for a host that starts it
  trunkline gateway mcp.json --http --port 8000          # http://127.0.0.1:8000/mcp
  trunkline gateway mcp.json --http --workers 4          # four processes, each with connections of its own
  trunkline gateway mcp.json --check                     # start all backends, show their states, and end
  trunkline gateway mcp.json --allow-command uvx --allow-command "npx -y some-server"
  kill -HUP PID                                          # read mcp.json again; unchanged backends stay connected

An entry of the file may have options for its backend in a member "trunkline": prefix, include, exclude, timeout, retry,
max_concurrency, max_queue, breaker, lazy, start_timeout, shared, max_principals and idle_seconds.

Tools are pinned at first contact. A tool that changes is blocked until `trunkline pins approve`.

exit codes: 0 after a shutdown, or if all backends are ready (--check); 1 if one is not (--check); 2 for a file or an
option that cannot be used.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("file", metavar="FILE", help="mcpServers of Claude and others, or servers of VS Code")
    add_transport_options(parser)
    add_listener_options(parser)
    add_workers_option(parser)
    parser.add_argument("--name", default="gateway", help="name of the server (gateway)")
    parser.add_argument(
        "--allow-command",
        metavar="COMMAND",
        action="append",
        help="start only commands that begin with these words (default: those of a file that only you can change)",
    )
    parser.add_argument("--no-commands", action="store_true", help="start no commands: use addresses only")
    parser.add_argument(
        "--input", metavar="ID=VALUE", action="append", default=[], help="value for an input of the file (VS Code)"
    )
    parser.add_argument("--pins", metavar="FILE", help="the file with the pins (default: that of the user)")
    parser.add_argument("--no-pins", action="store_true", help="trust tools that have changed")
    parser.add_argument("--no-cache", action="store_true", help="do not store the lists of backends")
    parser.add_argument(
        "--list-wait", metavar="SECONDS", type=float, default=3.0, help="wait of the first lists for new backends (3)"
    )
    parser.add_argument("--check", action="store_true", help="start all backends, show their states, and end")
    parser.epilog = _EXAMPLES
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.check and options.workers is not None:
        raise MisuseError("--check starts the backends once; leave --workers out")
    given = read_listener_options(options, "workers")
    gateway = _make_gateway(options)
    if gateway.server.settings.log_level is None and not has_log_variable() and not logging.getLogger().handlers:
        logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    if options.check:
        from trunkline.event_loop import run

        return run(_check(gateway))
    gateway.server.run(options.transport, **given)
    end_interrupted_line()
    return EXIT_OK


def _make_gateway(options: argparse.Namespace) -> "Gateway":
    from trunkline.gateway.gateway import Gateway
    from trunkline.gateway.launch_policy import LaunchPolicy
    from trunkline.trust.pin_store import PinStore

    if options.no_commands and options.allow_command:
        raise MisuseError("--no-commands forbids what --allow-command allows; leave one of them out")
    if options.no_pins and options.pins is not None:
        raise MisuseError("--pins is the file that --no-pins does not use; leave one of them out")
    launch = LaunchPolicy([] if options.no_commands else options.allow_command)
    settings = {name: setting.value for name, setting in find_settings(options).items()}
    return Gateway(
        Path(options.file),
        name=options.name,
        inputs=dict(split_pairs(options.input, "=", "--input ID=VALUE")),
        launch=launch,
        pins=False if options.no_pins else PinStore(options.pins),
        cache=not options.no_cache,
        list_wait=options.list_wait,
        store=None if options.store is None else make_store(options.store),
        settings=Settings(**settings),
    )


async def _check(gateway: "Gateway") -> int:
    """Start all backends, print their states, and end."""
    terminal = Terminal()
    await gateway.server.start()
    try:
        await gateway.wait_settled()
        statuses = gateway.backends
        rows = [(escape(name), one.state.value, escape(_describe(one))) for name, one in statuses.items()]
        terminal.columns(rows, indent=0)
    finally:
        await gateway.server.aclose()
    return EXIT_OK if all(one.usable for one in statuses.values()) else EXIT_FAILURE


def _describe(status: Any) -> str:
    parts = [
        status.reason,
        f"{len(status.blocked)} tools are blocked, see `trunkline pins diff`" if status.blocked else "",
    ]
    return "; ".join(filter(None, parts))
