"""Objects of the specification as mappings on registration."""

from typing import Any

import msgspec
import pytest

from trunkline import Annotations, Icon, Server, ToolAnnotations
from trunkline.errors import RegistrationError


async def act() -> str:
    return "done"


def of_tool(**options: Any) -> Any:
    server = Server("t")
    server.add_tool(act, **options)
    entry = server.tools.get("act")
    assert entry is not None
    return entry.definition


def of_resource(**options: Any) -> Any:
    server = Server("t")
    server.add_resource("doc://1", "text", **options)
    entry = server.resources.get("doc://1")
    assert entry is not None
    return entry.definition


def of_template(**options: Any) -> Any:
    server = Server("t")
    server.add_resource("doc://{name}", lambda name: name, **options)
    entry = server.templates.get("doc://{name}")
    assert entry is not None
    return entry.definition


def of_prompt(**options: Any) -> Any:
    server = Server("t")
    server.add_prompt("Say hello", name="greet", **options)
    entry = server.prompts.get("greet")
    assert entry is not None
    return entry.definition


@pytest.mark.parametrize(
    "given", [{"read_only_hint": True}, {"readOnlyHint": True}, ToolAnnotations(read_only_hint=True)], ids=str
)
def test_tool_annotations_accept_python_and_wire_names(given: Any) -> None:
    definition = of_tool(annotations=given)
    assert definition.annotations == ToolAnnotations(read_only_hint=True)
    assert msgspec.to_builtins(definition)["annotations"] == {"readOnlyHint": True}


@pytest.mark.parametrize("given", [{"last_modified": "2025-01-02T03:04:05Z"}, {"lastModified": "2025-01-02T03:04:05Z"}])
@pytest.mark.parametrize("register", [of_resource, of_template])
def test_resource_annotations_accept_python_and_wire_names(register: Any, given: Any) -> None:
    assert register(annotations=given).annotations == Annotations(last_modified="2025-01-02T03:04:05Z")


@pytest.mark.parametrize("register", [of_tool, of_resource, of_template, of_prompt])
def test_icons_may_be_mappings(register: Any) -> None:
    plain = Icon("https://example.org/a.png")
    definition = register(icons=[plain, {"src": "data:,", "mime_type": "image/png"}, {"src": "b:", "mimeType": "c/d"}])
    assert definition.icons == [plain, Icon("data:,", "image/png"), Icon("b:", "c/d")]
    assert register(icons=[]).icons is None


def test_icons_of_a_server_may_be_mappings() -> None:
    Server("t", icons=[{"src": "https://example.org/a.png", "mime_type": "image/png"}])
    with pytest.raises(RegistrationError, match=r"server 't': icons: there is no 'source'"):
        Server("t", icons=[{"source": "https://example.org/a.png"}])


REFUSED = [
    (
        of_tool,
        {"annotations": {"readonly_hint": True}},
        "tool 'act': annotations: there is no 'readonly_hint'. Did you mean \"read_only_hint\"?",
    ),
    (
        of_tool,
        {"annotations": {"readOnly": True}},
        "tool 'act': annotations: there is no 'readOnly'. Did you mean \"readOnlyHint\"?",
    ),
    (
        of_tool,
        {"annotations": {"colour": "red"}},
        (
            "tool 'act': annotations: there is no 'colour'; there are title, "
            "read_only_hint, destructive_hint, idempotent_hint, open_world_hint"
        ),
    ),
    (
        of_tool,
        {"annotations": {"read_only_hint": True, "readOnlyHint": False}},
        "tool 'act': annotations: 'readOnlyHint' is present in both spellings",
    ),
    (
        of_tool,
        {"annotations": {"read_only_hint": "yes"}},
        "tool 'act': annotations: Expected `bool | null`, got `str` - at `$.readOnlyHint`",
    ),
    (
        of_tool,
        {"annotations": ["read_only_hint"]},
        "tool 'act': annotations must be of type ToolAnnotations or a mapping, not ['read_only_hint']",
    ),
    (
        of_resource,
        {"annotations": {"audiance": ["user"]}},
        "resource 'doc://1': annotations: there is no 'audiance'. Did you mean \"audience\"?",
    ),
    (
        of_template,
        {"annotations": {"priority": 2}},
        "resource 'doc://{name}': annotations: Expected `float` <= 1.0 - at `$.priority`",
    ),
    (of_prompt, {"icons": [{"mime_type": "image/png"}]}, "prompt 'greet': icons: Object missing required field `src`"),
    (of_prompt, {"icons": {"src": "data:,"}}, "prompt 'greet': icons must be a list; write icons=[…]"),
]


@pytest.mark.parametrize(("register", "options", "said"), REFUSED)
def test_invalid_mapping_is_refused(register: Any, options: Any, said: str) -> None:
    with pytest.raises(RegistrationError) as refused:
        register(**options)
    assert str(refused.value) == said


def test_meta_has_any_members() -> None:
    assert of_tool(meta={"anything_at": {"all": 1}}).meta == {"anything_at": {"all": 1}}


def test_mapping_hints_set_task_recovery() -> None:
    server = Server("t")
    server.add_tool(act, task=True, annotations={"read_only_hint": True})
    entry = server.tools.get("act")
    assert entry is not None
    assert entry.repeatable
    assert entry.task is not None
    assert entry.task.recovery == "restart"
