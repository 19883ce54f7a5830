"""Cost and behaviour of HTTP client libraries, used as a client of MCP over Streamable HTTP would use them.

`python -m bench.http_clients --python …` creates an environment per library, starts a bare server, and prints the
cost of a POST, an event and an open stream in the client process: CPU, user and system, all threads. All processes
share one CPU. Each round starts every library afresh, on either loop, in a random order; the best batch of all
rounds counts. Only ratios inside one run mean something. `--behaviour` prints instead the behaviour of each library
when a connection is lost, a request is cancelled, a server redirects, or a proxy or a certificate is in between.
"""

import argparse
import asyncio
import hashlib
import importlib
import json
import os
import random
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench.environments import ROOT, CannotInstall, Environments
from bench.http_adapters import LIBRARIES, make
from bench.http_responder import CERTIFICATE, EVENTS, body
from bench.run import pin

UVLOOP = "uvloop==0.23.0"
STREAMS, TICKS, BATCHES, BATCH = 200, 10, 6, 64


async def posts(client: Any, base: str, count: int, in_flight: int) -> float:
    """CPU µs of each of so many POSTs. Bodies are prepared before the clock starts, responses are checked after it
    stops.
    """
    left, answers = iter([(number, body(number)) for number in range(count)]), list[tuple[int, int, bytes]]()

    async def work() -> None:
        for number, content in left:
            answers.append((number, *await client.post(f"{base}/echo", content)))

    async def all_work() -> None:
        await asyncio.gather(*(work() for _ in range(in_flight)))

    spent = await cpu_us(all_work, count)
    for number, status, answer in answers:
        if status != 200 or json.loads(answer)["id"] != number:
            raise ValueError(f"wrong answer to {number}: {answer[:200]!r}")
    return spent


async def cpu_us(measured: Callable[[], Awaitable[object]], per: int) -> float:
    before = time.process_time_ns()
    await measured()
    return (time.process_time_ns() - before) / per / 1000


async def read_all(client: Any, url: str) -> None:
    seen, last = 0, b""
    async for data in client.stream(url):
        seen += data.count(b"\n\n") + (last == b"\n" and data.startswith(b"\n"))
        last = data[-1:]
    if seen != EVENTS:
        raise ValueError(f"{seen} events of {EVENTS}")


async def watch(client: Any, base: str, opened: asyncio.Semaphore, delays: list[int], told: asyncio.Semaphore) -> None:
    async for data in client.stream(f"{base}/open"):
        if data.startswith(b"data: "):
            delays.append(time.monotonic_ns() - int(data[6:]))
            told.release()
        else:
            opened.release()


async def many_streams(client: Any, base: str) -> dict[str, float]:
    """Memory per open stream, and CPU and delay per event when one arrives on each of them."""
    opened, told, delays = asyncio.Semaphore(0), asyncio.Semaphore(0), list[int]()
    before = resident_kb()
    tasks = [asyncio.ensure_future(watch(client, base, opened, delays, told)) for _ in range(STREAMS)]
    for _ in tasks:
        await opened.acquire()
    found = {"stream KB": (resident_kb() - before) / STREAMS}

    async def tick() -> None:
        await client.post(f"{base}/tick", b"{}")
        for _ in tasks:
            await told.acquire()

    await tick()
    delays.clear()
    found["paced event µs"] = min([await cpu_us(tick, STREAMS) for _ in range(TICKS)])
    found["delay ms"] = median(delays) / 1e6
    found["delay p99 ms"] = quantiles(delays, n=100)[98] / 1e6
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return found


def resident_kb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


async def measure(name: str, ports: Sequence[str]) -> dict[str, float]:
    """Every figure of one library on one loop, in one process."""
    before = time.process_time_ns()
    client, base = make(name), f"http://127.0.0.1:{ports[0]}"
    await posts(client, base, 1, 1)
    found = {"first POST ms": (time.process_time_ns() - before) / 1e6}  # asyncio and ssl were imported before
    streaming = make(name)  # separately, so that leftovers of its streams do not burden the POSTs
    found |= await many_streams(streaming, base)
    await streaming.close()
    before_posts = await facts(client, f"{base}/count", "opened")
    for label, in_flight in (("POST µs, one", 1), ("POST µs, 32", 32)):
        await posts(client, base, BATCH, in_flight)
        found[label] = min([await posts(client, base, BATCH, in_flight) for _ in range(BATCHES)])
    if (opened := await facts(client, f"{base}/count", "opened") - before_posts) > 64:
        raise ValueError(f"{opened} connections for POSTs: they are not kept")
    started = time.monotonic()
    found["burst event µs"] = min([await cpu_us(lambda: read_all(client, f"{base}/events"), EVENTS) for _ in range(3)])
    found["10,000 events ms"] = (time.monotonic() - started) / 3 * 1000
    await client.close()
    return found


