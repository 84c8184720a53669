"""Shows how far a dataset may be relied on and why, and manages the list of validators."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from chain.ids import DID_KEY, DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements import statement
from chain.statements.envelope import sid
from chain.statements.proof import FORK
from chain.store.base import ChainReader
from chain.wording import plural
from odfd.control import wire
from odfd.control.operations import DATASET_PATH, NODE_PATH, Owner, operation
from odfd.mirrors.first_contact import FIRST_SIGHT, NETWORKS, rung_of
from odfd.policy.policy import Policy
from odfd.resources.store import ResourceStore
from odfd.runtime.clock import Clock
from odfd.services.judgement.effective_policy import VALIDATOR
from odfd.services.trust.evidence import EvidenceService
from odfd.services.trust.resolutions import PendingDecisions
from odfd.services.trust.views import (
    attestation_view,
    decision_view,
    evidence_view,
    head_view,
    incident_view,
    observation_view,
    proof_view,
)
from odfd.services.views.withdrawals import withdrawn_at
from odfd.store import incidents
from odfd.store.catalog import DatasetEntry, is_one_chain
from odfd.store.directory import StateDirectory
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.observations import Sighting
from odfd.store.ledger.proofs import Proofs
from odfd.store.ledger.runs import Rechecks
from odfd.store.ledger.signed_heads import signed_heads
from odfd.trust.judgement import manual_resolution
from odfd.trust.judgement.suspensions import Suspended, Suspensions
from odfd.trust.judgement.trust_evaluator import DatasetFacts
from odfd.trust.judgement.verdicts import (
    STOPS,
    DatasetStatus,
    Decision,
    ReachAssessment,
    ReachBound,
    is_isolated,
    verdict_on,
)

SHOWN_HEADS: Final = 20


class HeadState(NamedTuple):
    """Functions that tell about heads more than the ledger does."""

    unsigned: Callable[[], Mapping[DatasetId, str]]
    """Returns the datasets of this node of which no head can be signed, and why."""
    witnesses: Callable[[DatasetId, int], Sequence[wire.WitnessView]]
    """Returns the witnesses that cosigned an epoch of a dataset, or are asked to."""
    unheld: Callable[[DatasetEntry], tuple[wire.UnheldPin, ...]]
    """Returns the blocks of a dataset whose engine is not here."""


class TrustService:
    """The API service for trust, evidence and validators. ``changed`` is called when the policy changes."""

    def __init__(
        self,
        home: StateDirectory,
        pending_decisions: PendingDecisions,
        clock: Clock,
        changed: Callable[[], None],
        evidence: EvidenceService,
        check_policy: Callable[[sqlite3.Connection], Policy],
        heads: HeadState,
    ) -> None:
        """``check_policy`` computes the policy with the validators of a transaction under way. Raises Invalid."""
        self._unheld = heads.unheld
        self._heads = heads
        self.check_policy = check_policy
        self._pending_decisions = pending_decisions
        self._home = home
        self._evidence = evidence
        self._evaluator = pending_decisions.evaluator
        self._clock = clock
        self._changed = changed

    @operation("GET", DATASET_PATH + "/trust", needs=Owner.POLICY)
    def show(self, ref: str) -> wire.TrustView:
        """Shows the reach and trust level of a dataset, and why; of several shards, each. Raises NotFound, Invalid."""
        entry = self._home.resolve(ref)
        others = () if is_one_chain(ref) else self._home.shards_of(entry.id)[1:]
        views = [self._view(self._home.resolve(str(other))) for other in others]
        return msgspec.structs.replace(self._view(entry), shards=tuple(views))

    @operation(needs=Owner.POLICY)
    def evidence(self, evidence_id: str) -> bytes | Path:
        """Returns evidence that anyone can check: a bundle (a ``.odfe`` file, streamed) or a proof's bytes."""
        return self._evidence.find(evidence_id)

    @operation("POST", NODE_PATH + "/evidence/{id}", needs=Owner.POLICY)
    def fetch_evidence(self, evidence_id: str) -> wire.TaskRef:
        """Asks connected peers for a bundle that is not kept here. Result: EvidenceFetched."""
        return self._evidence.fetch(evidence_id)

    def validators(self) -> Mapping[str, wire.ValidatorState]:
        """Returns the state of each validator of the policy in force, by its did."""
        policy = self._evaluator.policy
        out = self._find_suspended(policy)
        states = {name: wire.ValidatorState(suspended=True, reason=each.reason) for name, each in out.items()}
        counting = wire.ValidatorState()
        return {str(key): states.get(group.name, counting) for group in policy.groups for key in group.keys}

    def _find_suspended(self, policy: Policy) -> dict[str, Suspended]:
        with self._home.database.read() as connection:
            return {each.group: each for each in Suspensions(connection).all(policy)}

    @operation("POST", NODE_PATH + "/validators/lift", needs=Owner.POLICY)
    def lift(self, request: wire.LiftRequest) -> Sequence[str]:
        """Lets a suspended group count again, and returns the dids of its validators. Refused if it counts."""
        policy = self._evaluator.policy
        with self._home.database.write() as connection:
            Suspensions(connection).lift(policy, request.group, self._clock.now())
        self._changed()
        return [str(key) for group in policy.groups if group.name == request.group for key in sorted(group.keys)]

    def record_validator(self, connection: sqlite3.Connection, key: KeyDid, group: str) -> None:
        """Records a validator in the transaction of others; ``take_up`` follows. Raises Invalid."""
        name = str(key).removeprefix(DID_KEY)
        spec = {"did": str(key), "group": group}
        ResourceStore(connection).declare(VALIDATOR, name, spec, self._clock.now(), str(key))
        self.check_policy(connection)

    async def take_up(self) -> None:
        """Brings into force what was recorded."""
        self._changed()

    def _group(self, key: KeyDid) -> str | None:
        """Returns the group whose vote a key casts here; this node's own word counts without a listing."""
        return "me" if key == self._evaluator.me else self._evaluator.policy.group_of(key)

    def _view(self, entry: DatasetEntry) -> wire.TrustView:
        evaluator, chain = self._evaluator, self._home.chains.chain(entry.id)
        known = evaluator.known(entry.id)
        use = evaluator.reach_of(chain, known, evaluator.use(entry.id))
        serve = evaluator.reach_of(chain, known, evaluator.serve(entry.id))
        with self._home.database.read() as connection:
            newest = Ledger(connection).newest_head(entry.id)
            proofs = Proofs(connection).of(entry.id)
            looked_into = {name: each.result for name, each in Rechecks(connection).of(entry.id).items()}
            past = tuple(map(incident_view, incidents.of(connection, entry.id)))
            heads = tuple(head_view(*each) for each in islice(signed_heads(connection, entry.id), SHOWN_HEADS))
        head = chain.head()
        agree, dissent = self._attestations(known)
        sightings, have = evaluator.sighted(entry.id)
        return wire.TrustView(
            ref=entry.name,
            dataset_id=str(entry.id),
            head=str(head.hash) if head else None,
            epoch=newest[0].epoch if newest else 0,
            signed_at=newest[0].issued_at if newest else None,
            blocks=known.size,
            reach=wire.Reach(use=use.blocks, serve=serve.blocks),
            why=self._why(known, use),
            facts=msgspec.structs.replace(self._facts(known), observed=self._observe(known, sightings, have)),
            attestations=agree,
            dissent=dissent,
            observations=tuple(observation_view(sighting, self._group(sighting.observer)) for sighting in sightings),
            heads=heads,
            past=past,
            witnesses=tuple(self._heads.witnesses(entry.id, newest[0].epoch if newest else 0)),
            unlisted=sum(self._group(key) is None for key in known.attestations),
            evidence=(
                *(proof_view(entry.name, proof, _block_at(chain, proof.index)) for proof in proofs),
                *(evidence_view(entry.name, run, looked_into) for run in known.runs.values() if run.evidence),
                *self._list_offered(entry.name, known, looked_into),
            ),
            choices=tuple(
                wire.ChoiceView(hash=str(choice.name), message=choice.message)
                for choice in manual_resolution.choices(self._pending_decisions.case(entry))
            ),
            witnesses_to_spare=self._to_spare(known),
            unsigned=self._heads.unsigned().get(entry.id, ""),
            decisions=tuple(decision_view(each) for each in known.decided.all),
            withdrawn_at=withdrawn_at(self._home, entry.id),
            unheld=self._unheld(entry),
        )

    def _to_spare(self, known: DatasetFacts) -> int | None:
        """Returns the number of spare witnesses to the owner, who alone can change the request; else ``None``."""
        mine = self._home.keys.has_dataset_key(known.dataset)
        return self._evaluator.witnesses_to_spare(known) if mine else None

    def _list_offered(
        self, name: str, known: DatasetFacts, looked_into: Mapping[Multihash, str]
    ) -> Iterator[wire.EvidenceView]:
        """Yields the bundles that validators who count name, whether they are here or not."""
        seen = {run.bundle for run in known.runs.values() if run.evidence}
        for key, attestation in sorted(known.attestations.items()):
            group = None if key == self._evaluator.me else self._group(key)
            for wrong in attestation.mismatch if group is not None else ():
                if wrong.bundle is not None and wrong.bundle not in seen:
                    seen.add(wrong.bundle)
                    yield wire.EvidenceView(
                        id=str(wrong.bundle),
                        kind="mismatch",
                        bundle=str(wrong.bundle),
                        dataset=name,
                        block=wrong.sequence_number,
                        at=attestation.finished_at,
                        message=f"{group} computed another result, {plural(wrong.runs, 'time')}",
                        kept=self._evidence.has_bundle(wrong.bundle),
                        recheck=looked_into.get(wrong.bundle),
                    )

    def _why(self, known: DatasetFacts, found: ReachAssessment) -> wire.Why | None:
        if found.blocks >= known.size:
            return None
        block = found.why.block
        reason = "ahead" if known.ahead and found.why.rule == "fresh" else found.why.rule
        message = _OTHER.get(reason) or _REASONS.get(found.why.rule, found.why.rule)
        if block is not None and found.why.rule in _REASONS:
            message += self._count_validators(known, self._evaluator.decision(known, block), block)
        return wire.Why(rule=found.why.rule, block=block, sids=self._rests_on(known, found.why), message=message)

    def _count_validators(self, known: DatasetFacts, decision: Decision, block: int) -> str:
        """Says how many validators agree and disagree, and what that means for a person."""
        policy = self._evaluator.policy_of(known.dataset)
        text = ""
        if decision.against:
            text = f": {decision.against} computed another result, {decision.attested} the same"
        if decision.status is DatasetStatus.OWN_MISMATCH and decision.attested >= max(
            known.quorum, policy.tolerated + 1
        ):
            text += "; so many agree with what was published: suspect this machine too (odfctl doctor)"
        left = len(policy.groups) - len(self._find_suspended(policy)) + (policy.group_of(self._evaluator.me) is None)
        if decision.status not in STOPS and (weak := _behind_too_little(policy, known, block)):
            text += (
                f"; {plural(weak, 'verdict')} not counted, of less isolation than {policy.min_sandbox} (min-sandbox)"
            )
        if decision.status not in STOPS and decision.attested < known.quorum and left < known.quorum:
            text += f"; quorum unreachable: {plural(known.quorum, 'group')} must agree, of {left} the word counts"
        return text

    def _rests_on(self, known: DatasetFacts, why: ReachBound) -> tuple[str, ...]:
        """Returns ids of the statements behind a limit: the verdicts that count on the step, or the proof of a fork."""
        if why.rule == FORK:
            with self._home.database.read() as connection:
                proofs = Proofs(connection).of(known.dataset)
            return tuple(str(proof.id) for proof in proofs if (proof.kind, proof.index) == (FORK, why.block))
        if why.rule not in _REASONS or why.block is None:
            return ()
        spoke = [
            key
            for key, said in known.attestations.items()
            if self._group(key) is not None and verdict_on(said, why.block) is not None
        ]
        with self._home.database.read() as connection:
            signed = Ledger(connection).attestations(known.dataset)  # as it was signed: that has the id
        return tuple(sorted(str(sid(statement.encode(signed[key]))) for key in spoke if key in signed))

    def _facts(self, known: DatasetFacts) -> wire.TrustFacts:
        return wire.TrustFacts(
            reproduced=self._evaluator.is_reproduced(known),
            attested=None if known.root else wire.Attested(have=self._count_attesting(known), needed=known.quorum),
            fresh=known.extent.fresh,
            ahead=known.ahead,
            forked=known.forked,
            witnessed=self._is_witnessed(known),
            met=self._rung_of(known),
        )

    def _observe(self, known: DatasetFacts, said: Sequence[Sighting], have: int) -> wire.Attested | None:
        if not known.root or not (said or known.extent.observed):
            return None
        return wire.Attested(have=have, needed=min(known.extent.observed or (), default=0))

    def _is_witnessed(self, known: DatasetFacts) -> bool | None:
        """Whether the dataset is witnessed: by a hash learned elsewhere, or by as many witnesses as are asked for.

        ``None`` for one's own, and for one met alike in several networks, which is not the word of a witness.
        """
        rung = self._rung_of(known)
        asked = max(self._evaluator.policy_of(known.dataset).witnesses.quorum, 1)
        if known.size and sum(size >= known.size for size in known.extent.witnessed) >= asked:
            return True
        return None if rung in (None, NETWORKS) else rung != FIRST_SIGHT

    def _rung_of(self, known: DatasetFacts) -> str | None:
        with self._home.database.read() as connection:
            return rung_of(connection, known.dataset)

    def _count_attesting(self, known: DatasetFacts) -> int:
        """Counts the groups that attest the newest attested step."""
        places = [
            span.last
            for attestation in known.attestations.values()
            for span in attestation.spans
            if span.verdict == "reproduced"
        ]
        last = max((place for place in places if place < known.size), default=None)
        return 0 if last is None else self._evaluator.decision(known, last).attested

    def _attestations(
        self, known: DatasetFacts
    ) -> tuple[tuple[wire.AttestationView, ...], tuple[wire.AttestationView, ...]]:
        """Divides attestations into those that agree with this node's finding or the majority, and the others."""
        views = [(said, attestation_view(key, said, self._group(key))) for key, said in known.attestations.items()]
        denying = [view for said, view in views if said.mismatch]
        affirming = [view for said, view in views if not said.mismatch]
        own = {run.verdict for run in known.runs.values()}
        if "mismatch" in own or (len(denying) > len(affirming) and "reproduced" not in own):
            return tuple(denying), tuple(affirming)
        return tuple(affirming), tuple(denying)


