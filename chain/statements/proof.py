"""Checks proofs that a key contradicted itself: two statements that no honest key makes (docs/spec/trust.md#forks).

A proof is an unsigned canonical JSON object; its id is the sha3-256 of it. Anyone can check it alone, in O(log n) and
without blocks: it rests on the accused key's own signatures, so the reporter adds bytes and no claims. ``fork``: two
heads of one epoch whose trees hold different blocks at one place. ``double-vote``: two attestations of one serial, or a
successor that does not follow its predecessor. ``authority-fork``: two versions of one number, each rightly signed.
``double-cosign``: as ``fork``, on two trees cosigned by one witness. Who may sign follows from the dataset's authority,
of which the caller provides the versions that it knows; without it only version 0 is known. Other packages decide the
consequences of a proof. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements import canonical, cosignature, envelope, statement
from chain.statements.authority import Rights, follow, implicit
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.envelope import Signed
from chain.statements.predicate import NS, Count
from chain.statements.statement import AnyPredicate, Attestation, Authority, HeadStatement
from chain.statements.tree import HASH_SIZE, MAX_PATH, Leaves, Tree, root_from_inclusion

PROOF: Final = NS + "proof/v1"
FORK: Final = "fork"
DOUBLE_VOTE: Final = "double-vote"
AUTHORITY_FORK: Final = "authority-fork"
DOUBLE_COSIGN: Final = "double-cosign"
KINDS: Final = (FORK, DOUBLE_VOTE, AUTHORITY_FORK, DOUBLE_COSIGN)
MAX_PROOF: Final = 64 << 10
"""Largest proof, in bytes; at a million blocks one takes 4.1 KiB."""

Base64 = Annotated[str, msgspec.Meta(max_length=44)]
_Pair = Annotated[
    tuple[Annotated[tuple[Base64, ...], msgspec.Meta(max_length=MAX_PATH)], ...], msgspec.Meta(max_length=2)
]

RightsAt: TypeAlias = Callable[[DatasetId, int], Rights | None]
"""Returns the rights of a version of a dataset's authority; ``None`` if they are not known."""


def first_rights(dataset: DatasetId, version: int) -> Rights | None:
    """Returns the rights that need no statement: those of version 0 of the authority, else ``None``."""
    return implicit(dataset) if version == 0 else None


Branch: TypeAlias = Leaves | Tree
"""One of two histories, as its leaves or its tree."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """A proof that was checked. Made by ``decode``, ``fork`` and ``double_vote`` only."""

    kind: str
    dataset: DatasetId
    epoch: int
    """The epoch of the two histories; for an authority fork the version."""
    accused: tuple[KeyDid, ...]
    """Keys that signed both. For a fork the writers of either head, for an authority fork the roots behind either."""
    index: int | None
    """First known place at which the two histories differ; ``None`` unless it is a fork."""
    raw: bytes
    """Canonical bytes of the proof."""

    @property
    def id(self) -> Multihash:
        return Multihash.sha3_256(self.raw)

    @property
    def order(self) -> tuple[int, Multihash]:
        """The order among proofs of one fork: the lowest place first, then the lowest id."""
        return (self.index or 0, self.id)


def fork(one: bytes, other: bytes, ours: Branch, theirs: Branch, rights_at: RightsAt = first_rights) -> Proof:
    """Builds the proof from two heads' envelopes and both trees; finds the first difference by bisection.

    From leaves alone it reads O(n) of them, for the paths. Raises Invalid when the two do not contradict each other.
    """
    heads = [_head(sealed, rights_at) for sealed in (one, other)]
    sizes = [head.size for head, _ in heads]
    return decode(_of_branches(FORK, (one, other), sizes, (ours, theirs)), rights_at)


def double_cosign(one: bytes, other: bytes, ours: Branch, theirs: Branch) -> Proof:
    """Builds the proof from the bytes of two cosignatures and the leaves of both trees, like ``fork``."""
    sizes = [cosignature.decode(raw).checkpoint.size for raw in (one, other)]
    return decode(_of_branches(DOUBLE_COSIGN, (one, other), sizes, (ours, theirs)))


def _of_branches(kind: str, pair: tuple[bytes, bytes], sizes: Sequence[int], branches: tuple[Branch, Branch]) -> bytes:
    """Returns the bytes of a proof that two trees differ."""
    trees = [branch if isinstance(branch, Tree) else Tree(branch) for branch in branches]
    ours, theirs = (tree.leaves for tree in trees)
    index = _first_difference(min(sizes), ours, theirs)
    if index is None:
        raise Invalid("one tree begins with the other: no fork", rule="proof-fork")
    body: dict[str, canonical.Json] = {
        "type": PROOF,
        "kind": kind,
        "index": index,
        "statements": [canonical.decode(sealed) for sealed in pair],
        "leaves": [leaves(index, index + 1)[0].hex() for leaves in (ours, theirs)],
        "paths": [
            [base64.b64encode(node).decode() for node in tree.inclusion(index, size)]
            for tree, size in zip(trees, sizes, strict=True)
        ],
    }
    return canonical.encode(_ordered(body))


def double_vote(one: bytes, other: bytes) -> Proof:
    """Builds the proof from two attestations' envelopes. Raises Invalid when they do not contradict each other."""
    return decode(_of_two(DOUBLE_VOTE, one, other))


