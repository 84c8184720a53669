"""Plans a query: from the tables that a statement names to views over slices, pins and standing.

Each dataset is read as of one moment, in a worker thread; the amount read of its chain does not grow with its length,
except for the list of slices. Executes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Conflict, Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import to_millis
from chain.state import ChainState, load_state
from chain.store.base import ChainReader
from engines.query.requests import TableNamed
from engines.query.temporal import AS_OF
from engines.query.views import SliceView
from odfd.control import wire
from odfd.datasets.local_data import held_from, need_data
from odfd.datasets.previews import way_to_data
from odfd.datasets.shard_reading import check_united, find_end
from odfd.policy.policy import parse_expression
from odfd.queries.askers import OWNER, Asker, Bound
from odfd.queries.cuts import Cut, cut_of, moment
from odfd.queries.folds import KeptFold
from odfd.queries.log_columns import LogColumnsCache
from odfd.queries.rendition_times import active_at
from odfd.queries.sharded_cuts import cuts_of, satisfying
from odfd.queries.slices import PlacedSlice, SliceLists
from odfd.queries.standing import count_required, refuse_unsatisfied, standing_of, weakest
from odfd.store.catalog import Catalog, DatasetEntry
from odfd.store.directory import StateDirectory
from odfd.trust.judgement.trust_evaluator import TrustEvaluator

CURRENT: Final = "current"
"""Prefix of a dataset's name for its current rows in place of its log."""
PROJECTION: Final = "projection"
"""Prefix of a projection's name, for its table."""
_CATALOGS: Final = ("information_schema.", "pg_catalog.", "sqlite_master", "duckdb_")
"""Prefixes of the tables in which databases describe themselves."""
HINT_READABLE: Final = (
    "published datasets, and those that your token may read, are here: the tables of Flight, or GET /, list them"
)
"""Hint for callers who may not read everything: the same for each name, so that it reveals none."""


class KeptInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input of a projection, up to the block to which it was read."""

    name: str
    """Its name at that time."""
    dataset: DatasetId
    cut: Cut


class KeptTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table of a projection: a Parquet file, and the inputs from which it was computed."""

    name: str
    path: Path
    schema: bytes
    """Arrow IPC of its columns."""
    inputs: tuple[KeptInput, ...]


class PlannedView(msgspec.Struct, frozen=True):
    """A view of a query, before its files have paths for the process."""

    view: SliceView
    dataset: DatasetId
    slices: Sequence[PlacedSlice]
    cut: Cut
    fold: KeptFold | None = None
    """A fold of the blocks before the slices; ``None``: there is none."""
    shards: Sequence[PlannedView] = ()
    """Views of the single shards, in order, if there are several; ``slices`` are then those of all."""
    table: KeptTable | None = None
    """The table to read in place of slices; ``dataset`` and ``cut`` are then of its first input."""


class QueryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a query reads."""

    views: Sequence[PlannedView]
    places: Sequence[int]
    """Number of the view of each table."""
    head: wire.QueryHead


def _no_projection(name: str, asker: Asker) -> KeptTable | None:  # noqa: ARG001
    """Returns ``None``, where no projections are kept."""
    return None


class Planner:
    """Plans queries of one node. ``shown``: returns the view of a dataset, which says how far it may be relied on."""

    def __init__(
        self,
        home: StateDirectory,
        shown: Callable[[DatasetEntry], wire.DatasetView],
        evaluator: TrustEvaluator,
        projection: Callable[[str, Asker], KeptTable | None] = _no_projection,
        is_projection: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``projection``: returns the table of a Projection by its name, if the caller may read it; called in worker
        threads. Raises Refused while its account may not read an input. ``is_projection``: whether one is declared.
        """
        self._projection, self._is_projection = projection, is_projection
        self._home, self._shown, self._evaluator = home, shown, evaluator
        self._lists, self._columns = SliceLists(), LogColumnsCache()

    @property
    def home(self) -> StateDirectory:
        return self._home

    def plan(self, tables: Sequence[TableNamed], request: wire.QueryRequest, asker: Asker = OWNER) -> QueryPlan:
        """Plans the reads of a statement's tables. Raises NotFound, Invalid, Refused."""
        reads: dict[tuple[DatasetId, bool, str, int | None], int] = {}
        places: list[int] = []
        planned: list[PlannedView] = []
        pins: dict[tuple[str, str, str, int], wire.Pin] = {}
        standings: dict[str, wire.ReadStanding] = {}
        remarks: list[str] = []
        for table in tables:
            if (kept := self._find_kept_table(table, request, asker)) is not None:
                planned.append(self._kept_view(f"odfd {len(planned)}", kept, standings, remarks))
                places.append(len(planned) - 1)
                continue
            ref, entry, current, limit = self._resolve(table, asker)
            clauses = _format_clauses(table.clauses)
            key = (entry.id, current, clauses, limit)
            if key not in reads:
                reads[key] = len(planned)
                shards = self._shards(table, entry, asker)
                if len(shards) > 1:
                    cuts = self._sharded_cuts(entry, shards, table, request, asker)
                else:
                    whole = self._cut(entry, table, request, self._limit(entry, table, request, asker, limit))
                    cuts = [self._satisfying(entry, whole, request)]
                    remarks += _remark_on_shortened(entry.name, whole, cuts[0], request)
                for each, cut in zip(shards, cuts, strict=True):
                    pin = wire.Pin(
                        name=ref, id=str(each.id), block=str(cut.block), sequence_number=cut.size - 1, at=clauses
                    )
                    pins[ref, pin.id, clauses, cut.size] = pin
                standing = self._standing(ref, shards, cuts)
                remarks += self._unheld(ref, shards, cuts)
                known = standings.get(ref)
                standings[ref] = standing if known is None or standing.of > known.of else known
                name = f"odfd {len(planned)}"
                with _place_faults(table):
                    views = [
                        self._view(name, each, cut, current, remarks, all_told=limit is None)
                        for each, cut in zip(shards, cuts, strict=True)
                    ]
                planned.append(views[0] if len(views) == 1 else _unite(views))
            places.append(reads[key])
        shown = tuple(standings.values())
        head = wire.QueryHead(
            pins=tuple(pins.values()), standing=weakest(shown), standings=shown, remarks=tuple(dict.fromkeys(remarks))
        )
        return QueryPlan(views=planned, places=places, head=head)

    def _find_kept_table(self, table: TableNamed, request: wire.QueryRequest, asker: Asker) -> KeptTable | None:
        """Returns the table of a Projection, if one is named; ``None``: a dataset is. Raises Refused."""
        is_named = len(table.path) > 1 and table.path[0].lower() == PROJECTION
        if not is_named or asker.bound or (asker.served is not None and asker.reads is None):
            return None
        with _place_faults(table):
            kept = self._projection(".".join(table.path[1:]), asker)
        asked = {"proven": request.prove, "pinned": bool(request.pins), "cut by policy": bool(request.require)}
        asked["cut in time"] = bool(table.clauses)
        if kept is not None and (refused := [word for word, is_asked in asked.items() if is_asked]):
            raise Refused(
                f"the table of a projection is not {refused[0]}", rule="query-projection", place=table.place,
                hint="ask the datasets that it is made of: odfctl get projection NAME -o manifest",
            )  # fmt: skip
        return kept

    def _kept_view(
        self, name: str, kept: KeptTable, standings: dict[str, wire.ReadStanding], remarks: list[str]
    ) -> PlannedView:
        """Plans a view of a projection's table, whose data is relied on as far as that of its inputs."""
        with self._home.catalog() as catalog:
            entries = [(input_, catalog.find(input_.dataset)) for input_ in kept.inputs]
        for each, entry in entries:
            if entry is not None and entry.name not in standings:
                standings[entry.name] = standing_of(self._shown(entry), each.cut.size)
        made_of = ", ".join(f"{input_.name} to block #{input_.cut.size - 1}" for input_ in kept.inputs)
        remarks.append(f"{PROJECTION}.{kept.name} was computed from {made_of}")
        first = kept.inputs[0]
        return PlannedView(SliceView(name=name, files=(), schema=kept.schema), first.dataset, (), first.cut, table=kept)

    def _resolve(self, table: TableNamed, asker: Asker) -> tuple[str, DatasetEntry, bool, int | None]:
        """Returns the name and dataset of a table, whether its current rows are meant, and its readable blocks.

        Raises NotFound, with the remedy.
        """
        current, ref = _is_current(table), _ref(table)
        try:
            entry, bound = self._find_named(ref, asker, _format_clauses(table.clauses))
        except (NotFound, Invalid) as fault:
            # The cause would tell a dataset that is not here from one that others may not read.
            cause = fault if asker.served is None else None
            raise self._projection_meant(ref, table.place, asker) or _no_dataset(
                ref, table.place, asker, fault.hint
            ) from cause
        limit = self._readable(entry, bound, asker)
        if limit == 0:
            raise _no_dataset(ref, table.place, asker)
        name = entry.name if asker.bound == {} or ref.startswith("did:") else ref
        return name, self._then(ref, entry, table, asker), current, limit

    def _projection_meant(self, ref: str, place: str, asker: Asker) -> NotFound | None:
        """Makes the fault for a name of no dataset that names a Projection, of which only the owner is told."""
        prefix, _, rest = ref.partition(".")
        name = rest if prefix.lower() == PROJECTION else ref
        if asker != OWNER or not self._is_projection(name):
            return None
        if name != ref:
            message, hint = f"the projection {name} has no table yet", f"odfctl describe projection {name} shows why"
        else:
            message, hint = f"{name} is a projection, not a dataset", f"its table is {PROJECTION}.{name}"
        return NotFound(message, rule="query-projection", hint=hint, place=place)

    def _then(self, ref: str, entry: DatasetEntry, table: TableNamed, asker: Asker) -> DatasetEntry:
        """Returns the rendition that the name meant at the time of a clause; only for the node's owner,
        who may read it."""
        if asker != OWNER:
            return entry
        times = [value for kind, value in table.clauses if kind == AS_OF]
        with _place_faults(table):
            return active_at(self._home, ref, entry, to_millis(moment(times[0]))) if times else entry

    def _find_named(self, ref: str, asker: Asker, clauses: str) -> tuple[DatasetEntry, Bound | None]:
        """Finds the dataset of a name, and its binding if names are bound. Raises NotFound, Invalid."""
        with self._home.catalog() as catalog:
            bound = asker.find_bound(ref, clauses)
            if asker.bound:
                entry = None if bound is None else catalog.find(bound.dataset)
            else:
                entry = catalog.resolve(ref) if asker.served is None else self._find_seen(catalog, ref, asker)
        if entry is None:
            raise NotFound("no dataset of that name is there", rule="query-dataset")
        return entry, bound

    def _find_seen(self, catalog: Catalog, ref: str, asker: Asker) -> DatasetEntry | None:
        """Finds what a caller with less rights than the owner means: an account its own first. Raises Invalid."""
        return (None if asker.reads is None else catalog.resolve_as(ref, asker.account)) or catalog.look(ref)

    def _readable(self, entry: DatasetEntry, bound: Bound | None, asker: Asker) -> int | None:
        """Returns the number of readable blocks, ``None`` for all. Raises NotFound if the bound block is not there."""
        limit = None if asker.served is None else asker.served(entry.id)
        if bound is None or bound.block is None or limit == 0:
            return limit
        size = self._home.chains.chain(entry.id).block_by_hash(bound.block).sequence_number + 1
        if limit is not None and size > limit:
            raise NotFound(f"no block {bound.block} of {entry.name} here", rule="query-cut")
        return size

    def _limit(
        self, entry: DatasetEntry, table: TableNamed, request: wire.QueryRequest, asker: Asker, limit: int | None
    ) -> int | None:
        """Returns how many blocks a name means: of a mirror that is late at a handover, those up to it."""
        is_exact = request.pins or asker.bound or _ref(table).startswith("did:")
        end = None if is_exact else find_end(self._home, entry.id)
        return limit if end is None else end[1] if limit is None else min(limit, end[1])

    def _cut(self, entry: DatasetEntry, table: TableNamed, request: wire.QueryRequest, limit: int | None) -> Cut:
        chain = self._home.chains.chain(entry.id)
        clauses = _format_clauses(table.clauses)
        pin = None
        if request.pins:
            its = {pin.at: pin for pin in request.pins if pin.id == str(entry.id)}
            pin = its.get(clauses)
            if pin is None:
                raise _not_pinned(entry.name, clauses, list(its), table.place)
        with _place_faults(table):
            return cut_of(entry.name, chain, dict(table.clauses), pin, limit)

    def _shards(self, table: TableNamed, entry: DatasetEntry, asker: Asker) -> list[DatasetEntry]:
        """Returns the datasets whose rows a name means; an id always means one."""
        shards: tuple[DatasetId, ...] = ()
        ref = _ref(table)
        if asker.bound:
            bound = asker.find_bound(ref, _format_clauses(table.clauses))
            shards = () if bound is None else bound.shards
        elif not ref.startswith("did:"):
            shards = self._home.shards_of(entry.id)
            if len(shards) < 2:
                check_united(self._home, entry)
        return [entry] if len(shards) < 2 else [self._home.resolve(str(shard)) for shard in shards]

    def _sharded_cuts(
        self, entry: DatasetEntry, shards: Sequence[DatasetEntry], table: TableNamed, request: wire.QueryRequest,
        asker: Asker,
    ) -> list[Cut]:  # fmt: skip
        """Cuts all shards at one time, the last to which all may be read. Raises Refused, Invalid, NotFound."""
        ids = [shard.id for shard in shards]
        clauses, pins = _format_clauses(table.clauses), {}
        if request.pins:
            pins = {pin.id: pin for pin in request.pins if pin.at == clauses}
            if any(str(id_) not in pins for id_ in ids):
                raise _not_pinned(entry.name, clauses, [], table.place)
        with _place_faults(table):
            cuts = cuts_of(self._home, entry.name, ids, dict(table.clauses), pins, asker.served)
        if not request.require:
            return cuts
        return satisfying(
            self._home, shards, cuts, request, lambda each, size: self._reach(each, size, request.require or "")
        )

    def _reach(self, entry: DatasetEntry, size: int, require: str) -> int:
        """Counts the first blocks of a chain that satisfy the requirement. Raises Invalid."""
        chain = self._home.chains.chain(entry.id)
        return count_required(self._evaluator, entry, chain, size, parse_expression(require))

    def _standing(self, name: str, shards: Sequence[DatasetEntry], cuts: Sequence[Cut]) -> wire.ReadStanding:
        """Returns the standing of a dataset; of several shards, that of the weakest, with the blocks of all."""
        found = tuple(standing_of(self._shown(each), cut.size) for each, cut in zip(shards, cuts, strict=True))
        return wire.ReadStanding(
            name=name,
            fact=weakest(found),
            blocks=sum(each.blocks for each in found),
            of=sum(each.of for each in found),
        )

    def _unheld(self, name: str, shards: Sequence[DatasetEntry], cuts: Sequence[Cut]) -> list[str]:
        """Makes the remarks on blocks read whose engine nobody here has, so that nobody can be held to them."""
        return [
            f"{name}: {pin.text}"
            for each, cut in zip(shards, cuts, strict=True)
            for pin in self._shown(each).unheld
            if pin.first < cut.size
        ]

    def _satisfying(self, entry: DatasetEntry, cut: Cut, request: wire.QueryRequest) -> Cut:
        """Returns the cut, or the part of it that satisfies the requirement. Raises Refused, Invalid."""
        if not request.require:
            return cut
        chain = self._home.chains.chain(entry.id)
        blocks = self._reach(entry, cut.size, request.require)
        if blocks >= cut.size:
            return cut
        if not blocks or not request.cut:
            raise refuse_unsatisfied(entry.name, blocks, cut.size, request.require, cut=request.cut)
        return msgspec.structs.replace(cut, size=blocks, block=chain.block_at(blocks - 1).hash)

    def _view(
        self, name: str, entry: DatasetEntry, cut: Cut, current: bool, remarks: list[str], *, all_told: bool
    ) -> PlannedView:
        """Plans the slices of a cut. ``all_told``: whether the caller may know of later blocks. Raises NotFound,
        Conflict."""
        chain = self._home.chains.chain(entry.id)
        columns = self._columns.at(chain, cut)
        if isinstance(columns, ChainState):
            own = self._home.keys.has_dataset_key(entry.id)
            first = _first_columns(chain) if all_told else None
            way = f"they come with its first data: {way_to_data(entry.name, columns, own=own)}"
            raise NotFound(
                f"{entry.name} has no columns at block #{cut.size - 1}",
                rule="query-schema",
                hint=way if first is None else f"they come with block #{first}: AT BLOCK '#{first}', or later",
            )
        fold, key = (columns.fold, columns.key) if current else ("log", ())
        need_data(self._home, entry.id, entry.name, whole=fold != "log")
        first = held_from(self._home, entry.id)
        if first > 0:
            remarks.append(f"of {entry.name} the data before block #{first} is not kept here, and is not in the answer")
        slices = self._lists.of(entry.id, chain, cut.size, first)
        # Looked at after the slices were listed: a reset or compaction in between would mix two histories.
        if chain.block_at(cut.size - 1).hash != cut.block:
            raise Conflict(f"{entry.name} was rewritten while it was read", rule="query-cut", hint="ask again")
        view = SliceView(
            name=name,
            files=(),
            schema=columns.schema,
            mixed=columns.mixed,
            fold=fold,
            key=key,
            system=columns.system,
            event_time=columns.event_time,
            until=cut.until,
        )
        return PlannedView(view, entry.id, slices, cut)


