"""Attacks on the bus between processes: frames from a program without the store's key, and replayed frames.

On Redis any client can publish, whatever database it has selected; on Unix sockets any program of the same user can
connect. Each attack has one effect: it is counted.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from tests.contract.buses import BUSES, IDENTITY, BusGroup
from tests.contract.connections import turns, until
from tests.contract.valkey import valkey
from tests.limits import PATIENCE
from tests.spec.server_group import server_group

from trunkline.server.access.principal_codec import PrincipalCodec
from trunkline.stores import bus_endpoint
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.redis.bus import Channels
from trunkline.stores.signed_frames import ALL, FrameSigner, Rejection
from trunkline.stores.unix_bus.bus import socket_folder
from trunkline.stores.unix_bus.links import add_length_prefix
from trunkline.transports.http.forwarding.frames import INGRESS_KIND, RequestFrame, encode_frame
from trunkline.wire import codec
from trunkline.wire.messages import Request

STRANGER = StoreIdentity(IDENTITY.id, bytes(32), 0.0)  # knows the id, which is public, and not the secret
KINDS = b"mhayb"  # first bytes of what a bus on Redis sends: message, hello, again, here, goodbye


class AttackedPair(BusGroup):
    """Two connected processes, and a program that writes to the bus of the first."""

    def __init__(self, kind: str, folder: Path) -> None:
        super().__init__(kind, folder)
        self._channels = Channels(f"{quote(str(folder))}[*]:", IDENTITY)
        self._socket = socket_folder(folder / "store.db", IDENTITY) / "one"

    async def begin(self) -> None:
        self.one, self.two = await self.join("one"), await self.join("two")
        await until(lambda: "two" in self.one.met_ones)

    async def attack(self, frames: list[bytes], *, to_all: bool = False) -> None:
        """Write frames to the bus of the first, each as the start of a connection."""
        for frame in frames:
            if self.kind == "redis":
                with valkey().client(db=1) as client:
                    client.publish(self._channels.all if to_all else self._channels.for_peer("one"), frame)
            else:
                await self._dial(frame)

    async def _dial(self, frame: bytes) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as line:
            line.setblocking(False)
            line.connect(str(self._socket))
            await loop.sock_sendall(line, add_length_prefix(frame))
            async with asyncio.timeout(PATIENCE):
                assert await loop.sock_recv(line, 1) == b""  # the process has closed the connection

    async def unharmed(self, rejections: list[str]) -> None:
        """Check that the frames were only counted, and that the two processes continue."""
        await until(lambda: len(self.one.rejections) >= len(rejections))
        self.two.send("one", b"still here")
        self.two.bus.publish(b"all")
        await until(lambda: self.one.messages("two") == [b"still here", b"all"])
        assert self.one.send("two", b"and here")
        await until(lambda: self.two.messages("one") == [b"and here"])
        await turns()
        assert self.one.rejections == rejections
        assert {told for told in self.one.told if told[0] != "heard"} == {("met", "two", b"")}
        assert not self.two.rejections


@pytest.fixture(params=BUSES)
async def attacked_pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AttackedPair]:
    attacked_pair = AttackedPair(request.param, tmp_path)
    await attacked_pair.begin()
    yield attacked_pair
    await attacked_pair.leave()


def payloads() -> list[bytes]:
    return [b"", *(bytes([kind]) + b"\x05two" for kind in KINDS)]


async def test_forged_frames_are_only_counted(attacked_pair: AttackedPair) -> None:
    signer = FrameSigner(STRANGER, "two")
    forged = [signer.sign("one", payload) for payload in payloads()]
    await attacked_pair.attack(forged)
    await attacked_pair.unharmed([Rejection.FORGED.value] * len(forged))


async def test_unsigned_frames_are_only_counted(attacked_pair: AttackedPair) -> None:
    bare = [b"", b"\xff", b"m", b"mtwo\nhello", b"btwo\n", b"two 1", b"\x01" * 30]
    await attacked_pair.attack(bare)
    await attacked_pair.unharmed([Rejection.MALFORMED.value] * len(bare))


async def test_truncated_frames_are_only_counted(attacked_pair: AttackedPair) -> None:
    whole = FrameSigner(IDENTITY, "three").sign("one", b"mpayload")
    await attacked_pair.attack([whole[:-1], whole[:-8], whole[:40]])
    await attacked_pair.unharmed([Rejection.FORGED.value, Rejection.FORGED.value, Rejection.MALFORMED.value])


async def test_frames_for_another_process_are_only_counted(attacked_pair: AttackedPair) -> None:
    signer = FrameSigner(IDENTITY, "three")
    others = [signer.sign(to, payload) for to in ("two", "nobody") for payload in payloads()]
    await attacked_pair.attack(others)
    await attacked_pair.unharmed([Rejection.MISDIRECTED.value] * len(others))


async def test_frames_of_another_version_are_only_counted(attacked_pair: AttackedPair) -> None:
    other = b"\x02" + FrameSigner(IDENTITY, "two").sign("one", b"mx")[1:]
    await attacked_pair.attack([other])
    await attacked_pair.unharmed([Rejection.VERSION.value])


@pytest.mark.parametrize("kind", BUSES)
async def test_replayed_frames_are_only_counted(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[bytes] = []
    sign = FrameSigner.sign

    def record(signer: FrameSigner, to: str, *parts: bytes) -> bytes:
        frame = sign(signer, to, *parts)
        if signer._padded_name.rstrip(b"\0") == b"two" and to in {"one", ALL}:
            recorded.append(frame)
        return frame

    monkeypatch.setattr(FrameSigner, "sign", record)
    attacked_pair = AttackedPair(kind, tmp_path)
    await attacked_pair.begin()
    attacked_pair.two.send("one", b"pay")
    attacked_pair.two.bus.publish(b"news")
    await until(lambda: attacked_pair.one.messages("two") == [b"pay", b"news"])
    attacked_pair.one.told = [told for told in attacked_pair.one.told if told[0] != "heard"]
    monkeypatch.undo()
    assert len(recorded) >= 3  # the hello, too
    await attacked_pair.attack(recorded)
    await attacked_pair.unharmed([Rejection.REPLAYED.value] * len(recorded))
    await attacked_pair.leave()


async def test_replayed_broadcasts_do_not_affect_a_later_process(tmp_path: Path) -> None:
    attacked_pair = AttackedPair("redis", tmp_path)
    gone = FrameSigner(IDENTITY, "gone")
    recorded = [gone.sign(ALL, payload) for payload in payloads()]
    await attacked_pair.begin()
    await attacked_pair.attack(recorded, to_all=True)
    await attacked_pair.unharmed([])
    await attacked_pair.leave()


async def test_many_rejected_frames_log_one_line(
    attacked_pair: AttackedPair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = [FrameSigner(STRANGER, "two").sign("one", b"mx")] * 5
    with caplog.at_level(logging.WARNING, "trunkline"):
        await attacked_pair.attack(forged)
        await until(lambda: len(attacked_pair.one.rejections) == 5)
        assert [record.message.split(" on the bus")[0] for record in caplog.records] == ["dropped 1 frames"]
        monkeypatch.setattr(bus_endpoint, "_LOG_INTERVAL", 0.0)
        await attacked_pair.attack(forged[:1])
        await until(lambda: len(attacked_pair.one.rejections) == 6)
    assert caplog.records[-1].message.startswith("dropped 5 frames on the bus at ")


async def test_bus_connection_survives_a_dropped_frame(tmp_path: Path) -> None:
    attacked_pair = AttackedPair("unix", tmp_path)
    one = await attacked_pair.join("one")
    signer = FrameSigner(IDENTITY, "peer")
    folder = socket_folder(tmp_path / "store.db", IDENTITY)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(folder / "one"))
        hello, first, second = signer.sign("one"), signer.sign("one", b"1"), signer.sign(ALL, b"2")
        wrong = [b"", FrameSigner(STRANGER, "peer").sign("one", b"x"), FrameSigner(IDENTITY, "two").sign("one", b"x")]
        line.sendall(b"".join(map(add_length_prefix, [hello, first, *wrong, first, second])))
        await until(lambda: one.messages("peer") == [b"1", b"2"])
    assert one.rejections == [
        rejection.value
        for rejection in (Rejection.MALFORMED, Rejection.FORGED, Rejection.MISDIRECTED, Rejection.REPLAYED)
    ]
    await attacked_pair.leave()


async def test_redis_client_cannot_impersonate_a_principal(tmp_path: Path) -> None:
    async with server_group("redis", tmp_path, 2) as (one, _), aiohttp.ClientSession() as http:
        session = await opened(http, one.url)
        cluster = one.server._runtime.get_services().cluster
        assert cluster is not None
        identity = cluster.membership.lease.identity
        assert identity is not None
        body = codec.encode(Request(7, "tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}))
        ask = RequestFrame(
            number=1,
            method="POST",
            target_id=session,
            is_sse_post=False,
            headers=[(b"accept", b"application/json, text/event-stream"), (b"mcp-session-id", session.encode())],
            peer="",
            owner_id=PrincipalCodec().owner_id(None),
            principal=None,
            expires_in=None,
            window=1 << 20,
            body_size=len(body),
            body=body,
        )
        payload = b"m" + INGRESS_KIND + encode_frame(ask)
        bus: Any = cluster.membership._bus
        forged = FrameSigner(StoreIdentity(identity.id, bytes(32), 0.0), "forger")
        genuine = FrameSigner(identity, "member")
        with valkey().client(db=1) as client:
            channel = bus._channels.for_peer(cluster.name)
            for frame in (
                forged.sign(cluster.name, payload),
                b"mforger\n" + payload[1:],
                genuine.sign("other", payload),
            ):
                client.publish(channel, frame)
            frame = genuine.sign(cluster.name, payload)  # a frame of a member of the deployment takes effect once
            client.publish(channel, frame)
            client.publish(channel, frame)
        await until(lambda: one.calls)
        await turns()
        assert one.calls == 1


async def opened(http: aiohttp.ClientSession, url: str) -> str:
    """A session at a server."""
    headers = {"accept": "application/json, text/event-stream"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    for message in ({"id": 1, "method": "initialize", "params": hello}, {"method": "notifications/initialized"}):
        async with http.post(url, json={"jsonrpc": "2.0", **message}, headers=headers) as answer:
            headers.setdefault("mcp-session-id", answer.headers.get("mcp-session-id", ""))
    return headers["mcp-session-id"]
