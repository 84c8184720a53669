"""Whole nodes in one process: real state directories, the small engine, and a network that is a dictionary.

Every node is wired as the daemon wires it; only the engine and the membership are others. The network does what the
replication layer promises and nothing that it forbids; ``Lies`` are what a peer may do on top.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec
import pyarrow as pa
import trio

from chain import instant
from chain.data.parquet import open_slice, write_slice
from chain.errors import Fault
from chain.ids import DatasetId
from chain.instant import Instant
from config import model
from engines.contract import OnProgress, TransformOutcome, TransformRequest, ignore_progress
from engines.query.reader import QueryProcesses
from odfd.api import resource_operations
from odfd.api.resource_operations import shown_of
from odfd.control import wire
from odfd.control.assembly import Assembly, Context
from odfd.datasets.uncommitted_objects import UncommittedObjects
from odfd.mirrors.mirror_state import Mirror
from odfd.mirrors.object_fetcher import ObjectFetcher
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.mirrors.sync import MirrorSync
from odfd.network.library import ServingLibrary
from odfd.network.membership import Membership
from odfd.network.outbox import Outbox
from odfd.network.statement_store import LedgerStatementStore
from odfd.node.assembly import assembly_of, reload, services_of
from odfd.node.features import NodeFeatures
from odfd.obs.events import Event, EventLog
from odfd.obs.meter import NodeMeter, counted_by
from odfd.policy.policy_merge import PoliciesByNetwork
from odfd.resources.registry import state
from odfd.runtime.bus import Bus
from odfd.runtime.supervision import Life
from odfd.runtime.tasks import TaskBoard, TaskPhase
from odfd.services.datasets.damage import DamageRegistry
from odfd.services.execution.engine import NodeEngine
from odfd.services.feature import InForce
from odfd.services.flows.worker import FlowWorker
from odfd.services.judgement.head_signer import HeadSigner
from odfd.services.maintenance.garbage_collection import GarbageCollector
from odfd.services.publishing.card_publisher import CardPublisher
from odfd.services.publishing.ipfs_publication import PublicationService
from odfd.services.publishing.node_card_publisher import NodeCardPublisher
from odfd.services.queries.public_queries import PublicQueries
from odfd.services.queries.service import QueryService
from odfd.services.renditions.handover_follower import HandoverFollower
from odfd.services.resources.reconciler import Reconciler
from odfd.services.resources.types import TYPES
from odfd.services.transfer.collection_transfer import CollectionTransfer
from odfd.services.transfer.remotes import Remotes
from odfd.services.trust.feature import submissions_of
from odfd.services.trust.witness_submission import WitnessSubmission
from odfd.services.trust.witnessing import Witnessing
from odfd.services.views.views import DatasetViews
from odfd.services.volumes.worker import VolumeWorker
from odfd.services.webhooks.calls import WebhookWorker
from odfd.store.access_tokens import TokenStore
from odfd.store.directory import DATABASE, HomeTerms, StateDirectory, open_state_directory
from odfd.store.visibility import Visibility
from odfd.trust.evidence.bundle_store import BundleStore
from odfd.trust.judgement.trust_evaluator import TrustEvaluator
from odfd.trust.signing.owner_commit import OwnerCommitter
from odfd.trust.validation.evidence_rechecker import EvidenceRechecker
from odfd.trust.validation.observer import Observer
from odfd.trust.validation.validator import Validator
from p2p.ip import Allows, is_global
from p2p.kubo.rpc import IpfsDaemon
from worlds.called_services import CalledServices
from worlds.eventually import PATIENCE
from worlds.fake_engine import FakeEngine
from worlds.manifests import DERIVED, ROOT
from worlds.wires import Member, Wires

__all__ = ["DERIVED", "ROOT", "Node", "SmallEngine", "Ticking", "World", "until"]

START = instant.parse("2026-01-01T00:00:00Z")


_AT_ONCE: Final[dict[str, Any]] = {
    "ingest": model.Ingest(settle_seconds=0),
    "flows": model.Flows(follow=False),
}
"""Tests write their files whole, in a time of their own, and pull when they mean to."""


@functools.cache
def _empty_database() -> bytes:
    """The file of a node that has nothing yet: to make its tables takes half of what it takes to open it."""
    with tempfile.TemporaryDirectory() as folder:
        with open_state_directory(Path(folder)) as home:
            path = home.database.path
        return path.read_bytes()


def opened(folder: Path, terms: HomeTerms = HomeTerms()) -> AbstractContextManager[StateDirectory]:  # noqa: B008  it is frozen
    """A state directory; a new one begins with tables that were made once for all tests of this process."""
    if not folder.exists():
        folder.mkdir(mode=0o700, parents=True)
        (folder / DATABASE).write_bytes(_empty_database())
    return open_state_directory(folder, terms=terms)


async def until(holds: Callable[[], Any]) -> None:
    """What threads write to a database they tell nobody; who asks without a pause leaves them no core."""
    with trio.fail_after(PATIENCE):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.005)


class Ticking:
    """Each look is a tenth of a second later."""

    def __init__(self, start: Instant = START) -> None:
        self.instant = int(start)

    def now(self) -> Instant:
        self.instant += 100 * instant.MILLISECOND
        return Instant(self.instant)

    def monotonic(self) -> int:
        return self.instant


class Lines:
    """A journal that remembers."""

    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **values: object) -> None:
        self.said.append((event, values))

    def debug(self, event: str, **values: object) -> None:
        """Nobody reads it: the daemon logs from level info on."""

    error = info


class SmallEngine(FakeEngine):
    """The small engine, as a node owns its engine. ``wrong`` makes it answer otherwise, a ``fault`` not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: Fault | None = None
        self.wrong: Callable[[TransformRequest], None] | None = None
        self.generations = 0
        self.transforms = 0
        self.warmed = 0
        self.host = None
        self.why_not = None

    @property
    def digests(self) -> Collection[str]:
        return (self.digest,)

    async def run(self, life: Life) -> None:
        life.ready()
        await life.stopping.wait()

    def view(self) -> wire.EngineView:
        return wire.EngineView(name="small", state="idle")

    def drop(self, dataset: DatasetId, why: str) -> None:
        """There is no process to end."""

    def warm(self) -> None:
        self.warmed += 1

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[SmallEngine]:
        self.generations += 1
        yield self

    async def transform(self, request: TransformRequest, on_progress: OnProgress = ignore_progress) -> TransformOutcome:
        if self.fault is not None:
            raise self.fault
        self.transforms += 1
        answer = await super().transform(request, on_progress)
        if self.wrong is not None:
            await trio.to_thread.run_sync(self.wrong, request)
        return answer


