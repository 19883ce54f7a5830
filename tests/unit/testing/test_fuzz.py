"""Fuzzing of tools, and the strategies for their schemas."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta

from trunkline import Server, ToolError
from trunkline.errors import MisuseError
from trunkline.registry.validators import Validator
from trunkline.testing import fuzz_tools
from trunkline.testing.schema_strategies import invalid_values, valid_values


class Size(Enum):
    """A choice."""

    SMALL = "s"
    LARGE = "l"


@dataclass
class Node:
    """A recursive type."""

    name: str
    children: "list[Node]" = field(default_factory=list)
    parent: "Node | None" = None


def test_sound_tools_pass() -> None:
    server, calls = Server("t", observers=[]), set[str]()

    @server.tool(thread=False)
    def typed(
        *,
        text: Annotated[str, Meta(min_length=1, max_length=5)],
        count: Annotated[int, Meta(ge=1, lt=10)],
        share: Annotated[float, Meta(gt=0, le=1)],
        code: Annotated[str, Meta(pattern="^[a-z]{2}-[0-9]+$")],
        even: Annotated[int, Meta(multiple_of=2)],
        day: date,
        moment: datetime,
        ident: UUID,
        amount: Decimal,
        raw: bytes,
        size: Size,
        word: Literal["yes", "no"],
        maybe: int | str | None = None,
        tags: Annotated[list[str], Meta(max_length=3)] = [],  # noqa: B006
        unique: set[int] = set(),  # noqa: B006
        pair: tuple[int, str] = (1, "x"),
        by_name: dict[str, float] = {},  # noqa: B006
        node: Node | None = None,
        flag: bool = False,
        anything: Any = None,
    ) -> str:
        assert 1 <= len(text) <= 5
        assert 1 <= count < 10
        assert 0 < share <= 1
        assert even % 2 == 0
        assert word in {"yes", "no"}
        calls.add("typed")
        return text

    @server.tool(thread=False)
    def refusing(number: int) -> int:
        calls.add("refusing")
        raise ToolError("not today")

    @server.tool(thread=False)
    def nothing() -> None:
        calls.add("nothing")

    @server.tool(thread=False)
    def open_ended(**more: int) -> int:
        calls.add("open_ended")
        return len(more)

    fuzz_tools(server, examples=8)
    assert calls == {"typed", "refusing", "nothing", "open_ended"}


async def test_unexpected_exception_is_shown_with_its_arguments() -> None:
    server = Server("t", observers=[])

    @server.tool(thread=False)
    def divide(a: int, b: int) -> float:
        return a / b

    with pytest.raises(AssertionError) as raised:
        fuzz_tools(server)
    assert "tool 'divide' raises ZeroDivisionError('division by zero')" in str(raised.value)
    assert '"b":0' in str(raised.value)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    fuzz_tools(server, allow=(ZeroDivisionError,), examples=10)
    fuzz_tools(server, arguments={"divide": {"b": st.integers(1, 5)}}, examples=10)


def test_invalid_result_is_found() -> None:
    server = Server("t", observers=[])

    @server.tool(thread=False)
    def lie() -> int:
        return "five"  # type: ignore[return-value]

    with pytest.raises(AssertionError, match="tool 'lie' raises"):
        fuzz_tools(server)


def test_refused_valid_arguments_are_found() -> None:
    server = Server("t", observers=[])

    @server.tool(thread=False, input_schema={"type": "object", "properties": {"a": {}}, "required": ["a"]})
    def strict(a: int) -> int:
        return a

    with pytest.raises(AssertionError, match="tool 'strict' refuses arguments that its schema allows"):
        fuzz_tools(server)


def test_near_misses_reach_the_decoder() -> None:
    server, schema = Server("t", observers=[]), {"type": "object", "properties": {"a": {"type": "integer"}}}

    @server.tool(thread=False, input_schema={**schema, "required": ["a"], "maxProperties": 1})
    def loose(**more: Any) -> None:
        assert isinstance(more["a"], int)

    fuzz_tools(server, examples=20)
    with pytest.raises(MisuseError, match="the server has no tool 'other'; it has 'loose'"):
        fuzz_tools(server, tools=["other"])


def test_impossible_schema_is_reported() -> None:
    server = Server("t", observers=[])
    never = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 4}}, "required": ["a"]}

    @server.tool(thread=False, input_schema=never)
    def never_called(a: int) -> None: ...

    with pytest.raises(MisuseError, match="no arguments for tool 'never_called' follow from its schema; pass"):
        fuzz_tools(server)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "trunkline.testing.schema_strategies")
    monkeypatch.delattr("trunkline.testing.schema_strategies", raising=False)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(MisuseError, match="pip install hypothesis"):
        fuzz_tools(Server("t"))


SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": "object", "minProperties": 2},
    {"type": "object", "required": ["free"], "additionalProperties": {"type": "integer"}},
    {"type": ["string", "null"], "minLength": 2},
    {"anyOf": [{"type": "integer"}, {"const": "x"}], "description": "either"},
    {"oneOf": [{"type": "integer", "minimum": 3}, {"enum": ["a", None]}]},
    {"type": "object", "properties": {"k": {"type": "string"}}, "anyOf": [{"required": ["k"]}, {"maxProperties": 1}]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"$ref": "#/$defs/b"},
            True,
        ],
        "properties": {"c": {"type": "boolean"}},
        "required": ["c"],
        "$defs": {"b": {"properties": {"b": {"type": "string"}}, "required": ["b"]}},
    },
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 3},
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 3},
    {"type": "array", "items": False, "maxItems": 0},
    {"type": "number", "multipleOf": 0.5, "minimum": 1},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 5},
    {"type": "string", "contentEncoding": "base64", "maxLength": 8},
    *({"type": "string", "format": name} for name in ("email", "uri", "time", "duration", "hostname", "ipv4", "ipv6")),
    {"not": {"type": "string"}},
    {"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": {"type": "boolean"}}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_values_are_valid(schema: dict[str, Any]) -> None:
    accepts = Validator(schema, "a schema").accepts

    @settings(max_examples=30)
    @given(valid_values(schema))
    def check(value: Any) -> None:
        assert accepts(value)

    check()


def test_near_misses_cover_every_kind_of_change() -> None:
    limits = {
        "a": {"type": "integer", "minimum": 1, "maximum": 5},
        "b": {"type": "string", "minLength": 2, "maxLength": 4},
        "c": True,
    }
    schema = {"type": "object", "properties": limits, "required": ["a", "b"], "additionalProperties": False}
    kinds: dict[str, Callable[[Any], bool]] = {
        "missing": lambda value: "a" not in value,
        "unknown": lambda value: "unexpected" in value,
        "above": lambda value: value.get("a") == 6,
        "below": lambda value: value.get("a") == 0,
        "too long": lambda value: value.get("b") == "xxxxx",
        "too short": lambda value: value.get("b") == "x",
        "wrong type": lambda value: value.get("a", 1) is None,
    }
    found, accepts = set[str](), Validator(schema, "a schema").accepts

    @settings(max_examples=200, derandomize=True)
    @given(invalid_values(schema))
    def check(value: Any) -> None:
        assert not accepts(value)
        found.update(kind for kind, holds in kinds.items() if holds(value))

    check()
    assert found == kinds.keys()
