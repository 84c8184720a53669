"""Decides who may sign for a dataset: walks from its id over all versions of its authority.

Version 0 is implicit: the dataset's own key is its only root and only writer. Each later version is signed by enough
roots of the version before *and* by enough of its own. So all versions together prove, from the id alone, who may sign
today, and the key that is the id can be taken out of use. A version that removes a writer's right opens an epoch: later
signatures of that key belong to a closed one.

Pure: ``follow`` makes ``Rights`` version by version; callers know whether a version is the newest. Spec:
docs/spec/trust.md#authorities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from chain import instant
from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import keys
from chain.statements.envelope import Signed, dataset_key
from chain.statements.statement import SHOWN_EPOCHS, Authority, Epoch

WRITER_LIFETIME: Final = 400 * 86400 * instant.SECOND
"""Longest time between an authority's issue and a writer's expiry: a year, and some days to renew it."""


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """The rights that a version of the authority grants. Made by ``implicit`` and ``follow`` only."""

    dataset: DatasetId
    version: int
    sid: Multihash | None
    """Id of the version's statement; ``None`` for version 0."""
    seed: Multihash | None
    """Hash of the dataset's first block, as the statements name it; ``None`` for version 0."""
    threshold: int
    roots: frozenset[KeyDid]
    writers: Mapping[KeyDid, Instant | None]
    """Time until which each may sign heads; ``None``: without end, in version 0."""
    epochs: tuple[Epoch, ...] = ()
    """The newest epochs, oldest first."""

    @property
    def epoch(self) -> int:
        """The current epoch, to which new heads belong."""
        return self.epochs[-1].number if self.epochs else 0

    def may_write(self, key: KeyDid, at: Instant) -> bool:
        if key not in self.writers:
            return False
        until = self.writers[key]
        return until is None or at < until

    def opened(self, number: int) -> Epoch | None:
        """Returns how an epoch began; ``None`` for the first one and for those no longer listed."""
        return next((epoch for epoch in self.epochs if epoch.number == number), None)


def implicit(dataset: DatasetId) -> Rights:
    """Returns the rights of version 0: only the key that is the dataset's id may write."""
    key = dataset_key(dataset)
    return Rights(
        dataset=dataset, version=0, sid=None, seed=None, threshold=1, roots=frozenset({key}), writers={key: None}
    )


def follow(before: Rights, authority: Authority, signed: Signed) -> Rights:
    """Returns the rights after one more version. Raises Invalid with the rule that the statement breaks."""
    _check_place(before, authority)
    roots = _distinct(authority.roots.keys, "roots")
    if authority.roots.threshold > len(roots):
        raise Invalid(
            f"a threshold of {authority.roots.threshold} with {len(roots)} roots: no one could sign the next version",
            rule="authority-threshold",
        )
    writers = _distinct((writer.key for writer in authority.writers), "writers")
    for writer in authority.writers:
        if not authority.issued < writer.expires <= authority.issued + WRITER_LIFETIME:
            raise Invalid(
                f"writer {writer.key.short} until {writer.expires_at}",
                rule="authority-writer-lifetime",
                hint="a writer is named for at most 400 days from the time of the statement",
            )
    _check_epochs(before, authority, gone=before.writers.keys() - writers)
    _check_signatures(signed, before.roots, before.threshold, f"version {before.version}")
    _check_signatures(signed, roots, authority.roots.threshold, f"version {authority.version} itself")
    return Rights(
        dataset=authority.dataset,
        version=authority.version,
        sid=signed.sid,
        seed=authority.head,
        threshold=authority.roots.threshold,
        roots=roots,
        writers={writer.key: writer.expires for writer in authority.writers},
        epochs=authority.epochs,
    )


def walk(dataset: DatasetId, versions: Iterable[tuple[Authority, Signed]]) -> list[Rights]:
    """Returns the rights of every version from 0 on. Raises Invalid at the first that does not follow."""
    rights = [implicit(dataset)]
    for authority, signed in versions:
        rights.append(follow(rights[-1], authority, signed))
    return rights


def missing_signatures(before: Rights, authority: Authority, signers: Iterable[KeyDid]) -> int:
    """Counts the root signatures still missing, of the version before or of ``authority``, whichever lacks more."""
    have = set(signers)
    old = before.threshold - len(before.roots & have)
    new = authority.roots.threshold - len(have.intersection(authority.roots.keys))
    return max(old, new, 0)


def _check_place(before: Rights, authority: Authority) -> None:
    if authority.dataset != before.dataset:
        raise Invalid("an authority of another dataset", rule="authority-dataset")
    if authority.version != before.version + 1:
        raise Invalid(
            f"version {authority.version} does not follow version {before.version}",
            rule="authority-version",
            hint="versions are walked one by one from the dataset's id",
        )
    if authority.previous != before.sid:
        raise Invalid(
            f"version {authority.version} does not name the version {before.version} that is known before it",
            rule="authority-previous",
        )
    if before.seed is not None and authority.head != before.seed:
        raise Invalid(
            "two versions name different first blocks",
            rule="authority-seed",
            hint="an authority cannot be moved to another chain",
        )


def _distinct(named: Iterable[KeyDid], what: str) -> frozenset[KeyDid]:
    """Returns the keys as a set. Raises Invalid if one occurs twice, compared by bytes: one key has several DIDs."""
    listed = tuple(named)
    for key in listed:
        keys.check_public_key(key.public_key)
    distinct = frozenset(listed)
    if len(distinct) != len(listed):
        raise Invalid(f"a key occurs twice among the {what}", rule="authority-keys", hint="a key has one vote")
    return distinct


def _check_epochs(before: Rights, authority: Authority, gone: Iterable[KeyDid]) -> None:
    """Checks that at most one epoch was appended, and that the newest sixteen are listed."""
    opened = authority.epochs[-1] if authority.epochs and authority.epochs[-1].number == before.epoch + 1 else None
    listed = before.epochs if opened is None else (*before.epochs, opened)
    if authority.epochs != listed[-SHOWN_EPOCHS:]:
        raise Invalid(
            "the epochs are not those of the version before and at most one new",
            rule="authority-epochs",
            hint=f"numbered one after the other, the newest {SHOWN_EPOCHS} shown",
        )
    if opened is not None and opened.base.size > opened.last.size:
        raise Invalid("an epoch keeps more than there was", rule="authority-epoch-base")
    if opened is not None and opened.base.size == opened.last.size and opened.replaces:
        raise Invalid("an epoch that keeps all blocks, and yet others", rule="authority-epoch-base")
    if opened is None and (removed := sorted(gone)):
        raise Invalid(
            f"writer {removed[0].short} is removed and no epoch opened",
            rule="authority-removal",
            hint="else later signatures of the removed key would count beside those of its successor",
        )


def _check_signatures(signed: Signed, roots: frozenset[KeyDid], threshold: int, whose: str) -> None:
    have = len(roots.intersection(signed.signers))
    if have < threshold:
        raise Invalid(f"signed by {have} of the {threshold} roots that {whose} asks for", rule="authority-signatures")
