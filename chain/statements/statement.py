"""Declares the in-toto statements of this project: heads, authorities, attestations, observations and policies.

One subject, ``{name: <did:odf>, digest: {sha3_256: …}}``; the predicate's type is NS + kind + ``/v1``. Predicates are
frozen structs here; unknown fields are ignored when read and absent when written. Spec: docs/spec/trust.md#bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, ClassVar, Final, Literal, TypeAlias, get_args

import msgspec

from chain import instant
from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import SHA3_256, Multihash
from chain.statements import canonical
from chain.statements.card import CARD as CARD
from chain.statements.card import Card
from chain.statements.node_card import NODE_CARD as NODE_CARD
from chain.statements.node_card import NodeCard as NodeCard
from chain.statements.predicate import NS, Count, Expiring, Issued, PredicateBase, StatementPart, When

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"

HEAD: Final = NS + "head/v1"
AUTHORITY: Final = NS + "authority/v1"
ATTESTATION: Final = NS + "attestation/v1"
OBSERVATION: Final = NS + "observation/v1"
POLICY: Final = NS + "policy/v1"

REMEMBERED: Final = 16
"""Number of payloads whose decoded form is cached; half a MiB of the largest."""
MAX_ROOTS: Final = 9
MAX_WRITERS: Final = 16
MAX_VERSION: Final = 256
"""Most versions of an authority, and so most statements of a walk from the dataset's id."""
SHOWN_EPOCHS: Final = 16
"""Most epochs that an authority lists: the newest."""


class TreeHead(StatementPart, frozen=True, kw_only=True):
    """Size and root of a chain's tree."""

    size: Count
    root_hash: bytes


class HeadStatement(Expiring, frozen=True, kw_only=True):
    """A writer's statement about a chain: number of blocks, tree, expiry. The subject is the last block."""

    KIND: ClassVar[str] = HEAD
    MAX_ENVELOPE: ClassVar[int] = 4 << 10

    dataset: DatasetId
    epoch: Count
    size: Count
    root_hash: bytes
    authority: Count
    node: KeyDid | None = None
    """The publishing node, if another key than the node's own signs; mirrors reserve a connection for it."""
    upper: Count | None = None
    """A time in whole milliseconds before which no further block will come; ``None``: that of the last block."""
    collection: DatasetId | None = None
    """The first shard of the collection that the chain is one of several shards of; ``None``: it is no shard."""
    head: Annotated[Multihash, "subject"]

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Returns the order of heads: by epoch, size, upper, then time of issue; never by the clock alone."""
        return (self.epoch, self.size, self.upper or 0, self.issued)

    def times(self) -> Iterable[str]:
        return self.issued_at, self.expires_at

    def trees(self) -> Iterable[tuple[int, bytes]]:
        return ((self.size, self.root_hash),)


class EngineUsed(StatementPart, frozen=True, kw_only=True):
    name: str
    digest: str
    pinned: bool
    sandbox: str
    platform: str


class InputTree(StatementPart, frozen=True, kw_only=True):
    dataset: DatasetId
    epoch: Count
    size: Count
    root_hash: bytes


class Span(StatementPart, frozen=True, kw_only=True):
    """One verdict on blocks ``first … last``."""

    first: Count
    last: Count
    verdict: str
    state: str | None = None
    engine: Count | None = None
    reason: str | None = None


class Interval(StatementPart, frozen=True, kw_only=True):
    start: Count
    end: Count


class Actual(StatementPart, frozen=True, kw_only=True):
    logical_hash: Multihash | None = None
    offset_interval: Interval | None = None
    records: Count
    watermark: str | None = None


class Mismatch(StatementPart, frozen=True, kw_only=True):
    sequence_number: Count
    runs: Count
    bundle: Multihash | None = None
    actual: Actual


class CostLimit(StatementPart, frozen=True, kw_only=True):
    """The most that a validator spends on one step."""

    seconds: Count
    """Seconds of an engine's time."""


class Attestation(PredicateBase, frozen=True, kw_only=True):
    """A validator's cumulative verdict on a chain, replaced by the next serial. The subject is block size-1.

    It names its validator: otherwise two that find the same in the same second would make one statement, and whoever
    signs a copy of another's words first would silence them.
    """

    KIND: ClassVar[str] = ATTESTATION
    MAX_ENVELOPE: ClassVar[int] = 32 << 10

    validator: KeyDid
    dataset: DatasetId
    epoch: Count
    size: Count
    root_hash: bytes
    serial: Count
    previous: Multihash | None = None
    determinism: str
    finished_at: When
    engines: tuple[EngineUsed, ...] = ()
    inputs: tuple[InputTree, ...] = ()
    spans: Annotated[tuple[Span, ...], msgspec.Meta(max_length=128)]
    mismatch: Annotated[tuple[Mismatch, ...], msgspec.Meta(max_length=128)] = ()
    budget: CostLimit | None = None
    """The limit, if a span says that a step exceeds it."""
    head: Annotated[Multihash, "subject"]

    def times(self) -> Iterable[str]:
        return (self.finished_at,)

    def trees(self) -> Iterable[tuple[int, bytes]]:
        return ((self.size, self.root_hash),)


