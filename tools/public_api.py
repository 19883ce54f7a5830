"""The public API as text, and a comparison of two states of it: `make docs` records additions, `make check` compares.

tests/public_api.txt has one line for each name: its kind, and the parameters of a function or class, where `=...`
stands for any default. A change that breaks callers is recorded with `--accept-breaks` only. Parameters of a class
include the fields of a record. The command line and the types of parameters are not part of it.
"""

import argparse
import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).resolve().parents[1] / "tests/public_api.txt"
MODULES = [
    "trunkline",
    *(f"trunkline.{name}" for name in ("auth", "errors", "facts", "http", "sampling", "testing", "transforms")),
    "trunkline.protocol.types",
]
OPTIONS = "trunkline.server.options"  # the types of the keyword arguments of `tool`, `resource` and so on
ACCEPT = "--accept-breaks"

Api = Mapping[str, str]
"""The description of each name."""


# --- the current state --------------------------------------------------------------------------


def read_package() -> dict[str, str]:
    """Return the public API of the installed package."""
    found: dict[str, str] = {}
    homes: dict[int, str] = {}
    for module in map(import_module, MODULES):
        for name in module.__all__:
            thing, called = getattr(module, name), f"{module.__name__}.{name}"
            if id(thing) in homes and callable(thing):
                found[called] = f"is {homes[id(thing)]}"
                continue
            homes[id(thing)] = called
            found |= _describe(called, thing)
    options = import_module(OPTIONS)
    for name in options.__all__:
        for option in getattr(getattr(options, name), "__optional_keys__", ()):
            found[f"{OPTIONS}.{name}.{option}"] = "option"
    return dict(sorted(found.items()))


def _describe(called: str, thing: Any) -> dict[str, str]:
    if not inspect.isclass(thing):
        return {called: _function(thing) if inspect.isfunction(thing) else "value"}
    if issubclass(thing, Enum):
        return {called: "class", **{f"{called}.{one.name}": f"value {one.value!r}" for one in thing}}
    return {called: _class(thing), **dict(_members(called, thing))}


def _class(thing: type) -> str:
    if getattr(thing, "_is_protocol", False):
        return "protocol"
    if not thing.__module__.startswith("trunkline"):
        return "class"  # of another package, whose versions differ in its parameters
    if issubclass(thing, BaseException) and not any("__init__" in vars(base) for base in _own_bases(thing)):
        return "class (*args)"  # versions of Python differ in whether they know that
    return f"class {_parameters(thing)}"


def _own_bases(owner: type) -> list[type]:
    return [base for base in owner.__mro__ if base.__module__.startswith("trunkline")]


def _members(called: str, owner: type) -> Iterator[tuple[str, str]]:
    """Yield the members of a class that the package defines, and the code and kind that an error is sent with."""
    found = {name: member for base in reversed(_own_bases(owner)) for name, member in vars(base).items()}
    for name, member in found.items():
        if name.startswith("_"):
            continue
        if isinstance(member, staticmethod | classmethod):
            yield f"{called}.{name}", _function(getattr(owner, name))
        elif inspect.isfunction(member):
            yield f"{called}.{name}", _function(member, bound=True)
        elif isinstance(member, property):
            yield f"{called}.{name}", "attribute"
        elif name in {"code", "kind"} and isinstance(member, int | str):
            yield f"{called}.{name}", f"value {member!r}"


def _function(function: Callable[..., Any], *, bound: bool = False) -> str:
    kind = "async def" if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function) else "def"
    return f"{kind} {_parameters(function, bound=bound)}"


def _parameters(function: Callable[..., Any], *, bound: bool = False) -> str:
    """Return the parameters in the syntax of Python, without types."""
    parameters = list(inspect.signature(function).parameters.values())[1 if bound else 0 :]
    plain = [
        each.replace(annotation=each.empty, default=each.empty if each.default is each.empty else ...)
        for each in parameters
    ]
    return str(inspect.Signature(plain)).replace("Ellipsis", "...")


# --- comparison ---------------------------------------------------------------------------------


def find_breaks(recorded: Api, current: Api) -> list[str]:
    """Return the changes that break callers."""
    breaks = []
    for name, before in recorded.items():
        after = current.get(name)
        if after is None:
            breaks.append(f"{name} is gone")
        elif after != before and (why := _find_break(before, after)) is not None:
            breaks.append(f"{name}: {why}")
    return breaks


def _find_break(before: str, after: str) -> str | None:
    old, new = before.partition("(")[0], after.partition("(")[0]
    if old != new or "(" not in before:
        return f"was `{before}`, is `{after}`"
    why = _find_call_break(_parse(before), _parse(after))
    return None if why is None else f"{why}; was `{before}`, is `{after}`"


def _parse(described: str) -> ast.arguments:
    parameters = described[described.index("(") :]
    [function] = ast.parse(f"def f{parameters}: ...").body
    assert isinstance(function, ast.FunctionDef)
    return function.args


def _find_call_break(old: ast.arguments, new: ast.arguments) -> str | None:
    """Return why a call that was legal no longer is, or None."""
    by_position = [each.arg for each in [*new.posonlyargs, *new.args]]
    by_name = {each.arg for each in [*new.args, *new.kwonlyargs]}
    only_by_position = {each.arg for each in old.posonlyargs}
    for position, each in enumerate([*old.posonlyargs, *old.args]):
        if position >= len(by_position) and new.vararg is None:
            return f"{each.arg!r} is no longer accepted by position"
        if each.arg not in only_by_position and by_position[position : position + 1] != [each.arg]:
            return f"{each.arg!r} has another position or name"
    for each in [*old.args, *old.kwonlyargs]:
        if each.arg not in by_name:
            return f"{each.arg!r} is gone"
    if (old.vararg is not None and new.vararg is None) or (old.kwarg is not None and new.kwarg is None):
        return "further arguments are no longer accepted"
    renamed = dict(zip((each.arg for each in old.posonlyargs), by_position, strict=False))  # their names do not matter
    if required := _required(new) - {renamed.get(name, name) for name in _required(old)}:
        return f"{min(required)!r} is required now"
    return None


def _required(arguments: ast.arguments) -> set[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    named = [
        each.arg for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    return {each.arg for each in positional[: len(positional) - len(arguments.defaults)]} | set(named)


# --- the file -----------------------------------------------------------------------------------


def to_text(api: Api) -> str:
    """Return the lines of the file."""
    return "".join(f"{name}: {described}\n" for name, described in api.items())


def from_text(text: str) -> dict[str, str]:
    """Return the API that a file records."""
    return {name: described for name, _, described in (line.partition(": ") for line in text.splitlines())}


def main(arguments: list[str]) -> int:
    """Record the API, or with --check compare it; return 1 for a change that has to be accepted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail if the file is stale")
    parser.add_argument(ACCEPT, action="store_true", help="record changes that break callers, too")
    options = parser.parse_args(arguments)
    current, recorded = read_package(), from_text(RECORDED.read_text("utf-8"))
    breaks = find_breaks(recorded, current)
    if breaks and not options.accept_breaks:
        print("the public API breaks callers:", *breaks, sep="\n  ")
        print(f"restore it, or describe the change in changes/ and run `tools/public_api.py {ACCEPT}`")
        return 1
    if current == recorded:
        return 0
    if options.check:
        print(f"stale, run `make docs`: {RECORDED.name}")
        return 1
    RECORDED.write_text(to_text(current), "utf-8")
    print(f"written: {RECORDED.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