class Parts:
    """The parts of all features of a node, by their names; and its ground, ``reload`` and ``home``.

    Those that many tests look at are named here with their types.
    """

    arriving: UncommittedObjects
    board: LedgerStatementStore
    bundles: BundleStore
    cards: CardPublisher
    collection: GarbageCollector
    committer: OwnerCommitter
    context: Context
    damage: DamageRegistry
    evaluator: TrustEvaluator
    flows: FlowWorker
    handovers: HandoverFollower
    heads: HeadSigner
    home: StateDirectory
    import_export: CollectionTransfer
    in_force: InForce
    library: ServingLibrary
    membership: Member
    node_card: NodeCardPublisher
    object_fetcher: ObjectFetcher
    observer: Observer
    outbox: Outbox
    policies: PoliciesByNetwork
    public_queries: PublicQueries
    publications: PublicationService
    queries: QueryService
    readers: QueryProcesses
    rechecker: EvidenceRechecker
    reconciler: Reconciler
    remotes: Remotes
    scheduler: MirrorScheduler
    settings: model.Settings
    sync: MirrorSync
    tokens: TokenStore
    validator: Validator
    views: DatasetViews
    visibility: Visibility
    volumes: VolumeWorker
    webhooks: WebhookWorker
    witnessing: Witnessing

    def __init__(self, features: NodeFeatures) -> None:
        self._features = features
        self._places = (*features.all, features.ground, features.ground.home)

    def __getattr__(self, name: str) -> Any:
        for each in self._places:
            if name in vars(each):
                return getattr(each, name)
        return getattr(self._features.ground, name)

    def reload(self, settings: model.Settings) -> None:
        reload(self._features, settings)


