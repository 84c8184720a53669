"""Builds the views of datasets from chain, catalogue and trust, and finds derived datasets by their inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from chain import instant
from chain.codec.arrow_schema import schema_of
from chain.codec.manifest import to_builtins
from chain.errors import Environment, Fault, NotFound
from chain.ids import DatasetId
from chain.model.block import Block
from chain.model.events import AddData, DatasetKind, ExecuteTransform, SetDataSchema
from chain.state import ChainState, load_state
from chain.statements.area import Area
from chain.statements.card import Card, PublisherClaims
from chain.store.base import BLOCK_DAMAGED
from chain.store.seals import ROW_DAMAGED
from chain.store.shards import SEALED
from engines.contract import RowCounts
from odfd.control import wire
from odfd.datasets import previews
from odfd.datasets.shard_reading import find_end
from odfd.queries.rendition_times import since_of
from odfd.queries.standing import standing_of, weakest
from odfd.renditions.chain_timeline import is_row
from odfd.renditions.sharded_inputs import inputs_of
from odfd.services.views.cache import DAMAGED, WITHDRAWN, ViewCache, ViewRefresher
from odfd.services.views.derivative_index import DerivativeIndex
from odfd.services.views.hold_views import holds_of
from odfd.services.views.portal_views import portal_facts
from odfd.services.views.withdrawals import withdrawn_at
from odfd.store import captures, row_counts
from odfd.store.card_choices import ChosenWords
from odfd.store.catalog import DatasetEntry, name_with_id
from odfd.store.directory import StateDirectory
from odfd.store.visibility import VisibilityMark
from odfd.transform.inputs import is_changelog
from odfd.trust.judgement.observation_reach import DATA
from odfd.trust.judgement.trust_evaluator import DatasetFacts, TrustEvaluator
from odfd.trust.judgement.verdicts import STOPS, ReachAssessment


def words_view(words: ChosenWords | PublisherClaims) -> wire.CardWords:
    """Shows a publisher's words, of which the area is one that was checked."""
    area = None
    if words.area:
        west, south, east, north = Area.parse(words.area).degrees
        area = wire.CardArea(west=west, south=south, east=east, north=north)
    return wire.CardWords(title=words.title, place=words.place, area=area, frequency=words.frequency)


def rows_on(card: Card) -> wire.CardRows | None:
    facts, sample = card.chain, card.sample
    if sample is None or facts is None:
        return None
    rows = tuple(tuple(cell if isinstance(cell, str) else None for cell in row) for row in sample.rows)
    names = tuple(facts.columns[place].name for place in sample.columns)
    return wire.CardRows(columns=names, rows=rows, left_out=sample.left_out)


STATES: Final[Sequence[wire.DatasetStanding]] = (
    "fresh", "stale", "syncing", "unsigned", "refused", "accused", "refuted", "forked", "damaged",
)  # fmt: skip
"""From the best to the worst."""
MORE_READS: Final = 2
"""Times that a chain is read again for its view if it lacked a block."""


