"""Tool pins: digests, decisions and comparisons."""

from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import MisuseError, StoreError
from trunkline.protocol.types import Tool, ToolAnnotations
from trunkline.trust.pins import (
    DECISIONS,
    NewTools,
    ServerPins,
    ToolStatus,
    approve,
    compare_definitions,
    digest_definition,
    examine,
    make_pin,
    remove,
)


def tool(name: str = "forecast", description: str = "Returns the forecast.", **members: Any) -> Tool:
    return Tool(name=name, description=description, **{"input_schema": {"type": "object"}, **members})


def pinned(*tools: Tool) -> ServerPins:
    record = examine(None, tools).record
    assert record is not None
    return record


CHANGES = [
    {"description": "Returns the forecast. Reads your keys first."},
    {"title": "Forecast"},
    {"input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
    {"output_schema": {"type": "string"}},
    {"annotations": ToolAnnotations(read_only_hint=True)},
    {"description": "Returns the forecast.\u200b"},
]


def test_decision_table_is_complete() -> None:
    assert DECISIONS.keys() == {*product(ToolStatus, get_args(NewTools))}


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_member_that_models_read_is_in_the_digest(change: dict[str, Any]) -> None:
    assert make_pin(tool()).digest != make_pin(tool(**change)).digest


def test_digest_does_not_depend_on_the_order_of_members() -> None:
    one = tool(input_schema={"type": "object", "properties": {"a": {}, "b": {}}})
    other = tool(input_schema={"properties": {"b": {}, "a": {}}, "type": "object"})
    assert make_pin(one).digest == make_pin(other).digest


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON))
def test_digest_survives_the_store(schema: dict[str, Any]) -> None:
    pin = make_pin(tool(input_schema=schema))
    assert digest_definition(pin.definition) == pin.digest


def test_first_contact_pins_all_tools() -> None:
    result = examine(None, [tool("a"), tool("b")])
    assert result.blocked == {}
    assert result.record is not None
    assert [*result.record.pins] == ["a", "b"]


def test_first_contact_without_tools_leaves_the_server_unknown() -> None:
    assert examine(None, []).record is None


def test_unchanged_tool_is_trusted() -> None:
    record = pinned(tool())
    result = examine(record, [tool()])
    assert (result.record, result.blocked) == (record, {})


def test_changed_tool_is_blocked_with_its_changes() -> None:
    result = examine(pinned(tool()), [tool(description="Reads your keys.")])
    assert result.blocked["forecast"].changes == ("description:", "  - Returns the forecast.", "  + Reads your keys.")
    assert "changed" in result.blocked["forecast"].reason


def test_new_tool_of_a_known_server_is_blocked() -> None:
    result = examine(pinned(tool()), [tool(), tool("more")])
    assert [*result.blocked] == ["more"]
    assert result.record is not None
    assert [*result.record.waiting] == ["more"]


def test_new_tool_is_pinned_where_new_tools_are_trusted() -> None:
    result = examine(pinned(tool()), [tool(), tool("more")], "trust")
    assert result.blocked == {}
    assert result.record is not None
    assert [*result.record.pins] == ["forecast", "more"]


def test_vanished_tool_keeps_its_pin() -> None:
    gone = examine(pinned(tool()), [])
    assert gone.vanished == ("forecast",)
    assert examine(gone.record, [tool(description="Another.")]).blocked
    assert not examine(gone.record, [tool()]).blocked


def test_reverted_change_is_trusted_again() -> None:
    record = pinned(tool())
    changed = examine(record, [tool(description="Another.")])
    assert examine(changed.record, [tool()]).record == record


def test_name_that_is_listed_twice_is_blocked() -> None:
    assert examine(None, [tool(), tool(description="Another.")]).blocked["forecast"].reason == "it is listed twice"


def test_approved_definition_is_trusted() -> None:
    other = tool(description="Another.")
    record = examine(pinned(tool()), [other]).record
    assert record is not None
    approved = approve(record, "forecast", make_pin(other).digest[:8])
    assert examine(approved, [other]).blocked == {}
    assert examine(approved, [tool()]).blocked


def test_approval_of_a_definition_that_has_changed_again_fails() -> None:
    record = examine(pinned(tool()), [tool(description="Another.")]).record
    assert record is not None
    with pytest.raises(StoreError, match="changed again"):
        approve(record, "forecast", make_pin(tool(description="A third.")).digest)


def test_approval_without_a_waiting_definition_fails() -> None:
    with pytest.raises(MisuseError, match="no definition of tool 'forecast' waits"):
        approve(pinned(tool()), "forecast")


def test_tool_without_its_pin_needs_approval() -> None:
    assert examine(remove(pinned(tool()), "forecast"), [tool()]).blocked
    with pytest.raises(MisuseError, match=r'is not pinned\. Did you mean "forecast"'):
        remove(pinned(tool()), "forecst")


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [(nested(200), "nested deeper"), ({"description": "x" * 300_000}, "bytes"), ({"title": "\ud800"}, "no valid JSON")],
    ids=["deep", "large", "surrogate"],
)
def test_definition_that_cannot_be_stored_is_blocked(schema: dict[str, Any], why: str) -> None:
    result = examine(None, [tool(input_schema=schema), tool("other")])
    assert why in result.blocked["forecast"].reason
    assert result.record is not None
    assert [*result.record.pins] == ["other"]


def test_comparison_names_paths_and_shows_changed_lines_only() -> None:
    old = {"description": "One.\nTwo.\nThree.", "inputSchema": {"required": ["a"], "properties": {"a": {}}}}
    new = {"description": "One.\n2.\nThree.", "inputSchema": {"required": ["a", "b"], "properties": {"a": {}}}}
    assert compare_definitions(old, new) == (
        "description:",
        "  - Two.",
        "  + 2.",
        "inputSchema.required[1]:",
        "  + b",
    )


def test_long_comparison_is_cut_off() -> None:
    lines = compare_definitions({}, {"description": "\n".join(map(str, range(1000)))})
    assert len(lines) == 41
    assert lines[-1] == "… and 961 more lines"


def test_text_that_looks_like_a_header_of_a_comparison_is_shown() -> None:
    assert compare_definitions({"d": "a"}, {"d": "++ x"}) == ("d:", "  - a", "  + ++ x")