class Node:
    """One node. Its parts are real; make it by ``World.node`` or, running, by ``World.running``."""

    def __init__(
        self,
        home: StateDirectory,
        wires: Wires,
        in_force: InForce,
        clock: Ticking,
        ipfs: IpfsDaemon | None = None,
        may_dial: Allows = is_global,
        bus: Bus | None = None,
    ) -> None:
        bus = bus or Bus()
        self.clock, self.logger = clock, Lines()
        meter = NodeMeter()
        self.events = EventLog(clock, heard=counted_by(meter))
        ids = itertools.count()
        self.board = TaskBoard(clock, lambda: f"t{next(ids)}", self.logger, on_finish=meter.count_end, bus=bus)
        self.engine = SmallEngine()
        context = Context(clock, self.logger, self.events, self.board, "test", meter, bus)
        engine = cast(NodeEngine, self.engine)
        member = cast(Callable[..., Membership], wires.member)
        self.features = NodeFeatures(home, in_force, context, engine, member, ipfs, may_dial)
        self.parts = Parts(self.features)
        self.services = services_of(self.features)
        self.api = CalledServices(self.services)
        self.home = home
        self.member = self.parts.membership

    @functools.cached_property
    def assembly(self) -> Assembly:
        """Of a node that runs: all that it does by itself, and its routes."""
        return assembly_of(self.features, self.services)

    @property
    def key(self) -> str:
        return str(self.home.keys.node_key().did)

    def submissions(self) -> WitnessSubmission:
        """Another one like the node's own."""
        return submissions_of(self.features.ground, self.features.judgement, self.features.peers)

    async def done(self, submitted: Awaitable[wire.TaskRef]) -> Any:
        """The result of a task. Raises its fault."""
        with trio.fail_after(PATIENCE):
            task = self.board.get((await submitted).id)
            await task.finished.wait()
        if task.state is TaskPhase.FAILED:
            assert task.fault is not None
            raise task.fault
        assert task.state is TaskPhase.DONE, task.state
        return task.result

    async def heard(self, kind: str, count: int = 1) -> list[Event]:
        """The first ``count`` events of a kind, from the beginning on."""
        found: list[Event] = []
        with trio.fail_after(PATIENCE):
            async with aclosing(self.events.follow(0)) as events:
                async for event in events:
                    if isinstance(event, Event) and event.kind.startswith(kind):
                        found.append(event)
                        if len(found) == count:
                            break
        return found

    async def heard_head(self, size: int) -> None:
        """Until a head of so many blocks was heard of: people are told of one that is wanted here."""

        async def told() -> None:
            async with aclosing(self.events.follow(0)) as events:
                async for event in events:
                    if isinstance(event, Event) and event.kind == "head.heard" and event.data["size"] == size:
                        break
            nursery.cancel_scope.cancel()

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(told)
                while size not in {each.size for each in self.parts.board.unheld.heads().values()}:
                    await self.member.shown.wait()
                nursery.cancel_scope.cancel()

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events.list_kept()]

    def dataset(self, name: str) -> DatasetId:
        with self.home.catalog() as catalog:
            return catalog.resolve(name).id

    def size(self, name: str) -> int:
        head = self.home.chains.chain(self.dataset(name)).head()
        return head.size if head else 0

    async def manifest(self, dataset: str) -> wire.ResourceManifest:
        """A dataset in the form in which it can be applied."""
        return await resource_operations.portable(self.api, TYPES.get("Dataset"), dataset)

    async def apply(
        self,
        *manifests: str,
        dry_run: bool = False,
        base: Path | None = None,
        prune: str | None = None,
        force: bool = False,
        on_error: Literal["atomic", "skip"] = "atomic",
    ) -> wire.ApplyResult:
        folder = base or self.home.directory.parent / "source"
        texts = tuple(
            wire.ManifestText(source=f"m{number}.yaml", text=text, base=str(folder))
            for number, text in enumerate(manifests)
        )
        request = wire.ApplyRequest(manifests=texts, dry_run=dry_run, prune=prune, force=force, on_error=on_error)
        applied: wire.ApplyResult = await self.done(self.api.applying.apply(request))
        return applied

    async def dataset_view(self, ref: str) -> wire.DatasetView:
        shown: wire.DatasetView = (await self.api.datasets.describe(ref)).dataset
        return shown

    async def dataset_views(self) -> list[wire.DatasetView]:
        """The states of all datasets, as their paths tell them."""
        shown = await shown_of(self.api, await self.api.declarations.list("Dataset", None))
        return [
            msgspec.convert({**state(each), "name": each.name, "id": each.spec["did"]}, wire.DatasetView)
            for each in shown
        ]

    async def keep_raw(self, ref: str, *, keeps: bool = True) -> wire.ResourceView:
        """Says by hand whether the bytes of a dataset's source are kept."""
        request = wire.LabelRequest(annotations={"keepRaw": keeps or None})
        labelled: wire.ResourceView = await self.api.declarations.label("Dataset", ref, request)
        return labelled

    async def pull(self, *refs: str, **more: Any) -> list[wire.PullItem]:
        request = wire.PullRequest(refs=refs, all=not refs, **more)
        return list((await self.done(self.api.flow.pull(request))).items)

    async def take_in(
        self, *manifests: str, files: Mapping[str, Iterable[str]], pulls: Sequence[str] = (), **more: Any
    ) -> list[wire.PullItem]:
        """Rows of cities stand in files of the source, and are pulled by what the manifests declare, or by others."""
        for file, rows in files.items():
            write_cities(self.home.directory.parent / "source" / file, rows)
        if manifests:
            await self.apply(*manifests)
        return await self.pull(*pulls, **more)

    async def publish(self, *refs: str) -> Sequence[wire.VisibilityView]:
        told: Sequence[wire.VisibilityView] = await self.api.visibility.publish(
            wire.VisibilityRequest(refs=refs, all=not refs)
        )
        return told

    async def unpublish(self, *refs: str) -> Sequence[wire.VisibilityView]:
        told: Sequence[wire.VisibilityView] = await self.api.visibility.unpublish(
            wire.VisibilityRequest(refs=refs, all=not refs)
        )
        return told

    async def sign_again(self, *, alone: bool = False) -> wire.SigningView:
        view: wire.SigningView = await self.api.journal_recovery.sign_again(wire.SignRequest(alone=alone))
        return view

    async def mirror(self, source: DatasetId, name: str, **more: Any) -> ShownMirror:
        return await self.added(wire.MirrorRequest(source=str(source), as_name=name, **more))

    async def added(self, request: wire.MirrorRequest) -> ShownMirror:
        """Add a mirror, and wait until it is there."""
        return mirror_of(await self.done(self.api.mirrors.add(request)))

    async def mirrors(self) -> list[ShownMirror]:
        return list(map(mirror_of, await shown_of(self.api, await self.api.declarations.list("Mirror", None))))

    async def mirror_in_vain(self, source: DatasetId, name: str, is_there: Callable[[Mirror], bool]) -> Mirror:
        """Mirror what cannot be had, until a pass has ended as expected; it is tried again and again."""
        await self.api.mirrors.add(wire.MirrorRequest(source=str(source), as_name=name))
        mirror = self.parts.scheduler.get(source)
        with trio.fail_after(PATIENCE):
            while not is_there(mirror):
                await mirror.turned.wait()
        return mirror


