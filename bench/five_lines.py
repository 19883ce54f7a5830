"""The smallest server on Trunkline that does something, for the row of the spawn: `five_lines.py stdio`."""

from trunkline import Server

server = Server("five lines")


@server.tool
async def echo(text: str) -> str:
    """Answer with the text."""
    return text


server.run("stdio")
