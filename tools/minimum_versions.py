"""Print the lowest version that `pyproject.toml` allows of each dependency of the package, as constraints for pip.

`make test-minimum` installs these and runs the core of the suite with them. The tools of the `dev` extra stay current.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)>=(?P<lowest>[\w.]+)")
NOT_SHIPPED = {"dev"}


def requirements(project: dict[str, Any]) -> Iterator[str]:
    """Yield the requirements of the package and of its extras."""
    yield from project["dependencies"]
    for extra, needed in project["optional-dependencies"].items():
        if extra not in NOT_SHIPPED:
            yield from needed


def pins(project: dict[str, Any]) -> list[str]:
    """Return one constraint for each dependency; each must declare a lowest version, the same everywhere."""
    lowest: dict[str, str] = {}
    for requirement in requirements(project):
        found = REQUIREMENT.match(requirement)
        if found is None:
            raise SystemExit(f"{requirement!r} declares no lowest version; write it as 'name>=version'")
        if lowest.setdefault(found["name"], found["lowest"]) != found["lowest"]:
            raise SystemExit(f"{found['name']} is declared with two lowest versions")
    return [f"{name}=={version}" for name, version in sorted(lowest.items())]


if __name__ == "__main__":
    print(*pins(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]), sep="\n")
