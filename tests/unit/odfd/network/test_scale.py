"""The table of docs/scale.md is computed from the constants of the protocol: a change of one is a change of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from chain.ids import DatasetId
from chain.instant import SECOND
from chain.multihash import Multihash
from odfd.mirrors.holders import PROBE_AGAIN_SECONDS
from odfd.trust.signing.owner_commit import LIFETIME as HEAD_LIFETIME
from p2p.driver.discovery import ASKED, PASSED_RATE, SAMPLE_OF_LARGE
from p2p.driver.forwarding import AROUND, UNWANTED
from p2p.driver.settings import ReplicationSettings
from p2p.driver.statements import GOSSIP_RATE, WIDE
from p2p.host.pubsub import DEGREE, WINDOW, rpc_pb2
from p2p.machines.holder_connections import NEXT
from p2p.ports import StatementRef
from p2p.wire import presence, trust
from p2p.wire.limits import MAX_LISTED
from worlds.statements import attestation, head, key

NODES, DATASETS, VALIDATORS = 10_000, 100_000, 2
OWN = DATASETS // NODES
"""Datasets that a node serves or wants."""
LINKS = 16
"""Connections of a node: eight that it dials, and as many that others do."""
DAY = 86_400
LOOKUP = 600.0
"""Bytes a second of the lookup at most, measured by ``tests/sim/lookup/figures.py``; more is a change here."""
TOLD = Path(__file__).parents[4] / "docs" / "scale.md"


class Flow(NamedTuple):
    """What reaches one node: the same leaves it, for what one receives another sends."""

    name: str
    per_second: float
    size: int
    """Bytes of one, as it comes."""
    copies: float = 1.0

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.per_second * self.size * self.copies

    def __str__(self) -> str:
        return f"| {self.name} | {self.per_second:.2f} | {self.size:,} | {self.copies:g} | {self.rate / 1024:.1f} |"


def gossiped(payload: bytes, topic: str) -> int:
    message = rpc_pb2.Message(
        data=payload, from_id=bytes(38), seqno=bytes(8), topicIDs=[f"/odf/1/public/{topic}"], signature=bytes(64)
    )
    return int(rpc_pb2.RPC(publish=[message]).ByteSize())


def a_presence() -> bytes:
    """Of a node at two addresses that serves its share of the datasets."""
    told = presence.Presence(
        key=key(1).public,
        issued=1,
        lifetime=3600,
        addresses=("/ip4/203.0.113.7/tcp/4150", "/ip6/2001:db8::7/tcp/4150"),
        tags=tuple(range(OWN)),
    )
    return presence.seal(told, "public", key(1))


NAME_BYTES = 48
"""Of a message's name, as ``IHAVE`` tells it: author, number and two of protobuf's."""
ASK_BYTES, SIZE_BYTES = 4 + 55, 4 + 25
"""How far does a peer serve a chain, and so far."""


def asked(datasets: int) -> int:
    """Bytes of the question for as many datasets and of the ids that answer it: a head of each, and verdicts."""
    ids = [DatasetId.from_public_key(at.to_bytes(32, "big")) for at in range(datasets)]
    refs = [
        StatementRef(Multihash.sha3_256(b"%d" % at), ids[at % datasets]) for at in range(datasets * (1 + VALIDATORS))
    ]
    refs.sort(key=lambda ref: ref.sid)
    pages = (refs[at : at + MAX_LISTED] for at in range(0, len(refs), MAX_LISTED))
    told = sum(len(trust.encode(trust.page(page, more=page[-1] is not refs[-1]))) for page in pages)
    return len(trust.encode(trust.ListAsk(datasets=tuple(ids)))) + told


def flows() -> Iterator[Flow]:
    said = ReplicationSettings(network="public")
    changes = min(NODES / DAY, PASSED_RATE.within_limit().per_second)
    yield Flow("presences that changed, gossiped", changes, gossiped(a_presence(), "peers"), DEGREE)
    sample = len(presence.encode_answer([a_presence()] * SAMPLE_OF_LARGE))
    yield Flow("presences, exchanged", 2 / said.entropy_interval, sample)
    yield from of_statements()
    rounds = 2 * said.entropy_peers / said.entropy_interval
    yield Flow("anti-entropy over ten datasets of interest", rounds, asked(OWN))
    yield Flow("anti-entropy over all else, at most", 2 * WIDE.per_second, 1)
    question = len(presence.encode_ask(presence.PeersAsk(wanted=16, tags=(1,), own=a_presence())))
    yield Flow("questions who serves what is of interest", OWN / NEXT.most, question, ASKED)
    sizes = LINKS * OWN / PROBE_AGAIN_SECONDS
    yield Flow("questions how far, and their answers", sizes, ASK_BYTES + SIZE_BYTES)


def of_statements() -> Iterator[Flow]:
    """A dataset has a head a day, and each head its verdicts."""
    heads = 1 / min(DAY, HEAD_LIFETIME / 3 / SECOND)
    sealed = (gossiped(head(key(1)), "heads"), gossiped(attestation(key(2), key(1).dataset_id), "attest"))
    for name, each, times in zip(("heads", "verdicts"), sealed, (1, VALIDATORS), strict=True):
        yield Flow(f"{name} that a neighbour signed", OWN * heads * times, each, LINKS)
        # Each neighbour that wants it passes it on, and there are no more of these than neighbours.
        yield Flow(f"{name} of interest", OWN * heads * times, each, LINKS)
    budget = UNWANTED.within_limit()
    yield Flow("heads and verdicts of no interest, at most", budget.per_second, 1, DEGREE)
    told = budget.per_second / min(sealed) + 2 * OWN * heads * (1 + VALIDATORS)
    yield Flow("names of messages", told, NAME_BYTES, DEGREE * WINDOW)


def table() -> list[str]:
    found = list(flows())
    return [*map(str, found), f"| all | | | | {sum(flow.rate for flow in found) / 1024:.1f} |"]


def caps() -> list[str]:
    """The largest networks of which all that is told passes the caps of relays, at what is assumed here."""
    presences = PASSED_RATE.within_limit().per_second * DAY
    statements = UNWANTED.within_limit().per_second / (heads_and_verdicts() / DAY)
    wanted = GOSSIP_RATE.within_limit().per_second / (1 + VALIDATORS) * DAY
    return [
        f"| presences | {presences:,.0f} nodes |",
        f"| heads and verdicts of no interest | {statements:,.0f} datasets |",
        f"| heads and verdicts of interest | {wanted:,.0f} datasets |",
    ]


def heads_and_verdicts() -> int:
    """Bytes that a relay counts for what is said of one dataset in a day."""
    verdict = len(attestation(key(2), key(1).dataset_id)) + AROUND
    return len(head(key(1))) + AROUND + VALIDATORS * verdict


def test_a_large_network_costs_a_node_less_than_two_kibibytes_a_second() -> None:
    assert sum(flow.rate for flow in flows()) + LOOKUP < 2048


@pytest.mark.slow
def test_the_document_says_what_the_constants_say() -> None:
    lines = TOLD.read_text().splitlines()
    for row in [*table(), *caps()]:
        assert row in lines, "\n".join(["docs/scale.md should say:", *table(), *caps()])