Result: TypeAlias = Literal["same-bytes", "same-rows", "differs", "unreachable", "decoded", "decodes-otherwise"]
SAME: Final = frozenset({"same-bytes", "same-rows"})
"""Results of an observation that confirm a block."""
FETCHED: Final = SAME | {"differs"}
"""Results of a fetch of the source by the observer itself."""
DECODED: Final = frozenset({"decoded", "decodes-otherwise"})
"""Results of decoding bytes that the publisher kept, which tell nothing of the source."""


class Response(StatementPart, frozen=True, kw_only=True):
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    size: Count
    etag: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    last_modified: When | None = None


class Observation(PredicateBase, frozen=True, kw_only=True):
    """The result of an independent fetch of the declared source, for one block of data. The subject is that block.

    It names its observer, as an attestation names its validator and for the same reason.
    """

    KIND: ClassVar[str] = OBSERVATION
    MAX_ENVELOPE: ClassVar[int] = 4 << 10

    observer: KeyDid
    dataset: DatasetId
    epoch: Count
    sequence_number: Count
    result: Result
    response: Response | None = None
    """The source's response; ``None`` when it gave none."""
    at: When
    head: Annotated[Multihash, "subject"]

    @property
    def author(self) -> KeyDid:
        return self.observer

    @property
    def issued(self) -> Instant:
        return instant.parse(self.at)

    def times(self) -> Iterable[str]:
        yield self.at
        if self.response is not None and self.response.last_modified is not None:
            yield self.response.last_modified

    def check(self) -> None:
        if (self.response is None) != (self.result == "unreachable"):
            raise Invalid("an observation has a response, unless the source gave none", rule="statement-response")


class Roots(StatementPart, frozen=True, kw_only=True):
    """Keys that may sign the next version, and how many of them must."""

    threshold: Annotated[int, msgspec.Meta(ge=1)]
    keys: Annotated[tuple[KeyDid, ...], msgspec.Meta(min_length=1, max_length=MAX_ROOTS)]


class Writer(StatementPart, frozen=True, kw_only=True):
    key: KeyDid
    expires_at: When

    @property
    def expires(self) -> Instant:
        return instant.parse(self.expires_at)


class Epoch(StatementPart, frozen=True, kw_only=True):
    """A numbered epoch of a chain: the part kept of the epoch before, and where that one ended."""

    number: Annotated[int, msgspec.Meta(ge=1, le=canonical.MAX_INTEGER)]
    reason: Literal["compaction", "reset", "rotation", "recovery", "fork"]
    base: TreeHead
    last: TreeHead

    @property
    def replaces(self) -> bool:
        """Whether the new epoch drops anything that was published."""
        return self.base != self.last


class Authority(Issued, frozen=True, kw_only=True):
    """The keys that may sign for a dataset, from this version on. The subject is the dataset's Seed block."""

    KIND: ClassVar[str] = AUTHORITY
    MAX_ENVELOPE: ClassVar[int] = 16 << 10

    dataset: DatasetId
    version: Annotated[int, msgspec.Meta(ge=1, le=MAX_VERSION)]
    previous: Multihash | None = None
    """Id of the statement of the version before; version 0 is implicit and has none."""
    roots: Roots
    writers: Annotated[tuple[Writer, ...], msgspec.Meta(max_length=MAX_WRITERS)]
    epochs: Annotated[tuple[Epoch, ...], msgspec.Meta(max_length=SHOWN_EPOCHS)] = ()
    head: Annotated[Multihash, "subject"]

    def times(self) -> Iterable[str]:
        return self.issued_at, *(writer.expires_at for writer in self.writers)

    def trees(self) -> Iterable[tuple[int, bytes]]:
        return ((tree.size, tree.root_hash) for epoch in self.epochs for tree in (epoch.base, epoch.last))


class RuleGroup(StatementPart, frozen=True, kw_only=True):
    """Keys of one operator, which have one vote."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    keys: Annotated[tuple[KeyDid, ...], msgspec.Meta(min_length=1, max_length=64)]


class WitnessRules(StatementPart, frozen=True, kw_only=True):
    """A network's rules on witnesses."""

    groups: Annotated[tuple[RuleGroup, ...], msgspec.Meta(max_length=64)] | None = None
    """The witnesses, in groups of one key each."""
    f: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    quorum: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    max_age: Annotated[str, msgspec.Meta(max_length=16)] | None = None


class Rules(StatementPart, frozen=True, kw_only=True):
    """A network's rules on the policies of its nodes; each node decides what the rules omit."""

    use: Annotated[str, msgspec.Meta(max_length=1024)] | None = None
    serve: Annotated[str, msgspec.Meta(max_length=1024)] | None = None
    groups: Annotated[tuple[RuleGroup, ...], msgspec.Meta(max_length=64)] | None = None
    f: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    min_engines: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    min_sandbox: Annotated[str, msgspec.Meta(max_length=16)] | None = None
    max_stale: Annotated[str, msgspec.Meta(max_length=16)] | None = None
    witness: WitnessRules | None = None

    @property
    def digest(self) -> Multihash:
        return Multihash.sha3_256(canonical.encode(msgspec.json.decode(msgspec.json.encode(self, enc_hook=str))))


