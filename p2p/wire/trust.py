"""Encodes and decodes the messages of ``/odf/trust/1``: compare, list and fetch signed statements. JSON in frames.

One request at a time on a stream, answered in order::

    {"ask":"sum"}                                   {"tell":"sum","buckets":{"07":"<64 hex>",…}}
    {"ask":"list","buckets":[7,…],"after":SID?}     {"tell":"list","refs":{DID:[SID,…],…},"more":SID?}
    {"ask":"list","datasets":[DID,…],"after":SID?}  the same
    {"ask":"get","sids":[SID,…]}                    {"tell":"get","statements":[{"topic","envelope"},…],"done":n}
    {"ask":"prove","dataset":DID,"size":n,"old":m}  {"tell":"proof","nodes":["<64 hex>",…]}
    {"ask":"prove","dataset":DID,"size":n,"index":i} the same
                                                    {"tell":"refused","reason":"…"}

A bucket is the first byte of the dataset's public key; its sum is sha3-256 over the bucket's sids, sorted and end to
end; empty buckets are left out. Listings are in the order of sids, a page at a time: if other pages follow, ``more`` is
the last sid of the page, to be sent as ``after``. ``get`` answers for the first ``done`` requested sids, at least one,
without statements that are no longer there. ``prove`` asks for a proof in the tree over the first ``size`` blocks (RFC
6962): that the tree over the first ``old`` is its beginning, or that block ``index`` is in it. Unknown fields are
ignored, so that later versions can add some.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.tree import MAX_PATH
from p2p.ports import StatementRef, Topic
from p2p.wire.limits import (
    BUCKETS,
    MAX_DATASETS,
    MAX_ENVELOPE,
    MAX_LISTED,
    MAX_REASON,
    MAX_SIDS,
    MAX_TRUST_REPLY,
    MAX_TRUST_REQUEST,
)

PROTOCOL: Final = "/odf/trust/1"
Bucket = Annotated[int, msgspec.Meta(ge=0, lt=BUCKETS)]
BucketName = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{2}$")]
Sum = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
MAX_TREE: Final = 1 << 53
"""Blocks of a chain: numbers up to this are read exactly by every JSON parser."""
Size = Annotated[int, msgspec.Meta(ge=1, le=MAX_TREE)]
Sids = Annotated[tuple[Multihash, ...], msgspec.Meta(max_length=MAX_LISTED)]


class SumAsk(msgspec.Struct, frozen=True, tag="sum", tag_field="ask"):
    """A question for the peer's sums."""


class ListAsk(msgspec.Struct, frozen=True, tag="list", tag_field="ask", omit_defaults=True):
    """A question for the ids of the statements that a peer has of these buckets, or of these datasets."""

    buckets: Annotated[tuple[Bucket, ...], msgspec.Meta(max_length=BUCKETS)] = ()
    datasets: Annotated[tuple[DatasetId, ...], msgspec.Meta(max_length=MAX_DATASETS)] = ()
    after: Multihash | None = None
    private: bool = False
    """With ``datasets``: the asker passes nothing of it on, so it may get what is shared with its key alone."""


class GetAsk(msgspec.Struct, frozen=True, tag="get", tag_field="ask"):
    sids: Annotated[tuple[Multihash, ...], msgspec.Meta(min_length=1, max_length=MAX_SIDS)]


class ProveAsk(msgspec.Struct, frozen=True, tag="prove", tag_field="ask", omit_defaults=True, kw_only=True):
    """A question for a proof in the tree over the first ``size`` blocks: of its beginning, or of one block."""

    dataset: DatasetId
    size: Size
    old: Size | None = None
    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_TREE)] | None = None


class Sums(msgspec.Struct, frozen=True, tag="sum", tag_field="tell"):
    """An answer: the sum of each bucket that is not empty, by the bucket's number in two hex digits."""

    buckets: Annotated[dict[BucketName, Sum], msgspec.Meta(max_length=BUCKETS)]


class Listing(msgspec.Struct, frozen=True, tag="list", tag_field="tell", omit_defaults=True):
    refs: dict[str, Sids]
    more: Multihash | None = None


class TopicEnvelope(msgspec.Struct, frozen=True):
    """An envelope and the topic on which it would be gossiped; in JSON the bytes are base64."""

    topic: Topic
    envelope: bytes


class Statements(msgspec.Struct, frozen=True, tag="get", tag_field="tell"):
    """An answer: envelopes of the first ``done`` requested sids, without those that are no longer here."""

    statements: Annotated[tuple[TopicEnvelope, ...], msgspec.Meta(max_length=MAX_SIDS)]
    done: Annotated[int, msgspec.Meta(ge=1, le=MAX_SIDS)]


class ProofAnswer(msgspec.Struct, frozen=True, tag="proof", tag_field="tell"):
    """An answer: the nodes of a proof, in hex, in the order of RFC 6962."""

    nodes: Annotated[tuple[Sum, ...], msgspec.Meta(max_length=MAX_PATH)]

    @property
    def path(self) -> list[bytes]:
        return [bytes.fromhex(node) for node in self.nodes]


