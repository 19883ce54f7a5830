"""The access log: one line for each request."""

import json
import logging
import os
import subprocess
import sys
from hashlib import blake2s
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.trace import NoOpTracerProvider
from tests.limits import PATIENCE
from tests.telemetry import Telemetry, trace_of
from tests.unit.transports.http.asgi import hosted

from trunkline import OpenTelemetry, Server
from trunkline.auth import Principal
from trunkline.errors import MisuseError
from trunkline.facts import CallEnded
from trunkline.observers.access_log import AccessLog
from trunkline.testing import RawPeer

TRACE = "0af7651916cd43dd8448eb211c80319c"
ENDED = CallEnded(
    connection=3,
    at=1.0,
    request=7,
    method="tools/call",
    target="search",
    outcome="ok",
    code=None,
    seconds=0.0125,
    wait_seconds=0.002,
    run_seconds=0.01,
    send_seconds=0.0005,
    transport="http",
    revision="2025-11-25",
    session="0123456789ab",
    principal="alice",
    traceparent=f"00-{TRACE}-b7ad6b7169203331-01",
    request_size=87,
    response_size=212,
)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, "trunkline.access")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "trunkline.access"]


def test_line_has_what_an_operator_searches_for(lines: Any) -> None:
    AccessLog().on(ENDED)
    (line,) = lines()
    assert line == (
        "method=tools/call name=search outcome=ok ms=12.5 wait_ms=2.0 in=87 out=212 transport=http "
        f"revision=2025-11-25 connection=3 session=0123456789ab principal=alice trace={TRACE}"
    )


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0.0"), (0.0000004, "0.0"), (0.000052, "0.052"), (0.01, "10.0"), (0.0125, "12.5"), (3600.0, "3600000.0")],
)
def test_durations_are_in_milliseconds_with_at_most_three_digits(
    lines: Any, seconds: float, shown: str, style: Any
) -> None:
    AccessLog(format=style).on(replace(ENDED, seconds=seconds, wait_seconds=seconds))
    mark = "=" if style == "text" else '":'
    after = " " if style == "text" else ","
    assert lines()[0].count(f"ms{mark}{shown}{after}") == 2  # in all, and before the handler


def test_line_of_a_failure_has_kind_and_incident(lines: Any) -> None:
    failed = replace(ENDED, outcome="error", code=-32603, kind="internal_error", reference="a1b2c3")
    AccessLog().on(failed)
    assert "outcome=error kind=internal_error code=-32603 incident=a1b2c3 " in lines()[0]


def test_json_line_has_the_same_members(lines: Any) -> None:
    AccessLog(format="json").on(ENDED)
    members = json.loads(lines()[0])
    assert members.pop("time").endswith("Z")
    expected = {"level": "info", "logger": "trunkline.access", "method": "tools/call", "name": "search"}
    expected |= {"outcome": "ok", "ms": 12.5, "wait_ms": 2.0, "in": 87, "out": 212, "transport": "http"}
    expected |= {"revision": "2025-11-25", "connection": 3, "session": "0123456789ab"}
    assert members == {**expected, "principal": "alice", "trace": TRACE}


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize(
    "target", ["a\nmethod=forged", "\x1b[2Jcleared", "\u202eevil", "x" * 5000, 'quo"te', "back\\slash"]
)
def test_text_of_the_client_stays_on_one_printable_line(lines: Any, target: str, style: Any) -> None:
    AccessLog(format=style).on(replace(ENDED, target=target, method=target, principal=target))
    (line,) = lines()
    assert line.isprintable()
    assert len(line) < 1500
    assert " method=forged" not in line


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://host/doc?token=secret", "https://host/doc?…"),
        ("https://user:secret@host/doc", "https://host/doc"),
        ("doc://1", "doc://1"),
    ],
)
def test_uri_is_shown_without_its_secrets(lines: Any, uri: str, shown: str) -> None:
    AccessLog().on(replace(ENDED, method="resources/read", target=uri))
    assert f"name={shown} " in lines()[0]
    assert "secret" not in lines()[0]


def test_principals_may_be_hashed_or_left_out(lines: Any) -> None:
    for principals in ("hashed", "hashed", "off"):
        AccessLog(principals=principals).on(ENDED)
    first, second, off = lines()
    assert first == second
    assert "principal=" in first
    assert "alice" not in first
    assert "principal" not in off


def test_invalid_trace_context_is_left_out(lines: Any) -> None:
    for invalid in ("no trace", f"00-{TRACE}-x", TRACE):
        AccessLog().on(replace(ENDED, traceparent=invalid))
    assert not any("trace" in line for line in lines())


async def test_line_of_a_traced_server_has_the_trace_of_its_span(lines: Any) -> None:
    telemetry = Telemetry()
    server = Server("traced", observers=[AccessLog(), telemetry.observer()])
    server.add_tool(lambda: None, name="nothing")
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.request("tools/list", {"_meta": {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}})
    await server.aclose()
    own, stated = (trace_of(telemetry.one(name)) for name in ("initialize", "tools/list"))
    assert [line.rpartition(" trace=")[2] for line in lines()] == [own, stated]
    assert stated == TRACE != own


async def test_line_has_the_stated_trace_if_no_sdk_is_configured(lines: Any) -> None:
    server = Server("traced", observers=[AccessLog(), OpenTelemetry(tracer_provider=NoOpTracerProvider())])
    server.add_tool(lambda: None, name="nothing")
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.request("tools/list", {"_meta": {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}})
    await server.aclose()
    assert ["trace=" in line for line in lines()] == [False, True]


def test_pings_are_logged_on_demand(lines: Any) -> None:
    ping = replace(ENDED, method="ping", target=None)
    AccessLog().on(ping)
    assert lines() == []
    AccessLog(probes=True).on(ping)
    assert len(lines()) == 1


