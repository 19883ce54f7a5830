"""Survey of a store: counts by kind, records that cannot be decoded, and leases. Pure, apart from the reader."""

from collections import defaultdict
from typing import Final

from msgspec import Struct, field

from trunkline.cli.store_kinds import created_at, has_older_layout, kind_of, mask_key, owner_of_item
from trunkline.stores.reader import StoreReader
from trunkline.stores.store import Item, Lease

__all__ = ["KindCount", "StoreSurvey", "live_processes", "survey_store"]

_EXAMPLES: Final = 5  # unreadable items that are named


class KindCount(Struct):
    """The items of one kind that are not expired."""

    items: int = 0
    bytes: int = 0  # of keys and values
    owners: set[str] = field(default_factory=set[str])
    oldest: float | None = None  # creation, where the record has it
    newest: float | None = None


class StoreSurvey(Struct):
    """Everything that a pass over a store has found."""

    kinds: defaultdict[str, KindCount] = field(default_factory=lambda: defaultdict(KindCount))
    expired: int = 0  # items that are expired and not deleted yet
    unreadable: int = 0
    examples: list[str] = []  # of unreadable items
    unknown: int = 0
    older_layouts: int = 0
    leases: int = 0  # that are not expired
    processes: list[str] = []  # that hold their process lease
    orphaned: int = 0  # leases of sessions whose process is dead

    @property
    def items(self) -> int:
        """Number of items that are not expired."""
        return sum(count.items for count in self.kinds.values())

    @property
    def owners(self) -> set[str]:
        """Owner ids of all items."""
        return set[str]().union(*(count.owners for count in self.kinds.values()))


def live_processes(leases: list[Lease], now: float) -> list[str]:
    """Return the names of the processes that hold their lease; an evicted process is one whose lease another holds."""
    return sorted(lease.holder for lease in leases if lease.expires > now and lease.name == f"process/{lease.holder}")


async def survey_store(reader: StoreReader) -> StoreSurvey:
    """Read everything in a store once."""
    survey = StoreSurvey()
    async for item in reader.items():
        if item.expires is not None and item.expires <= reader.now:
            survey.expired += 1
        else:
            _count(survey, item)
    leases = [lease async for lease in reader.leases() if lease.expires > reader.now]
    survey.leases = len(leases)
    survey.processes = live_processes(leases, reader.now)
    held = [lease for lease in leases if lease.name.startswith("session/")]
    survey.orphaned = sum(lease.holder not in survey.processes for lease in held)
    return survey


def _count(survey: StoreSurvey, item: Item) -> None:
    kind = kind_of(item.key)
    count = survey.kinds[kind.name]
    count.items += 1
    count.bytes += len(item.key.encode()) + len(item.value)
    survey.unknown += kind.name == "unknown"
    try:
        record = kind.decode(item.value)
        survey.older_layouts += has_older_layout(item)
    except Exception as error:  # noqa: BLE001 - whatever a malformed value makes a decoder raise
        survey.unreadable += 1
        if len(survey.examples) < _EXAMPLES:
            survey.examples.append(mask_key(item.key) if kind.secret else f"{mask_key(item.key)}: {error}")
        return
    owner, created = owner_of_item(item.key, record), created_at(record)
    if owner is not None:
        count.owners.add(owner)
    if created is not None:
        count.oldest = created if count.oldest is None else min(count.oldest, created)
        count.newest = created if count.newest is None else max(count.newest, created)
