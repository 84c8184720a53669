"""What ``odfctl`` may ask of a node: each service with the parts that it stands on.

``odfd.node.parts`` makes the parts, ``odfd.node.assembly`` says which of them run.
"""

from __future__ import annotations

import secrets
from functools import partial

from odfd.api.apply import Applying
from odfd.api.authority import AuthorityService
from odfd.api.clock_probe import ClockProbe
from odfd.api.datasets import DatasetService, Others
from odfd.api.doctor import Doctor
from odfd.api.engine_migration import ProvingService
from odfd.api.evidence import EvidenceDesk
from odfd.api.history_rewrite import RewritingService
from odfd.api.holder_counts import HolderCounts
from odfd.api.ingest_pull import FlowService, Hands
from odfd.api.lineage import LineageService
from odfd.api.mirrors import MirrorService, NetworkService, PeerService
from odfd.api.policies import RulesService
from odfd.api.resolutions import ResolvingService
from odfd.api.status import AboutService, Running
from odfd.api.trust import Heads, TrustService
from odfd.api.verification import VerificationService
from odfd.api.visibility import VisibilityService
from odfd.control.board import BoardTasks, LogEvents
from odfd.node.parts import NodeParts
from odfd.node.witness_parts import witness_views
from odfd.state.directory import UPLOADS
from odfd.state.uploads import Uploads


class ControlPorts:
    """Implements ``odfd.control.ports``: an attribute for each."""

    def __init__(self, parts: NodeParts) -> None:
        home, ground = parts.home, parts.ground
        applying = Applying(home, parts.committer, parts.engine, ground, lambda: parts.ingest_shop.settings)
        clock = ClockProbe(home, ground.clock.now, parts.jumps.ahead)
        doctor = Doctor(home, parts.visibility, parts.heads.troubles, clock)
        self.signers = parts.signers
        name = parts.settings.node.name
        running = Running(parts.engine, parts.membership, parts.site, parts.signers, parts.visibility)
        self.about = AboutService(home, parts.views, doctor, running, ground, name)
        holders = HolderCounts(parts.keeper, parts.membership.serving)
        self.datasets = DatasetService(
            home, parts.views, applying, parts.keeper, ground, Others(holders, parts.shown_otherwise)
        )
        uploads = Uploads(
            home.folder(UPLOADS),
            lambda: parts.settings.limits.upload_bytes,
            lambda: secrets.token_hex(8),
            lambda: parts.settings.limits.disk_reserve_bytes,
        )
        hands = Hands(uploads, parts.carrying, parts.repairing)
        self.flow = FlowService(home, (parts.ingest_shop, parts.transform_shop), parts.keeper, hands, ground)
        self.rewriting = RewritingService(
            home, parts.committer, parts.keeper, ground, parts.moved, parts.following.apart
        )
        self.collection = parts.collection
        terms = parts.standing, parts.visibility
        self.mirrors = MirrorService(home, parts.keeper, terms, ground.board, parts.places, holders)
        self.publications = parts.publications
        self.visibility = VisibilityService(home, parts.visibility, ground, parts.shown_otherwise, parts.signed)
        self.networks = NetworkService(home, parts.membership, holders)
        self.peers = PeerService(parts.membership)
        self.verification = VerificationService(home, parts.transform_shop, ground.board, parts.damage, parts.keeper)
        self.proving = ProvingService(home, parts.transform_shop, parts.committer, ground.board, ground.events)
        self.lineage = LineageService(home, parts.transform_shop, ground.board, lambda: secrets.token_hex(8))
        self.policies = RulesService(
            home,
            parts.membership,
            ground.clock,
            parts.rulebook,
            parts.ruled,
        )
        self.trust = TrustService(
            home,
            parts.docket,
            ground.clock,
            parts.policy_changed,
            EvidenceDesk(home, parts.shelf, parts.evidence_fetcher, ground.board),
            parts.rulebook.policy,
            Heads(parts.heads.troubles, partial(witness_views, parts)),
        )
        self.resolving = ResolvingService(home, parts.docket, parts.keeper, ground, parts.moved)
        self.authority = AuthorityService(home, parts.committer, ground.clock, parts.signed)
        self.tasks = BoardTasks(ground.board)
        self.events = LogEvents(ground.events)
