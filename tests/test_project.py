"""Rules of the project: layers of imports, documentation and packaging."""

import ast
import inspect
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.limits import PATIENCE
from tools.rows import FoundTest, Row, find_tests, read_rows

import trunkline
from trunkline import Context, Server

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/trunkline"
MAX_PACKAGES = 3

LOWEST_LAYER = {
    *("errors", "config", "facts", "tracing", "findings", "clock", "event_loop", "token_bucket", "client_address"),
    *("fdlimit", "backlog", "private_folder", "file_lock", "jsonc", "version"),
}
SEAMS = {
    "transports.channel",
    "transports.http.session.event_store",
    "transports.http.authenticator",
    "transports.http.request",
    "transports.http.routes",
    "transports.http.session.backend",
    "transports.http.client.credentials",
    "transports.http.client.http_backend",
    "transports.http.client.url",
    "sampling.provider",
    "auth.ssrf",
    "auth.page_policy",
    "auth.principal",
    "stores.store",
    "stores.bus",
    "stores.identity",
    "stores.shared_values",
}  # of a layer that others may import only through its protocol
MAY_IMPORT = {
    "errors": set(),
    "client_address": set(),
    "token_bucket": {"errors"},
    "config": {"errors", "token_bucket"},
    "fact_queue": set(),
    "facts": {"fact_queue", "tracing"},
    "tracing": {"fact_queue"},
    "findings": set(),
    "clock": set(),
    "event_loop": set(),
    "fdlimit": set(),
    "private_folder": set(),
    "backlog": {"fdlimit"},
    "file_lock": set(),
    "jsonc": set(),
    "version": set(),
    "wire": LOWEST_LAYER,
    "protocol": LOWEST_LAYER | {"wire"},
    "registry": LOWEST_LAYER | {"wire", "protocol"},
    "transforms": {"registry"},
    "http": LOWEST_LAYER | {"wire", "registry"},
    "transports": LOWEST_LAYER | {"wire", "protocol"},
    "stores": LOWEST_LAYER | {"wire"},
    "receipts": LOWEST_LAYER | {"wire"},
    "auth": LOWEST_LAYER
    | {
        "wire",
        "protocol",
        "transports.http.authenticator",
        "transports.http.request",
        "transports.http.client.credentials",
        "transports.http.client.http_backend",
        "transports.http.client.connection_pool",
    },
    "sampling": LOWEST_LAYER
    | {
        *("wire", "protocol", "transports.http.client.http_backend", "transports.http.client.connection_pool"),
        *("transports.http.client.url", "transports.proxy"),
    },
    "trust": LOWEST_LAYER | {"wire", "protocol"},
    "observers": LOWEST_LAYER | {"wire"},
    "metrics": LOWEST_LAYER,
    "rpc": LOWEST_LAYER | {"wire", "protocol", "registry", "transports.channel"},
    "server": LOWEST_LAYER
    | {
        *("wire", "protocol", "registry", "rpc", "transports.channel", "auth.principal", "stores.store"),
        *("stores.bus", "stores.identity", "stores.shared_values", "http", "transports.http.routes"),
        *("transports.http.session.event_store", "transports.http.session.backend", "supervision"),
        *("sampling.provider", "receipts", "metrics"),
    },
    "supervision": LOWEST_LAYER,
    "names": LOWEST_LAYER | {"wire"},
    "client": LOWEST_LAYER
    | {
        *("wire", "protocol", "registry", "rpc", "transports.channel", "supervision"),
        *("auth.ssrf", "auth.page_policy", "sampling.provider", "trust"),
    },
    "proxies": LOWEST_LAYER
    | {
        *("wire", "protocol", "registry", "rpc", "server", "client", "observers", "transports.channel"),
        "transports.http.client.credentials",
    },
    "gateway": LOWEST_LAYER
    | {
        *("wire", "protocol", "registry", "rpc", "server", "client", "proxies", "supervision", "trust", "observers"),
        *("transports.channel", "transports.stdio.client"),
    },
}
ASSEMBLY = {
    "server.server",
    "server.run.process",
    "server.run.workers",
    "server.run.log_setup",
    "client.client",
    "client.targets",
    "client.server_config",
    "names.directory",
    "names.shared_directory",
    "names.shared_listener",
    "gateway.gateway",
    "gateway.callers",
}  # may also import these:
ASSEMBLED = {"transports", "observers", "server", "client", "auth", "stores", "receipts", "supervision"}
ANYTHING = {"", "__main__", "cli", "testing"}  # the package itself, its command line, and test support

