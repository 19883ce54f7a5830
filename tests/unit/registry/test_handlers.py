"""Handlers: signatures read once, arguments decoded, functions of every kind called."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Generic, Literal, Optional, TypedDict, TypeVar, Union

import msgspec
import pytest
from msgspec import UNSET, Meta, Struct

from trunkline.errors import RegistrationError
from trunkline.registry.handlers import (
    Handler,
    Parameter,
    StartMode,
    ThreadCall,
    make_runner,
    read_handler,
    text_converter,
)
from trunkline.registry.signatures import accepts_positional

T = TypeVar("T")


class Context(Generic[T]):
    """Stands for the context of a call."""


CONTEXT = Context[Any]()


def call(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a function as a peer would, with JSON."""
    handler = read_handler(function, Context)
    return handler.bind(handler.decode(msgspec.json.encode(arguments)), CONTEXT)


def schema(function: Callable[..., Any]) -> dict[str, Any]:
    return read_handler(function, Context).input_schema()


def properties(function: Callable[..., Any]) -> dict[str, Any]:
    return schema(function)["properties"]


# --- schemas -------------------------------------------------------------------------------------


@pytest.mark.row("T13")
def test_hints_and_defaults_become_the_schema() -> None:
    def add(a: int, b: int = 3) -> int:
        return a + b

    assert schema(add) == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 3}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert call(add, a=1) == 4
    assert call(add, a=1, b=1) == 2


def test_function_without_parameters_accepts_empty_object() -> None:
    assert schema(lambda: 1) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_unannotated_parameter_accepts_any_value() -> None:
    def show(value, other=None):
        return value, other

    assert schema(show)["properties"] == {"value": {}, "other": {"default": None}}
    assert call(show, value=[1, "a"]) == ([1, "a"], None)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict, total=False):
    deep: bool


class Filter(Struct):
    field: str
    values: list[int] = []


@pytest.mark.parametrize(
    ("kind", "given", "seen"),
    [
        (str, "a", "a"),
        (int, 5, 5),
        (float, 1, 1.0),
        (bool, True, True),
        (None, None, None),
        (bytes, "AAE=", b"\0\1"),
        (Optional[int], None, None),  # noqa: UP045
        (Union[int, str], "a", "a"),  # noqa: UP007
        (int | None, 1, 1),
        (Literal["fast", 2], 2, 2),
        (Colour, "red", Colour.RED),
        (list[int], [1, 2], [1, 2]),
        (dict[str, list[float]], {"a": [1.5]}, {"a": [1.5]}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (set[int], [1, 1], {1}),
        (datetime, "2025-01-02T03:04:05Z", datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (Point, {"x": 1}, Point(1)),
        (list[Point], [{"x": 1, "y": 2}], [Point(1, 2)]),
        (Options, {"deep": True}, {"deep": True}),
        (Filter, {"field": "a"}, Filter("a")),
        (Annotated[int, Meta(gt=1)], 2, 2),
    ],
)
def test_arguments_are_decoded_to_declared_types(kind: Any, given: Any, seen: Any) -> None:
    def take(value):
        return value

    take.__annotations__["value"] = kind
    assert call(take, value=given) == seen
    assert type(call(take, value=given)) is type(seen)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (str, 1),
        (int, "1"),
        (int, 1.5),
        (int, True),
        (bool, 1),
        (float, "1"),
        (int | None, "a"),
        (Literal["fast"], "slow"),
        (Colour, "green"),
        (list[int], ["a"]),
        (dict[str, int], {"a": "b"}),
        (Point, {"y": 1}),
        (Options, {"deep": 1}),
        (Filter, {"field": "a", "values": [None]}),
        (Annotated[int, Meta(gt=1)], 1),
        (Annotated[str, Meta(pattern="^a")], "b"),
        (Annotated[str, Meta(max_length=2)], "abc"),
    ],
)
def test_arguments_of_another_type_are_refused(kind: Any, given: Any) -> None:
    def take(value):
        return value

    take.__annotations__["value"] = kind
    with pytest.raises(msgspec.ValidationError):
        call(take, value=given)


def test_unknown_and_missing_arguments_are_refused() -> None:
    def take(a: int) -> int:
        return a

    with pytest.raises(msgspec.ValidationError, match="unknown field `b`"):
        call(take, a=1, b=2)
    with pytest.raises(msgspec.ValidationError, match="required field `a`"):
        call(take)


