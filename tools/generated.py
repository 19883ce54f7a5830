"""Generate the parts of the documentation that follow from the code: `make docs`. With --check, only compare.

A generated part is the text between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import argparse
import ast
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import groupby, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import rows as acceptance
from msgspec.structs import FieldInfo, astuple, fields

import trunkline
from trunkline import Client, Context, Server, config, errors, facts, http, sampling, testing
from trunkline.cli.hosts import HOSTS
from trunkline.config import Settings
from trunkline.errors import REFUSALS
from trunkline.errors.refusals import REFUSALS_BY_KIND
from trunkline.metrics.families import FAMILIES
from trunkline.protocol.error_codes import CODES
from trunkline.protocol.error_kinds import KINDS, ErrorKind, ReportedAs
from trunkline.protocol.lifecycle import FOUNDING, LIFECYCLE, Phase
from trunkline.protocol.methods import METHODS, Method, Side, TimeLimit
from trunkline.protocol.profiles import PROFILES, Profile
from trunkline.protocol.revisions import Revision
from trunkline.protocol.task_dialects import DIALECTS
from trunkline.protocol.tasks import TASKS, TERMINAL, TaskState
from trunkline.registry import options as registry_options
from trunkline.sampling import http_provider
from trunkline.server import options as server_options
from trunkline.server.notifications.debounce import LIST_CHANGED_METHODS as CHANGED
from trunkline.server.resilience.breaker_states import TRANSITIONS, BreakerState
from trunkline.server.resilience.breaker_states import Signal as BreakerSignal

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # for the parameters of tests

from tests.interop import test_client as official_servers  # noqa: E402
from tests.interop import test_mcp_client as official_clients  # noqa: E402

PART = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
GROUP = re.compile(r"^    # (?P<title>.+)\n", re.MULTILINE)
COMMENT = re.compile(r"^    (?P<name>\w+): [^#\n]*(?:# (?P<comment>.+))?$", re.MULTILINE)
MIB = 1 << 20
NONE = "-"  # an empty cell


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def sentence(thing: object) -> str:
    """Return the first paragraph of a docstring: the contract."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


# --- reference/api.md ---------------------------------------------------------------------------


def api_names() -> str:
    """Return a table of all public names."""
    return table(
        ["name", "description"], [(f"`{name}`", sentence(getattr(trunkline, name))) for name in trunkline.__all__]
    )


def members(owner: type) -> str:
    """Return a table of the public members of a class and its bases, in the order of the source."""
    found = {
        name: value
        for base in reversed(owner.__mro__)
        for name, value in vars(base).items()
        if base.__module__.startswith("trunkline.") and not name.startswith("_") and _is_documented(value)
    }
    rows = [(f"`{_spelt(name, value)}`", sentence(value)) for name, value in found.items()]
    return table(["member", "description"], rows)


def _is_documented(member: object) -> bool:
    return isinstance(member, property | staticmethod | classmethod) or inspect.isfunction(member)


def _spelt(name: str, member: object) -> str:
    if isinstance(member, property):
        return name
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    parameters = [p for p in inspect.signature(member).parameters.values() if p.name not in {"self", "cls", "function"}]
    shown = [p.name if p.default is p.empty else f"{p.name}=…" for p in parameters if p.kind is not p.VAR_KEYWORD]
    more = "…" if any(p.kind is p.VAR_KEYWORD for p in parameters) or len(shown) > 4 else ""
    return f"{name}({', '.join([*shown[:4], more] if more else shown)})"


