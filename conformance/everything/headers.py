"""A tool whose argument stands in a header as well, for whoever routes by it."""

from typing import Annotated

from msgspec import Meta

from everything.server import server


@server.tool(structured=False)
async def test_header_routing(
    region: Annotated[str, Meta(description="Where to run it", extra_json_schema={"x-mcp-header": "Region"})],
) -> str:
    """Runs somewhere."""
    return f"Executed in {region}"