PURE = ("wire", "protocol", "registry", "http")
PURE_MODULES = {
    *("sampling.model_choice", "sampling.translation", "sampling.message_builder", "sampling.problems"),
    *("sampling.openai_format", "sampling.anthropic_format", "sampling.ollama_format"),
    *("receipts.canonical", "receipts.entry", "receipts.chain"),
    *("metrics.families", "metrics.exposition"),
    *("trust.pins", "trust.hidden_text", "trust.lookalikes"),
}  # of packages with shells
WRAPS_COROUTINES = {"registry.handlers", "registry.generators"}  # entry points of users
MAY_LOCK = {("registry.registry", "threading")}  # handlers on threads may change the catalog
NOT_PURE = {"asyncio", "logging", "selectors", "socket", "subprocess", "threading", "time"}
JSON = {"json", "orjson", "simplejson"}
ONLY_IMPORTER = {
    "jsonschema_rs": "registry.validators",
    "uvloop": "event_loop",
    "httptools": "transports.http",
    "websockets": "transports.websocket",
    "cryptography": ("server.input.state_token", "receipts.checkpoints"),
    "sqlite3": "stores",
    "hiredis": "stores.redis.connection",
    "joserfc": "auth.jose",
    "rich": "cli",
    "opentelemetry": "observers.otel",
    "hypothesis": "testing",
    **dict.fromkeys(JSON, "wire.codec"),
}
THIRD_PARTY = {
    "msgspec",
    "jsonschema_rs",
    "uvloop",
    "orjson",
    "httptools",
    "websockets",
    "cryptography",
    "joserfc",
    "opentelemetry",
    "rich",
    "hiredis",
    "hypothesis",
}
FOR_TYPE_CHECKERS = {"typing_extensions"}  # which ship its stubs; it is not a dependency


class Import(NamedTuple):
    """One import: importer, imported module, and whether it happens at run time."""

    module: str  # within the package: "server.run.process"
    target: str  # the same for our own modules; the full name for third-party ones
    own: bool
    at_run_time: bool

    def __str__(self) -> str:
        return f"{self.module} imports {self.target}"


@cache
def modules() -> dict[str, Path]:
    """Every module by its name within the package; the package itself is ""."""
    found = {}
    for file in SOURCE.rglob("*.py"):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text("utf-8"))


@cache
def imports() -> list[Import]:
    return [found for module in modules() for found in _imports_in(module, tree(module), at_run_time=True)]


