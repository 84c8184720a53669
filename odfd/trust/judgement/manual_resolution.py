"""Lists what needs a person's decision on a dataset, and what choosing one hash settles. Pure.

A person follows a history by naming a block of it: up to that block the fork is settled and verdicts against single
steps are set aside, but nothing beyond it. Two statements of one version, or an epoch that gives up blocks which are
here, are settled by naming the one to follow. Spec: docs/spec/trust.md#epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from chain.errors import Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import SHA3_256, Multihash
from chain.statements import envelope, statement
from chain.statements.envelope import Signed
from chain.statements.proof import Proof, statements_of
from chain.statements.statement import Authority, HeadStatement
from chain.wording import plural
from odfd.store.ledger.resolutions import ABANDONED, BRANCH, EPOCH, VERDICT, VERSION, Resolution


class Side(msgspec.Struct, frozen=True):
    """One of two histories of the same epoch."""

    leaf: Multihash
    """Its block at the place where the two histories part."""
    head: HeadStatement
    signed: Signed


class Fork(msgspec.Struct, frozen=True):
    index: int
    sides: tuple[Side, ...]


class Versions(msgspec.Struct, frozen=True):
    """Two statements of one version of an authority."""

    number: int
    held: Multihash
    others: tuple[tuple[Authority, Signed], ...]


class Stop(msgspec.Struct, frozen=True):
    """A step that is not relied on for anything."""

    step: int
    block: Multihash
    rule: str


class PendingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one dataset that waits for a decision of a person."""

    dataset: DatasetId
    name: str
    size: int
    """The number of blocks that are here."""
    head: Multihash | None
    """The last of the blocks that are here."""
    epoch: int
    """The epoch of the blocks that are here."""
    number_of: Callable[[Multihash], int | None]
    """Returns the number of a block in the chain that is here; ``None`` if it is not in it."""
    fork: Fork | None = None
    stops: Sequence[Stop] = ()
    waiting: HeadStatement | None = None
    """A head of a later epoch that is not followed without a decision."""
    versions: Versions | None = None
    abandoned: bool = False


class DecisionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The consequences of a decision."""

    settles: tuple[str, ...]
    """The settled matters, for people, one line each."""
    resolutions: tuple[Resolution, ...] = ()
    branch: Side | None = None
    """The chosen history, if it is not the one here; then that one is given up from ``fork.index`` on."""
    version: tuple[Authority, Signed] | None = None
    """The chosen statement of a version, if it is not the one held."""


class ResolutionChoice(msgspec.Struct, frozen=True):
    """A hash that a person may follow, and a description of it."""

    name: Multihash
    message: str


def fork_of(proof: Proof) -> Fork:
    """Returns the two histories of a proof of a fork."""
    assert proof.index is not None
    body = statements_of(proof)
    sides = []
    for sealed, leaf in zip(body.statements, body.leaves, strict=True):
        signed = envelope.unseal(sealed, statement.MAX_ANY)
        head = statement.decode(signed.payload)
        assert isinstance(head, HeadStatement)
        sides.append(Side(Multihash.from_digest(SHA3_256, leaf), head, signed))
    return Fork(proof.index, tuple(sides))


def versions_of(proof: Proof, held: Multihash) -> Versions:
    """Returns the statements of a proof of an authority fork."""
    others = []
    for sealed in statements_of(proof).statements:
        signed = envelope.unseal(sealed, statement.MAX_ANY)
        version = statement.decode_any(signed.payload)
        assert isinstance(version, Authority)
        if signed.sid != held:
            others.append((version, signed))
    return Versions(proof.epoch, held, tuple(others))


def choices(case: PendingDecision) -> Iterator[ResolutionChoice]:
    """Yields the hashes that may be chosen; none when nothing waits."""
    if case.versions is not None:
        yield ResolutionChoice(
            case.versions.held, f"version {case.versions.number} of its authority as it is held here"
        )
        for _, signed in case.versions.others:
            yield ResolutionChoice(signed.sid, f"the other version {case.versions.number}")
    if case.head is not None and (case.fork is not None or case.stops or case.abandoned):
        yield ResolutionChoice(case.head, f"the history that is here, {plural(case.size, 'block')}")
    for side in case.fork.sides if case.fork else ():
        if case.fork is not None and case.number_of(side.leaf) != case.fork.index:
            yield ResolutionChoice(side.leaf, f"the other history, {plural(side.head.size, 'block')} of it known")
    if case.waiting is not None:
        yield ResolutionChoice(case.waiting.head, f"epoch {case.waiting.epoch}, {plural(case.waiting.size, 'block')}")


def follow(case: PendingDecision, name: Multihash, now: Instant) -> DecisionOutcome:
    """Returns the outcome of following ``name``. Raises Refused if that settles nothing."""
    if case.versions is not None and name in {case.versions.held, *(signed.sid for _, signed in case.versions.others)}:
        return _follow_version(case.versions, name, now)
    if case.waiting is not None and name == case.waiting.head:
        epoch = case.waiting.epoch
        made = Resolution(matter=EPOCH, number=epoch, place=case.waiting.size, name=name, at=now)
        return DecisionOutcome(settles=(f"epoch {epoch} is followed",), resolutions=(made,))
    number = case.number_of(name)
    if number is not None:
        return _follow_mine(case, name, number, now)
    return _follow_other(case, name, now)


def abandon(case: PendingDecision, reach: int, now: Instant) -> DecisionOutcome:
    """Returns the outcome of abandoning the dataset: nothing beyond the present reach will be relied on."""
    if case.abandoned:
        raise Refused(f"{case.name} was abandoned already", rule="resolve", hint="--follow HASH takes it up again")
    if not _waits(case):
        raise Refused(
            f"nothing about {case.name} waits for a decision",
            rule="resolve",
            hint="to hold it no longer: odfctl mirror remove, odfctl delete dataset",
        )
    name = case.head or Multihash.sha3_256(b"")
    made = Resolution(matter=ABANDONED, number=0, place=reach, name=name, at=now)
    return DecisionOutcome(settles=(f"it ends here after {plural(reach, 'block')}",), resolutions=(made,))


def _waits(case: PendingDecision) -> bool:
    return bool(case.fork or case.stops or case.waiting or case.versions)


def _follow_version(versions: Versions, name: Multihash, now: Instant) -> DecisionOutcome:
    made = Resolution(matter=VERSION, number=versions.number, place=0, name=name, at=now)
    other = next((other for other in versions.others if other[1].sid == name), None)
    which = "as it was held here" if other is None else "other than was held here"
    return DecisionOutcome(
        settles=(f"version {versions.number} of its authority is the one {which}",), resolutions=(made,), version=other
    )


def _follow_mine(case: PendingDecision, name: Multihash, number: int, now: Instant) -> DecisionOutcome:
    settles: list[str] = []
    made: list[Resolution] = []
    if case.fork is not None and case.fork.index <= number:
        settles.append(f"of the two histories that part at #{case.fork.index} the one that is here is followed")
        made.append(Resolution(matter=BRANCH, number=case.epoch, place=number, name=name, at=now))
    for stop in case.stops:
        if stop.step <= number:
            settles.append(f"#{stop.step} is used as data, although it is {stop.rule}")
            made.append(Resolution(matter=VERDICT, number=stop.step, place=stop.step, name=stop.block, at=now))
    if case.abandoned:
        settles.append("it is taken up again")
    if settles:
        return DecisionOutcome(settles=tuple(settles), resolutions=tuple(made))
    first = min([*(stop.step for stop in case.stops), *([case.fork.index] if case.fork else [])], default=None)
    hint = "odfctl trust show REF lists what does" if first is None else f"name a block from #{first} on"
    raise Refused(f"nothing about {case.name} up to #{number} waits for a decision", rule="resolve", hint=hint)


def _follow_other(case: PendingDecision, name: Multihash, now: Instant) -> DecisionOutcome:
    fork = case.fork
    side = next((side for side in fork.sides if name in (side.leaf, side.head.head)), None) if fork else None
    if fork is None or side is None:
        raise Refused(
            f"{name.short} is nothing that is known of {case.name}",
            rule="resolve",
            hint="odfctl trust show REF lists what may be followed",
        )
    place = fork.index if name == side.leaf else side.head.size - 1
    made = Resolution(matter=BRANCH, number=side.head.epoch, place=place, name=name, at=now)
    return DecisionOutcome(
        settles=(f"of the two histories that part at #{fork.index} the one that was not here is followed",),
        resolutions=(made,),
        branch=side,
    )
