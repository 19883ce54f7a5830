"""The measured workloads, their targets, and the bars of the figures. A new measurement is a new row in ROWS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from bench.driver import INITIALIZE, Question

BASE = "base"  # our own package at an earlier commit, with the benchmark's server of that commit
BASE_UVICORN = "base, uvicorn"  # the same package, with the script of this tree that serves `asgi()` under uvicorn
MAX_REGRESSION = 1.1  # a tenth: the median of 50 pairs of one and the same tree stays within some hundredths
NO_REGRESSION = 1.03  # as expensive, but for noise


@dataclass(frozen=True)
class Target:
    """A server to measure: its script and the environment it runs in."""

    script: str
    environment: str
    tools: int | None = None  # instead of the row's number
    line: str | None = None  # of a client: its transport
    stateless: str | None = None  # over HTTP, without sessions: the revision that each request names
    verified: bool = False  # over HTTP: the server requires a token, and the driver has one
    keeps: Literal["file", "valkey"] | None = None  # over HTTP: the store for durable data
    guard: Literal["rate", "breaker"] | None = None  # of each tool
    workers: int = 0  # over HTTP: so many processes on one port; 0: the one, without a supervisor
    carried: bool = False  # over HTTP: the owner of each session is another worker than the one of its connection
    exclusive: bool = False  # over HTTP: it listens without SO_REUSEADDR, so its port cannot be held for it


@dataclass(frozen=True)
class Bar:
    """A required ratio of two figures of one row, or a limit of one figure; a bar that is a gate fails the run."""

    kind: Literal["cheaper", "at most", "above"]  # times cheaper than the peer, times as expensive, or how much more
    times: float
    peer: str | None  # None: `times` is the figure itself, in the row's unit
    ours: str = "trunkline"
    per: Literal["request", "byte"] = "request"
    gate: bool = True
    paired: bool = False  # compares alternating samples, not the best of each
    by: Literal["best", "median"] = "best"  # the figure of each that is compared

    def ratio(self, ours: float, theirs: float) -> float:
        """The figure that is compared with `times`."""
        if self.kind == "above":
            return ours - theirs
        return theirs / ours if self.kind == "cheaper" else ours / theirs

    def cleared(self, ratio: float) -> bool:
        return ratio >= self.times if self.kind == "cheaper" else ratio <= self.times

    def __str__(self) -> str:
        subject = "" if self.ours == "trunkline" else f"{self.ours}: "
        unit = " per byte" if self.per == "byte" else ""
        if self.peer is None:
            return f"{subject}{self.kind} {self.times:g}"
        if self.kind == "above":
            return f"{subject}at most {self.times:g} µs above {self.peer}"
        wanted = (
            f"{self.times:g} times cheaper{unit} than" if self.kind == "cheaper" else f"at most {self.times:g} times"
        )
        return f"{subject}{wanted} {self.peer}{', by the median' if self.by == 'median' else ''}"


@dataclass(frozen=True)
class Row:
    """One workload: requests to targets, with `window` in flight. `how` names the sampler, see `sampling`."""

    name: str
    question: Question | None  # None: the cost of the server from its spawn to its first response
    targets: tuple[str, ...]
    bars: tuple[Bar, ...] = ()
    window: int = 1
    warm_up: int = 250  # requests, twice, before the measurement
    tools: int = 0  # at least so many; a server has its own few anyway
    how: Literal["stdio", "client", "http", "stores", "subscribers", "sessions", "workers", "throughput", "busiest"] = (
        "stdio"
    )
    unit: str = "µs"  # of CPU time, except for throughput
    regression: float = MAX_REGRESSION  # beside an earlier commit: at most so many times as expensive

    @property
    def asked(self) -> Question:
        """The question, of a row that has one."""
        if self.question is None:
            raise ValueError(f"nothing is asked in the row {self.name!r}")
        return self.question


TARGETS = {
    "trunkline": Target("server.py", "trunkline"),
    "trunkline, few tools": Target("server.py", "trunkline", tools=0),
    "trunkline, no extras": Target("server.py", "trunkline-plain"),
    "trunkline, five lines": Target("five_lines.py", "trunkline"),
    "trunkline, uvicorn": Target("asgi_server.py", "trunkline"),
    "trunkline, gateway": Target("gateway.py", "trunkline"),
    "trunkline, modern, gateway": Target("gateway.py", "trunkline", stateless="2026-07-28"),
    "trunkline, relay": Target("relay.py", "trunkline"),
    "trunkline, modern, relay": Target("relay.py", "trunkline", stateless="2026-07-28"),
    "fastmcp, proxy": Target("peers/fastmcp_proxy.py", "fastmcp"),
    "bare": Target("peers/bare.py", "bare"),
    "turbomcp": Target("peers/turbomcp_server.py", "turbomcp"),
    "mcp": Target("peers/mcp_server.py", "mcp"),
    "mcp low-level": Target("peers/mcp_lowlevel.py", "mcp"),
    "fastmcp": Target("peers/fastmcp_server.py", "fastmcp"),
    "chuk": Target("peers/chuk_server.py", "chuk"),
    "zeromcp": Target("peers/zeromcp_server.py", "zeromcp", exclusive=True),
    "bare uvicorn": Target("peers/bare_http.py", "bare-http"),
    "bare uvicorn, modern": Target("peers/bare_http.py", "bare-http", stateless="2026-07-28"),
    "trunkline, modern": Target("server.py", "trunkline", stateless="2026-07-28"),
    "trunkline, verified": Target("server.py", "trunkline", verified=True),
    "trunkline, modern, verified": Target("server.py", "trunkline", stateless="2026-07-28", verified=True),
    "trunkline, rate limit": Target("server.py", "trunkline", guard="rate"),
    "trunkline, breaker": Target("server.py", "trunkline", guard="breaker"),
    "trunkline, modern, rate limit": Target("server.py", "trunkline", stateless="2026-07-28", guard="rate"),
    "trunkline, modern, breaker": Target("server.py", "trunkline", stateless="2026-07-28", guard="breaker"),
    "trunkline, SQLite": Target("server.py", "trunkline", keeps="file"),
    "trunkline, modern, SQLite": Target("server.py", "trunkline", stateless="2026-07-28", keeps="file"),
    "trunkline, Valkey": Target("server.py", "trunkline", keeps="valkey"),
    "trunkline, modern, Valkey": Target("server.py", "trunkline", stateless="2026-07-28", keeps="valkey"),
    "trunkline, 1 worker": Target("server.py", "trunkline", workers=1),
    "trunkline, 2 workers": Target("server.py", "trunkline", workers=2),
    "bare, 1 process": Target("peers/bare_workers.py", "bare", workers=1),
    "bare, 2 processes": Target("peers/bare_workers.py", "bare", workers=2),
    "trunkline, 2 workers, carried": Target("server.py", "trunkline", workers=2, carried=True),
    "trunkline, 2 workers, Valkey": Target("server.py", "trunkline", workers=2, keeps="valkey"),
    "trunkline, 2 workers, Valkey, carried": Target("server.py", "trunkline", workers=2, keeps="valkey", carried=True),
    "mcp, modern": Target("peers/mcp_server.py", "mcp", stateless="2026-07-28"),
    "http-mcp": Target("peers/http_mcp_server.py", "http-mcp", stateless="2025-11-25"),  # it knows no newer one
    "typescript": Target("peers/typescript_server.mjs", "node"),
    "trunkline client": Target("clients/trunkline_client.py", "trunkline", line="stdio"),
    "trunkline client, TCP": Target("clients/trunkline_client.py", "trunkline", line="tcp"),
    "trunkline client, HTTP": Target("clients/trunkline_client.py", "trunkline", line="http"),
    "trunkline client, in memory": Target("clients/trunkline_client.py", "trunkline", line="memory"),
    "mcp client": Target("clients/mcp_client.py", "mcp", line="stdio"),
    "mcp client, HTTP": Target("clients/mcp_client.py", "mcp", line="http"),
    "mcp client, in memory": Target("clients/mcp_client.py", "mcp", line="memory"),
    "typescript client": Target("clients/typescript_client.mjs", "node", line="stdio"),
}
BASES = {"trunkline, uvicorn": BASE_UVICORN, "trunkline": BASE}
SPEED_UP = (
    Bar("cheaper", 1.85, "trunkline, 1 worker", ours="trunkline, 2 workers"),
    Bar(
        "cheaper", 1.85, "bare, 1 process", ours="bare, 2 processes", gate=False
    ),  # the control: what the machine allows
)
CLIENT_BARS = (
    Bar("cheaper", 5, "mcp client", ours="trunkline client"),
    Bar("at most", 1, "typescript client", ours="trunkline client"),
    Bar("at most", 1, "typescript client", ours="trunkline client", by="median"),
)
HTTP_CLIENT_BARS = (Bar("cheaper", 6, "mcp client, HTTP", ours="trunkline client, HTTP"),)

GUARDED = ("trunkline", "trunkline, rate limit", "trunkline, breaker")
MODERN_GUARDED = ("trunkline, modern", "trunkline, modern, rate limit", "trunkline, modern, breaker")


def _guard_bars(off: str, *guarded: str) -> tuple[Bar, ...]:
    """The most that a rate limit and a circuit breaker may add to a call: 2 µs each."""
    return tuple(Bar("above", 2, off, ours=ours, paired=True) for ours in guarded)


KEPT = ("trunkline", "trunkline, SQLite", "trunkline, Valkey")
MODERN_KEPT = ("trunkline, modern", "trunkline, modern, SQLite", "trunkline, modern, Valkey")

HTTP_TARGETS = ("trunkline", "bare uvicorn", "chuk", "zeromcp", "mcp")
HTTP_BARS = (Bar("at most", 0.75, "bare uvicorn"), Bar("cheaper", 4, "zeromcp"), Bar("cheaper", 4, "chuk"))


def _call(tool: str, filler: str = "", meta: Callable[[int], Mapping[str, Any]] | None = None) -> Question:
    """A call of an echo tool; every text differs, so that a mix-up of responses is noticed."""

    def params(n: int) -> Mapping[str, Any]:
        asked = {"name": tool, "arguments": {"text": f"hello {n}{filler}"}}
        return asked if meta is None else asked | {"_meta": meta(n)}

    def answered_by(n: int, result: Any) -> bool:
        text = f"hello {n}{filler}"
        structured = result.get("structuredContent", {"result": text})  # turbomcp, chuk and the low-level API give none
        if "resultType" in result:  # since 2026-07-28 any value may stand there
            structured = {"result": structured} if isinstance(structured, str) else structured
        said = (text, f'{{"result":"{text}"}}')  # http-mcp returns the same to people and programs
        return result["content"][0]["text"] in said and structured == {"result": text} and not result.get("isError")

    return Question("tools/call", params, answered_by)


ECHO = _call("echo")
ECHO_SYNC = _call("echo_sync")
ECHO_1MB = _call("echo", " 0123456789abcde" * (1 << 16))
READ_STATIC = Question(
    "resources/read",
    lambda _: {"uri": "bench://static"},
    lambda _, result: result["contents"][0]["text"] == "static body",
)
READ_ITEM = Question(
    "resources/read",
    lambda n: {"uri": f"bench://item/{n}"},
    lambda n, result: result["contents"][0]["text"] == f"item {n}",
)
GREET = Question(
    "prompts/get",
    lambda n: {"name": "greet", "arguments": {"who": f"caller {n}"}},
    lambda n, result: result["messages"][0]["content"]["text"] == f"Hello, caller {n}!",
)
TOUCH = Question(
    "tools/call",
    lambda _: {"name": "touch", "arguments": {"text": "bench://static"}},
    lambda _, result: result["content"][0]["text"] == "ok" and not result.get("isError"),
)
LEVELS = ("debug", "info", "notice", "warning")
SET_LEVEL = Question(
    "logging/setLevel", lambda n: {"level": LEVELS[n % len(LEVELS)]}, lambda _, result: not result.get("isError")
)
SUBSCRIBE = Question(
    "resources/subscribe", lambda n: {"uri": f"bench://item/{n % 8}"}, lambda _, result: not result.get("isError")
)
STREAMED = replace(_call("steps", meta=lambda n: {"progressToken": n}), tells="notifications/progress")
KEYED = _call("echo", meta=lambda n: {"trunkline/idempotency-key": f"key {n}"})
AS_TASK = Question(
    "tools/call",
    lambda n: {"name": "echo_task", "arguments": {"text": f"hello {n}"}, "task": {}},
    lambda _, result: result["task"]["status"] == "working",
)
AS_MODERN_TASK = Question(
    "tools/call",
    lambda n: {"name": "echo_task", "arguments": {"text": f"hello {n}"}},
    lambda _, result: result["resultType"] == "task" and result["status"] == "working",
    capabilities={"extensions": {"io.modelcontextprotocol/tasks": {}}},
)
LIST_1000 = Question(
    "tools/list",
    lambda _: {},
    lambda _, result: len({tool["name"] for tool in result["tools"]}) == 1000 and not result.get("nextCursor"),
)

ROWS = (
    Row(
        "async echo, one at a time",
        ECHO,
        ("trunkline", "bare", "turbomcp", "chuk", "zeromcp", "mcp", "mcp low-level", "fastmcp"),
        (Bar("cheaper", 33, "mcp"), Bar("at most", 1, "turbomcp")),
    ),
    Row(
        "async echo, 64 in flight",
        ECHO,
        ("trunkline", "bare", "turbomcp", "chuk", "zeromcp", "mcp", "mcp low-level", "fastmcp"),
        (
            Bar("cheaper", 100, "mcp"),
            Bar("cheaper", 6, "zeromcp"),
            Bar("cheaper", 6, "chuk"),
            Bar("cheaper", 1.4, "turbomcp"),
        ),
        window=64,
    ),
    Row(
        "def echo, one at a time",
        ECHO_SYNC,
        ("trunkline", "turbomcp", "chuk", "zeromcp", "mcp", "fastmcp"),
        (Bar("cheaper", 10, "mcp"),),
    ),
    Row(
        "def echo, 64 in flight",
        ECHO_SYNC,
        ("trunkline", "turbomcp", "chuk", "zeromcp", "mcp", "fastmcp"),
        (Bar("cheaper", 40, "mcp"),),
        window=64,
    ),
    Row("resource read", READ_STATIC, ("trunkline", "chuk", "mcp", "fastmcp"), (Bar("cheaper", 32, "mcp"),)),
    Row("template read", READ_ITEM, ("trunkline", "mcp", "fastmcp"), (Bar("cheaper", 32, "mcp"),)),
    Row("prompt", GREET, ("trunkline", "chuk", "zeromcp", "mcp", "fastmcp"), (Bar("cheaper", 32, "mcp"),)),
    Row(
        "list of 1,000 tools",
        LIST_1000,
        ("trunkline", "turbomcp", "zeromcp", "mcp", "fastmcp"),
        (Bar("cheaper", 10, "turbomcp", per="byte"), Bar("cheaper", 30, "mcp")),
        warm_up=10,
        tools=1000,
    ),
    Row(
        "async echo among 1,000 tools, 64 in flight",
        ECHO,
        ("trunkline", "trunkline, few tools"),
        (Bar("at most", 1.1, "trunkline, few tools"),),  # the same cost, but for noise
        window=64,
        tools=1000,
    ),
    Row(
        "1 MB echo",
        ECHO_1MB,
        ("trunkline", "trunkline, no extras", "chuk", "zeromcp", "mcp", "mcp low-level", "fastmcp"),
        (Bar("cheaper", 2, "mcp low-level"), Bar("cheaper", 1.5, "mcp low-level", ours="trunkline, no extras")),
        warm_up=10,
    ),
    Row(
        "spawn to first answer",
        None,
        ("trunkline", "bare", "turbomcp", "chuk", "zeromcp", "mcp", "fastmcp"),
        (Bar("cheaper", 5, "mcp"),),
    ),
    Row(
        "spawn of five lines to first answer",
        None,
        ("trunkline, five lines", "bare"),
        (Bar("at most", 1.5, "bare", ours="trunkline, five lines", paired=True),),
    ),
    Row(
        "client, one at a time",
        ECHO,
        ("trunkline client", "trunkline client, TCP", "mcp client", "typescript client"),
        CLIENT_BARS,
        warm_up=2000,  # node needs that
        how="client",
    ),
    Row(
        "client, 32 in flight",
        ECHO,
        ("trunkline client", "trunkline client, TCP", "mcp client", "typescript client"),
        CLIENT_BARS,
        window=32,
        warm_up=3200,
        how="client",
    ),
    Row(
        "client over HTTP, one at a time",
        ECHO,
        ("trunkline client, HTTP", "mcp client, HTTP"),
        HTTP_CLIENT_BARS,
        how="client",
    ),
    Row(
        "client over HTTP, 32 in flight",
        ECHO,
        ("trunkline client, HTTP", "mcp client, HTTP"),
        HTTP_CLIENT_BARS,
        window=32,
        warm_up=640,
        how="client",
    ),
    Row(
        "client and server in one process",
        ECHO,
        ("trunkline client, in memory", "mcp client, in memory"),
        (Bar("cheaper", 10, "mcp client, in memory", ours="trunkline client, in memory"),),
        how="client",
    ),
    Row(
        "http echo, one at a time",
        ECHO,
        HTTP_TARGETS,
        (Bar("at most", 0.75, "bare uvicorn"), Bar("cheaper", 2, "zeromcp")),
        how="http",
    ),
    Row("http echo, 32 connections", ECHO, HTTP_TARGETS, HTTP_BARS, window=32, how="http"),
    Row("http echo, 128 connections", ECHO, HTTP_TARGETS, HTTP_BARS, window=128, how="http"),
    Row(
        "http modern echo, 32 connections",
        ECHO,
        ("trunkline, modern", "trunkline", "bare uvicorn, modern", "http-mcp", "mcp, modern"),
        (
            Bar("at most", 1, "bare uvicorn, modern", ours="trunkline, modern"),
            Bar("at most", 1.2, "trunkline", ours="trunkline, modern"),
            Bar("cheaper", 12, "mcp, modern", ours="trunkline, modern"),
            Bar("cheaper", 5, "http-mcp", ours="trunkline, modern"),
        ),
        window=32,
        how="http",
    ),
    Row(
        "http echo under uvicorn, 32 connections",
        ECHO,
        ("trunkline, uvicorn", "trunkline", "bare uvicorn"),
        window=32,
        how="http",
        regression=NO_REGRESSION,
    ),
    Row(
        "http verified echo, 32 connections",
        ECHO,
        ("trunkline", "trunkline, verified", "trunkline, modern", "trunkline, modern, verified"),
        (
            Bar("above", 40, "trunkline", ours="trunkline, verified"),
            Bar("above", 40, "trunkline, modern", ours="trunkline, modern, verified"),
        ),
        window=32,
        how="http",
    ),
    Row("async echo with a rate limit or a breaker, one at a time", ECHO, GUARDED, _guard_bars(*GUARDED)),
    Row("async echo with a rate limit or a breaker, 64 in flight", ECHO, GUARDED, _guard_bars(*GUARDED), window=64),
    Row(
        "http echo with a rate limit or a breaker, 32 connections",
        ECHO,
        GUARDED,
        _guard_bars(*GUARDED),
        window=32,
        how="http",
    ),
    Row(
        "http modern echo with a rate limit or a breaker, 32 connections",
        ECHO,
        MODERN_GUARDED,
        _guard_bars(*MODERN_GUARDED),
        window=32,
        how="http",
    ),
    Row(
        "http echo through a gateway, 32 connections",
        ECHO,
        (
            *("trunkline, gateway", "trunkline, modern, gateway", "trunkline, relay", "trunkline, modern, relay"),
            *("trunkline", "fastmcp, proxy"),
        ),
        (
            Bar("cheaper", 10, "fastmcp, proxy", ours="trunkline, gateway"),
            Bar("at most", 1.25, "trunkline, relay", ours="trunkline, gateway"),
            Bar("at most", 1.25, "trunkline, modern, relay", ours="trunkline, modern, gateway"),
        ),
        window=32,
        how="http",
    ),
    Row(
        "http 1 MB echo",
        ECHO_1MB,
        ("trunkline", "bare uvicorn", "chuk", "zeromcp", "mcp"),
        (Bar("cheaper", 2, "chuk"),),
        warm_up=10,
        how="http",
    ),
    Row(
        "http resource-updated to 500, each",
        TOUCH,
        ("trunkline", "typescript"),
        (Bar("at most", 10, None), Bar("cheaper", 2, "typescript")),
        window=500,
        warm_up=40,  # node needs that
        how="subscribers",
    ),
    Row(
        "http memory of an idle session among 5,000",
        None,
        ("trunkline", "chuk", "zeromcp"),
        (Bar("at most", 2, None),),
        window=5000,
        warm_up=250,
        how="sessions",
        unit="KB",
    ),
)


def _store_row(what: str, question: Question, bars: tuple[Bar, Bar], *, modern: bool = False) -> Row:
    """The cost that a store adds to a call, 32 in flight: one in a file, and one on Valkey."""
    memory, *others = MODERN_KEPT if modern else KEPT
    told = tuple(replace(bar, peer=memory, ours=other) for bar, other in zip(bars, others, strict=True))
    return Row(f"stores: {what}, 32 in flight", question, (memory, *others), told, window=32, how="stores")


def _above(file: float, valkey: float) -> tuple[Bar, Bar]:
    return Bar("above", file, None), Bar("above", valkey, None)


_NO_CHANGE = (Bar("at most", 1.05, None), Bar("at most", 1.05, None))
ROWS += (
    _store_row("a call that changes nothing", ECHO, _NO_CHANGE),
    _store_row("a modern call that changes nothing", ECHO, _NO_CHANGE, modern=True),
    _store_row("a new session", INITIALIZE, _above(90, 110)),
    _store_row("logging/setLevel", SET_LEVEL, _above(40, 70)),
    _store_row("resources/subscribe", SUBSCRIBE, _above(40, 70)),
    _store_row("a call answered as a stream", STREAMED, _above(40, 80)),
    _store_row("a call with a key", KEYED, _above(60, 50)),
    _store_row("a task of 2025-11-25, made and done", AS_TASK, _above(120, 150)),
    _store_row("a task of the extension, made and done", AS_MODERN_TASK, _above(120, 150), modern=True),
    Row(
        "workers: time for a call of 1 to 2 ms, 16 at once",
        _call("burn"),
        ("trunkline, 1 worker", "trunkline, 2 workers", "bare, 1 process", "bare, 2 processes"),
        SPEED_UP,
        window=16,
        warm_up=64,
        how="throughput",
    ),
    Row(
        "workers: CPU of the busiest process for a call of 1 to 2 ms, 16 at once",
        _call("burn"),
        ("trunkline, 1 worker", "trunkline, 2 workers", "bare, 1 process", "bare, 2 processes"),
        SPEED_UP,
        window=16,
        warm_up=64,
        how="busiest",
    ),
    Row(
        "workers: a call, local or carried, 32 at once",
        ECHO,
        (
            "trunkline, 1 worker",
            "trunkline, 2 workers",
            "trunkline, 2 workers, carried",
            "trunkline, 2 workers, Valkey",
            "trunkline, 2 workers, Valkey, carried",
        ),
        window=32,
        how="workers",
    ),
)


def against_base(row: Row) -> Row:
    """The same row, measured only on this tree and on an earlier commit; it may not be much more expensive."""
    ours, base = base_of(row) or ("trunkline", BASE)
    return replace(row, targets=(ours, base), bars=(Bar("at most", row.regression, base, ours=ours, paired=True),))


def base_of(row: Row) -> tuple[str, str] | None:
    """Our target of a row and the one of an earlier commit, where there is one: no client, no option, no store has."""
    return next(((ours, base) for ours, base in BASES.items() if ours in row.targets), None)
