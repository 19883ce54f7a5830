"""A supervisor and its workers, which serve as one: killed, stopped and shut down."""

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Self

import pytest
from tests.contract.connections import CERTIFICATE, client_tls
from tests.limits import soon
from tests.modern import enveloped, headers_of
from tests.processes import PATIENCE, children, command, eventually, gone
from tests.unit.cli.commands import run

from trunkline.cli.processes import find_sockets, query_states
from trunkline.server.introspection.process_state import ProcessState

SCRIPT = """
    import asyncio, contextlib, json, os, ssl, sys, time, warnings
    from pathlib import Path
    warnings.simplefilter("error")
    from trunkline import Server, Settings

    options, folder = json.loads(sys.argv[1]), Path(sys.argv[2])

    @contextlib.asynccontextmanager
    async def lifespan(server):
        if (folder / "fails").exists():
            raise RuntimeError("it cannot begin")
        while (folder / "hold").exists():
            await asyncio.sleep(0.01)
        with (folder / "lives").open("a") as file:
            print(os.getpid(), file=file)
        yield

    server = Server("workers", lifespan=lifespan, observers=[], settings=Settings(**options.pop("settings", {})))

    @server.tool
    async def who() -> int:
        return os.getpid()

    @server.tool
    async def waits() -> str:
        with (folder / "waits").open("a") as begun:
            begun.write(".")
        while not (folder / "go").exists():
            await asyncio.sleep(0.01)
        return "done"

    @server.route("/who")
    def which(request):
        return {"pid": os.getpid(), "host": request.client_host}

    if "secured" in options:
        options["tls"] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        options["tls"].load_cert_chain(options.pop("secured"))
    try:
        server.run("http", **{"port": 0, "workers": 3, **options})
    finally:
        (folder / "left").write_text(str(os.getpid()))
"""


class WorkerServer:
    """A server with its workers; each request uses a new connection."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*command(SCRIPT), json.dumps(options), str(folder)],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.trust: ssl.SSLContext | None = None

    def line(self) -> str:
        """The next line of output for the operator."""
        assert self.process.stderr is not None
        return self.process.stderr.readline().strip()

    def open(self) -> "WorkerServer":
        name, _, address = self.line().partition(" listens at ")
        assert name == "workers"
        scheme, _, rest = address.partition("://")
        self.secure, self.at = scheme == "https", rest.removesuffix("/mcp")
        eventually(lambda: self.states() == {"ready"})
        return self

    @property
    def pids(self) -> set[int]:
        return children(self.process.pid)

    def connection(self) -> http.client.HTTPConnection:
        if self.secure:
            return http.client.HTTPSConnection(self.at, timeout=PATIENCE, context=self.trust)
        return http.client.HTTPConnection(self.at, timeout=PATIENCE)

    def get(self, path: str) -> tuple[int, Any]:
        connection = self.connection()
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def states(self) -> set[str]:
        """The states of all workers; none, if the connection has reached a worker that accepts no more."""
        return set(self.get("/livez")[1].get("workers", {}).values())

    def post(self, message: dict[str, Any], **headers: str) -> http.client.HTTPResponse:
        """Return the response and its connection, which is closed after reading."""
        connection = self.connection()
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        accept = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        try:
            connection.request("POST", "/mcp", json.dumps(message), {**accept, "connection": "close", **told})
            return connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def call(self, tool: str) -> str:
        params = enveloped(name=tool, arguments={})
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        with self.post(message, **headers_of("tools/call", params)) as answer:
            return json.loads(answer.read())["result"]["content"][0]["text"]

    def who(self) -> int:
        return int(self.call("who"))

    def hold(self, count: int) -> dict[int, list[http.client.HTTPConnection]]:
        """Open that many connections, and return them by the pid of their worker."""
        held: dict[int, list[http.client.HTTPConnection]] = {pid: [] for pid in self.pids}
        for _ in range(count):
            connection = self.connection()
            connection.request("GET", "/who")
            held[json.loads(connection.getresponse().read())["pid"]].append(connection)
        return held

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def code(self) -> int:
        return self.process.wait(PATIENCE)

    def final_output(self) -> str:
        """The output since then, once the process has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def close(self) -> None:
        """Stop it, if it is running."""
        workers = self.pids if self.process.poll() is None else set[int]()
        self.process.kill()
        self.process.wait()
        for pid in workers:
            eventually(lambda pid=pid: gone(pid))
        assert self.process.stderr is not None
        self.process.stderr.close()


