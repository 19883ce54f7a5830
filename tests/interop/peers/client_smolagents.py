"""The tools of smolagents, made of those of a server, without a model."""

import os

from client_script import ADDENDS, ARGUMENTS, COMMAND, URL, found
from mcp import StdioServerParameters
from smolagents import ToolCollection

server = (
    {"url": URL, "transport": "streamable-http"}
    if URL
    else StdioServerParameters(command=COMMAND, args=ARGUMENTS, env=dict(os.environ))
)
with ToolCollection.from_mcp(server, trust_remote_code=True, structured_output=False) as collection:
    tools = {tool.name: tool for tool in collection.tools}
    found(list(tools), tools["add"](**ADDENDS))
