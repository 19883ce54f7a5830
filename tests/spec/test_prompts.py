"""Prompts: listing and rendering."""

import logging
from pathlib import Path
from typing import Annotated, Any

import pytest
from tests.processes import StdioPeer

from trunkline import (
    AudioContent,
    Depends,
    EmbeddedResource,
    GetPromptResult,
    Icon,
    ImageContent,
    PromptMessage,
    ResourceContents,
    ResourceLink,
    Server,
    Settings,
    TextContent,
)
from trunkline.errors import DuplicateEntry
from trunkline.facts import CallStarted, HandlerFailed, PromptStep
from trunkline.testing import ManualClock, RawPeer, RecordingObserver

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
EXAMPLES = Path(__file__).parents[2] / "examples"
every_revision = pytest.mark.parametrize("revision", REVISIONS)


def reviews(**options: Any) -> Server:
    server = Server("t", **options)

    @server.prompt(title="Review", icons=[Icon("https://example.com/eye.png")], meta={"team": "tools"})
    async def code_review(language: str, style: str = "default") -> str:
        """Review code for quality issues.

        Args:
            language: Programming language
            style: Code style guide
        """
        return f"Review {language} code using {style} style."

    server.add_prompt("Hello {name}, in {mood} mood.", name="greet", defaults={"mood": "good"})
    return server


async def get(peer: RawPeer, name: str, /, **arguments: str) -> Any:
    return await peer.result("prompts/get", {"name": name, **({"arguments": arguments} if arguments else {})})


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": {"type": "text", "text": text}}


# --- listing -------------------------------------------------------------------------------------


@pytest.mark.row("PRM-02", "M01")
@every_revision
async def test_prompt_fields_depend_on_the_revision(revision: str) -> None:
    async with RawPeer(reviews()) as peer:
        await peer.initialize(revision)
        listed = await peer.result("prompts/list")
    expected: dict[str, Any] = {
        "name": "code_review",
        "description": "Review code for quality issues.",
        "arguments": [
            {"name": "language", "description": "Programming language", "required": True},
            {"name": "style", "description": "Code style guide"},
        ],
    }
    if revision >= "2025-06-18":
        expected |= {"title": "Review", "_meta": {"team": "tools"}}
    if revision >= "2025-11-25":
        expected["icons"] = [{"src": "https://example.com/eye.png"}]
    greet = {"name": "greet", "arguments": [{"name": "name", "required": True}, {"name": "mood"}]}
    assert listed == {"prompts": [expected, greet]}


@pytest.mark.row("PRM-01")
async def test_prompt_methods_need_a_prompt() -> None:
    async with RawPeer(Server("t")) as peer:
        assert "prompts" not in (await peer.initialize())["capabilities"]
        for method in ("prompts/list", "prompts/get"):
            error = await peer.error(method, {"name": "x"})
            assert (error["code"], error["data"]["kind"]) == (-32601, "capability_not_supported")


@pytest.mark.row("M07", "A15")
async def test_functions_decorators_and_texts_register_alike() -> None:
    def greet(name: str) -> str:
        return f"Hello {name}."

    by_function, by_decorator, by_text = Server("t"), Server("t"), Server("t")
    by_function.add_prompt(greet)
    assert by_decorator.prompt(greet) is greet
    by_text.add_prompt("Hello {name}.", name="greet")

    seen = []
    for server in (by_function, by_decorator, by_text):
        async with RawPeer(server) as peer:
            await peer.initialize()
            seen.append([await peer.result("prompts/list"), await get(peer, "greet", name="Ada")])
    assert seen[0] == seen[1] == seen[2]
    assert seen[0] == [
        {"prompts": [{"name": "greet", "arguments": [{"name": "name", "required": True}]}]},
        {"messages": [user("Hello Ada.")]},
    ]


