"""Tools: listings, and validation of arguments."""

from datetime import datetime
from typing import Annotated, Any

import jsonschema_rs
import msgspec
import pytest
from msgspec import Meta

from trunkline import Icon, ToolAnnotations
from trunkline.config import Settings
from trunkline.errors import InvalidArguments, InvalidParams, RegistrationError
from trunkline.registry.handlers import read_handler
from trunkline.registry.tools import ToolEntry, make_tool
from trunkline.wire import codec

SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
        "anything": True,
    },
    "required": ["query"],
}


class Context:
    """Stands for the context of a call."""


def tool(function: Any, settings: Settings | None = None, **options: Any) -> ToolEntry:
    return make_tool(read_handler(function, Context), settings or Settings(), **options)


def search(query: str, limit: int, **more: Any) -> Any:
    return query, limit, more


def call(entry: ToolEntry, arguments: Any) -> Any:
    raw = msgspec.json.encode(arguments)
    try:
        decoded = entry.decode(raw)
    except codec.DecodeError as error:
        raise entry.arguments_error(raw, error) from None
    return entry.handler.bind(decoded, None)


# --- definitions ---------------------------------------------------------------------------------


@pytest.mark.row("T01")
def test_definition_has_all_options() -> None:
    def add(a: int) -> int:
        """Adds."""
        return a

    entry = tool(
        add,
        name="sum",
        title="Sum",
        annotations=ToolAnnotations(read_only_hint=True),
        icons=[Icon("https://example.com/i.png")],
        meta={"version": "2"},
        timeout=5,
    )

    assert entry.key == "sum"
    assert entry.timeout == 5
    assert msgspec.to_builtins(entry.definition) == {
        "name": "sum",
        "title": "Sum",
        "description": "Adds.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "outputSchema": {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]},
        "annotations": {"readOnlyHint": True},
        "icons": [{"src": "https://example.com/i.png"}],
        "_meta": {"version": "2"},
    }


@pytest.mark.row("X23")
def test_tool_always_has_schema() -> None:
    entry = tool(lambda: None, name="nothing")

    assert msgspec.to_builtins(entry.definition) == {
        "name": "nothing",
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
    }


def test_explicit_description_overrides_docstring() -> None:
    def documented() -> None:
        """Said in the docstring."""

    assert tool(documented).description == "Said in the docstring."
    assert tool(documented, description="given").description == "given"
    assert tool(documented, description="").description is None


@pytest.mark.row("T03")
def test_description_length_is_limited() -> None:
    assert tool(search, description="x" * 10_000).description == "x" * 10_000

    with pytest.raises(ValueError, match="has 10001 characters; 10000 is the most") as caught:
        tool(search, description="x" * 10_001)

    assert isinstance(caught.value, RegistrationError)
    assert caught.value.kind == "tool_description_exceeds_max"
    with pytest.raises(RegistrationError):
        tool(search, Settings(max_tool_description=3), description="1234")


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 128])
def test_valid_names_are_accepted(name: str) -> None:
    assert tool(search, name=name).key == name


