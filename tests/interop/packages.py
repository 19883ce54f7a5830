"""Environments of the packages in packages.toml: each package has its own folder below .peers/packages.

    python -m tests.interop.packages         what `make test` needs
    python -m tests.interop.packages all     everything in the table, as `make test-long` needs it
    python -m tests.interop.packages NAME …  single entries

An environment is complete when its stamp file holds the requirements of the table; others are rebuilt. Dependencies
are resolved as of a day, so they are the same each time, and a package of 2024 gets the libraries of 2024. Install
scripts of npm are off.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TABLE = HERE / "packages.toml"
FOLDER = ROOT / ".peers/packages"
SCRIPTS = Path(sys.executable).parent  # of our own environment, which has node and npm
UV = ROOT / ".peers/uv/bin/uv"  # installs in seconds, and shares files between environments
AT_ONCE = 3  # installations; they mostly wait for the registry and the disk


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment and its packages."""

    name: str
    pypi: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    as_of: str = ""  # the day, as in 2026-11-15, after which no release counts
    shared: str | None = None  # an environment below .peers that a rule of the Makefile makes

    @property
    def folder(self) -> Path:
        return FOLDER / self.name if self.shared is None else ROOT / ".peers" / self.shared

    @property
    def programs(self) -> Path:
        """The folder of the commands that the packages install."""
        scripts = self.folder / "bin"
        return scripts if scripts.is_dir() else self.folder / "node_modules/.bin"

    @property
    def complete(self) -> bool:
        stamp = self.folder / ".ready"
        return stamp.exists() and (self.shared is not None or stamp.read_text("utf-8") == self._requirements)

    @property
    def _requirements(self) -> str:
        return "".join(f"{line}\n" for line in (*self.pypi, *self.npm, self.as_of))

    def install(self) -> None:
        """Make the environment, unless it is complete. Concurrent processes wait for each other."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        with (FOLDER / f"{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
            if self.complete:
                return
            shutil.rmtree(self.folder, ignore_errors=True)
            self._install_pypi() if self.pypi else self._install_npm()
            (self.folder / ".ready").write_text(self._requirements, "utf-8")

    def _install_pypi(self) -> None:
        _run(str(UV), "venv", "--quiet", "--python", sys.executable, str(self.folder))
        options = ("--quiet", "--compile-bytecode", "--exclude-newer", self.as_of)
        _run(str(UV), "pip", "install", "--python", str(self.folder / "bin/python"), *options, *self.pypi)

    def _install_npm(self) -> None:
        self.folder.mkdir()
        pins = dict(requirement.rsplit("@", 1) for requirement in self.npm)
        package = {"name": f"trunkline-peer-{self.name}", "private": True, "dependencies": pins}
        (self.folder / "package.json").write_text(json.dumps(package, indent=2), "utf-8")
        options = (
            "--loglevel",
            "error",
            "--before",
            self.as_of,
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--no-package-lock",
        )
        _run("npm", "install", *options, cwd=self.folder)


@dataclass(frozen=True, kw_only=True)
class ServerEntry:
    """A server: its command, its catalog and its known answers.

    Commands, variables, arguments and texts may hold {folder} (of the test), {port}, {site} (a web server of the
    test), {programs} (of the environment) and {peers} (our scripts).
    """

    name: str
    environment: Environment
    commands: Mapping[str, list[str]]  # by transport: stdio, http, sse
    path: str = "/mcp"
    sse_path: str = "/sse"
    silent: bool = False  # it never answers server/discover, so a client has to stop waiting for that
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])  # in the folder of the test
    script: str | None = (
        None  # our script for node, which is copied to that folder, beside the packages that it imports
    )
    revision: str
    revision_over: Mapping[str, str] = field(default_factory=dict[str, str])  # a transport, if it is another one there
    tools: int  # how many
    resources: int = 0
    resource_templates: int = 0  # -1: the server does not know the method
    prompts: int = 0
    calls: list[dict[str, Any]]
    reads: Mapping[str, str] = field(default_factory=dict[str, str])  # text by URI
    gets: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # prompts
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class ClientEntry:
    """A client library: its script, and its features besides listing and calling tools."""

    name: str
    environment: Environment
    script: str
    transports: tuple[str, ...] = ("stdio", "http")
    can: frozenset[str] = frozenset()  # of "resource", "prompt"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    quick: bool = False


@cache
def servers() -> tuple[ServerEntry, ...]:
    """The servers in the table."""
    return tuple(_server(name, row) for name, row in _table()["servers"].items())


@cache
def clients() -> tuple[ClientEntry, ...]:
    """The clients in the table."""
    return tuple(_client(name, row) for name, row in _table()["clients"].items())


def _server(name: str, row: dict[str, Any]) -> ServerEntry:
    commands = {transport: row.pop(transport) for transport in ("stdio", "http", "sse") if transport in row}
    return ServerEntry(name=name, environment=_environment(name, row), commands=commands, **row)


def _client(name: str, row: dict[str, Any]) -> ClientEntry:
    environment = _environment(name, row)
    lists = {"transports": tuple, "can": frozenset}
    return ClientEntry(
        name=name, environment=environment, **{key: lists.get(key, lambda value: value)(row[key]) for key in row}
    )


def _environment(name: str, row: dict[str, Any]) -> Environment:
    pypi, npm, shared = tuple(row.pop("pypi", ())), tuple(row.pop("npm", ())), row.pop("shared", None)
    return Environment(name=name, pypi=pypi, npm=npm, as_of=row.pop("as_of", _table()["as_of"]), shared=shared)


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(TABLE.read_text("utf-8"))


def _run(*command: str, cwd: Path | None = None) -> None:
    environment = {**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {ended.returncode}:\n{ended.stdout}{ended.stderr}")


def install(environments: Iterable[Environment]) -> bool:
    """Make all that are not complete, several at once; print how long each took and how large it is, or what failed."""
    missing = {environment.name: environment for environment in environments if not environment.complete}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tasks = [pool.submit(_install, environment) for environment in missing.values()]
        return not [task for task in as_completed(tasks) if not _report(task)]


def _report(task: Future[str]) -> bool:
    try:
        print(task.result(), flush=True)
    except RuntimeError as error:
        print(error, file=sys.stderr, flush=True)
        return False
    return True


def _install(environment: Environment) -> str:
    if environment.shared is not None:
        raise RuntimeError(f"{environment.shared} is missing: `make .peers/{environment.shared}/.ready` installs it")
    begun = time.monotonic()
    environment.install()
    size = sum(file.lstat().st_size for file in environment.folder.rglob("*"))
    return f"{environment.name}: {time.monotonic() - begun:.0f} s, {size / 1e6:.0f} MB"


def main(names: list[str]) -> None:
    """Install the entries with these names: everything if "all" is among them, the quick ones if there is none."""
    entries = (*servers(), *clients())
    if unknown := set(names) - {entry.name for entry in entries} - {"all"}:
        sys.exit(f"not in {TABLE.name}: {', '.join(sorted(unknown))}")
    if not UV.exists():
        sys.exit(f"uv is missing: `make {UV.parents[1].relative_to(ROOT)}/.ready` installs it")
    chosen = [entry for entry in entries if "all" in names or (entry.name in names if names else entry.quick)]
    sys.exit(not install(entry.environment for entry in chosen))


if __name__ == "__main__":
    main(sys.argv[1:])