def test_string_values_are_converted() -> None:
    def take(number: int, flag: bool = False) -> tuple[int, bool]:
        return number, flag

    handler = read_handler(take, Context)

    assert handler.bind(handler.convert({"number": "5", "flag": "true"}), None) == (5, True)
    with pytest.raises(msgspec.ValidationError):
        handler.convert({"number": "five"})


# --- defaults ------------------------------------------------------------------------------------


@pytest.mark.row("T09")
def test_default_is_applied_and_published() -> None:
    def find(limit: Annotated[int, Meta(ge=1, le=1000)] = 100) -> int:
        return limit

    assert properties(find)["limit"] == {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
    assert call(find) == 100


def test_mutable_default_is_copied_per_call() -> None:
    def collect(names: list[str] = ["a"], more: dict[str, int] = {}) -> tuple[list[str], dict[str, int]]:  # noqa: B006
        names.append("b")
        more["c"] = 1
        return names, more

    assert properties(collect)["names"]["default"] == ["a"]
    assert properties(collect)["more"]["default"] == {}
    assert [call(collect), call(collect)] == [(["a", "b"], {"c": 1})] * 2


def test_unencodable_default_is_used_but_not_published() -> None:
    missing = object()

    def take(value: Any = missing, values: list[Any] = [missing]) -> tuple[Any, Any]:  # noqa: B006
        return value, values

    assert properties(take) == {"value": {}, "values": {"type": "array"}}
    assert "required" not in schema(take)
    assert call(take) == (missing, [missing])


def test_enum_default_is_published_by_value() -> None:
    def paint(colour: Colour = Colour.RED) -> Colour:
        return colour

    assert properties(paint)["colour"]["default"] == "red"
    assert call(paint) is Colour.RED


# --- descriptions --------------------------------------------------------------------------------


@pytest.mark.row("X23")
def test_docstring_describes_function_and_arguments() -> None:
    def find(path: str, depth: int = 1, other: str = "") -> list[str]:
        """Finds files.

        Args:
            path: Where to look.
            depth: How deep.
        """
        return [path, str(depth), other]

    assert read_handler(find, Context).description == "Finds files."
    assert properties(find)["path"] == {"type": "string", "description": "Where to look."}
    assert properties(find)["depth"]["description"] == "How deep."
    assert "description" not in properties(find)["other"]


def test_annotated_string_describes_argument() -> None:
    def find(
        a: Annotated[int, "plain"],
        b: Annotated[int, Meta(description="meta", ge=1), "plain"],
        c: Annotated[str, "inside"] | None = None,
        d: Annotated[int, Meta(ge=2)] | None = None,
    ) -> None:
        """Finds.

        :param a: docstring
        """

    described = properties(find)
    assert described["a"] == {"type": "integer", "description": "plain"}
    assert described["b"] == {"type": "integer", "minimum": 1, "description": "meta"}
    assert described["c"]["description"] == "inside"
    assert "description" not in described["d"]


# --- functions of every kind ---------------------------------------------------------------------


class Robot:
    """A robot."""

    def __init__(self, name: str = "R") -> None:
        self.name = name

    def greet(self, whom: str) -> str:
        """Greets."""
        return f"{self.name} greets {whom}"

    async def agreet(self, whom: str) -> str:
        return f"{self.name} greets {whom}"

    @classmethod
    def build(cls, name: str) -> str:
        return f"{cls.__name__} {name}"

    @staticmethod
    def add(a: int, b: int) -> int:
        return a + b

    def __call__(self, whom: str) -> str:
        return self.greet(whom)


class AsyncRobot:
    async def __call__(self, whom: str) -> str:
        return whom


def scale(value: float, factor: float, *, offset: float = 0) -> float:
    """Scales a number.

    Args:
        value: What to scale.
        factor: By how much.
    """
    return value * factor + offset


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def positional_only(a: int, /, b: int) -> tuple[int, int]:
    return a, b


def keyword_only(*, a: int, b: int = 2) -> tuple[int, int]:
    return a, b


def open_ended(a: int, **more: Any) -> tuple[int, dict[str, Any]]:
    return a, more


@pytest.mark.parametrize(
    ("function", "arguments", "value", "name"),
    [
        (lambda a: a, {"a": 1}, 1, "<lambda>"),
        (Robot("K").greet, {"whom": "x"}, "K greets x", "greet"),
        (Robot.build, {"name": "x"}, "Robot x", "build"),
        (Robot.add, {"a": 1, "b": 2}, 3, "add"),
        (Robot("K"), {"whom": "x"}, "K greets x", "Robot"),
        (functools.partial(scale, factor=2), {"value": 3}, 6.0, "scale"),
        (functools.partial(functools.partial(scale, 3), offset=1), {"factor": 2}, 7.0, "scale"),
        (decorated(scale), {"value": 3, "factor": 2, "offset": 1}, 7.0, "scale"),
        (positional_only, {"a": 1, "b": 2}, (1, 2), "positional_only"),
        (keyword_only, {"a": 1}, (1, 2), "keyword_only"),
        (open_ended, {"a": 1, "x": [2]}, (1, {"x": [2]}), "open_ended"),
        (len, {"obj": [1, 2]}, 2, "len"),
    ],
)
def test_callables_of_every_kind_are_called(function: Any, arguments: Any, value: Any, name: str) -> None:
    handler = read_handler(function, Context)

    assert handler.name == name
    assert handler.start is StartMode.THREAD
    assert call(function, **arguments) == value


def test_partial_takes_remaining_arguments() -> None:
    handler = read_handler(functools.partial(scale, 3.0, offset=1.0), Context)

    assert handler.description == "Scales a number."
    assert handler.input_schema() == {
        "type": "object",
        "properties": {
            "factor": {"type": "number", "description": "By how much."},
            "offset": {"type": "number", "default": 1.0},
        },
        "required": ["factor"],
        "additionalProperties": False,
    }


@pytest.mark.row("T10")
def test_kwargs_accept_any_object() -> None:
    def anything(**values: Any) -> dict[str, Any]:
        return values

    assert schema(anything) == {"type": "object", "properties": {}}
    assert call(anything, x=1) == {"x": 1}


def test_kwargs_keep_named_arguments_strict() -> None:
    with pytest.raises(msgspec.ValidationError):
        call(open_ended, a="1")
    handler = read_handler(open_ended, Context)
    assert handler.bind(handler.convert({"a": "1", "b": "2"}), None) == (1, {"b": "2"})


@pytest.mark.parametrize("function", [Robot().agreet, AsyncRobot(), functools.partial(Robot().agreet)])
async def test_async_callables_are_detected(function: Any) -> None:
    handler = read_handler(function, Context, thread=True)

    assert handler.start is StartMode.ASYNC
    assert await call(function, whom="x") in {"R greets x", "x"}


def test_sync_function_runs_on_thread_by_default() -> None:
    assert read_handler(scale, Context).start is StartMode.THREAD
    assert read_handler(scale, Context, thread=True).start is StartMode.THREAD
    assert read_handler(scale, Context, thread=False).start is StartMode.INLINE


def test_return_annotation_is_read() -> None:
    assert read_handler(scale, Context).returns is float
    assert read_handler(lambda: 1, Context).returns is UNSET


# --- the context ---------------------------------------------------------------------------------


def context_first(ctx: Context, a: int) -> Any:
    return ctx, a


def context_last(a: int, ctx: Context) -> Any:
    return ctx, a


def context_between(a: int, ctx: Context, b: int = 2) -> Any:
    return ctx, a + b - 2


def context_by_keyword(a: int, *, ctx: Context | None = None) -> Any:
    return ctx, a


def context_annotated(a: int, ctx: Annotated[Context, "the call"]) -> Any:
    return ctx, a


def context_with_argument(a: int, ctx: Context[dict[str, int]]) -> Any:
    return ctx, a


def context_with_argument_or_none(a: int, ctx: "Context[int] | None" = None) -> Any:
    return ctx, a


def context_open(a: int, ctx: "Context", **more: Any) -> Any:
    return ctx, a


@pytest.mark.parametrize(
    "function",
    [
        context_first,
        context_last,
        context_between,
        context_by_keyword,
        context_annotated,
        context_with_argument,
        context_with_argument_or_none,
        context_open,
    ],
)
def test_context_is_injected_and_not_in_schema(function: Any) -> None:
    handler = read_handler(function, Context)

    assert handler.wants_context
    assert "ctx" not in properties(function)
    assert call(function, a=1) == (CONTEXT, 1)
    with pytest.raises(msgspec.ValidationError, match="unknown field `ctx`"):
        call(function, a=1, ctx=2)


def test_context_only_function_is_called() -> None:
    def alone(ctx: Context) -> Any:
        return ctx

    assert call(alone) is CONTEXT
    assert not read_handler(lambda: 1, Context).wants_context


# --- signatures that cannot be called --------------------------------------------------------------


def star(*values: int) -> None: ...


def undefined(a: "Nowhere") -> None: ...  # noqa: F821


def misspelt(a: "inspect.Nowhere") -> None: ...


def unreadable(a: "1 +") -> None: ...  # noqa: F722


def not_a_type(a: 5) -> None: ...


def no_json(a: list[complex]) -> None: ...


def two_contexts(a: Context, b: Context) -> None: ...


def mangled(__a: int) -> None: ...  # noqa: PYI063


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (5, "5 is not callable"),
        (star, r"star: \*values can never be passed, since arguments have names; name each parameter"),
        (undefined, "undefined: an annotation names something that is not defined: name 'Nowhere' is not defined"),
        (misspelt, "misspelt: an annotation cannot be read: module 'inspect' has no attribute 'Nowhere'"),
        (unreadable, "unreadable: an annotation cannot be read: "),
        (not_a_type, "not_a_type: its arguments cannot be described: a: 5 is not supported"),
        (no_json, "no_json: its arguments cannot be described: a: complex is not supported"),
        (two_contexts, "two_contexts: a and b both take the context; keep one of them"),
        (mangled, "mangled: its arguments cannot be described"),
        (max, "max: its signature cannot be read"),
    ],
)
def test_uncallable_function_is_refused_with_reason(function: Any, sentence: str) -> None:
    with pytest.raises(RegistrationError, match=f"^{sentence}"):
        read_handler(function, Context)


