"""Prompts: functions and texts, their arguments, and rendering."""

from typing import Any

import jsonschema_rs
import msgspec
import pytest

from trunkline import GetPromptResult, Icon, ImageContent, PromptMessage, ResourceLink
from trunkline import TextContent as Text
from trunkline.config import Settings
from trunkline.errors import ContentTooLarge, InvalidParams, RegistrationError
from trunkline.registry.handlers import read_handler
from trunkline.registry.prompts import PromptEntry, make_prompt, make_text_prompt
from trunkline.registry.results import BadResult

SETTINGS = Settings()


class Context:
    """Stands for the context of a call."""


def prompt(function: Any, **options: Any) -> PromptEntry:
    return make_prompt(read_handler(function, Context, thread=False), SETTINGS, **options)


def text(template: str, **options: Any) -> PromptEntry:
    return make_text_prompt(template, SETTINGS, name="it", **options)


def get(entry: PromptEntry, **arguments: str) -> Any:
    """The rendered messages of a prompt, as sent."""
    result = entry.run(entry.arguments(arguments), Context(), None)
    return msgspec.to_builtins(result)["messages"]


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": {"type": "text", "text": content}}


def review(language: str, style: str = "strict") -> str:
    """Reviews code.

    Args:
        language: What it is written in.
    """
    return f"Review this {language} in {style} style."


# --- definitions ---------------------------------------------------------------------------------


@pytest.mark.row("M01")
def test_function_parameters_become_arguments() -> None:
    entry = prompt(review, title="Review", icons=[Icon("https://example.com/i.png")], meta={"a": 1})

    assert entry.key == "review"
    assert not entry.wants_context
    assert msgspec.to_builtins(entry.definition) == {
        "name": "review",
        "title": "Review",
        "description": "Reviews code.",
        "arguments": [
            {"name": "language", "description": "What it is written in.", "required": True},
            {"name": "style"},
        ],
        "icons": [{"src": "https://example.com/i.png"}],
        "_meta": {"a": 1},
    }


def test_prompt_without_arguments_omits_member() -> None:
    assert msgspec.to_builtins(prompt(lambda: "hi", name="hi", description="d").definition) == {
        "name": "hi",
        "description": "d",
    }
    assert msgspec.to_builtins(text("hi").definition) == {"name": "it"}


@pytest.mark.row("M04")
def test_placeholders_are_arguments() -> None:
    entry = text(
        "Review {language} in {style} style. {{not}} {language}", defaults={"style": "strict"}, description="d"
    )

    assert msgspec.to_builtins(entry.definition) == {
        "name": "it",
        "description": "d",
        "arguments": [{"name": "language", "required": True}, {"name": "style"}],
    }
    assert get(entry, language="Erlang") == [user("Review Erlang in strict style. {not} Erlang")]
    assert get(entry, language="Erlang", style="kind") == [user("Review Erlang in kind style. {not} Erlang")]


def test_values_are_inserted_unchanged() -> None:
    assert get(text("{a} and {b}"), a="{b}", b="{a.__class__}") == [user("{b} and {a.__class__}")]


@pytest.mark.parametrize("template", ["{a.b}", "{a[0]}", "{}", "{0}", "{a-b}"])
def test_invalid_placeholder_is_refused(template: str) -> None:
    with pytest.raises(RegistrationError, match="is not the name of an argument"):
        text(template)


@pytest.mark.row("M12")
def test_malformed_text_is_refused() -> None:
    with pytest.raises(RegistrationError, match="prompt 'it': ") as caught:
        text("{a")

    assert caught.value.kind == "prompt_render_failed"


def test_prompt_needs_a_name() -> None:
    with pytest.raises(RegistrationError, match="a prompt needs a name"):
        make_text_prompt("hi", SETTINGS)


# --- arguments -----------------------------------------------------------------------------------


def refusal(entry: PromptEntry, **arguments: str) -> dict[str, Any]:
    with pytest.raises(InvalidParams) as caught:
        entry.arguments(arguments)
    return caught.value.data


@pytest.mark.row("M03")
@pytest.mark.parametrize("entry", [prompt(review, name="it"), text("{language} {style}", defaults={"style": "x"})])
def test_missing_or_unknown_argument_is_named(entry: PromptEntry) -> None:
    assert refusal(entry) == {"kind": "prompt_argument_missing", "argument": "language", "name": "it"}
    assert refusal(entry, language="a", colour="red") == {
        "kind": "invalid_prompt_arguments",
        "argument": "colour",
        "name": "it",
    }
    assert get(entry, language="a")


def test_arguments_are_decoded_to_declared_types() -> None:
    def repeat(times: int) -> str:
        return "a" * times

    assert get(prompt(repeat), times="3") == [user("aaa")]
    assert refusal(prompt(repeat), times="three") == {"kind": "invalid_prompt_arguments", "name": "repeat"}


