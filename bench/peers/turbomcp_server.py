"""The benchmark's server on turbomcp: tools only, plain functions only, run in the reading loop without validation."""

import os

from turbomcp import TurboMCP, serve_stdio

registry = TurboMCP("bench")


@registry.tool()
def echo(text: str) -> str:
    """Answer with the text."""
    return text


@registry.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def extra(text: str, times: int = 1) -> str:
    """Repeat the text, as one of very many tools."""
    return text * times


registry.register(echo, name="echo_sync")
for number in range(3, int(os.environ.get("BENCH_TOOLS", "0"))):
    registry.register(extra, name=f"extra_{number}")

serve_stdio(registry)