ARGUMENTS: dict[type, dict[str, str]] = {
    Server: {
        "name": "The name of the server, which it sends to clients.",
        "version": "The version of the server. The default is the version of Trunkline.",
        "title": "A display name.",
        "description": "A description of the server.",
        "website_url": "The URL of the server's website.",
        "icons": "Icons, each an `Icon` or a mapping of its members.",
        "instructions": "Instructions for the model on how to use the server.",
        "settings": "The [settings](settings.md).",
        "expose_errors": "Sets the setting of the same name: whether peers see the exceptions of handlers.",
        "auth": "A `ResourceServer`, which authenticates HTTP requests by access tokens.",
        "store": "A `SqliteStore`, `RedisStore` or `MemoryStore` (the default). The server opens and closes it.",
        "sampling": "A [provider](../how-to/sampling.md) that answers `ctx.sample` for clients that cannot.",
        "receipts": "A `Receipts`, which writes a [receipt](../how-to/receipts.md) of every call.",
        "tools": "Whether to declare the capability. The default is to declare it if there are tools.",
        "resources": "Whether to declare the capability. The default is to declare it if there are resources.",
        "prompts": "Whether to declare the capability. The default is to declare it if there are prompts.",
        "completions": "Whether to declare the capability. The default is to declare it if there are completers.",
        "logging": "Whether to declare the logging capability.",
        "subscribe": "Whether clients can subscribe to resources.",
        "list_changed": "Whether the server sends `list_changed` notifications.",
        "experimental": "Experimental capabilities to declare.",
        "extensions": "Protocol extensions to declare, each with its settings (`{}` for none).",
        "cache": "Seconds that clients may cache lists, by `tools`, `prompts`, `resources`, `resource_templates` and "
        "`discover`.",
        "observers": "Observers of [facts](#facts). They replace the default, which logs failures.",
        "lifespan": "An async context manager function of the server, entered before the first connection and left at "
        "the end. Handlers find its value at `ctx.lifespan`.",
        "features": "The protocol features of the server. The default is all of them.",
        "validator": "A function that compiles input schemas, to [use another JSON Schema library]"
        "(../how-to/types.md#use-another-json-schema-library).",
        "compat": 'A [compatibility profile](../how-to/erlmcp-profile.md): `"erlmcp"` is for clients that follow the '
        "founding documents.",
        "clock": "The clock. Tests pass a `ManualClock`.",
    },
    Client: {
        "target": "The server: a `Server`, a URL, the path of a program, or a list of a command and its arguments.",
        "auth": "Authentication over HTTP or WebSocket: a token, or a provider such as `trunkline.auth.OAuth()`.",
        "name": "The name of the client, which it sends to servers.",
        "version": "The version of the client. The default is the version of Trunkline.",
        "title": "A display name.",
        "settings": "The [settings](settings.md).",
        "revision": "The newest protocol revision to negotiate.",
        "sampling": "A function or a [provider](../how-to/sampling.md) that answers sampling requests of the server.",
        "sampling_tools": "Whether that function supports tools. The default is what a provider supports.",
        "elicitation": "A function that answers elicitation forms of the server.",
        "open_url": "A function that asks the user to visit a URL.",
        "roots": "The roots that the client exposes to the server.",
        "on_log": "A function that receives log messages of the server.",
        "log_level": "The minimum severity of log messages to request.",
        "on_failed": "A function that is called when the client stops reconnecting.",
        "on_phase": "A function that is called with the phase when the connection is lost, and when there is another.",
        "experimental": "Experimental capabilities to declare.",
        "extensions": "Protocol extensions to declare, each with its settings (`{}` for none).",
        "observers": "Observers of [facts](#facts). They replace the default, which logs failures.",
        "compat": 'A [compatibility profile](../how-to/erlmcp-profile.md): `"erlmcp"` is for servers that follow the '
        "founding documents.",
        "clock": "The clock. Tests pass a `ManualClock`.",
    },
}


SAMPLING_ARGUMENTS = {
    "model": "the name of a model, a `Model`, or a list of these, from which the preferences of a request choose",
    "api_key": "the key, or a function, plain or async, that returns it; an empty text sends none",
    "base_url": "the address of the API; for another server with the same API",
    "timeout": "seconds for one message, with all attempts; None: no limit",
}


def arguments(owner: type) -> str:
    """Return a table of the constructor arguments of a class; raise KeyError for one without a description."""
    parameters = [p for p in inspect.signature(owner).parameters.values() if p.name != "self"]
    rows = [(f"`{p.name}`", _default(p), ARGUMENTS[owner][p.name]) for p in parameters]
    return table(["argument", "default", "description"], rows)


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return "required"
    return f"`{parameter.default!r}`" if isinstance(parameter.default, str | bool | None) else "all"


def http_request() -> str:
    """Return a table of the members of `trunkline.http.Request`: its fields with their comments, then its methods."""
    source = inspect.getsource(http.Request)
    fields_shown = [(f"`{m['name']}`", m["comment"]) for m in COMMENT.finditer(source) if m["comment"]]
    return table(["member", "description"], fields_shown) + members(http.Request).split("\n", 2)[2]


OPTIONS = {
    "ToolOptions": "`tool`, `add_tool`",
    "ResourceOptions": "`resource`, `add_resource`",
    "PromptOptions": "`prompt`, `add_prompt`",
    "CompletionOptions": "`completion`, `add_completion`, besides `argument`",
    "FileOptions": "`add_file`",
    "DirectoryOptions": "`add_directory`",
    "RouteOptions": "`route`, `add_route`, besides `path`",
}  # the methods that take the options of a type


