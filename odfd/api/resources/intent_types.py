"""Defines the types of resources that declare this node's intents: mirrors, networks, blocked peers, validators.

The intent is authoritative, whether a manifest or a command made it. This module defines the fields of each type, the
form in which its spec is kept, and the spec that belongs to an intent. Pure; ``odfd.api.intents`` carries them out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from chain.codec.bind import plain_of
from chain.errors import Fault, Invalid
from chain.ids import DID_KEY, DID_ODF, DatasetId, KeyDid
from chain.model.wire import I32
from odfd.ipfs.transport import home_of
from odfd.mirrors.mirror_spec import KIND as MIRROR
from odfd.mirrors.mirror_spec import MirrorSpec
from odfd.network.joined_networks import BLOCKED, NETWORK, Network
from odfd.resources.declared import Adopted, Json
from odfd.resources.manifest import Draft, described
from odfd.state.effective_policy import GROUP
from odfd.state.remotes import place_of
from p2p.address import parse_address
from p2p.identity import peer_of_did

INTENT_TYPES: Final = {MIRROR: "Mirror", NETWORK: "Network", BLOCKED: "Peer", GROUP: "Validator"}
"""Types of resources by the kind of intent that they declare."""
ORDER: Final = ("Network", "Peer", "Validator", "Mirror")
"""Types in the order in which they are applied: peers, then trust, then mirrors."""


class MirrorResourceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset of others, stored here under the name of the resource."""

    source: Annotated[str, described("did:odf:… of the dataset.")]
    network: Annotated[str, described("The network where it is announced. Default: any.")] | None = None
    want: Annotated[str, described("data (default), or chain: metadata only.")] | None = None
    priority: (
        Annotated[
            I32, described("-100 to 100: when space is short, data of mirrors with lower numbers is dropped first.")
        ]
        | None
    ) = None
    keep: (
        Annotated[str, described("How much of the newest data to keep, such as 30d or 10GiB. Default: all.")] | None
    ) = None
    rate: (
        Annotated[str, described("Most bytes per second to download, such as 2MiB. Default: no limit of its own.")]
        | None
    ) = None
    use: Annotated[str, described("Policy expression for using it here. Default: the node's.")] | None = None
    serve: Annotated[str, described("Policy expression for serving it to others. Default: the node's.")] | None = None
    expect: Annotated[str, described("Hash of a block that its chain must contain.")] | None = None
    via: Annotated[str, described("A URL where it is published, or ipfs.")] | None = None
    peers: Annotated[tuple[str, ...], described("Ids of peers that share it with this node.")] | None = None


class NetworkResourceSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A network, under the name of the resource."""

    bootstrap: Annotated[tuple[str, ...], described("Multiaddrs of the peers to contact first, each with /p2p/….")]
    policy_key: (
        Annotated[str, described("The key that signs the network's policies; comes only from an invitation.")] | None
    ) = None


class PeerResourceSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The rule of this node for a peer."""

    peer_id: Annotated[str, described("The peer's id, 12D3KooW…, or its key, did:key:….")]
    blocked: Annotated[bool, described("true: the node exchanges nothing with the peer.")]


class ValidatorResourceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A validator whose verdicts count; those of one group count once."""

    did: Annotated[str, described("The validator's key, did:key:….")]
    group: (
        Annotated[str, described("The group of validators it belongs to. Default: the name of the resource.")] | None
    ) = None


def check_intent(draft: Draft) -> None:
    """Adds a mistake to a draft whose spec makes no valid intent."""
    path, read = _READ[type(draft.spec)]
    try:
        read(draft.headers.name, draft.spec)
    except Fault as fault:
        draft.note(path, fault.message, fault.rule, fault.hint)


def as_kept(name: str, spec: msgspec.Struct) -> Json:
    """Returns a spec in its canonical form, that of its intent. ``check_intent`` must have found nothing."""
    _, read = _READ[type(spec)]
    return read(name, spec)


def key_of(type_: str, name: str, spec: Json) -> str:
    """Returns the link that identifies an intent, made from its kind and its key."""
    parts = {"Mirror": "source", "Peer": "peerId", "Validator": "did"}
    key: str = spec[parts[type_]] if type_ in parts else name.casefold()
    kind = next(kind for kind, each in INTENT_TYPES.items() if each == type_)
    return link(kind, key)


def linked(type_: str, ref: str) -> str:
    """Returns the link for a reference by an id of the thing itself: a did, or the peer id of a Peer."""
    kind = next((kind for kind, each in INTENT_TYPES.items() if each == type_), None)
    if kind is None:
        return ref
    return link(kind, _peer_id(ref) if type_ == "Peer" else ref)


def link(kind: str, key: str) -> str:
    """Returns the link of an intent: it identifies the resource, as the did of a dataset does."""
    return f"{kind} {key.casefold()}"


def adopted(kind: str, name: str, raw: bytes) -> Adopted:
    """Returns name, link and spec of the resource that an intent declares. ``name``: that of the intent."""
    match kind:
        case "mirror":
            mirror = msgspec.json.decode(raw, type=MirrorSpec)
            return mirror.name, link(kind, mirror.dataset), mirror_spec_of(mirror)
        case "network":
            network = msgspec.json.decode(raw, type=Network)
            return (
                network.name,
                link(kind, name),
                plain_of(NetworkResourceSpec(bootstrap=network.bootstrap, policy_key=network.policy_key or None)),
            )
        case "blocked-peer":
            return name, link(kind, name), plain_of(PeerResourceSpec(peer_id=name, blocked=True))
        case _:
            group = str(msgspec.json.decode(raw)["group"])
            spec = plain_of(ValidatorResourceSpec(did=name, group=group))
            return name.removeprefix(DID_KEY), link(kind, name), spec


def mirror_spec_of(mirror: MirrorSpec) -> Json:
    said = MirrorResourceSpec(
        source=mirror.dataset, network=mirror.network, want=mirror.want, priority=mirror.priority, keep=mirror.keep,
        rate=mirror.rate, use=mirror.use, serve=mirror.serve, expect=mirror.expect, via=mirror.via,
        peers=mirror.peers or None,
    )  # fmt: skip
    return plain_of(said)


def _mirror(name: str, spec: MirrorResourceSpec) -> Json:
    if not spec.source.startswith(DID_ODF):
        raise Invalid(
            "a mirror is named by the did of its dataset", rule="mirror-source",
            hint="did:odf:…; odfctl mirror add takes URLs too, and odfctl get mirrors -o manifest shows the did",
        )  # fmt: skip
    if spec.want not in (None, "data", "chain"):
        raise Invalid(f"unknown want {spec.want!r}", rule="enum-member", hint="data or chain")
    mirror = MirrorSpec(
        dataset=str(DatasetId.parse(spec.source)), name=name, network=spec.network,
        want="chain" if spec.want == "chain" else "data", priority=spec.priority or 0,
        keep=None if spec.keep == "all" else spec.keep, rate=spec.rate, use=spec.use, serve=spec.serve,
        expect=spec.expect, via=_place(spec.via, DatasetId.parse(spec.source)),
        peers=spec.peers or (),
    )  # fmt: skip
    mirror.check()
    return mirror_spec_of(mirror)


def _place(via: str | None, dataset: DatasetId) -> str | None:
    place = None if via is None else home_of(dataset) if via == "ipfs" else place_of(via)
    if via is not None and place is None:
        raise Invalid(f"{via[:80]!r} is no place", rule="mirror-via", hint="ipfs, or a URL")
    return place


def _network(name: str, spec: NetworkResourceSpec) -> Json:  # noqa: ARG001  all types are read alike
    for address in spec.bootstrap:
        if parse_address(address).peer is None:
            text = f"{address!r} does not say whose it is"
            raise Invalid(text, rule="multiaddr", hint="append /p2p/ and the peer id")
    return plain_of(spec)


def _peer(name: str, spec: PeerResourceSpec) -> Json:  # noqa: ARG001
    peer = _peer_id(spec.peer_id)
    if not peer.startswith("12D3KooW") or not peer.isalnum():
        raise Invalid(
            f"not a peer id: {spec.peer_id[:60]!r}", rule="peer", hint="12D3KooW…, as odfctl peer list has it"
        )
    if not spec.blocked:
        raise Invalid("an opinion that says nothing", rule="peer-opinion", hint="odfctl peer unblock takes one back")
    return plain_of(PeerResourceSpec(peer_id=peer, blocked=True))


def _peer_id(text: str) -> str:
    """Returns the id of the peer that has a key; other texts unchanged. Raises Invalid."""
    return str(peer_of_did(KeyDid.parse(text))) if text.startswith(DID_KEY) else text


def _validator(name: str, spec: ValidatorResourceSpec) -> Json:
    return plain_of(ValidatorResourceSpec(did=str(KeyDid.parse(spec.did)), group=spec.group or name))


_READ: Final[dict[type, tuple[str, Callable[[str, Any], Json]]]] = {
    MirrorResourceSpec: ("spec", _mirror),
    NetworkResourceSpec: ("spec.bootstrap", _network),
    PeerResourceSpec: ("spec", _peer),
    ValidatorResourceSpec: ("spec.did", _validator),
}
