"""A calculator.

python examples/calculator.py
"""

from collections.abc import Callable
from typing import Literal

from trunkline import Server, ToolError

server = Server("calculator", version="1.0")
OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
}


@server.tool(structured=False)
async def calculator(operation: Literal["add", "subtract", "multiply", "divide"], a: float, b: float) -> str:
    """Calculates with two numbers."""
    if operation == "divide" and b == 0:
        raise ToolError("Nothing can be divided by 0.")
    return f"Result: {OPERATIONS[operation](a, b):g}"


if __name__ == "__main__":
    server.run()