def authority_fork(one: bytes, other: bytes, rights_at: RightsAt = first_rights) -> Proof:
    """Builds the proof from two authorities' envelopes. Raises Invalid when either is not one, or both are the same."""
    return decode(_of_two(AUTHORITY_FORK, one, other), rights_at)


def _of_two(kind: str, one: bytes, other: bytes) -> bytes:
    statements: list[canonical.Json] = [canonical.decode(sealed) for sealed in (one, other)]
    return canonical.encode(_ordered({"type": PROOF, "kind": kind, "statements": statements}))


def decode(raw: bytes, rights_at: RightsAt = first_rights) -> Proof:
    """Reads and checks a proof: limits, canonical form, signatures, contradiction.

    Raises Invalid; with rule ``proof-authority`` when it rests on a version that ``rights_at`` does not know.
    """
    if len(raw) > MAX_PROOF:
        raise Invalid(f"proof of {len(raw)} bytes, the limit is {MAX_PROOF}", rule="proof-size")
    value = canonical.decode(raw)
    try:
        form = msgspec.convert(value, _Form)
    except msgspec.MsgspecError as error:
        raise Invalid(f"not a proof: {error}", rule="proof") from error
    if form.type != PROOF:
        raise Invalid(f"proof of type {form.type[:80]!r}", rule="proof-type", hint=PROOF)
    one, other = (canonical.encode(sealed) for sealed in form.statements)
    if form.kind == FORK:
        return _check_fork(raw, form, (_head(one, rights_at), _head(other, rights_at)))
    if form.kind == DOUBLE_VOTE:
        return _check_double_vote(raw, one, other)
    if form.kind == AUTHORITY_FORK:
        return _check_authority_fork(raw, one, other, rights_at)
    if form.kind == DOUBLE_COSIGN:
        return _check_double_cosign(raw, form, one, other)
    raise Invalid(f"proof of kind {form.kind[:40]!r}", rule="proof-kind", hint=f"known here: {', '.join(KINDS)}")


class Body(msgspec.Struct, frozen=True):
    statements: tuple[bytes, ...]
    """The two statements, as envelopes or cosignatures."""
    leaves: tuple[bytes, ...]
    """The digests that differ, in the order of the statements; empty if the proof is not about histories."""


def statements_of(proof: Proof) -> Body:
    form = msgspec.convert(canonical.decode(proof.raw), _Form)
    return Body(tuple(map(canonical.encode, form.statements)), tuple(map(bytes.fromhex, form.leaves)))


class _Form(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    kind: str
    statements: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=2, max_length=2)]
    index: Count | None = None
    leaves: Annotated[list[Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]], msgspec.Meta(max_length=2)] = []
    paths: _Pair = ()


_Head: TypeAlias = tuple[HeadStatement, tuple[KeyDid, ...]]


def _check_fork(raw: bytes, form: _Form, heads: tuple[_Head, _Head]) -> Proof:
    (first, by_first), (second, by_second) = heads
    if (first.dataset, first.epoch) != (second.dataset, second.epoch):
        raise Invalid("heads of different datasets or epochs never form a fork", rule="proof-fork")
    _check_branches(form, (first, second))
    return Proof(
        kind=FORK,
        dataset=first.dataset,
        epoch=first.epoch,
        accused=tuple(sorted({*by_first, *by_second})),
        index=form.index,
        raw=raw,
    )


def _check_branches(form: _Form, trees: Sequence[HeadStatement | TreeCheckpoint]) -> None:
    """Checks that each tree holds its leaf at the named place, and that the leaves differ."""
    if form.index is None or len(form.leaves) != 2 or len(form.paths) != 2:
        raise Invalid("a fork's proof names a place, two leaves and two paths", rule="proof-fork")
    if form.leaves[0] == form.leaves[1]:
        raise Invalid("both trees hold the same block there: no fork", rule="proof-fork")
    for tree, leaf, path in zip(trees, form.leaves, form.paths, strict=True):
        found = root_from_inclusion(bytes.fromhex(leaf), form.index, tree.size, [_node(text) for text in path])
        if found != tree.root_hash:
            raise Invalid("a path does not lead to its head's tree hash", rule="proof-path")


def _check_double_cosign(raw: bytes, form: _Form, one: bytes, other: bytes) -> Proof:
    first, second = cosignature.decode(one), cosignature.decode(other)
    if first.witness != second.witness or first.checkpoint.origin != second.checkpoint.origin:
        raise Invalid("cosignatures of different witnesses or origins exclude nothing", rule="proof-cosign")
    _check_branches(form, (first.checkpoint, second.checkpoint))
    return Proof(
        kind=DOUBLE_COSIGN,
        dataset=first.checkpoint.dataset,
        epoch=first.checkpoint.epoch or 0,
        accused=(first.witness,),
        index=form.index,
        raw=raw,
    )


