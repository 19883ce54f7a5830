"""What can be said of entries when they are registered."""

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
def test_an_option_that_there_is_not_is_refused_and_the_others_are_named(what: str, add: Callable[..., Any]) -> None:
    with pytest.raises(RegistrationError, match=f"{what} has no option 'descripton'; its options are .*thread|name"):
        add(Server("t"), descripton="…")


def test_a_resource_needs_its_uri_and_a_template_its_function() -> None:
    with pytest.raises(RegistrationError, match="needs a URI"):
        Server("t").resource(function)  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="needs a function to read it with"):
        Server("t").add_resource("doc://{page}", "text")


def test_defaults_are_for_texts() -> None:
    with pytest.raises(RegistrationError, match="a function has defaults of its own"):
        Server("t").add_prompt(function, defaults={"text": "x"})


def test_decorators_leave_a_function_as_it_is() -> None:
    server = Server("t")
    assert server.tool(function) is server.tool(name="other")(function) is function
    assert server.prompt(function) is server.prompt(name="other")(function) is function
    assert server.resource("doc://1")(function) is function
    assert server.health("well")(function) is function
    assert server.completion(argument="text", prompt="other")(function) is function


@pytest.mark.parametrize("uri", ["doc://nothing", "doc://{nothing}"])
def test_what_is_not_there_cannot_be_removed(uri: str) -> None:
    kind = "resource_template" if "{" in uri else "resource"
    with pytest.raises(NotRegistered, match=f"{kind} '{uri}' is not registered"):
        Server("t").remove_resource(uri)


@pytest.mark.parametrize("what", ["tool", "prompt", "resource"])
def test_r21_a_warning_of_a_duplicate_points_at_the_line_that_registers_it(what: str) -> None:
    server = Server("t", settings=Settings(on_duplicate="warn"))
    decorate: Any = server.resource("doc://1") if what == "resource" else getattr(server, what)
    decorate(function)
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.warns(UserWarning, match="was registered before and is replaced") as warned:
        decorate(function)
    assert (warned[0].filename, warned[0].lineno) == (__file__, line)


@pytest.mark.parametrize("add", [*ADDING.values()][:3], ids=[*ADDING][:3])
def test_error_about_a_duplicate_advises_arguments_that_work(add: Callable[..., Any]) -> None:
    server = Server("t")
    add(server)
    with pytest.raises(DuplicateEntry) as refused:
        add(server)

    advised = re.search(r"settings=(Settings\(.*?\))", str(refused.value))
    assert advised is not None, refused.value
    server = Server("t", settings=eval(advised[1], {"Settings": Settings}))
    add(server)
    add(server)
