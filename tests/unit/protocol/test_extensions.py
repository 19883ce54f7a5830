"""Extensions: named with a prefix, and active only where both sides have them."""

from typing import Any

import pytest

from trunkline import Client, Context, Server
from trunkline.errors import RegistrationError
from trunkline.protocol.extensions import negotiated_settings, validate_extensions


@pytest.mark.parametrize("name", ["org.example/search", "a/b", "io.x-y.z/v1.2_a-b"])
def test_prefixed_name_is_accepted(name: str) -> None:
    assert validate_extensions({name: {"deep": True}}) == {name: {"deep": True}}


@pytest.mark.parametrize("name", ["search", "/search", "org.example/", "1org/x", "org-/x", "org..x/y", "a/b/c", "a/-b"])
def test_invalid_prefix_is_refused(name: str) -> None:
    with pytest.raises(RegistrationError, match="needs a prefix and a name"):
        validate_extensions({name: {}})


def test_settings_are_an_object() -> None:
    settings: Any = True
    with pytest.raises(RegistrationError, match="must be an object"):
        validate_extensions({"a/b": settings})
    assert validate_extensions(None) == {}


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ({"a/b": {}}, {"a/b": {"x": 1}}, {"x": 1}),
        ({}, {"a/b": {}}, None),
        ({"a/b": {}}, {}, None),
        ({"a/b": {}}, {"a/b": True}, None),
    ],
)
def test_extension_needs_both_sides(ours: Any, theirs: Any, found: Any) -> None:
    assert negotiated_settings("a/b", {"extensions": ours}, {"extensions": theirs}) == found
    assert negotiated_settings("a/b", {}, {}) is None


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_modern_era_negotiates_extensions(revision: str) -> None:
    server = Server("x", extensions={"org.example/search": {"deep": True}, "org.example/only": {}})

    @server.tool
    async def ask(ctx: Context) -> dict[str, Any]:
        return {"search": ctx.extension("org.example/search"), "only": ctx.extension("org.example/only")}

    async with Client(server, revision=revision, extensions={"org.example/search": {"fast": 1}}) as client:
        seen = (await client.call_tool("ask")).data
        assert client.extension("org.example/only") is None
        if revision == "2026-07-28":
            assert seen == {"search": {"fast": 1}, "only": None}
            assert client.extension("org.example/search") == {"deep": True}
        else:  # which has no place for them
            assert seen == {"search": None, "only": None}
            assert client.extension("org.example/search") is None
    await server.aclose()