def links(pid: int) -> set[str]:
    """The targets of a process's descriptors."""
    folder, found = Path(f"/proc/{pid}/fd"), set[str]()
    for name in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            found.add(os.readlink(name))
    return found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerServer]:
    """A server of which several tests kill parts. It ends in good order."""
    folder = tmp_path_factory.mktemp("workers")
    settings = {"restart_intensity": 20, "control_folder": str(folder / "control")}
    subject = WorkerServer(folder, settings=settings).open()
    try:
        yield subject
        subject.signal(signal.SIGTERM)
        assert subject.code() == 0
        assert (subject.folder / "left").read_text() == str(
            subject.process.pid
        )  # no other process continued after `run`
    finally:
        subject.close()


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Any]:
    made: list[WorkerServer] = []

    def make(**options: Any) -> WorkerServer:
        made.append(WorkerServer(tmp_path, **options))
        return made[-1]

    yield make
    for subject in made:
        subject.close()


# --- serving as one -----------------------------------------------------------------------------


@pytest.mark.row("PROMISE-4")
def test_connections_are_spread_evenly(shared: WorkerServer) -> None:
    held = shared.hold(12)
    try:
        sizes = [len(connections) for connections in held.values()]
        assert max(sizes) - min(sizes) <= 2  # closed connections count until the next heartbeat
        freed = next(iter(held))
        for connection in held[freed]:
            connection.close()
        eventually(lambda: [shared.who(), shared.who()] == [freed, freed])  # it has the fewest
    finally:
        for connection in chain(*held.values()):
            connection.close()


def test_every_worker_answers_custom_routes(shared: WorkerServer) -> None:
    seen = set[int]()

    def all_seen() -> bool:
        status, body = shared.get("/who")
        assert (status, body["host"]) == (200, "127.0.0.1")
        seen.add(body["pid"])
        return seen == shared.pids

    eventually(all_seen)


@pytest.mark.row("PROMISE-4")
def test_session_continues_at_any_worker(shared: WorkerServer) -> None:
    told = {"mcp_protocol_version": "2025-11-25"}
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "by hand", "version": "1"}}
    with shared.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client}) as answer:
        told["mcp_session_id"] = answer.headers["mcp-session-id"]
        answer.read()
    shared.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, **told).close()
    for ident in range(1, 7):
        message = {"jsonrpc": "2.0", "id": ident, "method": "tools/call", "params": {"name": "who", "arguments": {}}}
        with shared.post(message, **told) as answer:
            assert answer.status == 200, answer.read()
            assert json.loads(answer.read())["id"] == ident


def test_worker_inherits_only_its_own_channel(shared: WorkerServer) -> None:
    listening = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if " 0A " in line}

    def sockets(pid: int) -> set[str]:
        return {link[8:-1] for link in links(pid) if link.startswith("socket:")}

    assert sockets(shared.process.pid) & listening
    of = {pid: sockets(pid) for pid in shared.pids}
    for pid, held in of.items():
        assert not held & (listening | sockets(shared.process.pid))
        assert not any(held & others for other, others in of.items() if other != pid)


def test_health_reports_the_server_and_each_worker(shared: WorkerServer) -> None:
    all_ready = {"0": "ready", "1": "ready", "2": "ready"}
    assert shared.get("/livez") == (200, {"ok": True, "workers": all_ready})
    assert shared.get("/readyz") == (200, {"ok": True, "store": True, "workers": all_ready})
    assert shared.get("/livez/2") == (200, {"ok": True, "worker": 2, "state": "ready"})
    assert shared.get("/readyz/0") == (200, {"ok": True, "store": True, "worker": 0, "state": "ready"})
    assert shared.get("/readyz/3")[0] == 404