class DatasetViews:
    """Computes views of datasets; writes nothing but cached views. Called from worker threads."""

    def __init__(
        self,
        home: StateDirectory,
        evaluator: TrustEvaluator,
        refused_by: Callable[[DatasetId], str],
        engines: Callable[[], Collection[str] | None],
    ) -> None:
        """``refused_by`` and ``engines``: as for ``ViewCache``."""
        self._home, visibility = home, home.visibility
        self.readers = DerivativeIndex(home)
        self.cache = ViewCache(home, evaluator, self._looked_at, refused_by, engines)
        self.refresher = ViewRefresher(self.cache)
        self._visibility = visibility
        self._evaluator = evaluator

    def all(self) -> list[wire.DatasetView]:
        """Returns the views of all datasets, by name; computes only changed ones."""
        return list(map(self._unite, self.cache.all()))

    def dataset(self, entry: DatasetEntry) -> wire.DatasetView:
        """Returns the current view: of a dataset of several shards, what holds of all of them."""
        return self._unite(self.cache.dataset(entry))

    def _unite(self, view: wire.DatasetView) -> wire.DatasetView:
        if not view.shards:
            return view
        with self._home.catalog() as catalog:
            others = [catalog.resolve(shard) for shard in view.shards[1:]]
        return unite([view, *map(self.cache.dataset, others)])

    def unheld(self, datasets: Sequence[DatasetId]) -> list[str]:
        """Returns remarks on datasets whose blocks pin an engine that nobody here has."""
        with self._home.catalog() as catalog:
            entries = [entry for dataset in datasets if (entry := catalog.find(dataset)) is not None]
        return [f"input {entry.name}: {pin.text}" for entry in entries for pin in self.dataset(entry).unheld]

    def _looked_at(self, entry: DatasetEntry, within: dict[DatasetId, int]) -> wire.DatasetView:
        """Computes a view. A damaged chain gets a view that says so, so that it does not hide the other datasets.

        A chain may be rewritten between two reads, and lack a block that its head named: it is read again.
        """
        try:
            for _ in range(MORE_READS):
                with suppress(NotFound):
                    return self._readable(entry, within)
            return self._readable(entry, within)
        except Environment as fault:
            if fault.rule not in (BLOCK_DAMAGED, ROW_DAMAGED):
                raise
            return self._view_damaged(entry, fault)

    def _view_damaged(self, entry: DatasetEntry, fault: Environment) -> wire.DatasetView:
        head = self._home.chains.chain(entry.id).head()
        return wire.DatasetView(
            name=entry.name,
            id=str(entry.id),
            kind="root",
            blocks=head.size if head else 0,
            head=str(head.hash) if head else None,
            state=DAMAGED,
            owner=self._home.keys.has_dataset_key(entry.id),
            rely_on=wire.Reliance(blocks=0, fact=fault.message),
            published=self._visibility.is_told(entry.id),
            published_in=self._visibility.published_in(entry.id),
            shared_with=tuple(self._visibility.shared_with(entry.id)),
            withdrawn_at=withdrawn_at(self._home, entry.id),
        )

    def _readable(self, entry: DatasetEntry, within: dict[DatasetId, int]) -> wire.DatasetView:
        """Computes the view of a readable chain; adds to ``within`` the other datasets that it depends on."""
        chain = self._home.chains.chain(entry.id)
        state = load_state(chain)
        shards = self._home.shards_of(entry.id)
        others = [load_state(self._home.chains.chain(shard)).next_offset for shard in shards if shard != entry.id]
        known = self._evaluator.known(entry.id, within)
        within.update({shard: 0 for shard in shards if shard not in within})
        found = self._evaluator.reach_of(chain, known, self._evaluator.use(entry.id))
        unshared = self._visibility.mark(entry.id) is VisibilityMark.UNSHARED
        withdrawn = withdrawn_at(self._home, entry.id)
        return wire.DatasetView(
            name=entry.name,
            id=str(entry.id),
            kind="derivative" if state.kind is DatasetKind.DERIVATIVE else "root",
            blocks=state.size,
            records=state.next_offset + sum(others),
            watermark=None if state.watermark is None else instant.render(state.watermark),
            head=None if state.head is None else str(state.head),
            state=self._state(known, found, is_old=unshared),
            engine=None if state.set_transform is None else state.set_transform.transform.version,
            unheld=tuple(
                wire.UnheldPin(first=each.first, last=each.last, digest=each.pin)
                for each in self._evaluator.unproven(known)
            ),
            owner=self._home.keys.has_dataset_key(entry.id),
            rely_on=wire.Reliance(blocks=found.blocks, fact=self._fact(known, found)),
            withdrawn_at=withdrawn,
            conditions=(*_conditions(known), *["Unshared"] * unshared, *[WITHDRAWN] * (withdrawn is not None)),
            published=self._visibility.is_told(entry.id),
            published_in=self._visibility.published_in(entry.id),
            shared_with=tuple(self._visibility.shared_with(entry.id)),
            frontiers=self._frontiers(shards),
            shards=tuple(map(str, shards)) if others else (),
        )

    def _frontiers(self, shards: Sequence[DatasetId]) -> wire.Frontiers:
        uppers = [self._home.chains.upper(shard) for shard in shards]
        least = min(uppers)
        late = [each for each, upper in zip(shards, uppers, strict=True) if upper == least < max(uppers)]
        if self._home.keys.has_dataset_key(shards[0]):
            late = []  # written together
        elif (end := find_end(self._home, shards[0])) is not None and end[0] < least:
            least, late = end[0], []  # from then on it is complete where the next rendition is
        since = since_of(self._home, shards[0])
        return msgspec.structs.replace(
            frontiers_view(least),
            since=None if since is None else instant.render(instant.from_millis(since)),
            held_by=tuple(map(self._home.name_of, late)),
        )

    def detail(self, entry: DatasetEntry) -> wire.DatasetDetail:
        state = load_state(self._home.chains.chain(entry.id))
        source = state.polling_source or next(iter(state.active_push_sources.values()), None)
        with self._home.catalog() as catalog:
            declared = catalog.resource_of(entry.id)
            read = inputs_of(state.set_transform) if state.set_transform else ()
            ids = [DatasetId.parse(each.shards[0]) for each in read]
            inputs = tuple(name_with_id(catalog.name_of(id_), id_) for id_ in ids)
        with self._home.database.read() as connection:
            keeps_raw = captures.goes_on(connection, entry.id)
        return wire.DatasetDetail(
            dataset=self.dataset(entry),
            labels={} if declared is None else dict(declared.labels),
            description=state.set_info.description if state.set_info else None,
            keywords=tuple(word for word in (state.set_info.keywords or ()) if not is_row(word))
            if state.set_info
            else (),
            source=to_builtins(source) if source else None,
            transform=to_builtins(state.set_transform.transform) if state.set_transform else None,
            inputs=inputs,
            input_ids=tuple(map(str, ids)),
            outputs=tuple(other.name for other in self.readers.of(entry.id)),
            created_at=instant.render(entry.created_at),
            updated_at=None if state.system_time is None else instant.render(state.system_time),
            rows=self._rows(entry.id),
            changelog=is_changelog(state),
            license=msgspec.convert(state.set_license, wire.License, from_attributes=True)
            if state.set_license
            else None,
            attachments=_attachments(state),
            holds=holds_of(self._home, entry.id),
            keeps_raw=keeps_raw,
            portal=portal_facts(self._home, entry.id, state),
            sample=self._visibility.shown_rows(entry.id),
            words=words_view(self._visibility.card_words(entry.id)),
        )

    def _rows(self, dataset: DatasetId) -> wire.RowTotals | None:
        with self._home.database.read() as connection:
            kept = row_counts.newest(connection, dataset)
        if kept is None:
            return None
        return wire.RowTotals(
            since_block=kept.total.since,
            transactions=kept.total.transactions,
            rows=rows_view(kept.total.counts),
            last=rows_view(kept.last.counts),
        )

    def blocks(self, dataset: DatasetId, blocks: Sequence[Block]) -> list[wire.BlockView]:
        """Returns views of blocks, with the row counts of those that this node made."""
        numbers = [block.sequence_number for block in blocks]
        if not numbers:
            return []
        with self._home.database.read() as connection:
            counted = row_counts.of_blocks(connection, dataset, min(numbers), max(numbers))
        return [
            msgspec.structs.replace(
                block_view(block),
                rows=rows_view(counted[block.sequence_number]) if block.sequence_number in counted else None,
            )
            for block in blocks
        ]

    def _state(self, known: DatasetFacts, found: ReachAssessment, *, is_old: bool) -> wire.DatasetStanding:
        if found.why.rule in (status.value for status in STOPS) or found.why.rule == "fork":
            return "forked" if found.why.rule == "fork" else self._describe_stop(known, found.why.block)
        if known.head is not None and known.head.size > known.size:
            return "syncing"
        if known.head is None:
            return "unsigned"
        return "fresh" if known.extent.fresh and not is_old else "stale"

    def _describe_stop(self, known: DatasetFacts, block: int | None) -> wire.DatasetStanding:
        """Returns ``refuted`` if two agreeing groups refute it or a person gave it up, ``accused`` otherwise."""
        given_up = known.decided.abandoned is not None
        refuted = given_up or (block is not None and self._evaluator.decision(known, block).refutes)
        return "refuted" if refuted else "accused"

    def _fact(self, known: DatasetFacts, found: ReachAssessment) -> str:
        """Formats how far a dataset can be relied on: ``data``, ``attested 2/3``, ``refuted at #7``."""
        if found.blocks < known.size and found.why.block is not None:
            return f"{found.why.rule} at #{found.why.block}"
        plain = "data" if known.extent.data >= found.blocks else "chain"
        if known.root:
            return self._describe_observed(known) or plain
        last = self._last_judged(known)
        if last is None:
            return plain
        decision = self._evaluator.decision(known, last)
        policy = self._evaluator.policy_of(known.dataset)
        if decision.reproduced:
            return "reproduced"
        if decision.attested and (known.quorum or policy.groups):
            return f"attested {decision.attested}/{len(policy.groups)}"
        return plain

    def _describe_observed(self, known: DatasetFacts) -> str:
        """Formats ``observed 1/2`` and the last observed block; empty if no counted observer exists."""
        said, have = self._evaluator.sighted(known.dataset)
        policy, me = self._evaluator.policy_of(known.dataset), self._evaluator.me
        if not have and not any(policy.group_of(each.observer) or each.observer == me for each in said):
            return ""
        number, newest = said[0].sequence_number, self._home.chains.chain(known.dataset).last_of(DATA)
        until = f" to #{number}" if newest is not None and newest.sequence_number > number else ""
        return f"observed {have}/{len(policy.groups) + (policy.group_of(me) is None)}{until}"

    def _last_judged(self, known: DatasetFacts) -> int | None:
        """Returns the newest block with a verdict; ``None`` without any."""
        judged = [
            span.last
            for attestation in known.attestations.values()
            for span in attestation.spans
            if span.verdict == "reproduced"
        ]
        return max([*known.runs, *(place for place in judged if place < known.size)], default=None)


