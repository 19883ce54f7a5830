"""HTTP headers that repeat parts of a request."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import booleans, characters, integers, one_of, text

from trunkline.protocol.headers import (
    LARGEST_INTEGER,
    InvalidAnnotation,
    InvalidValue,
    MirroredArgument,
    RoutingHeaders,
    decode_value,
    encode_value,
    find_mirrored_arguments,
    find_mismatch,
    find_param_mismatch,
    match_exactly,
    mirrored_name,
    param_headers,
    routing_headers,
)

REGION = MirroredArgument(("region",), "Mcp-Param-Region", "string")
COUNT = MirroredArgument(("count",), "Mcp-Param-Count", "integer")
DRY = MirroredArgument(("options", "dry"), "Mcp-Param-Dry", "boolean")


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def marked(name: Any = "Region", **more: Any) -> dict[str, Any]:
    return {"type": "string", "x-mcp-header": name, **more}


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("us-west1", "us-west1"),
        ("us west 1", "us west 1"),
        ("", ""),
        ("file:///a%20b?c=1", "file:///a%20b?c=1"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        (" us-west1", "=?base64?IHVzLXdlc3Qx?="),
        ("us-west1 ", "=?base64?dXMtd2VzdDEg?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("line1\r\nline2", "=?base64?bGluZTENCmxpbmUy?="),
        ("\tindented", "=?base64?CWluZGVudGVk?="),
        ("a\tb", "=?base64?YQli?="),
        ("\x7f", "=?base64?fw==?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="),
        ("=?base64?open", "=?base64?open"),
        ("=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?="),
        (42, "42"),
        (-7, "-7"),
        (42.0, "42"),
        (LARGEST_INTEGER, "9007199254740991"),
        (-LARGEST_INTEGER, "-9007199254740991"),
        (True, "true"),
        (False, "false"),
    ],
)
def test_value_is_plain_or_base64(value: object, header: str) -> None:
    assert encode_value(value) == header


@pytest.mark.parametrize("value", [None, 1.5, float("inf"), float("nan"), [], {}, ["a"]], ids=repr)
def test_other_types_have_no_header(value: object) -> None:
    assert encode_value(value) is None


@pytest.mark.parametrize(
    "value",
    [LARGEST_INTEGER + 1, -LARGEST_INTEGER - 1, 10**5000, 1e300],
    ids=lambda v: f"{v:.1e}"[:9] if isinstance(v, float) else hex(v)[:20],
)
def test_integer_beyond_double_precision_is_refused(value: float) -> None:
    with pytest.raises(InvalidValue, match=r"within ±\(2\*\*53 - 1\)"):
        encode_value(value)


def test_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidValue, match="surrogate"):
        encode_value("\ud800")


@given(one_of(text(characters(exclude_categories=["Cs"])), integers(-LARGEST_INTEGER, LARGEST_INTEGER), booleans()))
def test_encoded_value_round_trips(value: str | int | bool) -> None:
    header = encode_value(value)
    assert header is not None
    assert all(" " <= c <= "~" for c in header)
    assert header == header.strip()
    assert decode_value(f" \t{header}\t ") == (value if isinstance(value, str) else str(value).lower())


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("=?base64?SGVsbG8=?=", "Hello"),
        ("=?base64??=", ""),
        ("SGVsbG8=", "SGVsbG8="),
        ("SGVsbG8=?=", "SGVsbG8=?="),
        ("=?base64?SGVsbG8=", "=?base64?SGVsbG8="),
        ("=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?="),
        ("=?base64?=", "=?base64?="),
        ("a\tb", "a\tb"),
        ("", ""),
    ],
)
def test_base64_needs_both_markers(header: str, value: str) -> None:
    assert decode_value(header) == value


@pytest.mark.parametrize(
    "inner", ["SGVsbG8", "SGVs!!!bG8=", "SGVsbG8==", "SGVsbG9=", "SGVs bG8=", "_-8=", "=", "gA==", "SGVsbG8=?=?=?"]
)
def test_broken_base64_is_refused(inner: str) -> None:
    with pytest.raises(InvalidValue, match="broken base64"):
        decode_value(f"=?base64?{inner}?=")


@pytest.mark.parametrize("header", ["é", "a\nb", "a\0", "a\x7fb", "=?base64?\xe9?="])
def test_illegal_header_characters_are_refused(header: str) -> None:
    with pytest.raises(InvalidValue, match="characters"):
        decode_value(header)


# --- method and name ----------------------------------------------------------------------------

NAMED = [
    ("tools/call", {"name": "add", "uri": "no"}, "add"),
    ("prompts/get", {"name": "greet"}, "greet"),
    ("resources/read", {"uri": "file:///a", "name": "no"}, "file:///a"),
    ("tasks/get", {"taskId": "t1"}, "t1"),
    ("tasks/update", {"taskId": "t1"}, "t1"),
    ("tasks/cancel", {"taskId": "t1"}, "t1"),
]


@pytest.mark.parametrize(("method", "params", "name"), NAMED)
def test_name_header_repeats_target(method: str, params: dict[str, Any], name: str) -> None:
    assert mirrored_name(method, params) == name
    assert routing_headers(method, params) == {"Mcp-Method": method, "Mcp-Name": name}


@pytest.mark.parametrize(
    ("method", "params"),
    [("tools/list", {"name": "x"}), ("tools/call", {}), ("tools/call", {"name": 5}), ("tools/call", None), ("a", None)],
)
def test_request_without_target_has_no_name_header(method: str, params: dict[str, Any] | None) -> None:
    assert mirrored_name(method, params) is None
    assert routing_headers(method, params) == {"Mcp-Method": method}


def test_illegal_name_is_encoded() -> None:
    assert routing_headers("tools/call", {"name": "zählen"})["Mcp-Name"] == "=?base64?esOkaGxlbg==?="


@pytest.mark.parametrize(
    ("method", "params", "name"), [*NAMED, ("tools/list", {}, None), ("tools/call", {"name": " ü"}, " ü")]
)
def test_server_accepts_client_headers(method: str, params: dict[str, Any], name: str | None) -> None:
    headers = {header.lower(): f" {value}\t" for header, value in routing_headers(method, params).items()}
    assert find_mismatch(method, name, RoutingHeaders.read(headers)) is None


@pytest.mark.parametrize(
    ("method", "name", "headers", "said"),
    [
        ("tools/list", None, {}, "Mcp-Method is missing"),
        ("tools/list", None, {"mcp-method": "tools/call"}, "Mcp-Method is not the method of the request"),
        ("tools/list", None, {"mcp-method": "TOOLS/LIST"}, "Mcp-Method is not the method of the request"),
        ("a", None, {"mcp-method": "=?base64?YQ==?="}, "Mcp-Method is not the method of the request"),
        ("tools/call", "add", {"mcp-method": "tools/call"}, "Mcp-Name is missing, and params.name is there"),
        ("tools/call", "add", {"mcp-method": "tools/call", "mcp-name": "Add"}, "Mcp-Name is not the same as params.name"),
        ("tools/call", None, {"mcp-method": "tools/call", "mcp-name": "x"}, "Mcp-Name is there, and params.name is not"),
        ("resources/read", "a:b", {"mcp-method": "resources/read", "mcp-name": "a:c"}, "Mcp-Name is not the same as params.uri"),
        ("prompts/get", "a", {"mcp-method": "prompts/get", "mcp-name": "=?base64?YQ?="}, "Mcp-Name cannot be compared with params.name: it is broken base64"),
        ("prompts/get", "é", {"mcp-method": "prompts/get", "mcp-name": "é"}, "Mcp-Name cannot be compared with params.name: it has characters that a header may not have"),
        ("tasks/get", "1", {"mcp-method": "tasks/get", "mcp-name": "1.0"}, "Mcp-Name is not the same as params.taskId"),
    ],
)  # fmt: skip
def test_header_mismatch_is_explained(method: str, name: str | None, headers: dict[str, str], said: str) -> None:
    assert find_mismatch(method, name, RoutingHeaders.read(headers)) == said


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("tools/list", {"mcp-method": "tools/list", "mcp-name": "x"}),  # no method that has a name
        ("tools/call", {"mcp-method": "tools/call"}),  # its params are invalid, which is reported elsewhere
    ],
)
def test_name_header_is_optional_without_name(method: str, headers: dict[str, str]) -> None:
    assert find_mismatch(method, None, RoutingHeaders.read(headers)) is None


# --- arguments of tools -------------------------------------------------------------------------


def test_nested_annotations_are_found() -> None:
    given = schema(
        region=marked(),
        count=marked("Count", type="integer"),
        options=schema(dry=marked("Dry", type="boolean")),
        query={"type": "string"},
        any=True,
    )
    assert find_mirrored_arguments(given) == (REGION, COUNT, DRY)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"properties": []},
        schema(a={"type": "string", "default": {"x-mcp-header": "A"}, "examples": [{"x-mcp-header": "A"}]}),
        schema(**{"x-mcp-header": {"type": "string"}}),
        {"type": "object", "required": ["x-mcp-header"], "$ref": "#/$defs/a"},
    ],
    ids=str,
)
def test_annotation_inside_data_is_ignored(given: dict[str, Any]) -> None:
    assert find_mirrored_arguments(given) == ()


def test_annotation_may_equal_protocol_header_name() -> None:
    assert find_mirrored_arguments(schema(a=marked("Method")))[0].header == "Mcp-Param-Method"


@pytest.mark.parametrize("name", ["", None, 5, True, ["A"], {}], ids=repr)
def test_empty_annotation_is_refused(name: object) -> None:
    with pytest.raises(InvalidAnnotation, match="x-mcp-header of 'a' must be a string that is not empty"):
        find_mirrored_arguments(schema(a=marked(name)))


@pytest.mark.parametrize("name", ["My Region", "Region:Primary", "Région", "Region\t1", "Region\n", "a/b", '"a"', " "])
def test_annotation_must_be_token(name: str) -> None:
    with pytest.raises(
        InvalidAnnotation, match="x-mcp-header of 'a' has illegal characters for a header name"
    ) as raised:
        find_mirrored_arguments(schema(a=marked(name)))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("other", ["Region", "REGION", "rEGION"])
def test_duplicate_annotations_are_refused(other: str) -> None:
    with pytest.raises(InvalidAnnotation, match=r"^'a' and 'b\.c' want the same x-mcp-header$"):
        find_mirrored_arguments(schema(a=marked(), b=schema(c=marked(other))))


@pytest.mark.parametrize(
    "kind", ["number", "object", "array", "null", None, ["string", "null"], ["string"], {}], ids=str
)
def test_annotated_property_must_be_primitive(kind: object) -> None:
    with pytest.raises(InvalidAnnotation, match="x-mcp-header of 'a' needs the type string or integer or boolean"):
        find_mirrored_arguments(schema(a=marked(type=kind)))


def test_annotated_property_without_type_is_refused() -> None:
    with pytest.raises(InvalidAnnotation, match="needs the type"):
        find_mirrored_arguments(schema(a={"enum": ["x"], "x-mcp-header": "A"}))


ONE = ["items", "contains", "unevaluatedItems", "additionalItems", "additionalProperties", "unevaluatedProperties"]
ONE += ["propertyNames", "not", "if", "then", "else", "contentSchema"]
LISTS = ["allOf", "anyOf", "oneOf", "prefixItems", "items"]
NAMED_ONES = ["patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"]


@pytest.mark.parametrize(
    "given",
    [
        marked(),
        *({keyword: marked()} for keyword in ONE),
        *({keyword: [True, marked()]} for keyword in LISTS),
        *({keyword: {"a": ["b"], "c": marked()}} for keyword in NAMED_ONES),
        schema(a={"type": "array", "items": schema(b=marked())}),
        schema(a={"anyOf": [{"type": "null"}, marked()]}),
        {"$defs": {"a": schema(b=marked())}, "properties": {"a": {"$ref": "#/$defs/a"}}},
    ],
    ids=str,
)
def test_annotation_outside_properties_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidAnnotation, match="must be at an argument that only `properties` leads to"):
        find_mirrored_arguments(given)


def test_deep_schema_is_walked() -> None:
    deep = schema(leaf=marked())
    for _ in range(3000):
        deep = schema(a=deep)
    assert len(find_mirrored_arguments(deep)[0].path) == 3001


def test_annotated_arguments_become_headers() -> None:
    arguments = {"region": "Zürich", "count": 42, "options": {"dry": False}, "dry": True, "other": "x"}
    assert param_headers((REGION, COUNT, DRY), arguments) == {
        "Mcp-Param-Region": "=?base64?WsO8cmljaA==?=",
        "Mcp-Param-Count": "42",
        "Mcp-Param-Dry": "false",
    }


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"region": None, "options": None},
        {"options": {"dry": None}},
        {"options": "dry"},
        {"region": ["a"], "count": 1.5},
    ],
    ids=str,
)
def test_null_or_absent_argument_has_no_header(arguments: dict[str, Any]) -> None:
    assert param_headers((REGION, COUNT, DRY), arguments) == {}
    assert find_param_mismatch((REGION, COUNT, DRY), arguments, {"mcp-param-other": "x"}) is None


def test_unencodable_argument_is_named() -> None:
    with pytest.raises(InvalidValue, match=r"argument 'count' cannot go into Mcp-Param-Count: .* within"):
        param_headers((COUNT,), {"count": 2**53})


@given(text(characters(exclude_categories=["Cs"])), integers(-LARGEST_INTEGER, LARGEST_INTEGER), booleans())
def test_server_accepts_mirrored_arguments(region: str, count: int, dry: bool) -> None:
    mirrors, arguments = (REGION, COUNT, DRY), {"region": region, "count": count, "options": {"dry": dry}}
    headers = {name.lower(): value for name, value in param_headers(mirrors, arguments).items()}
    assert len(headers) == 3
    assert find_param_mismatch(mirrors, arguments, headers) is None
    for name, header in headers.items():
        assert find_param_mismatch(mirrors, arguments, {**headers, name: f"{header}x"}) is not None
        missing = {other: value for other, value in headers.items() if other != name}
        assert str(find_param_mismatch(mirrors, arguments, missing)).endswith("is there")


@pytest.mark.parametrize(
    ("value", "header"),
    [(42, "42.0"), (42, "42."), (42, "042"), (42.0, "42"), (0, "-0"), (-7, "=?base64?LTc=?="), (-0.0, "0")],
)
def test_integers_are_compared_as_numbers(value: float, header: str) -> None:
    assert find_param_mismatch((COUNT,), {"count": value}, {"mcp-param-count": header}) is None


@pytest.mark.parametrize(
    ("mirror", "value", "header", "said"),
    [
        (COUNT, 42, "42.5", "is not the same as argument 'count'"),
        (COUNT, 42, "+42", "is not the same as argument 'count'"),
        (COUNT, 42, "٤٢", "cannot be compared with argument 'count': it has characters that a header may not have"),
        (COUNT, 42, "9" * 5000, "is not the same as argument 'count'"),
        (COUNT, 2**53, "9007199254740992", "cannot be compared with argument 'count': an integer in a header must be within ±(2**53 - 1)"),
        (COUNT, 1.5, "1.5", "is there, and argument 'count' is not"),
        (REGION, "42", "42.0", "is not the same as argument 'region'"),
        (REGION, "eu", "EU", "is not the same as argument 'region'"),
        (REGION, "", None, "is missing, and argument 'region' is there"),
        (REGION, None, "", "is there, and argument 'region' is not"),
        (REGION, "Hello", "=?base64?SGVsbG8?=", "cannot be compared with argument 'region': it is broken base64"),
        (REGION, None, "=?base64?SGVsbG8?=", "cannot be compared with argument 'region': it is broken base64"),
        (REGION, "Hello", "SGVsbG8=", "is not the same as argument 'region'"),
    ],
)  # fmt: skip
def test_param_mismatch_is_explained(mirror: MirroredArgument, value: object, header: str | None, said: str) -> None:
    headers = {} if header is None else {mirror.header.lower(): header}
    assert find_param_mismatch((mirror,), {mirror.path[0]: value}, headers) == f"{mirror.header} {said}"


@pytest.mark.parametrize("header", ["True", "1", "false", ""])
def test_booleans_have_one_spelling(header: str) -> None:
    assert find_param_mismatch((DRY,), {"options": {"dry": True}}, {"mcp-param-dry": header}) is not None
    assert find_param_mismatch((DRY,), {"options": {"dry": True}}, {"mcp-param-dry": "true"}) is None


@pytest.mark.row("HTT-47")
@pytest.mark.parametrize(
    ("method", "name", "repeated", "plainly"),
    [
        ("tools/list", None, {"mcp-method": "tools/list"}, True),
        ("tools/list", None, {"mcp-method": "tools/call"}, False),
        ("tools/list", None, {}, False),
        ("tools/call", "add", {"mcp-method": "tools/call", "mcp-name": "add"}, True),
        ("tools/call", "add", {"mcp-method": "tools/call", "mcp-name": "sub"}, False),
        ("tools/call", "add", {"mcp-method": "tools/call"}, False),
        ("tools/call", None, {"mcp-method": "tools/call"}, False),
        ("tools/call", "=?base64?YQ==?=", {"mcp-method": "tools/call", "mcp-name": "=?base64?YQ==?="}, False),
        ("tools/call", "\u00e9", {"mcp-method": "tools/call", "mcp-name": "\u00e9"}, False),
        ("tools/call", " add", {"mcp-method": "tools/call", "mcp-name": " add"}, False),
        ("tools/call", "a\tb", {"mcp-method": "tools/call", "mcp-name": "a\tb"}, False),
    ],
)
def test_exact_repetition_takes_fast_path(
    method: str, name: str | None, repeated: dict[str, str], plainly: bool
) -> None:
    headers = RoutingHeaders.read(repeated)
    assert match_exactly(method, name, headers) is plainly
    if plainly:
        assert find_mismatch(method, name, headers) is None
