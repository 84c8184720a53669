"""Checks a new transform for a dataset that has rows: asks the engine whether it can go on, before it is recorded.

What cannot go on where the old query stopped is refused when it is applied, with the way to derive anew. Decides
nothing that the next transaction would not decide in the same way.
"""

from __future__ import annotations

import trio

from chain.errors import Invalid, Refused
from chain.instant import Instant
from chain.model.events import SetTransform
from chain.state import ChainState
from chain.store.base import ChainStore
from chain.walk import first_where
from engines.contract import DerivationNeeded, Engine, InternalError, InvalidQuery
from engines.errors import engine_failed
from odfd.api.transforms.check import TransformCheck
from odfd.state.directory import STAGING, StateDirectory
from odfd.transform.driver import fresh_folder
from odfd.transform.plan import TRANSFORM_EVOLUTION, Blocked
from odfd.transform.succession import judgement


class EvolutionCheck:
    """Asks; writes nothing that stays."""

    def __init__(self, home: StateDirectory, engine: Engine, check: TransformCheck) -> None:
        self._home = home
        self._engine = engine
        self._check = check

    async def check(self, name: str, state: ChainState, event: SetTransform, now: Instant) -> None:
        """Raises Refused when the dataset would have to be derived anew, Invalid for a query that cannot run."""
        inputs = await self._check.inputs(event)
        if state.schema is None or inputs is None:
            return
        chains = self._home.chains
        way = await trio.to_thread.run_sync(way_anew, chains, name, state)
        async with fresh_folder(self._home.folder(STAGING)) as folder:
            request = await trio.to_thread.run_sync(judgement, chains, state, event, inputs, now, folder)
            if isinstance(request, Blocked):
                raise Refused(request.reason, rule=request.rule or TRANSFORM_EVOLUTION, hint=request.hint)
            answer = await self._engine.migrate(request)
        match answer:
            case InvalidQuery(message=message, rule=rule, hint=hint, place=place):
                raise Invalid(message, rule=rule or "transform", hint=hint or "", place=place or "")
            case InternalError(message=message):
                raise engine_failed(message)
            case DerivationNeeded(message=message):
                raise Refused(
                    f"the new transform of {name} cannot go on from its history: {message}",
                    rule=TRANSFORM_EVOLUTION,
                    hint=way,
                )


def way_anew(chains: ChainStore, name: str, state: ChainState) -> str:
    """What to type to have all of a dataset derived anew. Synchronous."""
    assert state.dataset is not None
    first = first_where(chains.chain(state.dataset), ("SetDataSchema", "ExecuteTransform"), 0, state.size)
    number = state.sequence_number if first is None else first.sequence_number - 1
    return (
        f"derive it anew: odfctl reset {name} '#{number}', then apply it again and odfctl pull {name}; "
        "or apply it under another name, as a dataset of its own"
    )
