"""`trunkline auth`: what there is about authorization."""

from trunkline.cli import doctor, logout, status
from trunkline.cli.commands import Commands, explain

__all__ = ["add_to"]


def add_to(commands: Commands) -> None:
    """Adds the command and those below it."""
    told = "find out why authorization fails; see and forget logins"
    parser = commands.add_parser("auth", help=told, description=f"{told.capitalize()}.")
    below = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in (doctor, status, logout):
        command.add_to(below)
    explain(parser)
