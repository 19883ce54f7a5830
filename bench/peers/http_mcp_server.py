"""The benchmark's server on http-mcp, which has no sessions: its tools have models as arguments and results."""

import sys

import uvicorn
from http_mcp.server import MCPServer
from http_mcp.types import Arguments, Tool
from pydantic import BaseModel
from starlette.applications import Starlette


class Text(BaseModel):
    """What is to be answered."""

    text: str


class Result(BaseModel):
    """The answer."""

    result: str


async def echo(args: Arguments[Text]) -> Result:
    """Answer with the text."""
    return Result(result=args.inputs.text)


server = MCPServer(name="bench", version="1.0.0", tools=(Tool(func=echo, inputs=Text, output=Result),))
app = Starlette()
app.mount("/", server.app)  # at another path it would redirect all requests

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False)
