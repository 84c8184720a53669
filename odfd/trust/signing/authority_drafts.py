"""Drafts the next version of an authority from a person's request, as a statement for the roots to sign. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from chain import instant
from chain.errors import Invalid, NotFound, Refused
from chain.ids import KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import statement
from chain.statements.authority import Rights
from chain.statements.envelope import dataset_key
from chain.statements.statement import MAX_VERSION, MAX_WRITERS, SHOWN_EPOCHS, Authority, Epoch, Roots, TreeHead, Writer
from chain.wording import plural

DAY: Final = 86400 * instant.SECOND
USUAL_DAYS: Final = 365
MAX_DAYS: Final = 399
"""Days for which a writer may be named: one less than the limit, since drafts are signed later than they are made."""


class EpochOpening(msgspec.Struct, frozen=True):
    """The fields of an epoch that replaces blocks, except its number."""

    reason: Literal["reset", "recovery", "fork", "compaction"]
    base: TreeHead
    """The part of the present chain that is kept."""
    last: TreeHead
    """The whole present chain."""


Reason: TypeAlias = Literal["rotation", "recovery", "fork"]
"""Why an epoch that keeps all blocks is opened: as planned, after a theft, or to choose one of two histories."""


def rotate(
    rights: Rights, writer: KeyDid, chain: TreeHead, seed: Multihash, now: Instant, reason: Reason = "rotation"
) -> Authority:
    """Drafts a version in which ``writer`` is the only writer, from the end of ``chain`` on."""
    epoch = Epoch(number=rights.epoch + 1, reason=reason, base=chain, last=chain)
    return _next(rights, {writer: _until(now, USUAL_DAYS)}, seed, now, epoch)


def rewritten(rights: Rights, opened: EpochOpening, mine: Iterable[KeyDid], seed: Multihash, now: Instant) -> Authority:
    """Drafts a version with another history from ``opened.base`` on.
    Writers stay; those of ``mine`` get another year."""
    epoch = Epoch(number=rights.epoch + 1, reason=opened.reason, base=opened.base, last=opened.last)
    return _next(rights, _lengthen(rights, mine, now), seed, now, epoch)


def renew(rights: Rights, mine: Iterable[KeyDid], seed: Multihash, now: Instant) -> Authority:
    """Drafts a version that extends the rights of writers of ``mine`` by a year, and keeps all else."""
    return _next(rights, _lengthen(rights, mine, now), seed, now, None)


def is_short(rights: Rights, mine: Iterable[KeyDid], now: Instant) -> bool:
    """Whether a right to write of one of ``mine`` lasts less than a third of a year,
    and there is a version left to renew it."""
    ends = [until for key in mine if (until := rights.writers.get(key)) is not None]
    return rights.version < MAX_VERSION and any(until - now < USUAL_DAYS * DAY // 3 for until in ends)


def with_writer(rights: Rights, key: KeyDid, days: int, seed: Multihash, now: Instant) -> Authority:
    """Drafts a version in which ``key`` may write too, or for longer. Raises Invalid."""
    if not 1 <= days <= MAX_DAYS:
        raise Invalid(f"a writer for {plural(days, 'day')}", rule="authority-writer-lifetime", hint=f"1…{MAX_DAYS}")
    if key not in rights.writers and len(rights.writers) >= MAX_WRITERS:
        raise Invalid(f"there are {MAX_WRITERS} writers already", rule="authority-writers", hint="remove one first")
    return _next(rights, {**_keep_writers(rights, now), key: _until(now, days)}, seed, now, None)


def without_writer(rights: Rights, key: KeyDid, chain: TreeHead, seed: Multihash, now: Instant) -> Authority:
    """Drafts a version without a writer; what ``key`` signs beyond ``chain`` then belongs to a closed epoch.

    Raises NotFound.
    """
    if key not in rights.writers:
        raise NotFound(
            f"{key.short} is no writer of it",
            rule="authority-writer",
            hint="odfctl trust authority show REF lists them",
        )
    kept = {each: until for each, until in _keep_writers(rights, now).items() if each != key}
    epoch = Epoch(number=rights.epoch + 1, reason="rotation", base=chain, last=chain)
    return _next(rights, kept, seed, now, epoch)


def _lengthen(rights: Rights, mine: Iterable[KeyDid], now: Instant) -> dict[KeyDid, Instant]:
    kept, year = _keep_writers(rights, now), _until(now, USUAL_DAYS)
    return kept | {key: max(kept[key], year) for key in mine if key in kept}


def _keep_writers(rights: Rights, now: Instant) -> dict[KeyDid, Instant]:
    """Returns the present writers and until when.
    Expired ones stay named for a day: omitting one would open an epoch."""
    whole = Instant(now + DAY)
    return {
        key: _until(now, USUAL_DAYS) if until is None else max(until, whole) for key, until in rights.writers.items()
    }


def _until(now: Instant, days: int) -> Instant:
    return Instant(now + days * DAY)


def _next(
    rights: Rights, writers: Mapping[KeyDid, Instant], seed: Multihash, now: Instant, epoch: Epoch | None
) -> Authority:
    if rights.version >= MAX_VERSION:
        raise Refused(
            f"this is version {MAX_VERSION} of the authority, the last possible one",
            rule="authority-versions",
            hint="continue in a new dataset; the signers of this one can no longer change",
        )
    roots = sorted(rights.roots) if rights.version else [dataset_key(rights.dataset)]
    epochs = rights.epochs if epoch is None else (*rights.epochs, epoch)[-SHOWN_EPOCHS:]
    return Authority(
        dataset=rights.dataset,
        version=rights.version + 1,
        previous=rights.sid,
        issued_at=statement.when(now),
        roots=Roots(threshold=rights.threshold, keys=tuple(roots)),
        writers=tuple(Writer(key=key, expires_at=statement.when(until)) for key, until in sorted(writers.items())),
        epochs=epochs,
        head=seed,
    )
