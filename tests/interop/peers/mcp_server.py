"""A server with every feature, by the official Python SDK (2.x): a peer for our client.

    python mcp_server.py [--bare] [--http]

Run by the peer's own Python. With --bare, it has an empty catalog.
"""

import base64
import sys
import warnings
from typing import Any

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_catalog import INSTRUCTIONS, NAME, VERSION, Call, NoSuchThing, Offer
from mcp_input_requests import InputNeeded, Rounds
from mcp_serve import serve

CHANGES = {"tools": ToolsListChanged, "resources": ResourcesListChanged, "prompts": PromptsListChanged}

Context = ServerRequestContext[Any, Any]


class Modern(Offer):
    """The catalog, with this SDK version's own way of sending. Changes reach clients of either era."""

    def __init__(self) -> None:
        super().__init__()
        self.bus = InMemorySubscriptionBus()

    async def updated(self, session: Any, uri: str) -> None:
        await super().updated(session, uri)
        await self.bus.publish(ResourceUpdated(uri))

    async def changed(self, session: Any, kind: str) -> None:
        await super().changed(session, kind)
        await self.bus.publish(CHANGES[kind]())

    async def sample_watching(self, session: Any, prompt: str, hear: Any) -> None:
        """The SDK adds a progress token to the request when it has a callback."""
        params = types.CreateMessageRequestParams(messages=[self.said(prompt)], max_tokens=100)
        request = types.CreateMessageRequest(params=params)
        await session.send_request(request, types.CreateMessageResult, progress_callback=hear)


offer = Modern()


def modern(context: Context) -> bool:
    """Return whether a request is of the modern era."""
    return context.protocol_version >= "2026-07-28"


async def list_tools(_: Context, params: types.PaginatedRequestParams) -> types.ListToolsResult:
    return types.ListToolsResult.model_validate(offer.tools(params.cursor))


async def call_tool(
    context: Context, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    token = (context.meta or {}).get("progress_token")
    session = Rounds(context.session, params.input_responses or {}) if modern(context) else context.session
    try:
        result = await offer.call(Call(session, token, context.request_id), params.name, params.arguments or {})
    except InputNeeded as needed:
        return types.InputRequiredResult(input_requests={"question": needed.request}, request_state="asked")
    except NoSuchThing as error:
        raise MCPError(error.code, str(error)) from None
    return types.CallToolResult.model_validate(result)


async def list_resources(_: Context, params: types.PaginatedRequestParams) -> types.ListResourcesResult:
    return types.ListResourcesResult.model_validate(offer.resources(params.cursor))


async def list_templates(_: Context, _params: types.PaginatedRequestParams) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult.model_validate({"resourceTemplates": offer.templates()})


async def read_resource(context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    try:
        held, mime_type = offer.read(str(params.uri))
    except NoSuchThing as error:
        code = types.INVALID_PARAMS if modern(context) else error.code
        raise MCPError(code, str(error)) from None
    content = {"text": held} if isinstance(held, str) else {"blob": base64.b64encode(held).decode()}
    return types.ReadResourceResult.model_validate(
        {"contents": [{"uri": params.uri, "mimeType": mime_type, **content}]}
    )


async def subscribe(_: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
    offer.subscribed.add(str(params.uri))
    return types.EmptyResult()


async def unsubscribe(_: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    offer.subscribed.discard(str(params.uri))
    return types.EmptyResult()


async def list_prompts(_: Context, params: types.PaginatedRequestParams) -> types.ListPromptsResult:
    return types.ListPromptsResult.model_validate(offer.prompts(params.cursor))


async def get_prompt(_: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    try:
        return types.GetPromptResult.model_validate(offer.prompt(params.name, params.arguments or {}))
    except NoSuchThing as error:
        raise MCPError(error.code, str(error)) from None


async def complete(_: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    name = params.ref.name if isinstance(params.ref, types.PromptReference) else params.ref.uri
    filled = (params.context and params.context.arguments) or {}
    values = offer.complete(name, params.argument.name, params.argument.value, filled)
    return types.CompleteResult.model_validate({"completion": values})


async def set_level(_: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
    offer.level = params.level
    return types.EmptyResult()


async def roots_changed(_: Context, _params: types.NotificationParams) -> None:
    offer.events["roots changed"].set()


def everything() -> Server:
    """A server with a handler for each method."""
    return Server(
        NAME,
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=ListenHandler(offer.bus),
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
        on_set_logging_level=set_level,
        on_roots_list_changed=roots_changed,
    )


def main() -> None:
    """Serve, with additions for what the SDK does not provide."""
    server = Server(NAME, version=VERSION) if "--bare" in sys.argv else everything()
    changes = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
    serve(server, server.create_initialization_options(changes))


if __name__ == "__main__":
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    main()
