"""Shared code of the scripts of client libraries: they connect to a server and print what they find.

    python client_LIBRARY.py http://127.0.0.1:1234/mcp
    python client_LIBRARY.py COMMAND ARGUMENT …

The last line that a script prints is an object: `tools` has the names of all tools, `sum` is the result of `add` for
2 and 3, `resource` the text of test://static, and `prompt` that of `greet` for Ada; the last two only where the
library has them.
"""

import json
import sys

COMMAND, *ARGUMENTS = sys.argv[1:]
URL = COMMAND if COMMAND.startswith("http") else None
STATIC = "test://static"
ADDENDS = {"a": 2, "b": 3}
ADA = {"who": "Ada"}
PATIENCE = 60.0  # seconds, for libraries that wait less for an answer than a busy machine may need


def found(tools: list[str], total: str, **more: str) -> None:
    """Print the findings."""
    print(json.dumps({"tools": tools, "sum": total, **more}))