def _imports_in(module: str, node: ast.AST, *, at_run_time: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imports_in(module, child, at_run_time=False)
            continue
        for name in _names(child):
            own = name == "trunkline" or name.startswith("trunkline.")
            yield Import(module, name.removeprefix("trunkline").lstrip(".") if own else name, own, at_run_time)
        yield from _imports_in(module, child, at_run_time=at_run_time)


def _names(node: ast.AST) -> Iterator[str]:
    """The modules that a statement imports: `from a import b` is a.b where that is a module, and a where it is not."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield whole if whole.removeprefix("trunkline.") in modules() else str(node.module)


def part(module: str) -> str:
    """The part of the package that a module belongs to."""
    return module.partition(".")[0]


def covers(allowed: set[str], target: str) -> bool:
    return target in allowed or (part(target) in allowed and part(target) not in {part(seam) for seam in SEAMS})


def allowed_to(module: str, target: str) -> bool:
    if part(module) in ANYTHING or part(module) == part(target):
        return True
    if module in ASSEMBLY and part(target) in ASSEMBLED:
        return True
    return covers(MAY_IMPORT[part(module)], target)


# --- import layers ------------------------------------------------------------------------------


@pytest.mark.row("W22")
def test_imports_point_one_way() -> None:
    assert [str(found) for found in imports() if found.own and not allowed_to(found.module, found.target)] == []


@pytest.mark.row("W22")
def test_transports_never_import_a_feature() -> None:
    reached = {found.target for found in imports() if found.own and part(found.module) == "transports"}
    assert {part(target) for target in reached} <= LOWEST_LAYER | {"wire", "protocol", "transports"}


def test_every_package_is_in_table() -> None:
    assert {part(module) for module in modules()} == MAY_IMPORT.keys() | ANYTHING


def test_manual_shows_import_table() -> None:
    page = (ROOT / "docs/design/architecture.md").read_text("utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `")]
    shown = {name: _named(cells[3]) for cells in rows if len(cells) == 4 for name in _named(cells[0])}
    apart = {"client", "supervision", *LOWEST_LAYER}  # their rows name modules of other layers
    for name in MAY_IMPORT.keys() - apart:
        assert shown[name] == MAY_IMPORT[name] - LOWEST_LAYER


def _named(cell: str) -> set[str]:
    return set(re.findall(r"`([\w./]+)`", cell))


def test_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for found in imports():
        if found.own and found.at_run_time and found.target != found.module:
            graph[found.module].add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' <- '.join(error.args[1])}")


def test_no_import_cycle_under_type_checking() -> None:
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for found in imports():
        if found.own and found.target != found.module:
            graph[found.module].add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' <- '.join(error.args[1])}")


def test_third_party_packages_stay_in_their_files() -> None:
    strangers = [found for found in imports() if not found.own and part(found.target) not in sys.stdlib_module_names]
    assert {part(found.target) for found in strangers if found.at_run_time} <= THIRD_PARTY
    assert {part(found.target) for found in strangers} <= THIRD_PARTY | FOR_TYPE_CHECKERS
    homes = [found for found in imports() if part(found.target) in ONLY_IMPORTER and not found.own]
    assert [str(found) for found in homes if not _may_import(found)] == []


def _may_import(found: Import) -> bool:
    home = ONLY_IMPORTER[part(found.target)]
    return f"{found.module}.".startswith(tuple(f"{one}." for one in ([home] if isinstance(home, str) else home)))


def test_only_codec_uses_json() -> None:
    used = {(module, name) for module in modules() for name in _msgspec_json(tree(module))}
    assert {use for use in used if use[0] != "wire.codec"} == set()


def _msgspec_json(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "msgspec.json":
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and node.module in {"msgspec", "msgspec.json"}:
            yield from (a.name for a in node.names if node.module == "msgspec.json" or a.name == "json")


def is_pure(module: str) -> bool:
    return part(module) in PURE or module in PURE_MODULES


def test_pure_logic_has_no_async_and_no_clock() -> None:
    found = [
        str(i)
        for i in imports()
        if is_pure(i.module) and not i.own and part(i.target) in NOT_PURE and (i.module, i.target) not in MAY_LOCK
    ]
    waiting = [
        f"{module}:{node.lineno}"
        for module in modules()
        if is_pure(module) and module not in WRAPS_COROUTINES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
    ]
    assert found == []
    assert waiting == []


# --- size, documents, packaging -----------------------------------------------------------------


@pytest.mark.row("Z09", "PH53", "PH65")
def test_reference_has_every_public_name() -> None:
    page = (ROOT / "docs/reference/api.md").read_text("utf-8")
    section = page.partition("<!-- generated: api-names -->")[2].partition("<!-- end -->")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == trunkline.__all__


@pytest.mark.row("Z09", "PH53", "PH65")
def test_every_public_name_has_docstring() -> None:
    undocumented = []
    for name in trunkline.__all__:
        thing = getattr(trunkline, name)
        members = [(member, value) for member, value in vars(thing).items() if not member.startswith("_")]
        functions = [(m, value) for m, value in members if inspect.isfunction(value) or isinstance(value, property)]
        undocumented += [name] * (not thing.__doc__)
        undocumented += [f"{name}.{member}" for member, value in functions if not inspect.getdoc(value)]
    assert undocumented == []


def test_every_exported_class_and_function_has_a_docstring() -> None:
    undocumented = []
    for name in modules():
        module = tree(name)
        if module.body and not ast.get_docstring(module):
            undocumented.append(name)
        exported = set(getattr(sys.modules.get(f"trunkline.{name}"), "__all__", ()))
        for node in module.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name in exported:
                undocumented += [f"{name}.{node.name}"] * (not ast.get_docstring(node))
    assert undocumented == []


@pytest.mark.row("Z09", "PH54", "PH65")
def test_migration_guide_names_existing_members() -> None:
    page = (ROOT / "docs/how-to/migrate.md").read_text("utf-8")
    owners = {"server": Server, "ctx": Context}
    ours = [line.rsplit("|", 2)[1] for line in page.splitlines() if line.startswith("| ")]
    named = [match for cell in ours for match in re.findall(r"[`@ ](server|ctx)\.(\w+)[(` ]", cell)]
    assert len(named) > 10
    assert [name for owner, name in named if not hasattr(owners[owner], name)] == []


@pytest.mark.row("Z09")
def test_generated_parts_of_the_manual_are_fresh() -> None:
    command = [sys.executable, str(ROOT / "tools/generated.py"), "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_changelog_is_fresh() -> None:
    command = [sys.executable, "-I", "-S", str(ROOT / "tools/changelog.py"), "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.row("B14")
def test_decision_records_cover_the_settled_contradictions() -> None:
    pages = sorted((ROOT / "docs/decisions").glob("0*.md"))
    index = (ROOT / "docs/decisions/index.md").read_text("utf-8")
    assert re.findall(r"\((0\d+-[\w-]+\.md)\)", index) == [page.name for page in pages]
    texts = [page.read_text("utf-8") for page in pages]
    parts = ("**Context.**", "**Decision.**", "**Consequences.**")
    assert [page.name for page, text in zip(pages, texts, strict=True) if any(part not in text for part in parts)] == []
    named = [row for text in texts for row in re.findall(r"\w+", text.partition("**Acceptance rows.**")[2])]
    settled = [row.ident for row in listed_rows() if re.fullmatch(r"X\d\d", row.ident) and row.open_because is None]
    assert sorted(named) == settled


@pytest.mark.row("N18")
def test_manual_lists_change_notifications() -> None:
    page = (ROOT / "docs/reference/methods.md").read_text("utf-8")
    told = page.partition("<!-- generated: changes -->")[2].partition("<!-- end -->")[0]
    for name in ("tools/list_changed", "resources/list_changed", "prompts/list_changed", "resources/updated"):
        assert f"`notifications/{name}`" in told


def test_base_install_has_few_requirements() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert len(project["dependencies"]) <= MAX_PACKAGES


def test_package_is_marked_as_typed() -> None:
    assert (SOURCE / "py.typed").exists()


# --- files under version control ----------------------------------------------------------------

# Written in pieces, so that this file does not find itself.
MACHINE_PATH = re.compile(
    r"(?<![\w/.:~-])/(?:" + "|".join(["ro" + "ot", "ho" + "me", "Us" + "ers", "wo" + "rk"]) + r")/\w"
)
REGISTRY = re.compile("|".join(["py" + r"pi\.org", "python" + "hosted", "npm" + r"js\.(?:org|com)", "index" + "-url"]))


def tracked() -> list[Path]:
    """The files that are under version control, or would be with the next commit."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY], ids=["machine paths", "package registries"])
def test_no_file_has_local_paths(pattern: re.Pattern[str]) -> None:
    found = {str(file.relative_to(ROOT)): pattern.findall(file.read_text("utf-8", "replace")) for file in tracked()}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_test_names_are_unique_per_file() -> None:
    hidden = []
    for file in (ROOT / "tests").rglob("test_*.py"):
        for node in [
            n for n in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(n, ast.Module | ast.ClassDef)
        ]:
            functions = [n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
            hidden += [f"{file.relative_to(ROOT)}: {name}" for name, n in Counter(functions).items() if n > 1]
    assert hidden == []


# --- the acceptance rows ------------------------------------------------------------------------


def test_rows_are_listed_without_environment() -> None:
    command = [sys.executable, "-I", "-S", str(ROOT / "tools/rows.py")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    rows = re.findall(r"^[A-Z]{1,2}\d{2,5}e?\b", (ROOT / "tests/rows.txt").read_text("utf-8"), re.MULTILINE)
    assert len(rows) == len(set(rows)) > 382
    assert "W22" not in re.findall(r"^  (\w+)", done.stdout, re.MULTILINE)
    assert re.search(rf"^all +{len(rows)} ", done.stdout, re.MULTILINE)


def listed_rows() -> list[Row]:
    sections = read_rows((ROOT / "tests/rows.txt").read_text("utf-8"))
    return [row for rows in sections.values() for row in rows]


@cache
def rows_shown() -> dict[str, list[FoundTest]]:
    return find_tests(ROOT / "tests")


def test_only_open_rows_have_a_reason() -> None:
    shown = rows_shown()
    assert [row.ident for row in listed_rows() if (row.ident in shown) is (row.open_because is not None)] == []


@pytest.mark.row("Z14")
def test_acceptance_points_of_the_plan_have_tests() -> None:
    points = [row.ident for row in listed_rows() if row.ident.startswith("PH")]
    by_phase = Counter(ident[2] for ident in points)
    assert by_phase == {"1": 5, "2": 6, "3": 6, "4": 5, "5": 5, "6": 6}
    assert [ident for ident in points if ident not in rows_shown()] == []


def test_row_markers_name_listed_rows() -> None:
    marked = {ident for ident in rows_shown() if "-" not in ident}  # the others are clauses, such as PAG-01
    assert marked - {row.ident for row in listed_rows()} == set()


def test_tests_are_found_by_their_rows(tmp_path: Path) -> None:
    (tmp_path / "test_parts.py").write_text(
        "CASES = [pytest.param(1, marks=pytest.mark.row('A03')), 2]\n"
        "@pytest.mark.row('A01', 'A02')\ndef test_marked(): ...\n"
        "@pytest.mark.parametrize('case', CASES)\nasync def test_cases(case): ...\n"
        "@pytest.mark.row('A04')\ndef helper(): ...\n"
    )
    marked, cases = FoundTest("test_parts.py", "test_marked"), FoundTest("test_parts.py", "test_cases")
    assert find_tests(tmp_path) == {"A01": [marked], "A02": [marked], "A03": [cases]}
