"""Values of the protocol's types with every member filled in, generated from the types."""

from collections.abc import Mapping
from itertools import chain
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Raw, Struct
from msgspec.structs import fields

from trunkline.protocol import types as t

# Members that peers may send although no schema has them; by type.
BEYOND_THE_SCHEMA: Mapping[type, set[str]] = {
    t.TextContent: {"mimeType"},
    t.PaginatedParams: {"limit"},
    **{
        page: {"cursor"}
        for page in (
            *(t.PaginatedResult, t.ListToolsResult, t.ListResourcesResult, t.ListResourceTemplatesResult),
            *(t.ListPromptsResult, t.ListTasksResult),
        )
    },
    t.ResourceUpdatedParams: {"metadata"},
    t.StringSchema: {"pattern"},
    t.CancelTaskParams: {"reason"},
    t.SubscriptionFilter: {"taskIds"},  # of the tasks extension
}

OPTIONS = [t.EnumOption("r", "Red"), t.EnumOption("g", "Green")]
WORDS = {"title": "T", "description": "D"}
FORM = {
    "name": t.StringSchema(**WORDS, min_length=1, max_length=9, format="email", default="a@b.c"),
    "colour": t.StringSchema(**WORDS, enum=["r", "g"], default="r"),
    "titled": t.StringSchema(**WORDS, one_of=OPTIONS, default="r"),
    "legacy": t.StringSchema(**WORDS, enum=["r", "g"], enum_names=["Red", "Green"], default="r"),
    "share": t.NumberSchema(**WORDS, minimum=0, maximum=1, default=1),
    "count": t.IntegerSchema(**WORDS, minimum=0, maximum=9, default=1),
    "sure": t.BooleanSchema(**WORDS, default=True),
    "many": t.MultiSelectEnumSchema(
        **WORDS, items=t.EnumItems(type="string", enum=["r"]), min_items=0, max_items=1, default=["r"]
    ),
    "titles": t.MultiSelectEnumSchema(**WORDS, items=t.EnumItems(any_of=OPTIONS), default=["r"]),
}
# Types that stand for a union: filling in everything would mix its branches.
BY_HAND: Mapping[Any, list[Any]] = {
    t.ResourceContents: [
        t.ResourceContents("file:///a", "text/plain", text="a", meta={"k": {}}),
        t.ResourceContents("file:///b", "image/png", blob="eA==", meta={"k": {}}),
    ],
    t.Reference: [t.Reference("ref/prompt", name="a", title="A"), t.Reference("ref/resource", uri="file:///a")],
    t.StringSchema: [FORM["name"], FORM["colour"], FORM["titled"], FORM["legacy"]],
    t.EnumItems: [t.EnumItems(type="string", enum=["r"]), t.EnumItems(any_of=OPTIONS)],
    t.RequestedSchema: [t.RequestedSchema(FORM, list(FORM), "https://json-schema.org/draft/2020-12/schema")],
    t.ElicitParams: [
        t.ElicitParams("Who?", t.RequestedSchema(FORM, list(FORM)), task=t.TaskMetadata(1), meta={"k": {}}),
        t.ElicitParams("Sign in", mode="url", url="https://a.b", elicitation_id="1", meta={"k": {}}),
    ],
}
BY_NAME: Mapping[str, Any] = {
    "capabilities": {},  # open, so any declaration is possible
    "data": "eA==",
    "input_responses": {"k": Raw(b'{"action":"accept"}')},
    "input_schema": {"type": "object"},
    "output_schema": {"type": "object"},
}
PLAIN: Mapping[Any, list[Any]] = {
    Any: [{}],
    str: ["file:///a"],
    int: [1],
    float: [1.0],
    bool: [True],
    Raw: [Raw(b'{"k":{}}')],
}


def samples(annotation: Any) -> list[Any]:
    """Values of a type, all members filled in; each branch of each union occurs in one of them."""
    if annotation in BY_HAND:
        return BY_HAND[annotation]
    if annotation in PLAIN:
        return PLAIN[annotation]
    args = get_args(annotation)
    match get_origin(annotation):
        case origin if origin in {Union, UnionType}:
            return list(chain.from_iterable(samples(arg) for arg in args if arg is not type(None)))
        case origin if origin is Literal:
            return list(args)
        case origin if origin is Annotated:
            return samples(args[0])
        case origin if origin is list:
            return [samples(args[0])]
        case origin if origin is dict:
            return [{f"k{i}": value for i, value in enumerate(samples(args[1]))}]
        case _:
            return _structs(annotation)


def _structs(cls: type[Struct]) -> list[Struct]:
    beyond = BEYOND_THE_SCHEMA.get(cls, set())
    members = {
        field.name: [BY_NAME[field.name]] if field.name in BY_NAME else samples(field.type)
        for field in fields(cls)
        if field.encode_name not in beyond
    }
    rounds = max(map(len, members.values()), default=1)
    return [cls(**{name: values[i % len(values)] for name, values in members.items()}) for i in range(rounds)]