@pytest.mark.parametrize("name", ["x" * 129, "a b", "a/b", "é", "a\n"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(RegistrationError, match="must be 1 to 128 of the characters"):
        tool(search, name=name)


def test_lambda_needs_a_name() -> None:
    with pytest.raises(RegistrationError, match="tool name '<lambda>' must be"):
        tool(lambda: 1)


# --- handwritten schemas ---------------------------------------------------------------------------


@pytest.mark.row("T08", "T09")
def test_custom_schema_is_enforced_with_defaults() -> None:
    entry = tool(search, input_schema=SEARCH)

    assert entry.definition.input_schema == SEARCH
    assert call(entry, {"query": "a"}) == ("a", 100, {})
    assert call(entry, {"query": "a", "limit": 1, "anything": None}) == ("a", 1, {"anything": None})
    for arguments, path in [({"query": "a", "limit": 0}, "$.limit"), ({"limit": 1}, "$")]:
        with pytest.raises(InvalidArguments, match="invalid arguments for tool 'search'") as caught:
            call(entry, arguments)
        assert [fault["path"] for fault in caught.value.data["errors"]] == [path]


def test_custom_schema_without_properties_is_enforced() -> None:
    entry = tool(search, input_schema={"type": "object", "required": ["query"]})

    assert call(entry, {"query": "a", "limit": 5}) == ("a", 5, {})
    with pytest.raises(InvalidArguments):
        call(entry, {"limit": 5})


def test_custom_schema_always_has_properties() -> None:
    given = {"type": "object", "required": ["query"]}
    entry = tool(search, input_schema=given)

    assert entry.definition.input_schema == {"type": "object", "required": ["query"], "properties": {}}
    assert given == {"type": "object", "required": ["query"]}


def test_deeply_nested_arguments_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    entry = tool(search, input_schema={"type": "object", "properties": {"anything": {"uniqueItems": True}}})
    raw = msgspec.Raw(msgspec.json.encode({"query": "a", "anything": [deep, [deep]]}))
    with pytest.raises(RecursionError) as caught:
        entry.decode(raw)
    with pytest.raises(InvalidArguments, match="the value is nested too deep"):
        entry.decode_leniently(raw, caught.value)


def test_arguments_must_fit_function_too() -> None:
    entry = tool(search, input_schema={"type": "object"})

    with pytest.raises(InvalidArguments, match=r"\$.limit: Expected `int`, got `str`"):
        call(entry, {"query": "a", "limit": "5"})


@pytest.mark.row("A03")
def test_custom_schema_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    compile_schema = jsonschema_rs.validator_for

    def counting(schema: Any, **options: Any) -> Any:
        compiled.append(schema)
        return compile_schema(schema, **options)

    monkeypatch.setattr(jsonschema_rs, "validator_for", counting)
    entry = tool(search, input_schema=SEARCH)
    for limit in (1, 2, 0):
        try:
            call(entry, {"query": "a", "limit": limit})
        except InvalidArguments:
            assert limit == 0

    assert compiled == [SEARCH]


@pytest.mark.parametrize("schema", [{}, {"type": "array"}, {"type": ["object", "null"]}, True, [], 3])
def test_schema_root_must_be_object(schema: Any) -> None:
    with pytest.raises(RegistrationError, match="the schema of tool 'search' must have") as caught:
        tool(search, input_schema=schema)

    assert caught.value.kind == "tool_schema_invalid"


@pytest.mark.row("T18")
def test_invalid_schema_is_refused() -> None:
    with pytest.raises(RegistrationError, match="the schema of tool 'search' is not valid") as caught:
        tool(search, input_schema={"type": "object", "properties": {"a": {"type": "nonsense"}}})

    assert caught.value.kind == "tool_schema_invalid"


def test_invalid_header_annotation_is_refused() -> None:
    for query in ({"type": "string", "x-mcp-header": "Que ry"}, {"type": "array", "x-mcp-header": "Query"}):
        with pytest.raises(RegistrationError, match=r"^tool 'search': x-mcp-header of 'query' ") as caught:
            tool(search, input_schema={"type": "object", "properties": {"query": query}})

        assert caught.value.kind == "tool_schema_invalid"


# --- rejected definitions ------------------------------------------------------------------------


@pytest.mark.row("T11", "X09")
def test_error_lists_all_schema_faults() -> None:
    def find(
        query: Annotated[str, Meta(pattern="^[a-z]+$")], limit: Annotated[int, Meta(le=9)], deep: bool
    ) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        call(tool(find), {"query": "A", "limit": 10, "extra": 1})

    faults = {(fault["path"], fault["rule"]) for fault in caught.value.data["errors"]}
    assert faults == {
        ("$.query", "pattern"),
        ("$.limit", "maximum"),
        ("$", "required"),
        ("$", "additionalProperties"),
    }
    assert all(fault["message"] in str(caught.value) for fault in caught.value.data["errors"])


def test_error_falls_back_to_decoder_message() -> None:
    def at(when: datetime) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        call(tool(at), {"when": "soon"})

    assert caught.value.data["errors"] == [
        {"path": "$.when", "rule": "type", "message": "Invalid RFC3339 encoded datetime"}
    ]


def test_error_without_usable_schema_uses_decoder() -> None:
    def find(query: Annotated[str, Meta(pattern=r"(?P<q>a)(?P=q)\Z(?#)")]) -> str:
        return query

    entry = tool(find)
    assert call(entry, {"query": "aa"}) == "aa"
    with pytest.raises(InvalidArguments, match=r"\$.query: Expected `str` matching regex"):
        call(entry, {"query": "b"})


def test_deep_nesting_error_uses_decoder_message() -> None:
    def find(query: str) -> str:
        return query

    raw = b'{"query":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(InvalidArguments, match=r"\$.query: Expected `str`, got `array`"):
        raise tool(find).arguments_error(raw, msgspec.ValidationError("Expected `str`, got `array` - at `$.query`"))


@pytest.mark.parametrize("arguments", [[], "a", 5, None])
def test_non_object_arguments_are_invalid_params(arguments: Any) -> None:
    with pytest.raises(InvalidParams, match="the arguments must be an object") as caught:
        call(tool(search), arguments)

    assert not isinstance(caught.value, InvalidArguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (b'{"query": 1e9999}', "$.query: the number 1e9999 is out of range"),
        (b'{"a": [1, {"b": -1e400}]}', "$.a[1].b: the number -1e400 is out of range"),
        (b' {"limit": %b}' % (b"9" * 5000), "$.limit: an integer of 5000 digits is out of range"),
    ],
)
def test_number_out_of_range_has_path(arguments: bytes, told: str) -> None:
    for options in ({}, {"input_schema": SEARCH}):
        with pytest.raises(InvalidArguments) as caught:
            tool(search, **options).decode_leniently(
                msgspec.Raw(arguments), msgspec.ValidationError("Number out of range")
            )
        assert caught.value.message == f"invalid arguments for tool 'search': {told}"
        [fault] = caught.value.data["errors"]
        assert f"{fault['path']}: {fault['message']}" == told


def test_too_many_faults_use_decoder_message() -> None:
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    with pytest.raises(InvalidArguments) as refused:
        call(tool(add), {"numbers": ["wrong"] * 50_000})
    assert [fault["path"] for fault in refused.value.data["errors"]] == ["$.numbers[0]"]
