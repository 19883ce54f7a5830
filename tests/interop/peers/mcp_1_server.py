"""A server with every feature, by the official Python SDK (1.x): a peer for our client.

    python mcp_1_server.py [--bare] [--http]

Run by the peer's own Python. With --bare, it has an empty catalog.
"""

import sys
from typing import Any

from mcp import types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.shared.exceptions import McpError
from mcp_catalog import INSTRUCTIONS, NAME, VERSION, Call, NoSuchThing, Offer
from mcp_serve import serve
from pydantic import AnyUrl


class First(Offer):
    """The catalog, with this SDK version's own way of sending."""

    async def cancelled(self, session: Any) -> None:
        """The SDK does not cancel the request on the client; nor does it expose request ids, but it counts them."""
        params = types.CancelledNotificationParams(requestId=session._request_id - 1, reason="no longer wanted")
        await session.send_notification(types.ServerNotification(types.CancelledNotification(params=params)))

    async def sample_watching(self, session: Any, prompt: str, hear: Any) -> None:
        """The SDK adds a progress token to the request when it has a callback."""
        params = types.CreateMessageRequestParams(messages=[self.said(prompt)], maxTokens=100)
        request = types.ServerRequest(types.CreateMessageRequest(params=params))
        await session.send_request(request, types.CreateMessageResult, progress_callback=hear)


offer = First()
bare, server = Server(NAME, VERSION), Server(NAME, VERSION, INSTRUCTIONS)


def refused(error: NoSuchThing) -> McpError:
    return McpError(types.ErrorData(code=error.code, message=str(error)))


def cursor_of(request: Any) -> str | None:
    """The SDK calls list handlers itself, without a request."""
    return request.params.cursor if request is not None and request.params else None


@server.list_tools()
async def list_tools(request: types.ListToolsRequest) -> types.ListToolsResult:
    return types.ListToolsResult.model_validate(offer.tools(cursor_of(request)))


@server.call_tool()
async def call_tool(name: str, arguments: dict[str, Any]) -> types.CallToolResult:
    context = server.request_context
    token = context.meta.progressToken if context.meta else None
    call = Call(context.session, token, context.request_id)
    return types.CallToolResult.model_validate(await offer.call(call, name, arguments))


@server.list_resources()
async def list_resources(request: types.ListResourcesRequest) -> types.ListResourcesResult:
    return types.ListResourcesResult.model_validate(offer.resources(cursor_of(request)))


@server.list_resource_templates()
async def list_templates() -> list[types.ResourceTemplate]:
    return [types.ResourceTemplate.model_validate(template) for template in offer.templates()]


@server.read_resource()
async def read_resource(uri: AnyUrl) -> list[ReadResourceContents]:
    try:
        return [ReadResourceContents(*offer.read(str(uri)))]
    except NoSuchThing as error:
        raise refused(error) from None


@server.subscribe_resource()
async def subscribe(uri: AnyUrl) -> None:
    offer.subscribed.add(str(uri))


@server.unsubscribe_resource()
async def unsubscribe(uri: AnyUrl) -> None:
    offer.subscribed.discard(str(uri))


@server.list_prompts()
async def list_prompts(request: types.ListPromptsRequest) -> types.ListPromptsResult:
    return types.ListPromptsResult.model_validate(offer.prompts(cursor_of(request)))


@server.get_prompt()
async def get_prompt(name: str, arguments: dict[str, str] | None) -> types.GetPromptResult:
    try:
        return types.GetPromptResult.model_validate(offer.prompt(name, arguments or {}))
    except NoSuchThing as error:
        raise refused(error) from None


@server.completion()
async def complete(ref: Any, argument: types.CompletionArgument, context: Any) -> types.Completion:
    name = ref.name if isinstance(ref, types.PromptReference) else ref.uri
    filled = (context and context.arguments) or {}
    return types.Completion.model_validate(offer.complete(name, argument.name, argument.value, filled))


@server.set_logging_level()
async def set_level(level: types.LoggingLevel) -> None:
    offer.level = level


async def roots_changed(_: types.RootsListChangedNotification) -> None:
    offer.events["roots changed"].set()


server.notification_handlers[types.RootsListChangedNotification] = roots_changed


def main() -> None:
    """Serve, with additions for what the SDK does not provide."""
    serving = bare if "--bare" in sys.argv else server
    options = serving.create_initialization_options(NotificationOptions(True, True, True))
    if options.capabilities.resources:
        options.capabilities.resources.subscribe = True  # the SDK never says so by itself
    serve(serving, options)


if __name__ == "__main__":
    main()
