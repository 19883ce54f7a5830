"""`trunkline bench`: the figures, the load generator, the report and the command."""

import asyncio
import json
import sys
import time
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
from tests.limits import PATIENCE
from tests.unit.cli.commands import trunkline
from tests.unit.cli.screen import screen_of

from trunkline.cli.bench import load
from trunkline.cli.bench.histogram import LatencyHistogram
from trunkline.cli.bench.live import status_line
from trunkline.cli.bench.load import apply_load, now
from trunkline.cli.bench.measurement import TIMEOUT, Measurement, Outcome, Plan
from trunkline.cli.bench.report import render_report
from trunkline.cli.bench.summary import find_remarks, format_seconds, summarize

SERVER = """
import asyncio
from trunkline import Server, ToolError

server = Server("shop <b>", version="2.0")
calls = 0

@server.tool
async def add(a: int, b: int = 1) -> int:
    return a + b

@server.tool
async def fail() -> str:
    raise ToolError("no <script>alert(1)</script> \\x1b[31mstock")

@server.tool
async def stall() -> str:
    await asyncio.Event().wait()
    return "never"

server.run()
"""
SUCCESS = Outcome()


@pytest.fixture
def server(tmp_path: Path) -> str:
    path = tmp_path / "shop.py"
    path.write_text(SERVER)
    return str(path)


def plan(**changes: object) -> Plan:
    usual = {"rate": None, "concurrency": 1, "connections": 1, "duration": 10.0, "warm_up": 1.0}
    return Plan(**usual | changes)  # type: ignore[arg-type]


# --- figures -------------------------------------------------------------------------------------


def test_percentiles_are_within_one_percent_and_never_too_low() -> None:
    histogram = LatencyHistogram()
    for milliseconds in range(1, 1001):
        histogram.record(milliseconds / 1000)
    for percent in (1, 50, 90, 99, 100):
        assert percent / 100 <= histogram.percentile(percent) <= percent / 100 * 1.01
    assert (histogram.max, histogram.count, round(histogram.mean, 6)) == (1.0, 1000, 0.5005)


def test_empty_histogram_has_zeros() -> None:
    histogram = LatencyHistogram()
    assert (histogram.percentile(99), histogram.mean, histogram.max, [*histogram.buckets()]) == (0.0, 0.0, 0.0, [])


def test_buckets_cover_every_latency() -> None:
    histogram = LatencyHistogram()
    for seconds in (0.0, 1e-6, 0.5, 1.0, 3600.0):
        histogram.record(seconds)
    buckets = [*histogram.buckets()]
    assert sum(bucket.count for bucket in buckets) == 5
    assert all(before.high <= after.low for before, after in pairwise(buckets))
    assert buckets[-1].low <= 3600.0 < buckets[-1].high


def test_requests_of_the_warm_up_are_not_measured() -> None:
    measured = Measurement(plan(), started=0.0)
    for intended in (0.0, 0.999, 1.0):
        measured.begin(intended, intended)
        measured.end(intended, intended + 0.5, SUCCESS)
    assert (measured.requests, measured.latencies.count, measured.throughput) == (1, 1, 0.1)


def test_latency_counts_from_the_intended_start() -> None:
    measured = Measurement(plan(rate=1.0), started=0.0)
    measured.begin(2.0, 5.0)
    measured.end(2.0, 5.5, SUCCESS)
    assert measured.latencies.max == 3.5
    assert measured.delays.max == 3.0
    assert any("started 3.00 s late" in remark for remark in find_remarks(measured))


def test_timeouts_count_as_latency_and_other_errors_do_not() -> None:
    measured = Measurement(plan(), started=0.0)
    for kind, took in ((TIMEOUT, 4.0), ("refused", 0.001), (None, 0.5)):
        measured.begin(2.0, 2.0)
        measured.end(2.0, 2.0 + took, Outcome(kind, "why"))
    assert (measured.latencies.count, measured.latencies.max) == (2, 4.0)
    assert {kind: error.count for kind, error in measured.errors.items()} == {TIMEOUT: 1, "refused": 1}
    assert (measured.failed, measured.responses_in_run) == (2, 1)


def test_late_response_counts_as_latency_but_not_as_throughput() -> None:
    measured = Measurement(plan(), started=0.0)
    measured.begin(10.5, 10.5)
    measured.end(10.5, 12.0, SUCCESS)
    assert (measured.latencies.count, measured.throughput) == (1, 0.0)