class ShownMirror(wire.MirrorState, frozen=True, kw_only=True):
    """A Mirror on one level: its name, what its spec says, and what the running node knows of it."""

    name: str
    id: str
    keep: str | None
    rate: str | None
    network: str | None
    via: str | None
    want: str | None
    shared_by: Any
    priority: int


def mirror_of(shown: wire.ResourceManifest) -> ShownMirror:
    said = {key: shown.spec.get(key) for key in ("keep", "rate", "network", "via", "want")}
    more = {"name": shown.name, "id": shown.spec["source"], "priority": shown.spec.get("priority", 0)}
    state = msgspec.structs.asdict(shown.state(wire.MirrorState))
    return ShownMirror(**said, **more, **state, shared_by=shown.spec.get("peers"))


def in_the_open(node: Node) -> Node:
    """All that nobody said anything of is published, as by ``policy.publish.datasets``, and imports too."""
    node.parts.visibility.publishes_all = lambda: True
    node.parts.visibility.has_key = lambda _dataset: True
    return node


def write_cities(path: Path, rows: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["event_time,city,population", *rows, ""]))
    return path


class World:
    """A folder with nodes in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wires = Wires()
        self.nodes: list[Node] = []
        self.clock = Ticking()
        self.may_dial: Allows = is_global
        self._open = ExitStack()

    def node(self, name: str, policy: model.Policy | None = None, *, private: bool = False, **more: Any) -> Node:
        """``private``: as nodes are; else ``in_the_open``, for worlds that have nothing to hide."""
        folder = self.folder / name
        (folder / "source").mkdir(parents=True, exist_ok=True)
        in_force, bus = InForce(model.Settings(policy=policy or model.Policy(), **(_AT_ONCE | more))), Bus()
        home = self._open.enter_context(opened(folder / "state", in_force.home_terms(self.clock, bus)))
        made = Node(home, self.wires, in_force, self.clock, bus=bus)
        return made if private else in_the_open(made)

    @asynccontextmanager
    async def running(
        self,
        name: str,
        policy: model.Policy | None = None,
        ipfs: IpfsDaemon | None = None,
        *,
        private: bool = False,
        **more: Any,
    ) -> AsyncIterator[Node]:
        """From open state directory to closed one, as often as one likes; ``private`` as for ``node``."""
        folder = self.folder / name
        (folder / "source").mkdir(parents=True, exist_ok=True)
        in_force, bus = InForce(model.Settings(policy=policy or model.Policy(), **(_AT_ONCE | more))), Bus()
        with opened(folder / "state", in_force.home_terms(self.clock, bus)) as home:
            node = Node(home, self.wires, in_force, self.clock, ipfs, self.may_dial, bus)
            if not private:
                in_the_open(node)
            lives: list[Life] = []
            children = (*node.assembly.foundations, *node.assembly.workers)
            runs = [("tasks", node.board.run), *((child.name, child.run) for child in children)]
            parts = node.parts.context.readiness.parts
            async with trio.open_nursery() as nursery:
                for part, run in runs:
                    lives.append(Life())
                    parts[part] = lives[-1].health
                    nursery.start_soon(run, lives[-1])
                    await lives[-1].wait_ready()
                self.nodes.append(node)
                try:
                    yield node
                finally:
                    self.nodes.remove(node)
                for life in reversed(lives):
                    life.stopping.set()
                nursery.cancel_scope.cancel()

    def steal(self, owner: str, thief: str, seed: bytes) -> None:
        """The owner's state as it is now, in other hands: datasets' keys, no journals, and the thief's own node key.

        What the journals said nobody tells the thief, who says ``sign_again(alone=True)``.
        """
        shutil.copytree(self.folder / owner / "state", self.folder / thief / "state")
        keys = self.folder / thief / "state" / "keys"
        for journal in keys.glob("*.journal"):
            journal.unlink()
        (keys / "node.key").write_text(seed.hex() + "\n")

    async def spread(self, node: Node, *names: str) -> None:
        """Until all others know the heads of these datasets."""
        for other in self.nodes:
            for name in names:
                if other is not node:
                    await other.heard_head(node.size(name))

    def write(self, name: str, file: str, *rows: str) -> Path:
        """A CSV in the folder that a node's sources start from."""
        return write_cities(self.folder / name / "source" / file, rows)

    def close(self) -> None:
        self._open.close()


def run_apart(folder: Path, play: Callable[..., Awaitable[object]], *more: object) -> None:
    """Runs one example of a property in a world of its own in this folder, and removes the world."""
    world = World(Path(tempfile.mkdtemp(dir=folder)))
    try:
        trio.run(play, world, *more)
    finally:
        world.close()
    shutil.rmtree(world.folder)


def add_to_first(column: str, more: int, request: TransformRequest) -> None:
    """Change one number of what a transform has just made."""
    path = Path(request.new_data_path)
    if not path.exists():
        return
    with open_slice(path) as file:
        rows = file.read().replace_schema_metadata(None)
    place = rows.schema.get_field_index(column)
    values = rows.column(place).to_pylist()
    values[0] += more
    rows = rows.set_column(place, rows.schema.field(place), pa.array(values, rows.schema.field(place).type))
    path.unlink()
    write_slice(rows, path)