def unite(views: Sequence[wire.DatasetView]) -> wire.DatasetView:
    """Returns the view of a dataset of several shards, by those of them: what holds of each, and the worst state."""
    first = views[0]
    relied = [standing_of(view, view.blocks) for view in views]
    times = [view.watermark for view in views]
    return msgspec.structs.replace(
        first,
        blocks=sum(view.blocks for view in views),
        watermark=None if None in times else min(filter(None, times), key=instant.parse),
        state=max((view.state for view in views), key=STATES.index),
        refused_by=next(filter(None, (view.refused_by for view in views)), ""),
        rely_on=wire.Reliance(blocks=sum(each.blocks for each in relied), fact=weakest(relied)),
        conditions=tuple(dict.fromkeys(condition for view in views for condition in view.conditions)),
        unheld=tuple(dict.fromkeys(pin for view in views for pin in view.unheld)),
    )


def _attachments(state: ChainState) -> tuple[wire.Attachment, ...]:
    items = state.set_attachments.attachments.items if state.set_attachments else ()
    return tuple(wire.Attachment(path=item.path, content=item.content) for item in items)


def _conditions(known: DatasetFacts) -> Iterator[str]:
    if known.withheld:
        yield "Withheld"
    if known.head is not None and not known.extent.fresh:
        yield "Ahead" if known.ahead else "Stale"
    if known.forked:
        yield "Forked"
    if known.decided.abandoned is not None:
        yield "Abandoned"
    if known.extent.inputs is not None and known.extent.inputs < known.size:
        yield "Tainted"


