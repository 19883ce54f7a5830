"""Owners of the tasks that clients have started through a proxy.

All principals may reach the server behind with the credentials of the proxy, so the server cannot keep their tasks
apart. The proxy remembers which principal has started a task. Clients without a principal are told apart by their
sessions, each with a connection of its own.
"""

from typing import Any, Final

from msgspec import Raw, Struct

from trunkline.errors import InvalidParams
from trunkline.wire import codec

__all__ = ["TaskOwners"]

_MAX_TASKS: Final = 10_000  # the oldest is forgotten


class _Named(Struct, rename="camel", frozen=True):
    task_id: str = ""


class _Created(_Named, rename="camel", frozen=True):
    """A new task: its id is a member of the result from 2026-07-28 on, and of its `task` before."""

    task: _Named = _Named()


_decode_created: Final = codec.json_decoder(_Created)
_decode_named: Final = codec.json_decoder(_Named)
_decode_members: Final = codec.json_decoder(dict[str, Raw])
_decode_list: Final = codec.json_decoder(list[Raw])


class TaskOwners:
    """Principals by the tasks that they have started."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def note(self, result: Raw, owner: str) -> None:
        """Remember the owner of the task in a result, if it has one."""
        try:
            created = _decode_created(result)
        except codec.DecodeError:
            return
        if task_id := created.task_id or created.task.task_id:
            self._owners[task_id] = owner
            if len(self._owners) > _MAX_TASKS:
                del self._owners[next(iter(self._owners))]

    def check(self, task_id: str, owner: str) -> None:
        """Raise `InvalidParams` for a task of another principal, as for one that does not exist."""
        if self._owners.get(task_id, owner) != owner:
            raise InvalidParams(f"there is no task {task_id!r}", data={"kind": "task_not_found", "taskId": task_id})

    def filter_list(self, result: Raw, owner: str) -> Raw:
        """Return a list of tasks without those of other principals, and without those of unknown ones."""
        members: dict[str, Any] = {**_decode_members(result)}
        tasks = _decode_list(members.get("tasks", Raw(b"[]")))
        members["tasks"] = [one for one in tasks if self._owners.get(_decode_named(one).task_id) == owner]
        return codec.to_raw(members)
