"""Converts trust statements, decisions and evidence to the values of the API. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from chain import instant
from chain.ids import KeyDid
from chain.multihash import Multihash
from chain.statements.envelope import Signed, unseal
from chain.statements.proof import AUTHORITY_FORK, DOUBLE_COSIGN, DOUBLE_VOTE, FORK, Proof
from chain.statements.statement import Attestation, HeadStatement
from odfd.control import wire
from odfd.store.incidents import Incident
from odfd.store.ledger.observations import Sighting
from odfd.store.ledger.resolutions import VERSION, Resolution
from odfd.store.ledger.runs import RecordedRun
from odfd.trust.evidence.row_diff import RowDifference
from odfd.trust.judgement.manual_resolution import fork_of


def decision_view(made: Resolution) -> wire.DecisionView:
    return wire.DecisionView(
        at=instant.render(made.at),
        matter=made.matter,
        hash=str(made.name),
        block=None if made.matter == VERSION else made.place,
        by="witnesses" if made.matter == VERSION and made.place else "person",
    )


def incident_view(past: Incident) -> wire.IncidentView:
    return wire.IncidentView(at=instant.render(past.at), kind=past.kind, message=past.message)


def head_view(said: HeadStatement, envelope: bytes) -> wire.HeadView:
    return _signed_head(said, unseal(envelope, HeadStatement.MAX_ENVELOPE))


def _signed_head(said: HeadStatement, signed: Signed) -> wire.HeadView:
    return wire.HeadView(
        signer=str(signed.signers[0]),
        epoch=said.epoch,
        blocks=said.size,
        hash=str(said.head),
        issued_at=said.issued_at,
        expires_at=said.expires_at,
        upper=None if said.upper is None else instant.render(instant.from_millis(said.upper)),
    )


def attestation_view(key: KeyDid, attestation: Attestation, group: str | None) -> wire.AttestationView:
    engine = attestation.engines[0] if attestation.engines else None
    spans = [
        (f"{span.verdict} {span.first}-{span.last}" if span.last > span.first else f"{span.verdict} at #{span.first}")
        + (f" ({span.reason})" if span.reason else "")
        for span in attestation.spans
    ]
    return wire.AttestationView(
        validator=str(key),
        group=group,
        spans=tuple(spans),
        at=attestation.finished_at,
        engine=f"{engine.name} {engine.digest[:11]} {engine.sandbox}" if engine else None,
        platform=engine.platform if engine else None,
    )


def observation_view(said: Sighting, group: str | None) -> wire.ObservationView:
    return wire.ObservationView(
        observer=str(said.observer),
        group=group,
        block=said.sequence_number,
        result=said.result,
        at=instant.render(said.at),
    )


def proof_view(name: str, proof: Proof, here: Multihash | None = None) -> wire.EvidenceView:
    """Shows a proof. ``here``: the block of this node's own history at the place where a fork parts."""
    who = ", ".join(key.short for key in proof.accused)
    told = {
        FORK: f"the key {who} signed two histories that differ from here on",
        DOUBLE_VOTE: f"the validator {who} signed two contradicting statements; its statements no longer count",
        DOUBLE_COSIGN: f"the witness {who} cosigned two histories that differ from here on",
        AUTHORITY_FORK: f"the root keys {who} signed two different versions {proof.epoch} of who may write",
    }
    name_of_file = str(proof.id)
    return wire.EvidenceView(
        id=name_of_file,
        kind=proof.kind,
        dataset=name,
        bundle=name_of_file,
        block=proof.index,
        message=told[proof.kind],
        sides=_sides(proof, here) if proof.kind == FORK else (),
    )


def _sides(proof: Proof, here: Multihash | None) -> tuple[wire.SideView, ...]:
    return tuple(
        wire.SideView(block=str(side.leaf), head=_signed_head(side.head, side.signed), held=side.leaf == here)
        for side in fork_of(proof).sides
    )


def evidence_view(name: str, run: RecordedRun, looked_into: Mapping[Multihash, str]) -> wire.EvidenceView:
    finding = RowDifference.from_bytes(run.evidence or b"")
    return wire.EvidenceView(
        id=str(run.bundle or run.block),
        kind=run.verdict,
        bundle=str(run.bundle) if run.bundle else None,
        dataset=name,
        block=run.sequence_number,
        at=instant.render(run.at),
        message=finding.message,
        recheck=None if run.bundle is None else looked_into.get(run.bundle),
        cells=tuple(
            wire.CellView(
                block=run.sequence_number,
                row=cell.row,
                column=cell.column,
                published=cell.published,
                computed=cell.computed,
                context=cell.context,
            )
            for cell in finding.cells
        ),
    )
