"""Checks a portal's rows against its rule, as anyone who has the rows can."""

from __future__ import annotations

from typing import NamedTuple, cast

from chain.errors import Invalid
from chain.model.block import Block
from chain.model.portal import described
from chain.store.base import ObjectReader, StoredChain
from chain.walk import KindIndex
from odfd.portals.recheck import broken_blocks, rule_at
from odfd.verify.report import BlockRef, Level, VerificationRequest, VerifyFailure


class PortalCheck(NamedTuple):
    """The result of a check: the rule that was checked, in words, and the rows that break it."""

    told: str = ""
    failures: tuple[VerifyFailure, ...] = ()


def check_portal(chain: StoredChain, objects: ObjectReader, request: VerificationRequest, size: int) -> PortalCheck:
    """Checks a chain that is otherwise valid; checks nothing if it is no portal, or is not here as a whole."""
    if request.level is not Level.DATA or request.start or request.held_from or request.held_until < size:
        return PortalCheck()
    blocks = cast(KindIndex, chain)  # chains of stores and folders all are
    try:
        rule = rule_at(blocks, size)
    except Invalid as fault:
        said = blocks.last_of(("SetDataSchema",), size)
        assert said is not None, "its rule was read"
        return PortalCheck("", (_failure(said, fault.rule, fault.message),))
    if rule is None:
        return PortalCheck()
    broken = broken_blocks(blocks, objects, size)
    return PortalCheck(
        described(rule), tuple(_failure(each.block, each.breach.rule, each.breach.message) for each in broken)
    )


def _failure(block: Block, rule: str, message: str) -> VerifyFailure:
    return VerifyFailure(block=BlockRef(str(block.hash), block.sequence_number), rule=rule, message=message)
