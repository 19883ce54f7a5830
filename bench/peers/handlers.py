"""The catalog of all servers of the benchmark: plain functions of ours, for each library to register in its own way."""

import os

EXTRA_TOOLS = int(os.environ.get("BENCH_TOOLS", "0"))  # how many tools there shall be in all, at least


async def echo(text: str) -> str:
    """Answer with the text."""
    return text


def echo_sync(text: str) -> str:
    """Answer with the text, from a plain function."""
    return text


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def static() -> str:
    """A fixed text."""
    return "static body"


async def item(id: str) -> str:  # noqa: A002  the template's own name for it
    """A text made for its address."""
    return f"item {id}"


async def greet(who: str) -> str:
    """Greet somebody."""
    return f"Hello, {who}!"


async def extra(text: str, times: int = 1) -> str:
    """Repeat the text, as one of very many tools."""
    return text * times


def extra_names(own: int) -> list[str]:
    """The names of the tools beyond a server's own ones."""
    return [f"extra_{number}" for number in range(own, EXTRA_TOOLS)]


class Plain:
    """The same as plain functions, for libraries that accept no others."""

    @staticmethod
    def echo(text: str) -> str:
        """Answer with the text."""
        return text

    @staticmethod
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @staticmethod
    def greet(who: str) -> str:
        """Greet somebody."""
        return f"Hello, {who}!"

    @staticmethod
    def extra(text: str, times: int = 1) -> str:
        """Repeat the text, as one of very many tools."""
        return text * times