def frontiers_view(upper: int) -> wire.Frontiers:
    """``upper``: in whole milliseconds. A chain can be read from its first block: no ``since``."""
    if upper == SEALED:
        return wire.Frontiers(sealed=True)
    return wire.Frontiers(upper=instant.render(instant.from_millis(upper)))


def rows_view(counts: RowCounts) -> wire.RowCounts:
    return msgspec.convert(counts, wire.RowCounts, from_attributes=True)


def newest_of(logs: Mapping[str, Sequence[wire.BlockView]], limit: int) -> Sequence[wire.BlockView]:
    """Returns the newest blocks of shards by their times. ``logs``: those of each shard by its name."""
    views = [msgspec.structs.replace(view, shard=name) for name, log in logs.items() for view in log]
    return sorted(views, key=lambda view: instant.parse(view.system_time), reverse=True)[:limit]


def block_view(block: Block) -> wire.BlockView:
    event = block.event
    data, watermark = (
        (event.new_data, event.new_watermark) if isinstance(event, AddData | ExecuteTransform) else (None, None)
    )
    return wire.BlockView(
        sequence_number=block.sequence_number,
        hash=str(block.hash),
        system_time=instant.render(block.system_time),
        event=previews.event_name(block),
        summary=previews.summary(block),
        size=len(block.raw),
        records=None if data is None else data.offset_interval.end - data.offset_interval.start + 1,
        data_size=None if data is None else data.size,
        watermark=None if watermark is None else instant.render(watermark),
    )


def schema_view(name: str, state: ChainState) -> wire.Schema:
    if state.schema is None:
        return wire.Schema(ref=name, fields=())
    fields = columns_view(state.schema)
    return wire.Schema(ref=name, fields=fields, manifest=to_builtins(schema_of(state.schema)))


def columns_view(schema: SetDataSchema) -> tuple[wire.Column, ...]:
    return tuple(
        wire.Column(name=column, type=kind, optional=optional, comment=comment)
        for column, kind, optional, comment in previews.columns_of(schema)
    )


FAILING: Final = "Failing"
"""The condition of a dataset whose transform fails."""


def with_failure(view: wire.DatasetView, fails: Fault | None) -> wire.DatasetView:
    """Returns a view that tells that the transform of the dataset fails, so that its data is out of date."""
    if fails is None:
        return view
    state: wire.DatasetStanding = "stale" if view.state == "fresh" else view.state
    return msgspec.structs.replace(view, state=state, conditions=(*view.conditions, FAILING))
