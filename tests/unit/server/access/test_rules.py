"""Access rules: evaluated once for all callers with the same scopes, and never after the listing."""

import json
from typing import Any

import pytest

from trunkline import Context, Server
from trunkline.auth.principal import Principal
from trunkline.errors import RegistrationError
from trunkline.protocol.revisions import Revision
from trunkline.server.access import rules as access_rules
from trunkline.server.access.rules import ANONYMOUS_VIEWER, AccessRules, Viewer, scopes_of

EMPTY: frozenset[str] = frozenset()


def yes(_: Context) -> bool:
    return True


def offering() -> Server:
    server = Server("s")
    server.add_tool(lambda: None, name="open")
    server.add_tool(lambda: None, name="said_open", scopes=())
    server.add_tool(lambda: None, name="a", scopes=["a"])
    server.add_tool(lambda: None, name="ab", scopes=["a", "b"])
    server.add_tool(lambda: None, name="asks", allow=yes)
    server.add_tool(lambda: None, name="asks_b", scopes=["b"], allow=yes)
    return server


def viewer(*scopes: str, **more: Any) -> Viewer:
    return Viewer(frozenset(scopes), **more)


# --- scopes of a principal ----------------------------------------------------------------------------


class Holder:
    def __init__(self, scopes: Any) -> None:
        self.scopes = scopes


@pytest.mark.parametrize(
    ("principal", "held"),
    [
        (Principal("ann", scopes=("a", "b")), {"a", "b"}),
        (Principal("ann"), set()),
        (Holder(["a", "b"]), {"a", "b"}),
        (Holder("a b"), {"a", "b"}),
        ("ann", set()),
    ],
)
def test_scopes_of_principals_of_any_class(principal: object, held: set[str]) -> None:
    assert scopes_of(principal, local=True) == scopes_of(principal, local=False) == held


def test_anonymous_caller_has_all_scopes_only_locally() -> None:
    assert scopes_of(None, local=True) is None
    assert scopes_of(None, local=False) == EMPTY


# --- rules --------------------------------------------------------------------------------------------


def test_hidden_keys_depend_on_scopes_and_predicates() -> None:
    rules = AccessRules(offering().tools)
    assert rules
    assert rules.hidden_keys(ANONYMOUS_VIEWER) == {"a", "ab", "asks", "asks_b"}
    assert rules.hidden_keys(viewer("a")) == {"ab", "asks", "asks_b"}
    assert rules.hidden_keys(viewer("a", predicate_results={yes: True})) == {"ab", "asks_b"}
    assert rules.hidden_keys(viewer("a", "b", predicate_results={yes: True})) == EMPTY
    assert rules.hidden_keys(viewer("a", "b", predicate_results={yes: False})) == {"asks", "asks_b"}
    assert rules.hidden_keys(Viewer(None)) == {"asks", "asks_b"}


def test_each_predicate_is_returned_once_if_scopes_suffice() -> None:
    server = offering()
    rules = AccessRules(server.tools)
    assert rules.predicates(EMPTY) == [yes]
    assert rules.predicates(None) == [yes]
    server.remove_tool("asks")
    assert rules.predicates(EMPTY) == []
    assert rules.predicates(frozenset("b")) == [yes]


def test_nothing_is_hidden_without_rules() -> None:
    server = Server("s")
    server.add_tool(lambda: None, name="open")
    server.add_tool(lambda: None, name="said_open", scopes=())
    rules = AccessRules(server.tools)
    assert not rules
    assert rules.hidden_keys(ANONYMOUS_VIEWER) == EMPTY
    server.add_tool(lambda: None, name="a", scopes=["a"])
    assert rules
    assert rules.hidden_keys(ANONYMOUS_VIEWER) == {"a"}
    server.tools.disable("a")
    assert not rules


def test_hidden_keys_are_cached_by_relevant_scopes() -> None:
    server = Server("s")
    server.add_tool(lambda: None, name="ab", scopes=["a", "b"])
    rules = AccessRules(server.tools)
    first = rules.hidden_keys(viewer("a"))
    assert rules.hidden_keys(viewer("a", "x")) is first
    assert rules.hidden_keys(viewer("a", "y", "z")) is first
    assert len(rules._snapshot.hidden_by_scopes) == 1


