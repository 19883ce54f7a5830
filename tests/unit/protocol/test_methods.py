"""The table of methods, against the specification's own."""

from functools import cache

import pytest
from tests.official import schema

from trunkline.config import Settings
from trunkline.protocol import types
from trunkline.protocol.lifecycle import Signal
from trunkline.protocol.methods import (
    ALIASES,
    METHODS,
    Method,
    Side,
    TimeLimit,
    find_method,
    methods_for,
)
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import tasks_extension

PUBLISHED = [Revision.V2025_03_26, Revision.V2025_06_18, Revision.V2025_11_25, Revision.V2026_07_28]
# Methods of an extension, and not of the revision itself; by receiver.
BY_EXTENSION = {
    Side.SERVER: {"tasks/get", "tasks/update", "tasks/cancel"},
    Side.CLIENT: {"tasks/get", "tasks/cancel", "notifications/tasks"},  # two of which no server sends any more
}
ONE_WAY = {(Revision.V2026_07_28, Side.SERVER): {"notifications/progress"}}  # a client has nothing to report any more


@cache
def official(revision: Revision, sender: str, kind: str) -> set[str]:
    """The names of the requests or notifications that one side sends, by the official schema."""
    document = schema(revision.value)
    definitions = document.get("$defs") or document["definitions"]
    union = definitions.get(f"{sender}{kind}", {"anyOf": []})
    members = [part["$ref"].rsplit("/", 1)[1] for part in union["anyOf"]] if "anyOf" in union else [f"{sender}{kind}"]
    return {definitions[name]["properties"]["method"]["const"] for name in members}


@pytest.mark.row("L22")
@pytest.mark.parametrize("revision", PUBLISHED)
@pytest.mark.parametrize(("receiver", "sender"), [(Side.SERVER, "Client"), (Side.CLIENT, "Server")])
def test_revision_has_methods_of_official_schema(revision: Revision, receiver: Side, sender: str) -> None:
    rows = list(methods_for(revision, receiver))
    if revision is Revision.V2026_07_28:
        rows = [row for row in rows if row.name not in BY_EXTENSION[receiver]]
    assert {row.name for row in rows if row.is_request} == official(revision, sender, "Request")
    beyond = ONE_WAY.get((revision, receiver), set())
    assert {row.name for row in rows if not row.is_request} == official(revision, sender, "Notification") | beyond


def test_every_method_has_one_row() -> None:
    assert len({row.name for row in METHODS}) == len(METHODS)
    assert all(find_method(row.name) is row for row in METHODS)
    assert find_method("foo/bar") is None


def test_notifications_are_those_without_a_result() -> None:
    assert all(row.is_request is not row.name.startswith("notifications/") for row in METHODS)


@pytest.mark.row("X02", "X03")
def test_bare_notification_names_are_no_methods() -> None:
    assert ALIASES["initialized"] == "notifications/initialized"
    assert ALIASES["resources/updated"] == "notifications/resources/updated"
    assert len(ALIASES) == sum(not row.is_request for row in METHODS)
    assert not ALIASES.keys() & {row.name for row in METHODS if row.profile is None}


@pytest.mark.row("AD001")
@pytest.mark.parametrize(
    ("name", "received", "sent"),
    [
        ("initialize", Signal.RECV_INITIALIZE, Signal.SEND_INITIALIZE),
        ("notifications/initialized", Signal.RECV_INITIALIZED, Signal.SEND_INITIALIZED),
        ("ping", Signal.RECV_PING, Signal.SEND_PING),
        ("shutdown", Signal.DRAIN, Signal.DRAIN),
        ("notifications/shutdown", Signal.DRAIN, Signal.DRAIN),
        ("tools/call", Signal.RECV_CALL, Signal.SEND_CALL),
        ("notifications/message", Signal.RECV_NOTICE, Signal.SEND_NOTICE),
    ],
)
def test_every_method_has_lifecycle_signals(name: str, received: Signal, sent: Signal) -> None:
    row = find_method(name)
    assert row is not None
    assert (row.receive_signal, row.send_signal) == (received, sent)


@pytest.mark.parametrize("row", METHODS, ids=lambda row: row.name)
def test_types_of_a_method_exist(row: Method) -> None:
    assert isinstance(row.params, type)
    assert isinstance(row.result, type) is row.is_request


def test_types_of_a_method_are_those_of_their_names() -> None:
    rows = {row.name: row for row in METHODS}
    assert (rows["tools/call"].params, rows["tools/call"].result) == (types.CallToolParams, types.CallToolResult)
    assert rows["tasks/update"].params is tasks_extension.UpdateTaskParams


def test_method_exists_within_its_revisions() -> None:
    row = Method("a", Side.SERVER, "Empty", since=Revision.V2025_03_26, until=Revision.V2025_06_18)
    assert [row.exists_in(revision) for revision in Revision] == [False, True, True, False, False]
    endless = Method("a", Side.SERVER, "Empty", since=Revision.V2025_06_18)
    assert [endless.exists_in(revision) for revision in Revision] == [False, False, True, True, True]


def test_method_is_received_by_its_side() -> None:
    sides = (Side.SERVER, Side.CLIENT)
    assert [Method("a", Side.SERVER, "Empty").is_received_by(side) for side in sides] == [True, False]
    assert [Method("a", Side.EITHER, "Empty").is_received_by(side) for side in sides] == [True, True]


def test_sides_have_opposites() -> None:
    assert [side.other for side in (Side.SERVER, Side.CLIENT, Side.EITHER)] == [Side.CLIENT, Side.SERVER, Side.EITHER]


@pytest.mark.row("K04", "K14", "X06", "X07")
@pytest.mark.parametrize(
    ("names", "seconds"),
    [
        (["initialize"], 30),
        (["ping", "tools/list", "resources/list", "resources/templates/list", "prompts/list", "roots/list"], 5),
        (["tasks/list"], 5),
        (["tools/call", "prompts/get", "resources/read", "sampling/createMessage", "completion/complete"], 60),
        (["logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/get", "tasks/cancel"], 60),
        (["elicitation/create"], 3600),
        (["tasks/result"], None),
    ],
)
def test_every_method_has_time_limit(names: list[str], seconds: float | None) -> None:
    rows = [row for row in METHODS if row.name in names]
    assert len(rows) == len(names)
    assert {row.time_limit.seconds(Settings()) for row in rows} == {seconds}


@pytest.mark.row("K16")
def test_time_limits_come_from_settings() -> None:
    settings = Settings(initialize_timeout=1, quick_timeout=2, work_timeout=3, person_timeout=None)
    assert [wait.seconds(settings) for wait in TimeLimit] == [1, 2, 3, None, None]


def test_only_tool_failures_are_results() -> None:
    assert [row.name for row in METHODS if row.fails_as_result] == ["tools/call"]


def test_profile_methods_exist_in_handshake_era_only() -> None:
    listed = find_method("tasks/list")
    assert listed is not None
    assert [listed.exists_in(revision, "erlmcp") for revision in Revision] == [True, True, True, True, False]
    assert [listed.exists_in(revision) for revision in Revision] == [False, False, False, True, False]
