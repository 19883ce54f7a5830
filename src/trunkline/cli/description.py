"""The description of a server: what it says about itself, and everything that it offers.

Commands that examine a server work with a description, which comes from a connection or from a file that
`trunkline inspect --format json` has written.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import field

from trunkline.cli.catalog import fetch_catalog
from trunkline.cli.connection import connect
from trunkline.cli.terminal import Terminal
from trunkline.errors import MisuseError
from trunkline.protocol.types import Implementation, Prompt, Resource, ResourceTemplate, Tool
from trunkline.protocol.types.base import Wire
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.client.client import Client

__all__ = ["ServerDescription", "describe_server", "fetch_description", "load_description"]


class ServerDescription(Wire, kw_only=True, gc=True):
    """Everything that a server says about itself, in the names of the specification."""

    server: Implementation | None = None
    revision: str | None = None
    capabilities: dict[str, Any] = field(default_factory=dict[str, Any])
    instructions: str | None = None
    tools: list[Tool] = field(default_factory=list[Tool])
    resources: list[Resource] = field(default_factory=list[Resource])
    resource_templates: list[ResourceTemplate] = field(default_factory=list[ResourceTemplate])
    prompts: list[Prompt] = field(default_factory=list[Prompt])


_decode: Final[Callable[[bytes], ServerDescription]] = codec.json_decoder(ServerDescription)
_decode_any: Final[Callable[[bytes], Any]] = codec.json_decoder(cast("Any", Any))
_LISTS: Final = ("tools", "resources", "resourceTemplates", "prompts")


async def describe_server(client: "Client") -> ServerDescription:
    """Ask a server for everything that it offers."""
    catalog = await fetch_catalog(client)
    return ServerDescription(
        server=client.server_info,
        revision=client.revision,
        capabilities=dict(client.capabilities),
        instructions=client.instructions,
        tools=catalog.tools,
        resources=catalog.resources,
        resource_templates=catalog.templates,
        prompts=catalog.prompts,
    )


async def fetch_description(target: str, options: argparse.Namespace, terminal: Terminal) -> ServerDescription:
    """Return the description in a file, or that of a server to connect to."""
    saved = load_description(target)
    if saved is not None:
        return saved
    async with connect(options, terminal, target) as client:
        return await describe_server(client)


def load_description(target: str) -> ServerDescription | None:
    """Return the description in a file; None if the target is no such file. Raises `MisuseError` for a file that is
    damaged. The output of `trunkline list --json` is a description too, without the server itself."""
    path = Path(target)
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        text = path.read_bytes()
        content: Any = _decode_any(text)
    except (OSError, codec.DecodeError):
        return None  # a configuration file may have comments; whatever is wrong with it is reported there
    if not isinstance(content, dict) or not any(isinstance(content.get(kind), list) for kind in _LISTS):  # pyright: ignore[reportUnknownMemberType]
        return None
    try:
        return _decode(text)
    except (codec.DecodeError, RecursionError) as error:
        raise MisuseError(f"{path} is no description of a server: {error}") from None