async def outcome(attempt: Awaitable[Any], seconds: float = 5) -> str:
    try:
        return str(await asyncio.wait_for(attempt, seconds))
    except Exception as error:
        return type(error).__name__


async def ends(client: Any, url: str) -> str:
    async for _ in client.stream(url):
        pass
    return "ends as if complete"


async def facts(client: Any, url: str, key: str) -> Any:
    status, answer = await client.post(url, body(0))
    return json.loads(answer)[key] if status == 200 else status


async def cancelled(client: Any, base: str, path: str, *, streamed: bool) -> str:
    """Cancel requests in flight, some at random moments; then the pool has to work and to be empty."""
    before = await facts(client, f"{base}/count", "connections")
    large = b"{}" if path != "/silent" else b"x" * 3_000_000
    for wait in [0.01] * 20 + [random.random() / 300 for _ in range(200)]:
        attempt = ends(client, base + path) if streamed else client.post(base + path, large if wait == 0.01 else b"{}")
        task = asyncio.ensure_future(attempt)
        await asyncio.wait([task], timeout=wait)
        task.cancel()
        result = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(result, Exception):  # it may have ended before, but not otherwise
            raise result
    await asyncio.wait_for(posts(client, base, 200, 8), 10)
    await asyncio.sleep(0.2)
    left = await facts(client, f"{base}/count", "connections") - before
    return "pool works" + (f", {left} connections left" if left > 8 else "")


async def crowded(name: str, base: str, limit: int | None) -> str:
    """Cancel some of many requests that wait for few connections, by the library's own limit or by a semaphore."""
    client, places = make(name, limit=limit), asyncio.Semaphore(1000 if limit else 4)

    async def post() -> None:
        async with places:
            await client.post(f"{base}/echo", body(0))

    for number in range(100):
        tasks = [asyncio.ensure_future(post()) for _ in range(16)]
        await asyncio.wait(tasks, timeout=random.random() / 100)
        for task in random.sample(tasks, 12):
            task.cancel()
        _, stuck = await asyncio.wait(tasks, timeout=10)
        if stuck:
            return f"{len(stuck)} requests hang in round {number}"
    await posts(client, base, 20, 4)
    await client.close()
    return "pool works"


async def try_out(name: str, ports: Sequence[str]) -> dict[str, str]:
    """Losses, cancellations and redirects of one library on one loop."""
    client, plain = make(name), f"http://127.0.0.1:{ports[0]}"
    lost = ("/cut", "/reset", "/short")
    found = {f"stream, {path[1:]}": await outcome(ends(client, plain + path)) for path in lost}
    await facts(client, f"{plain}/bye", "id")
    await asyncio.sleep(0.05)
    found["POST after an idle connection was closed"] = await outcome(facts(client, f"{plain}/echo", "id"))
    before = await facts(client, f"{plain}/count", "hang_ups")
    error = await outcome(client.post(f"{plain}/hangup", b"{}"))
    sent = await facts(client, f"{plain}/count", "hang_ups") - before
    found["POST on a kept connection, hung up on"] = f"{error}, sent {sent} times"
    for path, streamed in (("/silent", False), ("/half", False), ("/open", True), ("/events", True)):
        found[f"cancelled on {path[1:]}"] = await outcome(cancelled(client, plain, path, streamed=streamed), 60)
    found["cancelled in a crowd, its own limit"] = await outcome(crowded(name, plain, 4), 60)
    found["cancelled in a crowd, a semaphore"] = await outcome(crowded(name, plain, None), 60)
    found["redirect, when told not to follow"] = await outcome(facts(client, f"{plain}/redirect", "auth"))
    client.options.clear()
    found["redirect by default: credentials sent on"] = await outcome(facts(client, f"{plain}/redirect", "auth"))
    await client.close()
    return found


