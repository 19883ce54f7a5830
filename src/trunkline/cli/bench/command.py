"""`trunkline bench`: load test of a server."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from trunkline.cli.arguments import parse_arguments
from trunkline.cli.bench.live import show_progress
from trunkline.cli.bench.load import Send, apply_load, now
from trunkline.cli.bench.measurement import TIMEOUT, Measurement, Outcome, Plan
from trunkline.cli.bench.report import render_report
from trunkline.cli.bench.summary import find_remarks, summarize
from trunkline.cli.call import find_tool
from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK
from trunkline.cli.connection import (
    TARGET_HELP,
    add_target_options,
    connect,
    make_target,
    names_python,
    run_to_exit_code,
    set_variables,
)
from trunkline.cli.serving import run_command, serve_http
from trunkline.cli.signatures import describe_tool
from trunkline.cli.terminal import Terminal, escape
from trunkline.config import Settings
from trunkline.errors import (
    ConnectionClosed,
    MisuseError,
    PeerError,
    RequestTimeout,
    TransportError,
    TrunklineError,
)
from trunkline.protocol.meta import REFUSAL
from trunkline.protocol.types import CallToolResult, TextContent

if TYPE_CHECKING:
    from trunkline.client.client import Client

__all__ = ["configure"]

_EXAMPLES: Final = """\
examples:
  trunkline bench calculator.py add a=5 b=3                     # 10 requests at a time, for 10 seconds
  trunkline bench https://example.org/mcp --rate 200 --duration 60 --connections 20
  trunkline bench calculator.py --http --concurrency 50 --report report.html
  trunkline bench "npx -y some-server" search query=x --json

With --rate, requests start at fixed times whether or not earlier ones have ended, and their latency counts from there.
With --concurrency, each request waits for another one to end, so a server that stalls also slows down the load.
Without a TOOL the requests are pings. A Python file is served by processes of its own: on stdio one for each
connection, with --http one for all. The client repeats no request. The exit code is 1 if a request failed.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_target_options(parser)
    parser.add_argument("tool", metavar="TOOL", nargs="?", help="the tool to call; pings without one")
    parser.add_argument(
        "arguments",
        metavar="ARGUMENT",
        nargs="*",
        default=[],
        help="key=value, key:=JSON, key=@file, @file or a JSON object",
    )
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--rate", metavar="N", type=float, help="requests per second (open loop)")
    load.add_argument("--concurrency", metavar="N", type=int, default=10, help="requests at a time (closed loop, 10)")
    parser.add_argument("--duration", metavar="SECONDS", type=float, default=10.0, help="measured time (10)")
    parser.add_argument("--warm-up", metavar="SECONDS", type=float, default=1.0, help="time before it (1)")
    parser.add_argument("--connections", metavar="N", type=int, default=1, help="connections that share the load (1)")
    parser.add_argument("--http", action="store_true", help="serve a Python file over HTTP instead of stdio")
    parser.add_argument("--report", metavar="FILE.html", help="write a report with plots")
    parser.epilog = f"{_EXAMPLES}\n{TARGET_HELP}"
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    plan, terminal = _make_plan(options), Terminal()
    _check_report(options.report)
    return run_to_exit_code(_bench(plan, options, terminal), terminal)


def _make_plan(options: argparse.Namespace) -> Plan:
    least: Mapping[str, Any] = {
        "--duration": options.duration,
        "--connections": options.connections,
        "--concurrency": options.concurrency,
        "--timeout": options.timeout,
        **({} if options.rate is None else {"--rate": options.rate}),
    }
    for name, value in least.items():
        if not 0 < value < float("inf"):
            raise MisuseError(f"{name} must be greater than 0, not {value:g}")
    if not 0 <= options.warm_up < float("inf"):
        raise MisuseError(f"--warm-up must not be negative, but is {options.warm_up:g}")
    return Plan(
        rate=options.rate,
        concurrency=options.concurrency,
        connections=options.connections,
        duration=options.duration,
        warm_up=options.warm_up,
    )


def _check_report(path: str | None) -> None:
    """Fail before the run if the report could not be written after it."""
    if path is None:
        return
    folder = Path(path).absolute().parent
    if not folder.is_dir() or Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise MisuseError(f"cannot write the report {path}: {folder} must be a folder that you may write to")