class PolicyStatement(Issued, frozen=True, kw_only=True):
    """A version of a network's policy, signed with the network's key. The subject is that key, and the rules."""

    KIND: ClassVar[str] = POLICY
    MAX_ENVELOPE: ClassVar[int] = 16 << 10

    key: KeyDid
    network: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    version: Annotated[int, msgspec.Meta(ge=1, le=canonical.MAX_INTEGER)]
    previous: Multihash | None = None
    """Id of the statement of the version before."""
    policy: Rules
    head: Annotated[Multihash, "subject"]

    @property
    def dataset(self) -> DatasetId:
        """The network's key, in the place where other statements name a dataset."""
        return DatasetId(self.key)

    @property
    def author(self) -> KeyDid:
        return self.key

    def times(self) -> Iterable[str]:
        return (self.issued_at,)

    def check(self) -> None:
        if self.head != self.policy.digest:
            raise Invalid("the subject of a policy is not the rules that it states", rule="statement-subject")


Predicate: TypeAlias = HeadStatement | Attestation
"""Statements about the blocks of a chain."""
AnyPredicate: TypeAlias = Predicate | Authority | Observation | PolicyStatement | Card | NodeCard
Word: TypeAlias = Observation | PolicyStatement | NodeCard
"""Statements that never contradict another of the same author."""
KINDS: Final[dict[str, type[AnyPredicate]]] = {argument.KIND: argument for argument in get_args(AnyPredicate)}
"""All kinds of statements, by predicate type."""
MAX_ANY: Final = max(each.MAX_ENVELOPE for each in KINDS.values())


def when(now: Instant) -> str:
    """Writes a time as statements contain it; fractions of a second are cut off."""
    return instant.render(Instant(now - now % instant.SECOND))


def encode(predicate: AnyPredicate) -> bytes:
    body = msgspec.json.decode(msgspec.json.encode(predicate, enc_hook=str))
    del body["head"]
    return canonical.encode(
        {
            "_type": STATEMENT_TYPE,
            "predicate": body,
            "predicateType": predicate.KIND,
            "subject": [{"digest": {"sha3_256": predicate.head.digest.hex()}, "name": str(predicate.dataset)}],
        }
    )


def decode(payload: bytes) -> Predicate:
    """Decodes a payload that must be a head or an attestation. Raises Invalid, also for any other predicate type."""
    predicate = decode_any(payload)
    if not isinstance(predicate, HeadStatement | Attestation):
        raise Invalid("neither a head nor an attestation, of which one was expected", rule="statement-type")
    return predicate


@lru_cache(maxsize=REMEMBERED)
def decode_any(payload: bytes) -> AnyPredicate:
    """Decodes a payload to one of the known predicates. Raises Invalid, also for an unknown predicate type.

    The last results are cached: a received statement is decoded to be judged, and again to be stored.
    """
    value = canonical.decode(payload)
    try:
        frame = msgspec.convert(value, _Frame)
        kind = KINDS.get(frame.predicate_type)
        if frame.type != STATEMENT_TYPE or kind is None:
            raise Invalid(f"statement of type {frame.predicate_type[:80]!r}", rule="statement-type")
        (subject,) = frame.subject
        head = Multihash.from_digest(SHA3_256, bytes.fromhex(subject.digest.sha3_256))
        predicate = msgspec.convert({**frame.predicate, "head": str(head)}, kind, dec_hook=from_text)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Invalid(f"not a statement: {error}", rule="statement") from error
    for time in predicate.times():
        instant.parse(time)
    if subject.name != str(predicate.dataset):
        raise Invalid("subject and predicate speak of different datasets", rule="statement-subject")
    if not all(size and len(root) == 32 for size, root in predicate.trees()):
        raise Invalid("a tree head has at least one block and a tree hash of 32 bytes", rule="statement-tree")
    predicate.check()
    return predicate


class _Digest(msgspec.Struct):
    sha3_256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Subject(msgspec.Struct):
    name: str
    digest: _Digest


class _Frame(msgspec.Struct):
    type: str = msgspec.field(name="_type")
    predicate_type: str = msgspec.field(name="predicateType")
    subject: Annotated[list[_Subject], msgspec.Meta(min_length=1, max_length=1)]
    predicate: dict[str, object]


def from_text(kind: type[object], value: object) -> object:
    """Decodes identities that statements write as text; a hook for msgspec. Raises ValueError or Invalid."""
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {value!r:.40}")
    if kind is Multihash:
        return Multihash.parse(value)
    if kind is KeyDid:
        return KeyDid.parse(value)
    return DatasetId.parse(value)