def test_interrupted_run_is_measured_until_then() -> None:
    measured = Measurement(plan(), started=0.0)
    for intended in (2.0, 3.0):
        measured.begin(intended, intended)
    measured.end(2.0, 2.5, SUCCESS)
    measured.interrupt(5.0)
    assert (measured.seconds, measured.throughput, measured.unfinished) == (4.0, 0.25, 1)
    assert find_remarks(measured) == ["interrupted; 1 requests had no response yet"]
    assert len(measured.measured_intervals()) == 24
    assert measured.as_json()["interrupted"] is True


def test_interrupted_warm_up_has_no_figures() -> None:
    measured = Measurement(plan(), started=0.0)
    measured.interrupt(0.5)
    assert (measured.seconds, measured.throughput, measured.measured_intervals()) == (0.0, 0.0, [])
    assert "throughput  0.0 responses per second" in summarize(measured)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0"), (4.2e-6, "4.20 µs"), (0.00123, "1.23 ms"), (0.0123, "12.3 ms"), (0.99999, "1.00 s"), (120.0, "120 s")],
)
def test_durations_have_three_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_status_line_says_the_phase() -> None:
    measured = Measurement(plan(), started=0.0)
    assert status_line(measured, 0.5) == "warming up, 0 s left"
    measured.begin(2.0, 2.0)
    measured.end(2.0, 2.5, Outcome("refused"))
    assert status_line(measured, 6.0) == "5 of 10 s  0/s  p50 0  p99 0  1 errors"
    assert status_line(measured, 12.0).endswith("waiting for the last responses")


# --- load generator ------------------------------------------------------------------------------


async def test_closed_loop_keeps_to_its_concurrency() -> None:
    running = most = 0

    async def send() -> Outcome:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return SUCCESS

    measured = Measurement(plan(concurrency=3, duration=1.0, warm_up=0.0), now())
    await apply_load(measured, [send])
    assert most == 3
    assert measured.requests == measured.ended >= 3


async def test_open_loop_sends_without_waiting_for_responses() -> None:
    release = asyncio.Event()
    sent = 0

    async def send() -> Outcome:
        nonlocal sent
        sent += 1
        if sent == 20:
            release.set()
        await asyncio.wait_for(release.wait(), PATIENCE)  # the first 19 have no response yet
        return SUCCESS

    measured = Measurement(plan(rate=100.0, duration=0.2, warm_up=0.0), now())
    await apply_load(measured, [send])
    assert sent == measured.ended == 20
    assert measured.latencies.max >= 0.19  # the first one waited for the last one's start


async def test_stall_of_the_event_loop_is_part_of_later_latencies() -> None:
    """One blocked moment delays every request that was due meanwhile, though each of them is answered at once."""
    sent = 0

    async def send() -> Outcome:
        nonlocal sent
        sent += 1
        if sent == 2:
            time.sleep(0.2)
        return SUCCESS

    measured = Measurement(plan(rate=100.0, duration=0.3, warm_up=0.0), now())
    await apply_load(measured, [send])
    assert sent == 30
    assert sum(bucket.count for bucket in measured.latencies.buckets() if bucket.low > 0.09) >= 10


async def test_requests_that_a_full_queue_held_back_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_MAX_PENDING", 2)
    measured = Measurement(plan(rate=100.0, duration=0.2, warm_up=0.0), now())

    async def send() -> Outcome:
        await asyncio.sleep(max(measured.ends - now(), 0) + 0.01)
        return SUCCESS

    await apply_load(measured, [send])
    assert measured.requests + measured.unsent == 20
    assert measured.unsent == 18
    assert any("18 requests were due but never sent" in remark for remark in find_remarks(measured))


async def test_load_is_spread_over_connections() -> None:
    counts = [0, 0, 0]

    def sender(number: int) -> load.Send:
        async def send() -> Outcome:
            counts[number] += 1
            return SUCCESS

        return send

    measured = Measurement(plan(rate=90.0, duration=0.2, warm_up=0.0), now())
    await apply_load(measured, [sender(number) for number in range(3)])
    assert counts == [6, 6, 6]


# --- report --------------------------------------------------------------------------------------


def test_report_is_self_contained_and_escapes_all_text() -> None:
    measured = Measurement(plan(), started=0.0)
    for number in range(100):
        measured.begin(2.0, 2.0)
        measured.end(2.0, 2.001 + number / 50, SUCCESS)
    measured.begin(3.0, 3.0)
    measured.end(3.0, 3.5, Outcome("<kind>", "<script>alert(1)</script>"))
    evil = '"><img src=x onerror=alert(1)>'
    page = render_report(measured, target=evil, request=evil, server=evil, date="2026-01-01")
    assert "<img" not in page
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "http://" not in page
    assert "https://" not in page
    drawings = [ET.fromstring(part + "</svg>") for part in _drawings(page)]
    assert [drawing.get("aria-label") for drawing in drawings] == [
        "histogram of latencies",
        "responses and errors per second over time",
    ]
    bars = drawings[0].findall("rect")
    assert sum(int(str(bar.findtext("title")).split()[0]) for bar in bars) == 100
    assert len(drawings[1].findall("polyline")) == 2


