"""Defines which witnesses count, how many make a quorum, and how far a chain is witnessed.

Of n groups with f faulty, a quorum of floor((n+f)/2)+1 prevents split views: two such quorums share an honest group,
which signs one side only. Smaller quorums detect them only when the two sides meet, and loading such a policy says so.
A group has one key, since two honest keys of one operator could stand on two sides. Pure, except for
``TreeRoots``, which caches. Spec: docs/spec/trust.md#witnesses.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from cachetools import FIFOCache

from chain import instant
from chain.errors import Invalid
from chain.ids import KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements.checkpoint import COSIGNATURE_KEY, TreeCheckpoint, VerifierKey, decode_verifier_key
from chain.statements.cosignature import Cosignature
from chain.statements.statement import HeadStatement
from chain.statements.tree import Tree
from chain.wording import agree, plural
from p2p.web.folder_url import place_of

WEEK: Final = 7 * 86400
FOREVER: Final = 1 << 40
"""Seconds that stand for no limit."""
_REMEMBERED: Final = 4096
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Witnesses(msgspec.Struct, frozen=True, kw_only=True):
    """The witnesses whose cosignatures count."""

    groups: Mapping[KeyDid, str] = {}
    """The name of each group by its key."""
    faulty: int = 0
    quorum: int = 0
    """Groups required for a dataset that is met for the first time; 0: none."""
    max_age: int = WEEK
    """Greatest age of a cosignature, in seconds."""

    @property
    def preventing(self) -> int:
        """Returns the smallest quorum that no two sides of a fork can both have."""
        return (len(self.groups) + self.faulty) // 2 + 1


def seconds_of(text: str) -> int:
    """Parses a time span of a policy into seconds: ``7d``, ``36h``, ``never``. Raises Invalid."""
    if text == "never":
        return FOREVER
    match = re.fullmatch(r"(\d{1,6})([smhd])", text, re.ASCII)
    if match is None:
        raise Invalid(f"not a span of time: {text[:40]!r}", rule="policy-time", hint="write it like 7d, 36h or never")
    return int(match[1]) * _SECONDS[match[2]]


def cosigner_key(vkey: str) -> VerifierKey:
    """Parses the key of a public witness as published: ``NAME+ID+BASE64``. Raises Invalid."""
    key = decode_verifier_key(vkey)
    if key.kind != COSIGNATURE_KEY:
        raise Invalid(f"{key.name} signs notes and is no witness", rule="note-key", hint="a witness's is of kind 0x04")
    return key


def _key(text: str) -> KeyDid:
    """Returns the key of a witness, given as a DID or in the form that public witnesses publish."""
    return KeyDid.from_public_key(cosigner_key(text).public_key) if "+" in text else KeyDid.parse(text)


def load_witnesses(
    groups: Sequence[tuple[str, Sequence[str]]], *, faulty: int = 0, quorum: int = 0, max_age: str = "7d"
) -> tuple[Witnesses, list[str]]:
    """Makes witnesses from their written form; returns them with every mistake."""
    mistakes: list[str] = []
    listed: dict[KeyDid, str] = {}
    for name, keys in groups:
        if len(keys) != 1:
            mistakes.append(f"witness group {name} has {len(keys)} keys: it has one, or two could be on two sides")
        if name in listed.values():
            mistakes.append(f"witness group {name} is listed twice")
        for text in keys:
            try:
                key = _key(text)
            except Invalid as fault:
                mistakes.append(f"witness group {name}: {fault.message}")
                continue
            if key in listed and listed[key] != name:
                mistakes.append(f"witness group {name}: key {key.short} is in group {listed[key]} too")
            listed.setdefault(key, name)
    seconds = WEEK
    try:
        seconds = seconds_of(max_age)
    except Invalid as fault:
        mistakes.append(f"witness max-age: {fault.message}")
    if quorum > len(groups):
        known = agree(len(groups), "group is", "groups are")
        mistakes.append(f"a quorum of {plural(quorum, 'witness', 'witnesses')}, of which {len(groups)} {known} listed")
    if faulty and faulty >= len(groups):
        mistakes.append(f"{faulty} of {len(groups)} witness groups may be faulty: then none is believed")
    return Witnesses(groups=listed, faulty=faulty, quorum=quorum, max_age=seconds), mistakes


def weaknesses(witnesses: Witnesses, asked: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Describes quorums that detect a split view and do not prevent it.
    ``asked``: who requires a quorum, and its size."""
    for who, count in asked:
        if 0 < count < witnesses.preventing:
            yield (
                f"{who}: {count} of {len(witnesses.groups)} witness groups, {witnesses.faulty} of them faulty, only "
                f"detect a split view; {witnesses.preventing} prevent it"
            )