# --- when one fails -----------------------------------------------------------------------------


class Load:
    """Clients that call again and again, each from a thread."""

    def __init__(self, subject: WorkerServer, clients: int = 4) -> None:
        self.answered: Counter[int] = Counter()
        self.lost = 0
        self._server = subject
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.answered[self._server.who()] += 1
            except (OSError, http.client.HTTPException):
                self.lost += 1  # the calls in flight in the killed worker

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.row("D08")
@pytest.mark.long
async def test_health_reports_a_killed_worker_within_a_second(build: Any) -> None:
    subject = build(settings={"restart_intensity": 100}).open()

    async def until_said() -> float:
        eventually(lambda: subject.states() == {"ready"})
        os.kill(subject.who(), signal.SIGKILL)
        killed = time.monotonic()
        eventually(lambda: any(subject.get(f"/readyz/{number}")[0] == 503 for number in range(3)))
        return time.monotonic() - killed

    await soon(until_said, 1.0)


@pytest.mark.row("D08")
def test_worker_killed_under_load_is_replaced(shared: WorkerServer) -> None:
    before, victim = shared.pids, shared.who()
    hold = shared.folder / "hold"
    hold.touch()
    with Load(shared) as load:
        eventually(lambda: load.answered[victim] > 10)
        os.kill(victim, signal.SIGKILL)
        number = eventually(lambda: next((n for n in range(3) if shared.get(f"/readyz/{n}")[0] == 503), -1) + 1) - 1
        eventually(lambda: shared.get(f"/readyz/{number}")[1]["state"] == "starting")
        status, whole = shared.get("/readyz")
        assert (status, sorted(whole["workers"].values())) == (200, ["ready", "ready", "starting"])
        load.answered.clear()
        eventually(lambda: sum(load.answered.values()) > 20)
        assert set(load.answered) == before - {victim}
        hold.unlink()
        (successor,) = eventually(lambda: set(load.answered) - before)
    assert load.lost <= 4  # one for each client, at most
    assert shared.pids == before - {victim} | {successor}
    assert f"worker {number} (process {victim}) was killed by SIGKILL; restarting it at once" == shared.line()
    assert shared.states() == {"ready"}


def test_each_worker_describes_all_workers_with_their_restarts(
    shared: WorkerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(shared.folder / "control")

    def states() -> dict[int | None, ProcessState]:
        return {state.server.worker: state for state in query_states(find_sockets(folder, None)).states}

    eventually(lambda: len(states()) == 3)
    *_, victim = states()[0].server.workers
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)

    def is_restarted() -> bool:
        found = states()
        seen = {state.server.workers[-1].pid for state in found.values()}
        return len(found) == 3 and victim.pid not in seen and seen == {found[2].pid}

    eventually(is_restarted)
    for state in states().values():
        names = [each.name for each in state.server.workers]
        assert names == ["listener:0", "worker:0", "worker:1", "worker:2"]
        assert state.server.workers[-1].restarts == victim.restarts + 1
        assert state.server.workers[-1].last_failure == "was killed by SIGKILL"
    os.kill(victim := states()[2].pid, signal.SIGSTOP)
    try:
        code, out, err = run(capsys, "ps", folder, "--timeout", "0.5")
        assert (code, str(victim) in out) == (1, False)
        assert f"{victim}.sock does not answer" in err
    finally:
        os.kill(victim, signal.SIGCONT)
    eventually(lambda: len(states()) == 3)
    _, out, _ = run(capsys, "top", folder, "--count", "1")
    assert [line.split()[:2] for line in out.splitlines() if "worker:2" in line] == [
        [str(shared.process.pid), "worker:2"]
    ]
    assert "was killed by SIGKILL; restarting it" in shared.line()