class TrustRefusal(msgspec.Struct, frozen=True, tag="refused", tag_field="tell"):
    """A refusal: the reason why there is no answer. The stream ends after it."""

    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)]


TrustAsk: TypeAlias = SumAsk | ListAsk | GetAsk | ProveAsk
TrustTell: TypeAlias = Sums | Listing | Statements | ProofAnswer | TrustRefusal


def _to_text(value: object) -> str:
    if isinstance(value, DatasetId | Multihash):
        return str(value)
    raise NotImplementedError(f"no JSON form of {type(value).__name__}")


def _from_text(kind: type[Any], value: object) -> object:
    if kind in (DatasetId, Multihash) and isinstance(value, str):
        return kind.parse(value)
    raise Invalid(f"{kind.__name__} is written as text", rule="trust-message")


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_to_text, order="deterministic")
_ASKS: Final = msgspec.json.Decoder(TrustAsk, dec_hook=_from_text)
_TELLS: Final = msgspec.json.Decoder(TrustTell, dec_hook=_from_text)


def encode(message: TrustAsk | TrustTell) -> bytes:
    return _ENCODER.encode(message)


def decode_ask(body: bytes) -> TrustAsk:
    """Decodes a question. Raises Invalid."""
    ask: TrustAsk = _decode(_ASKS.decode, body, MAX_TRUST_REQUEST, "trust-request")
    if isinstance(ask, ListAsk) and bool(ask.buckets) == bool(ask.datasets):
        raise Invalid("a list of neither buckets nor datasets, or of both", rule="trust-request", hint="give one")
    if isinstance(ask, ProveAsk) and not _provable(ask):
        raise Invalid(f"no proof of {ask.old} or #{ask.index} in {ask.size}", rule="trust-request", hint="give one")
    return ask


def _provable(ask: ProveAsk) -> bool:
    if ask.old is not None:
        return ask.index is None and ask.old <= ask.size
    return ask.index is not None and ask.index < ask.size


def decode_tell(body: bytes) -> TrustTell:
    """Decodes an answer. Raises Invalid."""
    tell: TrustTell = _decode(_TELLS.decode, body, MAX_TRUST_REPLY, "trust-reply")
    if isinstance(tell, Listing):
        refs_of(tell)
    if isinstance(tell, Statements) and any(len(signed.envelope) > MAX_ENVELOPE for signed in tell.statements):
        raise Invalid("an envelope over the limit", rule="trust-reply", hint=f"at most {MAX_ENVELOPE} bytes")
    return tell


def _decode(decode: Callable[[bytes], Any], body: bytes, limit: int, rule: str) -> Any:
    if len(body) > limit:
        raise Invalid(f"a message of {len(body)} bytes", rule=rule, hint=f"at most {limit}")
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"not a message of {PROTOCOL}: {error}", rule=rule) from error


def refs_of(page: Listing) -> list[StatementRef]:
    """Returns a page as refs in the order of sids.
    Raises Invalid for a wrong DID, or more refs than a page may have."""
    refs = [StatementRef(sid, DatasetId.parse(did)) for did, sids in page.refs.items() for sid in sids]
    if len(refs) > MAX_LISTED:
        raise Invalid(f"a page of {len(refs)} statements", rule="trust-reply", hint=f"at most {MAX_LISTED}")
    return sorted(refs, key=lambda ref: ref.sid)


def page(refs: Iterable[StatementRef], more: bool) -> Listing:
    """Makes a page of refs, which must be in the order of sids; ``more``: whether other pages follow."""
    by_dataset: defaultdict[str, list[Multihash]] = defaultdict(list)
    last: Multihash | None = None
    for ref in refs:
        by_dataset[str(ref.dataset)].append(ref.sid)
        last = ref.sid
    return Listing({did: tuple(sids) for did, sids in by_dataset.items()}, last if more else None)


def bucket(dataset: DatasetId) -> int:
    return dataset.public_key[0]


def sums(refs: Iterable[StatementRef]) -> Mapping[int, str]:
    """Computes the sum (hex) of each bucket that has a statement."""
    members: defaultdict[int, list[Multihash]] = defaultdict(list)
    for ref in refs:
        members[bucket(ref.dataset)].append(ref.sid)
    return {number: hashlib.sha3_256(b"".join(sorted(sids))).hexdigest() for number, sids in members.items()}


def hash_sums(mine: Mapping[int, str], theirs: Sums) -> bytes:
    """Returns a hash of the sums of both sides, by which this comparison is recognised again."""
    return hashlib.sha3_256(repr((sorted(mine.items()), sorted(theirs.buckets.items()))).encode()).digest()


def differing(mine: Mapping[int, str], theirs: Sums) -> Sequence[int]:
    """Lists, in order, the buckets in which the other side has statements that I may lack."""
    sums = {int(name, 16): value for name, value in theirs.buckets.items()}
    return [number for number, value in sorted(sums.items()) if mine.get(number) != value]
