"""Options of entries on registration."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from trunkline import Server, Settings
from trunkline.errors import DuplicateEntry, NotRegistered, RegistrationError


async def function(text: str = "") -> str:
    return text


ADDING: dict[str, Callable[..., Any]] = {
    "a tool": lambda server, **options: server.add_tool(function, **options),
    "a resource": lambda server, **options: server.add_resource("doc://1", "text", **options),
    "a prompt": lambda server, **options: server.add_prompt(function, **options),
    "a completion": lambda server, **options: server.completion(argument="text", prompt="function", **options),
    "a file": lambda server, **options: server.add_file("doc://1", "missing.txt", **options),
    "a directory": lambda server, **options: server.add_directory("doc://{+path}", ".", **options),
}
DECORATING: dict[str, Callable[..., Any]] = {
    "a tool": lambda server, **options: server.tool(**options)(function),
    "a resource": lambda server, **options: server.resource("doc://1", **options)(function),
    "a prompt": lambda server, **options: server.prompt(**options)(function),
}


@pytest.mark.parametrize(("what", "add"), [*ADDING.items(), *DECORATING.items()])
def test_unknown_option_is_refused_with_the_known_ones(what: str, add: Callable[..., Any]) -> None:
    with pytest.raises(RegistrationError, match=f"{what} has no option 'descripton'; its options are .*thread|name"):
        add(Server("t"), descripton="…")


def test_resource_needs_a_uri_and_template_a_function() -> None:
    with pytest.raises(RegistrationError, match="needs a URI"):
        Server("t").resource(function)  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="needs a function to read it with"):
        Server("t").add_resource("doc://{page}", "text")


def test_prompt_defaults_are_for_texts_only() -> None:
    with pytest.raises(RegistrationError, match="a function has defaults of its own"):
        Server("t").add_prompt(function, defaults={"text": "x"})


def test_decorators_return_the_function() -> None:
    server = Server("t")
    assert server.tool(function) is server.tool(name="other")(function) is function
    assert server.prompt(function) is server.prompt(name="other")(function) is function
    assert server.resource("doc://1")(function) is function
    assert server.health("well")(function) is function
    assert server.completion(argument="text", prompt="other")(function) is function


@pytest.mark.parametrize("uri", ["doc://nothing", "doc://{nothing}"])
def test_removing_an_unknown_entry_raises(uri: str) -> None:
    kind = "resource_template" if "{" in uri else "resource"
    with pytest.raises(NotRegistered, match=f"{kind} '{uri}' is not registered"):
        Server("t").remove_resource(uri)


@pytest.mark.row("R21")
@pytest.mark.parametrize("what", ["tool", "prompt", "resource"])
def test_duplicate_warning_points_at_the_registration(what: str) -> None:
    server = Server("t", settings=Settings(on_duplicate="warn"))
    decorate: Any = server.resource("doc://1") if what == "resource" else getattr(server, what)
    decorate(function)
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.warns(UserWarning, match="was registered before and is replaced") as warned:
        decorate(function)
    assert (warned[0].filename, warned[0].lineno) == (__file__, line)


@pytest.mark.parametrize("add", [*ADDING.values()][:3], ids=[*ADDING][:3])
def test_duplicate_error_suggests_working_arguments(add: Callable[..., Any]) -> None:
    server = Server("t")
    add(server)
    with pytest.raises(DuplicateEntry) as refused:
        add(server)

    advised = re.search(r"settings=(Settings\(.*?\))", str(refused.value))
    assert advised is not None, refused.value
    server = Server("t", settings=eval(advised[1], {"Settings": Settings}))
    add(server)
    add(server)


def test_name_of_a_tool_or_prompt_may_be_positional() -> None:
    server = Server("s")
    assert server.tool("add", title="Add")(function) is function
    assert server.prompt("review")(function) is function
    assert [(entry.name, entry.title) for entry in server.tools] == [("add", "Add")]
    assert [entry.key for entry in server.prompts] == ["review"]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("tool", "a tool has one name, not 'a' and 'b'"),
        ("prompt", r"a prompt has one name, not 'a' and 'b'; .* add_prompt\(text, name=…\)"),
    ],
)
def test_second_name_is_refused(what: str, why: str) -> None:
    with pytest.raises(RegistrationError, match=why):
        getattr(Server("s"), what)("a", name="b")


@pytest.mark.parametrize("what", ["tool", "prompt"])
def test_untyped_context_parameter_is_warned_about(what: str) -> None:
    def greet(ctx) -> str:  # type: ignore[no-untyped-def]
        return ""

    add = getattr(Server("s"), what)
    with pytest.warns(
        UserWarning, match=rf"{what} 'greet': its parameter 'ctx' has no annotation.*`ctx: Context`"
    ) as warned:
        add(greet)
    assert warned[0].filename == __file__


def test_untyped_context_parameter_without_source_is_an_error() -> None:
    def read(ctx) -> str:  # type: ignore[no-untyped-def]
        return ""

    with pytest.raises(RegistrationError, match="`ctx: Context`"):
        Server("s").resource("notes://today")(read)
    with pytest.raises(RegistrationError, match=r'no parameter for {ctxt}\. Did you mean "ctx"'):
        Server("s").resource("notes://{+ctxt}")(read)


def test_template_parameter_without_placeholder_is_named() -> None:
    def read(day: str, ctx) -> str:  # type: ignore[no-untyped-def]
        return ""

    with pytest.raises(RegistrationError, match="gives read its argument 'ctx'; write `ctx: Context`"):
        Server("s").resource("notes://{day}")(read)


def test_unknown_name_is_refused_with_the_nearest() -> None:
    server = Server("s")
    server.add_tool(function, name="weather")
    with pytest.raises(NotRegistered, match='Did you mean "weather"'):
        server.tools.disable("wether")


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ({"prompt": "greet"}, "completion of 'txt': prompt 'greet' has no such argument. Did you mean \"text\""),
        ({"tool": "greet"}, "completion of 'txt': tool 'greet' has no such argument. Did you mean \"text\""),
        ({"resource": "a://{text}"}, "completion of 'txt': resource 'a://{text}' has no such argument"),
        ({"resource": "a://b"}, "completion of 'txt': resource 'a://b' has no such argument"),
    ],
)
def test_completion_of_an_unknown_argument_is_refused(target: Any, why: str) -> None:
    server = Server("s")
    server.add_tool(function, name="greet")
    server.add_prompt(function, name="greet")
    server.add_resource("a://{text}", function)
    server.add_resource("a://b", "")
    with pytest.raises(RegistrationError, match=why):
        server.add_completion(["x"], argument="txt", **target)


async def test_completion_without_target_warns_once_at_start() -> None:
    server = Server("s")
    server.add_completion(["x"], prompt="gret", argument="text")
    server.add_completion(["x"], resource="a://{text}", argument="text")
    server.add_completion(["x"], tool="greet", argument="txt")
    server.add_tool(function, name="greet")
    server.add_prompt(function, name="greet")
    server.add_resource("a://{text}", function)
    with pytest.warns(UserWarning, match="^completion of ") as warned:
        await server.start()
    assert [str(one.message) for one in warned] == [
        "completion of 'text': there is no prompt 'gret'. Did you mean \"greet\"?",
        "completion of 'txt': tool 'greet' has no such argument. Did you mean \"text\"?",
    ]
    await server.start()
    await server.aclose()