def test_stopped_worker_is_skipped_and_its_connections_moved(shared: WorkerServer) -> None:
    stopped = shared.who()
    os.kill(stopped, signal.SIGSTOP)
    try:
        since = time.monotonic()
        held = shared.hold(40)  # more than it may seem to have: it cannot report connections that have closed
        for connection in chain(*held.values()):
            connection.close()
        assert held[stopped] == []
        assert time.monotonic() - since > 0.9  # the supervisor had dispatched one to it first
        eventually(lambda: shared.states() == {"ready", "silent"})
        eventually(lambda: sorted(shared.get(f"/livez/{number}")[0] for number in range(3)) == [200, 200, 503])
    finally:
        os.kill(stopped, signal.SIGCONT)
    eventually(lambda: shared.states() == {"ready"})
    eventually(lambda: shared.who() == stopped)


def test_terminated_worker_drains_and_is_replaced(shared: WorkerServer) -> None:
    before, told = shared.pids, shared.who()
    waiting: list[Any] = []
    begun = shared.folder / "waits"
    for left in (shared.folder / "go", begun):
        left.unlink(missing_ok=True)
    callers = [threading.Thread(target=lambda: waiting.append(shared.call("waits"))) for _ in range(6)]
    for caller in callers:
        caller.start()
    eventually(lambda: begun.exists() and begun.stat().st_size == len(callers))
    os.kill(told, signal.SIGTERM)
    eventually(lambda: "draining" in shared.states())
    (shared.folder / "go").touch()
    for caller in callers:
        caller.join()
    assert waiting == ["done"] * 6
    eventually(lambda: len(shared.pids - before) == 1 and shared.states() == {"ready"})
    assert shared.line().endswith(f"(process {told}) exited with 0; restarting it at once")


def test_startup_failure_ends_the_supervisor(build: Any, tmp_path: Path) -> None:
    (tmp_path / "fails").touch()
    subject = build(workers=2)
    assert subject.code() == 1
    said = subject.final_output()
    assert "RuntimeError: it cannot begin" in said
    assert "exited with 1 before any worker was ready" in said
    assert "listens at" not in said


# --- shutdown -----------------------------------------------------------------------------------


def test_sigterm_drains_calls_and_leaves_nothing_behind(build: Any, tmp_path: Path) -> None:
    subject = build(workers=2).open()
    workers = subject.pids
    assert set(map(int, (tmp_path / "lives").read_text().split())) == workers  # each has a lifespan
    (store,) = {link for pid in workers for link in links(pid) if link.endswith("/store")}
    answers: list[Any] = []
    caller = threading.Thread(target=lambda: answers.append(subject.call("waits")))
    caller.start()
    eventually((tmp_path / "waits").exists)
    for pid in (subject.process.pid, *workers):
        os.kill(pid, signal.SIGTERM)  # as a service manager does
    for pid in workers:
        os.kill(pid, signal.SIGINT)  # as a terminal does
    eventually(lambda: refused(subject.at))
    (tmp_path / "go").touch()
    caller.join()
    assert answers == ["done"]
    assert subject.code() == 0
    assert all(map(gone, workers))
    assert not Path(store).parent.exists()


def refused(at: str) -> bool:
    host, _, port = at.rpartition(":")
    with socket.socket() as line:
        return line.connect_ex((host, int(port))) != 0


# --- addresses ----------------------------------------------------------------------------------


def test_address_in_use_is_reported(build: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        subject = build(port=port)
        assert subject.code() == 2
    said = f"trunkline: cannot listen on 127.0.0.1:{port}: Address already in use; stop the other program"
    assert said in subject.final_output()
    assert "Traceback" not in subject.final_output()


def test_workers_serve_over_tls_and_ipv6(build: Any) -> None:
    subject = build(workers=2, host="::1", secured=str(CERTIFICATE))
    subject.trust = client_tls()
    subject.trust.check_hostname = False  # it names the host, and no addresses
    subject.open()
    assert subject.at.startswith("[::1]:")
    held = subject.hold(4)
    for connection in chain(*held.values()):
        connection.close()
    assert all(held.values())
