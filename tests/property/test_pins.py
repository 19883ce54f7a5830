"""The pin store against a model: servers that change their tools, people that approve and remove, and a damaged file."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trunkline import PinStore
from trunkline.errors import MisuseError, StoreError, StoreUnusable
from trunkline.protocol.types import Tool
from trunkline.trust.pins import make_pin

SERVERS = st.sampled_from(["weather", "mail"])
NAMES = st.sampled_from(["read", "send", "list"])
TEXTS = st.sampled_from(["one", "two", "three"])
CATALOGS = st.dictionaries(NAMES, TEXTS)


def tool(name: str, text: str) -> Tool:
    return Tool(name=name, description=text, input_schema={})


class PinMachine(RuleBasedStateMachine):
    """The model is a set of trusted texts, in the words of the documentation."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = PinStore(Path(self.folder.name) / "pins.json")
        self.trusted: dict[str, dict[str, str]] = {}  # by server and tool; a server is known if it is here
        self.waiting: dict[str, dict[str, str]] = {}
        self.damaged: bytes | None = None  # content before the damage

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(server=SERVERS, offered=CATALOGS)
    def contact(self, server: str, offered: dict[str, str]) -> None:
        tools = [tool(name, text) for name, text in offered.items()]
        if self.damaged is not None:
            with pytest.raises(StoreUnusable):
                self.store.examine(server, tools)
            return
        result = self.store.examine(server, tools)
        if server not in self.trusted and offered:
            self.trusted[server] = dict(offered)
        trusted = self.trusted.get(server, {})
        blocked = {name: text for name, text in offered.items() if trusted.get(name) != text}
        assert result.blocked.keys() == blocked.keys()
        assert {*result.vanished} == trusted.keys() - offered.keys()
        for name, text in blocked.items():
            assert f"  + {text}" in result.blocked[name].changes
        if server in self.trusted:
            self.waiting[server] = blocked

    @rule(server=SERVERS, name=NAMES, seen=TEXTS)
    def approve(self, server: str, name: str, seen: str) -> None:
        digest = make_pin(tool(name, seen)).digest
        if self.damaged is None and self.waiting.get(server, {}).get(name) == seen:
            assert self.store.approve(server, name, digest=digest) == (name,)
            self.trusted[server][name] = self.waiting[server].pop(name)
        else:
            with pytest.raises((MisuseError, StoreError)):
                self.store.approve(server, name, digest=digest)

    @rule(server=SERVERS, name=NAMES)
    def remove_tool(self, server: str, name: str) -> None:
        if self.damaged is None and name in self.trusted.get(server, {}):
            self.store.remove(server, name)
            del self.trusted[server][name]
        else:
            with pytest.raises((MisuseError, StoreError)):
                self.store.remove(server, name)

    @precondition(lambda self: self.damaged is None)
    @rule(server=SERVERS)
    def remove_server(self, server: str) -> None:
        if server in self.trusted:
            self.store.remove(server)
            del self.trusted[server]
            self.waiting.pop(server, None)
        else:
            with pytest.raises(MisuseError):
                self.store.remove(server)

    @precondition(lambda self: self.damaged is None and self.store.path.exists())
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        self.damaged = self.store.path.read_bytes()
        kept = data.draw(st.integers(0, len(self.damaged) - 3))  # less than the last brace
        self.store.path.write_bytes(self.damaged[:kept])

    @precondition(lambda self: self.damaged is not None)
    @rule()
    def restore(self) -> None:
        assert self.damaged is not None
        self.store.path.write_bytes(self.damaged)
        self.damaged = None

    @rule()
    def restart(self) -> None:
        self.store = PinStore(self.store.path)

    @invariant()
    def file_has_the_trusted_and_waiting_definitions(self) -> None:
        if self.damaged is not None:
            return
        servers = self.store.servers()
        assert servers.keys() == self.trusted.keys()
        for name, record in servers.items():
            trusted, waiting = self.trusted[name], self.waiting.get(name, {})
            assert {key: pin.definition["description"] for key, pin in record.pins.items()} == trusted
            assert {key: pin.definition["description"] for key, pin in record.waiting.items()} == waiting


TestPinMachine = PinMachine.TestCase
