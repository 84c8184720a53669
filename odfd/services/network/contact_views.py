"""Describes how a dataset or a network was met for the first time, and what would make that surer.

A dataset is met on one of four rungs (docs/spec/trust.md#first-contact). A network has no chain that could be compared;
for it counts whether a signed invitation named its first peers and the key of its policies, and in how many blocks of
addresses its peers are, since one operator may hold all of a block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final, Literal, TypeAlias

from chain.wording import plural
from odfd.control import wire
from odfd.mirrors.first_contact import ENOUGH, EXPECTED, FIRST_SIGHT, NETWORKS, WITNESSED
from odfd.network.joined_networks import Network

By: TypeAlias = Literal["hash", "witnesses", "networks", "first-use"]
BY: Final[dict[str, By]] = {
    EXPECTED: "hash",
    WITNESSED: "witnesses",
    NETWORKS: "networks",
    FIRST_SIGHT: "first-use",
}
_MEANS: Final[dict[By, str]] = {
    "hash": "the chain holds the block that you named",
    "witnesses": "a quorum of listed witnesses cosigned the head that was taken first",
    "networks": f"peers of at least {ENOUGH} networks showed the same chain",
    "first-use": "the first chain that was seen was taken, and no key vouched for it",
}
ON_FIRST_USE: Final = (
    "ask the owner for the hash of a block, and compare: odfctl log NAME; or list witnesses in [policy.witness]"
)


def dataset_contact(rung: str | None) -> wire.Contact | None:
    """Describes how a dataset was met; ``None`` for one not met yet, for one's own and for imported ones."""
    if rung is None:
        return None
    by = BY[rung]
    return wire.Contact(by=by, means=_MEANS[by], advice=ON_FIRST_USE if by == "first-use" else "")


def network_contact(network: Network, rungs: Iterable[str | None], blocks: Collection[str]) -> wire.NetworkContact:
    """Describes how a network was met.

    ``rungs``: those on which its mirrored datasets were met; ``blocks``: the address blocks of connected peers.
    """
    met = Counter(BY[rung] for rung in rungs if rung is not None)
    means = (
        f"its first peers were named in an invitation signed by {network.invited_by}"
        if network.invited_by
        else "its first peers were named by address and key, and no invitation was signed"
        if network.bootstrap
        else "no first peers were named, and no invitation was signed: every node that knows its name may be met in it"
    )
    return wire.NetworkContact(
        by="invitation" if network.invited_by else "addresses",
        invited_by=network.invited_by or None,
        means=f"{means}; its connected peers are in {plural(len(blocks), 'subnet')}",
        address_blocks=len(blocks),
        met={name: met[name] for name in _MEANS if met[name]},
        advice=_advice(network, met["first-use"], len(blocks)),
    )


def _advice(network: Network, first_use: int, blocks: int) -> tuple[str, ...]:
    advice = []
    if blocks < ENOUGH:
        advice.append(
            f"a newcomer with peers in {ENOUGH} subnets is deceived only if all of them agree: add first "
            f"peers elsewhere, by odfctl network join {network.name} --bootstrap MULTIADDR"
        )
    if first_use:
        advice.append(f"{plural(first_use, 'dataset')} met on first use: {ON_FIRST_USE}")
    return tuple(advice)
