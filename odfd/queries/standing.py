"""Computes how far the data of a query may be relied on, and where to cut a dataset to satisfy a requirement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from chain.errors import Refused
from chain.store.base import ChainReader
from chain.wording import plural
from odfd.control import wire
from odfd.policy.policy import Expression
from odfd.store.catalog import DatasetEntry
from odfd.trust.judgement.trust_evaluator import TrustEvaluator
from odfd.trust.judgement.verdicts import quorum_of

_ORDER: Final = ("none", "chain", "data", "observed", "attested", "reproduced")
"""Facts from the weakest on, by their first word; other words state why a dataset is not relied on."""
_LOST: Final = ("forked", "refuted", "damaged")
"""States of a dataset that are reported in place of a fact."""


def standing_of(view: wire.DatasetView, size: int) -> wire.ReadStanding:
    """Returns the standing of the first ``size`` blocks of a dataset."""
    rely = view.rely_on
    relied = min(size, rely.blocks) if rely is not None else 0
    fact = rely.fact if rely is not None else ""
    if relied < size:
        fact = fact if rely is not None and fact else "none"
        if view.state in _LOST and not fact.startswith(view.state):
            fact = f"{view.state}: {fact}"
    return wire.ReadStanding(name=view.name, fact=fact or "none", blocks=relied, of=size)


def weakest(standings: Sequence[wire.ReadStanding]) -> str:
    """Returns the weakest standing of all that was read; a query without data has the strongest."""
    return min(standings, key=_rank).fact if standings else "no data read"


def count_required(
    evaluator: TrustEvaluator, entry: DatasetEntry, chain: ChainReader, size: int, expression: Expression
) -> int:
    """Returns how many of the first ``size`` blocks satisfy an expression."""
    known = evaluator.known(entry.id)
    known = msgspec.structs.replace(known, quorum=max(known.quorum, quorum_of((expression,))))
    return min(size, evaluator.reach_of(chain, known, expression).blocks)


def refuse_unsatisfied(name: str, blocks: int, size: int, wanted: str, *, cut: bool) -> Refused:
    """Makes the fault for a dataset that does not satisfy the requirement."""
    how = (
        f"only the first {blocks} of {plural(size, 'block')} do"
        if blocks
        else f"none of its {plural(size, 'block')} does"
    )
    hint = f"odfctl trust show {name} says why"
    if blocks and not cut:
        hint += "; --cut reads only what satisfies it"
    return Refused(f"{name} does not satisfy {wanted}: {how}", rule="query-require", hint=hint)


def _rank(standing: wire.ReadStanding) -> tuple[bool, int, int]:
    """Returns a sort key, ascending from the weakest standing; for the same fact, from the fewest voices."""
    word, _, rest = standing.fact.partition(" ")
    verdicts = rest.partition("/")[0]
    count = int(verdicts) if verdicts.isascii() and verdicts.isdecimal() else 0
    return standing.blocks >= standing.of, _ORDER.index(word) if word in _ORDER else 0, count
