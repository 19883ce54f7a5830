"""Invalid values of public options raise on construction or registration, with the allowed values."""

from pathlib import Path
from typing import Any

import pytest

from trunkline import Annotations, BlockingClient, Client, MemoryStore, Server, TaskPolicy, ToolAnnotations
from trunkline.errors import MisuseError, RegistrationError
from trunkline.errors.options import describe_value
from trunkline.facts import Observer
from trunkline.testing import RecordingObserver


def function(number: int = 1) -> int:
    return number


@pytest.mark.parametrize("name", ["", " ", None, 5])
def test_server_needs_a_name(name: Any) -> None:
    with pytest.raises(MisuseError, match=r'a server needs a name, such as Server\("notes"\), not'):
        Server(name)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"version": 1}, "version= must be a string, not 1"),
        ({"instructions": ["x"]}, "instructions= must be a string, not list"),
        ({"icons": "x.png"}, "icons must be a list; write"),
        ({"icons": ["x.png"]}, "icons must be of type Icon or a mapping, not 'x.png'"),
        ({"settings": {"page_size": 5}}, r"settings= must be a Settings, such as Settings\(page_size=50\), not dict"),
        ({"auth": "SECRET"}, r"auth= must be a ResourceServer\(…\), .* not str$"),
        ({"store": "notes.db"}, "store= must be a store, such as SqliteStore"),
        ({"store": MemoryStore}, "store= must be a store.* not the class MemoryStore"),
        ({"tools": [function]}, "tools= must be True or False.* @server.tool, not list"),
        ({"logging": "yes"}, "logging= must be True or False"),
        ({"extensions": ["x"]}, "extensions= must be a dict, not list"),
        ({"cache": 5}, "cache= must be a dict, not 5"),
        ({"cache": {"tools": "x"}}, "cache= of 'tools' must be 0 seconds or more, not 'x'"),
        ({"cache": {"tool": 5}}, 'Did you mean "tools"'),
        ({"observers": RecordingObserver()}, "observers= must be a list of observers"),
        ({"observers": [RecordingObserver]}, "observers= must be a list of observers"),
        ({"features": ["tools"]}, "features= must be a list of features"),
        ({"clock": 5}, "clock= must be a clock"),
    ],
)
def test_invalid_server_option_is_refused(options: Any, why: str) -> None:
    with pytest.raises(MisuseError, match=why):
        Server("s", **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": ""}, 'a client needs a name, such as name="my-app"'),
        ({"version": 1}, "version= must be a string, not 1"),
        ({"settings": {}}, "settings= must be a Settings"),
        ({"sampling": 5}, "sampling= must be a function, not 5"),
        ({"sampling_tools": "x"}, "sampling_tools= must be True or False"),
        ({"on_log": "x"}, "on_log= must be a function"),
        ({"log_level": "loud"}, "log_level= must be one of debug, .* not 'loud'"),
        ({"roots": "file:///x"}, "roots= must be a list of file: URIs, paths or roots, not 'file:///x'"),
        ({"roots": [5]}, "roots= must be a list of file: URIs"),
        ({"extensions": ["x"]}, "extensions= must be a dict"),
        ({"observers": 5}, "observers= must be a list of observers"),
        ({"clock": 5}, "clock= must be a clock"),
        ({"revision": 5}, "revision= must be one of 2024-11-05"),
    ],
)
@pytest.mark.parametrize("kind", [Client, BlockingClient])
def test_invalid_client_option_is_refused(kind: Any, options: Any, why: str) -> None:
    with pytest.raises(MisuseError, match=why):
        kind(Server("s"), **options)