async def try_between(name: str, ports: Sequence[str]) -> dict[str, str]:
    """Proxies and certificates, in a child process, since libraries may read the environment once."""
    plain, secure = f"http://127.0.0.1:{ports[0]}", f"https://127.0.0.1:{ports[1]}"
    os.environ |= {"http_proxy": plain, "https_proxy": plain, "no_proxy": "localhost"}
    client, trusting = make(name), make(name, ssl.create_default_context(cafile=str(CERTIFICATE)))
    direct = f"http://localhost:{ports[0]}"
    before = await facts(client, f"{direct}/count", "tunnels")
    found = {
        "HTTP_PROXY used": await outcome(facts(client, f"{plain}/echo", "proxied")),
        "HTTP_PROXY used despite NO_PROXY": await outcome(facts(client, f"{direct}/echo", "proxied")),
        "unknown CA through HTTPS_PROXY": await outcome(facts(client, f"{secure}/echo", "id")),
        "own CA through HTTPS_PROXY": await outcome(facts(trusting, f"{secure}/echo", "id")),
    }
    found["tunnels made by these two"] = str(await facts(client, f"{direct}/count", "tunnels") - before)
    for each in (client, trusting):
        await each.close()
    return found


ROLES = {"measure": measure, "try": try_out, "between": try_between}


class LibraryEnvironments(Environments):
    """One environment per library, with uvloop beside it."""

    def interpreter(self, name: str) -> Path:
        return self._installed(self._home / f"http-{name}", [LIBRARIES[name], UVLOOP], ROOT)

    def _fingerprint(self, requirements: Sequence[str], tree: Path) -> str:
        return hashlib.sha256("\n".join([self._python, *requirements]).encode()).hexdigest()


def packages(interpreter: Path) -> int:
    listed = subprocess.run([interpreter, "-m", "pip", "list", "--format=json"], capture_output=True, check=True).stdout
    return sum(row["name"] not in {"pip", "setuptools", "uvloop"} for row in json.loads(listed))


def run_client(interpreter: Path, role: str, name: str, loop: str, ports: Sequence[str]) -> dict[str, Any]:
    command = [interpreter, "-m", "bench.http_clients", "--role", role, "--loop", loop, "--libraries", name, *ports]
    env = {key: value for key, value in os.environ.items() if not key.lower().endswith(("_proxy", "_ca_bundle"))}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        print(f"{name} on {loop}: {done.stderr[-1500:]}", file=sys.stderr)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def compare(interpreters: dict[str, Path], roles: Sequence[str], ports: Sequence[str]) -> dict[tuple[str, str], dict]:
    """Every sample of every figure or behaviour, by library and loop."""
    pairs = [(name, loop) for name in interpreters for loop in ("asyncio", "uvloop")]
    found: dict[tuple[str, str], dict[str, Any]] = {pair: {} for pair in pairs}
    for role in roles:
        for name, loop in random.sample(pairs, len(pairs)):
            known = found[name, loop]
            for key, value in run_client(interpreters[name], role, name, loop, ports).items():
                known.setdefault(key, []).append(value)
    return found


def show(found: dict[tuple[str, str], dict[str, list]], counts: dict[str, int]) -> None:
    """A block per library and loop: the best and the median of each figure, or each behaviour."""
    for (name, loop), values in found.items():
        print(f"{name} on {loop}, {counts[name]} packages")
        for key, samples in values.items():
            figures = (
                [samples[0]] if isinstance(samples[0], str) else [f"{min(samples):,.2f}", f"{median(samples):,.2f}"]
            )
            print(f"  {key:<46}", *(f"{figure:>10}" for figure in figures))


def main(arguments: Sequence[str] | None = None) -> int:
    """The driver; or, with a role, one of the client processes that it starts."""
    parser = argparse.ArgumentParser(description="Compares HTTP client libraries.")
    parser.add_argument("--python", default=sys.executable, help="the CPython that everything runs on")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="which of them, separated by commas")
    parser.add_argument("--behaviour", action="store_true", help="what they do instead of what they cost")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--loop", default="asyncio", help=argparse.SUPPRESS)
    parser.add_argument("ports", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    return client_process(options) if options.role else drive(options)


def client_process(options: argparse.Namespace) -> int:
    work = ROLES[options.role](options.libraries, options.ports)
    factory = importlib.import_module("uvloop").new_event_loop if options.loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        print(json.dumps(runner.run(work)))
    return 0


def drive(options: argparse.Namespace) -> int:
    environments, interpreters = LibraryEnvironments(options.python), dict[str, Path]()
    for name in options.libraries.split(","):
        try:
            interpreters[name] = environments.interpreter(name)
        except CannotInstall as error:
            print(f"{name} is not measured: {error}", file=sys.stderr)
    pin()
    command = [options.python, "-m", "bench.http_responder"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            ports = server.stdout.readline().split()
            roles = ("try", "between") if options.behaviour else ("measure",) * options.rounds
            found = compare(interpreters, roles, ports)
        finally:
            server.kill()
    show(found, {name: packages(interpreter) for name, interpreter in interpreters.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
