"""A bounded part of `make fuzz`, with a seed that is the same every time."""

import asyncio
import json

import pytest
from tests.fuzz import definitions
from tests.fuzz.run import FuzzError, Random, Wire, hello, request, run
from tests.limits import PATIENCE

from trunkline import Server
from trunkline.transports.channel import ChannelInfo
from trunkline.transports.stream import StreamChannel
from trunkline.wire import codec

SEED = 20251125
CASES = 300
MANY_CASES = 5_000
A_READ = 1 << 16


async def test_mutated_sessions_do_not_crash_or_hang_a_server() -> None:
    await run(SEED, CASES)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_thousands_of_mutated_sessions_do_not_crash_a_server(seed: int) -> None:
    await run(seed, MANY_CASES)


async def test_planted_fault_is_found_and_reproducible(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(frame: object) -> object:
        if isinstance(frame, bytes) and b"\xff" in frame:
            raise ValueError("planted")
        return read(frame)

    read = codec.decode
    monkeypatch.setattr(codec, "decode", decode)
    with pytest.raises(FuzzError, match=rf"planted\n  again: python -m tests.fuzz.run --seed {SEED} --case \d+"):
        await run(SEED, CASES)


def test_random_definitions_are_often_valid() -> None:
    schemas = [definitions.fuzz_schema(Random(f"{SEED}/{number}")) for number in range(60)]
    templates = [definitions.fuzz_template(Random(f"{SEED}/{number}")) for number in range(200)]

    assert 10 < sum(schemas) < 50
    assert 20 < sum(templates) < 180


@pytest.mark.parametrize("extra", [0, 1], ids=["16 MiB", "one byte more"])
async def test_line_size_limit_is_exact(extra: int) -> None:
    server, wire = Server("fuzz", observers=[]), Wire()

    @server.tool
    async def size(text: str) -> int:
        return len(text)

    limit = server.settings.stdio_message_size_limit
    channel = StreamChannel(ChannelInfo("fuzz"), max_frame=limit, settings=server.settings)
    channel.open(server.connect(channel), wire, wire)
    call = request(2, "tools/call", name="size", arguments={"text": ""})
    padding = limit + extra - len(codec.to_json(call))
    call["params"]["arguments"]["text"] = "x" * padding
    line = codec.to_json(call)
    assert len(line) == 16 * 1024 * 1024 + extra
    channel.feed(b"".join(codec.to_json(message) + b"\n" for message in hello("2025-11-25")))
    for start in range(0, len(line), A_READ):
        channel.feed(line[start : start + A_READ])
    channel.feed(b"\n" + codec.to_json(request(3, "ping")) + b"\n")
    async with asyncio.timeout(PATIENCE):
        while wire.written.count(b"\n") < 3:
            await asyncio.sleep(0)
    await channel.close()
    await server.aclose()
    answers = {answer.get("id"): answer for answer in map(json.loads, wire.written.splitlines())}

    if extra:
        assert str(limit) in answers[2]["error"]["message"]
    else:
        assert answers[2]["result"]["structuredContent"] == {"result": padding}
    assert answers[3]["result"] == {}


async def test_long_line_byte_by_byte_is_read_in_time() -> None:
    server, wire = Server("fuzz", observers=[]), Wire()
    channel = StreamChannel(ChannelInfo("fuzz"), max_frame=1 << 20, settings=server.settings)
    channel.open(server.connect(channel), wire, wire)
    line = codec.to_json(request(2, "ping", filler="x" * 100_000)) + b"\n"
    channel.feed(b"".join(codec.to_json(message) + b"\n" for message in hello("2025-11-25")))
    with definitions.CpuLimit("a slow line"):
        for position in range(len(line)):
            channel.feed(line[position : position + 1])
    await channel.close()

    assert [json.loads(answer)["id"] for answer in wire.written.splitlines()] == [1, 2]
