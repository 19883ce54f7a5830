"""What may be said of an entry when it is registered, one type for each kind. Comments say what an option means."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from trunkline.protocol.types import Annotations, Icon, ToolAnnotations
from trunkline.registry.tasks import TaskPolicy, TaskSupport

__all__ = ["Described", "PromptOptions", "ResourceOptions", "TemplateOptions", "ToolOptions", "shown"]


class Described(TypedDict, total=False):
    """What every entry can say of itself."""

    name: str | None  # instead of the function's
    title: str | None  # for people
    description: str | None  # instead of the docstring's
    icons: Sequence[Icon] | None  # pictures to show beside the name
    meta: Mapping[str, Any] | None  # goes out as `_meta`


class ToolOptions(Described, total=False):
    """What can be said of a tool."""

    input_schema: Mapping[str, Any] | None  # instead of the one made of the parameters
    annotations: ToolAnnotations | None  # hints on how it behaves
    timeout: float | None  # seconds that a call has, instead of `work_timeout`
    structured: bool  # False: no output schema, and results are content alone
    task: bool | TaskSupport | TaskPolicy  # whether calls run as tasks; True: as their clients like
    asks: Sequence[str]  # what the client has to be able to be asked: "elicitation", "sampling", "roots", …


class TemplateOptions(Described, total=False):
    """What can be said of a resource, and of many at once."""

    mime_type: str | None  # of what is read
    annotations: Annotations | None  # whom it is for, and how much it matters
    ttl: float  # seconds that a client may keep what it has read
    public: bool  # True: what is read is the same for everybody, so that others may keep it too


class ResourceOptions(TemplateOptions, total=False):
    """What can be said of one resource."""

    size: int | None  # bytes, if known


class PromptOptions(Described, total=False):
    """What can be said of a prompt."""

    input_schema: Mapping[str, Any] | None  # for stricter checks of the arguments


def shown(options: Described) -> dict[str, Any]:
    """What goes into any definition as it is: how it is shown, and what lies beside it."""
    icons, meta = options.get("icons"), options.get("meta")
    return {
        "title": options.get("title"),
        "icons": [*icons] if icons else None,
        "meta": dict(meta) if meta else None,
    }
