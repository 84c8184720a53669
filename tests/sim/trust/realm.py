"""One dataset whose owner rotates its keys, whose writers are robbed, and whose root may contradict itself.

Every node is a real noticeboard over a real ledger; the seed decides what is signed, what is lost, and who hears what
when. Statements travel as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from chain import instant
from chain.codec.blocks import encode_block
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import DatasetKind, MetadataEvent, Seed, SetInfo
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.authority import Rights, follow, implicit
from chain.statements.keys import SigningKey
from chain.statements.proof import AUTHORITY_FORK, Proof
from chain.statements.statement import Authority, HeadStatement, TreeHead
from chain.statements.tree import Frontier
from chain.store.base import Append
from chain.store.database import Database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.network.statement_store import LedgerStatementStore
from odfd.store.ledger import log as ledger
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.live_set import hold_instead, live_of
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.proofs import Proofs, is_disputed
from odfd.store.ledger.resolutions import Resolutions
from odfd.store.ledger.retention import SUPERSEDED, prune
from odfd.trust.judgement import manual_resolution
from odfd.trust.signing import authority_versions
from p2p.ports import Judgement, PeerId, Topic
from sim.kernel import Links, Simulation, Weather
from sim.trust.fabric import START, digest, key_of
from sim.trust.promises import Broken

BLOCKS = 12
HELD = 3
"""Blocks that every node has from the start; of the rest it knows heads alone."""
STEPS = 10
STEP = 60.0
"""Seconds of virtual time."""
WEEK = 7 * 86400 * instant.SECOND


class Peer:
    """A node as far as it hears statements."""

    def __init__(self, name: str, database: Database, folder: Path) -> None:
        self.name, self.database = PeerId(name), database
        self.chains = SqliteChains(database, DiskObjects(folder / f"objects-{name}", database))
        database.migrate(ledger.ROOM, ledger.STEPS)
        self.now = START
        self.board = LedgerStatementStore(
            database, self.chains, lambda: self.now, lambda datasets, _=None: frozenset(datasets)
        )

    def hold(self, blocks: Sequence[Block], dataset: DatasetId) -> None:
        self.chains.commit([Append(dataset=dataset, expected=None, blocks=list(blocks))])
        tree = Frontier().extend(block.hash.digest for block in blocks)
        with self.database.write() as connection:
            Ledger(connection).keep_chain(dataset, CheckedChain(tree, tree.size))

    def prune(self) -> None:
        """As if a month had passed since anybody spoke."""
        prune(self.database, Instant(self.now + SUPERSEDED))

    def is_as_logged(self, dataset: DatasetId) -> bool:
        """Whether what is live is what the log makes of it, and the log is linked."""
        with self.database.read() as connection:
            ledger = Ledger(connection)
            ledger.check()
            return {each.sid for each in live_of(connection, dataset).values()} == set(ledger.live(dataset))

    def walk(self, dataset: DatasetId) -> list[Rights]:
        with self.database.read() as connection:
            return Authorities(connection).walk(dataset)

    def newest(self, dataset: DatasetId) -> tuple[HeadStatement, KeyDid] | None:
        with self.database.read() as connection:
            found = Ledger(connection).newest_head(dataset)
        return None if found is None else (found[0], found[1].signers[0])

    def proofs(self, dataset: DatasetId) -> list[Proof]:
        with self.database.read() as connection:
            return Proofs(connection).of(dataset)

    def disputed(self, dataset: DatasetId) -> bool:
        with self.database.read() as connection:
            return is_disputed(connection, dataset, Authorities(connection).rights(dataset))

    def resolve(self, dataset: DatasetId, version: Multihash) -> None:
        """A person follows one of two statements of the newest version."""
        walk = self.walk(dataset)
        found = [each for each in self.proofs(dataset) if (each.kind, each.epoch) == (AUTHORITY_FORK, len(walk) - 1)]
        held = walk[-1].sid
        assert held is not None
        case = manual_resolution.PendingDecision(
            dataset=dataset,
            name="realm",
            size=HELD,
            head=None,
            epoch=0,
            number_of=lambda _: None,
            versions=manual_resolution.versions_of(found[0], held),
        )
        answer = manual_resolution.follow(case, version, self.now)
        with self.database.write() as connection:
            if answer.version is not None:
                hold_instead(connection, *answer.version)
            for made in answer.resolutions:
                Resolutions(connection).keep(dataset, made)


class Realm(Simulation):
    """One seed."""

    def __init__(self, seed: int, peers: list[Peer], *, disputed: bool = False, pruning: bool = False) -> None:
        """``pruning``: whether every other node drops all it may drop, after each step."""
        super().__init__(seed)
        self.peers, self.disputed, self.pruning = peers, disputed, pruning
        self.links = Links(self, Weather((0.0, 5 * STEP), self.rng.choice([0.0, 0.2, 0.5]), doubling=0.5))
        self.stolen: list[SigningKey] = []
        self.newest: HeadStatement | None = None
        """The owner's last."""
        self.root = self.writer = key_of(f"realm {seed}")
        self.dataset = self.root.dataset_id
        self.rights = implicit(self.dataset)
        self.blocks = _chain(self.root)
        self.size = HELD
        for peer in self.peers:
            peer.hold(self.blocks[:HELD], self.dataset)

    def converge(self) -> None:
        for _ in range(STEPS):
            self._pass(self.rng.choice([self._write, self._rotate, self._steal, self._rob, self._rob]))
        self._rotate()
        self._write()
        self._settle()
        self._agreed()
        if self.disputed:
            self._contradict()

    def clock(self) -> Instant:
        return Instant(START + int(self.now) * instant.SECOND)

    def _pass(self, deed: Callable[[], None]) -> None:
        """A minute in which something is done."""
        for peer in self.peers:
            peer.now = self.clock()
        deed()
        self.run_until(self.now + STEP)
        for peer in self.peers[1::2] if self.pruning else ():
            peer.prune()
            self._logged(peer)
        for peer in self.peers:
            self._sound(peer)

    # What is signed

    def _write(self) -> None:
        """The owner adds a block, or signs the same ones anew."""
        self.size = min(self.size + self.rng.randint(0, 1), BLOCKS)
        said = self._head(self._tree(), self.rights.version, self.rights.epoch)
        self.newest = said
        self._tell(Topic.HEADS, envelope.seal(statement.encode(said), self.writer))

    def _rotate(self) -> None:
        said, key = self._next()
        self._tell(Topic.HEADS, raw := envelope.seal(statement.encode(said), self.root))
        self.rights = follow(self.rights, said, envelope.unseal(raw, statement.MAX_ANY))
        self.writer = key
        self._write()

    def _next(self, mark: str = "") -> tuple[Authority, SigningKey]:
        key = key_of(f"writer {self.seed} {self.rights.version + 1}{mark}")
        return authority_versions.rotate(self.rights, key.did, self._tree(), self.blocks[0].hash, self.clock()), key

    def _steal(self) -> None:
        """A writer's key, never the root's while it alone decides."""
        if self.writer is not self.root:
            self.stolen.append(self.writer)

    def _rob(self) -> None:
        """Whoever stole a key signs: more than there is, in any epoch and under any version."""
        if not self.stolen:
            return
        tree = TreeHead(size=self.rng.randint(HELD + 1, 10**9), root_hash=digest("robbed", self.rng.random()))
        version, epoch = self.rights.version, self.rights.epoch
        if self.rng.random() < 0.5:
            version, epoch = self.rng.randint(0, version + 1), self.rng.randint(0, epoch + 1)
        said = self._head(tree, version, epoch)
        self._tell(Topic.HEADS, envelope.seal(statement.encode(said), self.rng.choice(self.stolen)), stolen=True)

    def _head(self, tree: TreeHead, version: int, epoch: int) -> HeadStatement:
        return HeadStatement(
            dataset=self.dataset,
            epoch=epoch,
            size=tree.size,
            root_hash=tree.root_hash,
            authority=version,
            issued_at=statement.when(self.clock()),
            expires_at=statement.when(Instant(self.clock() + WEEK)),
            head=self.blocks[min(tree.size, BLOCKS) - 1].hash,
        )

    def _tree(self) -> TreeHead:
        tree = Frontier().extend(block.hash.digest for block in self.blocks[: self.size])
        return TreeHead(size=tree.size, root_hash=tree.root)

    # Who hears it

    def _tell(self, topic: Topic, raw: bytes, *, stolen: bool = False) -> None:
        """The first node is the owner's own, and hears him always."""
        for peer in self.peers:
            if peer is self.peers[0] and not stolen:
                self.after(self.rng.uniform(*self.links.weather.delay), self._hear, peer, topic, raw)
            else:
                self.links.send("statement", "owner", peer.name, self._hear, peer, topic, raw)

    def _hear(self, peer: Peer, topic: Topic, raw: bytes) -> Judgement:
        return peer.board.judge(topic, raw, PeerId("wires"))

    def _settle(self) -> None:
        """What nobody heard reaches somebody; then all ask all, until nobody hears anything new."""
        while self.waiting:
            self.step()
        heard = True
        while heard:
            heard = False
            for peer in self.peers:
                for other in self.peers:
                    for ref in other.board.refs([self.dataset]) if other is not peer else ():
                        found = None if peer.board.envelope(ref.sid) else other.board.envelope(ref.sid)
                        heard |= found is not None and self._passed_on(peer, *found) is Judgement.ACCEPT

    def _passed_on(self, peer: Peer, topic: Topic, raw: bytes) -> Judgement:
        """By a node that follows the rules and took it for good: however little is known here, that is no offence."""
        judged = self._hear(peer, topic, raw)
        self._expect(judged is not Judgement.REJECT, "J", f"{peer.name} blames an honest relay")
        return judged

    # What must hold

    def _sound(self, peer: Peer) -> None:
        """The newest head is of a writer of its time, and of no closed epoch beyond what was kept of it."""
        walk, found = peer.walk(self.dataset), peer.newest(self.dataset)
        if found is None:
            return
        head, signer = found
        self._expect(head.authority < len(walk) and signer in walk[head.authority].writers, "W", "not a writer")
        opened = walk[-1].opened(head.epoch + 1)
        kept = opened is not None and head.size <= opened.base.size
        self._expect(head.epoch == walk[-1].epoch or kept, "W", "a head of a closed epoch")
        accused = {key for each in peer.proofs(self.dataset) for key in each.accused}
        self._expect(self.root.did not in accused, "S6", "an honest root is accused")

    def _logged(self, peer: Peer) -> None:
        self._expect(peer.is_as_logged(self.dataset), "S5", "what is live is not what the log tells")

    def _agreed(self) -> None:
        """Every node knows the owner's walk and his last head, whatever a thief signed."""
        for peer in self.peers:
            self._sound(peer)
            self._logged(peer)
            self._expect(peer.walk(self.dataset)[-1].sid == self.rights.sid, "S7", "another walk")
            found = peer.newest(self.dataset)
            self._expect(found is not None and found == (self.newest, self.writer.did), "S7", "another newest head")

    def _contradict(self) -> None:
        """The root signs two versions of one number: all prove it and take no more heads, until persons decide."""
        rivals = [self._next(mark) for mark in ("x", "y")]
        sealed = [envelope.seal(statement.encode(said), self.root) for said, _ in rivals]
        for number, peer in enumerate(self.peers):
            self._hear(peer, Topic.HEADS, sealed[number % 2])
        before = [peer.newest(self.dataset) for peer in self.peers]
        signed = [envelope.unseal(raw, statement.MAX_ANY) for raw in sealed]
        heads = []
        for (said, key), each in zip(rivals, signed, strict=True):
            rights = follow(self.rights, said, each)
            made = self._head(self._tree(), rights.version, rights.epoch)
            heads.append((made, key, envelope.seal(statement.encode(made), key)))
        for number, peer in enumerate(self.peers):
            _, _, raw = heads[1 - number % 2]
            self._passed_on(peer, Topic.HEADS, raw)
        self._settle()
        for peer in self.peers:
            self._expect(peer.disputed(self.dataset), "A", "does not know of two versions")
            for _, _, raw in heads:
                self._passed_on(peer, Topic.HEADS, raw)
        self._settle()
        self._expect([peer.newest(self.dataset) for peer in self.peers] == before, "A", "a head is followed in dispute")
        chosen = self.rng.randrange(2)
        for peer in self.peers:
            peer.resolve(self.dataset, signed[chosen].sid)
            self._expect(not peer.disputed(self.dataset), "A", "still disputed")
        made, key, raw = heads[chosen]
        for peer in self.peers:
            self._hear(peer, Topic.HEADS, raw)
        self._settle()
        for peer in self.peers:
            self._expect(peer.walk(self.dataset)[-1].sid == signed[chosen].sid, "S7", "another version is followed")
            self._expect(peer.newest(self.dataset) == (made, key.did), "S7", "the chosen writer is not followed")

    def _expect(self, holds: bool, promise: str, what: str) -> None:
        if not holds:
            raise Broken(promise, f"realm {self.seed}: {what}")


def _chain(key: SigningKey) -> list[Block]:
    events: list[MetadataEvent] = [Seed(dataset_id=key.dataset_id, dataset_kind=DatasetKind.ROOT)]
    events += [SetInfo(description=f"note {number}") for number in range(BLOCKS - 1)]
    blocks: list[Block] = []
    for number, event in enumerate(events):
        before = blocks[-1].hash if blocks else None
        content = MetadataBlock(system_time=START, prev_block_hash=before, sequence_number=number, event=event)
        blocks.append(encode_block(content))
    return blocks
