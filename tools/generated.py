"""Writes the parts of the documents that are read off the code: `make docs`. With --check it only compares.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`; everything around it is written by hand.
"""

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType

from msgspec.structs import FieldInfo, fields

import trunkline
from trunkline import Context, Server, config, errors, facts, testing
from trunkline.config import Settings
from trunkline.protocol.error_codes import CODES
from trunkline.protocol.error_kinds import KINDS, ErrorKind, ReportedAs
from trunkline.protocol.lifecycle import FOUNDING, LIFECYCLE, Phase
from trunkline.protocol.methods import METHODS, Method, Side, TimeLimit
from trunkline.protocol.revisions import Revision
from trunkline.protocol.task_dialects import DIALECTS
from trunkline.protocol.tasks import TASKS, TERMINAL, TaskState
from trunkline.registry import options as registry_options
from trunkline.server import options as server_options
from trunkline.server.notifications.debounce import LIST_CHANGED_METHODS as CHANGED

ROOT = Path(__file__).resolve().parents[1]
PART = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
GROUP = re.compile(r"^    # (?P<title>.+)\n", re.MULTILINE)
COMMENT = re.compile(r"^    (?P<name>\w+): [^#\n]*(?:# (?P<comment>.+))?$", re.MULTILINE)
MIB = 1 << 20
NONE = "-"  # an empty cell


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def sentence(thing: object) -> str:
    """The first line of a docstring: the contract."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


# --- reference/api.md ---------------------------------------------------------------------------


def api_names() -> str:
    """Every public name."""
    return table(
        ["name", "what it is"], [(f"`{name}`", sentence(getattr(trunkline, name))) for name in trunkline.__all__]
    )


def members(owner: type) -> str:
    """The public members of a class, in the order of its source."""
    found = [(name, value) for name, value in vars(owner).items() if not name.startswith("_")]
    return table(["member", "what it does"], [(f"`{_spelt(name, value)}`", sentence(value)) for name, value in found])


def _spelt(name: str, member: object) -> str:
    if isinstance(member, property):
        return name
    parameters = [p for p in inspect.signature(member).parameters.values() if p.name not in {"self", "function"}]
    shown = [p.name if p.default is p.empty else f"{p.name}=…" for p in parameters if p.kind is not p.VAR_KEYWORD]
    more = "…" if any(p.kind is p.VAR_KEYWORD for p in parameters) or len(shown) > 4 else ""
    return f"{name}({', '.join([*shown[:4], more] if more else shown)})"


OPTIONS = {
    "ToolOptions": "`tool`, `add_tool`",
    "ResourceOptions": "`resource`, `add_resource`",
    "PromptOptions": "`prompt`, `add_prompt`",
    "CompletionOptions": "`completion`, `add_completion`, besides `argument`",
    "FileOptions": "`add_file`",
    "DirectoryOptions": "`add_directory`",
}  # which type says what they take


def options() -> str:
    """What everything that registers something can be told."""
    pages = [
        f"### {takers}\n\n" + table(["option", "type", "meaning"], _options(server_options, name))
        for name, takers in OPTIONS.items()
    ]
    return "\n".join(pages)


def _options(module: ModuleType, name: str) -> Iterable[tuple[str, str, str]]:
    """The fields of a class as they are written, those of its bases first."""
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
            yield f"`{ast.unparse(field.target)}`", f"`{ast.unparse(field.annotation)}`", comment


def fact_table() -> str:
    """What observers are told."""
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


def testing_names() -> str:
    """What `trunkline.testing` has."""
    return table(["name", "what it is"], [(f"`{name}`", sentence(getattr(testing, name))) for name in testing.__all__])


# --- reference/settings.md ----------------------------------------------------------------------


def settings() -> str:
    """The fields of Settings, with the comments that stand beside them."""
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
    """The requests."""
    rows = [
        (f"`{row.name}`", RECEIVED_BY[row.receiver], _capability(row), _window(row), _allowance(row))
        for row in METHODS
        if row.is_request
    ]
    return table(["request", "direction", "capability of the receiver", "revisions", "time allowed"], rows)


def notifications() -> str:
    """The notifications."""
    rows = [
        (f"`{row.name}`", RECEIVED_BY[row.receiver], _capability(row), _window(row))
        for row in METHODS
        if not row.is_request
    ]
    return table(["notification", "direction", "capability of the sender", "revisions"], rows)


def changes() -> str:
    """Which change is told by which notification."""
    rows = [
        (
            f"a {kind.replace('_', ' ')} is added, replaced, removed, enabled or disabled",
            f"`{name}`",
            "every session that is ready, and every request that listens for it",
        )
        for kind, name in CHANGED.items()
    ]
    updated = ("`server.notify_updated(uri)`", "`notifications/resources/updated`", "the subscribers of that URI")
    return table(["what happens", "notification", "told to"], [*rows, updated])


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
    """Every exception under its parent, with its kind and default code."""
    return table(["exception", "kind", "default code", "meaning"], _branch(errors.TrunklineError, 0))


def _branch(kind: type[Exception], depth: int) -> list[tuple[str, str, object, str]]:
    told = issubclass(kind, errors.ProtocolError)
    code: object = NONE if not told else "the refusal's" if kind is errors.Refusal else kind.code
    row = ("&emsp;" * depth + f"`{kind.__name__}`", f"`{kind.kind}`" if told else NONE, code, sentence(kind))
    under = [child for child in kind.__subclasses__() if child.__module__.startswith(f"{errors.__name__}.")]
    return [row, *(line for child in under for line in _branch(child, depth + 1))]


def error_codes() -> str:
    """The codes that differ by revision."""
    rows = [
        (f"`{kind}`", *(next(code for since, code in windows if revision >= since) for revision in Revision))
        for kind, windows in CODES.items()
    ]
    return table(["kind", *(revision.value for revision in Revision)], rows)


def kinds() -> str:
    """The kinds of the founding documents that something leads to."""
    rows = [
        (f"`{kind.name}`", kind.founding_code, kind.reported_as.value, _said_as(kind))
        for kind in KINDS
        if not kind.reserved
    ]
    return table(["kind", "founding number", "told as", "code"], rows)


def _said_as(kind: ErrorKind) -> object:
    if kind.reported_as is ReportedAs.ERROR:
        return "by revision, see above" if kind.name in CODES else kind.code
    return NONE


def reserved_kinds() -> str:
    """Those that nothing leads to."""
    rows = [(f"`{kind.name}`", kind.founding_code, kind.reserved) for kind in KINDS if kind.reserved]
    return table(["kind", "founding number", "why"], rows)


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
    """What is legal in a phase without leaving it."""
    rows = [
        (f"`{phase.name}`", ", ".join(f"`{s.name.lower()}`" for s, after in row.items() if after is phase) or NONE)
        for phase, row in LIFECYCLE.items()
    ]
    return table(["phase", "signals that are legal and change nothing"], rows)


def founding() -> str:
    """The names that the founding papers give to our phases."""
    rows = [(f"`{phase.name}`", *(name or NONE for name in FOUNDING[phase])) for phase in Phase]
    return table(["ours", "phase of the plan", "state of the architecture", "state of the diagram"], rows)


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


def task_statuses() -> str:
    """What each dialect shows of a state."""
    rows = [
        (f"`{state.name}`", *(f"`{traits.statuses[state]}`" for traits in DIALECTS.values())) for state in TaskState
    ]
    failed = ("`COMPLETED`, with `isError`", *(f"`{t.statuses[t.failed_result]}`" for t in DIALECTS.values()))
    return table(["state", *(dialect.value for dialect in DIALECTS)], [*rows, failed])


def revisions() -> str:
    """The revisions that are spoken."""
    return "".join(f"- {revision.value}\n" for revision in Revision)


PARTS: dict[str, Callable[[], str]] = {
    "api-names": api_names,
    "api-server": lambda: members(Server),
    "api-options": options,
    "api-context": lambda: members(Context),
    "api-facts": fact_table,
    "api-testing": testing_names,
    "settings": settings,
    "methods": methods,
    "notifications": notifications,
    "changes": changes,
    "error-tree": error_tree,
    "error-codes": error_codes,
    "kinds": kinds,
    "reserved-kinds": reserved_kinds,
    "lifecycle": lifecycle,
    "staying": staying,
    "founding": founding,
    "tasks": tasks,
    "task-statuses": task_statuses,
    "revisions": revisions,
}


def renew(text: str) -> str:
    """A page with its generated parts as they should be."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part['name']]()}{part[3]}", text)


def main() -> int:
    """Writes, or with --check compares; the exit status is 1 when something is stale."""
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