def test_invalid_type_hint_is_refused_with_reason() -> None:
    def bad(a: int) -> None: ...

    bad.__annotations__["a"] = "Literal[int](5)"
    with pytest.raises(RegistrationError, match=r"^bad: an annotation cannot be read"):
        read_handler(bad, Context)


# --- running -------------------------------------------------------------------------------------


def run(handler: Handler, arguments: Any = None) -> Any:
    """Run a call; return the value and the subject."""
    return make_runner(handler, lambda value, subject: (value, subject))(arguments, None, "subject")


async def test_async_function_is_awaited() -> None:
    async def answer() -> int:
        return 42

    assert await run(read_handler(answer, Context)) == (42, "subject")


async def test_sync_function_runs_on_thread_or_inline() -> None:
    work = run(read_handler(lambda: 42, Context))
    assert isinstance(work, ThreadCall)
    assert work.finish(work.function()) == (42, "subject")

    assert run(read_handler(lambda: 42, Context, thread=False)) == (42, "subject")


async def test_sync_function_may_return_awaitable() -> None:
    async def answer() -> int:
        return 42

    def ask() -> Any:
        return answer()

    assert await run(read_handler(ask, Context, thread=False)) == (42, "subject")


async def test_sys_exit_in_a_handler_does_not_end_the_server() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match=r"a handler called sys.exit\(3\)"):
        await run(read_handler(leave, Context))

    def leave_soon() -> Any:
        return leave()

    with pytest.raises(RuntimeError, match=r"a handler called sys.exit\(3\)"):
        await run(read_handler(leave_soon, Context, thread=False))

    def leave_at_once() -> None:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match=r"a handler called sys.exit\(3\)"):
        run(read_handler(leave_at_once, Context, thread=False))


