"""`trunkline settings`: the settings that a server of `trunkline run` gets here, and where each was set."""

import argparse
from typing import Any, Final, cast

from trunkline.cli.commands import EXIT_OK
from trunkline.cli.run import add_setting_options, find_settings
from trunkline.cli.terminal import Terminal, escape
from trunkline.config import Secret, Settings

__all__ = ["configure"]

_EXAMPLES: Final = """\
examples:
  trunkline settings                       # what is set here, and where
  trunkline settings --all                 # every setting with its value
  trunkline settings --work-timeout 20     # as `trunkline run --work-timeout 20` would have it

precedence:
  1. options of the command line (--work-timeout 20)
  2. environment variables (TRUNKLINE_WORK_TIMEOUT=20)
  3. trunkline.toml in the current folder, or the file of --settings (work_timeout = 20)
  4. the program itself: Server(settings=Settings(work_timeout=20))
  5. the default
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--all", action="store_true", help="also show settings with their default")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_setting_options(parser)
    parser.epilog = _EXAMPLES
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    terminal, found = Terminal(), find_settings(options)
    settings = Settings(**{name: setting.value for name, setting in found.items()})  # checks them together
    shown = [name for name in Settings.__struct_fields__ if options.all or name in found]
    rows = [
        (name, _describe(getattr(settings, name)), found[name].source if name in found else "default") for name in shown
    ]
    if options.json:
        terminal.json({name: {"value": value, "source": source} for name, value, source in rows})
    elif not rows:
        terminal.note("no setting is set here; --all shows the defaults")
    else:
        terminal.columns([(name, escape(value), escape(source)) for name, value, source in rows], indent=0)
    return EXIT_OK


def _describe(value: Any) -> str:
    if value is None:
        return "off"
    if isinstance(value, Secret):
        return "…"
    if isinstance(value, tuple):
        parts = cast("tuple[Any, ...]", value)
        return ", ".join("…" if isinstance(one, Secret) else str(one) for one in parts) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