def _ref(table: TableNamed) -> str:
    """Returns the name of a dataset in a query."""
    return ".".join(table.path[1:] if _is_current(table) else table.path)


def _is_current(table: TableNamed) -> bool:
    return len(table.path) > 1 and table.path[0].lower() == CURRENT


def _remark_on_shortened(name: str, whole: Cut, cut: Cut, request: wire.QueryRequest) -> list[str]:
    """Makes the remark on a dataset of which only the part is read that satisfies the requirement."""
    if cut is whole:
        return []
    return [f"{name} is read to block #{cut.size - 1} of #{whole.size - 1}: so far it satisfies {request.require}"]


def _unite(views: Sequence[PlannedView]) -> PlannedView:
    """Joins the views of shards to one. Rows that fold together are in one shard, in the order of its offsets."""
    first = views[0]
    mixed = any(view.view.mixed for view in views)
    return msgspec.structs.replace(
        first,
        view=msgspec.structs.replace(first.view, mixed=mixed),
        slices=[slice_ for view in views for slice_ in view.slices],
        shards=tuple(views),
    )


@contextmanager
def _place_faults(table: TableNamed) -> Iterator[None]:
    """Gives faults the place of a table in the statement, unless they have a place."""
    try:
        yield
    except Fault as fault:
        fault.place = fault.place or table.place
        raise


