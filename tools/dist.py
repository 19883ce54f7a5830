"""Build the sdist and the wheel, check them, and try them on each Python: `make dist`. Needs Python alone.

The build tools live in an environment of their own below .cache. Every distribution is installed into an empty
environment of each Python, and the README's server and client run there, from a folder outside of this tree. With the
wheel, so do the tests of a project of `trunkline new`, which use all of `trunkline.testing`. Without `--pythons`, the
Pythons are those of the classifiers that are on PATH. `--release` also demands the git tag of the version, its notes
and all Pythons of the classifiers.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from changelog import release_notes

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / ".cache" / "dist" / "tools"
BUILD_TOOLS = ("build>=1.2", "twine>=6.1")
TEST_TOOLS = ("pytest>=8.3", "pytest-asyncio>=1.0", "hypothesis>=6.100")  # of the sample project
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
NOT_IN_WHEEL = re.compile(r"(^|/)(tests?|bench|tools|docs|examples|conformance|__pycache__)/|\.pyc$")
IN_SDIST = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "tests/conftest.py", "tools/dist.py")


class DistError(Exception):
    """The distribution is not as it should be."""


class Python(NamedTuple):
    """An interpreter and its version, such as 3.11."""

    path: str
    version: str


# --- version -------------------------------------------------------------------------------------


def read_version(root: Path = ROOT) -> str:
    """Return the version of version.py, without importing the package."""
    found = re.search(
        r'^__version__ = "([^"]+)"$', (root / "src/trunkline/version.py").read_text("utf-8"), re.MULTILINE
    )
    if found is None:
        raise DistError('src/trunkline/version.py has no line of the form __version__ = "…"')
    return found[1]


def check_tags(version: str, tags: Iterable[str], *, release: bool) -> None:
    """Compare the version tags of this commit with the version; a release must have one."""
    versions = [tag for tag in tags if re.fullmatch(r"v?\d+\.\d+.*", tag)]
    for tag in versions:
        if tag.removeprefix("v") != version:
            raise DistError(f"this commit has the tag {tag}, but version.py says {version}")
    if release and not versions:
        raise DistError(f"a release needs the tag v{version} on this commit")


def tags_here() -> list[str]:
    """Return the tags of the commit; none outside of a git checkout."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return []
    return run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT).split()


# --- build and contents --------------------------------------------------------------------------


def build(into: Path) -> tuple[Path, Path]:
    """Build both distributions; the wheel from the unpacked sdist. Return their paths."""
    if not (TOOLS / ".ready").exists():
        run([sys.executable, "-m", "venv", "--clear", str(TOOLS)])
        run([bin_of(TOOLS) / "python", *PIP, *BUILD_TOOLS])
        (TOOLS / ".ready").touch()
    shutil.rmtree(into, ignore_errors=True)
    run([bin_of(TOOLS) / "python", "-m", "build", "--outdir", str(into), str(ROOT)])
    [sdist], [wheel] = into.glob("*.tar.gz"), into.glob("*.whl")
    run([bin_of(TOOLS) / "python", "-m", "twine", "check", "--strict", str(sdist), str(wheel)])
    return sdist, wheel


def check_wheel(names: Iterable[str], sources: Iterable[str], version: str) -> None:
    """Compare the file names of a wheel with the sources."""
    names, sources = {*names}, {*sources}
    info = f"trunkline-{version}.dist-info"
    wanted = {
        *sources,
        f"{info}/METADATA",
        f"{info}/licenses/LICENSE",
        f"{info}/entry_points.txt",
        "trunkline/py.typed",
    }
    if missing := wanted - names:
        raise DistError(f"the wheel lacks {', '.join(sorted(missing))}")
    if unwanted := {name for name in names if NOT_IN_WHEEL.search(name)} - wanted:
        raise DistError(f"the wheel has {', '.join(sorted(unwanted))}")
    if foreign := {name for name in names - sources if not name.startswith(f"{info}/")}:
        raise DistError(f"the wheel would install {', '.join(sorted(foreign))}, which src does not have")