def young(witnesses: Witnesses, made: Cosignature, now: Instant) -> bool:
    """Whether a cosignature counts: its witness is listed, and it is not too old."""
    return made.witness in witnesses.groups and now - made.at <= witnesses.max_age * instant.SECOND


def behind(witnesses: Witnesses, head: HeadStatement, made: Iterable[Cosignature], now: Instant) -> int:
    """Returns the number of groups that cosigned exactly the tree of a head."""
    return standing_behind(witnesses, TreeCheckpoint(head.dataset, head.epoch, head.size, head.root_hash), made, now)


def standing_behind(witnesses: Witnesses, tree: TreeCheckpoint, made: Iterable[Cosignature], now: Instant) -> int:
    """Returns the number of groups that cosigned exactly this tree."""
    return len(
        {witnesses.groups[each.witness] for each in made if each.checkpoint == tree and young(witnesses, each, now)}
    )


RootsAt = Callable[[Sequence[int]], Mapping[int, bytes]]
"""Returns the roots of my own tree at these sizes, ascending, none beyond it."""


def witnessed(
    witnesses: Witnesses, made: Iterable[Cosignature], size: int, roots_at: RootsAt, now: Instant
) -> tuple[int, ...]:
    """Returns how many of my first blocks each group has cosigned, in descending order; other trees do not count."""
    counted = [each for each in made if young(witnesses, each, now) and each.checkpoint.size <= size]
    counted = [each for each in counted if each.checkpoint.epoch is not None]
    roots = roots_at(sorted({each.checkpoint.size for each in counted}))
    reach: dict[str, int] = {}
    for each in counted:
        tree, group = each.checkpoint, witnesses.groups[each.witness]
        if roots[tree.size] == tree.root_hash:
            reach[group] = max(reach.get(group, 0), tree.size)
    return tuple(sorted(reach.values(), reverse=True))


class TreeRoots:
    """Caches roots of trees at requested sizes, by the last block of each. Safe to use from any thread."""

    def __init__(self) -> None:
        self._known: FIFOCache[Multihash, bytes] = FIFOCache(_REMEMBERED)
        self._lock = threading.Lock()

    def at(self, sizes: Sequence[int], ends: Mapping[int, Multihash], tree: Callable[[], Tree]) -> dict[int, bytes]:
        """Returns the roots at ``sizes``. ``ends``: the last block of each size;
        ``tree`` is made if a root is not cached."""
        with self._lock:
            found = {size: self._known[ends[size]] for size in sizes if ends[size] in self._known}
        if missing := set(sizes) - found.keys():
            made = tree()
            found |= {size: made.root(size) for size in missing}
        with self._lock:
            for size in sizes:
                self._known[ends[size]] = found[size]
        return found


class PublicWitness(msgspec.Struct, frozen=True):
    """A public witness: its key and address."""

    key: VerifierKey
    url: str

    @property
    def did(self) -> KeyDid:
        return KeyDid.from_public_key(self.key.public_key)

    @property
    def submit(self) -> str:
        return f"{self.url}/add-checkpoint"


def read_witness(text: str) -> PublicWitness:
    """Parses ``VKEY URL`` as written in the settings. Raises Invalid."""
    vkey, _, url = text.partition(" ")
    place = place_of(url.strip())
    if place is None:
        raise Invalid(
            f"not a public witness: {text[:80]!r}", rule="public-witness", hint="NAME+ID+BASE64 https://HOST/…"
        )
    return PublicWitness(cosigner_key(vkey), place)