def options() -> str:
    """Return the options of all methods that register entries."""
    pages = [
        f"### {takers}\n\n" + table(["option", "type", "meaning"], _options(server_options, name))
        for name, takers in OPTIONS.items()
    ]
    return "\n".join(pages)


def _annotation(node: ast.expr) -> str:
    """Return an annotation as text, without the quotes of one whose types are not imported there."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)


def _options(module: ModuleType, name: str) -> Iterable[tuple[str, str, str]]:
    """Yield the fields of a class as written in its source, those of its bases first."""
    source = inspect.getsource(module)
    written = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == name)
    for base in written.bases:
        if isinstance(base, ast.Attribute):
            yield from _options(registry_options, base.attr)
        elif isinstance(base, ast.Name) and base.id != "TypedDict":
            yield from _options(module, base.id)
    for field in written.body:
        if isinstance(field, ast.AnnAssign):
            comment = source.splitlines()[field.lineno - 1].partition("# ")[2]
            yield f"`{ast.unparse(field.target)}`", f"`{_annotation(field.annotation)}`", comment


def fact_table() -> str:
    """Return a table of the facts."""
    kinds = [getattr(facts, name) for name in facts.__all__ if name not in {"Fact", "Observer", "Observers"}]
    rows = [
        (
            f"`{kind.__name__}`",
            ", ".join(f"`{f}`" for f in kind.__struct_fields__ if f not in {"connection", "at"}),
            sentence(kind),
        )
        for kind in kinds
    ]
    return table(["fact", "members, besides `connection` and `at`", "meaning"], rows)


def sampling_names() -> str:
    """Return a table of the names in `trunkline.sampling`."""
    names = sampling.__all__
    return table(["name", "description"], [(f"`{name}`", sentence(getattr(sampling, name))) for name in names])


def sampling_arguments() -> str:
    """Return a table of the constructor arguments of `OpenAI`, and of the options that all providers share."""
    signature = inspect.signature(sampling.OpenAI).parameters.values()
    rows = [(f"`{p.name}`", SAMPLING_ARGUMENTS[p.name]) for p in signature if p.kind is not p.VAR_KEYWORD]
    shared = [(name, meaning) for name, _, meaning in _options(http_provider, "ProviderOptions")]
    return table(["argument", "meaning"], [*rows, *shared])


def testing_names() -> str:
    """Return a table of the names in `trunkline.testing`."""
    return table(["name", "description"], [(f"`{name}`", sentence(getattr(testing, name))) for name in testing.__all__])


# --- reference/settings.md ----------------------------------------------------------------------


def settings() -> str:
    """Return the fields of Settings with their comments."""
    source = inspect.getsource(Settings)
    starts = [*GROUP.finditer(source), None]
    by_name = {field.name: field for field in fields(Settings)}
    pages: list[str] = []
    for group, following in pairwise(starts):
        block = source[group.end() : following.start() if following else len(source)]
        rows = [
            _setting(by_name[m["name"]], m["comment"] or "") for m in COMMENT.finditer(block) if m["name"] in by_name
        ]
        pages.append(
            f"### {group['title'].rstrip('.')}\n\n" + table(["setting", "default", "environment", "meaning"], rows)
        )
    return "\n".join(pages)


def _setting(field: FieldInfo, comment: str) -> tuple[str, str, str, str]:
    return f"`{field.name}`", _readable(field), f"`{config._PREFIX}{field.name.upper()}`", comment


def _readable(field: FieldInfo) -> str:
    value = field.default
    if value is None:
        return "not set" if field.type == bool | None else "off"
    if isinstance(value, str):
        return f'`"{value}"`'
    if field.name.endswith(("_limit", "unsent_high")) and value % MIB == 0:
        return f"{value // MIB} MiB"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return f"{value:g} s" if isinstance(value, float) else f"{value:,}"


# --- reference/methods.md -----------------------------------------------------------------------

RECEIVED_BY = {Side.SERVER: "client → server", Side.CLIENT: "server → client", Side.EITHER: "both"}
TIMES = [field.name for field in fields(Settings) if field.name.endswith("_timeout")]
_numbered = Settings(**{name: float(number) for number, name in enumerate(TIMES, start=1)})
ALLOWANCE = {wait: None if (n := wait.seconds(_numbered)) is None else TIMES[int(n) - 1] for wait in TimeLimit}


def methods() -> str:
    """Return a table of the requests."""
    rows = [
        (f"`{row.name}`", RECEIVED_BY[row.receiver], _capability(row), _window(row), _allowance(row))
        for row in METHODS
        if row.is_request
    ]
    return table(["request", "direction", "capability of the receiver", "revisions", "time allowed"], rows)


def notifications() -> str:
    """Return a table of the notifications."""
    rows = [
        (f"`{row.name}`", RECEIVED_BY[row.receiver], _capability(row), _window(row))
        for row in METHODS
        if not row.is_request
    ]
    return table(["notification", "direction", "capability of the sender", "revisions"], rows)


def changes() -> str:
    """Return a table of changes and their notifications."""
    rows = [
        (
            f"a {kind.replace('_', ' ')} is added, replaced, removed, enabled or disabled",
            f"`{name}`",
            "every ready session, and every `subscriptions/listen` request for it",
        )
        for kind, name in CHANGED.items()
    ]
    updated = ("`server.notify_updated(uri)`", "`notifications/resources/updated`", "the subscribers of that URI")
    return table(["change", "notification", "receivers"], [*rows, updated])


def _capability(row: Method) -> str:
    return f"`{row.capability}`" if row.capability else NONE


def _window(row: Method) -> str:
    first, *_, newest = Revision
    last = row.until or newest
    if (row.since, last) == (first, newest):
        return "all"
    return row.since.value if row.since is last else f"{row.since} to {last}"


def _allowance(row: Method) -> str:
    setting = ALLOWANCE[row.time_limit]
    return "no limit" if setting is None else f"{row.time_limit.seconds(Settings()):g} s (`{setting}`)"


# --- reference/errors.md ------------------------------------------------------------------------


def error_tree() -> str:
    """Return the tree of exceptions with kinds and default codes."""
    return table(["exception", "kind", "default code", "meaning"], _branch(errors.TrunklineError, 0))


def _branch(kind: type[Exception], depth: int) -> list[tuple[str, str, object, str]]:
    told = issubclass(kind, errors.ProtocolError)
    code: object = NONE if not told else "the refusal's" if kind is errors.Refusal else kind.code
    row = ("&emsp;" * depth + f"`{kind.__name__}`", f"`{kind.kind}`" if told else NONE, code, sentence(kind))
    under = [child for child in kind.__subclasses__() if child.__module__.startswith(f"{errors.__name__}.")]
    return [row, *(line for child in under for line in _branch(child, depth + 1))]


def error_codes() -> str:
    """Return a table of codes that differ by revision."""
    rows = [
        (f"`{kind}`", *(next(code for since, code in windows if revision >= since) for revision in Revision))
        for kind, windows in CODES.items()
    ]
    return table(["kind", *(revision.value for revision in Revision)], rows)


def kinds() -> str:
    """Return a table of the error kinds in use."""
    rows = [
        (f"`{kind.name}`", kind.founding_code, kind.reported_as.value, _said_as(kind))
        for kind in KINDS
        if not kind.reserved
    ]
    return table(["kind", "founding number", "reported as", "code"], rows)


def _said_as(kind: ErrorKind) -> object:
    if kind.reported_as is ReportedAs.ERROR:
        return "by revision, see above" if kind.name in CODES else kind.code
    return NONE


def reserved_kinds() -> str:
    """Return a table of the unused error kinds."""
    rows = [(f"`{kind.name}`", kind.founding_code, kind.reserved) for kind in KINDS if kind.reserved]
    return table(["kind", "founding number", "why"], rows)


def refusals() -> str:
    """Return a table of the refusals."""
    rows = [
        (info.code, f"`{info.name}`", info.http_status, info.retry.value, info.message, info.hint)
        for info in REFUSALS.values()
    ]
    return table(["code", "name", "HTTP status", "repeat", "message", "hint"], rows)


def guard_refusals() -> str:
    """Return a table of the error kinds that name the number of a refusal."""
    kinds: dict[int, list[str]] = {}
    for kind, code in REFUSALS_BY_KIND.items():
        kinds.setdefault(int(code), []).append(f"`{kind}`")
    rows = [(code, f"`{REFUSALS[code].name}`", ", ".join(names)) for code, names in sorted(kinds.items())]
    return table(["`data.refusal.code`", "name", "kinds"], rows)


# --- design/lifecycle.md ------------------------------------------------------------------------


def lifecycle() -> str:
    """The state diagram: one arrow for all signals that lead from one phase to another."""
    lines = [f"    [*] --> {Phase.NEW.name}"]
    for phase, row in LIFECYCLE.items():
        for after in dict.fromkeys(row.values()):
            signals = [signal.name.lower() for signal, target in row.items() if target is after]
            if after is not phase:
                lines.append(f"    {phase.name} --> {after.name}: {', '.join(signals)}")
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, f"    {Phase.CLOSED.name} --> [*]", "```", ""])


def staying() -> str:
    """Return a table of the signals that are legal in a phase and do not change it."""
    rows = [
        (f"`{phase.name}`", ", ".join(f"`{s.name.lower()}`" for s, after in row.items() if after is phase) or NONE)
        for phase, row in LIFECYCLE.items()
    ]
    return table(["phase", "signals that are legal and change nothing"], rows)


def founding() -> str:
    """Return a table of the phase names in the founding documents."""
    rows = [(f"`{phase.name}`", *(name or NONE for name in astuple(FOUNDING[phase]))) for phase in Phase]
    return table(["ours", "phase of the plan", "state of the architecture", "state of the diagram"], rows)


# --- how-to/erlmcp-profile.md -------------------------------------------------------------------


def profile() -> str:
    """Return a table of the fields of the profile, with their comments and values."""
    source, found = inspect.getsource(Profile), PROFILES["erlmcp"]
    rows = [
        (f"`{m['name']}`", m["comment"], _profile_value(getattr(found, m["name"])))
        for m in COMMENT.finditer(source)
        if m["comment"]
    ]
    return table(["field", "meaning", "value"], rows)


def _profile_value(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case frozenset():
            return ", ".join(f"`{item}`" for item in sorted(value))
        case Enum():
            return f"`{value.value}`"
        case _:
            return f"`{value}`"


# --- design/tasks.md ----------------------------------------------------------------------------


def tasks() -> str:
    """The state diagram of tasks."""
    lines = [f"    [*] --> {TaskState.PENDING.name}"]
    for state, row in TASKS.items():
        for after in dict.fromkeys(row.values()):
            signals = [signal.name.lower() for signal, target in row.items() if target is after]
            lines.append(f"    {state.name} --> {after.name}: {', '.join(signals)}")
    ends = [f"    {state.name} --> [*]" for state in TASKS if state in TERMINAL]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, *ends, "```", ""])


# --- how-to/resilience.md -----------------------------------------------------------------------


def breaker() -> str:
    """The state diagram of circuit breakers, without the changes by hand."""
    by_hand = {BreakerSignal.OPENED_BY_HAND, BreakerSignal.CLOSED_BY_HAND}
    lines = [f"    [*] --> {BreakerState.CLOSED.name}"]
    for state, row in TRANSITIONS.items():
        lines += [
            f"    {state.name} --> {after.name}: {s.name.lower()}" for s, after in row.items() if s not in by_hand
        ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def task_statuses() -> str:
    """Return a table of the task statuses by dialect."""
    rows = [
        (f"`{state.name}`", *(f"`{traits.statuses[state]}`" for traits in DIALECTS.values())) for state in TaskState
    ]
    failed = ("`COMPLETED`, with `isError`", *(f"`{t.statuses[t.failed_result]}`" for t in DIALECTS.values()))
    return table(["state", *(dialect.value for dialect in DIALECTS)], [*rows, failed])


# --- reference/acceptance.md --------------------------------------------------------------------


def acceptance_rows() -> str:
    """Return a table of the acceptance rows of each section, with the tests that show them."""
    sections = acceptance.read_rows((acceptance.TESTS / "rows.txt").read_text("utf-8"))
    shown = acceptance.find_tests(acceptance.TESTS)
    pages = [
        f"### {title}\n\n" + table(["row", "subject", "shown by"], [_acceptance_row(row, shown) for row in rows])
        for title, rows in sections.items()
    ]
    return "\n".join(pages)


def _acceptance_row(row: acceptance.Row, shown: acceptance.Shown) -> tuple[str, str, str]:
    tests = groupby(sorted(set(shown.get(row.ident, ()))), key=lambda test: test.file)
    files = [f"{file}: " + ", ".join(f"`{test.name}`" for test in found) for file, found in tests]
    return row.ident, row.subject, "<br>".join(files) or f"open: {row.open_because}"


# --- reference/interoperability.md --------------------------------------------------------------


def peers() -> str:
    """Return a table of the SDKs of the interoperability tests, with their transports and revisions."""
    rows: dict[tuple[str, str], list[str]] = {}
    for side, cells in (("client", official_clients.CELLS), ("server", official_servers.CELLS)):
        for peer, transport, revision, _ in cells:
            spoken = rows.setdefault((f"{peer.name}, {side}", transport), [])
            if revision.value not in spoken:
                spoken.append(revision.value)
    shown = [(name, transport, ", ".join(spoken)) for (name, transport), spoken in rows.items()]
    return table(["SDK", "transport", "revisions"], shown)


def interoperability(cells: Iterable[tuple[Any, str, Revision, str]]) -> str:
    """Return a table of methods and capabilities by revision, with the transports and the number of SDKs of each."""
    counted: dict[str, dict[Revision, Counter[str]]] = {}
    for _, transport, revision, cell in cells:
        counted.setdefault(cell, {}).setdefault(revision, Counter())[transport] += 1
    rows = [
        (f"`{cell}`", *(_transports(by_revision.get(revision, Counter())) for revision in Revision))
        for cell, by_revision in counted.items()
    ]
    return table(["method or capability", *(revision.value for revision in Revision)], rows)


def _transports(counted: Counter[str]) -> str:
    return ", ".join(f"{transport} {count}" for transport, count in counted.items()) or NONE


def hosts() -> str:
    """Return a table of the hosts that `trunkline install` knows."""
    folders = {"home": "~", "appdata": "%APPDATA%", "config": "~/.config", "codex": "~/.codex", "claude": "~"}

    def place(template: str | None) -> str:
        return "the same" if template is None else f"`{template.format_map(folders)}`"

    rows = [
        (
            f"`{name}`",
            host.title,
            place(host.linux),
            place(host.mac),
            place(host.windows),
            f"`[{host.section}.NAME]`" if host.toml else f"`{host.section}`",
            NONE if host.url is None else f"`{host.url}`",
        )
        for name, host in HOSTS.items()
    ]
    return table(("`--host`", "host", "file on Linux", "on macOS", "on Windows", "section", "an address is in"), rows)


def revisions() -> str:
    """Return a list of the supported revisions."""
    return "".join(f"- {revision.value}\n" for revision in Revision)


# --- how-to/metrics.md --------------------------------------------------------------------------


def metrics() -> str:
    """Return a table of all metrics."""
    rows = [
        (
            f"`{family.name}`",
            family.kind,
            ", ".join(f"`{label}`" for label in (*family.labels, *(["worker"] if family.per_worker else []))) or NONE,
            family.help,
        )
        for family in FAMILIES.values()
    ]
    return table(["metric", "type", "labels", "description"], rows)


PARTS: dict[str, Callable[[], str]] = {
    "api-names": api_names,
    "api-server-arguments": lambda: arguments(Server),
    "api-server": lambda: members(Server),
    "api-client-arguments": lambda: arguments(Client),
    "api-client": lambda: members(Client),
    "api-options": options,
    "api-context": lambda: members(Context),
    "api-http-request": http_request,
    "api-http-response": lambda: members(http.Response),
    "api-facts": fact_table,
    "api-sampling": sampling_names,
    "api-sampling-arguments": sampling_arguments,
    "api-testing": testing_names,
    "settings": settings,
    "methods": methods,
    "notifications": notifications,
    "changes": changes,
    "error-tree": error_tree,
    "error-codes": error_codes,
    "kinds": kinds,
    "reserved-kinds": reserved_kinds,
    "refusals": refusals,
    "guard-refusals": guard_refusals,
    "lifecycle": lifecycle,
    "staying": staying,
    "founding": founding,
    "profile": profile,
    "tasks": tasks,
    "breaker": breaker,
    "task-statuses": task_statuses,
    "acceptance-rows": acceptance_rows,
    "interoperability-peers": peers,
    "interoperability-server": lambda: interoperability(official_clients.CELLS),
    "interoperability-client": lambda: interoperability(official_servers.CELLS),
    "hosts": hosts,
    "metrics": metrics,
    "revisions": revisions,
}


def renew(text: str) -> str:
    """Return a page with its generated parts up to date."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part['name']]()}{part[3]}", text)


def main() -> int:
    """Write the pages, or with --check compare them; return 1 if a page is stale."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail if something is stale")
    check = parser.parse_args().check
    stale: list[str] = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text("utf-8")
        if (new := renew(text)) != text:
            stale.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(new, "utf-8")
    if stale:
        print(f"{'stale, run `make docs`' if check else 'written'}: {', '.join(stale)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