def check_sdist(names: Iterable[str], sources: Iterable[str], version: str) -> None:
    """Check that an sdist has the sources, the tests and their tools."""
    top = f"trunkline-{version}/"
    wanted = {f"{top}{name}" for name in IN_SDIST} | {f"{top}src/{name}" for name in sources}
    if missing := wanted - {*names}:
        raise DistError(f"the sdist lacks {', '.join(sorted(missing))}")


def sources_of(root: Path = ROOT) -> list[str]:
    """Return the files of src, except for those that Python and pip put there."""
    names = (path.relative_to(root / "src").as_posix() for path in (root / "src").rglob("*") if path.is_file())
    return [name for name in names if not name.endswith(".pyc") and ".egg-info/" not in name]


def check_extras(extras: Mapping[str, Sequence[str]]) -> None:
    """Check that the extra `all` has the requirements of all other extras for users."""
    wanted = {one for name, group in extras.items() if name not in {"all", "dev"} for one in group}
    if (found := {*extras.get("all", ())}) != wanted:
        raise DistError(f"the extra `all` differs from the others in {', '.join(sorted(found ^ wanted))}")


def classified_versions(classifiers: Iterable[str]) -> list[str]:
    """Return the versions of Python that classifiers name."""
    return re.findall(r"^Programming Language :: Python :: (3\.\d+)$", "\n".join(classifiers), re.MULTILINE)


# --- Pythons -------------------------------------------------------------------------------------


