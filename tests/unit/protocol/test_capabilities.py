"""Declared and negotiated capabilities."""

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from trunkline.errors import InvalidParams
from trunkline.protocol.capabilities import (
    NegotiatedCapabilities,
    freeze,
    is_declared,
    negotiate_capabilities,
    restrict_to_revision,
)
from trunkline.protocol.revisions import Revision

OFFERED = {"tools": {"listChanged": True}, "resources": {"subscribe": True, "listChanged": True}, "logging": {}}


@pytest.mark.row("A05", "L14", "L15")
@pytest.mark.parametrize(
    ("path", "on"),
    [
        ("tools", True),
        ("tools.listChanged", True),
        ("resources.subscribe", True),
        ("logging", True),
        ("logging.anything", False),
        ("prompts", False),
        ("prompts.listChanged", False),
    ],
)
def test_capability_is_on_if_present(path: str, on: bool) -> None:
    assert is_declared(OFFERED, path) is on


@pytest.mark.row("L14")
@pytest.mark.parametrize("value", [None, False])
def test_null_or_false_capability_is_off(value: object) -> None:
    assert not is_declared({"tools": value}, "tools")
    assert not is_declared({"tools": {"listChanged": value}}, "tools.listChanged")


@pytest.mark.row("L14")
def test_non_object_capability_has_no_members() -> None:
    assert is_declared({"tools": True}, "tools")
    assert not is_declared({"tools": True}, "tools.listChanged")


@pytest.mark.row("L08", "AD004")
def test_founding_example_is_negotiated() -> None:
    assert negotiate_capabilities({"resources": {}}, {"resources": {}, "tools": {}}).server == {"resources": {}}


@pytest.mark.row("L09", "X04")
def test_client_without_capabilities_gets_all_features() -> None:
    assert negotiate_capabilities(OFFERED, {}).server == OFFERED


@pytest.mark.row("X04")
def test_feature_disabled_by_client_is_removed() -> None:
    theirs = {"tools": False, "resources": {"subscribe": False, "other": 1}, "logging": True}
    assert negotiate_capabilities(OFFERED, theirs).server == {"resources": {"listChanged": True}, "logging": {}}


@pytest.mark.row("X04")
def test_offered_scalar_value_is_preserved() -> None:
    assert negotiate_capabilities({"x": True}, {"x": {"a": False}}).server == {"x": True}


@pytest.mark.row("L07")
def test_negotiated_capabilities_are_immutable() -> None:
    negotiated = negotiate_capabilities(OFFERED, {})
    with pytest.raises(AttributeError):
        negotiated.server = {}  # type: ignore[misc]


def _change_dict(value: Any) -> Iterator[Callable[[], Any]]:
    yield lambda: value.__setitem__("sampling", {})
    yield lambda: value.__delitem__("roots")
    yield lambda: value.__ior__({"a": 1})
    yield lambda: value.update(a=1)
    yield lambda: value.setdefault("a", 1)
    yield lambda: value.pop("roots")
    yield value.popitem
    yield value.clear


def _change_list(value: Any) -> Iterator[Callable[[], Any]]:
    yield lambda: value.__setitem__(0, 2)
    yield lambda: value.__delitem__(0)
    yield lambda: value.__iadd__([2])
    yield lambda: value.__imul__(2)
    yield lambda: value.append(2)
    yield lambda: value.extend([2])
    yield lambda: value.insert(0, 2)
    yield lambda: value.remove(1)
    for name in ("pop", "clear", "reverse", "sort"):
        yield getattr(value, name)


@pytest.mark.row("L07")
def test_negotiated_capabilities_are_frozen_at_every_depth() -> None:
    declared: dict[str, Any] = {"roots": {"listChanged": True}, "extra": {"kept": [1, {"deep": {}}]}}
    negotiated = negotiate_capabilities(OFFERED, declared)
    client: Any = negotiated.client
    dicts = [client, client["roots"], client["extra"]["kept"][1], client["extra"]["kept"][1]["deep"], negotiated.server]
    for change in [change for value in dicts for change in _change_dict(value)] + [
        *_change_list(client["extra"]["kept"])
    ]:
        with pytest.raises(TypeError, match="read-only"):
            change()
    assert client == declared
    assert msgspec.json.decode(msgspec.json.encode(client)) == declared
    assert pickle.loads(pickle.dumps(client)) == copy.deepcopy(client) == declared


@pytest.mark.row("L07")
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_of_capabilities_are_frozen_at_every_depth(duplicate: Callable[[Any], Any]) -> None:
    copied = duplicate(negotiate_capabilities(OFFERED, {"extra": {"kept": [1, {"deep": {}}]}}).client)
    changes = [*_change_dict(copied), *_change_dict(copied["extra"]), *_change_list(copied["extra"]["kept"])]
    for change in changes:
        with pytest.raises(TypeError, match="read-only"):
            change()