def _first_columns(chain: ChainReader) -> int | None:
    """Returns the number of the block that declares columns, by bisection, since a chain keeps its columns."""
    low, high = 0, (head.size if (head := chain.head()) is not None else 0)
    size = high
    while low < high:
        middle = (low + high) // 2
        if load_state(chain, middle + 1).schema is None:
            low = middle + 1
        else:
            high = middle
    return low if low < size else None


def _no_dataset(ref: str, place: str, asker: Asker, hint: str = "") -> NotFound:
    """Makes the fault for an unknown dataset, with a remedy. Callers who may not read everything
    learn of no other datasets."""
    near = f"{hint}  Or, " if hint.startswith("did you mean") else ""
    how = f"{near}to mirror it: odfctl mirror add did:odf:… --as {ref[:60]}"
    if ref.lower().startswith(_CATALOGS) and not near:
        how = "SHOW TABLES lists datasets, and DESCRIBE NAME columns"
    elif "/" in ref and not near:
        how = "a query reads datasets alone: odfctl ingest brings the rows of a file or an address into one"
    return NotFound(
        f"no dataset {ref[:200]!r} here",
        rule="query-dataset",
        hint=how if asker.served is None else HINT_READABLE,
        place=place,
    )


def _not_pinned(name: str, clauses: str, pinned: Sequence[str], place: str) -> Invalid:
    """Makes the fault of a query with pins that do not pin this dataset, or only with other time clauses."""
    asked = f"with {clauses}" if clauses else "without a time"
    if pinned:
        found = " and ".join(f"with {each}" if each else "without a time" for each in pinned)
        message = f"the pins are for {name} {found}, and the query reads it {asked}"
        hint = "write the same AS OF, AS AT or AT BLOCK after the name; or save pins with this query"
    else:
        message = f"{name} is not pinned, and other datasets are"
        hint = "pins belong to a whole query: save them with this query (--save-pin)"
    return Invalid(message, rule="query-pin", place=place, hint=hint)


def _format_clauses(clauses: Sequence[tuple[str, str]]) -> str:
    """Formats time clauses as one text, which pins repeat."""
    return ", ".join(f"{kind} {value}" for kind, value in clauses)
