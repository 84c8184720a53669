"""Puts a node together: opens its state directory, joins rooms to each other's ports, and lists what must run.

The one place that knows every room. It makes things and hands them on; what they do is theirs.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.cosignature import Cosignature
from chain.statements.envelope import Signed
from chain.statements.proof import AUTHORITY_FORK, FORK, Proof
from chain.statements.statement import Authority, HeadStatement, Observation, PolicyStatement
from config.model import Settings
from engines.provision.warm import EnginePool
from odfd.control.assembly import Assembly, Ground
from odfd.datasets.visibility import Visibility
from odfd.ingest.driver import Workshop as IngestShop
from odfd.ingest.fetch.dialling import is_public
from odfd.ingest.refetch import confined
from odfd.ingest.settings import MayDial
from odfd.ingest.slices import SliceIndex
from odfd.kit.clock import JumpWatch
from odfd.kit.supervision import Child, Life, Restart
from odfd.mirrors import wish as wishes
from odfd.mirrors.arrivals import Arrivals
from odfd.mirrors.holders import Holders
from odfd.mirrors.keeper import MirrorKeeper
from odfd.mirrors.keeping import Keeping
from odfd.mirrors.meeting import Meeting
from odfd.mirrors.mending import ChainMender
from odfd.mirrors.sync import MirrorSync
from odfd.mirrors.turning import following
from odfd.network.evidence import EvidenceFetcher
from odfd.network.forks import Contradiction, ForkFinder
from odfd.network.library import ServingLibrary, Terms
from odfd.network.membership import Membership
from odfd.network.noticeboard import Hearers, LedgerNoticeboard, News
from odfd.network.offering import Offering
from odfd.network.outbox import Outbox
from odfd.network.room import Room
from odfd.resources.store import Resources
from odfd.services.answering import ControlPorts
from odfd.services.carrying import Carrying
from odfd.services.checking import TransformCheck
from odfd.services.collecting import CollectionService
from odfd.services.cosigning import desk_of, submissions_of, witnessing_of
from odfd.services.damage import DamageDesk
from odfd.services.engine import NodeEngine
from odfd.services.heads import HeadKeeper
from odfd.services.home import PARTIAL, PARTIAL_EVIDENCE, SEGMENTS, STAGING, Home, open_home
from odfd.services.options import (
    cap_anew,
    engine_environ,
    host_options,
    ingest_settings,
    object_limits,
    spark_options,
)
from odfd.services.places import Places
from odfd.services.publications import Giving, PublicationService
from odfd.services.quarantines import Quarantines
from odfd.services.repairing import Repairing
from odfd.services.rerunning import observer_of, rechecking_of, validator_of
from odfd.services.resolving import Docket
from odfd.services.rulebook import Rulebook
from odfd.services.shelf import open_site
from odfd.services.signers import Signers
from odfd.services.trust import proof_view
from odfd.services.views import Views
from odfd.services.visibility import is_elsewhere, settle_visibility
from odfd.transform.driver import Workshop as TransformShop
from odfd.trust.admission.rules import Outcome
from odfd.trust.evidence.bundle_store import Shelf
from odfd.trust.judgement.suspension_review import Reviewing
from odfd.trust.judgement.trust_evaluator import Standing
from odfd.trust.ledger.recheck_results import Rechecks
from odfd.trust.policy.policy import Expression, Policy
from odfd.trust.signing.owner_commit import OwnerCommitter
from odfd.trust.signing.signer_context import Post
from odfd.verify.damage import Spot
from p2p.kubo.rpc import Ipfs
from p2p.pace import Line
from p2p.ports import Topic


@contextmanager
def build_node(settings: Settings, ground: Ground) -> Iterator[Assembly]:
    """See ``odfd.control.assembly.Build``."""
    with open_home(Path(settings.node.state_dir)) as home:
        yield NodeParts(home, settings, ground).assembly()


class NodeParts:
    """All parts of one node. Attributes are in the order in which they need each other.

    ``engine``, ``membership`` and ``ipfs`` are what the node computes with and whom it talks to: others in tests.
    """

    def __init__(
        self,
        home: Home,
        settings: Settings,
        ground: Ground,
        engine: NodeEngine | None = None,
        membership: Callable[..., Membership] = Membership,
        ipfs: Ipfs | None = None,
        may_dial: MayDial = is_public,
    ) -> None:
        """``may_dial``: where sources that strangers declared may be."""
        self.may_dial = may_dial
        self.home = home
        self.settings = settings
        self.ground = ground
        self._token: trio.lowlevel.TrioToken | None = None
        self.rulebook = Rulebook(lambda: self.settings)
        self.policy = self._policy()
        self._tell_notes()
        self.standing = Standing(
            home.database, home.chains, lambda: self.policy, home.keys.node_key().did, ground.clock.now, self._purposes
        )
        self.visibility = Visibility(
            home.database, home.chains, home.keys.has_dataset_key, lambda: self.settings.policy.publish.datasets
        )
        self.views = Views(home, self.standing, self.visibility)
        self.docket = Docket(home, self.standing)
        self.engine = engine or NodeEngine(
            spark_options(settings, home), engine_environ(settings, os.environ), ground.journal
        )
        hearers = Hearers(self._heard, self._proven, self.witnessed)
        public_of = self.visibility.public_of
        self.board = LedgerNoticeboard(home.database, home.chains, ground.clock.now, public_of, hearers, self._room())
        self.damage = DamageDesk(home, ground.clock, self._found_damaged)
        self.shelf = Shelf(home.folder("evidence"), refuted=self._untrue)
        self.library = ServingLibrary(
            home.database,
            home.chains,
            home.objects,
            Terms(public_of, self._served),
            ground.clock.now,
            lambda dataset, spot: self.damage.found(dataset, [spot]),
            Offering(self.shelf, public_of),
        )
        self.line = Line(settings.p2p.download_rate, settings.p2p.upload_rate)
        self.membership = membership(
            host_options(settings, home, self.line),
            (self.library, self.board),
            home.database,
            ground.clock,
            ground.journal,
            self._met_someone,
        )
        self.site = open_site(settings, home, (self.library, self.visibility), ground.journal, desk_of(self))
        self.forks = ForkFinder(home.database, home.chains, self.membership, self.board.keep, ground.journal)
        self.outbox = Outbox(self.membership, public_of, ground.journal)
        self.jumps = JumpWatch(ground.clock)
        self.committer = self._committer()
        self.heads = HeadKeeper(home.chains, self.committer, self.name_of, ground.events, ground.journal)
        self.places = Places(
            settings, self.line, home, (self.membership, self.board), ground.clock, ipfs, partial(is_elsewhere, self)
        )
        self._hold_mirrors()
        self._settle()
        self.ingest_shop, self.transform_shop = self._shops()
        self.check = TransformCheck(home, self.engine)
        self._hold_speakers()
        self.reviewing = Reviewing(
            home.database, home.chains, self.standing, ground.events, ground.clock.now, self.keeper.poke_all
        )
        self._hold_caretakers()

    def _hold_caretakers(self) -> None:
        """Who frees the disk, and who keeps on IPFS what is published there."""
        home, ground, settings = self.home, self.ground, self.settings
        self.collection = CollectionService(
            home, ground.board, ground.events, ground.journal, settings.node.collect_hours, ground.clock.now
        )
        self.publications = PublicationService(
            home, self.places.publisher, Giving(self._served, self.visibility), self._on_ipfs, ground
        )

    def _committer(self) -> OwnerCommitter:
        home, now = self.home, self.ground.clock.now
        return OwnerCommitter(home.database, home.chains, home.keys, now, self.signed, self.jumps.ahead)

    def _hold_speakers(self) -> None:
        """Who signs by itself what it found, and whoever lets keys sign again that do not know what they have said."""
        self.validator, self.rechecking = validator_of(self), rechecking_of(self)
        self.observer = observer_of(self)
        self.witnessing, self.submissions = witnessing_of(self), submissions_of(self)
        self.signers = Signers(self.post(), self.membership, self._may_sign_again)

    def _hold_mirrors(self) -> None:
        """What brings datasets of others here, from peers and from where they are published."""
        home, settings, ground = self.home, self.settings, self.ground
        replication = self.places.replication
        keeping = Keeping(home.database, home.chains, home.objects, self.views.readers.own)
        limits = object_limits(settings)
        self.evidence_fetcher = EvidenceFetcher(
            replication, self.shelf, home.folder(PARTIAL_EVIDENCE), lambda: self.places.reserve
        )
        self.arrivals = Arrivals(home.objects, keeping, home.folder(PARTIAL), replication, limits)
        self.holders = Holders(replication, replication.inquire)
        self.following = following(lambda: self.settings.policy)
        self.sync = MirrorSync(
            home.database,
            home.chains,
            self.arrivals,
            replication,
            self.holders,
            Meeting(lambda: self.policy.witnesses, ground.clock.now),
            following=self.following,
        )
        self.keeper = MirrorKeeper(
            home.database, self.sync, ground.events, ground.clock, ground.journal, self.moved, self.forks.doubt
        )
        mender = ChainMender(home.database, home.chains, home.objects, replication, self.holders)
        self.repairing = Repairing(home, self.sync, mender, self._caught_up)
        self.carrying = Carrying(home, self.places, self.arrivals, ground.clock, self.moved, self.board)

    def _settle(self) -> None:
        """What the last life left half-done; the doctor tells of it too."""
        found = self.home.aftermath
        if found.lost:
            self.ground.journal.error(
                "what was committed last is lost: the database's log is damaged", pages=found.lost
            )
        found.settled, found.unsettled = self.carrying.mend()
        settle_visibility(self)
        for name in found.settled:
            self.ground.journal.info("an import that was cut off is settled", dataset=name)
        for trouble in found.unsettled:
            self.ground.journal.error("a dataset cannot be settled", trouble=trouble)

    def assembly(self) -> Assembly:
        restart = Restart()
        workers = [
            Child("outbox", self.outbox.run, restart),
            Child("forks", self.forks.run, restart),
            Child("mirrors", self.keeper.run, restart),
            Child("signers", self.signers.rounds.run, restart),
            Child("heads", self.heads.rounds.run, restart),
            Child("views", self.views.refresher.rounds.run, restart),
            Child("validator", self.validator.rounds.run, restart),
            Child("rechecking", self.rechecking.rounds.run, restart),
            Child("observer", self.observer.run, restart),
            Child("review", self.reviewing.rounds.run, restart),
            Child("witness", self.witnessing.rounds.run, restart),
            Child("submissions", self.submissions.run, restart),
            Child("collection", self.collection.run, restart),
            Child("publications", self.publications.rounds.run, restart),
        ]
        return Assembly(
            node=ControlPorts(self),
            foundations=(
                Child("engine", self.engine.run),
                Child("network", self._run_network, Restart(from_start=False)),
                Child("places", self.places.run),
                *([] if self.site is None else [Child("site", self.site.run, Restart(from_start=False))]),
            ),
            workers=tuple(workers),
            reload=self._reload,
        )

    async def _run_network(self, life: Life) -> None:
        self._token = trio.lowlevel.current_trio_token()
        await self.membership.run(life)

    def _policy(self) -> Policy:
        with self.home.database.read() as connection:
            return self.rulebook.policy(connection)

    def ruled(self, signed: Signed | None) -> None:
        if signed is not None:
            self.outbox.put(Topic.HEADS, None, signed.envelope)
        self.policy_changed()

    def _tell_notes(self) -> None:
        """What the rules in force cannot promise."""
        for note in self.policy.notes:
            self.ground.journal.info("policy", note=note)

    def _speaks_for_us(self, said: PolicyStatement) -> bool:
        network = self.membership.network
        return said.key == self.rulebook.key() and network is not None and said.network == network.name

    def _reload(self, settings: Settings) -> None:
        """Raises Invalid for a policy that cannot be: then all stays as it was."""
        with self.home.database.read() as connection:
            self.rulebook.policy(connection, settings)
        self.settings = settings
        cap_anew(settings, self.line, self.arrivals, self.places)
        self.ingest_shop.settings = ingest_settings(settings, self.home, os.environ)
        self.observer.shop.settings = confined(self.ingest_shop.settings, self.may_dial)
        self.policy_changed()

    def policy_changed(self) -> None:
        self.policy = self._policy()
        self.library.policy_changed()
        self._tell_notes()
        self.keeper.poke_all()
        judged = (self.validator, self.observer, self.reviewing, self.rechecking, self.witnessing, self.submissions)
        for part in judged:
            part.rounds.touch_all()
        self.ground.events.emit("policy.changed", message=f"use {self.policy.use}, serve {self.policy.serve}")

    def _purposes(self, dataset: DatasetId) -> tuple[Expression | None, Expression | None]:
        with self.home.database.read() as connection:
            return wishes.purposes(Resources(connection), dataset)

    def _room(self) -> Room:
        return Room(
            is_listed=lambda key: key == self.standing.me or self.policy.group_of(key) is not None,
            witnesses=lambda: self.policy.witnesses,
            is_wished=self._is_wished,
            speaks_for_us=self._speaks_for_us,
        )

    def _is_wished(self, connection: sqlite3.Connection, dataset: DatasetId) -> bool:
        return dataset in self.policy.attended or wishes.of(Resources(connection), dataset) is not None

    def _served(self, dataset: DatasetId) -> int:
        """Blocks that policy passes on of what is public."""
        return self.standing.reach(dataset, self.standing.serve(dataset)).blocks

    def _usable(self, dataset: DatasetId) -> int | None:
        """Blocks that may feed a transform here; what this node made itself it relies on."""
        if self.keeper.find(dataset) is None:
            return None
        return self.standing.reach(dataset, self.standing.use(dataset)).blocks

    def name_of(self, dataset: DatasetId) -> str:
        with self.home.catalog() as catalog:
            return catalog.name_of(dataset)

    def signed(self, dataset: DatasetId, signed: Signed) -> None:
        self.library.moved(dataset)
        self.outbox.put(Topic.HEADS, dataset, signed.envelope)
        if self._token is not None:
            for part in (self.publications, self.submissions):
                self._token.run_sync_soon(part.rounds.touch, dataset)

    def witnessed(self, made: Cosignature) -> None:
        """From a worker thread: a witness that counts signed; a mirror may have waited for it."""
        tree, who = made.checkpoint, self.policy.witnesses.groups.get(made.witness, made.witness.short)
        if self._token is not None:
            name = self.name_of(tree.dataset)
            emit = partial(self.ground.events.emit, "cosignature.heard", name, f"{who}: {tree.size}", size=tree.size)
            self._token.run_sync_soon(emit)
            self._token.run_sync_soon(self.keeper.poke, tree.dataset)

    def leaves(self, dataset: DatasetId, start: int, stop: int) -> list[bytes]:
        return [Multihash.sha3_256(raw).digest for raw in self.home.chains.chain(dataset).raw_blocks(start, stop)]

    def _attested(self, dataset: DatasetId, signed: Signed) -> None:
        self.outbox.put(Topic.ATTEST, dataset, signed.envelope)

    def _heard(self, news: News) -> None:
        """From a worker thread: act in the event loop."""
        if self._token is not None:
            dataset = news.predicate.dataset
            self._token.run_sync_soon(self._act_on, news, self.name_of(dataset))
            # Nobody else is to know more of a dataset of ours: another writer may, and so does whoever has its key.
            if isinstance(news.predicate, HeadStatement) and self.home.keys.has_dataset_key(dataset):
                self._token.run_sync_soon(self.forks.doubt, dataset, news.sender)

    def _proven(self, proof: Proof, made_here: bool) -> None:
        """From a worker thread. What was made here nobody else has: it is gossiped once; others' goes on by itself."""
        if made_here:
            self.outbox.put(Topic.PROOFS, proof.dataset, proof.raw)
        if self._token is not None:
            view = proof_view(self.name_of(proof.dataset), proof)
            kind = _EVENT_OF.get(proof.kind, "validator.suspended")
            self._token.run_sync_soon(partial(self.ground.events.emit, kind, view.dataset, view.message, id=view.id))
            if any(self.policy.group_of(key) is not None for key in proof.accused):
                self._token.run_sync_soon(self.reviewing.rounds.touch_all)

    def _found_damaged(self, dataset: DatasetId, spot: Spot) -> None:
        """From a worker thread. A mirror fetches spoilt objects anew by itself."""
        name = self.name_of(dataset)

        def tell() -> None:
            self.ground.journal.error("damaged on disk", dataset=name, block=spot.sequence, found=spot.message)
            self.ground.events.emit("damage.found", name, f"block #{spot.sequence}: {spot.message}", rule=spot.rule)
            self.keeper.poke(dataset)

        if self._token is not None:
            self._token.run_sync_soon(tell)

    def _act_on(self, news: News, name: str) -> None:
        said = news.predicate
        if isinstance(said, HeadStatement):
            if news.outcome is Outcome.FORK:
                self.ground.events.emit("head.refused", name, "it contradicts what the same key signed before")
                if news.proof is None:
                    self.forks.put(Contradiction(said, news.envelope, news.sender))
                return
            self.ground.events.emit("head.heard", name, f"{said.size} blocks", size=said.size)
            if said.dataset in self.policy.attended:
                self.witnessing.rounds.touch(said.dataset)
        elif isinstance(said, Authority):
            self.ground.events.emit("authority.heard", name, f"version {said.version}", version=said.version)
            self.witnessing.rounds.touch(said.dataset)
        elif isinstance(said, PolicyStatement):
            self.ground.events.emit("policy.heard", said.network, f"version {said.version}", version=said.version)
            self.policy_changed()
        elif isinstance(said, Observation):
            text = f"{news.signer.short}: #{said.sequence_number} {said.result}"
            self.ground.events.emit("observation.heard", name, text, block=said.sequence_number, result=said.result)
        else:
            wrong = [each.sequence_number for each in said.mismatch]
            verdict = f"mismatch at #{wrong[0]}" if wrong else f"{said.size} blocks"
            self.ground.events.emit("attestation.heard", name, f"{news.signer.short}: {verdict}")
        self.keeper.poke(said.dataset)
        for part in (self.validator, self.reviewing, self.rechecking):
            part.rounds.touch(said.dataset)

    def _met_someone(self) -> None:
        self.keeper.poke_all()
        self.witnessing.rounds.poke()
        self.signers.rounds.poke()

    def _caught_up(self, dataset: DatasetId) -> None:
        self.moved(dataset)
        self.heads.rounds.poke()

    def _on_ipfs(self) -> bool:
        return self.settings.policy.publish.ipfs

    def shown_otherwise(self, dataset: DatasetId) -> None:
        """It was published or made private, came or went: what others are told of this node changes at once."""
        self.library.moved(dataset)
        if self._token is not None:
            self._token.run_sync_soon(self.membership.look_again)
            for part in (self.publications, self.submissions):
                self._token.run_sync_soon(part.rounds.touch, dataset)

    def _may_sign_again(self) -> None:
        self.heads.rounds.poke()
        self.validator.rounds.touch_all()
        self.witnessing.rounds.touch_all()

    def moved(self, dataset: DatasetId) -> None:
        followers = (self.reviewing, self.rechecking, self.validator, self.observer, self.witnessing)
        for part in (*followers, self.publications):
            part.rounds.touch(dataset)

    def _shops(self) -> tuple[IngestShop, TransformShop]:
        home, clock = self.home, self.ground.clock
        ingest = IngestShop(
            store=home.chains,
            objects=home.objects,
            engine=self.engine,
            committer=self.committer,
            now=clock.now,
            settings=ingest_settings(self.settings, home, os.environ),
            index=SliceIndex(home.folder(SEGMENTS)),
            quarantines=Quarantines(home, self.committer, clock.now),
        )
        transform = TransformShop(
            chains=home.chains,
            objects=home.objects,
            engines=EnginePool({"spark": self.engine}),
            committer=self.committer,
            now=clock.now,
            staging=home.folder(STAGING),
            rows=self.settings.engine.transaction_rows,
            usable=self._usable,
        )
        return ingest, transform

    def post(self) -> Post:
        home, ground = self.home, self.ground
        return Post(
            database=home.database,
            keys=home.keys,
            events=ground.events,
            clock=ground.clock,
            journal=ground.journal,
            announce=self._attested,
            name_of=self.name_of,
            public_of=self.visibility.public_of,
        )

    def _untrue(self, bundles: Collection[Multihash]) -> frozenset[Multihash]:
        with self.home.database.read() as connection:
            return Rechecks(connection).untrue(bundles)


_EVENT_OF: Final = {FORK: "dataset.forked", AUTHORITY_FORK: "authority.forked"}
