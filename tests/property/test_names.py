"""The table of names against a model of sets."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trunkline.errors import DuplicateEntry, NotRegistered
from trunkline.names.table import NameEntry, NameTable

NAMES = st.sampled_from("abc")
OWNERS = st.sampled_from([1, 2, 3])
KINDS = st.sampled_from(["server", "transport", "client"])


class NameMachine(RuleBasedStateMachine):
    """Owners that register, bind, unregister and end."""

    def __init__(self) -> None:
        super().__init__()
        self.table = NameTable()
        self.owners: dict[tuple[str, str], int] = {}
        self.bound: dict[str, str] = {}
        self.seen: set[tuple[str, str]] = set()  # what a watcher of the changes knows

    def note(self, changes: list) -> None:  # type: ignore[type-arg]
        for change in changes:
            key = (change.entry.kind, change.entry.name)
            assert (key in self.seen) == (change.change == "removed")
            self.seen ^= {key}

    def forget(self, kind: str, name: str) -> None:
        del self.owners[kind, name]
        if kind == "transport":
            self.bound.pop(name, None)
        elif kind == "server":
            self.bound = {transport: server for transport, server in self.bound.items() if server != name}

    @rule(kind=KINDS, name=NAMES, owner=OWNERS)
    def register(self, kind: str, name: str, owner: int) -> None:
        taken = self.owners.get((kind, name), owner) != owner
        try:
            self.note(self.table.register(NameEntry(kind, name, owner)))  # type: ignore[arg-type]
        except DuplicateEntry:
            assert taken
        else:
            assert not taken
            self.owners[kind, name] = owner

    @rule(kind=KINDS, name=NAMES, owner=OWNERS)
    def unregister(self, kind: str, name: str, owner: int) -> None:
        self.note(self.table.unregister(kind, name, owner))  # type: ignore[arg-type]
        if self.owners.get((kind, name)) == owner:
            self.forget(kind, name)

    @rule(owner=OWNERS)
    def end_owner(self, owner: int) -> None:
        self.note(self.table.drop_owner(owner))
        for key in [key for key, each in self.owners.items() if each == owner]:
            self.forget(*key)

    @rule(transport=NAMES, server=NAMES)
    def bind(self, transport: str, server: str) -> None:
        known = ("transport", transport) in self.owners and ("server", server) in self.owners
        try:
            self.table.bind(transport, server)
        except NotRegistered:
            assert not known
        else:
            assert known
            self.bound[transport] = server

    @rule(transport=NAMES)
    def unbind(self, transport: str) -> None:
        self.table.unbind(transport)
        self.bound.pop(transport, None)

    @invariant()
    def table_agrees_with_the_model(self) -> None:
        assert len(self.table) == len(self.owners)
        assert self.seen == self.owners.keys()
        for kind in ("server", "transport", "client"):
            for name in "abc":
                entry = self.table.find(kind, name)
                assert (None if entry is None else entry.owner) == self.owners.get((kind, name))
        for name in "abc":
            server = self.table.server_of(name)
            assert (None if server is None else server.name) == self.bound.get(name)
            transports = {entry.name for entry in self.table.transports_of(name)}
            assert transports == {transport for transport, server in self.bound.items() if server == name}


TestNames = NameMachine.TestCase
