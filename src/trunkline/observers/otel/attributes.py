"""Names and attributes of spans and metrics, by the semantic conventions for the Model Context Protocol.

The conventions are those of OpenTelemetry for generative AI. This module has the mapping from facts, and does not need
the library.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from trunkline.facts import CallEnded, Closed, RequestEnded, TaskRunEnded

__all__ = [
    "Attributes",
    "MetricName",
    "describe_end",
    "describe_run",
    "describe_start",
    "describe_tool",
    "error_type",
    "metric_attributes",
    "run_name",
    "session_attributes",
    "span_name",
]

Attributes = dict[str, str | int]
EndedFact = CallEnded | RequestEnded

_OTHER: Final = "_OTHER"
_SUCCEEDED: Final = frozenset({"ok", "input_required", "task", "released"})  # outcomes that are no errors
_ENDLESS: Final = "subscriptions/listen"  # which ends with the connection
_TOOL_METHODS: Final = frozenset({"tools/call", "tasks/create"})
_PROMPT_METHODS: Final = frozenset({"prompts/get"})
_NAMED_METHODS: Final = _TOOL_METHODS | _PROMPT_METHODS
_URI_METHODS: Final = frozenset({"resources/read", "resources/subscribe", "resources/unsubscribe"})
_USERINFO: Final = re.compile(r"^([\w+.-]+://)[^/@]*@")
_ADDRESS: Final = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[\w.-]+)):(?P<port>\d{1,5})")
_CACHED: Final = 1024  # connections
_MAX_NAMES: Final = 1000  # names of methods, tools and prompts in the attributes of metrics

_TRANSPORTS: Final[Mapping[str, Mapping[str, str]]] = {
    "stdio": {"network.transport": "pipe"},
    "tcp": {"network.transport": "tcp"},
    "unix": {"network.transport": "unix"},
    "http": {"network.transport": "tcp", "network.protocol.name": "http"},
    "sse": {"network.transport": "tcp", "network.protocol.name": "http"},
    "websocket": {"network.transport": "tcp", "network.protocol.name": "websocket"},
    "memory": {"network.transport": "inproc"},
}


def span_name(method: str, target: str | None) -> str:
    """Return the name of the span of a request. URIs are not part of it: there may be too many of them."""
    return f"{method} {target}" if target is not None and method in _NAMED_METHODS else method or _OTHER


def run_name(tool: str) -> str:
    """Return the name of the span of one run of a task."""
    return f"execute_tool {tool}"


def describe_start(method: str, target: str | None) -> Attributes:
    """Return the attributes of a request that are known when it starts, for samplers."""
    return {"mcp.method.name": method or _OTHER, **_describe_target(method, target)}


def _describe_target(method: str, target: str | None) -> Attributes:
    if target is None:
        return {}
    if method in _TOOL_METHODS:
        return describe_tool(target)
    if method in _PROMPT_METHODS:
        return {"gen_ai.prompt.name": target}
    return {"mcp.resource.uri": _shown_uri(target)} if method in _URI_METHODS else {}


def describe_tool(name: str) -> Attributes:
    """Return the attributes of the execution of a tool."""
    return {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}


def _shown_uri(uri: str) -> str:
    """Return a URI without its query and user info, which may be secret."""
    return _USERINFO.sub(r"\1", uri.partition("?")[0])


def describe_end(fact: EndedFact) -> Attributes:
    """Return the attributes of a request that are known when it ends."""
    found = _describe_connection(fact.transport, fact.revision, fact.session).copy()
    if fact.outcome not in _SUCCEEDED:
        found.update(_describe_error(fact))
    if fact.request is not None:
        found["jsonrpc.request.id"] = str(fact.request)
    if isinstance(fact, RequestEnded):
        found.update(_server_address(fact.peer))
    return found


@lru_cache(_CACHED)
def _describe_connection(transport: str, revision: str | None, session: str | None) -> Attributes:
    found: Attributes = {**_TRANSPORTS.get(transport, {})}
    if revision is not None:
        found["mcp.protocol.version"] = str(revision)
    if session is not None:
        found["mcp.session.id"] = session
    return found


def describe_run(fact: TaskRunEnded) -> Attributes:
    """Return the attributes of one run of a task."""
    return {"trunkline.task.id": fact.task, "trunkline.task.attempt": fact.attempt, **_describe_error(fact)}


def error_type(fact: EndedFact | TaskRunEnded) -> str | None:
    """Return `error.type`: the code of an error, `tool_error` for a failed result, or the outcome; None for success."""
    if fact.outcome in _SUCCEEDED or (isinstance(fact, EndedFact) and fact.method == _ENDLESS and fact.code is None):
        return None
    if fact.code is not None:
        return str(fact.code)
    return "tool_error" if fact.outcome == "failed" else fact.outcome


def _describe_error(fact: EndedFact | TaskRunEnded) -> Attributes:
    kind = error_type(fact)
    if kind is None:
        return {}
    code = {} if fact.code is None else {"rpc.response.status_code": str(fact.code)}
    return {"error.type": kind, **code}


@lru_cache(256)
def _server_address(peer: str) -> Attributes:
    """Return the address of a server that is reached over a network; none for a command."""
    url = _split(peer)
    text = peer if url is None or not url.netloc else url.netloc
    found = _ADDRESS.fullmatch(text)
    if found is not None:
        return {"server.address": found["v6"] or found["host"], "server.port": int(found["port"])}
    if url is not None and url.hostname:
        return {"server.address": url.hostname, "server.port": 443 if url.scheme in {"https", "wss"} else 80}
    return {"server.address": peer} if peer.startswith("/") and " " not in peer else {}


def _split(peer: str) -> SplitResult | None:
    try:
        return urlsplit(peer)
    except ValueError:
        return None


class MetricName(NamedTuple):
    """A method, and the tool or prompt that a request names."""

    method: str
    target: str | None


def metric_attributes(fact: EndedFact, known: set[MetricName]) -> Attributes:
    """Return the attributes of the duration of a request.

    `known` are the names that have been used successfully. A name of a request that fails is left out unless it is
    among them: peers can make up any number of names.
    """
    name = MetricName(fact.method, fact.target if fact.method in _NAMED_METHODS else None)
    exists = isinstance(fact, RequestEnded) or error_type(fact) in {None, "tool_error"}
    if exists and len(known) < _MAX_NAMES:
        known.add(name)
    if name not in known:
        name = MetricName(fact.method if fact.outcome != "refused" else _OTHER, None)
    attributes = {**describe_start(*name), **_TRANSPORTS.get(fact.transport, {}), **_describe_error(fact)}
    if fact.revision is not None:
        attributes["mcp.protocol.version"] = str(fact.revision)
    return {**attributes, **(_server_address(fact.peer) if isinstance(fact, RequestEnded) else {})}


def session_attributes(fact: Closed) -> Attributes:
    """Return the attributes of the duration of a session."""
    attributes: Attributes = {**_TRANSPORTS.get(fact.transport, {})}
    if fact.revision is not None:
        attributes["mcp.protocol.version"] = str(fact.revision)
    if fact.failure is not None:
        attributes["error.type"] = fact.failure
    return attributes