def test_kwargs_accept_any_argument() -> None:
    assert get(prompt(lambda **values: str(values), name="any"), a="1") == [user("{'a': '1'}")]


SCHEMA = {"type": "object", "properties": {"language": {"enum": ["Erlang", "Python"]}}}


@pytest.mark.row("M08")
def test_custom_schema_is_enforced_and_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    compile_schema = jsonschema_rs.validator_for

    def counting(schema: Any, **options: Any) -> Any:
        compiled.append(schema)
        return compile_schema(schema, **options)

    monkeypatch.setattr(jsonschema_rs, "validator_for", counting)
    for entry in (prompt(review, input_schema=SCHEMA), text("{language}", input_schema=SCHEMA)):
        assert get(entry, language="Erlang")
        data = refusal(entry, language="COBOL")
        assert data["kind"] == "invalid_prompt_arguments"
        assert [(fault["path"], fault["rule"]) for fault in data["errors"]] == [("$.language", "enum")]
    assert compiled == [SCHEMA, SCHEMA]


@pytest.mark.row("M08")
def test_invalid_schema_is_refused() -> None:
    with pytest.raises(RegistrationError, match="the schema of prompt 'review' is not valid"):
        prompt(review, input_schema={"type": "nonsense"})


# --- rendering -----------------------------------------------------------------------------------

IMAGE = ImageContent("AAEC", "image/png")


@pytest.mark.row("M02")
@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("hi", [user("hi")]),
        (["hi", "there"], [user("hi"), user("there")]),
        (("hi",), [user("hi")]),
        ([], []),
        ({"a": 1}, [user('{"a":1}')]),
        (Text("hi"), [user("hi")]),
        (IMAGE, [{"role": "user", "content": {"type": "image", "data": "AAEC", "mimeType": "image/png"}}]),
        (
            PromptMessage("assistant", ResourceLink("a://b", "b")),
            [{"role": "assistant", "content": {"type": "resource_link", "uri": "a://b", "name": "b"}}],
        ),
        (PromptMessage("user", "hi"), [user("hi")]),
        ({"role": "user", "content": "hi"}, [user("hi")]),
        ({"role": "user", "content": {"type": "text", "text": "hi"}}, [user("hi")]),
        (GetPromptResult([PromptMessage("user", Text("hi"))], "described"), [user("hi")]),
    ],
)
def test_values_become_messages(value: Any, messages: Any) -> None:
    assert get(prompt(lambda: value, name="it")) == messages


@pytest.mark.row("X22")
def test_resource_link_alias_is_accepted() -> None:
    link = {"role": "user", "content": {"type": "resource/link", "uri": "a://b", "name": "b"}}

    (message,) = get(prompt(lambda: link, name="it"))

    assert message["content"]["type"] == "resource_link"


def test_result_description_defaults_to_prompt() -> None:
    whole = prompt(lambda: GetPromptResult([], "own"), name="it", description="d")
    plain = prompt(lambda: "hi", name="it", description="d")

    assert whole.run(whole.arguments({}), None, None).description == "own"
    assert plain.run(plain.arguments({}), None, None).description == "d"


@pytest.mark.row("M06", "X21")
@pytest.mark.parametrize(
    "value",
    [
        PromptMessage("system", Text("hi")),
        {"role": "system", "content": "hi"},
        [{"role": "system", "content": "hi"}],
        GetPromptResult([PromptMessage("system", Text("hi"))]),
    ],
)
def test_role_system_is_refused(value: Any) -> None:
    with pytest.raises(BadResult, match="prompt 'it': ") as caught:
        get(prompt(lambda: value, name="it"))

    assert caught.value.data["kind"] == "prompt_render_failed"


@pytest.mark.row("M12")
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"role": "user", "content": {"type": "film"}}, "invalid_content_type"),
        ({"role": "user", "content": {"type": "image"}}, "prompt_render_failed"),
        ({"role": "user"}, "prompt_render_failed"),
        (object(), "invalid_content"),
        (ImageContent("not base64!", "image/png"), "invalid_encoding"),
        (PromptMessage("user", ImageContent("AAEC", "foo")), "invalid_mime_type"),
    ],
)
def test_invalid_message_is_bad_result(value: Any, kind: str) -> None:
    with pytest.raises(BadResult) as caught:
        get(prompt(lambda: value, name="it"))

    assert caught.value.data["kind"] == kind


def test_function_may_take_context() -> None:
    def who(ctx: Context) -> str:
        return type(ctx).__name__

    entry = prompt(who)

    assert entry.wants_context
    assert entry.definition.arguments is None
    assert get(entry) == [user("Context")]


def test_text_above_the_limit_is_not_rendered() -> None:
    handler = read_handler(lambda: "abcd", Context, thread=False)
    assert get(make_prompt(handler, Settings(max_text=4), name="it")) == [user("abcd")]

    with pytest.raises(ContentTooLarge, match="above the limit of 3"):
        get(make_prompt(handler, Settings(max_text=3), name="it"))
