"""Connections with simulated faults."""

import asyncio
from typing import Any

import pytest
from tests.contract.connections import Recorder, tcp, turns, until
from tests.limits import PATIENCE

from trunkline import Client, Server, Settings
from trunkline.errors import MisuseError, OutcomeUnknown, RequestTimeout, TransportError
from trunkline.protocol.client_envelope import PROBE_ID
from trunkline.testing import Faults, ManualClock, ScriptedServer, connect
from trunkline.transports.channel import Channel, ChannelClosed
from trunkline.transports.memory import memory_pair
from trunkline.wire.messages import Batch, Encoded, Malformed, Notification, Request, Response


class Faulty:
    """A connection in memory with faults on our end."""

    def __init__(self, faults: Faults) -> None:
        self.faults, self.at_ours, self.at_theirs = faults, Recorder(), Recorder()
        inner, self.theirs = memory_pair()
        self.ours = faults.put_on(inner, lambda _: self.at_ours)
        inner.open(self.ours)
        self.theirs.open(self.at_theirs)

    async def say(self, *methods: str, by: str = "ours") -> None:
        for method in methods:
            getattr(self, by).send(Notification(method))
        await turns()


async def test_messages_pass_without_faults() -> None:
    line = Faulty(Faults())
    await line.say("a", "b")
    await line.say("c", by="theirs")
    assert (line.at_theirs.methods, line.at_ours.methods) == (["a", "b"], ["c"])
    assert line.faults.counts == {"sent": 2, "received": 1}
    assert line.ours.info.transport == "memory"
    await line.ours.drain()
    await line.ours.close()
    assert [end.reason for end in line.at_ours.ends] == ["closed"]
    await line.say("late")
    assert line.at_theirs.methods == ["a", "b"]


@pytest.mark.parametrize(("by", "at"), [("ours", "at_theirs"), ("theirs", "at_ours")])
@pytest.mark.parametrize(
    ("fault", "heard"),
    [
        ("drop", ["a", "c", "d"]),
        ("duplicate", ["a", "b", "b", "c", "d"]),
        ("swap", ["a", "c", "b", "d"]),
    ],
)
async def test_message_is_dropped_duplicated_or_swapped(by: str, at: str, fault: str, heard: list[str]) -> None:
    for which in (2, "b"):
        faults = Faults()
        getattr(faults, fault)(**{"sent" if by == "ours" else "received": which})
        line = Faulty(faults)
        await line.say("a", "b", "c", "d", by=by)
        assert getattr(line, at).methods == heard


@pytest.mark.parametrize(("by", "at"), [("ours", "at_theirs"), ("theirs", "at_ours")])
@pytest.mark.parametrize("fault", ["truncate", "garble"])
async def test_damaged_message_does_not_affect_next(by: str, at: str, fault: str) -> None:
    faults = Faults()
    getattr(faults, fault)(sent=1, received=1)
    line = Faulty(faults)
    await line.say("a", "b", by=by)
    bad, good = getattr(line, at).messages
    assert isinstance(bad, Malformed)
    assert good == Notification("b")


@pytest.mark.parametrize(
    "item", [Encoded(b'{"jsonrpc":"2.0","method":"x"}'), [Response(1, {}), Response(2, {})]], ids=["encoded", "batch"]
)
async def test_every_kind_of_message_can_be_damaged(item: Any) -> None:
    line = Faulty(Faults().truncate(sent=1).truncate(received=1))
    line.ours.send(item)
    line.theirs.send(item)
    await turns()
    assert [type(m) for m in line.at_theirs.messages + line.at_ours.messages] == [Malformed, Malformed]
    line = Faulty(Faults().garble(received=1))
    line.theirs.send(Encoded(b"nonsense"))
    line.theirs.send([Response(1, {}), Response(2, {})])
    await turns()
    assert [type(m) for m in line.at_ours.messages] == [Malformed, Batch]


async def test_unencodable_message_is_refused_even_if_dropped() -> None:
    line = Faulty(Faults().drop(sent=1))
    with pytest.raises(TypeError):
        line.ours.send(Notification("n", {"x": object()}))


async def test_delay_holds_later_messages_too() -> None:
    clock = ManualClock()
    line = Faulty(Faults(clock=clock).delay(5, sent=2))
    await line.say("a", "b", "c")
    clock.advance(4.9)
    await turns()
    assert line.at_theirs.methods == ["a"]
    clock.advance(0.1)
    await turns()
    assert line.at_theirs.methods == ["a", "b", "c"]


async def test_delay_uses_loop_clock_by_default() -> None:
    line = Faulty(Faults().delay(0.001, received=1))
    await line.say("a", by="theirs")
    await until(lambda: line.at_ours.messages)


async def test_stall_holds_messages_until_release() -> None:
    line = Faulty(Faults().stall("received"))
    await line.say("a")
    await line.say("x", "y", by="theirs")
    assert (line.at_theirs.methods, line.at_ours.messages) == (["a"], [])
    line.faults.release("received")
    assert line.at_ours.methods == ["x", "y"]


async def test_kill_closes_connection_once() -> None:
    line = Faulty(Faults())
    closed = ChannelClosed("killed", status=-9, last_words="ouch")
    line.faults.kill(closed=closed)
    line.faults.kill(closed=closed)
    assert line.at_ours.ends == [closed]
    line.theirs.send(Notification("unheard"))
    await line.ours.close()
    assert (line.at_ours.messages, len(line.at_theirs.ends)) == ([], 1)


