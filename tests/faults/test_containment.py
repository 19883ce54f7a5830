"""Faults of one connection stay with it: no bytes of a peer, and no internal error over them, reach another connection
or the process.

The packets go over plain sockets to real processes, on both loops, with and without a store and workers. Offsets
choose their content: pipelined requests whose responses have to wait, cut or corrupted at each byte. The tests know
nothing of how the server reads HTTP.
"""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tests.attacks import websocket_frames
from tests.attacks.raw import Caller, call, initialize, request, within
from tests.faults.servers import EVERY, Configuration, ServerProcess, modern_request
from tests.limits import PATIENCE

AT_ONCE = 24  # connections
BAD = (b"\x00", b"\xff", b" ", b"\r", b"\n", b"{", b":", b"0")
ENDINGS = ("half-close", "close", "reset")
SMALL = [  # every loop, with and without a store and workers; `EVERY` combination runs in the long test
    Configuration("uvloop", store=True),
    Configuration("uvloop"),
    Configuration("asyncio", store=True),
    Configuration("uvloop", workers=True),
    Configuration("asyncio", store=True, workers=True),
]
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: reset on close


async def attack(port: int, packets: list[bytes], ending: str) -> None:
    """Send packets over a new connection and end it. A peer that half-closes reads to the end, which the server sends:
    complete requests get a response, incomplete ones are dropped.
    """
    async with Caller(port) as caller:
        for packet in packets:
            caller.say(packet)
            await asyncio.sleep(0)
        await caller.all_said()
        if ending == "half-close":
            with contextlib.suppress(OSError, RuntimeError):
                caller.writer.write_eof()
            try:
                await caller.rest(20)
            except AssertionError as error:
                raise AssertionError(f"{error}: {packets!r}") from None
        elif ending == "reset":
            bound: socket.socket = caller.writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


async def attack_all(port: int, attacks: Iterable[tuple[list[bytes], str]]) -> None:
    """Run attacks, a few concurrently."""
    waiting = iter(attacks)

    async def work() -> None:
        for packets, ending in waiting:
            await attack(port, packets, ending)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


async def bystander(port: int, done: Callable[[], bool]) -> int:
    """Make calls over one connection during the attacks; each has to get its response."""
    async with Caller(port) as caller:
        answered = 0
        while not done():
            caller.say(modern_request("waits"))
            answer = await caller.answer()
            assert answer.status == 200, answer.body
            answered += 1
        return answered


async def attack_beside_bystander(port: int, attacks: Iterable[tuple[list[bytes], str]]) -> None:
    attacking = asyncio.create_task(attack_all(port, attacks))
    assert await bystander(port, attacking.done) > 0
    await attacking


def waiting_pair(configuration: Configuration) -> bytes:
    """Two pipelined requests whose responses have to wait: for the store, or for a tool where there is none."""
    asked = request("POST", "/mcp", initialize()) if configuration.store else modern_request("waits")
    return asked + asked


@pytest.mark.parametrize("configuration", SMALL, ids=str)
async def test_corrupt_pipelined_requests_affect_own_connection_only(
    configuration: Configuration, tmp_path: Path
) -> None:
    packet = waiting_pair(configuration)
    async with ServerProcess(configuration, tmp_path) as server:
        attacks = [
            ([packet[:at] + BAD[at % len(BAD)] + packet[at:]], ENDINGS[at % len(ENDINGS)])
            for at in range(len(packet) + 1)
        ]
        attacks += [([packet + bad], ending) for bad in BAD for ending in ENDINGS for _ in range(3)]
        await attack_beside_bystander(server.port, attacks)
        await server.check_unharmed()


@pytest.mark.parametrize("configuration", SMALL[:2], ids=str)
async def test_truncated_pipelined_requests_affect_own_connection_only(
    configuration: Configuration, tmp_path: Path
) -> None:
    packet = waiting_pair(configuration) + b"\x00"
    async with ServerProcess(configuration, tmp_path) as server:
        attacks = [([packet[:at], packet[at:]], ENDINGS[at % len(ENDINGS)]) for at in range(1, len(packet))]
        attacks += [([packet[:at]], ENDINGS[at % len(ENDINGS)]) for at in range(1, len(packet), 2)]
        await attack_all(server.port, attacks)
        await server.check_unharmed()


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_pipelined_upgrade_affects_own_connection_only(loop: str, tmp_path: Path) -> None:
    async with ServerProcess(Configuration(loop), tmp_path) as server:
        packets = [
            modern_request("waits") + websocket_frames.upgrade("/mcp") + more
            for more in (b"", b"\x00", websocket_frames.frame(b"{}"), websocket_frames.frame(b"", 0x8))
        ]
        await attack_all(
            server.port, [([packet], ending) for packet in packets for ending in ENDINGS for _ in range(5)]
        )
        await server.check_unharmed()


