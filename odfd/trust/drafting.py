"""Drafts of the next version of an authority: what a person wishes, as a statement for the roots to sign. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chain import instant
from chain.errors import Invalid, NotFound
from chain.ids import KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import statement
from chain.statements.authority import Rights
from chain.statements.envelope import dataset_key
from chain.statements.statement import MAX_WRITERS, SHOWN_EPOCHS, Authority, Epoch, Roots, TreeHead, Writer

DAY: Final = 86400 * instant.SECOND
USUAL_DAYS: Final = 365
MAX_DAYS: Final = 399
"""A day less than a writer may be named for, since drafts are signed later than they are made."""


def rotated(rights: Rights, writer: KeyDid, chain: TreeHead, seed: Multihash, now: Instant) -> Authority:
    """From now on ``writer`` alone writes, beginning where ``chain`` ends."""
    epoch = Epoch(number=rights.epoch + 1, reason="rotation", base=chain, last=chain)
    return _next(rights, {writer: _until(now, USUAL_DAYS)}, seed, now, epoch)


def with_writer(rights: Rights, key: KeyDid, days: int, seed: Multihash, now: Instant) -> Authority:
    """``key`` may write too, or longer than it could. Raises Invalid."""
    if not 1 <= days <= MAX_DAYS:
        raise Invalid(f"a writer for {days} days", rule="authority-writer-lifetime", hint=f"1…{MAX_DAYS}")
    if key not in rights.writers and len(rights.writers) >= MAX_WRITERS:
        raise Invalid(f"there are {MAX_WRITERS} writers already", rule="authority-writers", hint="remove one first")
    return _next(rights, {**_kept(rights, now), key: _until(now, days)}, seed, now, None)


def without_writer(rights: Rights, key: KeyDid, chain: TreeHead, seed: Multihash, now: Instant) -> Authority:
    """``key`` writes no longer; what it signed beyond ``chain`` lies in a closed epoch. Raises NotFound."""
    if key not in rights.writers:
        raise NotFound(
            f"{key.short} is no writer of it",
            rule="authority-writer",
            hint="odfctl trust authority show REF lists them",
        )
    kept = {each: until for each, until in _kept(rights, now).items() if each != key}
    epoch = Epoch(number=rights.epoch + 1, reason="rotation", base=chain, last=chain)
    return _next(rights, kept, seed, now, epoch)


def _kept(rights: Rights, now: Instant) -> dict[KeyDid, Instant]:
    """Present writers. Those whose time is over stay named for a day: leaving one out would open an epoch."""
    whole = Instant(now + DAY)
    return {
        key: _until(now, USUAL_DAYS) if until is None else max(until, whole) for key, until in rights.writers.items()
    }


def _until(now: Instant, days: int) -> Instant:
    return Instant(now + days * DAY)


def _next(
    rights: Rights, writers: Mapping[KeyDid, Instant], seed: Multihash, now: Instant, epoch: Epoch | None
) -> Authority:
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
