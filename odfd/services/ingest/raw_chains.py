"""Binds captures to a dataset that others may have, and attests from such a dataset what a root's bytes give.

A node that has a root and the chain of its captures decodes each transaction again, with the restrictions for manifests
of other nodes, and signs the result for its blocks. It trusts the chain in nothing but the bytes: times, rows and the
declaration of the source are those of the root. Spec: docs/spec/collections.md#attested-roots.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, Protocol

import trio

from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from chain.instant import from_millis, to_millis
from chain.model.block import Block
from chain.state import load_state
from chain.statements.statement import Response
from chain.store.objects import sound_path
from chain.wording import plural
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.datasets.commit import Commit, CommitPart, Committer, block_time
from odfd.datasets.local_data import need_data
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.raw_chain import (
    RULE,
    Division,
    PlacedCapture,
    binding_event,
    bindings_in,
    check_times,
    find_place,
    founding_of,
    is_named,
    layout_of,
    naming,
)
from odfd.ingest.raw_replay import RawReplay, replay
from odfd.ingest.settings import CHUNK
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report
from odfd.services.ingest.own_roots import own_root
from odfd.store import captures, collections
from odfd.store.captures import BoundCapture, Capture
from odfd.store.catalog import Catalog, DatasetEntry
from odfd.store.directory import StateDirectory
from odfd.store.visibility import Marks, VisibilityMark

SUFFIX: Final = ".raw"
TOLD: Final = 1000
"""Most differences that are reported, the first."""
MAX_BINDINGS: Final = 65_536
"""Most bindings that one attestation decodes: as many observations of a dataset are kept of an observer."""


class Attesting(Protocol):
    """Decodes and signs for roots of others: the observer of this node."""

    deps: IngestDependencies

    def note_decoded(self, dataset: DatasetId, block: Block, *, is_same: bool, seen: Response) -> bool: ...


class RawChains:
    """The API service for captures that others may have."""

    def __init__(self, home: StateDirectory, committer: Committer, attesting: Attesting, context: Context) -> None:
        self._home, self._committer, self._attesting = home, committer, attesting
        self._board, self._clock = context.board, context.clock

    def bind(self, ref: str) -> wire.TaskRef:
        """Appends the captures of a source dataset to its raw chain, and begins that if needed. Result: RawChainView.

        Raises NotFound, Refused.
        """
        hint = "bytes of a source are kept where they come in"
        entry = own_root(self._home, ref, hint)

        async def work(report: Report) -> wire.RawChainView:
            bind, wait = partial(self._bind, entry, report), report.waits_to_write(entry.name)
            return await self._home.turns.perform(entry.id, bind, wait)

        return task_ref(self._board.submit("bind", entry.name, work, about(entry.id)))

    def _bind(self, entry: DatasetEntry, report: Report) -> wire.RawChainView:
        with self._home.database.read() as connection:
            state, found = collections.of(connection, entry.id), captures.of(connection, entry.id)
        collections.check_member(state, entry.id)
        check_times(found)
        with_bytes = [each for each in found if each.capture.files]
        name = entry.name + SUFFIX
        chain, last = self._chain(name, [shard for member in state.members for shard in member.shards])
        waiting = [each for each in with_bytes if last is None or each.time > last]
        report.begin(f"binding the bytes of {entry.name}", len(waiting), "transactions")
        if chain is None:
            if not waiting:
                raise Refused(
                    f"nothing is kept of the source of {entry.name}",
                    rule=RULE,
                    hint=f"odfctl annotate dataset {entry.name} keepRaw=true",
                )
            layout = Division(state.active.shards, state.active.row.by)
            chain = self._begin(name, layout, waiting[0])
        self._name(entry.id, chain)
        for each in waiting:
            end_if_unwanted()
            self._append(chain, each)
            report.advance()
        return wire.RawChainView(
            ref=entry.name,
            chain=name,
            chain_id=str(chain),
            bound=len(waiting),
            total=len(with_bytes),
            gaps=len(found) - len(with_bytes),
        )

    def _chain(self, name: str, shards: Sequence[DatasetId]) -> tuple[DatasetId | None, int | None]:
        """Returns the dataset of captures, if it is here, and the time of its last block. Raises Refused for others."""
        with self._home.catalog() as catalog:
            found = catalog.look(name)
        if found is None:
            return None, None
        state, layout = load_state(self._home.chains.chain(found.id)), None
        with suppress(Invalid):
            layout = layout_of(state.set_info, name)
        if layout is None or not set(layout.shards) & set(shards) or not self._home.keys.has_dataset_key(found.id):
            raise Refused(
                f"{name} is not the dataset of these captures",
                rule=RULE,
                hint=f"odfctl rename {name} OTHER, and repeat",
            )
        last = state.last_data
        return found.id, None if last is None or state.system_time is None else to_millis(state.system_time)

    def _begin(self, name: str, layout: Division, first: BoundCapture) -> DatasetId:
        """Begins the dataset, private, at the time of the first capture."""
        with self._home.newborn() as born:

            def together(connection: sqlite3.Connection) -> None:
                now = self._clock.now()
                Catalog(connection).add(name, born, now)
                Marks(connection).put(born, VisibilityMark.PRIVATE, now)

            founding, time = founding_of(born, layout), from_millis(first.time)
            part = CommitPart(dataset=born, expected=None, events=founding, time=time)
            self._committer.commit_now(Commit(parts=(part,), also=together))
            return born

    def _name(self, dataset: DatasetId, chain: DatasetId) -> None:
        """Lets the root name its chain of captures, once. Raises Conflict if its head moves."""
        root = self._home.chains.chain(dataset)
        if is_named(root, chain):
            return
        state = load_state(root)
        time = block_time(state, self._clock.now(), self._home.chains.upper(dataset))
        part = CommitPart.after(state, time, (naming(state.set_info, chain),))
        self._committer.commit_now(Commit(parts=(part,)))

    def _append(self, chain: DatasetId, capture: BoundCapture) -> None:
        state = load_state(self._home.chains.chain(chain))
        for file in capture.capture.files:
            sound_path(self._home.objects, file.object)
        event, names = binding_event(self._home.objects, state, capture)
        part = CommitPart.after(state, from_millis(capture.time), (event,), names)
        self._committer.commit_now(Commit(parts=(part,)))

    def attest(self, ref: str, request: wire.AttestRawRequest) -> wire.TaskRef:
        """Decodes the captures of another node's source dataset again, and signs the result for its blocks.

        Result: RawAttestResult. Raises NotFound, Refused.
        """
        entry, chain = self._home.resolve(ref), self._home.resolve(request.chain)
        self._check(entry, chain)

        async def work(report: Report) -> wire.RawAttestResult:
            report.begin(f"decoding the bytes of {entry.name}", None, "transactions")
            return await self._attest(entry, chain, report)

        return task_ref(self._board.submit("attest", entry.name, work, about(entry.id, chain.id)))

    def _check(self, entry: DatasetEntry, chain: DatasetEntry) -> None:
        """Raises Refused for a root of this node, and for a chain that the root does not name as that of its bytes."""
        if self._home.keys.has_dataset_key(entry.id):
            raise Refused(
                f"{entry.name} is this node's own: a publisher does not attest its own data",
                rule="raw-owner",
                hint="odfctl raw replay compares it with its captures",
            )
        layout_of(load_state(self._home.chains.chain(chain.id)).set_info, chain.name)
        if not is_named(self._home.chains.chain(entry.id), chain.id):
            raise Refused(
                f"{entry.name} does not name {chain.name} as the dataset of its bytes",
                rule=RULE,
                hint="its owner does so by odfctl raw bind; then wait for the block",
            )

    async def _attest(self, entry: DatasetEntry, chain: DatasetEntry, report: Report) -> wire.RawAttestResult:
        shards, by, bindings = await trio.to_thread.run_sync(self._read, entry, chain)
        counts = dict.fromkeys(("decoded", "otherwise", "later", "signed"), 0)
        told: list[wire.RawDifference] = []
        for time, binding in bindings:
            place = await trio.to_thread.run_sync(self._place, shards, time, binding)
            if place is None:
                counts["later"] += 1
                continue
            deps = self._attesting.deps
            self._check_size(deps, binding)
            found = await replay(deps, entry.id, place.bound, by)
            is_same = found.outcome != "differs"
            counts["decoded" if is_same else "otherwise"] += 1
            if not is_same and len(told) < TOLD:
                told.append(_difference(place, found))
            counts["signed"] += await trio.to_thread.run_sync(self._sign, place, is_same)
            report.advance()
        return wire.RawAttestResult(ref=entry.name, ok=not counts["otherwise"], differences=tuple(told), **counts)

    def _read(
        self, entry: DatasetEntry, chain: DatasetEntry
    ) -> tuple[Sequence[DatasetId], Sequence[str], list[tuple[int, Capture]]]:
        """Returns the chains of a root, the columns that decide the shard of its rows, and the bindings."""
        shards = self._home.shards_of(entry.id)
        for shard in shards:
            need_data(self._home, shard, entry.name, whole=True)
        need_data(self._home, chain.id, chain.name, whole=True)
        with self._home.database.read() as connection:
            member = collections.member_of(connection, entry.id)
        found = list(islice(bindings_in(self._home.objects, self._home.chains.chain(chain.id)), MAX_BINDINGS + 1))
        if len(found) > MAX_BINDINGS:
            raise Refused(
                f"{chain.name} has more than {MAX_BINDINGS:,} bindings, more than observations can cover",
                rule=RULE,
                hint="its publisher may begin a rendition --from snapshot, with captures of its own",
            )
        return shards, () if member is None else member.row.by, found

    def _place(self, shards: Sequence[DatasetId], time: int, capture: Capture) -> PlacedCapture | None:
        """Returns the transaction of a binding; ``None`` if the chains here do not reach its time."""
        found = find_place([(shard, self._home.chains.chain(shard)) for shard in shards], time, capture)
        if len(found.blocks) < len(shards) and any(self._home.chains.upper(shard) <= time for shard in shards):
            return None
        return found

    def _check_size(self, deps: IngestDependencies, capture: Capture) -> None:
        size, most = capture.size, deps.settings.max_source_bytes
        if size > most:
            raise Refused(
                f"{plural(size, 'byte')} of one transaction, of at most {most:,}",
                rule="source-size",
                hint="it is larger than this node accepts from other nodes",
            )

    def _sign(self, place: PlacedCapture, is_same: bool) -> int:
        if not place.blocks:
            return 0
        digest, size = hashlib.sha256(), 0
        for each in place.bound.capture.files:
            with sound_path(self._home.objects, each.object).open("rb") as file:
                while part := file.read(CHUNK):
                    digest.update(part)
                    size += len(part)
        seen = Response(sha256=digest.hexdigest(), size=size)
        note = self._attesting.note_decoded
        return sum(note(dataset, block, is_same=is_same, seen=seen) for dataset, block in place.blocks)


def _difference(place: PlacedCapture, found: RawReplay) -> wire.RawDifference:
    if not place.blocks:
        return wire.RawDifference(block="", sequence_number=0, message=found.message)
    _, block = place.blocks[0]
    return wire.RawDifference(block=str(block.hash), sequence_number=block.sequence_number, message=found.message)
