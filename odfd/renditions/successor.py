"""Writes into a chain where its collection goes on, and reads that: the last keyword of its description.

A chain is signed and copied everywhere, so anybody who has it learns its successor, and that its owner named it. Other
implementations show a sentence in the description. Pure. Spec: docs/spec/collections.md#published.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from chain import instant
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import from_millis, to_millis
from chain.model.block import Block
from chain.model.events import SetInfo
from chain.multihash import Multihash
from odfd.renditions.chain_timeline import is_row, words_of
from odfd.renditions.timeline import Timeline

_WORD: Final = "odfd/handover"
_KEYWORD: Final = re.compile(
    _WORD + r":(?P<to>did:odf:[0-9a-z]{1,128})@(?P<time>\d{1,15}):(?P<block>[0-9a-z]{1,128})"
    r"(?::(?P<ended>[1-9]\d?)-(?P<shards>[1-9]\d?))?\Z"
)
_SENTENCE: Final = re.compile(r"\s*\[From \S+ on it goes on as did:odf:[^\s,]+(, the first of \d+ shards)?\]\Z")


class HandoverNotice(msgspec.Struct, frozen=True):
    """Says that the collection is ``to`` from ``time`` on, and that ``block`` was the head of ``to`` then."""

    to: DatasetId
    time: int
    """The time of the handover in whole milliseconds."""
    block: Multihash
    ended: int = 1
    """The number of shards of the rendition that ended; each of them has the notice."""
    shards: int = 1
    """The number of shards of the collection from then on; ``to`` is the first."""

    @property
    def is_plain(self) -> bool:
        """Whether both are one chain each, so that ``block`` alone says what is complete."""
        return self.ended == self.shards == 1


def announce(info: SetInfo | None, notice: HandoverNotice) -> SetInfo:
    """Returns the description of a chain that ended, with the notice, in place of ``info``."""
    plain = without_notice(info) or SetInfo()
    when = instant.render(from_millis(notice.time))
    first = f", the first of {notice.shards} shards" if notice.shards > 1 else ""
    sentence = f"[From {when} on it goes on as {notice.to}{first}]"
    # Nodes that know nothing of the numbers pass the word over: one shard would be all rows to them.
    numbers = "" if notice.is_plain else f":{notice.ended}-{notice.shards}"
    keyword = f"{_WORD}:{notice.to}@{notice.time}:{notice.block}{numbers}"
    return SetInfo(
        description=f"{plain.description} {sentence}" if plain.description else sentence,
        keywords=(*(plain.keywords or ()), keyword),
    )


def going_on(info: SetInfo | None, timeline: Timeline) -> SetInfo:
    """Returns the description of a chain that becomes the active one, with the rows of M, in place of ``info``."""
    plain = without_notice(info) or SetInfo()
    return SetInfo(description=plain.description, keywords=(*(plain.keywords or ()), *words_of(timeline)))


def notice_of(info: SetInfo | None) -> HandoverNotice | None:
    """Returns the successor that a chain names; ``None`` if it names none, or none that can be read."""
    for word in reversed(info.keywords or () if info is not None else ()):
        found = _KEYWORD.match(word)
        if found is not None:
            try:
                to, block = DatasetId.parse(found["to"]), Multihash.parse(found["block"])
            except (Invalid, ValueError):
                continue
            return HandoverNotice(to, int(found["time"]), block, int(found["ended"] or 1), int(found["shards"] or 1))
    return None


def notice_in(block: Block | None) -> HandoverNotice | None:
    """Returns the successor that the last description of a chain names; ``None``: it names none.

    Raises Invalid for a handover before the time of its block. No block is before the frontier that the owner signed,
    so such a handover would be at a time that was decided.
    """
    info = None if block is None or not isinstance(block.event, SetInfo) else block.event
    notice = notice_of(info)
    if block is not None and notice is not None and notice.time < to_millis(block.system_time):
        raise Invalid(
            f"a handover at {instant.render(from_millis(notice.time))}, and its owner promised before that there is"
            f" none until {instant.render(block.system_time)}",
            rule="rendition-promised",
            hint="ask its owner; the collection stays with the rendition that ended",
        )
    return notice


def without_notice(info: SetInfo | None) -> SetInfo | None:
    """Returns the description as its owner wrote it, without a notice and without rows of M."""
    if info is None or not any(_is_made(word) for word in info.keywords or ()):
        return info
    words = tuple(word for word in info.keywords or () if not _is_made(word))
    text = _SENTENCE.sub("", info.description or "")
    return SetInfo(description=text or None, keywords=words or None) if text or words else None


def _is_made(word: str) -> bool:
    return _KEYWORD.match(word) is not None or is_row(word)
