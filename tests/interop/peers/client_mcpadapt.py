"""mcpadapt, which gives the tools of a server to libraries for agents; here without one."""

import os

from client_script import ADDENDS, ARGUMENTS, COMMAND, PATIENCE, URL, found
from mcp import StdioServerParameters
from mcpadapt.core import MCPAdapt, ToolAdapter


class Plain(ToolAdapter):
    """Convert a tool to a name and a function."""

    def adapt(self, func, mcp_tool):
        return mcp_tool.name, func

    def async_adapt(self, afunc, mcp_tool):
        return mcp_tool.name, afunc


server = (
    {"url": URL, "transport": "streamable-http"}
    if URL
    else StdioServerParameters(command=COMMAND, args=ARGUMENTS, env=dict(os.environ))
)
with MCPAdapt(server, Plain(), connect_timeout=int(PATIENCE)) as tools:
    named = dict(tools)
    found(list(named), named["add"](ADDENDS).content[0].text)
