"""Observer that logs one line for each request, as an HTTP server does."""

import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import blake2s
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import asdict

from trunkline.config import LogFormat, LogPrincipals
from trunkline.errors import MisuseError
from trunkline.errors.text import printable
from trunkline.facts import CallEnded, Fact, HttpRefused
from trunkline.wire.codec import to_json

__all__ = ["ACCESS_LOGGER", "AccessLog"]

ACCESS_LOGGER: Final = "trunkline.access"
_PROBES: Final = frozenset({"ping"})
_MAX_TEXT: Final = 200  # characters of a value that a client has chosen
_CACHED: Final = 1024  # names, and callers
_PLAIN: Final = re.compile(r"[^\s\"=\\]+")  # needs no quotes
_USERINFO: Final = re.compile(r"^([\w+.-]+://)[^/@]*@")
_TRACE_ID: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?", re.DOTALL)


class _Line(Struct, omit_defaults=True, gc=False):
    """What the log in JSON says about a request, in this order. Texts that the client has chosen are escaped."""

    method: str
    outcome: str
    ms: float  # in all
    wait_ms: float  # before the handler started
    transport: str
    connection: int
    name: str | None = None
    kind: str | None = None
    code: int | None = None
    incident: str | None = None
    size_in: int | None = field(default=None, name="in")
    size_out: int | None = field(default=None, name="out")
    revision: str | None = None
    session: str | None = None
    principal: str | None = None
    trace: str | None = None


class _RefusedLine(Struct, omit_defaults=True, gc=False):
    """What the log says about an HTTP request that was refused before its message was handled."""

    method: str  # of HTTP
    path: str
    status: int
    outcome: str
    kind: str | None
    transport: str
    client: str | None = None


class AccessLog:
    """Logs each request of a peer to the logger `trunkline.access`, at level INFO, and HTTP requests that were refused.

    A line names the request and how it ended, and nothing that it contains: no arguments and no results, URIs without
    their queries, sessions by a digest. It is formatted on the thread of the observer, so that a call does not wait for
    it.
    """

    wants = (CallEnded, HttpRefused)

    def __init__(
        self,
        *,
        format: LogFormat = "text",  # noqa: A002 - as in `logging`
        principals: LogPrincipals = "plain",
        probes: bool = False,
    ) -> None:
        """`format` is "text", with `name=value` pairs, or "json", with one object per line. `principals` shows them by
        their subject ("plain"), by a digest of it ("hashed"), or not at all ("off"), and addresses of HTTP clients
        likewise. `probes` includes pings."""
        if format not in _FORMATS or principals not in _PRINCIPALS:
            raise MisuseError(
                f"AccessLog: format is one of {', '.join(_FORMATS)} and principals one of {', '.join(_PRINCIPALS)}, "
                f"not {format!r} and {principals!r}"
            )
        self._format, self._format_refused = _FORMATS[format]
        self._show_principal = _PRINCIPALS[principals]
        self._left_out = frozenset[str]() if probes else _PROBES
        self._log = logging.getLogger(ACCESS_LOGGER)

    def on(self, fact: Fact) -> None:
        """Log a request that has ended."""
        if not self._log.isEnabledFor(logging.INFO):
            return
        if isinstance(fact, CallEnded):
            if fact.method not in self._left_out:
                principal = None if fact.principal is None else self._show_principal(fact.principal)
                self._write(self._format(fact, principal))
        elif isinstance(fact, HttpRefused):
            client = self._show_principal(fact.client) if fact.client else None
            line = _RefusedLine(
                _escape(fact.method), _escape(fact.path), fact.status, "refused", fact.kind, "http", client
            )
            self._write(self._format_refused(line))

    def _write(self, line: str) -> None:
        """Log a line. `Logger.info` would look for its caller in the stack, which is always this function."""
        log = self._log
        log.handle(log.makeRecord(ACCESS_LOGGER, logging.INFO, __file__, 0, line, (), None, "on"))


