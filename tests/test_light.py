"""The weight of the package: dependencies of the base install, and the CPU time of its import."""

import json
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

import trunkline
import trunkline.auth
import trunkline.sampling

ROOT = Path(__file__).parents[1]
MAX_PACKAGES = 3  # besides our own
MAX_RATIO = 2.5  # the CPU of `import trunkline` over that of `import asyncio, msgspec`
TRIES = 7

NOTHING = "pass"
YARDSTICK = "import asyncio, msgspec"
OURS = "import trunkline"
# Without `site`, so that the figure contains neither editable installs nor coverage measurement.
PROGRAM = """
import sys
sys.path += {paths}
{imports}
import resource
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime)
"""


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_base_install_has_few_packages(tmp_path: Path) -> None:
    pip, quiet = (sys.executable, "-m", "pip"), ("--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", *quiet, "--no-deps", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("trunkline-*.whl")
    venv.create(tmp_path / "env", with_pip=False)
    fresh = tmp_path / "env" / "bin" / "python"
    run(*pip, "--python", fresh, "install", *quiet, wheel)
    listed = run(*pip, "--python", fresh, "list", "--disable-pip-version-check", "--format=json")
    names = {package["name"] for package in json.loads(listed)}

    assert "trunkline" in names
    assert len(names - {"trunkline"}) <= MAX_PACKAGES, sorted(names)
    assert run(fresh, "-I", "-c", "import trunkline; print(trunkline.Server('light').name)") == "light\n"


WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys({extras}))  # importing one of these raises ModuleNotFoundError
"""


def without_extras(program: str) -> str:
    """The output of a program in an interpreter that cannot import the package's optional dependencies."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    wanted = [requirement for group in groups if group != "dev" for requirement in groups[group]]
    extras = sorted({re.split(r"[^\w-]", requirement)[0] for requirement in wanted})
    assert "hiredis" in extras
    return run(sys.executable, "-c", WITHOUT_EXTRAS.format(extras=extras) + program)


def test_star_import_needs_no_extras() -> None:
    named = without_extras("from trunkline import *\nimport trunkline\nprint(set(trunkline.__all__) - set(globals()))")
    assert named == "set()\n"


def test_missing_redis_extra_names_package() -> None:
    program = """
from trunkline import RedisStore
from trunkline.errors import ConfigError
try:
    RedisStore("redis://127.0.0.1")
except ConfigError as error:
    print(error)
"""
    told = without_extras(program)
    assert told == "a store on Redis needs the package hiredis: pip install 'trunkline[redis]'\n"


def test_sampling_providers_are_imported_on_use() -> None:
    program = """
import sys
from trunkline import Client, Server
server = Server("light")
Client(server, elicitation=print)
print([name for name in sys.modules if name.startswith("trunkline.sampling")])
Client(server, sampling=print)
print([name for name in sys.modules if name.startswith("trunkline.sampling")])
"""
    assert run(sys.executable, "-c", program) == "[]\n['trunkline.sampling', 'trunkline.sampling.provider']\n"


def test_missing_http_extra_names_package() -> None:
    program = """
from trunkline.errors import MisuseError
from trunkline.sampling import MockModel, OpenAI
MockModel()
try:
    OpenAI("m", api_key="")
except MisuseError as error:
    print(error)
"""
    assert without_extras(program) == "OpenAI needs the library httptools: pip install 'trunkline[http]'\n"


def cpu_of(imports: str) -> float:
    """Seconds, user and system, that a fresh interpreter has used after these imports."""
    paths = [str(ROOT / "src"), str(Path(msgspec.__file__).parents[1])]
    return float(run(sys.executable, "-I", "-S", "-c", PROGRAM.format(paths=paths, imports=imports)))


def test_import_cost_is_bounded() -> None:
    """The best of several alternating runs, minus the cost of the interpreter."""
    best = dict.fromkeys((NOTHING, YARDSTICK, OURS), float("inf"))
    for _ in range(TRIES):
        for imports in best:
            best[imports] = min(best[imports], cpu_of(imports))
    ours, yardstick = best[OURS] - best[NOTHING], best[YARDSTICK] - best[NOTHING]

    assert ours <= MAX_RATIO * yardstick, f"{ours * 1000:.0f} ms against {yardstick * 1000:.0f} ms"


@pytest.mark.parametrize(
    ("package", "name"), [(trunkline, "Server"), (trunkline.auth, "Jwt"), (trunkline.sampling, "OpenAI")]
)
def test_public_name_is_imported_on_first_use(package: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = getattr(package, name)
    monkeypatch.delitem(vars(package), name)
    assert getattr(package, name) is imported
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        package.Nothing  # noqa: B018