def test_scope_set_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_rules, "_MAX_CACHED_SCOPE_SETS", 3)
    server = Server("s")
    for number in range(6):
        server.add_tool(lambda: None, name=f"t{number}", scopes=[f"s{number}"])
    rules = AccessRules(server.tools)
    for number in range(6):
        assert f"t{number}" not in rules.hidden_keys(viewer(f"s{number}"))
        assert len(rules._snapshot.hidden_by_scopes) <= 3


# --- lists --------------------------------------------------------------------------------------------


def names(raw: Any) -> list[str]:
    return [tool["name"] for tool in json.loads(bytes(raw))["tools"]]


def test_rule_added_during_a_list_applies_to_it() -> None:
    server = Server("s")
    server.add_tool(lambda: None, name="first")
    offer = server._catalog
    original = offer.tools.page

    def page(*args: Any, **given: Any) -> Any:
        offer.tools.page = original  # type: ignore[method-assign]
        server.add_tool(lambda: None, name="secret", scopes=["a"])  # as by a thread
        return original(*args, **given)

    offer.tools.page = page  # type: ignore[method-assign]
    newest = Revision.V2025_11_25
    assert names(offer.get_encoded_page(offer.tools, newest, None, None)) == ["first"]
    assert names(offer.get_encoded_page(offer.tools, newest, None, None, viewer=viewer("a"))) == ["first", "secret"]


def test_page_with_cursor_is_cached_per_principal() -> None:
    server = offering()
    offer, newest = server._catalog, Revision.V2025_11_25
    pages = [
        offer.get_encoded_page(offer.tools, newest, None, 1, viewer=viewer("a", principal_name=name))
        for name in ("x", "y", "")
    ]
    assert len({json.loads(bytes(page))["nextCursor"] for page in pages}) == 3
    again = offer.get_encoded_page(offer.tools, newest, None, 1, viewer=viewer("a", principal_name="x"))
    assert again is pages[0]


# --- scopes of a server ---------------------------------------------------------------------------------


def test_catalog_names_scoped_and_undeclared_entries() -> None:
    server = offering()
    server.add_prompt("text", name="p", scopes=["a"])
    server.add_prompt("text", name="q")
    server.add_resource("x:a", "text", scopes=["a"])
    server.add_resource("x:{a}", lambda a: a, allow=yes)
    server.add_resource("y:{a}", lambda a: a)
    server.tools.disable("a")  # it may come back
    offer = server._catalog
    assert offer.scoped() == ["tool 'a'", "tool 'ab'", "tool 'asks_b'", "resource 'x:a'", "prompt 'p'"]
    assert offer.undeclared() == ["tool 'open'", "resource template 'y:{a}'", "prompt 'q'"]


def test_public_entries_have_no_rules() -> None:
    server = Server("s")
    for uri in ("x:a", "x:{a}"):
        with pytest.raises(RegistrationError, match="public=True needs unrestricted access"):
            server.add_resource(uri, lambda a="x": a, public=True, scopes=["a"])
    server.add_resource("x:a", "text", public=True, scopes=())
    server.add_resource("x:b", "text", scopes=["a"])
    server.add_resource("x:c", "text", public=False)
    assert [entry.public for entry in server.resources] == [True, False, False]


@pytest.mark.parametrize("add", ["tool", "prompt", "text prompt", "resource", "template", "file", "directory"])
def test_invalid_rule_is_rejected_for_every_entry_kind(add: str, tmp_path: Any) -> None:
    server = Server("s")
    adding: dict[str, Any] = {
        "tool": lambda **rule: server.add_tool(lambda: None, name="it", **rule),
        "prompt": lambda **rule: server.add_prompt(lambda: "x", name="it", **rule),
        "text prompt": lambda **rule: server.add_prompt("x", name="it", **rule),
        "resource": lambda **rule: server.add_resource("x:it", "x", **rule),
        "template": lambda **rule: server.add_resource("x:{it}", lambda it: it, **rule),
        "file": lambda **rule: server.add_file("x:it", tmp_path / "it", **rule),
        "directory": lambda **rule: server.add_directory("x:{+path}", tmp_path, **rule),
    }
    with pytest.raises(RegistrationError, match="allow is a function of the context, not 1"):
        adding[add](allow=1)
    with pytest.raises(RegistrationError, match="'a b' is no scope"):
        adding[add](scopes=["a b"])
    assert server._catalog.undeclared() == server._catalog.scoped() == []
    adding[add](scopes=["a"])
    assert len(server._catalog.scoped()) == 1