async def test_kill_and_cut_apply_to_named_message() -> None:
    line = Faulty(Faults().kill(sent="b", closed=ChannelClosed("died", status=3)))
    await line.say("a", "b", "c")
    assert line.at_theirs.methods == ["a", "b"]
    assert line.at_ours.ends == [ChannelClosed("died", status=3)]
    line = Faulty(Faults().cut(received=2))
    await line.say("a", "b", "c", by="theirs")
    assert line.at_ours.methods == ["a"]
    assert [end.reason for end in line.at_ours.ends] == ["cut within a message, by a fault"]


async def test_pause_is_forwarded_to_inner_channel() -> None:
    line = Faulty(Faults())
    line.ours.pause()
    await line.say("a", by="theirs")
    assert line.at_ours.messages == []
    line.ours.resume()
    await turns()
    assert line.at_ours.methods == ["a"]


async def test_random_faults_are_reproducible_by_seed() -> None:
    async def heard(seed: int) -> list[str]:
        line = Faulty(Faults(seed=seed, drop=0.2, duplicate=0.2, swap=0.1))
        await line.say(*(str(number) for number in range(100)))
        return line.at_theirs.methods

    assert await heard(1) == await heard(1) != await heard(2)
    assert await heard(1) != [str(number) for number in range(100)]


def test_delay_cannot_be_random() -> None:
    with pytest.raises(MisuseError, match="no fault 'explode' happens by chance; cut, drop"):
        Faults(explode=0.5)


# --- over connectors and servers -------------------------------------------------------------------------


async def test_any_client_target_can_have_faults() -> None:
    server, faults, recorder = Server("s"), Faults().drop(received=1).refuse(2), Recorder()
    connector = faults.on(server)
    assert connector.name == "s"
    for _ in range(2):
        with pytest.raises(TransportError, match="cannot reach s: refused by a fault"):
            await connector.connect(lambda _: recorder)
    channel = await connector.connect(lambda _: recorder)
    for ident in (1, 2):
        channel.send(Encoded(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % ident))
    await until(lambda: recorder.messages)
    assert recorder.ids == [2]
    await channel.close()
    await server.aclose()
    assert faults.lines == []


@pytest.mark.parametrize("newest", ["2025-11-25", "2026-07-28"])
async def test_era_probe_is_not_counted(newest: str) -> None:
    server, faults = ScriptedServer(), Faults().drop(sent=3)  # after initialize and initialized
    async with Client(faults.on(server), revision=newest) as client:
        assert faults.counts == {"sent": 2, "received": 1}
        with pytest.raises(RequestTimeout):
            await client.request("prompts/list", timeout=0.01)
        assert "prompts/list" not in [said.get("method") for said in server.line.transcript.said_by("client")]


async def test_era_probe_has_named_faults_only() -> None:
    for faults, patience, spoken in (
        (Faults(), PATIENCE, "2026-07-28"),
        (Faults().truncate(sent="server/discover"), 0.01, "2025-11-25"),
    ):
        async with Client(faults.on(Server("s")), settings=Settings(probe_timeout=patience)) as client:
            assert client.revision == spoken
    by_chance = Faults(drop=1.0)
    line = Faulty(by_chance)
    line.ours.send(Request(PROBE_ID, "server/discover"))
    line.theirs.send(Response(PROBE_ID, {}))
    await line.say("lost")
    assert (line.at_theirs.ids, line.at_ours.ids) == ([PROBE_ID], [PROBE_ID])
    assert by_chance.counts == {"sent": 1, "received": 0}


async def test_server_connections_can_have_faults() -> None:
    server, faults, recorder = Server("s"), Faults().drop(sent=1), Recorder()
    ours, theirs = memory_pair()
    ours.open(recorder)
    theirs.open(faults.around(server.connect)(theirs))
    for ident in (1, 2):
        ours.send(Encoded(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % ident))
    await until(lambda: recorder.messages)
    assert recorder.ids == [2]
    await ours.close()
    await server.aclose()


async def test_faults_apply_to_real_sockets() -> None:
    async with tcp(Settings()) as line:
        recorder, faults = Recorder(), Faults().garble(sent=2)
        made: list[Channel] = []

        def accept(channel: Channel) -> Recorder:
            made.append(channel)
            return recorder

        faults.around(accept)(line.ours)
        for method in ("a", "b", "c"):
            made[0].send(Notification(method))
        await until(lambda: len(line.at_theirs.messages) == 3)
        assert [type(message) for message in line.at_theirs.messages] == [Notification, Malformed, Notification]
        faults.kill()
        await until(lambda: line.at_theirs.ends)
        await asyncio.gather(made[0].close(), line.theirs.close())


async def test_messages_are_reordered() -> None:
    line = Faulty(Faults().reorder(3, sent="b"))
    await line.say("a", "b", "c")
    assert line.at_theirs.methods == ["a"]
    await line.say("d", "e")
    assert line.at_theirs.methods == ["a", "d", "c", "b", "e"]
    with pytest.raises(MisuseError, match="at least 2 messages, not 1"):
        Faults().reorder(1, sent=1)


async def test_stall_begins_with_named_message() -> None:
    line = Faulty(Faults().stall(sent="b", received=1))
    await line.say("a", "b", "c")
    await line.say("d", by="theirs")
    assert (line.at_theirs.methods, line.at_ours.methods) == (["a"], [])
    line.faults.release("sent").release("received")
    await turns()
    assert (line.at_theirs.methods, line.at_ours.methods) == (["a", "b", "c"], ["d"])


async def test_test_client_has_faults_in_three_lines() -> None:
    server = Server("t")
    server.add_tool(_echo, name="echo")
    async with connect(server, faults=Faults().kill(sent="tools/call")) as client:
        with pytest.raises(OutcomeUnknown):
            await client.call_tool("echo", {"text": "hello"})
        assert (await client.call_tool("echo", {"text": "again"})).data == "again"


async def _echo(text: str) -> str:
    return text
