"""Errors about values without JSON name their type and path."""

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import Struct

from trunkline.registry.unencodable import explain_missing_await, to_json


class Opaque:
    pass


@dataclass
class Box:
    content: Any


class Slot(Struct):
    content: Any


async def fetch() -> None: ...


def numbers() -> Any:
    yield 1


async def later() -> Any:
    yield 1


def nested(levels: int) -> Any:
    value: Any = Opaque()
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Opaque(), "Opaque has no JSON: "),
        ({"a": [1, {"b": Opaque()}]}, "Opaque at $.a[1].b has no JSON: "),
        ((1, frozenset({Opaque()})), "Opaque at $[1][0] has no JSON: "),
        (Box(Slot([Opaque()])), "Opaque at $.content.content[0] has no JSON: "),
        ({"a": {(1, 2): 3}}, "the key (1, 2) of the dict at $.a has no JSON: keys are texts or numbers"),
        (fetch(), "the handler returned a coroutine; is `await` missing before fetch(…)?"),
        ([fetch()], "the handler returned a coroutine at $[0]; is `await` missing before fetch(…)?"),
        (numbers(), "the handler returned a generator; return a list"),
        ({"all": later()}, "the handler returned a generator at $.all; return a list"),
        (nested(100), f"list at ${'[0]' * 32} has no JSON: "),
    ],
    ids=lambda value: type(value).__name__,
)
def test_first_unencodable_part_is_named(value: Any, why: str) -> None:
    with pytest.raises(TypeError) as raised:
        to_json(value)
    assert str(raised.value).startswith(why)


def test_encodable_value_has_no_fault() -> None:
    assert to_json({"a": Box(1)}) == b'{"a":{"content":1}}'
    assert explain_missing_await(5) is None
