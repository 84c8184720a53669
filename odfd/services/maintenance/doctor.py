"""Probes the state directory for ``odfctl doctor``: disk, database, ledger, keys, heads, and known damage.

``quick`` costs little, however much data there is. ``deep`` reads all of the database: every page and index, every
seal, every link of the ledger and every reference; ``odfctl verify`` checks blocks and objects. Synchronous. A probe
that meets a fault reports it, and the others go on.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from chain.codec.blocks import decode_block
from chain.errors import Fault
from chain.ids import DatasetId, KeyDid
from chain.model.events import Seed
from chain.store.seals import sealed_tables
from chain.store.sqlite import snapshot_of
from chain.wording import agree, plural, size
from odfd.control import wire
from odfd.resources.store import ResourceStore
from odfd.services.maintenance.restore import unfinished_folder
from odfd.store import spool
from odfd.store.damage import Damage
from odfd.store.directory import PARTIAL, StateDirectory
from odfd.store.ledger.log import Ledger
from odfd.store.references import references_hold
from odfd.store.visibility import Marks, Visibility, VisibilityMark

LAST_ENTRIES: Final = 1000
"""Newest entries of the ledger whose links a quick examination checks."""
SHOWN: Final = 3
"""Most findings of one kind that are named."""
_REPAIR: Final = "odfctl pull {} --repair repairs what it can, from peers too"


class Doctor:
    """The probes of a state directory. ``troubles``: unsigned heads with reasons; ``more``: other probes, by name;
    ``reserve``: bytes of the disk that are kept free."""

    def __init__(
        self,
        home: StateDirectory,
        visibility: Visibility,
        troubles: Callable[[], Mapping[DatasetId, str]],
        more: Mapping[str, Callable[[], wire.Probe]],
        reserve: Callable[[], int] = lambda: 0,
    ) -> None:
        self._home, self._reserve = home, reserve
        self._visibility = visibility
        self._more = more
        self._troubles = troubles

    def quick(self) -> Iterator[wire.Probe]:
        return (_try_probe(name, probe) for name, probe in self._quick().items())

    def deep(self) -> Iterator[wire.Probe]:
        """Yields the results of the deep probes and the quick ones; a deep probe replaces the quick one of its name."""
        deep = {"database": self._pages, "rows": self._rows, "trust ledger": self._whole_ledger, "chains": self._chains}
        for name, probe in {**self._quick(), **deep}.items():
            yield _try_probe(name, probe)

    def _quick(self) -> dict[str, Callable[[], wire.Probe]]:
        return {
            "disk": self._disk,
            "last end": self._last_end,
            "database": self._database,
            "trust ledger": self._ledger,
            "keys": self._keys,
            "heads": self._heads,
            "damage": self._damage,
            "published": self._probe_published,
            "deletions": self._deletions,
            **self._more,
        }

    def _disk(self) -> wire.Probe:
        directory = self._home.directory
        probe = directory / ".doctor"
        try:
            probe.write_bytes(bytes(4096))
            probe.unlink()
        except OSError as error:
            hint = {
                errno.ENOSPC: "free some space: what was committed is safe, and work continues by itself",
                errno.EROFS: "mount it writable: a failing disk is often made read-only, look at the kernel's log",
                errno.EACCES: f"give {directory} to the user that the node runs as",
            }.get(error.errno or 0, "look at the kernel's log: the disk may be failing")
            return fail("disk", f"cannot write to {directory}: {error.strerror}", hint)
        free = shutil.disk_usage(directory).free
        waiting = [file.stat().st_size for file in self._home.folder(PARTIAL).iterdir()]
        under_way = f"; {_on_the_way(waiting)}" if waiting else ""
        if free < (reserve := self._reserve()):
            message = f"{size(free)} free{under_way}, and {size(reserve)} are kept free: no new data is stored"
            hint = "free some space, or lower limits.disk-reserve-bytes"
            return wire.Probe(name="disk", result="warning", message=message, hint=hint)
        return ok("disk", f"{size(free)} free at {directory}{under_way}")

    def _last_end(self) -> wire.Probe:
        found = self._home.recovery
        if found.lost:
            return fail(
                "last end",
                str(found),
                "odfctl pull --all: mirrors fetch it again; odfctl pull REF --repair fetches what is this node's own "
                "from its mirrors; what no peer has yet is to be done again",
            )
        if found.unsettled:
            return fail("last end", str(found), "odfctl pull REF --repair; or delete the dataset and take it in again")
        if (left := unfinished_folder(self._home.directory)).is_dir():
            message = f"{found}; a restore to this folder was cut off, and this node is a new one: {left} is left of it"
            hint = f"odfctl restore to another folder and start the node on that; or delete {left}"
            return wire.Probe(name="last end", result="warning", message=message, hint=hint)
        return ok("last end", str(found))

    def _database(self) -> wire.Probe:
        with self._home.database.write() as connection:
            # This change alters nothing: it finds a full or read-only disk.
            connection.execute("UPDATE versions SET version = version")
        count, held = len(self._home.chains.datasets()), self._home.database_size()
        return ok("database", f"{plural(count, 'chain')}, {size(held)}; --deep reads all of it")

    def _pages(self) -> wire.Probe:
        problems = self._home.database.damage()
        if not problems:
            return ok("database", "every page and index is in order")
        if all("index" in problem for problem in problems):
            return fail("database", _few(problems), "odfctl pull REF --repair, of any dataset, makes indexes again")
        fault = self._home.database.corrupt(_few(problems))
        return fail("database", str(fault), fault.hint)

    def _rows(self) -> wire.Probe:
        with self._home.database.read() as connection:
            found = {table: list(table.damaged(connection)) for table in sealed_tables(connection)}
            pushed = list(spool.damaged_bodies(connection))
            strays = connection.execute("PRAGMA foreign_key_check").fetchall()
        spoilt = [name for names in found.values() for name in names]
        spoilt += pushed
        if strays:
            spoilt.append(f"{plural(len(strays), 'block')} of no chain")
        if not spoilt:
            return ok("rows", "every row with a seal is as it was written")
        of_push = spool.PUSH_DAMAGED if pushed else "odfctl pull REF --repair"
        hint = next((table.hint for table, names in found.items() if names), of_push)
        return fail("rows", f"damaged: {_few(spoilt)}", hint)

    def _ledger(self) -> wire.Probe:
        with self._home.database.read() as connection:
            entries = Ledger(connection).check(LAST_ENTRIES)
        return ok("trust ledger", f"the links of the last {plural(entries, 'entry', 'entries')} hold")

    def _whole_ledger(self) -> wire.Probe:
        with self._home.database.read() as connection:
            entries = Ledger(connection).check()
        return ok("trust ledger", f"{plural(entries, 'entry', 'entries')}, every link holds")

    def _keys(self) -> wire.Probe:
        count, lost = self._home.keys.check(), self._home.keys.list_lost()
        if lost:
            names = _few([self._signer(key) for key in lost])
            return fail(
                "keys",
                f"signing journals are gone, and these sign nothing: {names}",
                "odfctl trust sign asks peers what they have signed; without a peer to ask: odfctl trust sign --alone",
            )
        return ok("keys", f"{plural(count, 'key')} and {agree(count, 'its journal', 'their journals')} can be read")

    def _signer(self, key: KeyDid) -> str:
        if key == self._home.keys.node_key().did:
            return "the node's key"
        if not self._home.keys.has_dataset_key(DatasetId.from_public_key(key.public_key)):
            return "the validator's key"
        return f"the key of {self._home.name_of(DatasetId.from_public_key(key.public_key))}"

    def _heads(self) -> wire.Probe:
        """Checks that the newest block of each of our own datasets is signed."""
        troubles = self._troubles()
        behind = [f"{self._home.name_of(dataset)}: {why}" for dataset, why in troubles.items()]
        if behind:
            hint = "what hinders is said; when the state is an old one: odfctl pull REF --repair, from who has more"
            return fail("heads", f"not signed: {_few(behind)}", hint)
        unsigned = [
            self._home.name_of(dataset) for dataset in self._home.chains.datasets() if self._is_unsigned(dataset)
        ]
        if unsigned:
            message = f"not signed yet: {_few(unsigned)}"
            return wire.Probe(name="heads", result="warning", message=message, hint="it is signed in a moment")
        return ok("heads", "all that is ours is signed")

    def _is_unsigned(self, dataset: DatasetId) -> bool:
        head = self._home.chains.chain(dataset).head()
        if head is None or not self._home.keys.has_dataset_key(dataset):
            return False
        with self._home.database.read() as connection:
            newest = Ledger(connection).newest_head(dataset)
        return newest is None or newest[0].size < head.size

    def _probe_published(self) -> wire.Probe:
        """Reports how many datasets others may see.

        Warns of those that others may see only because an older version gave them away.
        """
        names = {entry.id: entry.name for entry in self._home.entries()}
        public = self._visibility.public_of(names)
        counted = f"{len(public)} of {plural(len(names), 'dataset')}"
        with self._home.database.read() as connection:
            before = [
                names[each]
                for each, mark in Marks(connection).all().items()
                if mark is VisibilityMark.BEFORE and each in names
            ]
        if before:
            return wire.Probe(
                name="published",
                result="warning",
                message=f"{counted}; given since before datasets were private: {_few(sorted(before))}",
                hint="odfctl unpublish NAME makes one private; odfctl publish NAME confirms it",
            )
        return ok("published", counted)

    def _damage(self) -> wire.Probe:
        found: dict[str, str] = {}
        with self._home.database.read() as connection:
            notes = Damage(connection)
            for dataset in notes.datasets():
                spots = notes.of(dataset)
                found[self._home.name_of(dataset)] = _few([f"#{spot.sequence} {spot.message}" for spot in spots])
        if not found:
            return ok("damage", "none is known; odfctl verify REF looks for it")
        shown = _few([f"{name}: {what}" for name, what in found.items()])
        return fail("damage", shown, _REPAIR.format(next(iter(found))))

    def _deletions(self) -> wire.Probe:
        """Tells of deleted resources that left something behind, such as the mark of a volume."""
        with self._home.database.read() as connection:
            left = [each for each in ResourceStore(connection).deleting() if each.status.failures]
        if not left:
            return ok("deletions", "no data of deleted datasets is left")
        why = left[0].status
        message = f"not undone yet: {_few([f'{each.type} {each.name}' for each in left])}: {why.message}"
        return fail("deletions", message, f"{why.hint or 'the log has the details'}; it is tried again by itself")

    def _chains(self) -> wire.Probe:
        """Checks the id under which each chain is stored, and the objects that its blocks are recorded to name."""
        wrong = []
        for dataset in self._home.chains.datasets():
            try:
                trouble = self._fault_of_chain(dataset)
            except Fault as fault:
                trouble = fault.message
            if trouble is not None:
                wrong.append(f"{self._home.name_of(dataset)}: {trouble}")
        if wrong:
            return fail("chains", _few(wrong), _REPAIR.format("REF"))
        return ok("chains", "every block is whole and at its position; odfctl verify checks rules and objects")

    def _fault_of_chain(self, dataset: DatasetId) -> str | None:
        """Returns the fault of a chain; ``None`` also if the chain was rewritten during the check."""
        before = self._home.chains.chain(dataset).snapshot()
        trouble = self._found_around(dataset)
        after = self._home.chains.chain(dataset).snapshot()
        return trouble if before and after and before.history == after.history else None

    def _found_around(self, dataset: DatasetId) -> str | None:
        chain = self._home.chains.chain(dataset)
        seed = chain.block_at(0).event
        if not isinstance(seed, Seed) or seed.dataset_id != dataset:
            return "it is stored under an id that its Seed does not name"
        with self._home.database.read() as connection:
            snapshot = snapshot_of(connection, dataset)
            blocks = map(decode_block, chain.raw_blocks(0, snapshot.head.size if snapshot else 0))
            whole = references_hold(connection, dataset, blocks)
        return None if whole else "the list of objects that its blocks name is damaged"


def _try_probe(name: str, probe: Callable[[], wire.Probe]) -> wire.Probe:
    try:
        return probe()
    except Fault as fault:
        return fail(name, str(fault), fault.hint)
    except OSError as error:
        return fail(name, f"cannot use {error.filename}: {error.strerror}", "look at the kernel's log")


def _few(found: Sequence[str]) -> str:
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more


def ok(name: str, message: str) -> wire.Probe:
    return wire.Probe(name=name, result="ok", message=message)


def fail(name: str, message: str, hint: str) -> wire.Probe:
    return wire.Probe(name=name, result="failed", message=message, hint=hint)


def _on_the_way(sizes: list[int]) -> str:
    count = plural(len(sizes), "object")
    return f"{count} on {agree(len(sizes), 'its way holds', 'their way hold')} {size(sum(sizes))}"
