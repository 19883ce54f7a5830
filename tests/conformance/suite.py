"""The official conformance suite: its requirements, runner and results.

It runs from its installation folder, with the node of this environment, and needs no network.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tests.limits import PATIENCE
from tests.official import NODE, NPM_FOLDER, ROOT

Leg = Literal["server", "client"]
Check = dict[str, Any]

SUITE = NPM_FOLDER / "node_modules/@modelcontextprotocol/conformance"
OLD_SUITE = NPM_FOLDER / "node_modules/conformance-0.1.16"
FIXTURES = ROOT / "conformance"
OUR_CLIENT = "conformance/client"  # from the root, since the suite cuts a command at blanks
REVISIONS = ("2025-11-25", "2026-07-28")
OLD_SERVER_SCENARIOS = 32
OLD_CLIENT_SCENARIOS = 26
NOT_WRITTEN = frozenset({"tasks-status-notifications"})  # scenarios that the suite itself always skips

CLIENT_PATIENCE = 30_000  # milliseconds that the suite allows a client; ours gives up before
RUN_PATIENCE = 3 * PATIENCE  # for a whole run

# The fixtures run with the Python of these tests, which their first line finds; at full speed, since other tests
# measure coverage.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("COV")} | {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
}


class Run(NamedTuple):
    """The outcome of a run, and the checks of each scenario that wrote some."""

    status: int
    said: str
    checks: dict[str, list[Check]]


def required(revision: str, leg: Leg) -> list[str]:
    """All scenarios of a revision's requirement set, including those without a score."""
    file = SUITE / f"requirements/{revision}.yaml"
    assert file.exists(), f"the suite is missing: `make {NPM_FOLDER.relative_to(ROOT)}/.ready` installs it"
    text = file.read_text("utf-8")
    scored = re.search(rf"^{leg}:\n((?:  - \S+\n)+)", text, re.MULTILINE)
    assert scored is not None, f"{file.name} has no list of {leg} scenarios"
    unscored = re.findall(r"^  - scenario: (\S+)\n    leg: (\w+)$", text, re.MULTILINE)
    return [*re.findall(r"- (\S+)", scored[1]), *(name for name, side in unscored if side == leg)]


def servable(revision: str) -> list[str]:
    """All scenarios for servers."""
    return [name for name in required(revision, "server") if name not in NOT_WRITTEN]


def playable(revision: str) -> list[str]:
    """All scenarios for clients."""
    return required(revision, "client")


def playable_before() -> list[str]:
    """Those of suite 0.1.16."""
    listed = run("list", "--client", suite=OLD_SUITE).said
    return re.findall(r"^  - (\S+)", listed, re.MULTILINE)


def run(leg: Leg | Literal["list"], *arguments: str, output: Path | None = None, suite: Path = SUITE) -> Run:
    """Run the suite, and read its output."""
    written = [] if output is None else ["--output-dir", output]
    command = [NODE, suite / "dist/index.js", leg, *arguments, *written]
    ended = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=RUN_PATIENCE, check=False
    )
    return Run(ended.returncode, ended.stdout + ended.stderr, {} if output is None else _written(output, leg))


def run_client(scenario: str, *arguments: str, output: Path, client: str = OUR_CLIENT, suite: Path = SUITE) -> Run:
    """Run one client scenario alone: only then do its exit status and its time count."""
    options = ["--command", f"exec {client}", "--scenario", scenario, "--timeout", str(CLIENT_PATIENCE)]
    return run("client", *options, *arguments, output=output, suite=suite)


def play(scenario: str, revision: str, output: Path) -> Run:
    """Run our client in a scenario by the rules of a revision, whether or not it belongs to one."""
    return run_client(scenario, "--spec-version", revision, "--force", output=output)


def _written(output: Path, leg: str) -> dict[str, list[Check]]:
    """The checks by scenario. The folder of each has its name and the time, and says if it is one for servers."""
    found = {}
    for file in sorted(output.rglob("checks.json")):
        folder = str(file.parent.relative_to(output))
        name = re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", folder)
        found[name.removeprefix("server-") if leg == "server" else name] = json.loads(file.read_text("utf-8"))
    return found


@contextmanager
def serving(script: Path = FIXTURES / "server", *, workers: int | None = None) -> Iterator[str]:
    """The URL of a server in one or several processes, on a port that the system chose."""
    command = [sys.executable, script, "0", *([] if workers is None else [str(workers)])]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            first = process.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)$", first.strip())
            assert found is not None, f"no address: {first}{process.stderr.read()}"
            yield f"http://localhost:{found[1]}{found[2]}"
        finally:
            process.terminate()
            _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
