"""An honest node: it admits, fetches, re-runs, attests and decides with the code that real nodes run.

What is not real here: stores are dictionaries, an engine is a hash, and no time passes while it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import proof as proofs
from chain.statements.envelope import Signed
from chain.statements.proof import DOUBLE_VOTE, FORK, Proof
from chain.statements.statement import Attestation, HeadStatement
from chain.statements.tree import Tree
from odfd.policy.policy import Policy
from odfd.store.ledger.proofs import fork_of_last_block
from odfd.store.ledger.runs import RecordedRun
from odfd.trust.admission import rules
from odfd.trust.admission.rules import AdmissionOutcome
from odfd.trust.judgement import suspension_rules, verdicts
from odfd.trust.judgement.trust_evaluator import own_verdict
from odfd.trust.judgement.verdicts import Decision, GroupVerdict
from odfd.trust.witness import witness
from p2p.machines.declined import Seen
from p2p.ports import Judgement, PeerId, StatementRef, Topic
from sim.trust.fabric import Branch, Machine, RememberedJournal, actual, attested, engine_of, key_of, opened, subject_of

if TYPE_CHECKING:
    from sim.trust.network import World

STEPS_A_SITTING = 4
RUNS = 3
"""Equal answers before anybody is accused."""
RUNS_AGAIN = 6
"""When more than f groups are of another mind."""


@dataclass
class Book:
    """What a node holds of one dataset."""

    branch: Branch | None = None
    size: int = 0
    newest: tuple[HeadStatement, Signed] | None = None
    adopted: tuple[HeadStatement, Signed] | None = None
    """The head whose blocks are here."""
    contested: tuple[HeadStatement, Signed] | None = None
    """A head that does not go with my tree, while nobody has shown me its blocks."""
    said: dict[KeyDid, tuple[Attestation, Signed]] = field(default_factory=dict)
    runs: dict[int, RecordedRun] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    fork: Proof | None = None
    cosigned: tuple[int, bytes] | None = None
    """The last tree that I put my name to as a witness."""

    def root_at(self, size: int) -> bytes | None:
        return self.branch.root(size) if self.branch is not None and size <= self.size else None

    def heard(self) -> dict[KeyDid, Attestation]:
        """Those that speak of my chain."""
        return {key: said for key, (said, _) in self.said.items() if self.root_at(said.size) == said.root_hash}


class Node:
    """An honest node. ``group``: the one that runs steps under this node's key, if any."""

    def __init__(self, world: World, name: str, policy: Policy, machine: Machine, group: str | None) -> None:
        self.world, self.name, self.policy, self.machine, self.group = world, PeerId(name), policy, machine, group
        self.key, self.logger = key_of(name), RememberedJournal()
        self.opaque = False
        self.runs_steps = group is not None
        self.quorum = verdicts.quorum_of((policy.use, policy.serve))
        self.books: dict[DatasetId, Book] = {}
        self.board: dict[Multihash, tuple[Topic, bytes, DatasetId]] = {}
        self.accused: dict[KeyDid, Proof] = {}
        self.since: dict[suspension_rules.Strike, Instant] = {}
        self.seen = Seen(5_000)
        self.links: set[PeerId] = set()
        self.suspended: frozenset[str] = frozenset()
        self.unreviewed = self.unread = True
        """Something changed since it last asked who is suspended, or whether to look again."""

    @property
    def sound(self) -> bool:
        return not self.machine.flaw

    def book(self, dataset: DatasetId) -> Book:
        return self.books.setdefault(dataset, Book())

    # A noticeboard

    def to(self, _peer: PeerId) -> Node:
        return self

    def refs(self, datasets: Sequence[DatasetId] | None = None) -> list[StatementRef]:
        return [StatementRef(sid, dataset) for sid, (_, _, dataset) in self.board.items()]

    def envelope(self, sid: Multihash) -> tuple[Topic, bytes] | None:
        found = self.board.get(sid)
        return found and (found[0], found[1])

    def judge(self, topic: Topic, raw: bytes, sender: PeerId) -> Judgement:
        found = opened(topic, raw)
        if found is None:
            return Judgement.REJECT
        if isinstance(found.predicate, Proof):
            return self._keep(found.predicate, sender)
        assert found.signed is not None
        if found.signed.sid in self.board:
            return Judgement.IGNORE
        if isinstance(found.predicate, HeadStatement):
            return self._hear_head(found.predicate, found.signed, sender)
        return self._hear_verdict(found.predicate, found.signed, sender)

    def _hear_head(self, head: HeadStatement, signed: Signed, sender: PeerId) -> Judgement:
        book = self.book(head.dataset)
        newest = book.newest[0] if book.newest else None
        at = book.fork.index if book.fork else None
        outcome = rules.admit_head(head, signed, newest, book.root_at, self.world.clock(), forked_at=at).outcome
        if outcome is AdmissionOutcome.FORK and book.fork is None:
            book.contested = (head, signed)
            self._prove_alone(book)
            self._ask(book, sender)
        if outcome not in (AdmissionOutcome.ADVANCE, AdmissionOutcome.RENEWED):
            return Judgement.REJECT if outcome is AdmissionOutcome.REJECTED else Judgement.IGNORE
        self._replace(Topic.HEADS, book.newest and book.newest[1], signed, head.dataset)
        book.newest = (head, signed)
        self._pass_on(Topic.HEADS, signed.envelope, sender)
        self._ask(book, sender)
        return Judgement.ACCEPT

    def _hear_verdict(self, said: Attestation, signed: Signed, sender: PeerId) -> Judgement:
        book = self.book(said.dataset)
        before = book.said.get(said.validator)
        known = before[0] if before else None
        outcome = rules.admit_attestation(said, signed, known, self.world.clock()).outcome
        if outcome is AdmissionOutcome.FORK and before is not None:
            self._keep(proofs.double_vote(before[1].envelope, signed.envelope), self.name)
        if outcome is not AdmissionOutcome.NEW:
            return Judgement.REJECT if outcome is AdmissionOutcome.REJECTED else Judgement.IGNORE
        self._replace(Topic.ATTEST, before and before[1], signed, said.dataset)
        book.said[said.validator] = (said, signed)
        self._pass_on(Topic.ATTEST, signed.envelope, sender)
        self.world.touch(self, said.dataset)
        return Judgement.ACCEPT

    def _keep(self, found: Proof, sender: PeerId) -> Judgement:
        """Of a fork the lowest place, of a double voter the first proof."""
        book = self.book(found.dataset)
        if found.kind == FORK:
            if book.fork is not None and book.fork.order <= found.order:
                return Judgement.IGNORE
            if book.fork is not None:
                self.board.pop(book.fork.id, None)
            book.fork = found
        elif all(key in self.accused for key in found.accused):
            return Judgement.IGNORE
        else:
            self.accused |= dict.fromkeys(found.accused, found)
        self.board[found.id] = (Topic.PROOFS, found.raw, found.dataset)
        self._pass_on(Topic.PROOFS, found.raw, sender)
        self.world.accused(found)
        for dataset in self.books if found.kind == DOUBLE_VOTE else (found.dataset,):
            self.world.touch(self, dataset)
        return Judgement.ACCEPT

    def _replace(self, topic: Topic, old: Signed | None, new: Signed, dataset: DatasetId) -> None:
        if old is not None:
            self.board.pop(old.sid, None)
        self.board[new.sid] = (topic, new.envelope, dataset)

    def _pass_on(self, topic: Topic, raw: bytes, sender: PeerId) -> None:
        self.seen.add(raw)
        if self.world.gossips:
            for peer in sorted(self.links - {sender}):
                self.world.links.send("gossip", self.name, peer, self.world.gossip, topic, raw, self.name, peer)

    def gossiped(self, topic: Topic, raw: bytes, sender: PeerId) -> None:
        if self.seen.add(raw):
            self.judge(topic, raw, sender)

    # Blocks

    def wanted(self, book: Book) -> list[HeadStatement]:
        """Heads whose blocks I lack, or that do not go with mine."""
        if book.fork is not None:
            return []
        ahead = [book.newest[0]] if book.newest and book.newest[0].size > book.size else []
        return ahead + ([book.contested[0]] if book.contested else [])

    def _ask(self, book: Book, peer: PeerId) -> None:
        for head in self.wanted(book):
            if peer != self.name:
                self.world.links.send("want", self.name, peer, self.world.want, head, self.name, peer)

    def holding(self, head: HeadStatement) -> Branch | None:
        book = self.books.get(head.dataset)
        return book.branch if book and book.root_at(head.size) == head.root_hash else None

    def given(self, head: HeadStatement, branch: Branch) -> None:
        """Somebody sent blocks; they are those of the head, or they are nothing."""
        book = self.book(head.dataset)
        if head.size > len(branch) or branch.root(head.size) != head.root_hash or head not in self.wanted(book):
            return
        pair = book.contested if book.contested and book.contested[0] == head else book.newest
        assert pair is not None
        if book.branch is None or branch.root(book.size) == book.branch.root(book.size):
            if pair is book.contested:
                book.contested = book.newest
            self.adopt(branch, head.size, pair)
        elif book.adopted is not None:
            ours, mine = book.branch.leaves, book.adopted[1].envelope
            self._keep(proofs.fork(mine, pair[1].envelope, ours, branch.leaves), self.name)

    def _prove_alone(self, book: Book) -> None:
        if book.branch is not None and book.adopted is not None and book.contested is not None:
            found = fork_of_last_block(book.adopted, book.contested, Tree(book.branch.leaves), len(book.branch))
            if found is not None:
                self._keep(found, self.name)

    def adopt(self, branch: Branch, size: int, head: tuple[HeadStatement, Signed]) -> None:
        book = self.book(branch.dataset)
        if size > book.size:
            book.branch, book.size, book.adopted = branch, size, head
            self.world.touch(self, branch.dataset)
            self._cosign(book, branch)

    def _cosign(self, book: Book, branch: Branch) -> None:
        """As a witness: of one origin never two trees of which neither begins the other."""
        if self.key.did in self.world.witnesses.groups and witness.may_follow(book.cosigned, book.size, branch.root):
            book.cosigned = book.size, branch.root(book.size)
            self.world.cosigned(self.key, branch, book.size)

    # A sitting

    def sit(self) -> None:
        """What a node does once a round: re-run what is new, look again where others differ, say so; ask for blocks."""
        if self.runs_steps:
            for dataset, book in self.books.items():
                self._run_steps(dataset, book)
            if self.unread:
                self.unread = False
                self._look_again()
        for book in self.books.values():
            for peer in self.world.contacts(self):
                self._ask(book, peer)

    def _run_steps(self, dataset: DatasetId, book: Book) -> None:
        if book.branch is None or book.fork is not None:
            return
        before = len(book.runs)
        for step in book.branch.steps(book.size)[before : before + STEPS_A_SITTING]:
            if any(run.verdict != "reproduced" for run in book.runs.values()):
                break
            book.runs[step] = self._attempt(book.branch, step)
        said = book.said.get(self.key.did)
        if len(book.runs) != before or (book.runs and (said is None or said[0].size < book.size)):
            self._say(dataset, book)

    def _attempt(self, branch: Branch, step: int) -> RecordedRun:
        published = branch.blocks[step].rows
        again = partial(branch.rerun, step, self.machine, opaque=self.opaque)
        rows = [again()]
        if rows[0] != published:
            rows += [again() for _ in range(RUNS - 1)]
        verdict = "reproduced" if rows[0] == published else "mismatch"
        return self._run(branch, step, verdict if len(set(rows)) == 1 else "not-reproducible-here", rows[0])

    def _run(self, branch: Branch, step: int, verdict: str, rows: bytes) -> RecordedRun:
        return RecordedRun(
            sequence_number=step,
            block=branch.head(step + 1),
            at=self.world.clock(),
            verdict=verdict,
            reason="nondeterministic" if verdict == "not-reproducible-here" else "",
            runs=1 if verdict == "reproduced" else RUNS,
            engine=engine_of(self.machine),
            actual=None if verdict == "reproduced" else actual(rows),
        )

    def _look_again(self) -> None:
        for dataset, step in sorted(suspension_rules.look_again(self.policy, self.view())):
            book = self.books[dataset]
            if step in book.again or book.branch is None:
                continue
            book.again.add(step)
            mine = book.runs[step]
            expected = book.branch.blocks[step].rows if mine.actual is None else None
            rows = [book.branch.rerun(step, self.machine, opaque=self.opaque) for _ in range(RUNS_AGAIN)]
            if any(row != expected if expected is not None else actual(row) != mine.actual for row in rows):
                book.runs[step] = self._run(book.branch, step, "not-reproducible-here", rows[0])
                self._say(dataset, book)

    def _say(self, dataset: DatasetId, book: Book) -> None:
        self.world.touch(self, dataset)
        if self.group is None or book.branch is None or book.adopted is None or book.adopted[0].size != book.size:
            return
        topic = f"attestation:{dataset}"
        last = self.logger.last(topic)
        before = None if last is None else (last.order[0], Multihash.parse(last.subject))
        subject, now = subject_of(book.branch, book.size), self.world.clock()
        signed = attested(self.key, subject, book.runs, before, now, opaque=self.opaque)
        self.logger.promise(topic, ((before[0] if before else 0) + 1,), str(signed.sid))
        self.show(Topic.ATTEST, signed.envelope)

    def show(self, topic: Topic, raw: bytes) -> None:
        assert self.judge(topic, raw, self.name) is Judgement.ACCEPT, "refuses its own word"

    # Decisions

    def newborn(self) -> Node:
        """One with my chains, runs and memory of strikes, who has heard nothing yet."""
        twin = Node(self.world, self.name, self.policy, self.machine, self.group)
        twin.opaque, twin.runs_steps, twin.since = self.opaque, self.runs_steps, self.since
        for dataset, mine in self.books.items():
            twin.books[dataset] = Book(mine.branch, mine.size, adopted=mine.adopted, runs=mine.runs, again=mine.again)
        return twin

    def own(self, book: Book) -> dict[int, GroupVerdict]:
        """What is computed from published states on trust counts for nobody, not even for who did it."""
        if self.opaque:
            return {}
        return {step: voice for step, run in book.runs.items() if (voice := own_verdict(run)) is not None}

    def view(self) -> suspension_rules.SuspensionFacts:
        told = {
            dataset: suspension_rules.DatasetStatements(
                attestations=book.heard(), own=self.own(book), steps=book.branch.steps(book.size)
            )
            for dataset, book in self.books.items()
            if book.branch is not None
        }
        engine = engine_of(self.machine)
        return suspension_rules.SuspensionFacts(
            datasets=told,
            accused=self.accused.keys(),
            since=self.since,
            own_group=self.group or suspension_rules.ME,
            own_machine=suspension_rules.Machine(engine.digest, engine.platform),
        )

    def review(self) -> None:
        """Who is suspended now; what is seen for the first time is noted."""
        if not self.unreviewed and not self.since:
            return
        self.unreviewed = False
        view, now = self.view(), self.world.clock()
        self.since = suspension_rules.remembered(self.since, suspension_rules.strikes(self.policy, view), now)
        late = {strike for strike, since in self.since.items() if now - since > suspension_rules.GRACE}
        out = suspension_rules.double_voters(self.policy, self.accused.keys()) | suspension_rules.struck(late)
        if out != self.suspended:
            self.suspended = out
            for dataset in self.books:
                self.world.touch(self, dataset)

    def decider(self, book: Book) -> Callable[[int], Decision]:
        out = self.suspended | suspension_rules.double_voters(self.policy, self.accused.keys())
        bench = verdicts.Electors(policy=self.policy, me=self.key.did, quorum=self.quorum, suspended=out)
        heard, own = book.heard(), self.own(book)
        return lambda step: verdicts.decide(bench, heard, own.get(step), step)

    def decisions(self, dataset: DatasetId) -> dict[int, Decision]:
        book = self.book(dataset)
        decide = self.decider(book)
        return {step: decide(step) for step in book.branch.steps(book.size)} if book.branch else {}

    def reach(self, dataset: DatasetId, decisions: dict[int, Decision]) -> verdicts.ReachAssessment:
        book = self.book(dataset)
        extent = verdicts.ChainExtent(
            linked=book.size,
            chain=book.adopted[0].size if book.adopted else 0,
            data=book.size,
            forked_at=book.fork.index if book.fork else None,
        )
        return verdicts.reach(self.policy.use, extent, tuple(decisions), decisions.__getitem__)
