"""The classes in the table of types."""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Generic, Literal, NamedTuple, TypedDict, TypeVar

import annotated_types as at
import attrs
import pydantic
from msgspec import Struct

Item = TypeVar("Item")


class Colour(Enum):
    """A colour."""

    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Ratio(Enum):
    HALF = 0.5
    WHOLE = 1


class Pair(NamedTuple):
    x: Annotated[int, "across"]
    y: str = "a"


class LimitedPair(NamedTuple):
    x: Annotated[int, at.Ge(0)]
    y: Annotated[str, at.MinLen(1)] = "a"


class Options(TypedDict, total=False):
    deep: Annotated[bool, "how deep"]
    size: int


class LimitedOptions(TypedDict):
    size: Annotated[int, pydantic.Field(ge=0, description="how much")]


class StructPoint(Struct):
    x: Annotated[int, "across"]
    y: int = 0


class ArrayPoint(Struct, array_like=True, forbid_unknown_fields=True):
    x: Annotated[int, at.Ge(0), "across"]
    y: Annotated[int, pydantic.Field(le=9)] = 0


@dataclass
class Point:
    x: Annotated[int, "across"]
    y: int = 0


@attrs.define
class AttrsPoint:
    x: Annotated[int, "across"]
    y: int = 0


class ModelPoint(pydantic.BaseModel):
    x: Annotated[int, pydantic.Field(description="across")]
    y: int = 0


@pydantic.dataclasses.dataclass
class PydanticPoint:
    x: int
    y: int = pydantic.Field(0, alias="why")

    @pydantic.field_validator("x")
    @classmethod
    def check(cls, x: int) -> int:
        if x == 13:
            raise ValueError("unlucky")
        return x


class Report(pydantic.BaseModel, extra="forbid"):
    """Its encoded form differs from its decoded one."""

    day: date = pydantic.Field(validation_alias="on", serialization_alias="day")
    count: int = pydantic.Field(alias="howMany", ge=0)

    @pydantic.computed_field
    @property
    def twice(self) -> int:
        return self.count * 2


@dataclass
class Box(Generic[Item]):
    item: Item
    size: Annotated[int, at.Ge(1)] = 1


@dataclass
class Node:
    name: str
    children: "list[Node]" = field(default_factory=list)


class ModelNode(pydantic.BaseModel):
    name: str
    children: "list[ModelNode]" = []


@dataclass
class Circle:
    radius: float
    kind: Literal["circle"] = "circle"


@dataclass
class Square:
    side: float
    kind: Literal["square"] = "square"


class ModelCat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class ModelDog(pydantic.BaseModel):
    kind: Literal["dog"]
    good: bool


class Cat(Struct, tag=True):
    lives: int


class Dog(Struct, tag=True):
    good: bool


@dataclass
class Tree:
    """Refers to itself, and has a field that msgspec would not accept beside that."""

    label: Annotated[str, at.MinLen(1)]
    below: "list[Tree | Circle]" = field(default_factory=list)


@attrs.define
class Limits:
    _least: Annotated[int, at.Ge(0)]
    most: Annotated[int, pydantic.Field(le=9)] = 9
    word: str = attrs.field(default="a", converter=str.lower)
    hidden: int = attrs.field(init=False, default=1)


class Drawing(Struct, rename="camel", forbid_unknown_fields=True):
    first_shape: Circle | Square
    other_shapes: list[Circle | Square] = []


@dataclass
class Place:
    where: Path = Path("a")
    colour: Colour = Colour.RED


@dataclass
class Mixed:
    """All kinds of classes as fields."""

    a: StructPoint
    b: AttrsPoint
    c: ModelPoint
    d: PydanticPoint
    e: Pair


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
IDENT = "12345678-1234-5678-1234-567812345678"