def _find_trace(fact: CallEnded) -> str | None:
    """Return the id of the trace of a request: that of its span, or the one that the client has stated."""
    span: Any = fact.span
    if span is not None and (ident := span.trace_id):
        return ident
    found = None if fact.traceparent is None else _TRACE_ID.fullmatch(fact.traceparent)
    return None if found is None else found[1]


@lru_cache(_CACHED)
def _escape(text: str) -> str:
    return printable(text, max_length=_MAX_TEXT)


@lru_cache(_CACHED)
def _redact(target: str) -> str:
    """Return a name or URI without the parts of a URI that may hold secrets."""
    path, mark, _ = target.partition("?")
    return _escape(_USERINFO.sub(r"\1", path) + (mark and "?…"))


@lru_cache(_CACHED)
def _digest(text: str) -> str:
    return blake2s(text.encode(errors="replace"), digest_size=6).hexdigest()


def _format_text(fact: CallEnded, principal: str | None) -> str:
    incident, size_in, size_out, trace = fact.reference, fact.request_size, fact.response_size, _find_trace(fact)
    return (
        f"{_format_outcome(fact.method, fact.target, fact.outcome, fact.kind, fact.code)}"
        f"{'' if incident is None else f' incident={incident}'}"
        f" ms={_format_milliseconds(fact.seconds)} wait_ms={_format_milliseconds(fact.wait_seconds)}"
        f"{'' if size_in is None else f' in={size_in}'}{'' if size_out is None else f' out={size_out}'}"
        f"{_format_caller(fact.transport, fact.revision, fact.connection, fact.session, principal)}"
        f"{'' if trace is None else f' trace={trace}'}"
    )


def _format_milliseconds(seconds: float) -> str:
    """Return the same as `str(round(seconds * 1000, 3))`, at half the cost."""
    text = f"{seconds * 1000:.3f}".rstrip("0")
    return text + "0" if text[-1] == "." else text


@lru_cache(_CACHED)
def _format_outcome(method: str, target: str | None, outcome: str, kind: str | None, code: int | None) -> str:
    name = None if target is None else _redact(target)
    members = {"method": _escape(method) or "-", "name": name, "outcome": outcome, "kind": kind, "code": code}
    return _format_members(members)


@lru_cache(_CACHED)
def _format_caller(
    transport: str, revision: str | None, connection: int, session: str | None, principal: str | None
) -> str:
    members = {
        "transport": transport,
        "revision": revision,
        "connection": connection,
        "session": session,
        "principal": principal,
    }
    return " " + _format_members(members)


def _format_members(members: Mapping[str, object]) -> str:
    return " ".join(f"{name}={_quote(str(value))}" for name, value in members.items() if value is not None)


@lru_cache(_CACHED)
def _quote(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _format_json(fact: CallEnded, principal: str | None) -> str:
    target = fact.target
    line = _Line(  # 16 keyword arguments would cost several times as much: CPython passes more than 15 as a dict
        _escape(fact.method) or "-",
        fact.outcome,
        round(fact.seconds * 1e6) / 1000,  # at half the cost of rounding to three digits
        round(fact.wait_seconds * 1e6) / 1000,
        fact.transport,
        fact.connection,
        None if target is None else _redact(target),
        fact.kind,
        fact.code,
        fact.reference,
        fact.request_size,
        fact.response_size,
        fact.revision,
        fact.session,
        principal,
        _find_trace(fact),
    )
    return _encode_line(line)


def _encode_line(line: _Line | _RefusedLine) -> str:
    return f"{_format_json_start(int(time.time()))}{to_json(line)[1:].decode()}"


@lru_cache(1)
def _format_json_start(seconds: int) -> str:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    return f'{{"time":"{now}","level":"info","logger":"{ACCESS_LOGGER}",'


def _format_refused(line: _RefusedLine) -> str:
    return _format_members(asdict(line))


_FORMATS: Final[Mapping[str, tuple[Callable[[CallEnded, str | None], str], Callable[[_RefusedLine], str]]]] = {
    "text": (_format_text, _format_refused),
    "json": (_format_json, _encode_line),
}
_PRINCIPALS: Final[Mapping[str, Callable[[str], str | None]]] = {
    "plain": _escape,
    "hashed": _digest,
    "off": lambda _: None,
}
