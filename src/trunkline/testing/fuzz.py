"""Fuzzing of tools: arguments that follow from their schemas, valid ones and near misses."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from trunkline.client.blocking import BlockingClient
from trunkline.errors import InvalidArguments, InvalidParams, MisuseError, PeerError
from trunkline.protocol.meta import TOOL_ERROR
from trunkline.protocol.types import Tool
from trunkline.server.server import Server
from trunkline.testing.in_process import connect
from trunkline.wire import codec

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["fuzz_tools"]


def fuzz_tools(
    server: Server,
    *,
    tools: Iterable[str] | None = None,
    arguments: "Mapping[str, Mapping[str, SearchStrategy[Any]]] | None" = None,
    allow: tuple[type[BaseException], ...] = (),
    examples: int = 50,
    **options: Any,
) -> None:
    """Call every tool of a server with arguments that Hypothesis makes from its schema, and with near misses.

    Raises `AssertionError`, with the smallest arguments that show it, if a handler raises an unexpected exception, if
    its result violates its schema, or if it refuses arguments that its schema allows. A `ToolError` is no failure, nor
    are the exceptions in `allow`. `tools` names the tools to call; `arguments` has strategies for single arguments,
    such as `{"price": {"item": st.sampled_from(items)}}`; `examples` is the number of calls of each kind; `options` are
    those of `connect`. The calls run on another thread, so a test may be plain or async. Needs the package hypothesis.
    """
    try:
        from trunkline.testing import schema_strategies
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise MisuseError("fuzz_tools needs the package hypothesis: pip install hypothesis") from None
    given = arguments or {}
    with BlockingClient(connect(server, **options)) as client:
        listed = {tool.name: tool for tool in client.list_tools().tools}
        names = list(listed if tools is None else tools)
        if unknown := [name for name in (*names, *given) if name not in listed]:
            raise MisuseError(f"the server has no tool {unknown[0]!r}; it has {', '.join(map(repr, listed))}")
        for name in names:
            tool, members = listed[name], given.get(name, {})
            schema = tool.input_schema
            call = _Fuzzer(client, tool, allow)
            call.run(schema_strategies.valid_values(schema, members), examples, valid=True)
            call.run(schema_strategies.invalid_values(schema, members), examples, valid=False)


class _Fuzzer:
    """Calls one tool."""

    def __init__(self, client: BlockingClient, tool: Tool, allow: tuple[type[BaseException], ...]) -> None:
        self._client = client
        self._tool = tool
        self._allow = allow

    def run(self, strategy: "SearchStrategy[Any]", examples: int, *, valid: bool) -> None:
        """Call the tool with values of a strategy."""
        from hypothesis import HealthCheck, given, settings
        from hypothesis.errors import Unsatisfiable

        unchecked = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)

        @settings(max_examples=examples, deadline=None, suppress_health_check=unchecked)
        @given(strategy)
        def check(arguments: dict[str, Any]) -> None:
            self._call(arguments, valid=valid)

        try:
            check()
        except Unsatisfiable:
            if valid:  # some schemas refuse nothing, so there is no near miss
                why = f"no arguments for tool {self._tool.name!r} follow from its schema"
                raise MisuseError(f"{why}; pass strategies for them as arguments=") from None

    def _call(self, arguments: dict[str, Any], *, valid: bool) -> None:
        try:
            result = self._client.call_tool(self._tool.name, arguments, raise_on_error=False)
        except self._allow:
            return
        except PeerError as error:
            if valid or error.code != InvalidParams.code:
                raise AssertionError(self._explain(f"fails with {error}", arguments)) from error
            return
        except Exception as error:
            raise AssertionError(self._explain(f"raises {error!r}", arguments)) from error
        details = cast("dict[str, Any]", (result.meta or {}).get(TOOL_ERROR) or {})
        if valid and details.get("kind") == InvalidArguments.kind:
            raise AssertionError(self._explain(f"refuses arguments that its schema allows: {result.text}", arguments))

    def _explain(self, what: str, arguments: Any) -> str:
        return f"tool {self._tool.name!r} {what}\n  arguments: {codec.to_json(arguments).decode()}"