@pytest.mark.parametrize("on_duplicate", ["error", "replace", "warn"])
async def test_duplicate_prompt_is_rejected_or_replaces(on_duplicate: Any) -> None:
    server = Server("t", settings=Settings(on_duplicate=on_duplicate))
    server.add_prompt("first", name="twice")
    if on_duplicate == "error":
        with pytest.raises(DuplicateEntry, match="prompt 'twice' is already registered"):
            server.add_prompt("second", name="twice")
    elif on_duplicate == "warn":
        with pytest.warns(UserWarning, match="prompt 'twice' was registered before and is replaced"):
            server.add_prompt("second", name="twice")
    else:
        server.add_prompt("second", name="twice")
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await get(peer, "twice"))["messages"] == [user("first" if on_duplicate == "error" else "second")]


# --- rendering -----------------------------------------------------------------------------------


@pytest.mark.row("M02", "M04", "A15", "PH41", "PH42")
@every_revision
async def test_prompt_renders_arguments_and_defaults(revision: str) -> None:
    async with RawPeer(reviews()) as peer:
        await peer.initialize(revision)
        assert await get(peer, "code_review", language="Erlang", style="stricter") == {
            "description": "Review code for quality issues.",
            "messages": [user("Review Erlang code using stricter style.")],
        }
        assert (await get(peer, "code_review", language="Erlang"))["messages"] == [
            user("Review Erlang code using default style.")
        ]
        assert await get(peer, "greet", name="Ada") == {"messages": [user("Hello Ada, in good mood.")]}


PICTURE = {"type": "image", "data": "AAEC", "mimeType": "image/png"}