def _drawings(page: str) -> list[str]:
    return ["<svg" + part.partition("</svg>")[0] for part in page.split("<svg")[1:]]


def test_report_without_responses_has_no_plot_of_latencies() -> None:
    measured = Measurement(plan(), started=0.0)
    measured.interrupt(0.5)
    page = render_report(measured, target="x", request="ping", server="s", date="d")
    assert "No responses." in page
    assert "too early" in page


# --- command -------------------------------------------------------------------------------------


async def test_bench_of_a_file_prints_figures_and_writes_a_report(server: str, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    ended = await trunkline(
        *("bench", server, "add", "a=1", "--duration", "0.5", "--warm-up", "0.1", "--json", "--report", str(report))
    )
    assert ended.status == 0, ended.err
    figures = json.loads(ended.out)
    assert (figures["request"], figures["server"], figures["errors"]) == ("tools/call add", "shop <b> 2.0", {})
    assert figures["requests"] > 0
    assert 0 < figures["latency"]["p50"] <= figures["latency"]["p99"] <= figures["latency"]["max"]
    assert sys.platform != "linux" or figures["serverCpuSeconds"] is not None
    assert "shop &lt;b&gt;" in report.read_text()


async def test_bench_pings_at_a_rate_over_several_http_connections(server: str) -> None:
    ended = await trunkline(
        *("bench", server, "--http", "--rate", "50", "--connections", "3", "--duration", "1", "--warm-up", "0")
    )
    assert ended.status == 0, ended.err
    assert "requests    50 in 1 s" in ended.out
    assert "ping: 50 per second (open loop), 3 connections" in ended.err


async def test_errors_are_counted_by_kind_and_escaped(server: str) -> None:
    ended = await trunkline("bench", server, "fail", "--duration", "0.2", "--warm-up", "0", "--concurrency", "1")
    assert ended.status == 1
    assert " tool_error: no <script>alert(1)</script> \\x1b[31mstock" in ended.out
    assert "\x1b" not in ended.out


async def test_timeouts_are_errors(server: str) -> None:
    ended = await trunkline(
        *("bench", server, "stall", "--duration", "0.1", "--warm-up", "0", "--timeout", "0.3", "--json")
    )
    figures = json.loads(ended.out)
    assert ended.status == 1
    # The deadline travels with a call, so the server may report it first.
    assert sum(error["count"] for error in figures["errors"].values()) == figures["requests"] >= 10


@pytest.mark.parametrize(
    "wrong",
    [
        ["--rate", "0"],
        ["--duration", "-1"],
        ["--connections", "0"],
        ["--rate", "5", "--concurrency", "5"],
        ["--warm-up", "-1"],
        ["--report", "nowhere/report.html"],
        ["nothing"],
    ],
)
async def test_wrong_options_are_exit_code_2(server: str, wrong: list[str]) -> None:
    ended = await trunkline("bench", server, *wrong)
    assert (ended.status, ended.out) == (2, ""), ended.err


async def test_http_is_for_python_files() -> None:
    ended = await trunkline("bench", "tcp://127.0.0.1:9", "--http")
    assert (ended.status, ended.err) == (2, "trunkline: --http is for Python files and modules\n")


async def test_file_that_cannot_be_served_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    ended = await trunkline("bench", str(broken), "--http")
    assert ended.status == 3
    assert "cannot be served over HTTP" in ended.err
    assert "ZeroDivisionError" in ended.err


def test_ctrl_c_prints_the_figures_so_far(server: str, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    arguments = ("add", "a=1", "--duration", "600", "--warm-up", "0", "--report", str(report))
    with screen_of("bench", server, *arguments) as screen:
        screen.until("responses over time")  # the chart of rich
        screen.until("p99")
        screen.send("\x03")
        assert screen.ended() == 130
        assert "throughput " in screen.text
        assert "note: interrupted; " in screen.text
        assert screen.echoes
    assert "interrupted; " in report.read_text()


def test_status_line_is_shown_without_rich(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with screen_of("bench", server, "--duration", "600", "--warm-up", "0") as screen:
        screen.until(" of 600 s  ")
        assert "responses over time" not in screen.text
        screen.send("\x03")
        assert screen.ended() == 130
