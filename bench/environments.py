"""One virtual environment per target, so that all of them run on the same CPython and none sees another's packages."""

import hashlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = {
    "trunkline": [".[speed]"],
    "trunkline-plain": ["."],
    "bare": ["--requirement", "bench/peers/bare.txt"],
    "mcp": ["--requirement", "tests/interop/peers/mcp.txt"],
    "turbomcp": ["--requirement", "tests/interop/peers/turbomcp.txt"],
}


class CannotInstall(Exception):
    """An environment could not be made; its targets are not measured."""


class Environments:
    """Makes environments for one CPython, each when it is first needed or when what goes into it has changed."""

    def __init__(self, python: str) -> None:
        facts = "import sys, platform; print(sys.executable, platform.python_version(), sep='\\n')"
        self._python, self.version = _output([python, "-c", facts]).splitlines()

    def interpreter(self, name: str) -> Path:
        """The interpreter of the environment called `name`, with its packages installed."""
        home = ROOT / ".peers" / f"bench-{self.version}" / name
        interpreter, stamp = home / "bin" / "python", home / ".ready"
        wanted = self._fingerprint(REQUIREMENTS[name])
        if not stamp.exists() or stamp.read_text() != wanted:
            stamp.unlink(missing_ok=True)
            if not self._is_ours(home):
                _output([self._python, "-m", "venv", "--clear", str(home)])
            pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _output([*pip, *REQUIREMENTS[name]])
            stamp.write_text(wanted)
        return interpreter

    def _is_ours(self, home: Path) -> bool:
        """Whether a virtual environment of this very CPython is there already."""
        settings = home / "pyvenv.cfg"
        return settings.exists() and f"executable = {Path(self._python).resolve()}\n" in settings.read_text()

    def _fingerprint(self, requirements: Sequence[str]) -> str:
        """Changes whenever the same installation would bring something else."""
        digest = hashlib.sha256("\n".join([self._python, *requirements]).encode())
        for path in _inputs(requirements):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()


def _inputs(requirements: Sequence[str]) -> Iterator[Path]:
    """The files an installation reads: a list of requirements, or our own sources."""
    if requirements[0] == "--requirement":
        yield ROOT / requirements[1]
    else:
        yield ROOT / "pyproject.toml"
        yield from sorted((ROOT / "src").rglob("*.py"))


def _output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError as error:
        raise CannotInstall(error.stderr.strip()[-2000:]) from error