def test_parameter_without_default_is_required() -> None:
    assert Parameter("a", int).required
    assert not Parameter("a", int, None).required


# --- string arguments ------------------------------------------------------------------------------


def test_string_function_takes_texts_unchanged() -> None:
    def greet(name: str, greeting: str = "Hello") -> str:
        return f"{greeting} {name}"

    handler = read_handler(greet, Context)
    convert = text_converter(handler)

    assert handler.bind(convert({"name": "you"}), None) == "Hello you"
    assert convert({"name": "5", "greeting": "null"}) == handler.convert({"name": "5", "greeting": "null"})
    for wrong in ({}, {"name": "you", "other": "x"}):
        with pytest.raises(msgspec.ValidationError):
            convert(wrong)


def test_texts_are_converted_to_numbers() -> None:
    handler = read_handler(lambda name, times: name * times, Context)
    assert text_converter(handler) is handler.convert

    def repeat(name: str, times: int) -> str:
        return name * times

    handler = read_handler(repeat, Context)
    assert handler.bind(text_converter(handler)({"name": "ab", "times": "2"}), None) == "abab"


@pytest.mark.parametrize(
    ("function", "count", "expected"),
    [(lambda one: one, 1, True), (lambda: None, 1, False), (lambda *many: many, 5, True), (dict, 1, True)],
    ids=["exact", "too many", "any", "without a signature"],
)
def test_positional_arity_is_detected(function: Any, count: int, expected: bool) -> None:
    assert accepts_positional(function, count) is expected
