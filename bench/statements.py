"""Measures the cost of a long chain in signatures: one current verdict per session, against one for every block.

Counted, not timed: bytes of the envelopes that a validator and the owner send while a chain grows to its end, made by
the functions that a node makes them with, and the bytes that a node keeps of them.
"""

from __future__ import annotations

from pathlib import Path

from bench.measure import MILLION, Row, Side, Size
from bench.trust import ENGINE, NOW, VALIDATORS, head_of, owner
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.envelope import sid
from odfd.store.ledger.runs import RecordedRun
from odfd.trust.validation.attestation_publisher import Reexecuted, Subject, attest

SITTING = 10_000
"""Blocks between two verdicts: what a mirror brings, or ten minutes of a busy writer."""


def measure_statements(size: Size, folder: Path) -> list[Row]:
    """Measures a chain that grows by sessions, each ending in a head and a verdict; and one with a verdict a block."""
    del folder
    blocks = size.pick(20_000, MILLION)
    key, validator = owner(0), VALIDATORS[0]
    last: tuple[int, Multihash] | None = None
    verdicts, heads, newest = 0, 0, 0
    for end in range(SITTING, blocks + 1, SITTING):
        root, head = end.to_bytes(32, "big"), Multihash.sha3_256(end.to_bytes(8, "big"))
        subject = Subject(dataset=key.dataset_id, epoch=0, size=end, root_hash=root, head=head)
        run = RecordedRun(sequence_number=end - 1, first=1, block=head, at=NOW, verdict="reproduced", engine=ENGINE)
        said = attest(validator.did, subject, Reexecuted({end - 1: run}, end), [], "strict", last, NOW)
        payload = statement.encode(said)
        last = (said.serial, sid(payload))
        newest = len(envelope.seal(payload, validator))
        verdicts += newest
        heads += len(head_of(key, end, root, head))
    sittings = blocks // SITTING
    return [
        Row(
            name=f"signatures of {blocks:,}",
            measures=f"bytes that a validator signs over {blocks:,} blocks, in sittings of {SITTING:,}",
            ours=Side(name="one living verdict", costs=(float(verdicts),), unit="B"),
            peer=Side(name="a verdict for each block", costs=(float(newest * blocks),), unit="B"),
            goal="≤ 0.001",
            facts={
                "verdicts": sittings,
                "B that stay": newest,
                "heads": sittings,
                "B of heads": heads,
            },
        )
    ]
