"""The benchmark's server on zeromcp: plain functions only, as it runs an event loop of its own for each async call."""

import sys
import threading
from types import FunctionType

from handlers import Plain, echo_sync, extra_names
from zeromcp import McpServer

server = McpServer("bench")
for tool in (Plain.echo, echo_sync, Plain.add):
    server.tool(tool)
for name in extra_names(own=3):  # it calls a tool after its function
    another = FunctionType(Plain.extra.__code__, globals(), name, Plain.extra.__defaults__)
    another.__annotations__, another.__doc__ = Plain.extra.__annotations__, Plain.extra.__doc__
    server.tool(another)
server.prompt(Plain.greet)

if sys.argv[1] == "stdio":
    server.stdio()
else:
    server.serve("127.0.0.1", int(sys.argv[2]))
    threading.Event().wait()