def _check_double_vote(raw: bytes, one: bytes, other: bytes) -> Proof:
    (first, by_first), (second, by_second) = _vote(one), _vote(other)
    if (first.dataset, first.epoch) != (second.dataset, second.epoch):
        raise Invalid("attestations of different datasets or epochs do not contradict each other", rule="proof-vote")
    if first.validator != second.validator:
        raise Invalid("attestations of two validators do not contradict each other", rule="proof-vote")
    earlier, later = sorted((first, second), key=lambda vote: vote.serial)
    before = by_first if earlier is first else by_second
    same = first.serial == second.serial and by_first.sid != by_second.sid
    broken = later.serial == earlier.serial + 1 and later.previous != before.sid
    if not (same or broken):
        raise Invalid("one validator may say both of these", rule="proof-vote")
    return Proof(
        kind=DOUBLE_VOTE, dataset=first.dataset, epoch=first.epoch, accused=(first.validator,), index=None, raw=raw
    )


def _check_authority_fork(raw: bytes, one: bytes, other: bytes, rights_at: RightsAt) -> Proof:
    (first, by_first), (second, by_second) = _authority(one), _authority(other)
    if (first.dataset, first.version) != (second.dataset, second.version) or by_first.sid == by_second.sid:
        raise Invalid("the proof rests on two statements of one version", rule="proof-authority-fork")
    before = _known(rights_at, first.dataset, first.version - 1)
    rights = [follow(before, authority, signed) for authority, signed in ((first, by_first), (second, by_second))]
    roots = before.roots.union(*(right.roots for right in rights))
    return Proof(
        kind=AUTHORITY_FORK,
        dataset=first.dataset,
        epoch=first.version,
        accused=tuple(sorted(roots.intersection((*by_first.signers, *by_second.signers)))),
        index=None,
        raw=raw,
    )


def _head(sealed: bytes, rights_at: RightsAt) -> _Head:
    """Returns a head and those of its signers that were writers under the version that it names."""
    signed, head = _open(sealed)
    if not isinstance(head, HeadStatement):
        raise Invalid("a fork's proof rests on two heads", rule="proof-fork")
    rights = _known(rights_at, head.dataset, head.authority)
    writers = tuple(key for key in signed.signers if rights.may_write(key, head.issued))
    if not writers:
        raise Invalid("a head not signed by a writer of its dataset proves nothing against a key", rule="proof-writer")
    return head, writers


def _authority(sealed: bytes) -> tuple[Authority, Signed]:
    signed, predicate = _open(sealed)
    if not isinstance(predicate, Authority):
        raise Invalid("an authority fork's proof rests on two authorities", rule="proof-authority-fork")
    return predicate, signed


def _known(rights_at: RightsAt, dataset: DatasetId, version: int) -> Rights:
    rights = rights_at(dataset, version)
    if rights is None:
        raise Invalid(f"authority version {version} is not known here", rule="proof-authority")
    return rights


def _vote(sealed: bytes) -> tuple[Attestation, Signed]:
    signed, predicate = _open(sealed)
    if not isinstance(predicate, Attestation):
        raise Invalid("a double vote's proof rests on two attestations", rule="proof-vote")
    if predicate.validator not in signed.signers:
        raise Invalid("an attestation not signed by its validator proves nothing against a key", rule="proof-vote")
    return predicate, signed


def _open(sealed: bytes) -> tuple[Signed, AnyPredicate]:
    signed = envelope.unseal(sealed, statement.MAX_ANY)
    predicate = statement.decode_any(signed.payload)
    if len(sealed) > predicate.MAX_ENVELOPE:
        raise Invalid("a statement larger than its kind may be", rule="envelope-size")
    return signed, predicate


def _first_difference(size: int, ours: Leaves, theirs: Leaves) -> int | None:
    """Returns the first place that differs, by bisection: chains linked by hash stay different once they differ."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if ours(middle, middle + 1)[0] == theirs(middle, middle + 1)[0]:
            low = middle + 1
        else:
            high = middle
    return low if low < size else None


def _node(text: str) -> bytes:
    try:
        node = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Invalid("a path holds something that is not base64", rule="proof-path") from error
    if len(node) != HASH_SIZE:
        raise Invalid(f"a path holds a node of {len(node)} bytes", rule="proof-path")
    return node


def _ordered(body: dict[str, canonical.Json]) -> dict[str, canonical.Json]:
    """Orders the statements by their bytes, so that two reporters of one contradiction write the same proof."""
    statements = body["statements"]
    assert isinstance(statements, list)
    places: Sequence[int] = sorted(range(2), key=lambda at: canonical.encode(statements[at]))
    paired = {name: [items[at] for at in places] for name, items in body.items() if isinstance(items, list)}
    return {**body, **paired}
