"""The catalog of a server, and its lists, cached until a change."""

import json
from typing import Any

import pytest

from trunkline import Server, Settings
from trunkline.errors import InvalidCursor, PageSizeTooLarge
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import Implementation, Tool
from trunkline.server.catalog import CapabilityFlags, ServerCatalog

NEWEST = Revision.V2025_11_25


def make_catalog(entries: int = 3, **options: Any) -> ServerCatalog:
    """A catalog as a server has it, since the server creates the entries."""
    server = Server("t", **options)
    for number in range(entries):
        server.add_tool(lambda: None, name=f"tool{number}", title="Tool")
        server.add_prompt("text", name=f"prompt{number}")
        server.add_resource(f"r://{number}", "text")
        server.add_resource(f"r://{number}/{{x}}", lambda x: x)
    return server._catalog


@pytest.mark.row("L07")
def test_capabilities_without_entries_are_not_declared() -> None:
    assert make_catalog(0).capabilities() == {"logging": {}}
    assert make_catalog(1).capabilities() == {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "prompts": {"listChanged": True},
        "logging": {},
    }


@pytest.mark.row("L07")
def test_capability_flags_override_the_default() -> None:
    on = CapabilityFlags(tools=True, resources=True, prompts=True, completions=True, logging=False, subscribe=False)
    offer = ServerCatalog(Implementation("t", "1"), capability_flags=on, experimental={"x": {}})
    assert offer.capabilities() == {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True},
        "prompts": {"listChanged": True},
        "completions": {},
        "experimental": {"x": {}},
    }
    assert "tools" not in make_catalog(1, tools=False).capabilities()
    assert make_catalog(1, list_changed=False, subscribe=False).capabilities()["resources"] == {}


@pytest.mark.parametrize(
    ("registry", "member", "key", "first"),
    [
        ("tools", "tools", "name", "tool0"),
        ("prompts", "prompts", "name", "prompt0"),
        ("resources", "resources", "uri", "r://0"),
        ("templates", "resourceTemplates", "uriTemplate", "r://0/{x}"),
    ],
)
def test_lists_are_paginated(registry: str, member: str, key: str, first: str) -> None:
    offer = make_catalog(settings=Settings(page_size=2))
    page = json.loads(bytes(offer.get_encoded_page(getattr(offer, registry), NEWEST, None, None)))
    assert page[member][0][key] == first
    assert len(page[member]) == 2
    rest = json.loads(bytes(offer.get_encoded_page(getattr(offer, registry), NEWEST, page["nextCursor"], None)))
    assert len(rest[member]) == 1
    assert "nextCursor" not in rest


@pytest.mark.row("A19")
def test_encoded_list_is_cached_until_a_registry_changes() -> None:
    offer = make_catalog()
    kept = offer.get_encoded_page(offer.tools, NEWEST, None, None)
    assert offer.get_encoded_page(offer.tools, NEWEST, None, None) is kept
    offer.tools.remove("tool1")
    made = offer.get_encoded_page(offer.tools, NEWEST, None, None)
    assert [tool["name"] for tool in json.loads(bytes(made))["tools"]] == ["tool0", "tool2"]
    offer.tools.disable("tool0")
    assert [
        tool["name"] for tool in json.loads(bytes(offer.get_encoded_page(offer.tools, NEWEST, None, None)))["tools"]
    ] == ["tool2"]


@pytest.mark.row("A19")
def test_cache_is_keyed_by_revision_and_limit() -> None:
    offer = make_catalog()
    newest, oldest = (
        offer.get_encoded_page(offer.tools, NEWEST, None, None),
        offer.get_encoded_page(offer.tools, Revision.V2024_11_05, None, None),
    )
    assert "title" in json.loads(bytes(newest))["tools"][0]
    assert "title" not in json.loads(bytes(oldest))["tools"][0]
    assert len(json.loads(bytes(offer.get_encoded_page(offer.tools, NEWEST, None, 1)))["tools"]) == 1


@pytest.mark.row("A19")
def test_page_cache_is_bounded() -> None:
    offer = make_catalog()
    for limit in range(1, 600):
        offer.get_encoded_page(offer.tools, NEWEST, None, limit)
    assert len(offer._page_cache) <= 256


def test_failed_page_is_not_cached() -> None:
    offer = make_catalog()
    for cursor, limit, error in (("made up", None, InvalidCursor), (None, 10_000, PageSizeTooLarge)):
        for _ in range(2):
            with pytest.raises(error):
                offer.get_encoded_page(offer.tools, NEWEST, cursor, limit)


@pytest.mark.row("N02")
def test_change_callback_receives_the_registry_kind() -> None:
    told: list[str] = []
    offer = ServerCatalog(Implementation("t", "1"), on_change=told.append)
    server = Server("t")
    server.add_tool(lambda: None, name="f")
    offer.tools.add(server.tools.get("f"))  # type: ignore[arg-type]
    assert told == ["tool"]


@pytest.mark.row("A19")
def test_list_changed_during_encoding_is_encoded_again() -> None:
    offer = make_catalog()
    other = offer.tools.get("tool2")
    offer.tools.remove("tool2")

    class Late:
        """A tool that adds another one, as a thread might, while it is described."""

        key = "late"
        access = version = None

        @property
        def definition(self) -> Tool:
            if "tool2" not in offer.tools:
                offer.tools.add(other)
            return Tool(name="late", input_schema={"type": "object"})

    offer.tools.add(Late())
    names = [
        [tool["name"] for tool in json.loads(bytes(offer.get_encoded_page(offer.tools, NEWEST, None, None)))["tools"]]
        for _ in range(2)
    ]
    assert names == [["tool0", "tool1", "late"], ["tool0", "tool1", "late", "tool2"]]
