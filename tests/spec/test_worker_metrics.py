"""Metrics of a server with workers: one answer for all, and no count lost with a worker."""

import contextlib
import http.client
import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.modern import enveloped, headers_of
from tests.processes import PATIENCE, eventually, gone
from tests.spec.test_metrics import Values, parse
from tests.spec.test_workers import WorkerServer

KILLS = 20
SETTINGS = {"metrics": True, "restart_intensity": 100, "work_timeout": PATIENCE}


def scrape(connection: http.client.HTTPConnection) -> Values:
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    assert answer.status == 200
    return parse(answer.read().decode())


def scrape_any(subject: WorkerServer) -> Values:
    """Ask one of the workers."""
    connection = subject.connection()
    with contextlib.closing(connection):
        return scrape(connection)


def calls(found: Values) -> float:
    """The number of calls of tools, whatever their outcome."""
    counted = found.get("calls_total", {})
    return sum(count for (method, _, _), count in counted.items() if method == "tools/call")


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[WorkerServer]:
    server = WorkerServer(tmp_path, workers=3, settings=SETTINGS)
    try:
        yield server.open()
        server.signal(signal.SIGTERM)
        assert server.code() == 0
    finally:
        server.close()


def test_each_worker_answers_for_all_also_for_killed_and_stopped_ones(subject: WorkerServer) -> None:
    held = subject.hold(12)
    with contextlib.ExitStack() as stack:
        for connection in (one for group in held.values() for one in group):
            stack.callback(connection.close)
        pids = {subject.who() for _ in range(30)}
        answers = {pid: scrape(group[0]) for pid, group in held.items()}
        for found in answers.values():  # a worker may count a call just after its response was read
            assert found["tool_calls_total"]["ok", "who"] in range(30 - len(pids), 31)
            assert found["resident_memory_bytes"].keys() == {("0",), ("1",), ("2",)}
            assert found["restarts_total"] == {("worker",): 0}
        for group in held.values():
            eventually(lambda group=group: calls(scrape(group[0])) == 30)

        victim, survivor = list(held)[:2]
        slow = threading.Thread(target=abandoned, args=(held[victim][0],))
        slow.start()
        eventually(lambda: scrape(held[survivor][0])["calls_in_progress"]["tools/call", "http"] == 1)
        os.kill(victim, signal.SIGKILL)
        slow.join()
        eventually(lambda: gone(victim))
        assert len(scrape(held[survivor][0])["uptime_seconds"]) in (2, 3)  # 3: its successor is there already
        assert calls(scrape(held[survivor][0])) in (30, 31)
        eventually(lambda: len(scrape(held[survivor][0])["uptime_seconds"]) == 3)
        found = scrape(held[survivor][0])
        assert found["calls_total"]["tools/call", "ok", "http"] == 30
        assert found["calls_total"]["tools/call", "lost", "http"] == 1
        assert found["calls_in_progress"]["tools/call", "http"] == 0
        assert found["restarts_total"] == {("worker",): 1}

        (stopped,) = held.keys() - {victim, survivor}
        os.kill(stopped, signal.SIGSTOP)
        try:
            eventually(lambda: max(scrape(held[survivor][0])["event_loop_lag_seconds"].values()) > 1)
        finally:
            os.kill(stopped, signal.SIGCONT)


def abandoned(connection: http.client.HTTPConnection) -> None:
    """Call a tool that waits, on a connection that the worker does not survive."""
    with contextlib.suppress(http.client.HTTPException, OSError):
        post(connection, "waits")


def post(connection: http.client.HTTPConnection, tool: str) -> None:
    params = enveloped(name=tool, arguments={})
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {name.replace("_", "-"): value for name, value in headers_of("tools/call", params).items()}
    accepted = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    connection.request("POST", "/mcp", json.dumps(message), {**accepted, **headers})
    answer = connection.getresponse()
    assert answer.status == 200
    assert "result" in json.loads(answer.read())


@pytest.mark.long
def test_counts_lie_between_answered_and_sent_after_twenty_kills(subject: WorkerServer) -> None:
    sent, answered, stop = [0] * 8, [0] * 8, threading.Event()

    def drive(place: int) -> None:
        connection = subject.connection()
        while not stop.is_set():
            try:
                if connection.sock is None:
                    connection.connect()
            except OSError:
                continue
            sent[place] += 1
            try:
                post(connection, "who")
                answered[place] += 1
            except (http.client.HTTPException, OSError):
                connection.close()
        connection.close()

    drivers = [threading.Thread(target=drive, args=(place,)) for place in range(len(sent))]
    for driver in drivers:
        driver.start()
    chosen, lowest = random.Random(1), 0.0
    try:
        for _ in range(KILLS):
            enough = sum(answered) + chosen.randint(100, 200)
            eventually(lambda enough=enough: sum(answered) > enough, every=chosen.random() / 100)  # at any moment
            victim = chosen.choice(sorted(subject.pids))
            os.kill(victim, signal.SIGKILL)
            eventually(lambda victim=victim: gone(victim))
            counted = calls(scrape_any(subject))
            assert counted >= lowest, "a counter went down"
            lowest = counted
    finally:
        stop.set()
        for driver in drivers:
            driver.join()
    eventually(lambda: len(scrape_any(subject)["uptime_seconds"]) == 3)
    found = scrape_any(subject)
    print(f"answered {sum(answered)}, counted {calls(found):g}, sent {sum(sent)}")
    assert sum(answered) <= calls(found) <= sum(sent)
    assert found["restarts_total"] == {("worker",): KILLS}
    assert sum(answered) < sum(sent)
