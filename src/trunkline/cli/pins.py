"""`trunkline pins`: show the pinned tools of servers, compare and approve changed ones, and remove pins."""

import argparse
from typing import TYPE_CHECKING, Final

from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK, Commands, print_help_by_default
from trunkline.cli.terminal import Terminal, escape
from trunkline.errors import MisuseError

if TYPE_CHECKING:
    from trunkline.trust.pin_store import PinStore

__all__ = ["configure"]

_SHOWN_DIGITS: Final = 12  # of a digest

_EXAMPLES: Final = """\
examples:
  trunkline pins list
  trunkline pins diff weather
  trunkline pins approve weather forecast --digest 1f0c5a9be2d4
  trunkline pins remove weather
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `trunkline pins`."""
    parser.epilog = _EXAMPLES
    below = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in (_add_list, _add_diff, _add_approve, _add_remove):
        add(below)
    print_help_by_default(parser)


def _add_arguments(parser: argparse.ArgumentParser, *, server: bool) -> None:
    parser.add_argument("server", metavar="SERVER", nargs=None if server else "?", help="the name of the server")
    parser.add_argument("tool", metavar="TOOL", nargs="?", help="the name of one tool (default: all)")
    parser.add_argument("--store", metavar="FILE", help="the file with the pins (default: that of the user)")


def _open_store(options: argparse.Namespace) -> "PinStore":
    from trunkline.trust.pin_store import PinStore

    return PinStore(options.store)


# --- list ----------------------------------------------------------------------------------------


def _add_list(commands: Commands) -> None:
    description = "List the pinned tools of all servers or one, and the definitions that wait for approval."
    parser = commands.add_parser("list", help="list pinned tools", description=description)
    _add_arguments(parser, server=False)
    parser.add_argument("--json", action="store_true", help="print the pins as JSON, with all definitions")
    parser.set_defaults(run=_run_list)


def _run_list(options: argparse.Namespace) -> int:
    terminal, store = Terminal(), _open_store(options)
    servers = store.servers()
    if options.server is not None:
        if options.server not in servers:
            raise MisuseError(f"there are no pins of server {options.server!r} in {store.path}")
        servers = {options.server: servers[options.server]}
    if options.json:
        terminal.json(servers)
        return EXIT_OK
    rows: list[tuple[str, str, str, str]] = []
    for server, record in servers.items():
        for tool in dict.fromkeys((*record.pins, *record.waiting)):
            if options.tool not in {None, tool}:
                continue
            pin, waiting = record.pins.get(tool), record.waiting.get(tool)
            state = "pinned" if waiting is None else "new, blocked" if pin is None else "changed, blocked"
            digest = (waiting or pin or record.pins[tool]).digest[:_SHOWN_DIGITS]
            rows.append((escape(server), escape(tool), digest, state))
    terminal.columns(rows, indent=0)
    if not rows:
        terminal.note(f"no pins in {escape(str(store.path))}")
    return EXIT_OK


# --- diff ----------------------------------------------------------------------------------------


def _add_diff(commands: Commands) -> None:
    description = "Compare definitions that wait for approval with the pins. The exit code is 1 if there are any."
    parser = commands.add_parser("diff", help="show how blocked tools have changed", description=description)
    _add_arguments(parser, server=False)
    parser.set_defaults(run=_run_diff)


def _run_diff(options: argparse.Namespace) -> int:
    from trunkline.trust.pins import describe_block

    terminal, blocked = Terminal(), 0
    for server, record in _open_store(options).servers().items():
        for tool, waiting in record.waiting.items():
            if options.server not in {None, server} or options.tool not in {None, tool}:
                continue
            blocked += 1
            found = describe_block(record.pins.get(tool), waiting)
            title = f"{escape(server)} {escape(tool)} {waiting.digest[:_SHOWN_DIGITS]}"
            terminal.line(f"{terminal.styled(title, 'title')}: {found.reason}")
            for line in found.changes:
                style = {"-": "bad", "+": "good"}.get(line.strip()[:1], "dim")
                terminal.line(terminal.styled(f"  {escape(line)}", style))
    terminal.note(f"{blocked} blocked" if blocked else "no tool is blocked")
    return EXIT_FAILURE if blocked else EXIT_OK


# --- approve and remove --------------------------------------------------------------------------


def _add_approve(commands: Commands) -> None:
    description = "Pin the definition of a tool that waits for approval, or of all such tools of a server."
    parser = commands.add_parser("approve", help="trust a changed or new tool", description=description)
    _add_arguments(parser, server=True)
    parser.add_argument("--digest", metavar="DIGEST", help="approve only the definition that `pins diff` has shown")
    parser.set_defaults(run=_run_approve)


def _run_approve(options: argparse.Namespace) -> int:
    if options.digest is not None and options.tool is None:
        raise MisuseError("--digest is for one tool; name it after the server")
    terminal = Terminal()
    names = _open_store(options).approve(options.server, options.tool, digest=options.digest)
    for name in names:
        terminal.line(f"{escape(options.server)} {escape(name)}: approved")
    if not names:
        terminal.note(f"no tool of {escape(options.server)} is blocked")
    return EXIT_OK


def _add_remove(commands: Commands) -> None:
    description = (
        "Remove the pin of a tool, which then needs approval; or all pins of a server, whose tools are pinned as they "
        "are at the next contact."
    )
    parser = commands.add_parser("remove", help="remove pins", description=description)
    _add_arguments(parser, server=True)
    parser.set_defaults(run=_run_remove)


def _run_remove(options: argparse.Namespace) -> int:
    _open_store(options).remove(options.server, options.tool)
    Terminal().line(f"{escape(' '.join(filter(None, (options.server, options.tool))))}: removed")
    return EXIT_OK