# --- exceptions in the loop ---------------------------------------------------------------------


@pytest.mark.parametrize("configuration", [SMALL[1], SMALL[2], SMALL[3]], ids=str)
async def test_error_in_the_loop_is_logged_and_process_continues(configuration: Configuration, tmp_path: Path) -> None:
    async with ServerProcess(configuration, tmp_path) as server:
        assert await server.call("leaks") == "done"
        async with asyncio.timeout(20):
            while server.log().count("incident") < 1 or "a callback of the event loop failed" not in server.log():
                await asyncio.sleep(0.01)
        assert "MisuseError: there is no list" in server.log()
        for _ in range(3):
            assert await server.call("waits") == "done"
        assert server.process.poll() is None


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_transport_is_closed_after_its_error_reaches_the_loop(loop: str, tmp_path: Path) -> None:
    async with ServerProcess(Configuration(loop), tmp_path) as server:
        async with Caller(int(await server.call("opens"))) as caller:
            async with asyncio.timeout(PATIENCE):  # reading earlier could make room for all that the server writes
                while "RuntimeError: cannot pause" not in server.log():
                    await asyncio.sleep(0.01)
            await caller.rest()  # which is over when the connection is closed
        assert await server.call("waits") == "done"


# --- the fuzzer ---------------------------------------------------------------------------------


def corpus() -> list[bytes]:
    """Requests of all kinds."""
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    chunked = {"content_length": None, "transfer_encoding": "chunked"}
    return [
        request("POST", "/mcp", initialize()),
        request("POST", "/mcp", initialize()),
        modern_request("waits"),
        modern_request("waits"),
        request("POST", "/mcp", call("ping")),
        request("POST", "/mcp", b"", **chunked) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
        request("POST", "/mcp", initialize(), expect="100-continue"),
        request("GET", "/mcp"),
        request("GET", "/sse"),
        request("GET", "/readyz"),
        request("DELETE", "/mcp", None, mcp_session_id="none"),
        request("OPTIONS", "/mcp"),
        request("POST", "/mcp", b"", content_length="1000"),
        request("GET", "http://other.example/mcp"),
        websocket_frames.upgrade("/mcp") + websocket_frames.frame(b'{"jsonrpc":"2.0","id":1,"method":"ping"}'),
    ]


def invent(chance: random.Random, known: list[bytes]) -> tuple[list[bytes], str]:
    """Some requests in a row, mutated, and cut into packets."""
    packet = bytearray(b"".join(chance.choices(known, k=chance.randint(1, 4))))
    for _ in range(chance.choice((0, 1, 1, 1, 2, 5))):
        at = chance.randrange(len(packet) + 1)
        match chance.randrange(4):
            case 0:
                packet[at:at] = chance.choice(BAD)
            case 1:
                packet[at : at + 1] = bytes([chance.randrange(256)])
            case 2:
                del packet[at : at + chance.randint(1, 20)]
            case _:
                packet += chance.choice(BAD)
    if chance.random() < 0.3:
        del packet[chance.randrange(len(packet) + 1) :]
    cuts = sorted(chance.randrange(len(packet) + 1) for _ in range(chance.choice((0, 0, 0, 1, 2, 4))))
    pieces = [bytes(packet[start:end]) for start, end in zip([0, *cuts], [*cuts, len(packet)], strict=True)]
    endless = b"GET /sse" in packet  # a stream: the server reads no request behind it before it ends
    return [piece for piece in pieces if piece], chance.choice(ENDINGS[1:] if endless else ENDINGS)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("configuration", EVERY, ids=str)
async def test_ten_thousand_random_connections_affect_no_other(
    configuration: Configuration, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    chance, known = random.Random(seed), corpus()
    async with ServerProcess(configuration, tmp_path) as server:
        for _ in range(10):
            await attack_beside_bystander(server.port, (invent(chance, known) for _ in range(1000)))
            await within(server.check_unharmed(), "the answers of a server that was attacked", 60)
