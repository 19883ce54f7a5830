"""Launch policy, options and states: decisions without I/O."""

from pathlib import Path
from typing import Any

import pytest

from trunkline import BackendOptions, BackendState, LaunchPolicy
from trunkline.errors import ConfigError, MisuseError
from trunkline.gateway.launch_policy import check_file_owner
from trunkline.gateway.options import make_filter
from trunkline.gateway.states import BackendStatus, state_of
from trunkline.registry.prefixes import Prefix
from trunkline.supervision.child_table import ChildState


def find(program: str) -> str | None:
    """Find every program but one in one folder."""
    return None if program == "missing" else f"/usr/bin/{program}"


@pytest.mark.parametrize(
    ("allowed", "command", "started"),
    [
        (None, ["anything", "-x"], ["anything", "-x"]),
        (["npx"], ["npx", "-y", "server"], ["/usr/bin/npx", "-y", "server"]),
        (["npx -y server"], ["npx", "-y", "server", "--port", "1"], ["/usr/bin/npx", "-y", "server", "--port", "1"]),
        (["/opt/server"], ["/opt/server"], ["/opt/server"]),
    ],
)
def test_allowed_command_is_started(allowed: Any, command: list[str], started: list[str]) -> None:
    assert LaunchPolicy(allowed, which=find).check(command, {"PATH": "/tmp/evil"}) == started


@pytest.mark.parametrize(
    ("allowed", "command", "env", "message"),
    [
        ([], ["npx"], {}, "does not allow the command 'npx'"),
        (["npx -y server"], ["npx", "-y", "other"], {}, "does not allow"),
        (["npx -y server"], ["npx"], {}, "does not allow"),
        (["npx"], ["/tmp/npx"], {}, "does not allow"),
        (["npx"], ["npx-evil"], {}, "does not allow"),
        (["npx"], ["npx"], {"LD_PRELOAD": "x"}, "LD_PRELOAD"),
        (["npx"], ["npx"], {"node_options": "x"}, "node_options"),
        (["missing"], ["missing"], {}, "no program 'missing' on the PATH of the gateway"),
    ],
)
def test_other_command_is_refused(allowed: list[str], command: list[str], env: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LaunchPolicy(allowed, which=find).check(command, env)


@pytest.mark.parametrize("allowed", ["npx", ["'npx"], [""]])
def test_wrong_list_of_commands_is_refused(allowed: Any) -> None:
    with pytest.raises(MisuseError):
        LaunchPolicy(allowed)


@pytest.mark.parametrize(("mode", "fine"), [(0o600, True), (0o644, True), (0o664, False), (0o646, False)])
def test_file_that_others_can_change_is_refused(tmp_path: Path, mode: int, fine: bool) -> None:
    file = tmp_path / "mcp.json"
    file.touch()
    file.chmod(mode)
    if fine:
        check_file_owner(file)
    else:
        with pytest.raises(ConfigError, match="other users can change"):
            check_file_owner(file)


class Entry:
    """An entry with tags."""

    def __init__(self, key: str, *tags: str) -> None:
        self.key = key
        self.tags = frozenset(tags)


@pytest.mark.parametrize(
    ("include", "exclude", "chosen"),
    [
        ((), (), ["read", "write", "note://a"]),
        (("re*",), (), ["read"]),
        (("tag:safe",), (), ["read", "note://a"]),
        ((), ("note:*", "write"), ["read"]),
        (("tag:safe",), ("read",), ["note://a"]),
        (("READ",), (), []),
    ],
)
def test_filter_chooses_by_pattern_and_tag(
    include: tuple[str, ...], exclude: tuple[str, ...], chosen: list[str]
) -> None:
    offers = make_filter(BackendOptions(include=include, exclude=exclude), Prefix("p"))
    entries = [Entry("read", "safe"), Entry("write"), Entry("note://a", "safe")]
    assert [entry.key for entry in entries if offers(entry)] == chosen


def test_state_of_a_backend_tells_a_first_start_from_a_restart() -> None:
    assert state_of(ChildState.STARTING, BackendState.STOPPED) is BackendState.STARTING
    assert state_of(ChildState.STARTING, BackendState.READY) is BackendState.RESTARTING
    assert state_of(ChildState.STARTING, BackendState.DEGRADED) is BackendState.STARTING
    for child in ChildState:
        assert state_of(child, BackendState.READY) in BackendState


def test_description_for_clients_has_no_reason_and_no_names() -> None:
    status = BackendStatus(state=BackendState.DEGRADED, reason="--token=secret", blocked=("evil",))
    assert status.describe() == {"state": "degraded", "blockedTools": 1}