def test_frozen_capabilities_are_shared() -> None:
    frozen = freeze(OFFERED)
    assert freeze(frozen) is frozen
    assert negotiate_capabilities(frozen, {}).server is frozen


@pytest.mark.row("L19")
def test_client_capabilities_keep_unknown_members() -> None:
    theirs = {
        "roots": {"listChanged": True},
        "sampling": {"modelPreferences": {}},
        "tools": {"listChanged": True},
        "extra": {"a": 1},
    }
    negotiated = negotiate_capabilities(OFFERED, theirs)
    assert negotiated.client == theirs
    assert negotiated.client_typed.roots is not None
    assert negotiated.client_typed.roots.list_changed is True
    assert negotiated.client_typed.sampling is not None
    assert negotiated.client_typed.elicitation is None


@pytest.mark.row("L21")
def test_server_capabilities_are_typed() -> None:
    typed = negotiate_capabilities(OFFERED, {}).server_typed
    assert typed.resources is not None
    assert (typed.resources.subscribe, typed.resources.list_changed, typed.logging) == (True, True, {})
    assert typed.prompts is None


@pytest.mark.row("L20")
@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [
        ({"a": {}, "b": {}}, {"b": {}, "c": {}}, {"b"}),
        ({"a": {}, "b": {}}, {"a": False, "b": {}}, {"b"}),
        ({"a": {}}, {}, set()),
        ({}, {"a": {}}, set()),
    ],
)
def test_experimental_capabilities_are_intersection(
    ours: dict[str, Any], theirs: dict[str, Any], common: set[str]
) -> None:
    assert negotiate_capabilities({"experimental": ours}, {"experimental": theirs}).experimental == common


@pytest.mark.row("L20")
def test_no_experimental_capability_without_declaration() -> None:
    assert negotiate_capabilities({}, {"experimental": {"a": {}}}).experimental == set()
    assert NegotiatedCapabilities({"experimental": {"a": {}}}, {}).experimental == set()


@pytest.mark.row("L24")
@pytest.mark.parametrize(
    "theirs",
    [
        {"sampling": []},
        {"roots": {"listChanged": "yes"}},
        {"elicitation": "form"},
        {"experimental": 5},
        {"tasks": {"requests": []}},
    ],
)
def test_malformed_capabilities_are_refused(theirs: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams, match="client capabilities are malformed"):
        negotiate_capabilities(OFFERED, theirs)


@pytest.mark.row("L24")
def test_client_may_disable_a_feature_by_false_or_null() -> None:
    negotiated = negotiate_capabilities(OFFERED, {"sampling": False, "roots": None})
    assert not is_declared(negotiated.client, "sampling")
    assert not is_declared(negotiated.client, "roots")


@pytest.mark.row("X04")
@pytest.mark.parametrize(
    ("revision", "names"),
    [
        (Revision.V2024_11_05, ["tools", "own"]),
        (Revision.V2025_03_26, ["tools", "completions", "own"]),
        (Revision.V2025_06_18, ["tools", "completions", "elicitation", "own"]),
        (Revision.V2025_11_25, ["tools", "completions", "elicitation", "tasks", "own"]),
        (Revision.V2026_07_28, ["tools", "completions", "elicitation", "extensions", "own"]),
    ],
)
def test_capability_is_omitted_in_older_revision(revision: Revision, names: list[str]) -> None:
    everything = {name: {} for name in ("tools", "completions", "elicitation", "tasks", "extensions", "own")}
    assert list(restrict_to_revision(everything, revision)) == names


@pytest.mark.row("X04")
@pytest.mark.parametrize(
    ("given", "in_2025_06_18"),
    [
        ({"elicitation": {"form": {}, "url": {}}}, {"elicitation": {}}),
        ({"elicitation": {}}, {"elicitation": {}}),
        ({"elicitation": {"url": {}}}, {}),  # its subject were forms, and there are none
        ({"sampling": {"tools": {}, "own": {}}}, {"sampling": {"own": {}}}),
    ],
)
def test_member_is_omitted_in_older_revision(given: dict[str, Any], in_2025_06_18: dict[str, Any]) -> None:
    assert restrict_to_revision(given, Revision.V2025_06_18) == in_2025_06_18
    assert restrict_to_revision(given, Revision.V2025_11_25) == given


@pytest.mark.row("X04")
def test_member_is_omitted_in_newer_revision() -> None:
    given = {"roots": {"listChanged": True, "own": {}}}
    assert restrict_to_revision(given, Revision.V2025_11_25) == given
    assert restrict_to_revision(given, Revision.V2026_07_28) == {"roots": {"own": {}}}
