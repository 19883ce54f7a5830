"""`trunkline run` and `trunkline dev`: serve a server of a Python file or module."""

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from trunkline.cli.commands import EXIT_OK, end_interrupted_line
from trunkline.cli.loading import load_server
from trunkline.cli.message_log import MessageLog
from trunkline.cli.store_location import is_redis_url, make_store, resolve_location
from trunkline.config import CertificateFiles, Settings, SettingSource, read_settings
from trunkline.errors import MisuseError
from trunkline.server.run.importing import Overrides

if TYPE_CHECKING:
    from trunkline.server.server import Server

__all__ = [
    "add_listener_options",
    "add_setting_options",
    "add_transport_options",
    "configure",
    "configure_dev",
    "find_settings",
    "read_listener_options",
]

SETTINGS_FILE: Final = "trunkline.toml"

_EXAMPLES: Final = """\
examples:
  trunkline run calculator.py                            # on stdio, for a host that starts it
  trunkline run calculator.py --http --port 8000         # http://127.0.0.1:8000/mcp
  trunkline run package.module:app --http --workers 4 --store calls.db
  trunkline run calculator.py --http --reload            # new code at every change; clients stay connected
  trunkline run calculator.py --http --reload --workers 4
  trunkline run calculator.py --tcp --port 9000 --work-timeout 20
  trunkline run calculator.py --http --port 8443 --cert server.pem --key server.key

Every setting is an option, such as --work-timeout; `trunkline settings` lists them. Settings come from options, from
TRUNKLINE_… variables, from trunkline.toml in the current folder, and from the program, in this order.
"""
_DEV_EXAMPLES: Final = """\
examples:
  trunkline dev calculator.py                            # http://127.0.0.1:8000/mcp, with a log of messages
  trunkline dev calculator.py --port 9000 --no-messages
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trunkline run`."""
    parser.add_argument("server", metavar="SERVER", help="FILE.py[:OBJECT] or MODULE[:OBJECT]; OBJECT may be make()")
    add_transport_options(parser)
    add_listener_options(parser)
    add_workers_option(parser)
    parser.add_argument("--reload", action="store_true", help="load the code again when a source file changes")
    parser.epilog = _EXAMPLES
    parser.set_defaults(run=_run, messages=False)


def add_workers_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for the number of processes."""
    parser.add_argument("--workers", metavar="N", type=int, help="number of processes that serve HTTP together")


def configure_dev(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trunkline dev`."""
    parser.add_argument("server", metavar="SERVER", help="FILE.py[:OBJECT] or MODULE[:OBJECT]; OBJECT may be make()")
    add_listener_options(parser)
    parser.add_argument("--no-messages", dest="messages", action="store_false", help="do not print messages")
    parser.epilog = _DEV_EXAMPLES
    parser.set_defaults(run=_run, transport="http", reload=True, workers=None)


def add_transport_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each transport."""
    transport = parser.add_mutually_exclusive_group()
    abouts = {
        "stdio": "standard input and output (default)",
        "http": "HTTP, with SSE and WebSocket",
        "tcp": "TCP",
        "unix": "a Unix socket",
    }
    for name, about in abouts.items():
        transport.add_argument(
            f"--{name}", dest="transport", action="store_const", const=name, help=f"serve over {about}"
        )
    parser.set_defaults(transport="stdio")


def add_listener_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a listener, of the store and of settings."""
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (8000 for HTTP)")
    parser.add_argument("--path", help="path of the endpoint (/mcp), or of the socket with --unix")
    parser.add_argument("--uds", metavar="FILE", help="serve HTTP on this Unix socket")
    parser.add_argument("--cert", metavar="FILE", help="serve over TLS with the certificates of this PEM file")
    parser.add_argument("--key", metavar="FILE", help="private key of --cert, if that file does not have it")
    parser.add_argument(
        "--store", metavar="URL-OR-PATH", help="SQLite file, Redis URL or env:NAME, for sessions and tasks"
    )
    add_setting_options(parser)


def read_listener_options(options: argparse.Namespace, *others: str) -> dict[str, Any]:
    """Return the arguments of `Server.run` besides the transport. Raises `MisuseError` for an option that the transport
    does not use."""
    from trunkline.server.run.process import TRANSPORT_OPTIONS

    given = {name: getattr(options, name) for name in ("host", "port", "path", "uds", *others)}
    if options.cert is not None:
        given["tls"] = CertificateFiles(options.cert, options.key)
    elif options.key is not None:
        raise MisuseError("--key needs --cert")
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in TRANSPORT_OPTIONS[options.transport]:
            used = " or ".join(f"--{kind}" for kind, names in TRANSPORT_OPTIONS.items() if name in names)
            raise MisuseError(f"--{'cert' if name == 'tls' else name} needs {used}")
    if options.transport == "unix" and "path" not in given:
        raise MisuseError("--unix needs the path of the socket: --path /run/server.sock")
    return given


def add_setting_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each setting, and one for the settings file."""
    parser.add_argument("--settings", metavar="FILE", help=f"settings file ({SETTINGS_FILE}, if it exists)")
    for name in Settings.__struct_fields__:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=f"setting {name}", help=argparse.SUPPRESS)


def find_settings(options: argparse.Namespace) -> dict[str, SettingSource]:
    """Return the settings of the command line, the environment and the settings file."""
    given: Mapping[str, Any] = vars(options)
    flags = {
        name.removeprefix("setting "): text
        for name, text in given.items()
        if name.startswith("setting ") and text is not None
    }
    path: str | None = options.settings
    if path is None and os.path.exists(SETTINGS_FILE):
        path = SETTINGS_FILE
    return read_settings(path, flags=flags)


def _run(options: argparse.Namespace) -> int:
    if options.store is not None:
        is_redis_url(resolve_location(options.store))  # fails here, and not while the program is imported
    given = read_listener_options(options, "workers")
    log = MessageLog() if options.messages else None
    overrides = Overrides(
        {name: setting.value for name, setting in find_settings(options).items()},
        None if options.store is None else lambda: make_store(options.store),
        () if log is None else (log,),
    )
    if options.reload:
        sys.dont_write_bytecode = True  # its time has whole seconds: two changes in one would be one
    with contextlib.redirect_stdout(sys.stderr):  # output of the program must not reach the client
        server = load_server(options.server, overrides)
    if log is not None:
        server.middleware(log.show_contents)
    with _reloading(server, options, overrides) if options.reload else contextlib.nullcontext():
        server.run(options.transport, **given)
    end_interrupted_line()
    return EXIT_OK


def _reloading(
    server: "Server", options: argparse.Namespace, overrides: Overrides
) -> contextlib.AbstractContextManager[None]:
    """Load changed code into a server that runs in this block."""
    from trunkline.cli.reload import Reloader
    from trunkline.server.run.workers import reloading_code

    reloader = Reloader(server, options.server, overrides, _report)
    if options.workers is None:
        reloader.start()
    return reloading_code(reloader)


def _report(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