def find_pythons(asked: str | None, versions: Sequence[str]) -> tuple[list[Python], dict[str, str]]:
    """Return the Pythons to try, and why others are skipped."""
    found: dict[str, Python] = {}
    skipped: dict[str, str] = {}
    for name in asked.split() if asked else [f"python{version}" for version in versions]:
        wanted = re.search(r"3\.\d+$", name)
        try:
            version = run([name, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
        except (DistError, OSError):
            skipped[wanted[0] if wanted else name] = f"there is no {name} that runs; PYTHONS names interpreters"
            continue
        if version in versions:
            found.setdefault(version, Python(name, version))
        else:
            skipped[version] = f"{name} is none of {', '.join(versions)}"
    for version in versions:
        if version not in found:
            skipped.setdefault(version, "PYTHONS does not name it")
    return [*found.values()], skipped


# --- trials --------------------------------------------------------------------------------------


def readme_examples(text: str) -> tuple[str, str]:
    """Return the server and the client of the README."""
    titles = ("A server", "A client")
    flags = re.MULTILINE | re.DOTALL
    blocks = [re.search(rf"^## {title}\n\n```python\n(.*?)```", text, flags) for title in titles]
    if blocks[0] is None or blocks[1] is None:
        raise DistError('README.md has no examples below "## A server" and "## A client"')
    return blocks[0][1], blocks[1][1]


def try_out(python: Python, package: Path, version: str, folder: Path, *, extras: bool) -> Iterator[str]:
    """Install a distribution into an empty environment and use it; yield each thing that works."""
    home = folder / "environment"
    run([python.path, "-m", "venv", str(home)])
    run([bin_of(home) / "python", *PIP, str(package)])
    server, client = readme_examples((ROOT / "README.md").read_text("utf-8"))
    (folder / "calculator.py").write_text(server, "utf-8")
    (folder / "client.py").write_text(client, "utf-8")
    yield "installed"

    def use(*words: str) -> str:
        return run([bin_of(home) / words[0], *words[1:]], cwd=folder, path=bin_of(home))

    place = use("python", "-c", "import trunkline; print(trunkline.__file__)")
    expect(home.resolve() in Path(place.strip()).resolve().parents, f"trunkline was imported from {place.strip()}")
    for command in (("python", "-m", "trunkline"), ("trunkline",)):
        said = use(*command, "--version").strip()
        expect(said == f"trunkline {version}", f"{' '.join(command)} --version says {said!r}")
    use("python", "-m", "pip", "check")
    said = use("python", "client.py").strip()
    expect(said == "8", f"the README's client printed {said!r}, not 8")
    yield "README"
    said = use("trunkline", "call", "calculator.py", "add", "a=5", "b=3").strip()
    expect(said == "8", f"trunkline call printed {said!r}, not 8")
    yield "trunkline call"
    if extras:
        run([bin_of(home) / "python", *PIP, f"{package}[http]", *TEST_TOOLS])
        use("trunkline", "new", "sample")
        shutil.copy(ROOT / "tools" / "sample_project" / "test_kit.py", folder / "sample" / "tests")
        use("python", "-m", "pytest", "sample", "--quiet", "--mcp-snapshot-update")
        said = use("python", "-m", "pytest", "sample", "--quiet")
        expect(" passed" in said and "skipped" not in said, f"the tests of a sample project: {said}")
        yield "testing kit"
        run([bin_of(home) / "python", *PIP, f"{package}[all]"])
        use("python", "-m", "pip", "check")
        use("python", "-c", "import httptools, websockets, cryptography, joserfc, hiredis, rich, orjson")
        said = use("trunkline", "bench", "calculator.py", "add", "a=5", "b=3", "--http", "--duration", "0.5")
        expect("throughput" in said, f"trunkline bench printed {said!r}")
        yield "extra all, HTTP"


def expect(truth: bool, otherwise: str) -> None:
    """Raise `DistError` unless a statement is true."""
    if not truth:
        raise DistError(otherwise)


def bin_of(environment: Path) -> Path:
    """Return the folder of an environment's programs."""
    return environment / ("Scripts" if os.name == "nt" else "bin")


def run(command: Sequence[str | Path], *, cwd: Path | None = None, path: Path | None = None) -> str:
    """Run a command and return its output; raise `DistError` with the end of its errors if it fails."""
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}
    if path is not None:
        env["PATH"] = os.pathsep.join([str(path), env.get("PATH", os.defpath)])
    ended = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise DistError(f"{' '.join(map(str, command))} failed:\n{(ended.stdout + ended.stderr)[-3000:]}")
    return ended.stdout


def make(options: argparse.Namespace) -> None:
    """Build, check and try the distributions."""
    project: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    version, versions = read_version(), classified_versions(project["classifiers"])
    check_tags(version, tags_here(), release=options.release)
    check_extras(project["optional-dependencies"])
    notes = release_notes(version)
    if options.release and notes is None:
        raise DistError(f"there is no folder changes/{version} with the notes of this release")
    pythons, skipped = find_pythons(options.pythons, versions)
    for name, why in skipped.items():
        print(f"skipped  Python {name}: {why}")
    if not pythons or (options.release and skipped):
        raise DistError(f"a release is tried on Python {', '.join(versions)}" if pythons else "no Python to try it on")
    sdist, wheel = build(options.output)
    with zipfile.ZipFile(wheel) as archive:
        check_wheel(archive.namelist(), sources_of(), version)
    with tarfile.open(sdist) as archive:
        check_sdist(archive.getnames(), sources_of(), version)
    (options.output / "RELEASE_NOTES.md").write_text(notes or release_notes(None) or "", "utf-8")
    print(f"built    {sdist.name}, {wheel.name}: contents and metadata are right")
    for python in pythons:
        for package in (wheel, sdist):
            with tempfile.TemporaryDirectory() as folder:
                done = try_out(python, package.resolve(), version, Path(folder), extras=package is wheel)
                print(f"works    Python {python.version}, {package.suffix[1:]}: {', '.join(done)}", flush=True)


def main() -> int:
    """Run with the arguments of the process."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--pythons", help="interpreters to try it on, separated by blanks")
    parser.add_argument("--release", action="store_true", help="demand a tag, notes and all Pythons of the classifiers")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where the distributions go (dist)")
    try:
        make(parser.parse_args())
    except DistError as error:
        print(f"failed   {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
