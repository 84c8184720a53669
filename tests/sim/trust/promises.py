"""What must hold at every step, and at rest: S1 to S7 and L of docs/spec/trust.md#invariants, and some of our own.

D: dissent is never hidden behind ``pending``. F: reach never passes a proven fork. R: only an own run makes
``reproduced``. T: when more than f groups stand on either side it is called a split. U: unlike answers refute nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from chain.ids import DatasetId
from chain.statements.proof import Proof
from odfd.policy.witness_quorum import witnessed
from odfd.trust.judgement.verdicts import DatasetStatus, Decision, ReachAssessment
from p2p.ports import PeerId
from sim.trust.fabric import STRICT

if TYPE_CHECKING:
    from sim.trust.network import Source, World
    from sim.trust.node import Node

REFUSALS = frozenset(
    {
        DatasetStatus.REFUTED,
        DatasetStatus.ACCUSED,
        DatasetStatus.SPLIT,
        DatasetStatus.OWN_MISMATCH,
        DatasetStatus.NONDETERMINISTIC,
    }
)
USABLE = frozenset({DatasetStatus.REPRODUCED, DatasetStatus.ATTESTED})
UNSURE = "not-reproducible-here"
Answer = tuple[ReachAssessment, dict[int, Decision]]


class Broken(AssertionError):
    """A promise that was not kept."""

    def __init__(self, promise: str, message: str) -> None:
        super().__init__(f"{promise}: {message}")
        self.promise = promise


class Promises:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.answers: dict[tuple[PeerId, DatasetId], Answer] = {}

    def expect(self, kept: bool, promise: str, message: str | Callable[[], str]) -> None:
        """``message``: as a function where it is long and what it tells of is looked at often."""
        if not kept:
            raise Broken(promise, message if isinstance(message, str) else message())

    # At every step

    def check(self, node: Node, dataset: DatasetId) -> None:
        """After something changed at a node."""
        if not node.sound:
            return
        decisions = node.decisions(dataset)
        reach = node.reach(dataset, decisions)
        self.answers[node.name, dataset] = reach, decisions
        source, book = self.world.source_of[dataset], node.book(dataset)
        fork = book.fork.index if book.fork else None

        def where() -> str:
            return f"{node.name} on {source.kind}, {reach}"

        self.expect(fork is None or reach.blocks <= fork, "F", where)
        for step, decision in decisions.items():
            self._row(node, dataset, step, decision)
        if book.branch is None or book.branch.recipe != STRICT:
            return
        lie = book.branch.first_lie
        believed = lie is not None and reach.blocks > lie
        true = [decision for step, decision in decisions.items() if lie is None or step < lie]
        refused = any(decision.status in REFUSALS for decision in true)
        if self.world.plan.faulty:
            self.world.seen["lie believed"] += believed
            self.world.seen["truth refused"] += refused
            believed &= lie in node.own(book)
            refused = False
        self.expect(not believed, "S1", lambda: f"{where()}, the lie is #{lie}")
        self.expect(not refused, "S2", where)

    def _row(self, node: Node, dataset: DatasetId, step: int, decision: Decision) -> None:
        book, status, f = node.book(dataset), decision.status, node.policy.tolerated
        self.world.seen[status.value] += 1
        run = book.runs.get(step)

        def where() -> str:
            return f"{node.name} on {self.world.source_of[dataset].kind} #{step}: {decision}"

        self.expect(not decision.reproduced or (run is not None and run.verdict == "reproduced"), "R", where)
        self.expect(status is not DatasetStatus.PENDING or not decision.against, "D", where)
        self.expect(status is not DatasetStatus.REFUTED or decision.attested <= f, "T", where)
        if status is DatasetStatus.REFUTED:
            self.expect(self._equal_mismatches(node, dataset, step) > max(f, 1), "U", where)

    def _equal_mismatches(self, node: Node, dataset: DatasetId, step: int) -> int:
        """Groups behind one other value, counted without any of the judge's code."""
        values: dict[str, set[object]] = {}
        for key, said in node.book(dataset).heard().items():
            group = next((group.name for group in node.policy.groups if key in group.keys), "")
            verdict = next((span.verdict for span in said.spans if span.first <= step <= span.last), "not-attempted")
            if group and verdict != "not-attempted":
                found = [each.actual for each in said.mismatch if each.sequence_number == step]
                values.setdefault(group, set()).update(found or [verdict])
        clear = [value for value, *more in values.values() if not more and value not in ("reproduced", UNSURE)]
        return max(Counter(clear).values(), default=0)

    def accused(self, found: Proof) -> None:
        """A proof was made or heard."""
        self.world.seen[found.kind] += 1
        wronged = self.world.honest_keys.intersection(found.accused)
        self.expect(not wronged, "S6", f"a {found.kind} of an honest key on {self.world.source_of[found.dataset].kind}")

    def no_two_quorums(self, source: Source) -> None:
        """S4, of all cosignatures that there are, whoever has seen them: no quorum stands on both sides of a fork."""
        part = source.forked_at
        if part is None or self.world.plan.faulty:
            return
        witnesses = self.world.witnesses
        sides = []
        for branch in source.branches[:2]:
            roots = lambda sizes, branch=branch: {size: branch.root(size) for size in sizes}  # noqa: E731
            sizes = witnessed(witnesses, source.cosignatures, len(branch), roots, self.world.clock())
            sides.append(sum(size > part for size in sizes))
        self.world.seen["cosigned on both sides"] += min(sides) > 0
        self.world.seen["a quorum"] += max(sides) >= witnesses.preventing
        self.expect(min(sides) < witnesses.preventing, "S4", f"{sides} of {len(witnesses.groups)} on two sides")

    def nobody_honest_suspended(self) -> None:
        for node in self.world.sound:
            self.world.seen["suspended"] += len(node.suspended)
            wronged = node.suspended - self.world.faulty
            self.expect(not wronged or self.world.plan.faulty > 0, "S3", f"{node.name} suspends {sorted(wronged)}")

    # At rest

    def settled(self) -> bool:
        return not self.unsettled()

    def unsettled(self) -> list[str]:
        """Where truths are not attested, lies not refuted, forks not proven, or who voted twice still counts."""
        if self.world.plan.faulty:
            return []
        waiting = [
            f"{node.name} on {source.kind}: {self.answers.get((node.name, source.dataset))}"
            for source in self.world.sources
            for node in self.world.sound
            if not self._done(node, source)
        ]
        return waiting + [
            f"{node.name} still counts {group}, which voted twice"
            for group in sorted(self._two_faced())
            for node in self.world.sound
            if group not in node.suspended
        ]

    def _two_faced(self) -> set[str]:
        """Groups of which somebody saw two faces."""
        found = {self.world.policy.group_of(liar.key.did) for liar in self.world.liars.values() if liar.told_two_things}
        return {group for group in found if group is not None}

    def _done(self, node: Node, source: Source) -> bool:
        if source.kind == "fork":
            fork = node.book(source.dataset).fork
            return fork is not None and fork.index == source.forked_at
        if source.kind.startswith("unrepeatable"):
            return self._told_unrepeatable(node, source)
        if (node.name, source.dataset) not in self.answers:
            return False
        reach, decisions = self.answers[node.name, source.dataset]
        if not source.honest:
            lie = source.branches[0].first_lie
            return reach.why.rule in ("refuted", "accused", "own-mismatch") and reach.why.block == lie == reach.blocks
        whole = reach.blocks == len(source.branches[0])
        return whole and all(decision.status in USABLE for decision in decisions.values())

    def _told_unrepeatable(self, node: Node, source: Source) -> bool:
        """Once more than f groups found it out, everybody knows who did not get one other answer himself."""
        found: dict[str, set[str]] = {}
        for other in self.world.sound:
            if other.group is not None and not other.opaque:
                run = other.book(source.dataset).runs.get(1)
                found.setdefault(other.group, set()).add(run.verdict if run else "")
        known = sum(verdicts == {UNSURE} for verdicts in found.values())
        if known <= node.policy.tolerated:
            return True
        answer = self.answers.get((node.name, source.dataset))
        decision = answer and answer[1].get(1)
        return decision is not None and decision.status in (DatasetStatus.NONDETERMINISTIC, DatasetStatus.OWN_MISMATCH)

    def told_alike(self) -> bool:
        """Whether all have heard what honest validators said last, and no node knows a proof that another lacks."""
        heard = {
            (
                frozenset(signed.sid for book in node.books.values() for key, (_, signed) in book.said.items()
                          if key in self.world.honest_keys),
                frozenset(node.accused),
            )
            for node in self.world.sound
        }  # fmt: skip
        return len(heard) == 1

    def at_rest(self) -> None:
        """Two days later: S3, S5, S7."""
        self.nobody_honest_suspended()
        if not self.world.plan.faulty:
            self._alike()
        for node in self.world.sound[:2]:
            self._any_order(node)

    def _alike(self) -> None:
        """S7: those who run nothing and ask for the same give the same answer."""
        said: dict[tuple[str, DatasetId], set[ReachAssessment]] = {}
        for (name, dataset), (reach, _) in self.answers.items():
            node, source = self.world.nodes[name], self.world.source_of[dataset]
            if not node.runs_steps and source.kind != "fork" and source.branches[0].recipe == STRICT:
                said.setdefault((str(node.policy.use), dataset), set()).add(reach)
        for (use, dataset), answers in said.items():
            self.expect(len(answers) == 1, "S7", f"{use} on {self.world.source_of[dataset].kind}: {answers}")

    def _any_order(self, node: Node) -> None:
        """S5: what is live, heard twice in any order, gives the same answers."""
        heard = list(node.board.values()) * 2
        for _ in range(2):
            self.world.rng.shuffle(heard)
            twin = node.newborn()
            for topic, raw, _ in heard:
                twin.judge(topic, raw, node.name)
            twin.review()
            for dataset, book in node.books.items():
                mine, its = node.decisions(dataset), twin.decisions(dataset)
                same = mine == its and node.reach(dataset, mine) == twin.reach(dataset, its)
                kind = self.world.source_of[dataset].kind
                self.expect(same, "S5", f"{node.name} on {kind}, {len(book.said)} verdicts: {mine} or {its}")
