"""Compares the engines that an attestation calls the pinned ones with the pins of the chain that it is about.

Whether an engine is the pinned one is not for a validator to say: it signs the digest of its engine, and the chain has
the pin. Spec: docs/spec/trust.md#pins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from chain.model.events import SetTransform
from chain.statements.statement import Attestation, Span
from chain.store.base import ChainReader
from chain.walk import newest_first
from odfd.trust.judgement.verdicts import NOT_PINNED

MOST_DECLARATIONS: Final = 256
"""Declarations of a transform that are compared with one span; a stranger's chain may have any number.

Blocks of the span under older ones count as not pinned.
"""
_TRANSFORMS: Final = ("SetTransform",)


def held_to_pins(chain: ChainReader, attestation: Attestation) -> Attestation:
    """Returns an attestation in which no engine is called the pinned one of blocks that pin another digest.

    Such blocks become spans of their own, with the same engine, not pinned, and that as their reason.
    """
    engines = attestation.engines
    spans: list[Span] = []
    for span in attestation.spans:
        if span.engine is None or span.engine >= len(engines) or not engines[span.engine].pinned:
            spans.append(span)
            continue
        for first, last, is_so in _by_pin(chain, span, engines[span.engine].digest):
            part = msgspec.structs.replace(span, first=first, last=last)
            other = len(engines) + span.engine
            spans.append(part if is_so else msgspec.structs.replace(part, engine=other, reason=NOT_PINNED))
    if tuple(spans) == attestation.spans:
        return attestation
    unpinned = (msgspec.structs.replace(engine, pinned=False) for engine in engines)
    return msgspec.structs.replace(attestation, spans=tuple(spans), engines=(*engines, *unpinned))


def _by_pin(chain: ChainReader, span: Span, digest: str) -> list[tuple[int, int, bool]]:
    """Divides a span into stretches, oldest first, that pin ``digest`` and that do not."""
    found: list[tuple[int, int, bool]] = []
    for first, last, is_so in _newest_pins(chain, span, digest):
        if found and found[-1][2] is is_so:
            last = found.pop()[1]
        found.append((first, last, is_so))
    if not found:
        return [(span.first, span.last, True)]  # nothing in it was made by an engine
    found[-1] = (span.first, *found[-1][1:])
    return found[::-1]


def _newest_pins(chain: ChainReader, span: Span, digest: str) -> Iterator[tuple[int, int, bool]]:
    stop = span.last + 1
    for count, block in enumerate(newest_first(chain, _TRANSFORMS, stop)):
        assert isinstance(block.event, SetTransform)
        is_told = count < MOST_DECLARATIONS
        first = max(block.sequence_number, span.first) if is_told else span.first
        yield first, stop - 1, is_told and block.event.transform.version == digest
        stop = first
        if stop == span.first:
            return