_REASONS: Final = {
    "refuted": "validators re-ran it and got another result",
    "accused": "one validator alone re-ran it and got another result: its machine may be broken",
    "own-mismatch": "this node re-ran it and got another result",
    "split": "validators contradict each other",
    "nondeterministic": "two runs give different results",
    "disputed": "a validator got another result, which is not enough to decide",
    "pending": "it was not re-run yet",
    "engine-not-pinned": "its pin names an engine that no validator which re-ran it has, so it cannot be held to it",
    "too-costly": "a step takes an engine longer than validators allow",
}
_OTHER: Final = {
    "fork": "its owner's key signed two histories; below this block they agree",
    "witnessed": "not enough witnesses cosigned it that far",
    "fresh": "its newest signed head is too old",
    "ahead": "its newest head was signed at a time ahead of this clock: this clock or its signer's is wrong, "
    "odfctl doctor looks at this one",
    "abandoned": "you abandoned it here",
    "observed": "not enough observers found the same at its source",
    "inputs": "it read blocks of an input that are beyond that input's reach",
}


def _block_at(chain: ChainReader, number: int | None) -> Multihash | None:
    head = chain.head()
    return None if number is None or head is None or number >= head.size else chain.block_at(number).hash


def _behind_too_little(policy: Policy, known: DatasetFacts, block: int) -> int:
    """Counts verdicts of listed validators on a step that do not count, since their sandbox isolates too little."""
    spoke = (said for key, said in known.attestations.items() if policy.group_of(key) is not None)
    return sum(verdict_on(said, block) is not None and not is_isolated(policy, said, block) for said in spoke)
