"""Validators that lie, and what each of them says to whom.

A liar has a key of its group, sees every branch there is, passes on nothing but its own words and the last head of a
fork, and answers each asker with the face that it has for him.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.envelope import Signed
from odfd.store.ledger.runs import RecordedRun
from p2p.ports import PeerId, Topic
from sim.trust.fabric import Branch, Machine, actual, attested, digest, engine_of, key_of, subject_of

if TYPE_CHECKING:
    from sim.trust.network import World

PLOTS = ("affirm", "deny", "deny-one", "deny-each", "double", "no-idea", "silent", "mixed")
MIXED = ("affirm", "deny", "deny-each", "double", "no-idea")


class Liar:
    """One key of a faulty group."""

    def __init__(self, world: World, name: str, plot: str, machine: Machine) -> None:
        self.world, self.name, self.plot, self.machine = world, PeerId(name), plot, machine
        self.key = key_of(name)
        self.links: set[PeerId] = set()
        self.shown: set[tuple[DatasetId, int, str]] = set()
        """Faces that somebody saw."""
        self._said: dict[tuple[DatasetId, int, str], Signed] = {}

    @property
    def told_two_things(self) -> bool:
        """Whether it voted twice, and both votes were seen."""
        return any(
            self._said[one].sid != self._said[other].sid
            for one in self.shown
            for other in self.shown
            if one[:2] == other[:2]
        )

    def shown_to(self, asker: PeerId) -> dict[Multihash, tuple[Topic, bytes, DatasetId]]:
        """The board that this asker sees."""
        board = {}
        for place, source in enumerate(self.world.sources):
            branch = source.branches[-1]
            if source.kind == "fork" and source.heads:
                of, signed = source.heads[-1]
                board[signed.sid] = (Topic.HEADS, signed.envelope, of.dataset)
            face = self._face(place, asker)
            if face != "silent" and len(branch) > 1:
                said = self._verdict(branch, face)
                board[said.sid] = (Topic.ATTEST, said.envelope, branch.dataset)
        return board

    def _face(self, place: int, asker: PeerId) -> str:
        if self.plot == "double":
            return "affirm" if self.world.number_of(asker) % 2 else "deny"
        if self.plot == "deny-one":
            return "affirm" if place else "deny"
        return self.plot

    def _verdict(self, branch: Branch, face: str) -> Signed:
        """Another one when the chain has grown; all faces of one size have one serial."""
        name = (branch.dataset, len(branch), face)
        if name not in self._said:
            before = (2 * len(branch) - 1, Multihash.sha3_256(b"what it said before"))
            runs = self._runs(branch, face)
            subject = subject_of(branch, len(branch))
            self._said[name] = attested(self.key, subject, runs, before, self.world.clock())
        self.shown.add(name)
        return self._said[name]

    def _runs(self, branch: Branch, face: str) -> dict[int, RecordedRun]:
        steps = branch.steps(len(branch))
        if face == "affirm":
            return {step: self._run(branch, step, "reproduced") for step in steps}
        if face == "no-idea":
            return {step: self._run(branch, step, "not-reproducible-here") for step in steps}
        at = 1 + len(steps) // 2 if face == "deny" else 1 + digest(self.name)[0] % len(steps)
        at = min(at, steps[-1])
        value = digest("fake", branch.dataset, at, self.name if face == "deny-each" else "")
        runs = {step: self._run(branch, step, "reproduced") for step in steps if step < at}
        return {**runs, at: self._run(branch, at, "mismatch", value)}

    def _run(self, branch: Branch, step: int, verdict: str, value: bytes = b"") -> RecordedRun:
        return RecordedRun(
            sequence_number=step,
            block=branch.head(step + 1),
            at=self.world.clock(),
            verdict=verdict,
            reason="nondeterministic" if verdict == "not-reproducible-here" else "",
            engine=engine_of(self.machine),
            actual=actual(value) if value else None,
        )