@pytest.mark.parametrize("options", [{"format": "xml"}, {"principals": "all"}])
def test_unknown_option_is_refused(options: Any) -> None:
    with pytest.raises(MisuseError, match="AccessLog"):
        AccessLog(**options)


async def test_each_request_has_one_line_without_its_arguments(lines: Any) -> None:
    server = Server("t", observers=[AccessLog()])

    @server.tool
    async def login(password: str) -> str:
        return f"welcome with {password}"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "login", "arguments": {"password": "hunter2"}})
        await peer.request("tools/call", {"name": "no such tool"})
        await peer.request("no/such")
        await peer.request("ping")
    await server.observers.drain(PATIENCE)
    assert [line.partition(" ms=")[0] for line in lines()] == [
        "method=initialize outcome=ok",
        "method=tools/call name=login outcome=ok",
        'method=tools/call name="no such tool" outcome=error kind=tool_not_found code=-32602',
        "method=no/such outcome=refused kind=method_not_found code=-32601",
    ]
    assert "hunter2" not in "".join(lines())


# --- over HTTP ------------------------------------------------------------------------------------------------------

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}


async def test_session_is_logged_by_a_digest_and_caller_by_its_subject(lines: Any) -> None:
    server = Server("t", observers=[AccessLog(probes=True)])
    async with hosted(server) as host:
        host.app = server.asgi(identify=lambda _: Principal("alice"))
        opened = await host.ask("POST", {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE})
        ident = opened.headers["mcp-session-id"]
        traced = {"mcp_session_id": ident, "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        await host.ask("POST", {"jsonrpc": "2.0", "id": 2, "method": "ping"}, **traced)
        await server.observers.drain(PATIENCE)
    first, second = lines()
    digest = blake2s(ident.encode(), digest_size=6).hexdigest()
    assert f" session={digest} principal=alice" in first
    assert second.startswith("method=ping outcome=ok ")
    assert second.endswith(f" session={digest} principal=alice trace={TRACE}")
    assert ident not in first + second


async def test_refused_http_requests_are_logged_without_their_query_and_health_probes_are_not(lines: Any) -> None:
    server = Server("t", observers=[AccessLog()])
    async with hosted(server) as host:
        host.app = server.asgi()
        for path in ("/livez", "/readyz", "/nothing/here?token=secret"):
            await host.ask("GET", None, path=path)
        await host.ask("POST", {}, host="elsewhere.example")
        await server.observers.drain(PATIENCE)
    missing, denied = lines()
    assert missing.startswith("method=GET path=/nothing/here status=404 outcome=refused kind=not_found transport=http")
    assert denied.startswith("method=POST path=/ status=403 outcome=refused kind=access_denied transport=http")
    assert "secret" not in missing


# --- as a process ---------------------------------------------------------------------------------------------------

PROGRAM = """
import logging
from trunkline import Server
from trunkline.auth import Principal
server = Server("t")

@server.tool
async def fail() -> None:
    raise ValueError("reason")

if __name__ == "__main__":
    server.run()
"""
MESSAGES = [
    {
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}},
    },
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/call", "params": {"name": "fail"}},
]


def serve(command: list[str], folder: Path, environ: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Call the tool of a server on stdio; return the result, and the lines on standard error."""
    text = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in MESSAGES)
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("TRUNKLINE_")}, **environ}
    done = subprocess.run(
        [sys.executable, *command], input=text, text=True, capture_output=True, cwd=folder, env=environment, check=True
    )
    reply = next(line for line in map(json.loads, done.stdout.splitlines()) if line["id"] == 2)
    return reply["result"], done.stderr.splitlines()


RUN = ["-m", "trunkline", "run", "server.py"]


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        ([*RUN, "--log-level", "info", "--log-format", "json"], {}),
        (RUN, {"TRUNKLINE_LOG": "info,json"}),
        (RUN, {"TRUNKLINE_LOG": "json"}),
        (RUN, {"TRUNKLINE_LOG_LEVEL": "info", "TRUNKLINE_LOG_FORMAT": "json"}),
        (["server.py"], {"TRUNKLINE_LOG": "info,json"}),
    ],
)
def test_process_logs_requests_and_failures_under_one_incident(
    command: list[str], environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "server.py").write_text(PROGRAM)
    result, stderr = serve(command, tmp_path, environ)
    records = [json.loads(line) for line in stderr]
    incident = result["_meta"]["trunkline/error"]["reference"]
    failure = next(record for record in records if record["level"] == "error")
    assert incident in failure["message"]
    assert "ValueError: reason" in failure["traceback"]
    access = [record for record in records if record["logger"] == "trunkline.access"]
    assert [record["method"] for record in access] == ["initialize", "tools/call"]
    assert (access[1]["name"], access[1]["outcome"], access[1]["incident"]) == ("fail", "failed", incident)
    assert access[1]["transport"] == "stdio"


@pytest.mark.parametrize(
    ("options", "logged"), [([], False), (["--log-level", "warning"], False), (["--log-level", "info"], True)]
)
def test_requests_are_logged_from_level_info_on(options: list[str], logged: bool, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(PROGRAM)
    _, stderr = serve([*RUN, *options], tmp_path, {})
    assert any("ValueError: reason" in line for line in stderr)
    assert any(" INFO trunkline.access method=tools/call name=fail " in line for line in stderr) == logged


def test_wrong_variable_is_explained(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "server.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TRUNKLINE_LOG": "loud"},
        input="",
        check=False,
    )
    assert done.returncode != 0
    assert "TRUNKLINE_LOG must be a level (debug, info, warning, error)" in done.stderr
    assert "Traceback" not in done.stderr
