"""Declares the manifests of Mirrors, Networks and Peers, and the form in which the spec of each is stored. Pure."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from chain.codec.bind import plain_of
from chain.errors import Invalid
from chain.ids import DID_KEY, DID_ODF, DatasetId, KeyDid
from chain.model.wire import I32
from odfd.ipfs.transport import home_of
from odfd.resources import registry
from odfd.resources.manifest import describe
from odfd.resources.resource import Json
from odfd.resources.types import ResourceType
from odfd.services.transfer.remotes import place_of
from odfd.store.mirror_specs import MirrorSpec, to_resource
from odfd.store.retention import ALL
from p2p.address import parse_address
from p2p.identity import peer_of_did


class MirrorResourceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset of others, stored here under the name of the resource."""

    source: Annotated[str, describe("did:odf:… of the dataset.")]
    network: Annotated[str, describe("The network where it is announced. Default: any.")] | None = None
    want: Annotated[str, describe("data (default), or chain: metadata only.")] | None = None
    priority: (
        Annotated[
            I32, describe("-100 to 100: when space is short, data of mirrors with lower numbers is dropped first.")
        ]
        | None
    ) = None
    keep: (
        Annotated[str, describe("How much of the newest data to keep, such as 30d or 10GiB. Default: all.")] | None
    ) = None
    rate: (
        Annotated[str, describe("Most bytes per second to download, such as 2MiB. Default: no limit of its own.")]
        | None
    ) = None
    use: Annotated[str, describe("Policy expression for using it here. Default: the node's.")] | None = None
    serve: Annotated[str, describe("Policy expression for serving it to other nodes. Default: the node's.")] | None = (
        None
    )
    expect: Annotated[str, describe("Hash of a block that its chain must contain.")] | None = None
    via: Annotated[str, describe("A URL where it is published, or ipfs.")] | None = None
    peers: Annotated[tuple[str, ...], describe("Ids of peers that share it with this node.")] | None = None
    paused: Annotated[bool, describe("Whether nothing is fetched until it is resumed. Default: false.")] | None = None


class NetworkResourceSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A network, under the name of the resource."""

    bootstrap: Annotated[tuple[str, ...], describe("Multiaddrs of the peers to contact first, each with /p2p/….")]
    policy_key: (
        Annotated[str, describe("The key that signs the network's policies; set only by an invitation.")] | None
    ) = None
    invited_by: Annotated[str, describe("The key that signed the invitation; set only by one.")] | None = None


class PeerResourceSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The rule of this node for a peer."""

    peer_id: Annotated[str, describe("The peer's id, 12D3KooW…, or its key, did:key:….")]
    blocked: Annotated[bool, describe("true: the node exchanges nothing with the peer.")]


def kept_mirror(name: str, spec: MirrorResourceSpec, before: Json) -> Json:  # noqa: ARG001  all types are read alike
    """Returns the form in which a Mirror is stored. Raises Invalid."""
    if not spec.source.startswith(DID_ODF):
        raise Invalid(
            "a mirror is named by the did of its dataset", rule="mirror-source",
            hint="did:odf:…; odfctl mirror add takes URLs too, and odfctl get mirrors -o manifest shows the did",
        )  # fmt: skip
    if spec.want not in (None, "data", "chain"):
        raise Invalid(f"unknown want {spec.want!r}", rule="enum-member", hint="data or chain")
    dataset = DatasetId.parse(spec.source)
    more = {key: each for key, each in plain_of(spec).items() if key != "source" and (key, each) != ("keep", ALL)}
    mirror = msgspec.convert(
        more | {"dataset": str(dataset), "name": name, "via": via_place(spec.via, dataset)}, MirrorSpec
    )
    mirror.check()
    return to_resource(mirror)


def via_place(via: str | None, dataset: DatasetId) -> str | None:
    """Returns the place at which a dataset that is named by its did is looked for. Raises Invalid for other texts."""
    place = None if via is None else home_of(dataset) if via == "ipfs" else place_of(via)
    if via is not None and place is None:
        raise Invalid(f"{via[:80]!r} is no URL", rule="mirror-via", hint="ipfs, or a URL")
    return place


def kept_network(name: str, spec: NetworkResourceSpec, before: Json) -> Json:  # noqa: ARG001  all types are read alike
    """Returns the form in which a Network is stored. Raises Invalid."""
    for address in spec.bootstrap:
        if parse_address(address).peer is None:
            text = f"{address!r} does not say whose it is"
            raise Invalid(text, rule="multiaddr", hint="append /p2p/ and the peer id")
    return plain_of(spec)


def kept_peer(name: str, spec: PeerResourceSpec, before: Json) -> Json:  # noqa: ARG001  all types are read alike
    """Returns the form in which a Peer is stored. Raises Invalid."""
    peer = peer_id(spec.peer_id)
    if not peer.startswith("12D3KooW") or not peer.isalnum():
        raise Invalid(
            f"not a peer id: {spec.peer_id[:60]!r}", rule="peer", hint="12D3KooW…, as odfctl peer list has it"
        )
    if not spec.blocked:
        raise Invalid("an opinion that says nothing", rule="peer-opinion", hint="odfctl peer unblock takes one back")
    return plain_of(PeerResourceSpec(peer_id=peer, blocked=True))


def peer_id(text: str) -> str:
    """Returns the id of the peer that has a key; other texts unchanged. Raises Invalid."""
    return str(peer_of_did(KeyDid.parse(text))) if text.startswith(DID_KEY) else text


MIRROR_TYPE: Final = ResourceType(
    names=registry.MIRROR,
    about="A verified copy of another node's dataset that is kept up to date here.",
    spec=MirrorResourceSpec,
    kept=kept_mirror, stands_for="source", namesake="Dataset",
    example="""\
$schema: Mirror
headers:
  name: covid
  labels: {topic: health}
spec:
  source: did:odf:fed014e55dd4d4d4e1a1a3ad0d7e5ad3f5c1e3a7a9a5f9c9a8b0a17aa4cbb2bd2b94c
  keep: 50GiB
  priority: 5
""",
)  # fmt: skip

NETWORK_TYPE: Final = ResourceType(
    names=registry.NETWORK,
    about="Peers that gossip with each other under one name. A node may be in several.",
    spec=NetworkResourceSpec,
    is_silent=True,
    kept=kept_network, judged_at="spec.bootstrap",
    example="""\
$schema: Network
headers:
  name: food
spec:
  bootstrap: []
""",
)  # fmt: skip

PEER_TYPE: Final = ResourceType(
    names=registry.PEER,
    about="This node's rule for a peer: blocked or not. A peer without a rule is no resource.",
    spec=PeerResourceSpec,
    kept=kept_peer, stands_for="peerId", object_named=peer_id, made_by="the node that meets it",
    instead="odfctl peer block PEER declares it",
    example="""\
$schema: Peer
headers:
  name: mallory
  annotations: {reason: sends what was not requested}
spec:
  peerId: 12D3KooWEyopopk2Ka2tf5fvGDPQEbYWrSnWFk8T9Bks5pZuWnaz
  blocked: true
""",
)  # fmt: skip
