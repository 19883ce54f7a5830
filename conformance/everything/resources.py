"""Resources: a text, a picture, any number of one kind, and one to subscribe to."""

from everything.server import RED_DOT, server

server.add_resource(
    "test://static-text",
    "This is the content of the static text resource.",
    name="Static text",
    description="A text that is always the same",
    mime_type="text/plain",
)
server.add_resource(
    "test://static-binary",
    RED_DOT,
    name="Static binary",
    description="A picture that is always the same",
    mime_type="image/png",
)


@server.resource("test://template/{id}/data", name="Template", mime_type="application/json")
async def template(id: str) -> dict[str, str | bool]:  # noqa: A002 - the template calls it so
    """The data of any id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


@server.resource("test://watched-resource", name="Watched", mime_type="text/plain")
async def watched() -> str:
    """A resource to subscribe to."""
    return "Watched resource content"