async def _bench(plan: Plan, options: argparse.Namespace, terminal: Terminal) -> int:
    async with contextlib.AsyncExitStack() as stack:
        target = await _choose_target(options, terminal, stack)
        settings = Settings(retry_rate=None)  # a refusal is a result
        clients: list[Client] = []
        for _ in range(plan.connections):
            connecting = connect(options, terminal, target, settings=settings, asks=False)
            clients.append(await stack.enter_async_context(connecting))
        request, params = await _make_request(clients[0], options)
        senders = [_sender(client, request, params, options.timeout) for client in clients]
        words = request if params is None else f"{request} {params['name']}"
        title = f"{words}: {plan.describe()}"
        if not options.json:
            terminal.note(escape(title))
        measurement = Measurement(plan, now())
        try:
            async with show_progress(measurement, escape(title), terminal):
                await apply_load(measurement, senders)
        finally:  # also after Ctrl+C
            measurement.reconnections = sum(client.losses for client in clients)
            info = clients[0].server_info
            server = "unknown" if info is None else f"{info.name} {info.version}"
            _print(measurement, {"target": options.target, "server": server, "request": words}, options, terminal)
        return EXIT_FAILURE if measurement.failed or measurement.unsent else EXIT_OK


async def _choose_target(options: argparse.Namespace, terminal: Terminal, stack: contextlib.AsyncExitStack) -> Any:
    """Return the target of the clients. A server of ours runs in processes of its own, not in that of its load."""
    text: str = options.target
    if not names_python(text):
        if options.http:
            raise MisuseError("--http is for Python files and modules")
        return text
    show: Callable[[str], None] | None = (lambda line: terminal.note(escape(line))) if options.stderr else None
    set_variables(options)
    if options.http:
        return await stack.enter_async_context(serve_http(text, show))
    from trunkline.server.server import Server

    made = make_target(text, options, terminal)
    if not isinstance(made, Server):
        return made
    from trunkline.transports.stdio.client import Command

    return Command(run_command(text), env=os.environ, on_stderr=show)


async def _make_request(client: "Client", options: argparse.Namespace) -> tuple[str, dict[str, Any] | None]:
    """Return the method and the params of the requests; no params for pings."""
    if options.tool is None:
        return "ping", None
    tool = await find_tool(client, options.tool)
    try:
        arguments = parse_arguments(options.arguments, tool.input_schema)
    except MisuseError as error:
        raise MisuseError(f"{error}\nusage: {escape(describe_tool(tool))}") from None
    return "tools/call", {"name": tool.name, "arguments": arguments}


def _sender(client: "Client", method: str, params: dict[str, Any] | None, timeout: float) -> Send:
    async def send() -> Outcome:
        try:
            if params is None:
                await client.ping(timeout=timeout)
                return _SUCCESS
            result = await client.request(method, params, timeout=timeout)
        except TrunklineError as error:
            return Outcome(_kind_of(error), str(error))
        if isinstance(result, CallToolResult) and result.is_error:
            refusal: Any = (result.meta or {}).get(REFUSAL)
            kind = cast("dict[str, Any]", refusal).get("name") if isinstance(refusal, dict) else None
            return Outcome(
                str(kind or "tool_error"),
                next((one.text for one in result.content if isinstance(one, TextContent)), ""),
            )
        return _SUCCESS

    return send


_SUCCESS: Final = Outcome()


def _kind_of(error: TrunklineError) -> str:
    """Return the name under which an error is counted."""
    match error:
        case RequestTimeout():
            return TIMEOUT
        case ConnectionClosed():
            return "connection_closed"
        case TransportError():
            return "transport_error"
        case PeerError():
            data: Any = error.data
            kind: Any = cast("dict[str, Any]", data).get("kind") if isinstance(data, dict) else None
            return kind if isinstance(kind, str) else f"error {error.code}"
        case _:
            return str(getattr(error, "kind", type(error).__name__))


def _print(measurement: Measurement, about: dict[str, str], options: argparse.Namespace, terminal: Terminal) -> None:
    if options.json:
        terminal.json({**about, **measurement.as_json()})
    else:
        for line in summarize(measurement):
            terminal.line(line)
    for remark in find_remarks(measurement):
        terminal.note(f"note: {remark}")
    if options.report is not None:
        date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        page = render_report(measurement, date=date, **about)
        Path(options.report).write_text(page, "utf-8", errors="backslashreplace")
        terminal.note(f"report: {options.report}")
    sys.stdout.flush()
