"""Parameters: defaults and descriptions, from several sources."""

import dataclasses
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import annotated_types as at
import attrs
import msgspec
import pydantic
import pytest
from msgspec import UNSET, UnsetType
from pydantic import Field
from tests.unit.registry.table.classes import StructPoint
from tests.unit.registry.table.tools import tool

from trunkline.errors import InvalidArguments, RegistrationError
from trunkline.wire import codec


def called(function: Any, **arguments: Any) -> Any:
    entry = tool(function)
    raw = codec.to_json(arguments)
    try:
        read = entry.decode(raw)
    except codec.DecodeError as error:
        read = entry.decode_leniently(raw, error)
    return entry.handler.bind(read, None)


def by_field(  # noqa: PLR0917 - one of each
    needed: Annotated[str, Field(min_length=2)],
    plain: int = Field(5),
    limited: int = Field(default=5, ge=1, description="how many"),
    made: list[int] = Field(default_factory=list),  # noqa: B008 - as people write it
    required: str = Field(...),
    noted: Annotated[int, Field(default=7, le=9)] = Field(description="a number"),
) -> Any:
    """Takes what `Field` says.

    Args:
        plain: a plain one
    """
    return needed, plain, limited, made, required, noted


def test_pydantic_field_sets_default_limits_and_description() -> None:
    schema = tool(by_field).definition.input_schema

    assert schema["required"] == ["needed", "required"]
    assert schema["properties"] == {
        "needed": {"type": "string", "minLength": 2},
        "plain": {"type": "integer", "default": 5, "description": "a plain one"},
        "limited": {"type": "integer", "minimum": 1, "default": 5, "description": "how many"},
        "made": {"type": "array", "items": {"type": "integer"}, "default": []},
        "required": {"type": "string"},
        "noted": {"type": "integer", "maximum": 9, "default": 7, "description": "a number"},
    }
    assert called(by_field, needed="ab", required="a") == ("ab", 5, 5, [], "a", 7)
    with pytest.raises(InvalidArguments, match=r"\$\.limited: 0 is less than the minimum of 1"):
        called(by_field, needed="ab", required="a", limited=0)


def test_default_factory_runs_per_call() -> None:
    def take(made: list[int] = Field(default_factory=lambda: [1]), given: list[int] = [2]) -> Any:  # noqa: B006, B008
        return made, given

    first, second = called(take), called(take)
    assert first == second == ([1], [2])
    assert first[0] is not second[0]
    assert first[1] is not second[1]
    assert "default" not in tool(take).definition.input_schema["properties"]["made"]


def test_default_may_be_a_struct_a_path_or_unset() -> None:
    def take(point: StructPoint = StructPoint(1), path: Path = Path("a"), more: int | UnsetType = UNSET) -> Any:  # noqa: B008
        return point, path, more

    assert called(take) == (StructPoint(1), Path("a"), UNSET)
    assert called(take)[0] is not called(take)[0]
    assert "required" not in tool(take).definition.input_schema


def _by_struct(a: int = msgspec.field(default=1)) -> None: ...
def _by_dataclass(a: int = dataclasses.field(default=1)) -> None: ...
def _by_attrs(a: int = attrs.field(default=1)) -> None: ...
def _aliased(a: int = Field(1, alias="b")) -> None: ...
def _aliased_for_reading(a: Annotated[int, Field(validation_alias="b")]) -> None: ...
def _looking_around(a: int, b: int = Field(default_factory=lambda data: data["a"])) -> None: ...


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_by_struct, r"_by_struct: parameter a: field\(…\) is for members of a class; write the default itself"),
        (_by_dataclass, r"_by_dataclass: parameter a: field\(…\) is for members of a class"),
        (_by_attrs, r"_by_attrs: parameter a: field\(…\) is for members of a class"),
        (_aliased, "_aliased: parameter a: a parameter cannot have an alias; rename it"),
        (_aliased_for_reading, "a parameter cannot have an alias"),
        (_looking_around, "_looking_around: parameter b: its default_factory must not depend on other parameters"),
    ],
)
def test_meaningless_field_options_are_refused(function: Any, why: str) -> None:
    with pytest.raises(RegistrationError, match=why):
        tool(function)


def test_description_precedes_limits_in_words() -> None:
    def due(
        day: Annotated[date, at.Gt(date(2026, 1, 1))],
        option: Annotated[int, "noted"] | None = None,
        model: Annotated[str, pydantic.AfterValidator(str.strip)] = "",
    ) -> None:
        """Tells when.

        :param day: The day.
        :param option: not told
        :param model: Stripped.
        """

    properties = tool(due).definition.input_schema["properties"]
    assert properties["day"]["description"] == "The day. (more than 2026-01-01)"
    assert properties["option"]["description"] == "noted"
    assert properties["model"]["description"] == "Stripped."
