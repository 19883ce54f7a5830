"""From an empty folder to the first tool call, ours beside fastmcp: `make bench`, or `python -m bench.first_steps`.

Each side gets its packages as local wheels beforehand, so that no download is counted. Then it makes an environment,
installs from those wheels, writes a small server, and calls a tool of it with its own command line. `trunkline new`
writes the server and makes the first call itself. Writing a file by hand is a command of the script, and takes no time
here. The set-up runs once for each side; the call runs several times, in turn, and the best and the median count. CPU
time is that of all processes of a command. The environment costs both sides the same; its figures show how much the
machine disturbs the others.
"""

import argparse
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.environments import ROOT

WHEELS = ROOT / ".cache" / "first-steps"
REPEATS = 7
INSTALL = ("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
SERVER = """\
from {module} import {kind}

server = {kind}("calculator")

@server.tool
def add(a: int, b: int) -> int:
    return a + b
"""


class StepFailed(Exception):
    """A command failed, or the tool's result was wrong."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a command."""

    wall: float
    cpu: float


@dataclass
class Side:
    """A library: how to fetch it, its server and its call."""

    name: str
    package: str
    fetched: Sequence[Sequence[str]]  # requirements to try, in this order
    source: str  # of server.py, which a user types; empty if a command creates the server
    call: Sequence[str]
    create: Sequence[str] = ()
    installed: str = ""  # the requirement that could be fetched
    set_up: list[Cost] = field(default_factory=list)
    created: Cost | None = None
    calls: list[Cost] = field(default_factory=list)

    @property
    def commands(self) -> int:
        """The commands of a script: environment, installation, the server, and the call, unless `create` makes it."""
        return len(self.set_up) + 1 + (not self.create)

    @property
    def first_call(self) -> float:
        """Seconds from the empty folder to the first call."""
        last = self.created or self.calls[0]
        return sum(one.wall for one in (*self.set_up, last))


def sides() -> list[Side]:
    """Return both libraries, ours twice. The last requirements are for indexes that lack something newer."""
    peers = ROOT / "bench/peers"
    call = ("call", "server.py", "add", "a=5", "b=3")
    ours = SERVER.format(module="trunkline", kind="Server")
    return [
        Side("trunkline", "trunkline", [[str(ROOT)]], ours, ("trunkline", *call)),
        Side(
            "trunkline new",
            "trunkline",
            [[str(ROOT)]],
            "",
            ("trunkline", "call", "calculator/server.py", *call[2:]),
            ("trunkline", "new", "calculator"),  # calls a tool, too
        ),
        Side(
            "fastmcp",
            "fastmcp",
            [[(peers / name).read_text("utf-8").strip()] for name in ("fastmcp.txt", "fastmcp-older.txt")],
            SERVER.format(module="fastmcp", kind="FastMCP"),
            ("fastmcp", *call),
        ),
    ]


def fetch(side: Side, python: str) -> None:
    """Put the wheels of a library and of its dependencies into a folder; not measured."""
    folder = WHEELS / side.package
    for old in folder.glob(f"{side.package}-*.whl"):
        old.unlink()
    for number, requirements in enumerate(side.fetched, 1):
        try:
            run([python, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(folder), *requirements], ROOT)
        except StepFailed:
            if number == len(side.fetched):
                raise
        else:
            side.installed = side.package if requirements == [str(ROOT)] else requirements[0]
            return


def set_up(side: Side, python: str, folder: Path) -> None:
    """Make the environment and the server, in an empty folder."""
    side.set_up = [
        run([python, "-m", "venv", "env"], folder),
        run(
            [*INSTALL, "--no-index", "--find-links", str(WHEELS / side.package), side.installed],
            folder,
        ),
    ]
    if side.create:
        side.created = run(side.create, folder)
    else:
        (folder / "server.py").write_text(side.source, "utf-8")


def run(command: Sequence[str], folder: Path, *, expected: str | None = None) -> Cost:
    """Run a command in the activated environment of a folder; return its cost."""
    programs = folder / "env" / "bin"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ["PATH"] = f"{programs}{os.pathsep}{environ['PATH']}"
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    program = str(programs / command[0]) if (programs / command[0]).exists() else command[0]
    ended = subprocess.run(
        [program, *command[1:]], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode or (expected is not None and expected not in ended.stdout):
        raise StepFailed(f"{' '.join(command)}: {(ended.stdout + ended.stderr)[-2000:]}")
    return Cost(wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def lines(found: Sequence[Side]) -> list[str]:
    """Return the table."""
    titles = ("environment", "installation", "new project", "a call", "best later call")
    rows = [f"{'':15}{'commands':>9}{'lines':>6}{'seconds':>9}" + "".join(f"{title:>17}" for title in titles)]
    for side in found:
        later = side.calls[1:]
        best = Cost(min(one.wall for one in later), min(one.cpu for one in later))
        cells = [
            f"{c.wall:.2f} s ({c.cpu:.2f})" if c else "" for c in (*side.set_up, side.created, side.calls[0], best)
        ]
        typed = len(side.source.splitlines())
        sums = f"{side.commands:>9}{typed:>6}{side.first_call:>9.1f}"
        rows.append(f"{side.name:15}{sums}" + "".join(f"{cell:>17}" for cell in cells))
        median = statistics.median(one.wall for one in later)
        rows.append(f"{'':15}{side.installed}; median of {len(later)} later calls {median:.2f} s")
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure both sides and print the table; the exit status is 1 if our side fails or is slower to its first call."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--python", default=sys.executable, help="the CPython of both environments")
    options = parser.parse_args(arguments)
    print(
        "From an empty folder to the first tool call: wall-clock time, CPU time in brackets, and lines to type",
        flush=True,
    )
    found: list[Side] = []
    with tempfile.TemporaryDirectory() as place:
        for side in sides():
            try:
                fetch(side, options.python)
                (Path(place) / side.name).mkdir()
                set_up(side, options.python, Path(place) / side.name)
            except StepFailed as error:
                print(f"{side.name}: not measured: {error}")
            else:
                found.append(side)
        for number in range(REPEATS):
            for side in found[:: 1 if number % 2 else -1]:
                side.calls.append(run(side.call, Path(place) / side.name, expected="8"))
    print(*lines(found), sep="\n")
    total = {side.name: sum(one.cpu for one in (*side.set_up, side.calls[0])) for side in found}
    return int("trunkline" not in total or total["trunkline"] > total.get("fastmcp", math.inf))


if __name__ == "__main__":
    sys.exit(main())
