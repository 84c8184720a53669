"""How far a root is observed does not depend on when that was asked: what is remembered is what would be found anew."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain import instant
from chain.codec.blocks import encode_block
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, DatasetKind, DataSlice, OffsetInterval, Seed, SetInfo
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import Observation, Response
from chain.store.base import Head
from chain.store.database import open_database
from odfd.policy.policy import KeyGroup, Policy
from odfd.store.ledger.log import STEPS
from odfd.store.ledger.observations import Observations
from odfd.trust.judgement.observation_reach import ObservationReach, electorate

OWNER = SigningKey(b"d" * 32)
OBSERVERS = [SigningKey(bytes([number]) * 32) for number in (1, 2, 3)]
NOW = instant.parse("2026-11-20T08:00:00Z")
BLOCKS = 8
POLICY = Policy(groups=tuple(KeyGroup(f"g{number}", frozenset({key.did})) for number, key in enumerate(OBSERVERS)))
WHO = electorate(POLICY, SigningKey(b"m" * 32).did, lambda _: False, ())


class Chain:
    """The first blocks of one of two histories."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks

    def head(self) -> Head | None:
        return Head(self.blocks[-1].hash, len(self.blocks) - 1) if self.blocks else None

    def block_at(self, number: int) -> Block:
        return self.blocks[number]

    def last_of(self, kinds: Any, before: int | None = None) -> Block | None:
        return next((block for block in reversed(self.blocks[:before]) if type(block.event).__name__ in kinds), None)


@cache
def history(mark: str) -> list[Block]:
    """Seed, two blocks of data, an event of another kind, and so on; ``mark`` makes another one from block 4 on."""
    name = Multihash.sha3_256(b"slice")
    blocks: list[Block] = []
    for number in range(BLOCKS):
        data = AddData(
            new_data=DataSlice(
                logical_hash=name,
                physical_hash=name,
                offset_interval=OffsetInterval(start=number, end=number),
                size=1,
            )
        )
        other = SetInfo(description=f"note {number} {mark if number >= 4 else ''}")
        event = Seed(dataset_id=OWNER.dataset_id, dataset_kind=DatasetKind.ROOT) if number == 0 else data
        before = blocks[-1].hash if blocks else None
        content = MetadataBlock(
            system_time=NOW,
            prev_block_hash=before,
            sequence_number=number,
            event=other if number and number % 3 == 1 else event,
        )
        blocks.append(encode_block(content))
    return blocks


@cache
def said(who: int, mark: str, number: int, result: Any, minute: int) -> tuple[Observation, envelope.Signed]:
    made = Observation(
        observer=OBSERVERS[who].did,
        dataset=OWNER.dataset_id,
        epoch=0,
        sequence_number=number,
        result=result,
        response=Response(sha256="00" * 32, size=1),
        at=statement.when(Instant(NOW + minute * 60 * instant.SECOND)),
        head=history(mark)[number].hash,
    )
    return made, envelope.unseal(envelope.seal(statement.encode(made), OBSERVERS[who]), made.MAX_ENVELOPE)


HEARD = st.tuples(
    st.sampled_from([0, 1, 2]),
    st.sampled_from(["", "other"]),
    st.integers(1, BLOCKS - 1),
    st.sampled_from(["same-rows", "same-rows", "same-bytes", "differs"]),
    st.integers(0, 3),
)
ASKED = st.tuples(st.sampled_from(["", "other"]), st.integers(0, BLOCKS), st.integers(1, 3))


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(HEARD | ASKED, max_size=30))
def test_what_is_remembered_is_what_would_be_found_anew(deeds: list[Any]) -> None:
    """Statements and histories come in any order, and between them it is asked; a chain may shrink and turn."""
    with TemporaryDirectory() as folder, closing(open_database(Path(folder) / "odfd.sqlite")) as database:
        database.migrate("trust", STEPS)
        remembers = ObservationReach()
        with database.write() as connection:
            for deed in deeds:
                if len(deed) == 5:
                    hear(connection, *said(*deed))
                    continue
                mark, size, count = deed
                chain: Any = Chain(history(mark)[:size])
                found = remembers.reach(connection, chain, OWNER.dataset_id, count, WHO)
                assert found == ObservationReach().reach(connection, chain, OWNER.dataset_id, count, WHO)


def hear(connection: sqlite3.Connection, made: Observation, signed: envelope.Signed) -> None:
    kept = Observations(connection)
    if kept.is_news(made, signed.sid):
        kept.keep(made, signed, "new", "", NOW)


def test_it_ends_at_the_first_block_of_data_that_too_few_observed(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "odfd.sqlite")) as database:
        database.migrate("trust", STEPS)
        chain: Any = Chain(history(""))
        ask = ObservationReach().reach
        with database.write() as connection:
            assert ask(connection, chain, OWNER.dataset_id, 1, WHO) == 2
            for number in (2, 3, 5, 6):
                hear(connection, *said(0, "", number, "same-rows", 0))
            assert ask(connection, chain, OWNER.dataset_id, 1, WHO) == BLOCKS
            assert ask(connection, chain, OWNER.dataset_id, 2, WHO) == 2
            hear(connection, *said(0, "", 3, "differs", 1))
            assert ask(connection, chain, OWNER.dataset_id, 1, WHO) == 3