@pytest.mark.row("PRM-03", "M05", "M06")
@pytest.mark.parametrize(
    ("block", "content"),
    [
        (TextContent("hi"), {"type": "text", "text": "hi"}),
        (ImageContent("AAEC", "image/png"), PICTURE),
        (
            EmbeddedResource(ResourceContents("doc://a", "text/plain", text="a")),
            {"type": "resource", "resource": {"uri": "doc://a", "mimeType": "text/plain", "text": "a"}},
        ),
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant"])
@every_revision
async def test_messages_of_both_roles_support_all_content(revision: str, role: Any, block: Any, content: Any) -> None:
    server = Server("t")
    server.add_prompt(lambda: [PromptMessage(role, block)], name="it")
    async with RawPeer(server) as peer:
        await peer.initialize(revision)
        assert await get(peer, "it") == {"messages": [{"role": role, "content": content}]}


@pytest.mark.row("M05", "X22")
@every_revision
async def test_newer_content_is_adapted_to_the_revision(revision: str) -> None:
    server = Server("t")
    link = {"role": "user", "content": {"type": "resource/link", "uri": "doc://b", "name": "b"}}
    server.add_prompt(lambda: [AudioContent("AAEC", "audio/wav"), ResourceLink("doc://a", "a"), link], name="it")
    async with RawPeer(server) as peer:
        await peer.initialize(revision)
        kinds = [message["content"]["type"] for message in (await get(peer, "it"))["messages"]]
    assert kinds == {
        "2024-11-05": ["resource", "text", "text"],
        "2025-03-26": ["audio", "text", "text"],
    }.get(revision, ["audio", "resource_link", "resource_link"])


@pytest.mark.row("M02")
async def test_prompt_may_return_a_whole_result() -> None:
    server = Server("t")

    @server.prompt
    async def it() -> GetPromptResult:
        """Said of the prompt."""
        return GetPromptResult([PromptMessage("user", TextContent("hi"))], "said of this one")

    async with RawPeer(server) as peer:
        await peer.initialize()
        assert await get(peer, "it") == {"description": "said of this one", "messages": [user("hi")]}


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.row("PRM-04", "M03", "PH42", "PH44")
@every_revision
async def test_missing_required_argument_is_named(
    revision: str,
) -> None:
    async with RawPeer(reviews()) as peer:
        await peer.initialize(revision)
        for name, argument in (("code_review", "language"), ("greet", "name")):
            error = await peer.error("prompts/get", {"name": name})
            assert error["code"] == -32602
            assert error["data"] == {"kind": "prompt_argument_missing", "argument": argument, "name": name}
            assert argument in error["message"]
            error = await peer.error("prompts/get", {"name": name, "arguments": {argument: "x", "colour": "red"}})
            assert (error["code"], error["data"]["argument"]) == (-32602, "colour")
            assert (await get(peer, name, **{argument: "x"}))["messages"]


@pytest.mark.row("PRM-01")
async def test_argument_values_must_be_strings() -> None:
    async with RawPeer(reviews()) as peer:
        await peer.initialize()
        for arguments in ({"language": 5}, [], "x"):
            error = await peer.error("prompts/get", {"name": "code_review", "arguments": arguments})
            assert (error["code"], error["data"]["kind"]) == (-32602, "invalid_params")


@pytest.mark.row("M08", "AD007")
@every_revision
async def test_schema_makes_argument_checks_stricter(revision: str) -> None:
    server, seen = Server("t"), []

    @server.prompt(input_schema={"type": "object", "properties": {"language": {"enum": ["Erlang", "Python"]}}})
    async def review(language: str) -> str:
        seen.append(language)
        return language

    async with RawPeer(server) as peer:
        await peer.initialize(revision)
        error = await peer.error("prompts/get", {"name": "review", "arguments": {"language": "COBOL"}})
        assert (error["code"], error["data"]["kind"]) == (-32602, "invalid_prompt_arguments")
        assert [fault["path"] for fault in error["data"]["errors"]] == ["$.language"]
        await get(peer, "review", language="Erlang")
    assert seen == ["Erlang"]


@pytest.mark.row("M11")
@every_revision
async def test_unknown_or_disabled_prompt_is_named(revision: str) -> None:
    server = reviews()
    server.prompts.disable("greet")
    async with RawPeer(server) as peer:
        await peer.initialize(revision)
        for name in ("nope", "greet"):
            error = await peer.error("prompts/get", {"name": name, "arguments": {"name": "x"}})
            assert error["code"] == -32602
            assert error["data"] == {"kind": "prompt_not_found", "name": name}
            assert repr(name) in error["message"]
        assert [prompt["name"] for prompt in (await peer.result("prompts/list"))["prompts"]] == ["code_review"]


# --- failures ------------------------------------------------------------------------------------


def failing(**options: Any) -> Server:
    server = Server("t", **options)

    @server.prompt
    async def undefined() -> str:
        return "{hunter2}".format_map({})

    @server.prompt
    def on_thread() -> str:
        raise ValueError("password: hunter2")

    @server.prompt
    async def system() -> list[dict[str, str]]:
        return [{"role": "system", "content": "hunter2"}]

    @server.prompt
    async def system_message() -> PromptMessage:
        return PromptMessage("system", TextContent("hunter2"))

    return server


@pytest.mark.row("M06", "M12", "X21")
@pytest.mark.parametrize("name", ["undefined", "on_thread", "system", "system_message"])
@every_revision
async def test_failing_prompt_hides_its_reason(revision: str, name: str) -> None:
    observer = RecordingObserver()
    async with RawPeer(failing(observers=[observer])) as peer:
        await peer.initialize(revision)
        error = await peer.error("prompts/get", {"name": name})
        assert not any(b"hunter2" in frame for _, frame in peer.transcript.frames)
    (failed,) = observer.of(HandlerFailed)
    assert error["code"] == -32603
    assert error["data"] == {"kind": "prompt_render_failed", "reference": failed.reference}
    assert failed.error.__traceback__ is not None


@pytest.mark.row("M12")
async def test_traceback_is_logged_under_the_reference(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "trunkline"):
        async with RawPeer(failing()) as peer:
            await peer.initialize()
            error = await peer.error("prompts/get", {"name": "undefined"})
    (record,) = caplog.records
    assert error["data"]["reference"] in record.getMessage()
    assert "KeyError: 'hunter2'" in caplog.text


# --- changes -------------------------------------------------------------------------------------


@pytest.mark.row("PRM-05", "M10", "PH43")
async def test_burst_of_prompts_is_announced_twice() -> None:
    clock = ManualClock()
    server = Server("t", prompts=True, clock=clock)
    async with RawPeer(server) as peer:
        await peer.initialize()
        for number in range(50):
            server.add_prompt("hi", name=f"prompt{number}")
        clock.advance(0.01)
        assert [message["method"] for message in await peer.quiet()] == ["notifications/prompts/list_changed"]
        clock.advance(0.1)
        assert [message["method"] for message in await peer.quiet()] == ["notifications/prompts/list_changed"]
        assert len((await peer.result("prompts/list"))["prompts"]) == 50
        clock.advance(10)
        assert await peer.quiet() == []
        server.remove_prompt("prompt0")
        assert len(await peer.quiet()) == 1


# --- the example ---------------------------------------------------------------------------------


@pytest.mark.row("M13")
def test_code_review_example_uses_the_default_style() -> None:
    with StdioPeer((EXAMPLES / "code_review.py").read_text()) as peer:
        peer.initialize()
        (prompt,) = peer.result("prompts/list")["prompts"]
        assert [argument["name"] for argument in prompt["arguments"]] == ["language", "style"]
        for arguments, style in [({}, "default"), ({"style": "stricter"}, "stricter")]:
            params = {"name": "code_review", "arguments": {"language": "erlang", **arguments}}
            first, second = peer.result("prompts/get", params)["messages"]
            assert first == user(f"Review erlang code using {style} style.")
            assert second["role"] == "assistant"


# --- its steps ---------------------------------------------------------------------------------------


@pytest.mark.row("M09")
@pytest.mark.parametrize("source", ["async", "plain", "inline", "needing", "text"])
async def test_prompt_steps_are_reported_in_order(
    source: str,
) -> None:
    observer = RecordingObserver()
    server = Server("t", observers=[observer])

    def steps() -> list[str]:
        return [fact.step for fact in observer.of(PromptStep)]

    def plain(language: str) -> list[str]:
        assert steps() == ["ProcessArguments", "RenderTemplate"]
        return [f"Review {language}"]

    async def asynchronous(language: str) -> list[str]:
        return plain(language)

    async def needing(language: str, more: Annotated[str, Depends(lambda: "!")]) -> list[str]:
        return plain(language)

    match source:
        case "async":
            server.add_prompt(asynchronous, name="review")
        case "plain":
            server.add_prompt(plain, name="review")
        case "inline":
            server.add_prompt(plain, name="review", thread=False)
        case "needing":
            server.add_prompt(needing, name="review")
        case "text":
            server.add_prompt("Review {language}", name="review")
    async with RawPeer(server) as peer:
        await peer.initialize()
        got = await peer.request("prompts/get", {"name": "review", "arguments": {"language": "Erlang"}}, id="m09")
    assert got["result"]["messages"][0]["content"]["text"] == "Review Erlang"
    assert steps() == ["ProcessArguments", "RenderTemplate", "GenerateMessages"]
    assert {(fact.request, fact.name) for fact in observer.of(PromptStep)} == {("m09", "review")}
    told = [type(fact) for fact in observer.facts]
    assert told.index(PromptStep) > told.index(CallStarted)


@pytest.mark.row("M09")
async def test_prompt_with_invalid_arguments_is_not_rendered() -> None:
    observer = RecordingObserver()
    server = Server("t", observers=[observer])
    server.add_prompt("Review {language}", name="review")
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.error("prompts/get", {"name": "review"})
    assert [fact.step for fact in observer.of(PromptStep)] == ["ProcessArguments"]