async def test_unknown_log_level_is_refused() -> None:
    async with Client(Server("s")) as client:
        with pytest.raises(MisuseError, match=r"not 'warnin'. Did you mean \"warning\""):
            await client.set_log_level("warnin")  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match="not 5"):
            await client.set_log_level(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": 5}, "a tool: name= must be a string, not 5"),
        ({"name": "add", "title": 5}, "tool 'add': title= must be a string, not 5"),
        ({"descripton": "x"}, "has no option 'descripton'.* Did you mean \"description\""),
        ({"annotations": 5}, "annotations must be of type ToolAnnotations or a mapping, not 5"),
        (
            {"annotations": {"readonlyHint": True}},
            "annotations: there is no 'readonlyHint'. Did you mean \"readOnlyHint\"",
        ),
        ({"annotations": {"readOnlyHint": 5}}, "tool 'function': annotations: Expected `bool"),
        ({"meta": 5}, "tool 'function': meta= must be a dict, not 5"),
        ({"timeout": "5"}, "timeout= must be a number above 0, not '5'"),
        ({"timeout": 0}, "timeout= must be a number above 0, not 0"),
        ({"scopes": 5}, "scopes= must be a list of scopes, not 5"),
        ({"asks": 5}, "asks= must be a list of capabilities, not 5"),
        ({"max_concurrency": "x"}, "max_concurrency= must be a whole number, not 'x'"),
        ({"enabled": "x"}, "enabled= must be True or False, not 'x'"),
        ({"task": TaskPolicy(ttl="x")}, "ttl= of a task must be above 0, not 'x'"),  # type: ignore[arg-type]
    ],
)
def test_invalid_tool_option_is_refused(options: Any, why: str) -> None:
    with pytest.raises(RegistrationError, match=why):
        Server("s").add_tool(function, **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"annotations": ToolAnnotations()}, "annotations must be of type Annotations or a mapping"),
        ({"mime_type": 5}, "resource 'a://b': mime_type= must be a string, not 5"),
        ({"list": 5}, "list= must be a function, not 5"),
        ({"ttl": "x"}, "ttl= must be a number, not 'x'"),
    ],
)
def test_invalid_resource_option_is_refused(options: Any, why: str) -> None:
    with pytest.raises(RegistrationError, match=why):
        Server("s").add_resource("a://b", function, **options)


@pytest.mark.parametrize(
    ("register", "why"),
    [
        (lambda s: s.resource(5), "the URI of a resource is a text such as 'notes://today', not 5"),
        (lambda s: s.add_resource(None, 5), "the URI of a resource is a text"),
        (lambda s: s.add_file(5, "x"), "the URI of a resource is a text"),
        (lambda s: s.add_file("a://b", 5), "a path is a text or a Path, not 5"),
        (lambda s: s.add_directory("a://{+path}", 5), "a path is a text or a Path, not 5"),
        (lambda s: s.add_prompt("{a}", name="p", defaults={"aa": ""}), "no placeholder {aa} for the default"),
        (lambda s: s.add_completion(5, argument="a", prompt="p"), "is a list of texts, not 5"),
        (lambda s: s.completion(argument=5, prompt="p"), "the argument of a completion needs a name"),
        (lambda s: s.health(function), r'such as @server.health\("database"\), not function'),
        (lambda s: s.on_roots_changed(5), "on_roots_changed takes a function, not 5"),
        (lambda s: s.on_first_subscriber(5), "on_first_subscriber takes a function"),
        (lambda s: s.on_last_unsubscribed(5), "on_last_unsubscribed takes a function"),
        (lambda s: s.on_shutdown(5), "on_shutdown takes a function"),
        (lambda s: s.forward_logs(level="loud"), "level= must be one of `logging`, such as 'INFO', not 'loud'"),
        (lambda s: s.asgi(path=5), "path= must be a text such as '/mcp', not 5"),
        (lambda s: s.asgi(identify=5), "identify= takes a function, not 5"),
    ],
)
def test_wrong_value_is_refused_at_call(register: Any, why: str) -> None:
    with pytest.raises(MisuseError, match=why):
        register(Server("s"))


def test_middleware_must_take_call_and_next() -> None:
    async def lonely(call: Any) -> None: ...

    with pytest.raises(RegistrationError, match=r"middleware lonely must take two arguments: \(call, next\)"):
        Server("s").middleware(lonely)  # type: ignore[type-var]


def test_iterators_are_not_consumed_by_checks() -> None:
    observers: list[Observer] = [RecordingObserver()]
    assert Server("s", observers=iter(observers)).observers
    client = Client(Server("s"), roots=(path for path in [Path("/x")]))
    assert [root.uri for root in client._runtime.callbacks.roots or ()] == ["file:///x"]


def test_long_values_are_truncated_in_messages() -> None:
    assert describe_value("x" * 100) == "'" + "x" * 59 + "…"
    assert describe_value({"key": "SECRET"}) == "dict"
    assert describe_value(int) == "the class int"


def test_annotations_may_be_a_dict_with_wire_names() -> None:
    server = Server("s")
    server.add_tool(function, annotations={"readOnlyHint": True}, task=True)
    server.add_resource("a://b", "", annotations={"priority": 0.5})
    tool, resource = server.tools.get("function"), server.resources.get("a://b")
    assert tool is not None
    assert resource is not None
    assert (tool.annotations, tool.repeatable) == (ToolAnnotations(read_only_hint=True), True)
    assert resource.definition.annotations == Annotations(priority=0.5)
